package active

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
)

// gpuSoak multiplies matrices on all GPUs at once for SECONDS, as check_gpu_gemm does with
// one type. Besides wrong results and low rates it finds what takes its time: GPUs that
// get slower as they get warm, that their hardware slows down, or that fall off the bus.
// It warns if a GPU draws far less than its power limit: then it was not loaded, as where
// cuBLASLt is missing.
//
// TFLOPS is the least rate of each GPU. --type is the type of the numbers (bf16), -n the
// size of the matrices, --own has them multiplied without cuBLASLt. The run needs the
// time: TIMEOUT=900 for ten minutes.
//
//	gpu* || check_gpu_soak 600
type gpuSoak struct {
	active
	Time  time.Duration `arg:"1" toml:"time"`           // how long
	Type  string        `long:"type" toml:"type"`       // of the numbers
	N     int           `opt:"n" toml:"n"`              // n of the n * n matrices; 0: as the type has it
	Least float64       `arg:"2" toml:"tflops"`         // least rate of each GPU, TFLOP/s; 0: none
	Own   bool          `long:"own" toml:"own_kernels"` // without cuBLASLt
}

const gpuSoakName = "check_gpu_soak"

func init() {
	checks.Register(checks.Info{
		Name:    gpuSoakName,
		Usage:   "[--type TYPE] [-n SIZE] [--own] [--max-age AGE] SECONDS [TFLOPS]",
		Summary: "GPUs bear a load for a long time",
		Lane:    checks.CUDA,
		Active:  true,
		New:     func() checks.Check { return &gpuSoak{Time: time.Minute, Type: "bf16"} },
		Do: func() map[string]string {
			do := gemmDo("gpu.soak")
			do["gpu.soak.power"] = "The test has not loaded the GPU as jobs do, and found nothing of what only shows at full power. Without cuBLASLt install it (libcublas of CUDA), or name it: CUBLASLT_LIBRARY=PATH; --own has the kernels of this program without a warning. With it compare with other nodes, and see clocks and nvidia-smi -q -d POWER."
			do["gpu.soak.fades"] = "The GPU gets slower as it gets warm: see the temperature and the reasons in the message, fans and air flow."
			return activeDo("gpu.soak", "The message has clocks, temperature and power during the test: see nvidia-smi -q -d CLOCK,POWER,PERFORMANCE and the cooling.", do)
		},
	})
}

// soakPart is how often it says how far it is.
const soakPart = time.Second

// Bound is the time, a tenth more for looking at results, and what it takes to begin.
func (c *gpuSoak) Bound() time.Duration {
	return max(timeOf(timeOfOthers).Bound, c.Time+c.Time/10+gemmStart+gemmSetUp)
}

// Validate refuses types and sizes that there are not, and no time at all.
func (c *gpuSoak) Validate() error {
	if types, bad := gemmTypesOf(c.Type); bad != "" || len(types) != 1 {
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Type, Want: "one of the types " + strings.Join(cuda.GEMMTypes(), ", ")}
	}
	return cmp.Or(usableSize(c.N), usableTime(c.Time))
}

// Bind is BindTags, and what the test could not do.
func (c *gpuSoak) Bind(args []string) error { return checks.BindUsable(c, args) }

func (c *gpuSoak) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	types, _ := gemmTypesOf(c.Type)
	r, findings := c.beginGPUs(ctx, env, activeTest{Check: gpuSoakName, Code: "gpu.soak", Bound: c.Bound(), Of: c})
	if r == nil {
		return findings
	}
	parts := max(int(c.Time/soakPart), 1)
	return multiplyAll(r, &gemmTest{test: "soak", long: true, explicit: true, own: c.Own, size: c.N, least: c.Least}, types, c.Time, parts)
}
