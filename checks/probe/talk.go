package probe

import (
	"context"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Talk is a command that reads from this process and writes to it while it runs. It leads its own
// process group.
type Talk struct {
	In  *os.File // its standard input; closing it is the end of the input
	Out *os.File // its standard output

	c    Command
	p    *process
	errs *capture
}

// StartTalk starts a command. Stdin, Input, Output and Timeout of the command do not apply. The caller must
// call Wait.
func StartTalk(ctx context.Context, h *Host, c Command) (*Talk, error) {
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		_, _ = inR.Close(), inW.Close()
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	var errs *capture
	var stderr *os.File
	if c.Errors > 0 {
		errs, stderr, _ = newCapture(c.Errors, c.Heard) // on failure it is /dev/null
	}
	c.stdin = inR
	t := &Talk{In: inW, Out: outR, c: c, errs: errs, p: h.start(c, &syscall.SysProcAttr{Setpgid: true}, outW, stderr)}
	ok, err := t.p.awaitStart(ctx)
	switch {
	case !ok:
		h.blocked.Store(true)
		close(t.p.reap)
		err = fmt.Errorf("start %s: %w", c.Argv[0], ctx.Err())
	case err == nil:
		return t, nil
	}
	t.close()
	return nil, err
}

// Kill kills the command and its group. Wait must be called nevertheless, by one goroutine.
func (t *Talk) Kill() { t.p.signal(unix.SIGKILL) }

// Wait waits until the command has ended, or ends it when ctx ends. Then it kills every process of
// its group, and closes In and Out.
func (t *Talk) Wait(ctx context.Context) (x Exit) {
	ended := true
	select {
	case <-t.p.exited:
	case <-ctx.Done():
		x.TimedOut = true
		if ended = t.p.end(t.c.Signals); !ended {
			x.Status, x.Stuck = Signalled+int(unix.SIGKILL), true
		}
	}
	t.p.signal(unix.SIGKILL)
	close(t.p.reap)
	if ended {
		x.Status = <-t.p.status
	}
	x.Errors = t.close()
	return x
}

func (t *Talk) close() (errs []byte) {
	_, _ = t.In.Close(), t.Out.Close()
	if t.errs != nil {
		errs, _ = t.errs.stop()
	}
	return errs
}
