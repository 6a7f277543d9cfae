package rank

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
)

// workIterations is the number of operations of a repeat without a time, as in nccl-tests; most
// bounds it with one.
const (
	workIterations = 20
	workMost       = 10000
	workWindows    = 10 // of a repeat at most
)

func (w *worker) measure(ctx context.Context, start *workStart) (*sweep.Result, error) {
	seats, err := w.sit(start)
	if err != nil {
		return refused(err), nil
	}
	if refusal, err := w.allocate(seats[0].Size); refusal != nil || err != nil {
		return refusal, err
	}
	w.step("join %d ranks on %d nodes", seats[0].Size, w.req.Nodes)
	w.waits.Store(!w.lib.NonBlocking())
	w.note("ncclCommInitRank")
	if w.comms, err = w.lib.Join(ctx, seats); err != nil {
		return nil, err
	}
	if name := w.network(); w.req.RDMA && strings.HasPrefix(name, "Socket") {
		return &sweep.Result{Fault: sweep.FaultNetwork, Text: "NCCL uses TCP although the node has RDMA ports", Rank: w.req.Rank, Blame: []string{w.req.Node}}, nil
	}
	r := &sweep.Result{Rank: w.req.Rank}
	iterations, err := w.warmUp(ctx, r)
	if err != nil {
		return nil, err
	}
	for i := range max(w.req.Repeats, 1) {
		w.step("%s, repeat %d", w.what(), i+1)
		if err := w.prepare(ctx, r); err != nil {
			return nil, err
		}
		value, windows, err := w.repeat(ctx, iterations)
		if err != nil {
			return nil, err
		}
		if err := w.verify(ctx, r); err != nil {
			return nil, err
		}
		r.Values, r.Windows = append(r.Values, value), append(r.Windows, windows...)
	}
	return r, nil
}

// what names the operation in messages.
func (w *worker) what() string {
	return fmt.Sprintf("%s of %d bytes", w.req.Op, w.op.Bytes(w.block, w.seats[0].n))
}

// workSize is the size of the data without one in the task, bytes.
const workSize = 64 << 20

// allocate allocates the buffers.
func (w *worker) allocate(n int) (refusal *sweep.Result, err error) {
	size := cmp.Or(w.req.Size, workSize)
	w.block = w.op.Block(size, n)
	if w.block < 1 {
		return refused(fmt.Errorf("%d bytes are too few for %s on %d ranks", size, w.req.Op, n)), nil
	}
	w.step("allocate memory for %d bytes", size)
	elements := max(w.op.Sent(w.block, n), w.op.Received(w.block, n), 4)
	for _, g := range w.gpus {
		err := g.Allocate(elements)
		if e, ok := errors.AsType[*cuda.Error](err); ok && e.Code == cuda.CUDAOutOfMemory {
			return refused(fmt.Errorf("GPU %d: %w", g.Context.GPU.Ordinal, err)), nil
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// enqueue passes one operation of all GPUs to NCCL, and waits until it is in their streams.
func (w *worker) enqueue(ctx context.Context) error {
	w.note("an operation of NCCL")
	err := w.lib.Group(func() error {
		for i, g := range w.gpus {
			s := w.seats[i]
			if err := w.op.Enqueue(w.comms[s.comm], g.Work(s.rank, w.block)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return cuda.SettleNCCL(ctx, w.comms)
}

// timed runs the operation some times, and returns the time of one on the slowest GPU, by its own
// clock.
func (w *worker) timed(ctx context.Context, times int) (time.Duration, error) {
	for _, g := range w.gpus {
		if err := g.Context.Record(g.Start, g.Stream); err != nil {
			return 0, err
		}
	}
	for range times {
		if err := w.enqueue(ctx); err != nil {
			return 0, err
		}
	}
	for _, g := range w.gpus {
		if err := g.Context.Record(g.Stop, g.Stream); err != nil {
			return 0, err
		}
	}
	if err := w.sync(ctx); err != nil {
		return 0, err
	}
	longest := time.Duration(0)
	for _, g := range w.gpus {
		took, err := g.Context.Elapsed(g.Start, g.Stop)
		if err != nil {
			return 0, err
		}
		longest = max(longest, took)
	}
	if longest <= 0 {
		return 0, fmt.Errorf("%s took no time", w.what())
	}
	return longest / time.Duration(times), nil
}

// sync waits for the work of all GPUs. It ends early with an error that NCCL finds meanwhile.
func (w *worker) sync(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	look := time.NewTicker(workAlive)
	defer look.Stop()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
			}
			for _, c := range w.comms {
				if err := c.AsyncError(); err != nil {
					cancel(err)
					return
				}
			}
		}
	}()
	var contexts []*cuda.Context
	var streams []cuda.Stream
	for _, g := range w.gpus {
		contexts, streams = append(contexts, g.Context), append(streams, g.Stream)
	}
	_, err := cuda.SyncAll(ctx, contexts, streams)
	if n, ok := errors.AsType[*cuda.NCCLError](context.Cause(ctx)); err != nil && ok {
		return n
	}
	return err
}

// warmUp makes the connections, and returns how often to run the operation in a repeat: all nodes
// have to do the same.
func (w *worker) warmUp(ctx context.Context, r *sweep.Result) (iterations int, err error) {
	w.step("%s, warm-up", w.what())
	if err := w.prepare(ctx, r); err != nil {
		return 0, err
	}
	var took time.Duration
	for range 2 { // the first makes the connections
		if took, err = w.timed(ctx, 1); err != nil {
			return 0, err
		}
	}
	iterations = workIterations
	if w.req.Time > 0 {
		iterations = max(1, min(workMost, int(w.req.Time/took)))
	}
	w.step("agree on the number of repetitions")
	return cuda.AgreeNCCL(ctx, w.comms, w.gpus, iterations)
}

// repeat runs the operation, and returns the bus bandwidth in GB/s, and that of each window.
func (w *worker) repeat(ctx context.Context, iterations int) (value float64, windows []float64, err error) {
	n := w.seats[0].n
	bytes, total := w.op.Bytes(w.block, n), time.Duration(0)
	count := min(iterations, workWindows)
	for i := range count {
		times := iterations*(i+1)/count - iterations*i/count
		took, err := w.timed(ctx, times)
		if err != nil {
			return 0, nil, err
		}
		total += took * time.Duration(times)
		windows = append(windows, w.op.BusBW(bytes, n, took.Seconds()))
	}
	return w.op.BusBW(bytes, n, total.Seconds()/float64(iterations)), windows, nil
}

// prepare writes the data of every GPU. Data that are wrong at once are the GPU's own fault. Wrong
// data do not end the test: the other nodes go on, and their values count.
func (w *worker) prepare(ctx context.Context, r *sweep.Result) error {
	for i, g := range w.gpus {
		if err := g.Prepare(w.op, w.seats[i].rank, w.seats[i].n, w.block); err != nil {
			return err
		}
	}
	if err := w.sync(ctx); err != nil {
		return err
	}
	for i, g := range w.gpus {
		if m := g.Mismatch(cuda.NCCLPart{Count: w.op.Sent(w.block, w.seats[i].n), Ranks: 1}); m.Count > 0 {
			r.Blame = []string{w.req.Node}
			w.noteWrong(r, g, m, "before NCCL moves them")
		}
	}
	return nil
}

// verify verifies each word that the GPUs have received.
func (w *worker) verify(ctx context.Context, r *sweep.Result) error {
	for i := 0; ; i++ { // one part after another, to know whose data are wrong
		parts := map[int]cuda.NCCLPart{} // by the number of the GPU here
		for k := range w.gpus {
			if list := w.op.Parts(w.seats[k].rank, w.seats[k].n, w.block); i < len(list) {
				parts[k] = list[i]
			}
		}
		if len(parts) == 0 {
			return nil
		}
		for k, p := range parts {
			if err := w.gpus[k].Verify(w.gpus[k].Recv, p); err != nil {
				return err
			}
		}
		if err := w.sync(ctx); err != nil {
			return err
		}
		for k, g := range w.gpus {
			p, ok := parts[k]
			if !ok {
				continue
			}
			of := "the sum of all ranks"
			if p.Ranks == 1 {
				of = fmt.Sprintf("from rank %d of %d", p.From, w.seats[k].n)
			}
			w.noteWrong(r, g, g.Mismatch(p), of)
		}
	}
}

// noteWrong notes the first wrong data of a test.
func (w *worker) noteWrong(r *sweep.Result, g *cuda.NCCLGPU, m cuda.NCCLMismatch, where string) {
	if m.Count == 0 || r.Fault != sweep.FaultNone {
		return
	}
	r.Fault = sweep.FaultWrong
	r.Text = fmt.Sprintf("%s: %d of %d elements wrong on gpu%d (%s), want %v in element %d, got %v", w.what(), m.Count, m.Of, g.Context.GPU.Ordinal, where, m.Want, m.At, m.Got)
}
