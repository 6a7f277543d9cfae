package run

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// A process that handles SIGTERM gets its full grace, and no second signal in that time.
func TestEndSessionLetsATrapEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ready, done := filepath.Join(dir, "ready"), filepath.Join(dir, "done")
	cmd := exec.Command("sh", "-c", `trap 'sleep 0.3; : > "$2"; exit' TERM; : > "$1"; while :; do sleep 0.02; done`, "sh", ready, done)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = cmd.Wait() // it is ended by a signal
	}()
	awaitFile(t, ready)
	if left := process.EndSession(cmd.Process.Pid, 20*time.Second); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	<-over
	if _, err := os.Stat(done); err != nil {
		t.Errorf("its trap has not come to its end: %v", err)
	}
}

// If a run ends during a diagnostic, dcgmi gets the time to end it, and its output is still read:
// sh prints that its command was terminated.
func TestEndedRunLetsDCGMEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ready, done := filepath.Join(dir, "ready"), filepath.Join(dir, "done")
	p := newTestPool(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan Outcome, 1)
	go func() { // on a busy machine the run is ended before the wait for the answer begins
		over <- p.Call(ctx, checks.DCGM, &wire.Request{Op: wire.OpCheck, Name: "check_rogue_dcgm", Args: []string{"trap", ready, done}, Line: "x"}, time.Minute)
	}()
	awaitFile(t, ready)
	cancel()
	<-over
	awaitFile(t, done)
}

func awaitFile(t *testing.T, path string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: not there", filepath.Base(path))
		}
	}
}
