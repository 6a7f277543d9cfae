package cpu

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// This file runs STREAM's triad on all cores; each thread has its own memory.

// StreamPlan has a thread for each core.
type StreamPlan struct {
	Threads []StreamThread
	Array   int64 // size of one of each thread's three arrays, bytes
}

// StreamThread is one thread of a plan.
type StreamThread struct{ CPU, NUMA int }

// Bytes returns the memory that the plan needs.
func (p *StreamPlan) Bytes() int64 { return 3 * p.Array * int64(len(p.Threads)) }

// StreamRates are the results, MB/s (10^6), counted as in STREAM: 24 bytes for each element, the
// best of all rounds.
type StreamRates struct {
	Total  float64
	Nodes  map[int]float64 // by NUMA node, from the start of the round to its last thread's end
	Rounds int
	Far    []StreamFar // memory on another NUMA node, certain or possible
}

// ErrStreamMemory means that there is too little memory for arrays larger than the caches.
var ErrStreamMemory = errors.New("not enough memory")

// These bound the arrays. By STREAM's rules they are a multiple of the last-level caches. The
// minimum for a thread is larger than a core's own caches, for kernels that do not show caches. The
// maximum for all threads is a part of the available memory.
const (
	streamCaches = 4
	streamLeast  = 8 << 20
	streamPart   = 2
)

// PlanStream plans a thread for each core of these CPUs, with arrays larger than the caches. It
// reads MemAvailable first: [ErrStreamMemory] means that the memory is too small.
func PlanStream(h *probe.Host) (*StreamPlan, error) {
	cpus, err := AllowedCPUs(h)
	if err != nil {
		return nil, err
	}
	places, err := Places(h, cpus)
	if err != nil {
		return nil, err
	}
	p := &StreamPlan{}
	cores, caches := map[string]bool{}, map[string]int64{}
	for _, at := range places {
		if at.Size > 0 {
			caches[at.LLC] = at.Size
		}
		if at.Core != "" && cores[at.Core] {
			continue // another thread of a core that already has one
		}
		cores[at.Core] = true
		p.Threads = append(p.Threads, StreamThread{CPU: at.CPU, NUMA: at.NUMA})
	}
	if len(p.Threads) == 0 {
		return nil, errors.New("no CPU that this process may run on")
	}
	var cache int64
	for _, size := range caches {
		cache += size
	}
	const page = 2 << 20 // a huge page
	p.Array = max(streamLeast, (streamCaches*cache/int64(len(p.Threads))+page-1)/page*page)
	free, err := MemAvailable(h)
	if err != nil {
		return nil, err
	}
	if p.Bytes() > free/streamPart {
		return nil, fmt.Errorf("%w: three arrays of %d MiB in all, %d times the caches, are %d MiB, more than half of the %d MiB that are available",
			ErrStreamMemory, p.Bytes()/3>>20, streamCaches, p.Bytes()>>20, free>>20)
	}
	return p, nil
}

// MemAvailable returns the memory that is available now without swapping, bytes.
func MemAvailable(h *probe.Host) (int64, error) {
	const path = "/proc/meminfo"
	data, err := h.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(data) {
		f := bytes.Fields(line)
		if len(f) >= 2 && string(f[0]) == "MemAvailable:" {
			kB, err := strconv.ParseInt(string(f[1]), 10, 64)
			if err != nil || kB < 0 || kB > math.MaxInt64>>10 {
				return 0, &fs.PathError{Op: "parse", Path: path, Err: fs.ErrInvalid}
			}
			return kB << 10, nil
		}
	}
	return 0, &fs.PathError{Op: "read", Path: path, Err: errors.New("no MemAvailable line")}
}

// streamRounds is the maximum number of rounds; as in STREAM the first does not count. streamPiece
// is the part of an array between two checks of the context, in elements: a millisecond or less.
const (
	streamRounds = 20
	streamPiece  = 1 << 17
)

// Stream runs the triad until it has done its rounds, or until the time until; a rate needs at
// least two rounds. It ends within a millisecond after ctx ends (while it moves memory to its NUMA
// node, after one piece), frees its memory, and returns the error of ctx.
func Stream(ctx context.Context, h *probe.Host, p *StreamPlan, until time.Time) (StreamRates, error) {
	if h.Recorded() {
		return readRecordedStream(h)
	}
	return newStream(ctx, p, until, h).run()
}

func (s *stream) run() (StreamRates, error) {
	var all sync.WaitGroup
	for i := range s.plan.Threads {
		all.Go(func() { s.runThread(i) })
	}
	all.Wait()
	if err := context.Cause(s.ctx); err != nil {
		return StreamRates{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return StreamRates{}, s.err
	}
	if s.rates.Rounds == 0 {
		return StreamRates{}, fmt.Errorf("no round of the triad over arrays of %d MiB finished in time", s.plan.Bytes()/3>>20)
	}
	s.rates.Far = s.places.listFar()
	return s.rates, nil
}

// stream is one run of the triad.
type stream struct {
	ctx   context.Context
	plan  *StreamPlan
	until time.Time
	stop  atomic.Bool
	ready *gate // all threads are ready for a round
	over  *gate // all threads have finished the round

	places  *streamPlaces
	touched *gate // all threads have touched their memory

	start time.Time // of the round
	took  []time.Duration

	mu    sync.Mutex
	rates StreamRates
	err   error
}

func newStream(ctx context.Context, p *StreamPlan, until time.Time, h *probe.Host) *stream {
	n := len(p.Threads)
	return &stream{
		ctx: ctx, plan: p, until: until, took: make([]time.Duration, n), rates: StreamRates{Nodes: map[int]float64{}},
		ready: newGate(n), over: newGate(n), touched: newGate(n), places: newStreamPlaces(p, h),
	}
}

// fail keeps the first error.
func (s *stream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	s.stop.Store(true)
}

// runThread runs one thread. It is bound to its CPU and touches its memory first, so that the kernel
// allocates the memory on that CPU's node if the node has free memory. The rest is moved there. The
// thread does not return to Go but ends, and its binding with it.
func (s *stream) runThread(i int) {
	runtime.LockOSThread()
	t := s.plan.Threads[i]
	if err := unix.SchedSetaffinityDynamic(0, probe.CPUSet([]int{t.CPU})); err != nil {
		s.fail(fmt.Errorf("run on CPU %d: %w", t.CPU, err))
	}
	var arrays [3][]float64
	var memories [3][]byte
	for k := range arrays {
		if s.stop.Load() {
			break
		}
		memory, err := unix.Mmap(-1, 0, int(s.plan.Array), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			s.fail(fmt.Errorf("get %d MiB of memory: %w", s.plan.Array>>20, err))
			break
		}
		defer func() { _ = unix.Munmap(memory) }()
		_ = unix.Madvise(memory, unix.MADV_HUGEPAGE) // huge pages may be disabled
		memories[k] = memory
		arrays[k] = unsafe.Slice((*float64)(unsafe.Pointer(unsafe.SliceData(memory))), len(memory)/8)
		s.fill(arrays[k], float64(k))
	}
	s.places.look(i, memories[:])
	s.touched.pass(s.places.decide)
	s.places.bring(i, memories[:], func() bool { return s.ctx.Err() != nil || s.stop.Load() || !time.Now().Before(s.until) })
	s.runRounds(i, arrays[0], arrays[1], arrays[2])
}

func (s *stream) fill(a []float64, value float64) {
	for piece := range slices.Chunk(a, streamPiece) {
		if s.ctx.Err() != nil {
			s.stop.Store(true)
		}
		if s.stop.Load() {
			return
		}
		for i := range piece {
			piece[i] = value
		}
	}
}

// runRounds runs rounds together with all other threads until one of them stops. All threads see that
// at the same point: behind a gate.
func (s *stream) runRounds(i int, a, b, c []float64) {
	for round := 0; ; round++ {
		s.ready.pass(func() {
			if s.ctx.Err() != nil || round >= streamRounds || round > 1 && !time.Now().Before(s.until) {
				s.stop.Store(true)
			}
			s.start = time.Now()
		})
		if s.stop.Load() {
			return
		}
		for at := 0; at < len(a); at += streamPiece {
			if s.ctx.Err() != nil {
				break
			}
			end := min(at+streamPiece, len(a))
			triad(a[at:end], b[at:end], c[at:end], 3)
		}
		s.took[i] = time.Since(s.start)
		s.over.pass(func() { s.count(round) })
	}
}

// count adds the times of a round to the result.
func (s *stream) count(round int) {
	if round == 0 || s.ctx.Err() != nil { // the first has page faults and low clocks
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rates.Rounds++
	longest, threads := map[int]time.Duration{}, map[int]int{}
	for i, t := range s.plan.Threads {
		longest[t.NUMA] = max(longest[t.NUMA], s.took[i])
		threads[t.NUMA]++
	}
	rate := func(threads int, in time.Duration) float64 {
		return 3 * float64(s.plan.Array) * float64(threads) / max(in.Seconds(), 1e-9) / 1e6
	}
	for node, in := range longest {
		s.rates.Nodes[node] = max(s.rates.Nodes[node], rate(threads[node], in))
	}
	s.rates.Total = max(s.rates.Total, rate(len(s.plan.Threads), slices.Max(s.took)))
}

// gate lets threads pass when all of them have arrived.
type gate struct {
	mu      sync.Mutex
	size    int
	here    int
	opening chan struct{}
}

func newGate(size int) *gate { return &gate{size: size, opening: make(chan struct{})} }

// pass waits for the other threads. The last one to arrive calls last before any of them continues.
func (g *gate) pass(last func()) {
	g.mu.Lock()
	g.here++
	if g.here == g.size {
		last()
		g.here = 0
		close(g.opening)
		g.opening = make(chan struct{})
		g.mu.Unlock()
		return
	}
	opening := g.opening
	g.mu.Unlock()
	<-opening
}

// readRecordedStream returns the recorded rates of a node that is a tree of files. Each line of its
// file /stream has a NUMA node, or "total", and MB/s; or "far", a NUMA node, another one and MiB;
// or "error" and its text.
func readRecordedStream(h *probe.Host) (StreamRates, error) {
	rates := StreamRates{Nodes: map[int]float64{}, Rounds: streamRounds - 1}
	data, err := h.ReadFile("/stream")
	if err != nil {
		return rates, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		who, what, _ := strings.Cut(lines.Text(), " ")
		if who == "error" {
			return rates, errors.New(what)
		}
		if who == "far" {
			f := StreamFar{}
			if _, err := fmt.Sscan(what, &f.Node, &f.On, &f.MiB); err != nil {
				return rates, err
			}
			rates.Far = append(rates.Far, f)
			continue
		}
		rate, err := strconv.ParseFloat(what, 64)
		if err != nil {
			return rates, err
		}
		if who == "total" {
			rates.Total = rate
		} else if node, err := strconv.Atoi(who); err == nil {
			rates.Nodes[node] = rate
		}
	}
	return rates, nil
}
