package run

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// aheadPool returns the pool of a run with its memory in dir.
func aheadPool(t *testing.T, dir, kind string) *Pool {
	t.Helper()
	p := newTestPool(t, "")
	openTestState(t, p, dir, kind)
	return p
}

func TestWorkersAreStartedAsBefore(t *testing.T) {
	t.Parallel()
	dir := stateDirOf(t)
	first := aheadPool(t, dir, "prolog")
	if first.StartAsBefore(nil); first.Pid(checks.NVML) != 0 {
		t.Error("a worker was started without a memory")
	}
	first.RememberLanes("prolog", nil, []checks.Lane{checks.NVML, checks.Local, checks.NVML})
	for kind, want := range map[string]bool{"prolog": true, "epilog": false} {
		p := aheadPool(t, dir, kind)
		if p.StartAsBefore(nil); p.Pid(checks.NVML) != 0 != want || p.Pid(checks.Local) != 0 {
			t.Errorf("%s: worker %d, want one: %v", kind, p.Pid(checks.NVML), want)
		}
	}
	other := aheadPool(t, dir, "prolog")
	if other.StartAsBefore([]string{"-c", "empty.conf"}); other.Pid(checks.NVML) != 0 {
		t.Error("a worker was started for another configuration")
	}
	aheadPool(t, dir, "prolog").RememberLanes("prolog", nil, []checks.Lane{checks.Local})
	p := aheadPool(t, dir, "prolog")
	if p.StartAsBefore(nil); p.Pid(checks.NVML) != 0 {
		t.Error("what is no longer needed was started")
	}
}

func TestNoWorkerIsStartedBesideAStuckProcess(t *testing.T) {
	t.Parallel()
	dir := stateDirOf(t)
	p := aheadPool(t, dir, "prolog")
	p.RememberLanes("prolog", nil, []checks.Lane{checks.NVML})
	st, err := process.ReadStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	p.ledger.add(wire.StuckProcess{PID: os.Getpid(), Start: st.Start, Lane: checks.NVML, Step: "check_gpu_count"})
	p.keepLedger()
	p = aheadPool(t, dir, "prolog")
	if p.StartAsBefore(nil); p.Pid(checks.NVML) != 0 {
		t.Error("a worker was started in a lane that hangs")
	}
}

// Whatever the file contains, only a vendor's lane is started.
func TestGarbageInTheMemoryOfLanes(t *testing.T) {
	t.Parallel()
	dir := stateDirOf(t)
	if err := os.WriteFile(filepath.Join(dir, "lanes.prolog"), []byte("local shell \x00\xff nvml2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := aheadPool(t, dir, "prolog")
	before := p.Pid(execLane)
	p.StartAsBefore(nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.workers) > 1 || p.workers[execLane].pid != before {
		t.Errorf("%v", p.workers)
	}
}
