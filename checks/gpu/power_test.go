package gpu

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

func TestGPUPower(t *testing.T) { checktest.Run(t, "check_gpu_power") }

var _ = checktest.Table("check_gpu_power", func(name string) []checktest.Scenario {
	power := func(change func(p *nvml.Power)) func(*nvml.Snapshot) {
		return checktest.Gpu3(func(g *nvml.GPU) { change(&g.Power) })
	}
	limit := func(mW uint32) func(*nvml.Snapshot) {
		return power(func(p *nvml.Power) { p.Limit, p.Enforced = nvml.Known(mW), nvml.Known(mW) })
	}
	says := func(severity checks.Severity, want, got string) checks.Finding {
		return checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.power.limit", Severity: severity, Want: want, Got: got, Remedy: checks.FixConfig}, "power limit")
	}
	enforced := func(mW uint32) func(*nvml.GPU) {
		return func(g *nvml.GPU) { g.Power.Enforced = nvml.Known(mW) }
	}
	grace := &checks.Platform{Name: "GH200", MemoryNode: 1}
	odd := checktest.OnGPUs("one without a power draw", nil, power(func(p *nvml.Power) { p.Draw = nvml.Failed[uint32](checktest.ErrOdd) }),
		checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.error.value", Severity: checks.Unknown}, "cannot be read: "+checktest.OddText))
	odd.Broken = true
	return append(checktest.GPUCommon(name),
		checktest.OnGPUs("default", nil, nil), checktest.OnV100s("an old GPU", nil, nil),
		checktest.OnGPUs("as wanted", checktest.Of("700"), limit(699600)).OrTable(map[string]any{"watts": int64(700)}),
		checktest.OnGPUs("above the default", nil, limit(750000)),
		checktest.OnGPUs("below the default", nil, limit(500000), says(checks.Warn, "700 W", "500 W")),
		checktest.OnGPUs("below the default on all GPUs", nil, allGPUs(func(g *nvml.GPU) {
			g.Power.Limit, g.Power.Enforced = nvml.Known(uint32(500000)), nvml.Known(uint32(500000))
		})),
		checktest.OnGPUs("only the power draw is reported", nil, allGPUs(func(g *nvml.GPU) { g.Power = nvml.Power{Draw: g.Power.Draw} }),
			checks.Finding{Code: "gpu.unsupported", Severity: checks.Skip, Message: name + ":  not supported by these GPUs or their driver"}),
		checktest.OnGPUs("lower than wanted", checktest.Of("700"), limit(500000), says(checks.Fail, "700 W", "500 W")),
		checktest.OnGPUs("higher than wanted", checktest.Of("700"), limit(702000), says(checks.Fail, "700 W", "702 W")),
		checktest.OnGPUs("enforced limit lower", checktest.Of("700"), power(func(p *nvml.Power) { p.Enforced = nvml.Known(uint32(350000)) }),
			checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.power.enforced", Severity: checks.Warn, Want: "700 W", Got: "350 W"}, "enforced power limit")),
		checktest.OnGPUs("enforced limit of a module with a Grace CPU", nil, allGPUs(enforced(600000))).On(grace),
		checktest.OnGPUs("enforced limit lower than that of another module", nil, func(n *nvml.Snapshot) { allGPUs(enforced(600000))(n); enforced(350000)(&n.GPUs[3]) },
			checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.power.enforced", Severity: checks.Warn, Want: "700 W", Got: "350 W"}, "enforced power limit")).On(grace),
		odd, checktest.GPUDumb(name),
	)
})
