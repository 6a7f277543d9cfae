package run

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// client is the supervisor's end of one worker process.
type client struct {
	lane   checks.Lane
	pid    int
	page   *os.File // where it says what it does; nil if there is none
	in     *os.File
	out    *os.File
	lines  *bufio.Reader
	done   <-chan struct{} // closed when the process has been waited for
	end    *death          // of the process, valid once done is closed
	stderr *tail
	said   chan struct{} // closed when all of it has been read

	version int // of the variables that it has been told

	request atomic.Int64 // that it is at
	worn    bool         // it has left after its last answer, and is replaced: no fault
}

// startWorker starts a worker: this very program again, in a session of its
// own, with descriptors of its own.
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
		page = nil // without one a hang has no name, but is found all the same
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
		lane: lane, pid: pid, page: page, in: reqW, out: respR, lines: bufio.NewReaderSize(respR, 32<<10), stderr: &tail{}, said: make(chan struct{}),
	}
	c.done, c.end = reap(pid, true)
	Go(func() {
		defer close(c.said)
		_, _ = io.Copy(c.stderr, errR)
		errR.Close()
	})
	return c, nil
}

// send writes requests without waiting for the worker to read them.
func (c *client) send(reqs []*wire.Request) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	for _, r := range reqs {
		if err := enc.Encode(r); err != nil {
			panic(fmt.Sprintf("run: encode request: %v", err)) // only strings, numbers and lists of them
		}
	}
	if b.Len() <= 4096 { // fits an empty pipe: never blocks, since the worker reads all the time
		_, _ = c.in.Write(b.Bytes())
		return
	}
	Go(func() { _, _ = c.in.Write(b.Bytes()) })
}

var errBroken = errors.New("worker broken")

// receive waits for the answer to request id.
func (c *client) receive(id int, deadline time.Time) (*wire.Response, error) {
	if err := c.out.SetReadDeadline(deadline); err != nil {
		return nil, fmt.Errorf("wait for worker: %w", err)
	}
	line, err := c.readLine()
	if err != nil {
		return nil, err
	}
	resp := new(wire.Response)
	if err := json.Unmarshal(line, resp); err != nil || resp.ID != id {
		return nil, fmt.Errorf("%w: it wrote %.60q in place of an answer", errBroken, line)
	}
	return resp, nil
}

func (c *client) readLine() ([]byte, error) {
	var long []byte
	for {
		part, err := c.lines.ReadSlice('\n')
		switch {
		case err == nil && long == nil:
			return part, nil
		case err == nil:
			return append(long, part...), nil
		case errors.Is(err, bufio.ErrBufferFull):
			if long = append(long, part...); len(long) > wire.MaxLine {
				return nil, fmt.Errorf("%w: it wrote more than %d bytes without an end", errBroken, wire.MaxLine)
			}
		case errors.Is(err, io.EOF) && len(long)+len(part) > 0:
			return nil, fmt.Errorf("%w in the middle of an answer", io.ErrUnexpectedEOF)
		default:
			return nil, err
		}
	}
}

// howItDied says how a worker ended that did not answer, and in what; it is killed
// if it has not ended yet.
func (c *client) howItDied(cause error, doing string) string {
	grace := process.TermGrace
	if errors.Is(cause, io.EOF) { // it ends: on a loaded node its status takes a while
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

// autopsy describes a worker that hangs; read before it is killed.
func (c *client) autopsy(doing string, since time.Duration) *checks.Hung {
	h := &checks.Hung{PID: c.pid, Doing: doing, For: since}
	h.State, h.Wchan = process.Whereabouts(c.pid)
	// A check may wait for a command of its own that is the one that hangs.
	for _, p := range process.InSession(c.pid) {
		if state, w := process.Whereabouts(p); state == "D" && h.State != "D" {
			h.PID, h.State, h.Wchan = p, state, w
		}
	}
	return h
}

// countAt counts after a while the calls that the worker has announced; the result
// ends the wait and gives the number, false if it was over before. 0 is never.
func (c *client) countAt(request int, after time.Duration) (counted func() (calls uint64, ok bool)) {
	if after <= 0 || !c.lane.Vendor() {
		return func() (uint64, bool) { return 0, false }
	}
	type count uint64
	var was atomic.Value
	timer := time.AfterFunc(after, func() {
		_, calls := wire.ReadPage(c.page, request)
		was.Store(count(calls))
	})
	return func() (uint64, bool) {
		timer.Stop()
		n, ok := was.Load().(count)
		return uint64(n), ok
	}
}

// close releases the supervisor's ends; a worker that is not stuck leaves then.
func (c *client) close() {
	c.in.Close()
	c.out.Close()
	c.page.Close()
}

// kill ends the worker and what it has started, and returns the pids that are still
// there, each of which sleeps in the kernel where no signal reaches it.
func (c *client) kill() []int { return process.EndSession(c.pid, process.TermGraceOf(c.lane)) }

// finish closes a worker that has answered everything and waits a moment for
// it to leave, so that none is left behind.
func (c *client) finish() {
	c.close()
	select {
	case <-c.done:
	case <-time.After(process.TermGrace):
		c.kill()
	}
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	head []byte // the beginning, where a Go program says why it dies
	buf  []byte
}

// What is kept of a worker's standard error at either end, bytes.
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

// last is the line that tells why a process died: the panic message of a Go
// program, else the last line.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.head)+string(t.buf)), "\n")
	for _, l := range lines {
		for _, sign := range []string{"panic: ", "fatal error: ", "SIGSEGV", "symbol lookup error"} {
			if strings.Contains(l, sign) {
				return l
			}
		}
	}
	return lines[len(lines)-1]
}
