package run

import (
	"os"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// The local worker ends a guarded shell at the end of its supervisor, and so does the
// worker that takes its place.
func TestPoolGuard(t *testing.T) {
	t.Parallel()
	for _, replaced := range []bool{false, true} {
		s := startTestShell(t, &script{}, "")
		p := newTestPool(t, "")
		p.Guard(s.Guarded())
		if replaced {
			first := p.Pid(checks.Local)
			_ = unix.Kill(first, unix.SIGKILL)
			p.Call(t.Context(), checks.Local, &Request{Op: OpFind, Line: "x"}, 0)
			p.KeepGuard()
			if p.Pid(checks.Local) == first {
				t.Fatal("the worker has not been replaced")
			}
		}
		over := make(chan struct{})
		go func() {
			defer close(over)
			_, _, _ = s.Line(false, 0, "sleep 300", soon())
		}()
		waitFor(t, func() bool { return len(inSession(s.Pid())) > 1 })
		p.mu.Lock()
		in := p.workers[checks.Local].in
		p.mu.Unlock()
		_ = in.Close() // as the death of this process would
		<-over
		waitFor(t, func() bool { return len(inSession(s.Pid())) == 0 })
	}
}

// Marks tell commands apart, and shells.
func TestMarks(t *testing.T) {
	t.Parallel()
	cmd := startSleep(t)
	m, other := newMarks(), newMarks()
	if _, ok := m.of(cmd); ok {
		t.Error("it bears a mark from the beginning")
	}
	m.set(cmd, 7)
	if n, ok := m.of(cmd); !ok || n != 7 {
		t.Errorf("got %d %v, want 7", n, ok)
	}
	if _, ok := other.of(cmd); ok {
		t.Error("it bears another shell's mark")
	}
	g := Guarded{PID: os.Getpid(), Marks: m}
	if !slices.Contains(g.ownedBy(7), cmd) || slices.Contains(g.ownedBy(6), cmd) || slices.Contains(g.ownedBy(8), cmd) {
		t.Error("it does not belong to command 7 alone")
	}
}

func startSleep(t *testing.T) (pid int) {
	t.Helper()
	cmd := exec.Command("sleep", "300")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}
