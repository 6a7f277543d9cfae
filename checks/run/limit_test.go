package run

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// However late in a run a vendor's library hangs, there is time for the verdict.
func TestVendorLimit(t *testing.T) {
	t.Parallel()
	for left, want := range map[time.Duration]time.Duration{
		30 * time.Second: 25 * time.Second, 20 * time.Second: 15 * time.Second, 6 * time.Second: 3 * time.Second, -time.Second: time.Millisecond,
	} {
		e := &Engine{Deadline: time.Now().Add(left), Timeout: func() time.Duration { return 30 * time.Second }}
		got := e.limit(&plan.Step{Lane: checks.NVML, Timeout: 25 * time.Second})
		if got > want || got < want-time.Second {
			t.Errorf("%v before the end of the run: %v, want %v", left, got, want)
		}
	}
}

// On a node whose CPUs are busy a worker starts and answers late. That is no dead file system.
func TestStarvedWorker(t *testing.T) {
	t.Parallel()
	p := newTestPool(t, "")
	path := filepath.Join(t.TempDir(), "log")
	o := p.Call(t.Context(), "log", &wire.Request{Op: wire.OpAppend, Path: path, Data: []byte("x\n"), Line: "write " + path}, time.Microsecond)
	if data, err := os.ReadFile(path); o.Failure() != nil || string(data) != "x\n" {
		t.Errorf("%v: the file has %q (%v)", o.Failure(), data, err)
	}
}
