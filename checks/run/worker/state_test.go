package worker

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// Only the supervisor of this process gets a lock. Process 1 does not hold one, whatever a line says: an earlier
// version has written such lines.
func TestLockNamesSupervisor(t *testing.T) {
	t.Parallel()
	dir := stateDir(t.TempDir())
	file := filepath.Join(string(dir), "lock")
	first, err := process.ReadStat(1)
	if err != nil {
		t.Fatal(err)
	}
	if isThisProgram(1) {
		t.Skip("this test is process 1")
	}
	line := fmt.Sprintf(wire.LockLine, 1, time.Now().Unix(), first.Start)
	if err := os.WriteFile(file, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dead := range []int{1 << 30, os.Getpid()} {
		if holder, err := dir.lock("lock", "", dead, 0); err == nil {
			t.Errorf("lock for process %d: %+v, want an error", dead, holder)
		}
	}
	if data, _ := os.ReadFile(file); string(data) != line {
		t.Errorf("the lock is %q, was %q", data, line)
	}
	self := os.Getppid()
	if holder, err := dir.lock("lock", "", self, 0); holder != nil || err != nil {
		t.Errorf("lock of process 1: %+v, %v, want it", holder, err)
	}
	taken, _ := os.ReadFile(file)
	if !strings.HasPrefix(string(taken), fmt.Sprint(self, " ")) {
		t.Errorf("the lock is %q, want that of process %d", taken, self)
	}
	if err := dir.unlock("lock", os.Getpid()); err != nil {
		t.Error(err)
	}
	if data, _ := os.ReadFile(file); string(data) != string(taken) {
		t.Errorf("the lock is %q after another's unlock, want %q", data, taken)
	}
}
