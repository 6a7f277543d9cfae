package run

import (
	"os"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// The local worker ends a guarded shell at the end of its supervisor, and so does the worker that
// replaces it.
func TestPoolGuard(t *testing.T) {
	t.Parallel()
	for _, replaced := range []bool{false, true} {
		s := startTestShell(t, &script{}, "")
		p := newTestPool(t, "")
		p.Guard(s.Guarded())
		if replaced {
			first := p.Pid(checks.Local)
			_ = unix.Kill(first, unix.SIGKILL)
			p.Call(t.Context(), checks.Local, &wire.Request{Op: wire.OpFind, Line: "x"}, 0)
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
		waitFor(t, func() bool { return len(process.InSession(s.Pid())) > 1 })
		p.mu.Lock()
		in := p.workers[checks.Local].in
		p.mu.Unlock()
		_ = in.Close() // as the death of this process would
		<-over
		waitFor(t, func() bool { return len(process.InSession(s.Pid())) == 0 })
	}
}

// Marks distinguish commands, and shells.
func TestMarks(t *testing.T) {
	t.Parallel()
	cmd := startSleep(t)
	m, other := process.NewMarks(), process.NewMarks()
	if _, ok := m.Of(cmd); ok {
		t.Error("it bears a mark from the beginning")
	}
	m.Set(cmd, 7)
	if n, ok := m.Of(cmd); !ok || n != 7 {
		t.Errorf("got %d %v, want 7", n, ok)
	}
	if _, ok := other.Of(cmd); ok {
		t.Error("it bears another shell's mark")
	}
	g := process.Guarded{PID: os.Getpid(), Marks: m}
	if !slices.Contains(g.OwnedBy(7), cmd) || slices.Contains(g.OwnedBy(6), cmd) || slices.Contains(g.OwnedBy(8), cmd) {
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
