package active

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gemmTest multiplies matrices on the GPUs of a team, one type after the other.
type gemmTest struct {
	r        *activeRun
	test     string // name of the test in measures: "gemm"
	team     *gpuTeam
	library  *cuda.CUBLASLt // nil: built-in kernels
	long     bool           // a long test: also judge whether the rate falls
	own      bool           // never use cuBLASLt
	explicit bool           // the line names the types: report a type that a GPU lacks
	loads    map[int]*gpuLoad
	size     int     // n; 0: the type's own
	least    float64 // TFLOP/s; 0: none
	results  []*gemmResult
	truths   []*gemmTruth
	short    []*gemmShort
}

// gemmShort has the types that do not fit a GPU's free memory, and the most that one of them
// needs, bytes.
type gemmShort struct {
	gpu        *nvml.GPU
	types      []string
	need, free uint64
}

// gemmResult is the result of one GPU and type.
type gemmResult struct {
	gpu       *nvml.GPU
	kind      *cuda.GEMMType
	n         int
	algorithm string
	sums      []cuda.GEMMSum // checksums of the verified products
	rates     []float64      // TFLOP/s of each piece of work
	busy      time.Duration  // total duration of all pieces
	flops     float64        // their floating-point operations
	products  int            // number of products of the next piece
	again     float64        // TFLOP/s of a second, longer measurement; 0: none
}

func (res *gemmResult) rate() float64 { return teraflops(res.flops, res.busy) }

// gemmTruth is the checksum of a type and size that the CPU computes.
type gemmTruth struct {
	kind *cuda.GEMMType
	n    int
	sum  chan cuda.GEMMSum
	is   cuda.GEMMSum
}

// findLibrary loads cuBLASLt, unless the line excludes it. A missing library is not a fault.
func (m *gemmTest) findLibrary(driver *cuda.Driver) {
	if m.own {
		return
	}
	var err error
	if m.library, err = cuda.OpenCUBLASLt(m.r.env.Host, driver); err != nil {
		m.useOwnKernels(err)
	}
}

func (m *gemmTest) useOwnKernels(err error) {
	m.library = nil
	m.note("library", checks.OK, "%s: %v", ownKernels, err)
}

// ownKernels is the note about a test without cuBLASLt.
const ownKernels = "built-in kernels instead of cuBLASLt show whether products are correct, not how fast the GPU is"

// note reports something about the node, once.
func (m *gemmTest) note(code string, severity checks.Severity, format string, args ...any) {
	note := checks.Finding{Code: m.r.Code + "." + code, Severity: severity}.Describe(m.r.Check, format, args...)
	if !slices.ContainsFunc(m.r.findings, func(f checks.Finding) bool { return f.Message == note.Message }) {
		m.r.findings = append(m.r.findings, note)
	}
}

// run multiplies matrices of one type for a time on all GPUs that support it, in several parts;
// between these it reports progress. If a GPU is so far below its peers that it would fail, run
// measures all once more, for longer.
func (m *gemmTest) run(t *cuda.GEMMType, long time.Duration, parts int) {
	first := m.measure(t, long, parts)
	m.results = append(m.results, first...)
	if m.long || !m.anyFar(first) {
		return
	}
	more := gemmAgain(toleranceOf(m.test), long)
	if end, ok := m.r.ctx.Deadline(); ok && time.Until(end) < more+gemmSetUp {
		return // then a low rate only warns
	}
	for _, second := range m.measure(t, more, 1) {
		for _, res := range first {
			if res.gpu == second.gpu && res.algorithm == second.algorithm && second.busy > 0 {
				res.again, res.sums = second.rate(), append(res.sums, second.sums...)
			}
		}
	}
}

// gemmAgain returns the duration of a second measurement: several times that of the first, but at
// most twice that of a long one.
func gemmAgain(t tolerance, long time.Duration) time.Duration {
	return max(min(time.Duration(t.Again)*long, gemmAgainMost), 2*long)
}

const gemmAgainMost = 5 * time.Second

// anyFar reports whether a GPU is so far below the others of its model that it would fail.
func (m *gemmTest) anyFar(list []*gemmResult) bool {
	rates := map[string][]float64{}
	key := func(res *gemmResult) string { return res.gpu.Name.Value + "|" + res.algorithm }
	for _, res := range list {
		rates[key(res)] = append(rates[key(res)], res.rate())
	}
	return slices.ContainsFunc(list, func(res *gemmResult) bool {
		of := rates[key(res)]
		return len(of) >= enoughPeers && res.rate() < median(of)*(1-toleranceOf(m.test).Peers)
	})
}

// measure does one measurement of run.
func (m *gemmTest) measure(t *cuda.GEMMType, long time.Duration, parts int) (list []*gemmResult) {
	if m.r.ctx.Err() != nil || len(m.team.workers) == 0 {
		return nil
	}
	m.r.at("%s on %s", t.Name, checks.Plural(len(m.team.workers), "GPU"))
	products := m.setUp(t)
	if len(products) == 0 {
		return nil
	}
	m.computeTruth(t, m.n(t))
	results := map[*gpuWorker]*gemmResult{}
	for _, w := range m.team.workers {
		if g := products[w]; g != nil {
			results[w] = &gemmResult{gpu: w.gpu, kind: t, n: g.N, algorithm: g.Algorithm(), products: 1}
			list = append(list, results[w])
		}
	}
	for part := 1; part <= parts && m.r.ctx.Err() == nil; part++ {
		until := long * time.Duration(part) / time.Duration(parts)
		if parts > 1 {
			m.r.at("%s on %s, %s of %s", t.Name, checks.Plural(len(m.team.workers), "GPU"), until.Round(time.Second), long)
		}
		m.team.each("multiply matrices of "+t.Name, func(w *gpuWorker) error {
			if w.rested = products[w] == nil; w.rested {
				return nil
			}
			return m.multiply(w, products[w], results[w], until)
		})
	}
	m.team.each("free matrices of "+t.Name, func(w *gpuWorker) error {
		if products[w] == nil {
			return nil
		}
		return products[w].Free()
	})
	return list
}

func (m *gemmTest) n(t *cuda.GEMMType) int {
	if m.size > 0 {
		return m.size
	}
	return t.N
}

// setUp prepares a product on every GPU that supports a type. All GPUs of a model compute it in
// the same way.
func (m *gemmTest) setUp(t *cuda.GEMMType) map[*gpuWorker]*cuda.GEMM {
	list := make([]*cuda.GEMM, len(m.team.workers))
	workers := slices.Clone(m.team.workers)
	refused := make([]error, len(workers))
	m.team.each("prepare matrices of "+t.Name, func(w *gpuWorker) (err error) {
		i := slices.Index(workers, w)
		list[i], refused[i], err = m.prepare(w, t)
		return err
	})
	products, first := map[*gpuWorker]*cuda.GEMM{}, map[string]*cuda.GEMM{}
	for i, w := range workers {
		if refused[i] != nil {
			m.refuse(w, t, refused[i])
		}
		if list[i] == nil {
			continue
		}
		products[w] = list[i]
		key := fmt.Sprint(w.gpu.Name.Value, w.on.SMs, list[i].Algorithm())
		if first[key] == nil {
			first[key] = list[i]
		}
		list[i].Choose(first[key].Choice())
	}
	return products
}

// errNoType, errNoOwn and errMemory are the reasons why a GPU cannot be tested with a type.
var (
	errNoType = errors.New("type not supported")
	errNoOwn  = errors.New("built-in kernels have no instruction for the type")
	errMemory = errors.New("too little free memory")
)

// memoryShort is errMemory with the sizes.
type memoryShort struct{ need, free uint64 }

func (e *memoryShort) Error() string        { return errMemory.Error() }
func (e *memoryShort) Is(target error) bool { return target == errMemory }

// prepare sets up one product. refused is the reason why it cannot, which is not a fault of the
// GPU, or why built-in kernels replace cuBLASLt.
func (m *gemmTest) prepare(w *gpuWorker, t *cuda.GEMMType) (g *cuda.GEMM, refused, err error) {
	if !t.On(w.on) {
		return nil, errNoType, nil
	}
	library := m.library
	if library != nil {
		if refused = library.TooOldFor(w.on); refused != nil {
			library = nil
		}
	}
	if library == nil && !t.OwnOn(w.on) {
		return nil, cmp.Or(refused, errNoOwn), nil
	}
	free, _, err := w.c.MemInfo()
	if err != nil {
		return nil, nil, err
	}
	need := t.Memory(m.n(t))
	if free < need {
		return nil, &memoryShort{need, free}, nil
	}
	g, err = w.c.NewGEMM(t, m.n(t), library, w.stream)
	if e, ok := errors.AsType[*cuda.CUBLASLtError](err); ok {
		if refused = e; !t.OwnOn(w.on) {
			return nil, refused, nil
		}
		g, err = w.c.NewGEMM(t, m.n(t), nil, w.stream)
	}
	if e, ok := errors.AsType[*cuda.Error](err); ok {
		switch {
		case e.OldDriver():
			return nil, e, nil
		case e.Code == cuda.CUDAOutOfMemory: // fragmented, or cuBLASLt took the rest
			return nil, &memoryShort{need, free}, nil
		}
	}
	return g, refused, err
}

// refuse reports why a type was not tested on a GPU, or not with cuBLASLt.
func (m *gemmTest) refuse(w *gpuWorker, t *cuda.GEMMType, why error) {
	severity := checks.OK
	if m.explicit {
		severity = checks.Skip
	}
	if short, ok := errors.AsType[*memoryShort](why); ok {
		m.noteShort(w, t, short)
		return
	}
	if !t.OwnOn(w.on) && !errors.Is(why, errNoType) {
		cause := ""
		if e, ok := errors.AsType[*cuda.CUBLASLtError](why); ok {
			cause = fmt.Sprintf(": %s: %s (%d)", onAnyGPU(e.Call), e.Name, e.Code)
		} else if !errors.Is(why, errNoOwn) {
			cause = ": " + why.Error()
		}
		m.note("types", severity, "no %s on %s without cuBLASLt: built-in kernels have no %s instruction for compute capability %d.%d%s",
			t.Name, w.gpu.Name.Value, t.Name, w.on.Major, w.on.Minor, cause)
		return
	}
	if e, ok := errors.AsType[*cuda.CUBLASLtError](why); ok {
		m.note("library", checks.OK, "built-in kernels for %s instead of cuBLASLt: %s: %s (%d)", t.Name, onAnyGPU(e.Call), e.Name, e.Code)
		return
	}
	if e, ok := errors.AsType[*cuda.CUBLASLtOld](why); ok {
		m.note("library", checks.OK, "%s: %v", ownKernels, e)
		return
	}
	if errors.Is(why, errNoType) {
		m.note("types", severity, "no %s on %s: want compute capability %s, got %d.%d", t.Name, w.gpu.Name.Value, t.Capability(), w.on.Major, w.on.Minor)
		return
	}
	if e, ok := errors.AsType[*cuda.Error](why); ok {
		m.note("types", checks.Skip, "no %s: the driver is too old for the built-in kernel, and cuBLASLt is not used: %s: %s (CUDA error %d)", t.Name, onAnyGPU(e.Call), e.Name, e.Code)
	}
}

// noteShort notes a type that does not fit the free memory of a GPU.
func (m *gemmTest) noteShort(w *gpuWorker, t *cuda.GEMMType, short *memoryShort) {
	i := slices.IndexFunc(m.short, func(s *gemmShort) bool { return s.gpu == w.gpu })
	if i < 0 {
		i = len(m.short)
		m.short = append(m.short, &gemmShort{gpu: w.gpu, free: short.free})
	}
	s := m.short[i]
	s.types = append(s.types, t.Name)
	s.need, s.free = max(s.need, short.need), min(s.free, short.free)
}

// onAnyGPU returns a call without the number of its GPU, so that the same message of all GPUs
// appears once.
func onAnyGPU(call string) string {
	name, _, _ := strings.Cut(call, "(")
	return name
}

// Duration of a piece of work between two looks at the context, and the least number of pieces: a
// GPU has to agree with itself.
const (
	gemmPiece = 50 * time.Millisecond
	gemmLeast = 3
	gemmMost  = 256 // products in a piece
)

// multiply works until the GPU has been busy for a time. The first piece is one product, and is
// not timed: it loads kernels and raises the clocks.
func (m *gemmTest) multiply(w *gpuWorker, g *cuda.GEMM, res *gemmResult, until time.Duration) error {
	for len(res.rates) < gemmLeast || res.busy < until {
		took, sum, err := m.piece(w, g, res.products)
		if err != nil {
			return err
		}
		res.sums = append(res.sums, sum)
		if len(res.sums) > 1 {
			flops := g.Type.Operations(g.N) * float64(res.products)
			res.busy += took
			res.flops += flops
			res.rates = append(res.rates, teraflops(flops, took))
		}
		one := max(took, time.Microsecond) / time.Duration(res.products)
		res.products = min(max(int(gemmPiece/max(one, 1)), 1), gemmMost)
	}
	return nil
}

// piece does some products, and verifies the last.
func (m *gemmTest) piece(w *gpuWorker, g *cuda.GEMM, products int) (took time.Duration, sum cuda.GEMMSum, err error) {
	if err = g.Spoil(w.stream); err != nil {
		return 0, sum, err
	}
	if took, err = w.timed(w.ctx, products, func() error { return g.Multiply(w.stream) }); err != nil {
		return 0, sum, err
	}
	sum, err = g.Sum(w.ctx, w.stream)
	return took, sum, err
}

// teraflops returns 10^12 operations a second.
func teraflops(operations float64, took time.Duration) float64 {
	return operations / max(took.Seconds(), 1e-9) / 1e12
}
