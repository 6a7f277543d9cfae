package run

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// An outcome without an answer returns an error and no data.
func TestOutcomeWithoutAnswer(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Outcome{
		"interrupted": {},
		"hung":        hung(&checks.Hung{PID: 1}),
		"died":        died("its worker died"),
		"lost":        lost("not run"),
		"error":       answered(&wire.Response{Err: "read /x: permission denied", File: &wire.FileInfo{}}),
		"exists":      answered(&wire.Response{Err: "write /x: it exists", Kind: wire.Exists}),
	} {
		t.Run(name, func(t *testing.T) {
			resp, err := o.Answer()
			if resp != nil || err == nil || o.Failure() == nil || o.FailureIn("read /x") == nil {
				t.Errorf("Answer: %v, %v, want an error alone", resp, err)
			}
			if _, err := o.File("read /x"); err == nil {
				t.Error("File: want an error")
			}
			if got := errors.Is(err, fs.ErrExist); got != (name == "exists") {
				t.Errorf("errors.Is(%v, fs.ErrExist) = %v", err, got)
			}
		})
	}
	if _, err := answered(&wire.Response{}).File("read /x"); err == nil {
		t.Error("File of an answer that describes none: want an error")
	}
	if f, err := answered(&wire.Response{File: &wire.FileInfo{Size: 1}, Data: []byte("x")}).File("read /x"); err != nil || f.Size != 1 || string(f.Data) != "x" {
		t.Errorf("File: %v, %v", f, err)
	}
}
