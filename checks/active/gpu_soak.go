package active

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
)

// gpuSoak multiplies matrices on all GPUs at once for SECONDS (60), as check_gpu_gemm does with
// one type. Besides wrong results and low rates it finds faults that take time to show: GPUs that
// slow down as they warm up, that their hardware slows down, or that fall off the bus. It warns
// if a GPU draws far less than its power limit: then it was not loaded, for example because
// cuBLASLt is missing.
//
// TFLOPS is the least rate of each GPU. --type TYPE is the number format (bf16), -n SIZE the size
// of the matrices, --own multiplies without cuBLASLt. The run must last long enough: TIMEOUT=900
// for ten minutes.
//
//	gpu* || check_gpu_soak 600
type gpuSoak struct {
	active
	Time  time.Duration `arg:"1" toml:"time"`           // duration of the load
	Type  string        `long:"type" toml:"type"`       // number format
	N     int           `opt:"n" toml:"n"`              // n of the n * n matrices; 0: the type's own
	Least float64       `arg:"2" toml:"tflops"`         // least rate of each GPU, TFLOP/s; 0: none
	Own   bool          `long:"own" toml:"own_kernels"` // never use cuBLASLt
}

const gpuSoakName = "check_gpu_soak"

func init() {
	checks.Register(checks.Info{
		Name:    gpuSoakName,
		Usage:   "[--type TYPE] [-n SIZE] [--own] [--max-age AGE] SECONDS [TFLOPS]",
		Summary: "GPUs sustain full load without errors or throttling",
		Lane:    checks.CUDA,
		Active:  true,
		New:     func() checks.Check { return &gpuSoak{Time: time.Minute, Type: "bf16"} },
		Do: func() map[string]string {
			do := gemmDo("gpu.soak")
			do["gpu.soak.power"] = "The test did not load the GPU as jobs do, so it could not find faults that show only at full power. If cuBLASLt is missing install it (libcublas of CUDA), or name it: CUBLASLT_LIBRARY=PATH; --own uses built-in kernels without this warning. With cuBLASLt compare with other nodes, and see the clocks and nvidia-smi -q -d POWER."
			do["gpu.soak.fades"] = "The GPU slows down as it warms up: see the temperature and the throttle reasons in the message, the fans and the air flow."
			return activeDo("gpu.soak", "The message has clocks, temperature and power during the test: see nvidia-smi -q -d CLOCK,POWER,PERFORMANCE and the cooling.", do)
		},
	})
}

// soakPart is the interval of progress reports.
const soakPart = time.Second

// Bound returns the duration, a tenth more for verifying results, and the time to start.
func (c *gpuSoak) Bound() time.Duration {
	return max(timeOf(timeOfOthers).Bound, c.Time+c.Time/10+gemmStart+gemmSetUp)
}

func (c *gpuSoak) Validate() error {
	if types, bad := gemmTypesOf(c.Type); bad != "" || len(types) != 1 {
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Type, Want: "one of the types " + strings.Join(cuda.GEMMTypes(), ", ")}
	}
	return cmp.Or(validateSize(c.N), validateTime(c.Time))
}

func (c *gpuSoak) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	types, _ := gemmTypesOf(c.Type)
	r, findings := c.beginGPUs(ctx, env, activeTest{Check: gpuSoakName, Code: "gpu.soak", Bound: c.Bound(), Of: c})
	if r == nil {
		return findings
	}
	parts := max(int(c.Time/soakPart), 1)
	return multiplyAll(r, &gemmTest{test: "soak", long: true, explicit: true, own: c.Own, size: c.N, least: c.Least}, types, c.Time, parts)
}
