package active

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
)

// compCommOverlap measures how much computing and communication slow each other down. Every GPU
// computes (products of matrices of bf16, or fp16 where a GPU has no bf16, on its tensor cores)
// and takes part in an all-reduce of NCCL at once, as in training. The check reports the share of
// its speed that each side keeps. A GPU that keeps far less than the others fails; with -m
// PERCENT so does every loss above PERCENT, of either side.
//
// Options: -n ROWS (8192) is the size of the matrices, -e SIZE (256M) that of the all-reduce, -t
// SECONDS (45) the time limit. The product is nhc-gpu's own kernel: compare its numbers only with
// those of this check.
//
//	gpu* || TIMEOUT=90 check_comp_comm_overlap -m 40
type compCommOverlap struct {
	active
	ncclEnv
	Most      float64       `opt:"m" toml:"slowdown" in:"0:100 max"` // largest loss, per cent of the speed alone; 0: not judged
	Matrix    int           `opt:"n" toml:"matrix"`                  // rows of the matrices, a multiple of 128
	Size      checks.Size   `opt:"e" toml:"end"`                     // size of the all-reduce, bytes
	Limit     time.Duration `opt:"t" toml:"limit"`                   // time limit of the whole test; 0: 45 s
	Algorithm string        `long:"algo" toml:"algorithm"`           // algorithm of the all-reduce: ring, tree, nvls; "": NCCL's choice
}

const (
	overlapName   = "check_comp_comm_overlap"
	overlapMatrix = 8192
	overlapSize   = 256 << 20
	overlapSpan   = 150 * time.Millisecond // duration of each side alone
	overlapMost   = 2000                   // rounds in that time
)

func init() {
	checks.Register(checks.Info{
		Name:    overlapName,
		Usage:   "[-m PERCENT] [-n ROWS] [-e SIZE] [-t SECONDS] [--algo NAME] [--env NAME=VALUE]... [--max-age AGE]",
		Summary: "computing and communication slow each other down equally on all GPUs",
		Lane:    checks.CUDA,
		Active:  true,
		New:     func() checks.Check { return &compCommOverlap{Matrix: overlapMatrix, Size: overlapSize} },
		Do:      overlapDo,
		DoOf:    cudaDo,
	})
}

func overlapDo() map[string]string {
	do := activeDo("overlap", "A GPU that computes and communicates at once loses too much speed: see check_gpu_gemm and check_nccl for the side that is also slow alone, its power limit, and nvidia-smi -q -d PERFORMANCE.", nil)
	delete(do, "overlap.floor") // no platform has one
	nccl := ncclDo()
	for _, code := range []string{"nccl.library", "nccl.error", "nccl.hung", "nccl.wrong", "nccl.alike", "nccl.memory", "nccl.mixed", "nccl.settings", "nccl.environment"} {
		do[code] = nccl[code]
	}
	return do
}

func (c *compCommOverlap) Validate() error {
	switch {
	case c.Matrix < cuda.GEMMStep || c.Matrix%cuda.GEMMStep != 0 || c.Matrix > cuda.GEMMMost:
		return &checks.UsageError{Kind: checks.BadValue, Word: fmt.Sprint(c.Matrix), Want: fmt.Sprintf("a multiple of %d up to %d", cuda.GEMMStep, cuda.GEMMMost)}
	case c.Most < 0 || c.Most >= 100:
		return &checks.UsageError{Kind: checks.BadValue, Word: fmt.Sprint(c.Most), Want: "per cent below 100"}
	case c.Size < 1024:
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Size.String(), Want: "1K or more"}
	case c.Algorithm != "" && !slices.Contains(ncclAlgorithms, c.Algorithm):
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Algorithm, Want: fmt.Sprint("one of ", ncclAlgorithms)}
	}
	return c.validateEnv()
}

// Bound returns the time limit.
func (c *compCommOverlap) Bound() time.Duration {
	if c.Limit > 0 {
		return c.Limit
	}
	return timeOf(timeOfNCCL).Bound
}

func (c *compCommOverlap) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	c.readSite(env) // a refused run looks for a stored result with these settings
	r, findings := c.beginGPUs(ctx, env, activeTest{Check: overlapName, Code: "overlap", Bound: c.Bound(), Least: 2, Of: c})
	if r == nil {
		return findings
	}
	n := &nccl{ncclEnv: c.ncclEnv, Op: "all_reduce", Begin: c.Size, End: c.Size, Algorithm: c.Algorithm}
	t := &overlapRun{
		ncclRun:         &ncclRun{activeRun: r, nccl: n, op: cuda.NCCLOpOf(n.Op), test: n.test()},
		compCommOverlap: c, reduce: int64(c.Size),
	}
	reportSettings(t.ncclRun)
	t.reportModels()
	if reportEnv(t.ncclRun) {
		t.overlap()
	}
	return r.done()
}

// overlapRun is the running test.
type overlapRun struct {
	*ncclRun
	*compCommOverlap
	kind   *cuda.GEMMType // type of the matrices
	load   []*overlapLoad // by rank
	reduce int64          // size of the all-reduce, bytes
}

// overlapLoad is the product of one GPU, in a stream of its own beside NCCL's.
type overlapLoad struct {
	product     *cuda.GEMM
	stream      cuda.Stream
	start, stop cuda.Event
}

func (t *overlapRun) overlap() {
	cuda, ok := t.openCUDA()
	if !ok || !t.loadLibrary() {
		return
	}
	defer t.close()
	if !t.assignRanks() || !t.open(cuda) || !t.connect() || !t.allocateBoth() {
		return
	}
	block := t.op.Block(t.reduce, len(t.ranks))
	doing := fmt.Sprintf("a %s product of %d rows and all_reduce of %s", t.kind.Name, t.Matrix, sizeText(t.reduce))
	from := t.lib.Log(0).End
	if !t.prepare(t.op, block, doing) {
		return
	}
	compute, reduce := t.planRounds(doing, block)
	if compute == 0 {
		return
	}
	alone, ok := t.runBoth(doing+", one after the other", compute, reduce, block, false)
	if !ok {
		return
	}
	together, ok := t.runBoth(doing+", at once", compute, reduce, block, true)
	if !ok || !t.verify(t.op, block, doing) {
		return
	}
	reportWrong(t.ncclRun)
	t.reportShares(alone, together, t.algorithm(from))
}

// kindOf returns the type of matrices that every GPU can multiply.
func (t *overlapRun) kindOf() *cuda.GEMMType {
	for _, name := range []string{"bf16", "fp16"} {
		kind := cuda.GEMMTypeOf(name)
		if !slices.ContainsFunc(t.ranks, func(g *ncclGPU) bool { return !kind.On(g.Context.GPU) }) {
			return kind
		}
	}
	return cuda.GEMMTypeOf("fp32")
}

// allocateBoth allocates the memory of both sides.
func (t *overlapRun) allocateBoth() bool {
	t.kind = t.kindOf()
	if free, need := t.findFreeMemory(), t.kind.Memory(t.Matrix)+2*uint64(t.reduce); !t.broken && need > free {
		t.failures = true
		t.report(checks.Device{}, checks.Finding{Code: "nccl.memory", Severity: checks.Unknown, Want: sizeText(int64(need)), Got: sizeText(int64(free))}, "too little free memory on a GPU")
		return false
	}
	for _, g := range t.ranks {
		l := &overlapLoad{}
		if err := l.allocate(g, t.kind, t.Matrix); err != nil {
			t.reportFailure(g.gpu, "cannot set up a product of matrices", err)
			return false
		}
		t.load = append(t.load, l)
	}
	return t.allocate(t.reduce)
}

func (l *overlapLoad) allocate(g *ncclGPU, kind *cuda.GEMMType, rows int) (err error) {
	if l.stream, err = g.Context.NewStream(); err != nil {
		return err
	}
	for _, e := range []*cuda.Event{&l.start, &l.stop} {
		if *e, err = g.Context.NewEvent(); err != nil {
			return err
		}
	}
	l.product, err = g.Context.NewGEMM(kind, rows, nil, l.stream)
	return err
}

// planRounds returns how often to repeat each side so that both take the same time, 0 if a
// measurement failed.
func (t *overlapRun) planRounds(doing string, block int64) (compute, reduce int) {
	if _, ok := t.runBoth(doing+" (warm-up)", 1, 1, block, false); !ok {
		return 0, 0
	}
	one, ok := t.runBoth(doing+", one of each", 1, 1, block, false)
	if !ok {
		return 0, 0
	}
	often := func(took []time.Duration) int {
		return min(max(int(overlapSpan/max(slices.Max(took), time.Microsecond)), 1), overlapMost)
	}
	return often(one.compute), often(one.reduce)
}

// overlapTimes has the durations of both sides, by GPU.
type overlapTimes struct{ compute, reduce []time.Duration }

// runBoth runs both sides, at once or one after the other.
func (t *overlapRun) runBoth(doing string, compute, reduce int, block int64, atOnce bool) (times overlapTimes, ok bool) {
	if !t.begin(doing, reduce, func() error { return t.enqueue(t.op, block) }) || !atOnce && !t.wait(doing) {
		return times, false
	}
	if !t.compute(doing, compute) || !t.awaitCompute(doing, atOnce) {
		return times, false
	}
	if times.reduce, ok = t.finish(doing); !ok {
		return times, false
	}
	for i, g := range t.ranks {
		took, err := g.Context.Elapsed(t.load[i].start, t.load[i].stop)
		if err == nil && took <= 0 {
			err = errNoTime
		}
		if err != nil {
			t.reportFailure(g.gpu, doing, err)
			return times, false
		}
		times.compute = append(times.compute, took)
	}
	return times, true
}

// compute queues products on all GPUs in turn, so that all start at about the same time.
func (t *overlapRun) compute(doing string, n int) bool {
	t.at("%s", doing)
	if !t.eachLoad(doing, func(g *ncclGPU, l *overlapLoad) error { return g.Context.Record(l.start, l.stream) }) {
		return false
	}
	for range n {
		if !t.eachLoad(doing, func(_ *ncclGPU, l *overlapLoad) error { return l.product.Multiply(l.stream) }) {
			return false
		}
	}
	return t.eachLoad(doing, func(g *ncclGPU, l *overlapLoad) error { return g.Context.Record(l.stop, l.stream) })
}

// eachLoad calls do for every GPU.
func (t *overlapRun) eachLoad(doing string, do func(*ncclGPU, *overlapLoad) error) bool {
	for i, g := range t.ranks {
		if err := do(g, t.load[i]); err != nil {
			t.reportFailure(g.gpu, doing, err)
			return false
		}
	}
	return true
}

// awaitCompute waits for the products. If nothing else runs, a GPU that does not finish although
// others have is to blame.
func (t *overlapRun) awaitCompute(doing string, atOnce bool) bool {
	if !atOnce {
		return t.waitEach(doing, func(i int) cuda.Stream { return t.load[i].stream })
	}
	limited, stop := context.WithTimeoutCause(t.ctx, t.patience(), errNCCLHung)
	defer stop()
	return t.sync(limited, doing, func(i int) cuda.Stream { return t.load[i].stream })
}

// reportShares records the share of its speed that each side keeps, in per cent: for the product
// by GPU, for the all-reduce one number, since all GPUs end it together.
func (t *overlapRun) reportShares(alone, together overlapTimes, algorithm string) {
	least := 0.0
	if t.Most > 0 {
		least = 100 - t.Most
	}
	share := func(before, after time.Duration) float64 {
		return 100 * before.Seconds() / max(after, time.Nanosecond).Seconds()
	}
	m := measure{Algorithm: t.load[0].product.Algorithm() + " beside " + algorithm, Size: t.reduce, Ranks: len(t.ranks), Unit: "%", Least: least, Peers: t.classifyLinks()}
	for i, g := range t.ranks {
		m.Test, m.Device, m.Model, m.Value = "overlap_compute", checks.GPUDevice(g.gpu), g.gpu.Name.Value, share(alone.compute[i], together.compute[i])
		m.What = "speed of matrix products during all_reduce"
		t.record(m)
	}
	m.Test, m.Device, m.Model, m.Value = "overlap_all_reduce", checks.Device{}, t.listModels(), share(slices.Max(alone.reduce), slices.Max(together.reduce))
	m.What = "speed of all_reduce during matrix products"
	t.record(m)
}
