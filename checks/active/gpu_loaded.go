package active

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// loadedGPU is a GPU that an active test works on: as NVML has it, and with its
// context of CUDA, which is for the goroutine that has opened it.
type loadedGPU struct {
	gpu *nvml.GPU
	c   *cuda.Context

	stream      cuda.Stream
	before, end cuda.Event
	patience    time.Duration // for a piece of work, which should take milliseconds; 0: none, whoever waits decides
}

// openGPU opens a GPU for a test, with a stream and what measures time in it.
func openGPU(g *nvml.GPU, d *cuda.GPU) (*loadedGPU, error) {
	c, err := d.Open()
	if err != nil {
		return nil, err
	}
	l := &loadedGPU{gpu: g, c: c}
	if l.stream, err = c.NewStream(); err == nil {
		l.before, err = c.NewEvent()
	}
	if err == nil {
		l.end, err = c.NewEvent()
	}
	if fatal(err) { // the context is left to the end of the process, see leaves
		return nil, err
	}
	if err != nil {
		return nil, cmp.Or(err, c.Close())
	}
	return l, nil
}

// openGPUs opens all GPUs that the test may load, in this goroutine. What cannot be
// opened is reported. done closes them.
func openGPUs(r *activeRun) (list []*loadedGPU, done func()) {
	done = func() {
		if r.leftOpen {
			return
		}
		for _, l := range list {
			if !leaves(r, l.gpu) {
				_ = l.c.Close() // what went wrong before comes again here, and has been reported
			}
		}
	}
	cuda, ok := r.cuda()
	if !ok {
		return nil, done
	}
	r.at("open %s", checks.Plural(len(r.gpus), "GPU"))
	ready := wakeGPUs(r, cuda)
	defer ready()
	for _, g := range r.gpus {
		if r.ctx.Err() != nil {
			return list, done
		}
		d, ok := r.cudaGPU(cuda, g)
		if !ok {
			continue
		}
		r.at("gpu%d: open", g.Index)
		l, err := openGPU(g, d)
		if err != nil {
			r.failed(g, "cannot open it", err)
			continue
		}
		l.patience = patience(r, timeOfOthers)
		list = append(list, l)
	}
	return list, done
}

// wakeGPUs opens the GPUs of a test side by side: a driver without persistence mode takes
// seconds for each. They stay open until done is called, and to open one once more takes
// no time. What fails is reported by who opens it then.
func wakeGPUs(r *activeRun, driver *cuda.Driver) (done func()) {
	var gpus []*cuda.GPU
	for _, g := range r.gpus {
		if d := onCUDAs(driver, g); d != nil && d.Err == nil {
			gpus = append(gpus, d)
		}
	}
	return driver.Wake(gpus)
}

// sync waits for all that is queued in the GPU's stream, no longer than its patience.
func (l *loadedGPU) sync(ctx context.Context) error {
	if l.patience <= 0 {
		return l.c.Sync(ctx, l.stream)
	}
	waiting, stop := context.WithTimeout(ctx, l.patience)
	defer stop()
	err := l.c.Sync(waiting, l.stream)
	if err != nil && ctx.Err() == nil && waiting.Err() != nil {
		return errStuck
	}
	return err
}

// timed has some operations queued in the GPU's stream, and gives the time that the
// GPU has taken for all of them.
func (l *loadedGPU) timed(ctx context.Context, n int, operation func() error) (time.Duration, error) {
	if err := l.c.Record(l.before, l.stream); err != nil {
		return 0, err
	}
	for range n {
		if err := operation(); err != nil {
			return 0, err
		}
	}
	if err := cmp.Or(l.c.Record(l.end, l.stream), l.sync(ctx)); err != nil {
		return 0, err
	}
	took, err := l.c.Elapsed(l.before, l.end)
	if err == nil && took <= 0 {
		err = errNoTime
	}
	return took, err
}

// errNoTime is a time that no work can have taken: no rate can be made of it.
var errNoTime = errors.New("the GPU's events say that the work has taken no time")

// How a rate is measured: the GPU is warmed up, since an idle link runs at a lower
// generation and an idle memory at a lower clock, for as long as a sample; then operations are timed in samples
// of several, and the median of them counts.
const (
	warmUpMost  = 64 // operations
	sampleMost  = 32 // operations
	sampleCount = 3
)

// rate measures how many GB/s (of 10^9 bytes) an operation moves that is bytes long.
// sample is about how long one sample takes.
func (l *loadedGPU) rate(ctx context.Context, bytes uint64, sample time.Duration, operation func() error) (float64, error) {
	one, warm := sample, time.Duration(0)
	for i := 0; i < warmUpMost && warm < sample; i++ {
		took, err := l.timed(ctx, 1, operation)
		if err != nil {
			return 0, err
		}
		warm += took
		one = took
	}
	n := int(min(max(sample/one, 1), sampleMost))
	var rates []float64
	for range sampleCount {
		took, err := l.timed(ctx, n, operation)
		if err != nil {
			return 0, err
		}
		rates = append(rates, gbs(bytes*uint64(n), took))
	}
	return median(rates), nil
}

// gbs are GB/s of 10^9 bytes.
func gbs(bytes uint64, took time.Duration) float64 {
	return float64(bytes) / float64(took.Nanoseconds())
}

// fitting is a size that is no larger than is wanted, and of which the GPU's free
// memory holds so many; 0 if it does not hold even small ones.
func (l *loadedGPU) fitting(want checks.Size, buffers uint64) (uint64, error) {
	free, _, err := l.c.MemInfo()
	if err != nil {
		return 0, err
	}
	size := uint64(want)
	for size > leastBuffer && size*buffers > free/8*7 {
		size /= 2
	}
	if size*buffers > free/8*7 {
		return 0, fmt.Errorf("%d buffers of %v are wanted, %v are free", buffers, want, checks.Size(free))
	}
	return size &^ 511, nil
}

const leastBuffer = 1 << 16

// allocs takes buffers of one size.
func (l *loadedGPU) allocs(size uint64, n int) (list []cuda.Memory, err error) {
	for range n {
		m, err := l.c.Alloc(size)
		if err != nil {
			return list, cmp.Or(err, l.frees(list))
		}
		list = append(list, m)
	}
	return list, nil
}

func (l *loadedGPU) frees(list []cuda.Memory) error {
	var first error
	for _, m := range list {
		first = cmp.Or(first, l.c.Free(m))
	}
	return first
}

// kernels loads some kernels of kernels/memory.cu.
func (l *loadedGPU) kernels(names ...string) (list []*cuda.Kernel, err error) {
	m, err := l.c.Module("memory")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		k, err := m.Kernel(name)
		if err != nil {
			return nil, err
		}
		list = append(list, k)
	}
	return list, nil
}

// wide is a grid that keeps a GPU's memory busy: eight blocks of 256 threads for each
// of its multiprocessors, each thread with several accesses of 16 bytes under way.
func (l *loadedGPU) wide() (grid, block cuda.Dim) {
	return cuda.Dim{X: 8 * max(l.c.GPU.SMs, 1)}, cuda.Dim{X: 256}
}

// What joins two GPUs, for checks that compare pairs of them.

// Kinds of pairs: joined by NVSwitches, by NVLinks of a number that is not told, and by
// the host, where they are near to the same CPUs or not.
const (
	nvSwitched = "nvlink"
	nvUntold   = "nvlink, by what is not told"
	joinedNear = "pcie near"
	joinedFar  = "pcie far"
)

// joined says what is between two GPUs, as far as NVML and the kernel tell: pairs are
// compared with those that have the same. In a mesh the number of links belongs to it,
// on PCIe whether the way leaves the switch, the root port, the NUMA node: each step may
// halve the rate.
func (l *loadedGPU) joined(other *loadedGPU) string {
	if l.gpu.NVLink.PeerP2P.Value[checks.GPUName(other.gpu)] == nvml.P2POK {
		links := 0
		for _, far := range l.gpu.NVLink.FarPCI.Value {
			if far == other.gpu.PCI {
				links++
			}
		}
		if links > 0 {
			return fmt.Sprintf("nvlink x%d", links)
		}
		if slices.Contains(l.gpu.NVLink.Far.Value, "switch") {
			return nvSwitched
		}
		return nvUntold
	}
	above, beside := l.c.GPU.Above(), other.c.GPU.Above()
	shared := sharedBridges(above, beside)
	switch own := max(len(above), len(beside)) - shared; {
	case shared > 0 && own <= 1:
		return "one pcie switch"
	case shared > 0:
		return fmt.Sprintf("pcie switches %d deep", own)
	case l.c.GPU.Near() == other.c.GPU.Near():
		return joinedNear
	}
	return joinedFar
}

// sharedBridges is how many bridges two devices have in common, from the root port down.
func sharedBridges(above, beside []string) (n int) {
	for n < min(len(above), len(beside)) && above[n] == beside[n] {
		n++
	}
	return n
}

// throughHost stands among ways for what joins the sockets of a node, and for the node
// where the kernel tells no bridge, as in a virtual machine: then nobody knows.
const throughHost = "host"

// way is what the data of two GPUs cross that other pairs may cross as well: the bridges
// above one of them alone, and what joins the sockets. NVLinks are for the two alone, or
// their switches have room for all.
func (l *loadedGPU) way(other *loadedGPU) (parts []string) {
	if l.gpu.NVLink.PeerP2P.Value[checks.GPUName(other.gpu)] == nvml.P2POK {
		return nil
	}
	above, beside := l.c.GPU.Above(), other.c.GPU.Above()
	shared := sharedBridges(above, beside)
	parts = append(parts, above[shared:]...)
	parts = append(parts, beside[shared:]...)
	if len(above) == 0 || len(beside) == 0 || l.joined(other) == joinedFar {
		parts = append(parts, throughHost)
	}
	return parts
}

// gpuTeam are the GPUs of a test that work at the same time, each from a goroutine of
// its own, which a context of CUDA belongs to.
type gpuTeam struct {
	r       *activeRun
	workers []*gpuWorker
}

// gpuWorker is one GPU of a team.
type gpuWorker struct {
	*loadedGPU
	on *cuda.GPU

	work chan func()
	err  error

	ctx    context.Context // of what all does now: over when the test is, or when the GPU is stuck
	cancel context.CancelCauseFunc
	rested bool // it had nothing to do, which is no proof that the work can be done
}

// newTeam opens a context on every GPU of the test. A GPU on which that fails is
// reported and left out.
func newTeam(r *activeRun, cuda *cuda.Driver) *gpuTeam {
	t := &gpuTeam{r: r}
	for _, g := range r.gpus {
		if on, ok := r.cudaGPU(cuda, g); ok {
			w := &gpuWorker{loadedGPU: &loadedGPU{gpu: g}, on: on, work: make(chan func())}
			t.workers = append(t.workers, w)
			go func() {
				for f := range w.work {
					f()
				}
			}()
		}
	}
	t.each("open the GPU", (*gpuWorker).open)
	return t
}

func (w *gpuWorker) open() error {
	l, err := openGPU(w.gpu, w.on)
	if err == nil {
		w.loadedGPU = l
	}
	return err
}

// all has every GPU do something at the same time, and waits for all. An error is left
// in the worker: errStuck in one that does not end long after others have.
func (t *gpuTeam) all(do func(*gpuWorker) error) {
	done := make(chan *gpuWorker, len(t.workers))
	for _, w := range t.workers {
		w.ctx, w.cancel = context.WithCancelCause(t.r.ctx)
		w.rested = false
		w.work <- func() {
			if w.err = do(w); w.err != nil && errors.Is(context.Cause(w.ctx), errStuck) {
				w.err = errStuck
			}
			done <- w
		}
	}
	began, ended, slowest := time.Now(), 0, time.Duration(0)
	for left := len(t.workers); left > 0; {
		var late <-chan time.Time
		if ended > 0 {
			late = time.After(time.Until(began.Add(teamPatience*slowest + patience(t.r, timeOfOthers))))
		}
		select {
		case w := <-done:
			if left--; w.err == nil && !w.rested {
				ended, slowest = ended+1, time.Since(began)
				finished(t.r, w.gpu)
			}
		case <-late:
			for _, w := range t.workers {
				w.cancel(errStuck) // nothing to those that have ended
			}
			for range left {
				<-done
			}
			left = 0
		}
	}
	for _, w := range t.workers {
		w.cancel(nil)
	}
}

// teamPatience is how many times longer than the slowest of the others a GPU may take
// for the same work, beside its patience.
const teamPatience = 4

// each is all for what has to succeed: a GPU on which it does not is reported and does
// no more.
func (t *gpuTeam) each(doing string, do func(*gpuWorker) error) {
	t.all(do)
	t.workers = slices.DeleteFunc(t.workers, func(w *gpuWorker) bool {
		if w.err == nil {
			return false
		}
		t.r.failed(w.gpu, doing, w.err)
		t.leave(w)
		return true
	})
}

// close gives all contexts back, with all that is in them.
func (t *gpuTeam) close() {
	for _, w := range t.workers {
		t.leave(w)
	}
	t.workers = nil
}

// leave gives the context back. What may be wrong with a GPU was said when it failed.
func (t *gpuTeam) leave(w *gpuWorker) {
	if leaves(t.r, w.gpu) {
		close(w.work)
		return
	}
	done := make(chan struct{})
	w.work <- func() {
		defer close(done)
		if w.c != nil {
			_ = w.c.Close()
		}
	}
	<-done
	close(w.work)
}

// inTurn is each, but with one GPU after the other, so that none disturbs another.
func (t *gpuTeam) inTurn(doing string, do func(*gpuWorker) error) {
	all := t.workers
	var left []*gpuWorker
	for _, w := range all {
		if t.r.ctx.Err() == nil {
			t.r.at("gpu%d: %s", w.gpu.Index, doing)
			t.workers = []*gpuWorker{w}
			t.each(doing, do)
			left = append(left, t.workers...)
			continue
		}
		left = append(left, w)
	}
	t.workers = left
}
