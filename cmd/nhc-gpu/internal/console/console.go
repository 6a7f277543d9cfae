// Package console has the writers that every command prints with, and the signals that end
// a run.
package console

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
)

// Writer writes to a standard descriptor until the deadline of the run: a reader that does not
// read must not delay the run. Output that does not fit is lost.
type Writer struct {
	fd       int
	end      time.Time     // deadline of the run; zero means none
	patience time.Duration // how long the run still waits for the reader
	wake     int           // readable when a signal ends the run, -1 for none
	deaf     bool          // the reader does not read
}

// Until sets the deadline of the run. Waiting for the reader may take a quarter of the run: the
// checks need the rest, and a lack of time must not drain a healthy node.
func (c *Writer) Until(end time.Time) {
	c.end, c.patience = end, time.Until(end)/4
}

// Stdout and Stderr wait for a reader until the deadline of the run or a signal.
var (
	Stdout = &Writer{fd: 1, wake: -1}
	Stderr = newAlerts()
)

// newAlerts returns a Writer with a deadline: a reader that does not read must not delay the exit
// status for slurmd.
func newAlerts() *Writer {
	c := &Writer{fd: 2, wake: -1}
	c.Until(time.Now().Add(AlertsLimit))
	return c
}

// AlertsLimit bounds the time of writing before TIMEOUT is known.
const AlertsLimit = 8 * time.Second

// lastWord is the time that a reader has after the deadline of the run.
const lastWord = 100 * time.Millisecond

// pipeBuf is the number of bytes that a ready pipe accepts without blocking: PIPE_BUF.
const pipeBuf = 4096

func (c *Writer) Write(data []byte) (int, error) {
	if err := c.Raw([]byte(verdict.Printable(string(data)))); err != nil {
		return 0, err
	}
	return len(data), nil
}

// Raw writes control sequences of this program unchanged.
func (c *Writer) Raw(data []byte) error {
	for rest := data; len(rest) > 0; {
		if c.deaf || !c.ready() {
			c.deaf = true
			return os.ErrDeadlineExceeded
		}
		n, err := unix.Write(c.fd, rest[:min(len(rest), pipeBuf)])
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// ready waits until the descriptor can be written without blocking.
func (c *Writer) ready() bool {
	over := time.Time{} // when lastWord is over
	began := time.Now()
	defer func() { c.patience -= time.Since(began) }()
	for {
		wait, wake := -1, c.wake
		if !c.end.IsZero() {
			wait = int(max(0, min(time.Until(c.end), c.patience-time.Since(began))).Milliseconds())
		}
		if wait == 0 || !over.IsZero() {
			if over.IsZero() {
				over = time.Now().Add(lastWord)
			}
			wait, wake = int(max(0, time.Until(over)).Milliseconds()), -1
		}
		polls := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLOUT}, {Fd: int32(wake), Events: unix.POLLIN}}
		n, err := unix.Poll(polls, wait)
		switch {
		case err == unix.EINTR:
		case err != nil || polls[0].Revents != 0:
			return true // the write returns the error
		case n > 0 && over.IsZero():
			over = time.Now().Add(lastWord)
		case !over.IsZero() && !time.Now().Before(over):
			return false
		}
	}
}
