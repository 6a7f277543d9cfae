package probe

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestKillSparesItself(t *testing.T) {
	t.Parallel()
	h := NewHost("/")
	for _, pid := range []int{1, 0, -1, os.Getpid(), os.Getppid()} {
		if err := Kill(h, Process{PID: pid}); probetest.Message(err) != SparedSelf {
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
	for end := time.Now().Add(30 * time.Second); Alive(h, cmd.Process.Pid); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("true does not end")
		}
	}
	if err := Kill(h, Process{PID: cmd.Process.Pid, UID: uint32(os.Geteuid()), Args: "true"}); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Kill = %v", err)
	}
}

func TestRenice(t *testing.T) {
	t.Parallel()
	cmd := probetest.StartSleep(t)
	h := NewHost("/")
	p := Process{PID: cmd.Process.Pid, UID: uint32(os.Geteuid()), Args: "sleep 60"}
	was, err := readNice(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ nice, want int }{{was + 1, was + 1}, {100, 19}} {
		before, after, err := Renice(h, p, c.nice)
		if err != nil || before != was || after != c.want {
			t.Errorf("Renice(%d) = %d, %d, %v, want %d, %d", c.nice, before, after, err, was, c.want)
		}
		was = after
	}
	p.Args = "another program"
	if _, _, err := Renice(h, p, 0); !errors.Is(err, ErrReplaced) {
		t.Errorf("Renice hit a process that is not the one: %v", err)
	}
	if _, _, err := Renice(NewHost(probetest.Tree(t, nil)), p, 0); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Renice reached out of the tree: %v", err)
	}
}

// A process whose command line cannot be read has not ended, whatever its name.
func TestKillUnread(t *testing.T) {
	t.Cleanup(forgetLocked)
	data, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "[x")
	if err := probetest.WriteProgram(program, data); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	h := NewHost("/")
	p := Process{PID: cmd.Process.Pid, UID: uint32(os.Geteuid()), Args: program + " 60"}
	probetest.Await(t, "the program starts", func() bool {
		now, err := ProcessNow(h, p.PID)
		return err == nil && now.Args == p.Args
	})
	h.SetStuck([]string{LockedCall(p.PID)})
	if err := Kill(h, p); err == nil || errors.Is(err, os.ErrProcessDone) {
		t.Errorf("%v, want an error that it is another", err)
	}
}
