package run

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// client is the supervisor's end of one worker process.
type client struct {
	lane    checks.Lane
	pid     int
	page    *os.File // where the worker announces its calls; nil if there is none
	in      *os.File
	out     *os.File
	answers *bufio.Reader
	done    <-chan struct{} // closed when the process has been reaped
	end     *death          // of the process, valid once done is closed
	stderr  *tail
	said    chan struct{} // closed when all of the standard error has been read

	version int      // of the variables that the worker knows
	locked  []string // reads of processes' memory that its threads wait for, see [Pool.noteLocked]

	request atomic.Int64 // the request in progress
	worn    bool         // the worker has answered and is replaced, which is not a failure
	crashed bool         // the worker died by itself
}

// startWorker starts a worker: the same program again, in its own session and with its own
// descriptors.
func startWorker(lane checks.Lane, root string, env []string) (*client, error) {
	fail := func(err error) (*client, error) { return nil, fmt.Errorf("start %s worker: %w", lane, err) }
	reqR, reqW, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	defer reqR.Close()
	respR, respW, err := os.Pipe()
	if err != nil {
		reqW.Close()
		return fail(err)
	}
	defer respW.Close()
	errR, errW, err := os.Pipe()
	if err != nil {
		reqW.Close()
		respR.Close()
		return fail(err)
	}
	defer errW.Close()
	page, err := wire.NewPage()
	if err != nil {
		page = nil // without a page the run still detects a hang, but cannot name the call
	}
	// Standard input is for a configuration on /dev/stdin; commands get /dev/null.
	pid, err := spawn([]string{wire.WorkerName, string(lane), root}, env, os.Stdin, nil, errW, reqR, respW, page)
	if err != nil {
		reqW.Close()
		respR.Close()
		errR.Close()
		page.Close()
		return fail(err)
	}
	c := &client{
		lane: lane, pid: pid, page: page, in: reqW, out: respR, stderr: &tail{}, said: make(chan struct{}),
	}
	c.answers = bufio.NewReaderSize(c, 32<<10)
	c.done, c.end = reap(pid, true)
	Go(func() {
		<-c.done
		c.stopWaiting()
	})
	Go(func() {
		defer close(c.said)
		_, _ = io.Copy(c.stderr, errR)
		errR.Close()
	})
	return c, nil
}

// send writes requests without waiting for the worker to read them.
func (c *client) send(reqs []*wire.Request) {
	var b []byte
	for _, r := range reqs {
		var err error
		if b, err = wire.Append(b, r); err != nil {
			panic(fmt.Sprintf("run: encode request: %v", err)) // impossible: a request has only strings, numbers and lists
		}
	}
	if len(b) <= 4096 { // fits into an empty pipe and never blocks, because the worker always reads
		_, _ = c.in.Write(b)
		return
	}
	Go(func() { _, _ = c.in.Write(b) })
}

var errBroken = errors.New("worker broken")

const (
	// starved is the least time for a short request while the worker only lacks CPU time: on a loaded node
	// its start alone can take longer than the write of a log.
	starved     = time.Second
	starvedLook = 50 * time.Millisecond // between two looks at it
)

// receive waits for the answer to a request until began+limit; limit 0 means no limit.
func (c *client) receive(ctx context.Context, r *wire.Request, began time.Time, limit time.Duration) (*wire.Response, error) {
	err := c.await(ctx, began, limit)
	quick := limit > 0 && limit < starved && r.Op != wire.OpCheck && r.Op != wire.OpExec
	for blocked := 0; quick && errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil && time.Since(began) < starved; {
		if blocked++; process.Idle(c.pid) {
			blocked = 0
		}
		if blocked > 1 { // once can be a page fault
			break
		}
		err = c.await(ctx, time.Now(), starvedLook)
	}
	if err != nil {
		return nil, err
	}
	id, resp := r.ID, new(wire.Response)
	switch err := wire.Read(c.answers, wire.MaxMessage, resp); {
	case errors.Is(err, wire.ErrMessage):
		return nil, fmt.Errorf("%w: its answer is %w", errBroken, err)
	case err != nil:
		return nil, err
	case resp.ID != id:
		return nil, fmt.Errorf("%w: it answered request %d instead of %d", errBroken, resp.ID, id)
	}
	return resp, nil
}

// await waits until an answer begins.
func (c *client) await(ctx context.Context, began time.Time, limit time.Duration) error {
	deadline := time.Time{}
	if limit > 0 {
		deadline = began.Add(limit)
	}
	if err := c.out.SetReadDeadline(deadline); err != nil {
		return fmt.Errorf("wait for worker: %w", err)
	}
	switch { // the end of either has set a deadline that this one has replaced
	case ctx.Err() != nil:
		return os.ErrDeadlineExceeded
	case c.hasDied():
		c.stopWaiting()
	}
	_, err := c.answers.Peek(1)
	return err
}

// hasDied reports whether the process has been reaped.
func (c *client) hasDied() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// stopWaiting ends a read from the worker.
func (c *client) stopWaiting() { _ = c.out.SetReadDeadline(time.Unix(1, 0)) }

// Read reads from the worker. A process that it has forked can keep the pipe open. So after its death Read returns
// the rest of the pipe, and then [io.EOF]: a dead worker does not hang.
func (c *client) Read(b []byte) (n int, err error) {
	n, err = c.out.Read(b)
	if !errors.Is(err, os.ErrDeadlineExceeded) || !c.hasDied() {
		return n, err
	}
	n, err = 0, io.EOF
	if raw, closed := c.out.SyscallConn(); closed == nil {
		_ = raw.Control(func(fd uintptr) { // which ignores the deadline
			if got, _ := unix.Read(int(fd), b); got > 0 {
				n, err = got, nil
			}
		})
	}
	return n, err
}

// howItDied describes how a worker ended that sent no answer, and the call that it was in. It kills
// the worker if it still runs.
func (c *client) howItDied(cause error, doing string) string {
	grace := process.TermGrace
	if errors.Is(cause, io.EOF) { // the worker is ending; on a loaded node its exit status takes a while
		grace = process.EndGrace
	}
	select {
	case <-c.done:
	case <-time.After(grace):
		c.kill()
		c.close()
		if errors.Is(cause, io.EOF) {
			return "its worker closed its descriptors"
		}
		return "its worker is broken: " + strings.TrimPrefix(cause.Error(), errBroken.Error()+": ")
	}
	c.close()
	where := ""
	if doing != "" {
		where = " in " + doing
	}
	select {
	case <-c.said:
	case <-time.After(process.TermGrace): // what it has started may still hold its standard error
	}
	text := "its worker died" + where + ": " + c.end.cause()
	if last := c.stderr.last(); last != "" {
		text += ": " + last
	}
	return text
}

// describeHang describes a worker that hangs. It must run before the worker is killed.
func (c *client) describeHang(doing string, since time.Duration) *checks.Hung {
	h := &checks.Hung{PID: c.pid, Doing: doing, For: since}
	h.State, h.Wchan = process.Whereabouts(c.pid)
	// The process that hangs can be a command that the check started.
	for _, p := range process.InSession(c.pid) {
		if state, w := process.Whereabouts(p); state == "D" && h.State != "D" {
			h.PID, h.State, h.Wchan = p, state, w
		}
	}
	return h
}

// movesAfter looks, after a delay, at the calls that the worker has announced. moved ends the wait and reports
// whether the worker has made new calls since then. In the local lane both looks must find a scan of
// processes, which users can make long: any other call there is of a device or a file that must answer.
// A delay of 0 means never.
func (c *client) movesAfter(request int, after time.Duration) (moved func(doing string, calls uint64) bool) {
	if after <= 0 || !c.lane.Vendor() && c.lane != checks.Local {
		return func(string, uint64) bool { return false }
	}
	type look struct {
		doing string
		calls uint64
	}
	var was atomic.Pointer[look]
	timer := time.AfterFunc(after, func() {
		doing, calls := wire.ReadPage(c.page, request)
		was.Store(&look{doing, calls})
	})
	return func(doing string, calls uint64) bool {
		timer.Stop()
		w := was.Load()
		return w != nil && doing != "" && calls != w.calls && (c.lane != checks.Local || doing == probe.ScanCall && w.doing == probe.ScanCall)
	}
}

// close closes the supervisor's descriptors. A worker that is not stuck exits then.
func (c *client) close() {
	c.in.Close()
	c.out.Close()
	c.page.Close()
}

// kill ends the worker and all processes that it started. It returns the PIDs that still exist:
// each of them sleeps in the kernel and does not react to signals.
func (c *client) kill() []int { return process.EndSession(c.pid, process.TermGraceOf(c.lane)) }

// finish closes a worker that has answered every request. It waits a moment for the worker to exit,
// so that no process is left behind.
func (c *client) finish() {
	c.close()
	select {
	case <-c.done:
	case <-time.After(process.TermGrace):
		c.kill()
	}
}

// tail keeps the beginning and the end of the data written to it.
type tail struct {
	mu   sync.Mutex
	head []byte // the beginning, where a Go program prints the cause of its death
	buf  []byte
}

// endSize is the number of bytes of a worker's standard error that tail keeps at either end.
const endSize = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := min(endSize-len(t.head), len(p))
	t.head = append(t.head, p[:n]...)
	if t.buf = append(t.buf, p[n:]...); len(t.buf) > 2*endSize {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-endSize:]...)
	}
	return len(p), nil
}

// last returns the line that explains why a process died: the panic message of a Go program, else
// the last line.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.head)+string(t.buf)), "\n")
	for _, l := range lines {
		for _, sign := range []string{"panic: ", "fatal error: ", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "symbol lookup error"} {
			if strings.Contains(l, sign) {
				return l
			}
		}
	}
	return lines[len(lines)-1]
}
