package worker

import (
	"os/exec"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// TestOlderThan checks that a process that is querying the driver right now does not keep another
// run from doing the same.
func TestOlderThan(t *testing.T) {
	t.Parallel()
	sleep := need.Program(t, "sleep")
	cmd := &exec.Cmd{Path: sleep, Args: []string{wire.WorkerName + " " + StatesName, "60"}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	for began := time.Now(); !hasOlder(StatesName, -time.Minute); time.Sleep(time.Millisecond) { // until it has that name
		if time.Since(began) > 10*time.Second {
			t.Fatal("a process that asks the driver was not found")
		}
	}
	if hasOlder(StatesName, time.Hour) {
		t.Error("a process that was started just now was taken for one that hangs")
	}
}
