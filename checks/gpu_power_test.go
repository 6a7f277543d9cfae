package checks

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

func TestGPUPower(t *testing.T) { testCheck(t, "check_gpu_power") }

var _ = table("check_gpu_power", func(name string) []scenario {
	power := func(change func(p *probe.Power)) func(*probe.NVML) {
		return gpu3(func(g *probe.GPU) { change(&g.Power) })
	}
	limit := func(mW uint32) func(*probe.NVML) {
		return power(func(p *probe.Power) { p.Limit, p.Enforced = probe.Known(mW), probe.Known(mW) })
	}
	says := func(severity Severity, want, got string) Finding {
		return gpuFinding(name, 3, Finding{Code: "gpu.power.limit", Severity: severity, Want: want, Got: got, Remedy: FixConfig}, "power limit")
	}
	odd := onGPUs("one cannot tell what it draws", nil, power(func(p *probe.Power) { p.Draw = probe.Failed[uint32](errOdd) }),
		gpuFinding(name, 3, Finding{Code: "gpu.error", Severity: Unknown}, "could not tell: "+oddText))
	odd.broken = true
	return append(gpuCommon(name),
		onGPUs("default", nil, nil), onV100s("an old GPU", nil, nil),
		onGPUs("as wanted", of("700"), limit(699600)).orTable(map[string]any{"watts": int64(700)}),
		onGPUs("above the default", nil, limit(750000)),
		onGPUs("below the default", nil, limit(500000), says(Warn, "700 W", "500 W")),
		onGPUs("below the default, as all", nil, allGPUs(func(g *probe.GPU) {
			g.Power.Limit, g.Power.Enforced = probe.Known(uint32(500000)), probe.Known(uint32(500000))
		})),
		onGPUs("nothing but the draw is told", nil, allGPUs(func(g *probe.GPU) { g.Power = probe.Power{Draw: g.Power.Draw} }),
			Finding{Code: "gpu.unsupported", Severity: Skip, Message: name + ":  not supported by these GPUs or their driver"}),
		onGPUs("lower than wanted", of("700"), limit(500000), says(Fail, "700 W", "500 W")),
		onGPUs("higher than wanted", of("700"), limit(702000), says(Fail, "700 W", "702 W")),
		onGPUs("held lower", of("700"), power(func(p *probe.Power) { p.Enforced = probe.Known(uint32(350000)) }),
			gpuFinding(name, 3, Finding{Code: "gpu.power.enforced", Severity: Warn, Want: "700 W", Got: "350 W"}, "power limit that is enforced")),
		odd, gpuDumb(name),
	)
})
