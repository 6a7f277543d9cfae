package checks

import (
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

func init() {
	const name = gpuSoakName
	line := of("-n", "128", "0.0001")
	value := func(what, want, got string) Finding { return gemmValue(name, what, want, got)[0] }
	slow := gpuFinding(name, 3, Finding{Code: "gpu.soak.peers", Severity: Fail, Want: "at least 510.2 TFLOP/s", Got: "300.0 TFLOP/s"},
		"bf16 cublaslt, n 128: far from its peers, whose median is 600.2 TFLOP/s")
	slow.Message += " (31 C, 71 W)"
	testCheck(name, append(cudaCommon(name, line),
		onGEMM("healthy", true, line, nil, nil),
		onGEMM("another type", true, of("--type", "fp16", "--own", "-n", "128", "0.0001"), nil, nil),
		onGEMM("one is slow", true, line, nil, []string{"3 tflops cublaslt_bf16 = 300"}, slow),
		onGEMM("a power brake", true, line, gpu3(func(g *probe.GPU) { g.Throttle.Now = probe.Known(uint64(probe.ThrottlePowerBrake)) }), nil,
			gpuFinding(name, 3, Finding{Code: "gpu.soak.throttled", Severity: Warn}, "slowed down under load: 31 C, 71 W, power brake")),
		onGEMM("no time", true, of("0"), nil, nil, value("SECONDS", "more than 0", "0s")),
		onGEMM("several types", true, of("--type", "bf16,fp8", "5"), nil, nil, value("--type", "one of fp64, fp32, tf32, bf16, fp16, fp8", "bf16,fp8")),
		onGEMM("a size that is none", true, of("-n", "1000", "5"), nil, nil, value("-n", "a multiple of 128 up to 32768", "1000")),
	)...)
}

// A wrong bit long after the start is found, and how often it was seen.
func TestSoakFindsOneWrongBit(t *testing.T) {
	t.Parallel()
	s := onGEMM("", true, nil, nil, []string{"3 wrong product = 0x102 5"})
	env, _ := trialEnv(t, nil)
	env.Host.SetLibraries(s.libraries(t, t.TempDir()))
	c := &gpuSoak{Time: 30 * time.Microsecond, Type: "bf16", N: 128}
	for _, f := range c.Run(t.Context(), env) {
		if f.Severity == OK {
			continue
		}
		if f.Code != "gpu.soak.wrong" || f.Severity != Fail || f.Device.Name != "gpu3" || !strings.Contains(f.Message, "wrong results in ") {
			t.Errorf("%+v", f)
		}
		return
	}
	t.Error("nothing was found")
}
