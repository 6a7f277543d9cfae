package checks

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

func TestGPUClocks(t *testing.T)    { testCheck(t, "check_gpu_clocks") }
func TestAppGPUClocks(t *testing.T) { testCheck(t, "check_app_gpu_clocks") }

var (
	_ = table("check_gpu_clocks", clockScenarios)
	_ = table("check_app_gpu_clocks", clockScenarios)
)

func clockScenarios(name string) []scenario {
	clocks := func(change func(k *probe.Clocks)) func(*probe.NVML) {
		return gpu3(func(g *probe.GPU) { change(&g.Clocks) })
	}
	mhz := func(n uint32) probe.Reading[uint32] { return probe.Known(n) }
	says := func(severity Severity, code string, remedy Remedy, want, got, text string) Finding {
		return gpuFinding(name, 3, Finding{Code: "gpu.clocks." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	odd := onGPUs("one cannot be read", nil, clocks(func(k *probe.Clocks) { k.MaxMemory = probe.Failed[uint32](errOdd) }),
		gpuFinding(name, 3, Finding{Code: "gpu.error", Severity: Unknown}, "could not tell: "+oddText))
	odd.broken = true
	return append(gpuCommon(name),
		onGPUs("highest", nil, nil), onV100s("an old GPU", nil, nil),
		onGPUs("as wanted", of("1980", "2619"), nil).orTable(map[string]any{"graphics": int64(1980), "memory": int64(2619)}),
		onGPUs("no application clocks", of("1980"), clocks(func(k *probe.Clocks) { k.AppGraphics, k.AppMemory = probe.Reading[uint32]{}, probe.Reading[uint32]{} })),
		onGPUs("a default below the highest", nil, clocks(func(k *probe.Clocks) { k.AppGraphics, k.DefaultGraphics = mhz(1275), mhz(1275) })),
		onGPUs("no default known", nil, clocks(func(k *probe.Clocks) { k.AppGraphics, k.DefaultGraphics = mhz(1275), probe.Reading[uint32]{} })),
		onGPUs("graphics set lower", nil, clocks(func(k *probe.Clocks) { k.AppGraphics = mhz(1400) }),
			says(Warn, "app", FixConfig, "at least 1980 MHz", "1400 MHz", "application clock for graphics")),
		onGPUs("graphics set lower, as all", nil, allGPUs(func(g *probe.GPU) { g.Clocks.AppGraphics = mhz(1400) })),
		onGPUs("memory set lower", nil, clocks(func(k *probe.Clocks) { k.AppMemory = mhz(1593) }),
			says(Warn, "app", FixConfig, "at least 2619 MHz", "1593 MHz", "application clock for memory")),
		onGPUs("set lower than wanted", of("1980"), clocks(func(k *probe.Clocks) { k.AppGraphics = mhz(1400) }),
			says(Fail, "app", FixConfig, "at least 1980 MHz", "1400 MHz", "application clock for graphics")),
		onGPUs("cannot reach what is wanted", of("1980", "2619"), clocks(func(k *probe.Clocks) { k.MaxMemory = mhz(1593) }),
			says(Fail, "max", "", "at least 2619 MHz", "1593 MHz", "highest memory clock")),
		odd, gpuDumb(name),
	)
}
