package checks

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// What is on a GPU is a worker's own if the worker has started it. That of no other
// process is, whichever session that one shares with init.
func TestOurs(t *testing.T) {
	const asWorker = "NHC_TEST_AS_WORKER"
	if os.Getenv(asWorker) == "" {
		t.Parallel()
		if ours(1) || ours(os.Getppid()) {
			t.Error("init or the parent is ours")
		}
		worker := exec.Command(os.Args[0], "-test.run=^TestOurs$")
		worker.Env = append(os.Environ(), asWorker+"=1")
		worker.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if out, err := worker.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	child := exec.Command("cat")
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	child.Stdout = new(strings.Builder)
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	for pid, want := range map[int]bool{os.Getpid(): true, child.Process.Pid: true, 1: false, os.Getppid(): false} {
		if got := ours(pid); got != want {
			t.Errorf("process %d of %d: ours is %v, want %v", pid, os.Getpid(), got, want)
		}
	}
	if err := stdin.Close(); err != nil {
		t.Error(err)
	}
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
}
