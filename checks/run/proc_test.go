package run

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// What heeds SIGTERM has the time for it that it is given, and is not signalled again
// while it does.
func TestEndSessionLetsATrapEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ready, done := filepath.Join(dir, "ready"), filepath.Join(dir, "done")
	cmd := exec.Command("sh", "-c", `trap 'sleep 0.3; : > "$2"; exit' TERM; : > "$1"; while :; do sleep 0.02; done`, "sh", ready, done)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() { over <- cmd.Wait() }()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(ready); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the script did not begin")
		}
	}
	if left := endSession(cmd.Process.Pid, 20*time.Second); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	<-over
	if _, err := os.Stat(done); err != nil {
		t.Errorf("its trap has not come to its end: %v", err)
	}
}
