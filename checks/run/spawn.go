package run

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
)

// spawn starts this program again, in its own session and with exactly the given descriptors. It
// does not use os/exec, because that package starts an additional process before its first start to
// test whether the kernel has pidfds.
func spawn(argv, env []string, files ...*os.File) (pid int, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0) //nolint:forbidigo // /dev/null
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", argv[0], err)
	}
	defer null.Close()
	fds := make([]uintptr, len(files))
	for i, f := range files {
		if f == nil {
			f = null
		}
		fds[i] = f.Fd()
	}
	// slurmd starts this program with SIGPIPE blocked, and a child inherits the mask of the thread
	// that forks it. Commands that workers start expect it unblocked.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var none unix.Sigset_t
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &none, nil)
	pid, err = syscall.ForkExec("/proc/self/exe", argv, &syscall.ProcAttr{ //nolint:forbidigo // /proc/self
		Env: env, Files: fds, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", argv[0], err)
	}
	return pid, nil
}

// Detach starts this program again, in its own session and with /dev/null for input and output, and
// does not wait for it.
func Detach(argv, env []string) error {
	_, err := spawn(argv, env, nil, nil, nil)
	return err
}

// Child is this program, started again.
type Child struct {
	done <-chan struct{} // closed when it has ended
	pid  int
	end  *death
}

// Again starts this program again, in its own session. Its output goes to the standard error.
func Again(argv, env []string) (*Child, error) {
	pid, err := spawn(argv, env, nil, os.Stderr, os.Stderr)
	if err != nil {
		return nil, err
	}
	c := &Child{pid: pid}
	c.done, c.end = reap(pid, true)
	return c, nil
}

// Ended returns a channel that is closed when it has ended.
func (c *Child) Ended() <-chan struct{} { return c.done }

// Status returns the exit status as bash counts it, after the end.
func (c *Child) Status() int { return probe.ExitStatus(c.end.WaitStatus) }

// Kill ends the process and what it has started.
func (c *Child) Kill() { process.EndSession(c.pid, process.TermGrace) }

// death is how a process ended.
type death struct{ syscall.WaitStatus }

// reap waits for a child and delivers its exit status. No run waits for reap without a bound,
// because a child that no signal can end is never reaped. resume makes reap continue a child that
// SIGSTOP has stopped: a stopped worker does not mean that its device hangs.
func reap(pid int, resume bool) (done <-chan struct{}, end *death) {
	options := 0
	if resume {
		options = syscall.WUNTRACED
	}
	ch := make(chan struct{})
	end = new(death)
	Go(func() {
		defer close(ch)
		for {
			_, err := syscall.Wait4(pid, &end.WaitStatus, options, nil)
			switch {
			case errors.Is(err, syscall.EINTR):
			case err == nil && end.Stopped():
				_ = syscall.Kill(pid, syscall.SIGCONT)
			default:
				return
			}
		}
	})
	return ch, end
}

func (d *death) String() string {
	switch {
	case d.Signaled():
		text := "signal: " + d.Signal().String()
		if d.CoreDump() {
			text += " (core dumped)"
		}
		return text
	default:
		return fmt.Sprintf("exit status %d", d.ExitStatus())
	}
}

// cause returns String with the known senders of SIGKILL.
func (d *death) cause() string {
	if d.Signaled() && d.Signal() == syscall.SIGKILL {
		return d.String() + " (by the kernel for want of memory, or by a person)"
	}
	return d.String()
}
