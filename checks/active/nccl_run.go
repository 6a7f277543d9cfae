package active

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// ncclRun is a running test of NCCL. One goroutine queues work on all GPUs, and passes the work
// of all ranks to NCCL as one group, as nccl-tests does with -g.
type ncclRun struct {
	*activeRun
	*nccl

	op    *cuda.NCCLOp
	test  string // name in floors and baselines
	lib   *cuda.NCCL
	ranks []*ncclGPU // all GPUs, group by group
	comms []*cuda.NCCLComm

	room    int64 // elements of each of a GPU's two buffers
	most    int64 // the largest size, bytes
	reached bool  // an operation has ended, so the adapters, or GPUs, reach each other
	wrong   []ncclWrong
	broken  bool // after a failure: running work is aborted
}

// ncclGPU is a GPU of the test, and its place.
type ncclGPU struct {
	cuda.NCCLGPU

	gpu  *nvml.GPU
	comm int // its group
	rank int // in the group
	n    int // ranks of the group
}

// errNCCLHung reports an operation that did not end in time.
var errNCCLHung = errors.New("did not end in time")

// ncclPatience and ncclCrawl (bytes a second) set how long an operation counts as
// slow, not as hung: the first of a size makes connections.
const (
	ncclPatience = 5 * time.Second
	ncclCrawl    = 2_000_000_000
)

// patience returns the limit of an operation that normally takes less than a second. A test with
// less time ends before the limit, and cannot distinguish slow from hung. Over the network the
// limit is longer than NCCL's own timeout.
func (t *ncclRun) patience() time.Duration {
	crawl := time.Duration(float64(t.most) / ncclCrawl * float64(time.Second)).Round(time.Second)
	usual := t.ncclTime().Patience
	switch {
	case t.NoP2P && (t.reached || t.hasReachedBefore()):
		return usual + crawl
	case t.NoP2P: // nothing fails by it
		return min(usual, t.activeTest.Bound*6/10)
	}
	return max(min(usual, t.activeTest.Bound/2), ncclPatience+crawl)
}

// runLibrary runs the operation with the library.
func (t *ncclRun) runLibrary() {
	cuda, ok := t.openCUDA()
	if !ok || !t.loadLibrary() {
		return
	}
	defer t.close()
	if !t.assignRanks() || !t.open(cuda) {
		return
	}
	if sizes, ok := t.planSizes(); ok && t.connect() && t.allocate(sizes[len(sizes)-1]) {
		t.measure(sizes)
		measurePairs(t)
		reportWrong(t)
	}
}

// loadLibrary loads the library.
func (t *ncclRun) loadLibrary() bool {
	lib, err := cuda.OpenNCCL(t.env.Host, t.settings(), t.env.Doing)
	switch {
	case errors.Is(err, probe.ErrNoLibrary):
		t.failures = true
		t.report(checks.Device{}, checks.Finding{Code: "nccl.library", Severity: checks.Unknown}, "cannot use NCCL: %v", err)
		return false
	case err != nil:
		t.reportFailure(nil, "cannot use NCCL", err)
		return false
	case t.op.Sends && !lib.CanSend():
		t.failures = true
		t.report(checks.Device{}, checks.Finding{Code: "nccl.old", Severity: checks.Unknown, Want: "2.7 or later", Got: lib.Release()}, "this NCCL has no send and receive, which %s needs", t.op.Name)
		return false
	}
	t.lib = lib
	return true
}

// assignRanks distributes the GPUs over the groups, in their order.
func (t *ncclRun) assignRanks() bool {
	groups := t.groups()
	n := len(t.gpus) / groups
	if n < 2 || n*groups != len(t.gpus) {
		t.failures = true
		t.report(checks.Device{}, checks.Finding{Code: "nccl.groups", Severity: checks.Skip, Want: "equal groups of at least 2 GPUs"}, "%d GPUs cannot be split into %d equal groups", len(t.gpus), groups)
		return false
	}
	for i, g := range t.gpus {
		t.ranks = append(t.ranks, &ncclGPU{NCCLGPU: cuda.NCCLGPU{Base: i / n * n}, gpu: g, comm: i / n, rank: i % n, n: n})
	}
	return true
}

// open creates the contexts of the GPUs, and the objects of the test in them.
func (t *ncclRun) open(cuda *cuda.Driver) bool {
	t.at("open %s", checks.Plural(len(t.ranks), "GPU"))
	ready := wakeGPUs(t.activeRun, cuda)
	defer ready()
	for _, g := range t.ranks {
		d, ok := t.findUsableGPU(cuda, g.gpu)
		if !ok {
			return false
		}
		t.at("%s: open", checks.GPUDevice(g.gpu).Name)
		if err := g.Open(d); err != nil {
			t.reportFailure(g.gpu, "cannot use the GPU", err)
			return false
		}
	}
	return true
}

// connect creates the communicators, one for each group.
func (t *ncclRun) connect() bool {
	devices := make([][]int, t.groups())
	for _, g := range t.ranks {
		devices[g.comm] = append(devices[g.comm], g.Context.GPU.Ordinal)
	}
	for _, d := range devices {
		t.at("call ncclCommInitAll for %d GPUs", len(d))
		comm, err := t.lib.Comm(d)
		if err != nil {
			t.reportFailure(nil, "cannot create the communicator", err)
			return false
		}
		t.comms = append(t.comms, comm)
	}
	return t.usesRDMA()
}

// usesRDMA reports whether a test of the network uses RDMA and not sockets.
func (t *ncclRun) usesRDMA() bool {
	networks := t.lib.Log(0).Networks
	if !t.NoP2P || len(networks) == 0 || networks[len(networks)-1] != "Socket" {
		return true
	}
	t.failures = true
	t.report(checks.Device{}, checks.Finding{Code: "nccl.network", Severity: checks.Unknown, Want: "IB, or a plug-in", Got: "Socket"}, "NCCL found no RDMA network")
	return false
}

// close ends running work and frees everything, in the order that NCCL requires: before the
// contexts. After a fault the end of the process does it, since any call can wait for a GPU that
// does not answer, see keepsOpen.
func (t *ncclRun) close() {
	if len(t.stuck) > 0 || t.broken || checks.Worst(t.findings) == checks.Fail {
		t.env.Host.LeaveBehind()
		return
	}
	for _, c := range t.comms {
		call, end := "ncclCommDestroy", c.Destroy
		if t.ctx.Err() != nil {
			call, end = "ncclCommAbort", c.Abort
		}
		t.at("call %s", call)
		if err := end(); err != nil {
			t.reportFailure(nil, "cannot destroy the communicator", err)
		}
	}
	for _, g := range t.ranks {
		if g.Context == nil {
			continue
		}
		t.at("%s: close", checks.GPUDevice(g.gpu).Name)
		if err := g.Close(); err != nil {
			t.reportFailure(g.gpu, "cannot close the GPU", err)
		}
	}
}

// enqueue passes the operation of all ranks and groups to NCCL.
func (t *ncclRun) enqueue(op *cuda.NCCLOp, block int64) error {
	return t.lib.Group(func() error {
		for _, g := range t.ranks {
			if err := op.Enqueue(t.comms[g.comm], g.Work(g.rank, block)); err != nil {
				return err
			}
		}
		return nil
	})
}

// timed runs work n times and returns the duration of all on each GPU, by its own clock.
func (t *ncclRun) timed(doing string, n int, work func() error) (each []time.Duration, ok bool) {
	if !t.begin(doing, n, work) {
		return nil, false
	}
	return t.finish(doing)
}

// begin queues the work.
func (t *ncclRun) begin(doing string, n int, work func() error) bool {
	t.at("%s", doing)
	for _, g := range t.ranks {
		if err := g.Context.Record(g.Start, g.Stream); err != nil {
			t.reportFailure(g.gpu, doing, err)
			return false
		}
	}
	for range n {
		t.at("%s", doing)
		if err := work(); err != nil {
			t.reportFailure(nil, doing, err)
			return false
		}
	}
	for _, g := range t.ranks {
		if err := g.Context.Record(g.Stop, g.Stream); err != nil {
			t.reportFailure(g.gpu, doing, err)
			return false
		}
	}
	return true
}

// finish waits for the work.
func (t *ncclRun) finish(doing string) (each []time.Duration, ok bool) {
	if !t.wait(doing) {
		return nil, false
	}
	for _, g := range t.ranks {
		took, err := g.Context.Elapsed(g.Start, g.Stop)
		if err != nil {
			t.reportFailure(g.gpu, doing, err)
			return nil, false
		}
		each = append(each, took)
	}
	if slices.Max(each) <= 0 { // a single GPU may take no part
		t.reportFailure(nil, doing, errNoTime)
		return nil, false
	}
	t.reached = true
	return each, true
}

// waitOwn waits for work that each GPU does on its own. A GPU that does not end it while others
// have is to blame.
func (t *ncclRun) waitOwn(doing string) bool {
	return t.waitEach(doing, func(i int) cuda.Stream { return t.ranks[i].Stream })
}

// waitEach is waitOwn for a stream of each GPU.
func (t *ncclRun) waitEach(doing string, of func(i int) cuda.Stream) bool {
	patience := patience(t.activeRun)
	limited, stop := context.WithTimeout(t.ctx, patience)
	defer stop()
	ok := true
	for i, g := range t.ranks {
		err := g.Context.Sync(limited, of(i))
		switch {
		case err == nil:
			markDone(t.activeRun, g.gpu)
		case t.ctx.Err() == nil && limited.Err() != nil:
			t.broken, ok = true, false
			noteStuck(t.activeRun, g.gpu, doing, patience)
		default:
			t.reportFailure(g.gpu, doing, err)
			return false
		}
	}
	return ok
}

// wait waits until every GPU has done its work, NCCL reports an error, or the time is up.
func (t *ncclRun) wait(doing string) bool {
	limited, stop := context.WithTimeoutCause(t.ctx, t.patience(), errNCCLHung)
	defer stop()
	ctx, cancel := context.WithCancelCause(limited)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel(nil)
	watching.Go(func() { t.watchErrors(ctx, cancel) })
	if !t.sync(ctx, doing, func(i int) cuda.Stream { return t.ranks[i].Stream }) {
		return false
	}
	for _, c := range t.comms {
		if err := c.AsyncError(); err != nil {
			t.reportFailure(nil, doing, err)
			return false
		}
	}
	return true
}

// sync waits until the common work of the GPUs has ended in a stream of each.
func (t *ncclRun) sync(ctx context.Context, doing string, of func(i int) cuda.Stream) bool {
	at, err := syncRanks(ctx, t.ranks, of)
	switch {
	case at >= 0:
		t.reportFailure(t.ranks[at].gpu, doing, err)
	case err != nil:
		t.reportFailure(nil, doing, cmp.Or(context.Cause(ctx), err))
	}
	return err == nil
}

// syncRanks is [cuda.SyncAll] for a stream of each rank.
func syncRanks(ctx context.Context, ranks []*ncclGPU, of func(i int) cuda.Stream) (at int, err error) {
	var contexts []*cuda.Context
	var streams []cuda.Stream
	for i, g := range ranks {
		contexts, streams = append(contexts, g.Context), append(streams, of(i))
	}
	return cuda.SyncAll(ctx, contexts, streams)
}

// asyncLook is the interval of queries for asynchronous errors of NCCL.
const asyncLook = 100 * time.Millisecond

func (t *ncclRun) watchErrors(ctx context.Context, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(asyncLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, c := range t.comms {
			if err := c.AsyncError(); err != nil {
				cancel(err)
				return
			}
		}
	}
}

// sizeText formats a number of bytes.
func sizeText(bytes int64) string { return fmt.Sprint(checks.Size(bytes)) }
