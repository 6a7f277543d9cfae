package checks

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

func TestGPUTemp(t *testing.T) { testCheck(t, "check_gpu_temp") }

var _ = table("check_gpu_temp", func(name string) []scenario {
	temp := func(change func(t *probe.Temperature)) func(*probe.NVML) {
		return gpu3(func(g *probe.GPU) { change(&g.Temperature) })
	}
	margin := func(n int) func(*probe.NVML) { return temp(func(t *probe.Temperature) { t.Margin = probe.Known(n) }) }
	core := func(n int) func(*probe.NVML) { return temp(func(t *probe.Temperature) { t.GPU = probe.Known(n) }) }
	hbm := func(n int) func(*probe.NVML) { return temp(func(t *probe.Temperature) { t.HBM = probe.Known(n) }) }
	says := func(severity Severity, code, want, got, text string) Finding {
		return gpuFinding(name, 3, Finding{Code: "gpu.temp." + code, Severity: severity, Want: want, Got: got}, text)
	}
	odd := func(s scenario, text string) scenario {
		s.broken, s.want = true, []Finding{gpuFinding(name, 3, Finding{Code: "gpu.error", Severity: Unknown}, "could not tell: "+text)}
		return s
	}
	unlimited := func(g *probe.GPU) { g.Temperature = probe.Temperature{GPU: probe.Known(95), HBM: probe.Known(99)} }
	skipped := Finding{Code: "gpu.unsupported", Severity: Skip, Message: name + ":  not supported by these GPUs or their driver"}
	return append(gpuLacks(name, "temperature", func(g *probe.GPU) { g.Temperature.GPU = probe.Reading[int]{} }), append(gpuCommon(name),
		onGPUs("healthy", nil, nil), onV100s("an old GPU", nil, nil),
		onGPUs("limits", of("31", "40"), nil).orTable(map[string]any{"max": int64(31), "hbm": int64(40)}),
		onGPUs("a margin of one degree", nil, margin(1)),
		onGPUs("no margin left", nil, margin(0), says(Warn, "warm", "above 0 C", "0 C", "margin, at which the driver slows it down")),
		onGPUs("hardware slowdown by margin", nil, margin(-2), says(Fail, "slowdown", "above -2 C", "-2 C", "margin, at which the hardware slows it down")),
		onV100s("below the driver's limit", nil, core(82)),
		onV100s("at the driver's limit", nil, core(83), says(Warn, "warm", "below 83 C", "83 C", "temperature, at which the driver slows it down")),
		onV100s("hardware slowdown", nil, core(87), says(Fail, "slowdown", "below 87 C", "87 C", "temperature, at which the hardware slows it down")),
		onV100s("hot memory", nil, hbm(85), says(Warn, "warm", "below 85 C", "85 C", "temperature of the memory, at which the driver slows it down")),
		onGPUs("hot memory of a GPU with margins", nil, temp(func(t *probe.Temperature) { t.HBM, t.MaxHBM = probe.Known(96), probe.Known(95) }),
			says(Warn, "warm", "below 95 C", "96 C", "temperature of the memory, at which the driver slows it down")),
		onGPUs("above the site's limit", of("60"), core(61), says(Fail, "limit", "at most 60 C", "61 C", "temperature")),
		onGPUs("memory above the site's limit", of("90", "90"), hbm(91), says(Fail, "limit", "at most 90 C", "91 C", "temperature of the memory")),
		onV100s("hot, and no limit is known", nil, allGPUs(unlimited), skipped),
		onV100s("no limit is known but the site's", of("90"), allGPUs(unlimited), allOf(func(i int) Finding {
			return gpuFinding(name, i, Finding{Code: "gpu.temp.limit", Severity: Fail, Want: "at most 90 C", Got: "95 C"}, "temperature")
		})...),
		onGPUs("garbage", of("85"), core(4294967295), says(Warn, "sensor", "at most 200 C", "4294967295 C", "temperature that cannot be one")),
		onGPUs("a sensor of all ones", nil, core(255), says(Warn, "sensor", "at most 200 C", "255 C", "temperature that cannot be one")),
		onV100s("a memory sensor of all ones", nil, hbm(255), says(Warn, "sensor", "at most 200 C", "255 C", "temperature of the memory that cannot be one")),
		onGPUs("a sensor that is stuck at 0", nil, core(0), says(Warn, "sensor", "above 10 C", "0 C", "temperature, while most others are above")),
		onGPUs("0, as all others", nil, allGPUs(func(g *probe.GPU) { g.Temperature.GPU = probe.Known(0) })),
		onGPUs("0, where no other tells", nil, func(n *probe.NVML) {
			allGPUs(func(g *probe.GPU) { g.Temperature.GPU = probe.Reading[int]{} })(n)
			core(0)(n)
		}),
		onGPUs("hot, whatever the margin", nil, core(150), says(Fail, "slowdown", "at most 110 C", "150 C", "temperature, at which no GPU works")),
		onGPUs("as hot as a GPU may be with a margin", nil, core(110)),
		onV100s("hotter than all limits that NVIDIA gives, but not than its own", nil, temp(func(t *probe.Temperature) {
			t.GPU, t.Slowdown, t.MaxGPU = probe.Known(112), probe.Known(120), probe.Known(118)
		})),
		onV100s("very hot, and no limit is known", nil, temp(func(t *probe.Temperature) { *t = probe.Temperature{GPU: probe.Known(111)} }),
			says(Fail, "slowdown", "at most 110 C", "111 C", "temperature, at which no GPU works")),
		onGPUs("hardware slowdown by temperature, whatever the margin", nil, temp(func(t *probe.Temperature) { t.GPU, t.Slowdown = probe.Known(95), probe.Known(92) }),
			says(Fail, "slowdown", "below 92 C", "95 C", "temperature, at which the hardware slows it down")),
		onGPUs("no margin left, and hot: one finding", nil, temp(func(t *probe.Temperature) {
			t.GPU, t.Slowdown, t.Margin = probe.Known(95), probe.Known(92), probe.Known(-2)
		}), says(Fail, "slowdown", "above -2 C", "-2 C", "margin, at which the hardware slows it down")),
		odd(onV100s("a limit that cannot be one", nil, temp(func(t *probe.Temperature) { t.Slowdown = probe.Known(4294967295) })), "limit of the hardware of 4294967295 C"),
		odd(onGPUs("a margin's limit that cannot be one", nil, temp(func(t *probe.Temperature) { t.MarginSlowdown = probe.Known(4294967) })), "margin of the hardware of 4294967 C"),
		odd(onGPUs("one cannot be read", nil, temp(func(t *probe.Temperature) { t.Margin = probe.Failed[int](errOdd) })), oddText),
		gpuDumb(name),
	)...)
})
