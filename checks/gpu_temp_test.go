package checks

import "github.com/nhc-gpu/nhc-gpu/checks/probe"

func init() {
	const name = gpuTempName
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
	testCheck(name, append(gpuCommon(name),
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
		odd(onGPUs("garbage", of("85"), core(4294967295)), "temperature of 4294967295 C"),
		odd(onGPUs("one cannot be read", nil, temp(func(t *probe.Temperature) { t.Margin = probe.Failed[int](errLost) })), lostText),
		gpuDumb(name),
	)...)
}
