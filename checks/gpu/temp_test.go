package gpu

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

func TestGPUTemp(t *testing.T) { checktest.Run(t, "check_gpu_temp") }

var _ = checktest.Table("check_gpu_temp", func(name string) []checktest.Scenario {
	temp := func(change func(t *nvml.Temperature)) func(*nvml.Snapshot) {
		return checktest.Gpu3(func(g *nvml.GPU) { change(&g.Temperature) })
	}
	margin := func(n int) func(*nvml.Snapshot) { return temp(func(t *nvml.Temperature) { t.Margin = nvml.Known(n) }) }
	core := func(n int) func(*nvml.Snapshot) { return temp(func(t *nvml.Temperature) { t.GPU = nvml.Known(n) }) }
	hbm := func(n int) func(*nvml.Snapshot) { return temp(func(t *nvml.Temperature) { t.HBM = nvml.Known(n) }) }
	says := func(severity checks.Severity, code, want, got, text string) checks.Finding {
		return checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.temp." + code, Severity: severity, Want: want, Got: got}, text)
	}
	odd := func(s checktest.Scenario, text string) checktest.Scenario {
		s.Broken, s.Want = true, []checks.Finding{checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.error.value", Severity: checks.Unknown}, "cannot be read: "+text)}
		return s
	}
	unlimited := func(g *nvml.GPU) { g.Temperature = nvml.Temperature{GPU: nvml.Known(95), HBM: nvml.Known(99)} }
	skipped := checks.Finding{Code: "gpu.unsupported", Severity: checks.Skip, Message: name + ":  not supported by these GPUs or their driver"}
	return append(checktest.GPULacks(name, "temperature", func(g *nvml.GPU) { g.Temperature.GPU = nvml.Reading[int]{} }), append(checktest.GPUCommon(name),
		checktest.OnGPUs("healthy", nil, nil), checktest.OnV100s("an old GPU", nil, nil),
		checktest.OnGPUs("limits", checktest.Of("31", "40"), nil).OrTable(map[string]any{"max": int64(31), "hbm": int64(40)}),
		checktest.OnGPUs("a margin of one degree", nil, margin(1)),
		checktest.OnGPUs("no margin left", nil, margin(0), says(checks.Warn, "warm", "above 0 C", "0 C", "slowed down by the driver: margin to its temperature limit (the GPU has 31 C)")),
		checktest.OnGPUs("hardware slowdown by margin", nil, margin(-2), says(checks.Fail, "slowdown", "above -2 C", "-2 C", "slowed down by the hardware: margin to its temperature limit (the GPU has 31 C)")),
		checktest.OnV100s("below the driver's limit", nil, core(82)),
		checktest.OnV100s("at the driver's limit", nil, core(83), says(checks.Warn, "warm", "below 83 C", "83 C", "slowed down by the driver because of the temperature")),
		checktest.OnV100s("hardware slowdown", nil, core(87), says(checks.Fail, "slowdown", "below 87 C", "87 C", "slowed down by the hardware because of the temperature")),
		checktest.OnV100s("hot memory", nil, hbm(85), says(checks.Warn, "warm", "below 85 C", "85 C", "slowed down by the driver because of the temperature of the memory")),
		checktest.OnGPUs("hot memory of a GPU with margins", nil, temp(func(t *nvml.Temperature) { t.HBM, t.MaxHBM = nvml.Known(96), nvml.Known(95) }),
			says(checks.Warn, "warm", "below 95 C", "96 C", "slowed down by the driver because of the temperature of the memory")),
		checktest.OnGPUs("above the site's limit", checktest.Of("60"), core(61), says(checks.Fail, "limit", "at most 60 C", "61 C", "temperature")),
		checktest.OnGPUs("memory above the site's limit", checktest.Of("90", "90"), hbm(91), says(checks.Fail, "limit", "at most 90 C", "91 C", "temperature of the memory")),
		checktest.OnV100s("hot, without a limit", nil, allGPUs(unlimited), skipped),
		checktest.OnV100s("only the site's limit is known", checktest.Of("90"), allGPUs(unlimited), allOf(func(i int) checks.Finding {
			return checktest.GPUFinding(name, i, checks.Finding{Code: "gpu.temp.limit", Severity: checks.Fail, Want: "at most 90 C", Got: "95 C"}, "temperature")
		})...),
		checktest.OnGPUs("garbage", checktest.Of("85"), core(4294967295), says(checks.Warn, "sensor", "at most 200 C", "4294967295 C", "impossible temperature")),
		checktest.OnGPUs("a sensor of all ones", nil, core(255), says(checks.Warn, "sensor", "at most 200 C", "255 C", "impossible temperature")),
		checktest.OnV100s("a memory sensor of all ones", nil, hbm(255), says(checks.Warn, "sensor", "at most 200 C", "255 C", "impossible temperature of the memory")),
		checktest.OnGPUs("a sensor that is stuck at 0", nil, core(0), says(checks.Warn, "sensor", "above 10 C", "0 C", "temperature, while most other GPUs are above")),
		checktest.OnGPUs("0 on all GPUs", nil, allGPUs(func(g *nvml.GPU) { g.Temperature.GPU = nvml.Known(0) })),
		checktest.OnGPUs("0, the others report none", nil, func(n *nvml.Snapshot) {
			allGPUs(func(g *nvml.GPU) { g.Temperature.GPU = nvml.Reading[int]{} })(n)
			core(0)(n)
		}),
		checktest.OnGPUs("hot, with a good margin", nil, core(150), says(checks.Fail, "slowdown", "at most 110 C", "150 C", "temperature, too hot for any GPU")),
		checktest.OnGPUs("at the highest plausible temperature, with a margin", nil, core(110)),
		checktest.OnV100s("hotter than most limits, but not than its own", nil, temp(func(t *nvml.Temperature) {
			t.GPU, t.Slowdown, t.MaxGPU = nvml.Known(112), nvml.Known(120), nvml.Known(118)
		})),
		checktest.OnV100s("very hot, without a limit", nil, temp(func(t *nvml.Temperature) { *t = nvml.Temperature{GPU: nvml.Known(111)} }),
			says(checks.Fail, "slowdown", "at most 110 C", "111 C", "temperature, too hot for any GPU")),
		checktest.OnGPUs("hardware slowdown by temperature, with a good margin", nil, temp(func(t *nvml.Temperature) { t.GPU, t.Slowdown = nvml.Known(95), nvml.Known(92) }),
			says(checks.Fail, "slowdown", "below 92 C", "95 C", "slowed down by the hardware because of the temperature")),
		checktest.OnGPUs("no margin left, and hot: one finding", nil, temp(func(t *nvml.Temperature) {
			t.GPU, t.Slowdown, t.Margin = nvml.Known(95), nvml.Known(92), nvml.Known(-2)
		}), says(checks.Fail, "slowdown", "above -2 C", "-2 C", "slowed down by the hardware: margin to its temperature limit (the GPU has 95 C)")),
		odd(checktest.OnV100s("an impossible limit", nil, temp(func(t *nvml.Temperature) { t.Slowdown = nvml.Known(4294967295) })), "impossible limit of the hardware, 4294967295 C"),
		odd(checktest.OnGPUs("an impossible margin", nil, temp(func(t *nvml.Temperature) { t.MarginSlowdown = nvml.Known(4294967) })), "impossible margin of the hardware, 4294967 C"),
		odd(checktest.OnGPUs("one cannot be read", nil, temp(func(t *nvml.Temperature) { t.Margin = nvml.Failed[int](checktest.ErrOdd) })), checktest.OddText),
		checktest.GPUDumb(name),
	)...)
})
