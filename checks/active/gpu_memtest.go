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

// gpuMemtest writes patterns to nearly all free memory of each GPU and verifies them: one value
// everywhere and its inverse (moving inversions), each word's own number, and random data. It
// fails if a word differs from the word written, and reports the offset: from the beginning of
// the tested memory, which the driver can place elsewhere the next time. All GPUs are tested at
// once. -n ROUNDS (1) repeats all patterns; -t SECONDS (40) is the time limit.
//
// ECC corrects and reports most memory errors: see check_gpu_ecc and check_gpu_remap. An error
// that this check finds has passed ECC, or is on the way to the memory.
//
//	gpu* || check_gpu_memtest
type gpuMemtest struct {
	active
	Rounds int           `opt:"n" toml:"rounds"` // repetitions of all patterns
	Time   time.Duration `opt:"t" toml:"time"`   // time limit
}

const gpuMemtestName = "check_gpu_memtest"

func init() {
	checks.Register(checks.Info{
		Name: gpuMemtestName, Usage: "[-n ROUNDS] [-t TIME] [--max-age AGE]", Summary: "GPU memory stores data without errors",
		Lane: checks.CUDA, Active: true, DoOf: cudaDo,
		New: func() checks.Check { return &gpuMemtest{Rounds: 1, Time: timeOf(timeOfOthers).Bound} },
		Do: func() map[string]string {
			return map[string]string{
				"gpu.memtest.rates":  "Nothing to repair: it lists the tested memory.",
				"gpu.memtest.bit":    "The GPU's memory, or the path to it, corrupts data: keep the node out of service, see check_gpu_ecc and check_gpu_remap, reset the GPU and test again with -n 10. If the fault returns, replace the GPU.",
				"gpu.memtest.memory": "The test could allocate less of the GPU's memory than is free, or less than half is free although no process uses it: see nvidia-smi for new processes, and dmesg for NVRM. The allocated part was tested.",
			}
		},
	})
}

func (c *gpuMemtest) Bound() time.Duration { return c.Time }

func (c *gpuMemtest) Validate() error {
	if c.Rounds < 1 {
		return &checks.UsageError{Kind: checks.BadValue, Word: fmt.Sprint(c.Rounds), Want: "one round (-n) or more"}
	}
	return validateTime(c.Time)
}

// memtestPatterns are tested in this order.
var memtestPatterns = []pattern{
	{"0x00000000", patternSame, 0},
	{"0x55555555", patternSame, 0x55555555},
	{"0x33333333", patternSame, 0x33333333},
	{"0x0f0f0f0f", patternSame, 0x0f0f0f0f},
	{"word numbers", patternAddress, 0},
	{"random data", patternRandom, 0x1f2e3d4c},
	{"other random data", patternRandom, 0x9b8a7960},
}

func (c *gpuMemtest) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	r, findings := c.beginGPUs(ctx, env, activeTest{Check: gpuMemtestName, Code: "gpu.memtest", Bound: c.Bound(), Of: c})
	if r == nil {
		return findings
	}
	if cuda, ok := r.openCUDA(); ok {
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
	with         string // the pattern with the error
	err          error
}

// memoryChunk is one allocation, and its offset in the tested memory.
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
		d, ok := r.findUsableGPU(cuda, g)
		if !ok {
			continue
		}
		t := &memtest{gpu: g, rounds: max(c.Rounds, 1)}
		tests = append(tests, t)
		all.Go(func() { t.err = t.run(r, d) })
	}
	all.Wait()
	for _, t := range tests {
		t.report(r)
		keepsOpen(r, t.gpu)
	}
}

// report reports the result of a test.
func (t *memtest) report(r *activeRun) {
	if t.wrong.count > 0 {
		r.wrongData = "gpu.memtest.bit"
		r.report(checks.GPUDevice(t.gpu), checks.Finding{Code: r.wrongData, Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: "none", Got: t.wrong.String()},
			"wrong words in memory, pattern %s", t.with)
		return
	}
	if t.err != nil {
		r.reportFailure(t.gpu, "memory test", t.err)
		return
	}
	if least := max(t.asked/10*9, t.l.c.GPU.Memory/2); t.taken < least { // a test of little memory proves little
		r.failures = true
		r.report(checks.GPUDevice(t.gpu), checks.Finding{Code: "gpu.memtest.memory", Severity: checks.Unknown, Want: "at least " + checks.MiB(least), Got: checks.MiB(t.taken)}, "memory allocated for the test")
		return
	}
	markDone(r, t.gpu)
	r.findings = append(r.findings, checks.Finding{Code: r.Code + ".rates", Severity: checks.OK, Device: checks.GPUDevice(t.gpu), Got: checks.MiB(t.taken)}.
		Phrase(r.Check, "%s: %s of %s tested", checks.GPUDevice(t.gpu), checks.MiB(t.taken), checks.MiB(t.l.c.GPU.Memory)))
}

// run tests one GPU; its context belongs to this goroutine.
func (t *memtest) run(r *activeRun, d *cuda.GPU) (err error) {
	if t.l, err = openGPU(t.gpu, d); err != nil {
		return err
	}
	t.l.patience = patience(r)
	defer func() {
		if !errors.Is(err, errStuck) && !fatal(err) && t.wrong.count == 0 { // see keepsOpen
			_ = t.l.c.Close() // an earlier error would be returned again
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
		what.value += uint32(i / len(memtestPatterns)) // different random data in each round
		r.setOperation("memory of GPUs: pattern %d of %d", i+1, n)
		if err := t.sweep(r.ctx, what); err != nil || t.wrong.count > 0 {
			t.with = what.name
			return err
		}
	}
	return nil
}

// The memory that the test allocates: all free memory except a reserve for the driver, in chunks
// that get smaller if one does not fit.
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

// sweep tests all memory with one pattern: it writes the pattern everywhere before it reads
// anywhere, so that no cache can answer for the memory. Except for random data it then inverts
// every bit and reads again.
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

// each calls do for every chunk, and reads the number of wrong words.
func (t *memtest) each(ctx context.Context, do func(at cuda.Memory, size, offset uint64, what pattern) error, what pattern) (err error) {
	for _, c := range t.chunks {
		if err := cmp.Or(do(c.at, c.size, c.offset, what), ctx.Err()); err != nil {
			return err
		}
	}
	t.wrong, err = t.p.wrong(ctx)
	return err
}
