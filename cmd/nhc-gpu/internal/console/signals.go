package console

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/run"
)

// Signals turns HUP, INT, TERM and ALRM into the end of a context, and into a
// readable descriptor for what waits in poll(2).
type Signals struct {
	Ctx    context.Context
	cancel context.CancelFunc
	ch     chan os.Signal
	Wake   int // readable after a signal, -1 if there is no pipe
	got    atomic.Int32
}

// CatchSignals catches them until Stop. From then on a signal ends the wait for a reader of
// Stdout and Stderr, too.
func CatchSignals() *Signals {
	s := &Signals{ch: make(chan os.Signal, 4), Wake: -1}
	s.Ctx, s.cancel = context.WithCancel(context.Background())
	var fd [2]int
	if unix.Pipe2(fd[:], unix.O_CLOEXEC) == nil {
		s.Wake = fd[0]
	}
	Stdout.wake, Stderr.wake = s.Wake, s.Wake
	// A closed standard output must not kill us during the run. Notification
	// instead of ignoring leaves the default to the commands that we start.
	signal.Notify(s.ch, unix.SIGPIPE, unix.SIGUSR2)
	for _, sig := range []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGALRM} {
		if !signal.Ignored(sig) { // by nohup(1) or "&"
			signal.Notify(s.ch, sig)
		}
	}
	run.Go(func() {
		for sig := range s.ch {
			n, _ := sig.(syscall.Signal)
			if n == unix.SIGPIPE || n == unix.SIGUSR2 {
				continue
			}
			s.got.CompareAndSwap(0, int32(n))
			if s.Wake >= 0 {
				_, _ = unix.Write(fd[1], []byte{0})
			}
			s.cancel()
		}
	})
	return s
}

// Caught returns the first signal, 0 if there was none.
func (s *Signals) Caught() syscall.Signal { return syscall.Signal(s.got.Load()) }

// Stop ends the context, and signals have their default action again.
func (s *Signals) Stop() {
	signal.Stop(s.ch)
	s.cancel()
}

// SignalName returns the name of a signal: SIGTERM.
func SignalName(sig syscall.Signal) string { return unix.SignalName(sig) }
