package active

import (
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

func TestGPUSoak(t *testing.T) { checktest.Run(t, "check_gpu_soak") }

var _ = checktest.Table("check_gpu_soak", func(name string) []checktest.Scenario {
	line := func(seconds, least string, options ...string) []string {
		if options = append(options, seconds); least != "" {
			options = append(options, least)
		}
		return options
	}
	slow := checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.soak.peers", Severity: checks.Fail, Want: "at least 480.2 TFLOP/s", Got: "300.0 TFLOP/s"},
		"rate of matrix products (bf16 cublaslt, n 128): far from its peers (median 600.2 TFLOP/s)")
	slow.Message += " (31 C)"
	fades := checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.soak.fades", Severity: checks.Warn, Want: "at least 538.1 TFLOP/s", Got: "536.3 TFLOP/s"},
		"bf16 cublaslt, n 128: rate falls under load, 597.9 TFLOP/s at first")
	fades.Message += " (31 C)"
	soak := line("0.00003", "", "-n", "128")
	common := gemmScenarios(name, "gpu.soak", func(least string, options ...string) []string { return line("0.000001", least, options...) })
	return append(common,
		onGEMM("too small a load", true, line("2", "", "-n", "128"), nil, []string{"* tflops cublaslt_bf16 = 0.00001", "* cublasLtMatmul late 600"}, eachGPU(func(i int) checks.Finding {
			return checktest.GPUFinding(name, i, checks.Finding{Code: "gpu.soak.power", Severity: checks.Warn, Want: "at least 420 W", Got: "71 W"}, "bf16 cublaslt, n 128: load too small for a soak test")
		})...),
		onGEMM("another type", true, line("0.000001", "", "--type", "fp16", "--own", "-n", "128"), nil, nil),
		onGEMM("one is slow", true, soak, nil, []string{"3 tflops cublaslt_bf16 = 300"}, slow),
		onGEMM("one fades", true, soak, nil, []string{"3 fade = 0.00003"}, fades),
		onGEMM("a power brake", true, soak, checktest.Gpu3(func(g *nvml.GPU) { g.Throttle.Now = nvml.Known(uint64(nvml.ThrottlePowerBrake)) }), nil,
			checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.soak.throttled", Severity: checks.Warn}, "slowed down under load: 31 C, power brake")),
	)
})

// A wrong bit long after the start is reported, with its frequency.
func TestSoakFindsOneWrongBit(t *testing.T) {
	t.Parallel()
	s := onGEMM("", true, nil, nil, []string{"3 wrong product = 0x102 5"})
	env, _ := trialEnv(t, nil)
	probe.SetLibraries(env.Host, s.Libraries(t, t.TempDir()))
	c := &gpuSoak{Time: 30 * time.Microsecond, Type: "bf16", N: 128}
	for _, f := range c.Run(t.Context(), env) {
		if f.Severity == checks.OK {
			continue
		}
		if f.Code != "gpu.soak.wrong" || f.Severity != checks.Fail || f.Device.Name != "gpu3" || !strings.Contains(f.Message, "wrong results in ") {
			t.Errorf("%+v", f)
		}
		return
	}
	t.Error("nothing was found")
}
