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

// gpuGemm multiplies matrices on all GPUs at once, in the number formats of jobs: FP64, FP32,
// TF32, BF16, FP16, FP8. It reports the rate of each GPU and verifies the products: the matrices
// have whole numbers, so every sum is exact, and the CPU computes the same product. A GPU that
// computes wrongly (silent data corruption) fails. cuBLASLt multiplies if it can be loaded,
// otherwise slower built-in kernels; the check never compares rates of the two. It also records
// clocks, temperature, power and throttle reasons, and warns of a GPU that its hardware slows
// down.
//
// TFLOPS is the least rate of each GPU, for a line with one type; without it the check uses the
// platform's floors and the other GPUs. -t SECONDS (0.5) is the time for each type. -n SIZE is
// the size of the matrices, a multiple of 128 (8192; 4096 for fp64 and fp32). --types LIST has
// some of fp64,fp32,tf32,bf16,fp16,fp8. --own never uses cuBLASLt. With --max-age AGE a stored
// result that is younger replaces a run.
//
//	gpu* || check_gpu_gemm --types bf16,fp8 --max-age 36h
type gpuGemm struct {
	active
	Least float64       `arg:"1" toml:"tflops"`         // least rate of each GPU, TFLOP/s; 0: none
	Time  time.Duration `opt:"t" toml:"time"`           // time for each type
	N     int           `opt:"n" toml:"n"`              // n of the n * n matrices; 0: the type's own
	Types string        `long:"types" toml:"types"`     // types, separated by commas; "": all that the GPU supports
	Own   bool          `long:"own" toml:"own_kernels"` // never use cuBLASLt
}

const gpuGemmName = "check_gpu_gemm"

func init() {
	checks.Register(checks.Info{
		Name:    gpuGemmName,
		Usage:   "[-t SECONDS] [-n SIZE] [--types LIST] [--own] [--max-age AGE] [TFLOPS]",
		Summary: "GPUs multiply matrices correctly and as fast as they should",
		Lane:    checks.CUDA,
		Active:  true,
		New:     func() checks.Check { return &gpuGemm{Time: 500 * time.Millisecond} },
		Do: func() map[string]string {
			return activeDo("gpu.gemm", "The message has clocks, temperature and power during the test: see nvidia-smi -q -d CLOCK,POWER,PERFORMANCE and the cooling.", gemmDo("gpu.gemm"))
		},
	})
}

// gemmDo returns the advice for findings of matrix tests.
func gemmDo(code string) map[string]string {
	return map[string]string{
		code + ".wrong":     "The GPU computes wrongly, and no error counter shows it. Keep the node out of service, repeat the test and run dcgmi diag -r 4. If the fault returns, replace the GPU. Do not trust results of jobs that ran on it.",
		code + ".alike":     "No GPU of the model has the product of the CPU. cuBLASLt, the driver or nhc-gpu is a more likely cause than all GPUs: run the test with --own, compare with another node, and report the result.",
		code + ".throttled": "The hardware slowed the GPU down: see fans, air flow and power supplies, and nvidia-smi -q -d PERFORMANCE,TEMPERATURE under load.",
		code + ".memory":    "Processes use the GPU's memory: see nvidia-smi. A smaller -n needs less.",
		code + ".types":     "Nothing to repair: the GPU or its driver does not support the type. Remove it from --types, or update the driver.",
		code + ".library":   "Nothing, if the test is only for correct products. Rates need cuBLASLt: built-in kernels reach less than half of them on Hopper and newer. It is part of CUDA (libcublas); CUBLASLT_LIBRARY=PATH names the file, LIBRARY_DIRS=DIR its directory.",
		code + ".unjudged":  "Install cuBLASLt, which is part of CUDA (libcublas), or name it: CUBLASLT_LIBRARY=PATH. Otherwise remove the rate from the line, or set one for built-in kernels together with --own.",
	}
}

// Time that each type, and a node, take besides -t.
const (
	gemmSetUp = 2 * time.Second
	gemmStart = 20 * time.Second // to open the GPUs
)

// Bound returns the time for all types, for one of them a second time, and to start.
func (c *gpuGemm) Bound() time.Duration {
	types, _ := gemmTypesOf(c.Types)
	need := gemmStart + time.Duration(len(types))*(c.Time+gemmSetUp) + gemmAgain(toleranceOf("gemm"), c.Time)
	return max(timeOf(timeOfOthers).Bound, need)
}

func (c *gpuGemm) Validate() error {
	types, bad := gemmTypesOf(c.Types)
	switch {
	case bad != "":
		return &checks.UsageError{Kind: checks.BadValue, Word: bad, Want: "some of the types " + strings.Join(cuda.GEMMTypes(), ",")}
	case c.Least > 0 && len(types) > 1:
		return &checks.UsageError{Kind: checks.BadValue, Word: rate(c.Least, "TFLOP/s"), Want: "one type with it, as --types bf16"}
	}
	return validateSize(c.N)
}

func (c *gpuGemm) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	types, _ := gemmTypesOf(c.Types)
	r, findings := c.beginGPUs(ctx, env, activeTest{Check: gpuGemmName, Code: "gpu.gemm", Bound: c.Bound(), Of: c})
	if r == nil {
		return findings
	}
	return multiplyAll(r, &gemmTest{test: "gemm", explicit: c.Types != "", own: c.Own, size: c.N, least: c.Least}, types, c.Time, 1)
}

// multiplyAll runs a test with some types, each for a time, and judges it.
func multiplyAll(r *activeRun, m *gemmTest, types []*cuda.GEMMType, long time.Duration, parts int) []checks.Finding {
	cuda, ok := r.openCUDA()
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
	m.team.close() // it can abandon a GPU that was found faulty
	m.judgeLoad()
	reportThrottled(r, seen)
	return explainRate(r, r.done(), seen)
}

// gemmTypesOf returns the types that words names; bad is the first unknown name.
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

// validateSize refuses an invalid n; 0 is the type's own.
func validateSize(n int) error {
	if n < 0 || n > cuda.GEMMMost || n%cuda.GEMMStep != 0 {
		return &checks.UsageError{Kind: checks.BadValue, Word: fmt.Sprint(n), Want: fmt.Sprintf("a size (-n) that is a multiple of %d up to %d", cuda.GEMMStep, cuda.GEMMMost)}
	}
	return nil
}
