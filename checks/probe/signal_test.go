package probe

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// startSleep starts a process that can be killed.
func startSleep(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
	})
	line := "/proc/" + strconv.Itoa(cmd.Process.Pid) + "/cmdline" // it comes last, after the name
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if text, _ := os.ReadFile(line); bytes.Equal(text, []byte("sleep\x0060\x00")) {
			return cmd
		}
	}
	t.Fatal("sleep does not start")
	return nil
}

func TestKillSparesItself(t *testing.T) {
	t.Parallel()
	h := NewHost("/")
	for _, pid := range []int{1, 0, -1, os.Getpid(), os.Getppid()} {
		if err := h.Kill(Process{PID: pid}); message(err) != sparedSelf {
			t.Errorf("Kill(%d) = %v", pid, err)
		}
	}
}

func TestKillOfZombie(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	h := NewHost("/")
	for end := time.Now().Add(30 * time.Second); h.Alive(cmd.Process.Pid); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("true does not end")
		}
	}
	if err := h.Kill(Process{PID: cmd.Process.Pid, UID: uint32(os.Geteuid()), Args: "true"}); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Kill = %v", err)
	}
}

func TestRenice(t *testing.T) {
	t.Parallel()
	cmd := startSleep(t)
	h := NewHost("/")
	p := Process{PID: cmd.Process.Pid, UID: uint32(os.Geteuid()), Args: "sleep 60"}
	was, err := niceValue(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ nice, want int }{{was + 1, was + 1}, {100, 19}} {
		before, after, err := h.Renice(p, c.nice)
		if err != nil || before != was || after != c.want {
			t.Errorf("Renice(%d) = %d, %d, %v, want %d, %d", c.nice, before, after, err, was, c.want)
		}
		was = after
	}
	p.Args = "another program"
	if _, _, err := h.Renice(p, 0); !errors.Is(err, errReplaced) {
		t.Errorf("Renice hit a process that is not the one: %v", err)
	}
	if _, _, err := tree(t, nil).Renice(p, 0); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Renice reached out of the tree: %v", err)
	}
}
