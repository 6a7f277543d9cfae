package active

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
)

// gpuGemm multiplies matrices on all GPUs at once, with the numbers that jobs have: FP64,
// FP32, TF32, BF16, FP16, FP8. It tells the rate of each GPU, and whether its results are
// right: the matrices are of whole numbers, so that every sum is exact and there is one
// right product, which the CPU knows, too. A GPU that computes wrongly (silent data
// corruption) fails. cuBLASLt multiplies where it can be loaded, else kernels of our own,
// which are slower: rates of the two are never compared. Clocks, temperature, power and
// what holds the clocks down are looked at meanwhile; a GPU that its hardware slows down
// is warned of.
//
// TFLOPS is the least rate of each GPU, for a line with one type; without it the floors of
// the platform count, and the other GPUs. -t is the time for each type (0.5 seconds), -n
// the size of the matrices (8192, and 4096 for fp64 and fp32), a multiple of 128; --types
// are some of fp64,fp32,tf32,bf16,fp16,fp8. --own never uses cuBLASLt. With --max-age a
// result that is younger counts in place of a run.
//
//	gpu* || check_gpu_gemm --types bf16,fp8 --max-age 24h
type gpuGemm struct {
	active
	Least float64       `arg:"1" toml:"tflops"`         // least rate of each GPU, TFLOP/s; 0: none
	Time  time.Duration `opt:"t" toml:"time"`           // for each type
	N     int           `opt:"n" toml:"n"`              // n of the n * n matrices; 0: as the type has it
	Types string        `long:"types" toml:"types"`     // commas between them; "": all that the GPU knows
	Own   bool          `long:"own" toml:"own_kernels"` // without cuBLASLt
}

const gpuGemmName = "check_gpu_gemm"

func init() {
	checks.Register(checks.Info{
		Name:    gpuGemmName,
		Usage:   "[-t SECONDS] [-n SIZE] [--types LIST] [--own] [--max-age AGE] [TFLOPS]",
		Summary: "GPUs multiply matrices as fast as they should, and rightly",
		Lane:    checks.CUDA,
		Active:  true,
		New:     func() checks.Check { return &gpuGemm{Time: 500 * time.Millisecond} },
		Do: func() map[string]string {
			return activeDo("gpu.gemm", "The message has clocks, temperature and power during the test: see nvidia-smi -q -d CLOCK,POWER,PERFORMANCE and the cooling.", gemmDo("gpu.gemm"))
		},
	})
}

// gemmDo is the advice on what is found while matrices are multiplied.
func gemmDo(code string) map[string]string {
	return map[string]string{
		code + ".wrong":     "The GPU computes wrongly, and no counter has said so. Take the node out, run the test again and dcgmi diag -r 4: if it is found again have the GPU replaced. Results of jobs that ran on it cannot be trusted.",
		code + ".alike":     "No GPU of the model has the product that the CPU has. It is more likely cuBLASLt, the driver or this program than all GPUs: run it with --own, compare with another node, and report what you find.",
		code + ".throttled": "The hardware has slowed the GPU down: see fans, air flow and power supplies, and nvidia-smi -q -d PERFORMANCE,TEMPERATURE under load.",
		code + ".memory":    "Something holds the GPU's memory: see nvidia-smi. A smaller -n needs less.",
		code + ".types":     "Nothing: the GPU or its driver does not have the type. Take it out of --types, or update the driver.",
		code + ".library":   "Nothing, if right products are all that the test is for. Rates need cuBLASLt: own kernels reach less than half of them on Hopper and newer. It is part of CUDA (libcublas); CUBLASLT_LIBRARY=PATH names one, LIBRARY_DIRS=DIR its directory.",
		code + ".unjudged":  "Install cuBLASLt, which is part of CUDA (libcublas), or name it: CUBLASLT_LIBRARY=PATH. Else leave the rate out, or give one of own kernels together with --own.",
	}
}

// The bounds of a test: what each type, and what a node, takes beside -t.
const (
	gemmSetUp = 2 * time.Second
	gemmStart = 20 * time.Second // to open the GPUs
)

// Bound is the time for all types, for one of them a second time, and what it takes to
// begin.
func (c *gpuGemm) Bound() time.Duration {
	types, _ := gemmTypesOf(c.Types)
	need := gemmStart + time.Duration(len(types))*(c.Time+gemmSetUp) + gemmAgain(toleranceOf("gemm"), c.Time)
	return max(timeOf(timeOfOthers).Bound, need)
}

// Validate refuses types and sizes that there are not, and a rate for several types.
func (c *gpuGemm) Validate() error {
	types, bad := gemmTypesOf(c.Types)
	switch {
	case bad != "":
		return &checks.UsageError{Kind: checks.BadValue, Word: bad, Want: "some of the types " + strings.Join(cuda.GEMMTypes(), ",")}
	case c.Least > 0 && len(types) > 1:
		return &checks.UsageError{Kind: checks.BadValue, Word: rate(c.Least, "TFLOP/s"), Want: "one type with it, as --types bf16"}
	}
	return usableSize(c.N)
}

// Bind is BindTags, and what the test could not do.
func (c *gpuGemm) Bind(args []string) error { return checks.BindUsable(c, args) }

func (c *gpuGemm) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	types, _ := gemmTypesOf(c.Types)
	r, findings := c.beginGPUs(ctx, env, activeTest{Check: gpuGemmName, Code: "gpu.gemm", Bound: c.Bound(), Of: c})
	if r == nil {
		return findings
	}
	return multiplyAll(r, &gemmTest{test: "gemm", explicit: c.Types != "", own: c.Own, size: c.N, least: c.Least}, types, c.Time, 1)
}

// multiplyAll does a test with some types, each for a time, and judges it.
func multiplyAll(r *activeRun, m *gemmTest, types []*cuda.GEMMType, long time.Duration, parts int) []checks.Finding {
	cuda, ok := r.cuda()
	if !ok {
		return r.done()
	}
	m.r, m.team = r, newTeam(r, cuda)
	m.findLibrary(cuda)
	watch := watchLoad(r, long)
	for _, t := range types {
		m.run(t, long, parts)
	}
	seen := watch.end()
	m.loads = seen
	m.judge()
	m.team.close() // which may leave a GPU that was found faulty
	m.judgeLoad()
	tellThrottled(r, seen)
	return explainRate(r, r.done(), seen)
}

// gemmTypesOf are the types that words name; bad is one that is none.
func gemmTypesOf(words string) (types []*cuda.GEMMType, bad string) {
	names := cuda.GEMMTypes()
	if words != "" {
		names = strings.Split(words, ",")
	}
	for _, name := range names {
		t := cuda.GEMMTypeOf(strings.ToLower(strings.TrimSpace(name)))
		switch {
		case t == nil:
			return nil, name
		case !slices.Contains(types, t):
			types = append(types, t)
		}
	}
	return types, ""
}

// usableSize refuses an n that matrices cannot have; 0 is the type's own.
func usableSize(n int) error {
	if n < 0 || n > cuda.GEMMMost || n%cuda.GEMMStep != 0 {
		return &checks.UsageError{Kind: checks.BadValue, Word: fmt.Sprint(n), Want: fmt.Sprintf("a size (-n) that is a multiple of %d up to %d", cuda.GEMMStep, cuda.GEMMMost)}
	}
	return nil
}
