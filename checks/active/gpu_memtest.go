package active

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuMemtest writes patterns to nearly all of each GPU's free memory and verifies them:
// one value everywhere and its inverse (moving inversions), each word's own number,
// and noise. It fails where a word is not what was written, and says where: the offset
// counts from the beginning of what was tested, which the driver may place elsewhere
// the next time. All GPUs are tested at once. With -n it goes through all patterns
// several times.
//
// ECC corrects most of what is wrong in a memory, and tells: see check_gpu_ecc and
// check_gpu_remap. What is found here has got past it, or is wrong on the way.
//
//	gpu* || check_gpu_memtest
type gpuMemtest struct {
	active
	Rounds int           `opt:"n" toml:"rounds"` // how often all patterns are gone through, 1
	Time   time.Duration `opt:"t" toml:"time"`   // the most that it takes, 40s
}

const gpuMemtestName = "check_gpu_memtest"

func init() {
	checks.Register(checks.Info{
		Name: gpuMemtestName, Usage: "[-n ROUNDS] [-t TIME] [--max-age AGE]", Summary: "the memory of GPUs keeps what is written to it",
		Lane: checks.CUDA, Active: true, DoOf: cudaDo,
		New: func() checks.Check { return &gpuMemtest{Rounds: 1, Time: timeOf(timeOfOthers).Bound} },
		Do: func() map[string]string {
			return map[string]string{
				"gpu.memtest.rates":  "Nothing: it is what was tested.",
				"gpu.memtest.bit":    "The GPU's memory, or the way to it, changes data: drain the node, see check_gpu_ecc and check_gpu_remap, reset the GPU and test again with -n 10. Replace the GPU if it comes again.",
				"gpu.memtest.memory": "Less of the GPU's memory could be had than is free, or less than half of it is free though no process has it: see nvidia-smi for who came onto it, and dmesg for NVRM; the part that could be had was tested.",
			}
		},
	})
}

// Bound is the most that the test takes.
func (c *gpuMemtest) Bound() time.Duration { return c.Time }

// Validate refuses no round, and no time at all.
func (c *gpuMemtest) Validate() error {
	if c.Rounds < 1 {
		return &checks.UsageError{Kind: checks.BadValue, Word: fmt.Sprint(c.Rounds), Want: "one round (-n) or more"}
	}
	return usableTime(c.Time)
}

// Bind is BindTags, and what the test could not do.
func (c *gpuMemtest) Bind(args []string) error { return checks.BindUsable(c, args) }

// memtestPatterns are gone through in this order.
var memtestPatterns = []pattern{
	{"0x00000000", patternSame, 0},
	{"0x55555555", patternSame, 0x55555555},
	{"0x33333333", patternSame, 0x33333333},
	{"0x0f0f0f0f", patternSame, 0x0f0f0f0f},
	{"the number of each word", patternAddress, 0},
	{"noise", patternRandom, 0x1f2e3d4c},
	{"other noise", patternRandom, 0x9b8a7960},
}

func (c *gpuMemtest) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	r, findings := c.beginGPUs(ctx, env, activeTest{Check: gpuMemtestName, Code: "gpu.memtest", Bound: c.Bound(), Of: c})
	if r == nil {
		return findings
	}
	if cuda, ok := r.cuda(); ok {
		c.testAll(r, cuda)
	}
	return r.done()
}

// memtest is the test of one GPU.
type memtest struct {
	gpu    *nvml.GPU
	rounds int
	l      *loadedGPU
	p      *patterns
	chunks []memoryChunk

	asked, taken uint64 // bytes
	wrong        wrongWords
	with         string // the pattern that was wrong
	err          error
}

// memoryChunk is one allocation, and where it stands in the whole.
type memoryChunk struct {
	at           cuda.Memory
	offset, size uint64
}

// testAll tests all GPUs at once, each from a goroutine of its own.
func (c *gpuMemtest) testAll(r *activeRun, cuda *cuda.Driver) {
	r.at("memory of %s", checks.Plural(len(r.gpus), "GPU"))
	var tests []*memtest
	var all sync.WaitGroup
	for _, g := range r.gpus {
		d, ok := r.cudaGPU(cuda, g)
		if !ok {
			continue
		}
		t := &memtest{gpu: g, rounds: max(c.Rounds, 1)}
		tests = append(tests, t)
		all.Go(func() { t.err = t.run(r, d) })
	}
	all.Wait()
	for _, t := range tests {
		t.tell(r)
		leaves(r, t.gpu)
	}
}

// tell makes findings of what a test has come to.
func (t *memtest) tell(r *activeRun) {
	if t.wrong.count > 0 {
		r.wrongData = "gpu.memtest.bit"
		r.report(checks.GPUDevice(t.gpu), checks.Finding{Code: r.wrongData, Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: "none", Got: t.wrong.String()},
			"wrong words in its memory, of pattern %s", t.with)
		return
	}
	if t.err != nil {
		r.failed(t.gpu, "memory test", t.err)
		return
	}
	if least := max(t.asked/10*9, t.l.c.GPU.Memory/2); t.taken < least { // with little of it free, little is known of it
		r.failures = true
		r.report(checks.GPUDevice(t.gpu), checks.Finding{Code: "gpu.memtest.memory", Severity: checks.Unknown, Want: "at least " + checks.MiB(least), Got: checks.MiB(t.taken)}, "memory that could be had for the test")
		return
	}
	finished(r, t.gpu)
	r.findings = append(r.findings, checks.Finding{Code: r.Code + ".rates", Severity: checks.OK, Device: checks.GPUDevice(t.gpu), Got: checks.MiB(t.taken)}.
		Phrase(r.Check, "%s: %s of %s tested", checks.GPUDevice(t.gpu), checks.MiB(t.taken), checks.MiB(t.l.c.GPU.Memory)))
}

// run tests one GPU; its context is for this goroutine.
func (t *memtest) run(r *activeRun, d *cuda.GPU) (err error) {
	if t.l, err = openGPU(t.gpu, d); err != nil {
		return err
	}
	t.l.patience = patience(r, timeOfOthers)
	defer func() {
		if !errors.Is(err, errStuck) && !fatal(err) && t.wrong.count == 0 { // see leaves
			_ = t.l.c.Close() // what went wrong before comes again here
		}
	}()
	if t.p, err = newPatterns(t.l); err != nil {
		return err
	}
	if err := t.take(r.ctx); err != nil || t.taken == 0 {
		return err
	}
	n := t.rounds * len(memtestPatterns)
	for i := range n {
		what := memtestPatterns[i%len(memtestPatterns)]
		what.value += uint32(i / len(memtestPatterns)) // other noise in each round
		r.during("memory of GPUs: pattern %d of %d", i+1, n)
		if err := t.sweep(r.ctx, what); err != nil || t.wrong.count > 0 {
			t.with = what.name
			return err
		}
	}
	return nil
}

// What is taken of a GPU's memory: all that is free but a reserve for the driver, in
// chunks, which get smaller when one does not fit.
const (
	memtestReserve = 256 << 20
	memtestChunk   = 4 << 30
	memtestLeast   = 1 << 20
)

func (t *memtest) take(ctx context.Context) error {
	free, _, err := t.l.c.MemInfo()
	if err != nil {
		return err
	}
	t.asked = (free - min(memtestReserve, free/16)) &^ 511
	chunk := uint64(memtestChunk)
	for t.asked-t.taken >= min(memtestLeast, t.asked) && t.taken < t.asked && ctx.Err() == nil {
		n := min(chunk, t.asked-t.taken)
		at, err := t.l.c.Alloc(n)
		if e, ok := errors.AsType[*cuda.Error](err); ok && e.Code == cuda.CUDAOutOfMemory {
			if chunk = n / 2 &^ 511; chunk < memtestLeast {
				return nil
			}
			continue
		}
		if err != nil {
			return err
		}
		t.chunks = append(t.chunks, memoryChunk{at, t.taken, n})
		t.taken += n
	}
	return ctx.Err()
}

// sweep goes through all memory with one pattern: it is written everywhere before it is
// read anywhere, so that no cache can answer for the memory. But for noise, it is then
// turned over bit by bit, and read once more.
func (t *memtest) sweep(ctx context.Context, what pattern) error {
	if err := t.each(ctx, t.p.write, what); err != nil {
		return err
	}
	if what.kind == patternRandom {
		return t.each(ctx, t.p.verify, what)
	}
	if err := t.each(ctx, t.p.invert, what); err != nil || t.wrong.count > 0 {
		return err
	}
	what.value = ^what.value
	return t.each(ctx, t.p.verify, what)
}

// each does something with every chunk, and looks whether words were wrong.
func (t *memtest) each(ctx context.Context, do func(at cuda.Memory, size, offset uint64, what pattern) error, what pattern) (err error) {
	for _, c := range t.chunks {
		if err := cmp.Or(do(c.at, c.size, c.offset, what), ctx.Err()); err != nil {
			return err
		}
	}
	t.wrong, err = t.p.wrong(ctx)
	return err
}
