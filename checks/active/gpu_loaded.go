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

// loadedGPU is a GPU that an active test uses: NVML's and CUDA's handle. The goroutine that
// opened the CUDA context must use it.
type loadedGPU struct {
	gpu *nvml.GPU
	c   *cuda.Context

	stream      cuda.Stream
	before, end cuda.Event
	patience    time.Duration // limit of a piece of work, which normally takes milliseconds; 0: none, the waiting code decides
}

// openGPU opens a GPU for a test, with a stream and the events that measure time in it.
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
	if fatal(err) { // the context stays open until the process ends, see keepsOpen
		return nil, err
	}
	if err != nil {
		return nil, cmp.Or(err, c.Close())
	}
	return l, nil
}

// openGPUs opens all GPUs that the test may load, in this goroutine. It reports GPUs that it
// cannot open. done closes them.
func openGPUs(r *activeRun) (list []*loadedGPU, done func()) {
	done = func() {
		if r.leftOpen {
			return
		}
		for _, l := range list {
			if !keepsOpen(r, l.gpu) {
				_ = l.c.Close() // an error was reported before
			}
		}
	}
	cuda, ok := r.openCUDA()
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
		d, ok := r.findUsableGPU(cuda, g)
		if !ok {
			continue
		}
		r.at("gpu%d: open", g.Index)
		l, err := openGPU(g, d)
		if err != nil {
			r.reportFailure(g, "cannot open it", err)
			continue
		}
		l.patience = patience(r)
		list = append(list, l)
	}
	return list, done
}

// wakeGPUs opens the GPUs of a test in parallel: a driver without persistence mode takes seconds
// for each. They stay open until done is called, so opening one again is fast. The code that
// opens a GPU again reports errors.
func wakeGPUs(r *activeRun, driver *cuda.Driver) (done func()) {
	var gpus []*cuda.GPU
	for _, g := range r.gpus {
		if d := findCUDAGPU(driver, g); d != nil && d.Err == nil {
			gpus = append(gpus, d)
		}
	}
	return driver.Wake(gpus)
}

// sync waits for everything queued in the GPU's stream, no longer than its patience.
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

// timed queues n operations in the GPU's stream, and returns the time that the GPU took for all
// of them.
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

// errNoTime reports a duration that gives no rate.
var errNoTime = errors.New("the GPU's events report a duration of zero for the work")

// How a rate is measured. The GPU is warmed up first, for as long as a sample: an idle link runs
// at a lower generation, and idle memory at a lower clock. Then operations are timed in samples
// of several, and the median of the samples counts.
const (
	warmUpMost  = 64 // operations
	sampleMost  = 32 // operations
	sampleCount = 3
)

// rate returns how many GB/s (10^9 bytes) an operation moves that copies the given bytes. sample
// is the approximate duration of a sample.
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

// gbs returns GB/s of 10^9 bytes.
func gbs(bytes uint64, took time.Duration) float64 {
	return float64(bytes) / float64(took.Nanoseconds())
}

// fitSize returns a size up to want at which this many buffers fit the GPU's free memory. It
// returns an error if even small ones do not.
func (l *loadedGPU) fitSize(want checks.Size, buffers uint64) (uint64, error) {
	free, _, err := l.c.MemInfo()
	if err != nil {
		return 0, err
	}
	size := uint64(want)
	for size > leastBuffer && size*buffers > free/8*7 {
		size /= 2
	}
	if size*buffers > free/8*7 {
		return 0, fmt.Errorf("want %d buffers of %v, %v free", buffers, want, checks.Size(free))
	}
	return size &^ 511, nil
}

const leastBuffer = 1 << 16

// allocateBuffers allocates buffers of one size.
func (l *loadedGPU) allocateBuffers(size uint64, n int) (list []cuda.Memory, err error) {
	for range n {
		m, err := l.c.Alloc(size)
		if err != nil {
			return list, cmp.Or(err, l.freeBuffers(list))
		}
		list = append(list, m)
	}
	return list, nil
}

func (l *loadedGPU) freeBuffers(list []cuda.Memory) error {
	var first error
	for _, m := range list {
		first = cmp.Or(first, l.c.Free(m))
	}
	return first
}

// loadKernels loads kernels of kernels/memory.cu.
func (l *loadedGPU) loadKernels(names ...string) (list []*cuda.Kernel, err error) {
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

// chooseGrid returns a grid that saturates a GPU's memory: eight blocks of 256 threads for each
// multiprocessor, each thread with several accesses of 16 bytes in flight.
func (l *loadedGPU) chooseGrid() (grid, block cuda.Dim) {
	return cuda.Dim{X: 8 * max(l.c.GPU.SMs, 1)}, cuda.Dim{X: 256}
}

// The connection of two GPUs, for checks that compare pairs of them.

// Kinds of pairs: connected by NVSwitches, by an unknown number of NVLinks, or through the host,
// near to the same CPUs or not.
const (
	nvSwitched = "nvlink"
	nvUntold   = "nvlink of unknown width"
	joinedNear = "pcie near"
	joinedFar  = "pcie far"
)

// classifyLink describes the connection of two GPUs, as far as NVML and the kernel report it: pairs are
// compared only with pairs of the same kind. The kind has the number of links in a mesh, and on
// PCIe whether the path leaves the switch, the root port or the NUMA node: each step can halve
// the rate.
func (l *loadedGPU) classifyLink(other *loadedGPU) string {
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

// sharedBridges returns how many bridges two devices have in common, from the root port down.
func sharedBridges(above, beside []string) (n int) {
	for n < min(len(above), len(beside)) && above[n] == beside[n] {
		n++
	}
	return n
}

// throughHost is the part of a path for the connection of the sockets, and for the node if the
// kernel reports no bridges, as in a virtual machine.
const throughHost = "host"

// way returns the parts of the path of two GPUs that other pairs may use, too: the bridges above
// one of them alone, and the connection of the sockets. NVLinks belong to the two alone, or their
// switches have room for all.
func (l *loadedGPU) way(other *loadedGPU) (parts []string) {
	if l.gpu.NVLink.PeerP2P.Value[checks.GPUName(other.gpu)] == nvml.P2POK {
		return nil
	}
	above, beside := l.c.GPU.Above(), other.c.GPU.Above()
	shared := sharedBridges(above, beside)
	parts = append(parts, above[shared:]...)
	parts = append(parts, beside[shared:]...)
	if len(above) == 0 || len(beside) == 0 || l.classifyLink(other) == joinedFar {
		parts = append(parts, throughHost)
	}
	return parts
}

// gpuTeam has the GPUs of a test that work at the same time, each from a goroutine of its own,
// since a context of CUDA belongs to one.
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

	ctx    context.Context // of the present work: done when the test is over, or when the GPU is stuck
	cancel context.CancelCauseFunc
	rested bool // it had nothing to do, so it has not shown that it can
}

// newTeam opens a context on every GPU of the test. It reports and drops a GPU if that fails.
func newTeam(r *activeRun, cuda *cuda.Driver) *gpuTeam {
	t := &gpuTeam{r: r}
	for _, g := range r.gpus {
		if on, ok := r.findUsableGPU(cuda, g); ok {
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

// all runs do on every GPU at the same time, and waits for all. It leaves an error in the worker:
// errStuck in one that does not end long after the others.
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
			late = time.After(time.Until(began.Add(teamPatience*slowest + patience(t.r))))
		}
		select {
		case w := <-done:
			if left--; w.err == nil && !w.rested {
				ended, slowest = ended+1, time.Since(began)
				markDone(t.r, w.gpu)
			}
		case <-late:
			for _, w := range t.workers {
				w.cancel(errStuck) // no effect on those that have ended
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

// teamPatience is how many times longer than the slowest of the others a GPU may take for the
// same work, in addition to its patience.
const teamPatience = 4

// each runs do on every GPU. If it fails on a GPU, that GPU is reported and dropped.
func (t *gpuTeam) each(doing string, do func(*gpuWorker) error) {
	t.all(do)
	t.workers = slices.DeleteFunc(t.workers, func(w *gpuWorker) bool {
		if w.err == nil {
			return false
		}
		t.r.reportFailure(w.gpu, doing, w.err)
		t.leave(w)
		return true
	})
}

// close closes all contexts, with all that they hold.
func (t *gpuTeam) close() {
	for _, w := range t.workers {
		t.leave(w)
	}
	t.workers = nil
}

// leave closes the context. An error of the GPU was reported when it happened.
func (t *gpuTeam) leave(w *gpuWorker) {
	if keepsOpen(t.r, w.gpu) {
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

// runInTurn is each, but with one GPU after the other, so that they do not disturb each other.
func (t *gpuTeam) runInTurn(doing string, do func(*gpuWorker) error) {
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
