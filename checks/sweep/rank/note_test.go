package rank

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/wire"
)

// A rank passes an event to the child that writes the history, and returns why it failed.
func TestNote(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history")
	for name, tt := range map[string]struct {
		text  string // of the child
		fault sweep.Fault
		want  string
	}{
		"written": {`echo "$0 $*" >` + path + `; cat >>` + path, sweep.FaultNone, ""},
		"fails":   {"echo a warning >&2; echo 'nhc-gpu sweep note: no space left' >&2; exit 1", sweep.FaultError, "no space left"},
		"silent":  {"exit 3", sweep.FaultError, "exit status 3"},
	} {
		f := newFleetOf(t, wire.Config{Silence: patience}, Options{program: script(t, tt.text)}, loopback("a"))
		r := f.do(sweep.Task{Kind: sweep.KindNote, Nodes: []string{"a"}, Op: `{"node":"a"}`})[0]
		if r.Fault != tt.fault || r.Text != tt.want {
			t.Errorf("%s: %q %q, want %q %q", name, r.Fault, r.Text, tt.fault, tt.want)
		}
	}
	text, err := os.ReadFile(path)
	if want := "sweep note\n{\"node\":\"a\"}"; err != nil || !strings.HasSuffix(string(text), want) {
		t.Errorf("the child got %q, %v, want %q", text, err, want)
	}
}
