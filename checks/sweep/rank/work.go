package rank

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/wire"
)

// A test of NCCL runs in a child process of the rank, a new one for each task: NCCL's settings,
// threads and sockets live as long as their process, and a call of it, or of the driver, that never
// returns ends with the process. One process has all GPUs of its node, as nccl-tests with -g: that
// is one context of CUDA for each GPU rather than one for each pair of process and GPU, and one
// process to end.

// workRequest is the first line of JSON to a child.
type workRequest struct {
	Node      string            `json:"node"`
	Op        string            `json:"op"`
	Size      int64             `json:"size"`
	Repeats   int               `json:"repeats"`
	Time      time.Duration     `json:"time"`
	Rank      int               `json:"rank"` // of the node
	Nodes     int               `json:"nodes"`
	Settings  cuda.NCCLSettings `json:"settings"`
	RDMA      bool              `json:"rdma"` // TCP is a fault
	Libraries map[string]string `json:"libraries"`
	Visible   string            `json:"visible"` // CUDA_VISIBLE_DEVICES of the step; "" is all GPUs
}

// workStart is the second line to a child, when all nodes are ready.
type workStart struct {
	IDs   [][]byte      `json:"ids"` // of the communicators, from rank 0
	Seats wire.Seats    `json:"seats"`
	Limit time.Duration `json:"limit"` // then the test is over, and the child says what it waits for
}

// workReady is what the other nodes need of a child.
type workReady struct {
	GPUs int      `json:"gpus"`
	IDs  [][]byte `json:"ids,omitempty"` // of rank 0
}

// workAnswer is a line of a child. Exactly one field is set.
type workAnswer struct {
	Doing  string        `json:"doing,omitempty"`
	Ready  *workReady    `json:"ready,omitempty"`
	Result *sweep.Result `json:"result,omitempty"` // the last line
}

// These are times of a child.
const (
	workGrace = 500 * time.Millisecond // after its limit a call has that long to return
	workAbort = time.Second            // longest wait for NCCL to abort
	workAlive = 300 * time.Millisecond // a healthy GPU writes a few bytes in that time

	// The nodes of a test do not reach its limit at the same moment. The connections stay that long, so
	// that a node that waits does not take another one's end for an error.
	workSpread = time.Second
)

// Work is the main function of a child. It returns after the last answer; the caller must end the
// process, which can hold calls that never return.
func Work(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := make(chan []byte)
	go func() {
		readLines(in, lines)
		cancel() // the end of the input is the end of the rank
		time.Sleep(workAbort)
		os.Exit(1)
	}()
	w := &worker{out: json.NewEncoder(out)}
	if err := awaitLine(ctx, lines, &w.req); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	ready, fault := w.open()
	if fault != nil {
		return w.answer(workAnswer{Result: fault})
	}
	if err := w.answer(workAnswer{Ready: ready}); err != nil {
		return err
	}
	var start workStart
	if err := awaitLine(ctx, lines, &start); err != nil { // the task has ended before its start
		return fmt.Errorf("read the start: %w", err)
	}
	limited, stop := context.WithTimeout(ctx, start.Limit)
	defer stop()
	go w.watch(limited)
	result := w.run(limited, &start)
	w.finished.Store(true)
	err := w.answer(workAnswer{Result: result})
	if result.Fault == sweep.FaultSilent {
		time.Sleep(workSpread)
	}
	w.end(result.Fault == sweep.FaultNone || result.Fault == sweep.FaultWrong)
	return err
}

// readLines passes on the lines of the input until its end.
func readLines(in io.Reader, lines chan<- []byte) {
	scanner := bufio.NewScanner(in)
	scanner.Buffer(nil, wire.MaxMessage)
	for scanner.Scan() {
		lines <- slices.Clone(scanner.Bytes())
	}
}

// awaitLine waits for a line.
func awaitLine(ctx context.Context, lines <-chan []byte, to any) error {
	select {
	case line := <-lines:
		return json.Unmarshal(line, to)
	case <-ctx.Done():
		return errors.New("the rank has ended")
	}
}

// worker is a child.
type worker struct {
	req      workRequest
	mu       sync.Mutex // guards out
	out      *json.Encoder
	finished atomic.Bool

	doing atomic.Pointer[string] // the current step
	call  atomic.Pointer[string] // the current call of CUDA or NCCL
	waits atomic.Bool            // the call may wait for other nodes

	lib   *cuda.NCCL
	gpus  []*cuda.NCCLGPU
	alive []cuda.Stream // of each GPU, for work of its own
	comms []*cuda.NCCLComm
	seats []seat // of each GPU
	block int64
	op    *cuda.NCCLOp
}

// seat is the place of a GPU of this process.
type seat struct{ comm, rank, n int }

func (w *worker) answer(a workAnswer) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.Encode(a)
}

// step reports to the rank which call begins.
func (w *worker) step(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.doing.Store(&text)
	_ = w.answer(workAnswer{Doing: text}) // a rank that is gone ends this process
}

// note remembers the call of a library that is in progress.
func (w *worker) note(call string) { w.call.Store(&call) }

// watch ends the process if a call does not return within the limit.
func (w *worker) watch(ctx context.Context) {
	<-ctx.Done()
	time.Sleep(workGrace + time.Duration(len(w.gpus)+1)*workAlive)
	if w.finished.Load() {
		return
	}
	r := &sweep.Result{Fault: sweep.FaultSilent, Rank: w.req.Rank}
	r.Text = fmt.Sprintf("%s: a call does not return", *w.doing.Load())
	if call := w.call.Load(); call != nil {
		r.Text = fmt.Sprintf("%s: %s does not return", *w.doing.Load(), *call)
	}
	if !w.waits.Load() {
		r.Blame = []string{w.req.Node}
	}
	_ = w.answer(workAnswer{Result: r})
	time.Sleep(workSpread)
	os.Exit(1)
}

// refused is the result of a node that cannot take part.
func refused(err error) *sweep.Result {
	return &sweep.Result{Fault: sweep.FaultUnable, Text: err.Error()}
}

// open opens the GPUs and loads NCCL. On rank 0 it also makes the names of the communicators.
func (w *worker) open() (*workReady, *sweep.Result) {
	w.step("open the GPUs")
	if w.op = cuda.NCCLOpOf(w.req.Op); w.op == nil {
		return nil, refused(fmt.Errorf("NCCL has no operation %q, want one of %s", w.req.Op, strings.Join(cuda.NCCLOpNames(), ", ")))
	}
	h := probe.NewHost("/")
	probe.SetLibraries(h, w.req.Libraries)
	driver, err := cuda.Open(h, w.note)
	if err != nil {
		return nil, w.classify("cannot use CUDA", err)
	}
	chosen, err := chooseGPUs(driver.GPUs, w.req.Visible)
	if err != nil {
		return nil, refused(err)
	}
	done := driver.Wake(chosen)
	defer done()
	for _, d := range chosen {
		if d.Err != nil {
			return nil, w.classify(fmt.Sprintf("cannot use GPU %d", d.Ordinal), d.Err)
		}
		g := &cuda.NCCLGPU{}
		if err := g.Open(d); err != nil {
			return nil, w.classify(fmt.Sprintf("cannot use GPU %d", d.Ordinal), err)
		}
		w.gpus = append(w.gpus, g)
		s, err := g.Context.NewStream()
		if err != nil {
			return nil, w.classify(fmt.Sprintf("cannot use GPU %d", d.Ordinal), err)
		}
		w.alive = append(w.alive, s)
	}
	w.step("load NCCL")
	if w.lib, err = cuda.OpenNCCL(h, w.req.Settings, w.note); err != nil {
		return nil, w.classify("cannot use NCCL", err)
	}
	if w.op.Sends && !w.lib.CanSend() {
		return nil, refused(fmt.Errorf("NCCL %s has no send and receive, which %s needs: want 2.7 or later", w.lib.Release(), w.req.Op))
	}
	ready := &workReady{GPUs: len(w.gpus)}
	if w.req.Rank > 0 {
		return ready, nil
	}
	for range w.communicators(len(w.gpus)) {
		w.note("ncclGetUniqueId")
		id, err := w.lib.UniqueID()
		if err != nil {
			return nil, w.classify("cannot make a communicator", err)
		}
		ready.IDs = append(ready.IDs, id[:])
	}
	return ready, nil
}

// communicators returns how many communicators work at once on nodes of that many GPUs.
func (w *worker) communicators(gpus int) int {
	if w.req.Op == cuda.NCCLMulti {
		return gpus
	}
	return 1
}

// chooseGPUs returns the GPUs that CUDA_VISIBLE_DEVICES of the job step names, by index or UUID.
func chooseGPUs(all []*cuda.GPU, visible string) (chosen []*cuda.GPU, err error) {
	if visible == "" {
		chosen = all
	}
	for _, word := range strings.FieldsFunc(visible, func(r rune) bool { return r == ',' }) {
		n, err := strconv.Atoi(word)
		i := slices.IndexFunc(all, func(g *cuda.GPU) bool {
			return err == nil && g.Ordinal == n || err != nil && strings.HasPrefix(g.UUID, word)
		})
		if i < 0 {
			return nil, fmt.Errorf("CUDA_VISIBLE_DEVICES=%s names %s, and the node has no such GPU", visible, word)
		}
		chosen = append(chosen, all[i])
	}
	if len(chosen) == 0 {
		return nil, errors.New("no GPU")
	}
	return chosen, nil
}

// classify returns the fault of an error. The node is blamed for errors of its own GPUs, not for
// those that can be a consequence of another node's.
func (w *worker) classify(doing string, err error) *sweep.Result {
	r := &sweep.Result{Fault: sweep.FaultError, Text: doing + ": " + err.Error(), Rank: w.req.Rank}
	e, isCUDA := errors.AsType[*cuda.Error](err)
	n, isNCCL := errors.AsType[*cuda.NCCLError](err)
	switch {
	case errors.Is(err, probe.ErrNoLibrary), isCUDA && e.Code == cuda.CUDANoDevice:
		r.Fault = sweep.FaultUnable
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		r.Fault, r.Text = sweep.FaultSilent, doing+" does not end"
		if dead := w.findDead(); len(dead) > 0 {
			r.Text += ", and " + strings.Join(dead, ", ") + " does no work of its own"
			r.Blame = []string{w.req.Node}
		}
	case w.req.RDMA && w.lib != nil && (w.lib.Log(0).NoIB() || isNCCL && strings.Contains(n.Last, "network IB not found")):
		r.Fault, r.Text = sweep.FaultNetwork, "NCCL finds no RDMA device: "+r.Text
		r.Blame = []string{w.req.Node}
	case isCUDA || isNCCL && n.OfCUDA():
		r.Blame = []string{w.req.Node}
	}
	return r
}

// findDead returns the GPUs that do not even write a few bytes: work that waits for other nodes
// leaves a healthy GPU able to.
func (w *worker) findDead() (names []string) {
	for i, g := range w.gpus {
		ctx, cancel := context.WithTimeout(context.Background(), workAlive)
		err := g.Alive(ctx, w.alive[i])
		cancel()
		if err != nil {
			names = append(names, fmt.Sprintf("gpu%d", g.Context.GPU.Ordinal))
		}
	}
	return names
}

// run carries out the test.
func (w *worker) run(ctx context.Context, start *workStart) *sweep.Result {
	r, err := w.measure(ctx, start)
	if err != nil {
		failed := w.classify(*w.doing.Load(), err)
		failed.Network = w.network()
		return failed
	}
	r.Network = w.network()
	return r
}

// network returns the network that NCCL uses, by its log.
func (w *worker) network() string {
	log := w.lib.Log(0)
	if len(log.Networks) == 0 {
		return ""
	}
	name := log.Networks[len(log.Networks)-1]
	if log.GDR() {
		name += " GDRDMA"
	}
	return name
}

// sit decides the ranks of this node's GPUs: node after node, or, with a communicator for each
// local index of a GPU, the node's own number.
func (w *worker) sit(start *workStart) (seats []cuda.NCCLSeats, err error) {
	places := start.Seats
	if w.req.Rank >= w.req.Nodes || places.First < 0 || places.First+len(w.gpus) > places.Total || places.Least < 1 || places.Least > len(w.gpus) {
		return nil, fmt.Errorf("the nodes have %d GPUs, at least %d each, and this one has %d from %d on", places.Total, places.Least, len(w.gpus), places.First)
	}
	ids := make([]cuda.NCCLID, len(start.IDs))
	for i, id := range start.IDs {
		if copy(ids[i][:], id) != len(ids[i]) {
			return nil, fmt.Errorf("the name of a communicator has %d bytes, want %d", len(id), len(ids[i]))
		}
	}
	count := w.communicators(places.Least)
	if len(ids) < count {
		return nil, fmt.Errorf("%d names for %d communicators", len(ids), count)
	}
	if w.req.Op == cuda.NCCLMulti {
		w.gpus = w.gpus[:count]
		for j, g := range w.gpus {
			g.Base = j * w.req.Nodes
			seats = append(seats, cuda.NCCLSeats{ID: ids[j], Size: w.req.Nodes, First: w.req.Rank, GPUs: []*cuda.Context{g.Context}})
			w.seats = append(w.seats, seat{j, w.req.Rank, w.req.Nodes})
		}
		return seats, nil
	}
	s := cuda.NCCLSeats{ID: ids[0], First: places.First, Size: places.Total}
	for i, g := range w.gpus {
		s.GPUs = append(s.GPUs, g.Context)
		w.seats = append(w.seats, seat{0, s.First + i, s.Size})
	}
	return []cuda.NCCLSeats{s}, nil
}

// end ends what NCCL still does after a fault, so that other nodes learn of it at once, or takes
// leave of them. The end of the process frees the rest.
func (w *worker) end(well bool) {
	done := make(chan struct{})
	go func() {
		for _, c := range w.comms {
			if well {
				_ = c.Destroy()
			} else {
				_ = c.Abort()
			}
		}
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(workAbort):
	}
}
