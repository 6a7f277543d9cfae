package run

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// aheadPool is the pool of a run whose memory is in dir.
func aheadPool(t *testing.T, dir string) *Pool {
	t.Helper()
	ledger, err := OpenLedger(dir)
	if err != nil {
		t.Fatal(err)
	}
	p := NewPool(Options{Root: "/", Env: []string{"PATH=/usr/bin:/bin"}, Ledger: ledger})
	t.Cleanup(p.Close)
	return p
}

func TestWorkersAreStartedAsBefore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := aheadPool(t, dir)
	if first.StartAsBefore("prolog"); first.Pid(checks.NVML) != 0 {
		t.Error("a worker was started without a memory")
	}
	first.RememberLanes("prolog", []checks.Lane{checks.NVML, checks.Local, checks.NVML})
	for kind, want := range map[string]bool{"prolog": true, "epilog": false} {
		p := aheadPool(t, dir)
		if p.StartAsBefore(kind); p.Pid(checks.NVML) != 0 != want || p.Pid(checks.Local) != 0 {
			t.Errorf("%s: worker %d, want one: %v", kind, p.Pid(checks.NVML), want)
		}
	}
	first.RememberLanes("prolog", []checks.Lane{checks.Local})
	p := aheadPool(t, dir)
	if p.StartAsBefore("prolog"); p.Pid(checks.NVML) != 0 {
		t.Error("what is no longer needed was started")
	}
}

func TestNoWorkerIsStartedBesideACorpse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := aheadPool(t, dir)
	p.RememberLanes("prolog", []checks.Lane{checks.NVML})
	st, err := readStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Ledger().Add(Corpse{PID: os.Getpid(), Start: st.start, Lane: checks.NVML, Step: "check_gpu_count"}); err != nil {
		t.Fatal(err)
	}
	p = aheadPool(t, dir)
	if p.StartAsBefore("prolog"); p.Pid(checks.NVML) != 0 {
		t.Error("a worker was started in a lane that hangs")
	}
}

// Whatever stands in the file, nothing but a vendor's lane is started.
func TestGarbageInTheMemoryOfLanes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "lanes.prolog"), []byte("local shell \x00\xff nvml2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := aheadPool(t, dir)
	p.StartAsBefore("prolog")
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.workers) > 0 {
		t.Errorf("%v", p.workers)
	}
}
