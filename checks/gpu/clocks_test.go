package gpu

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

func TestGPUClocks(t *testing.T)    { checktest.Run(t, "check_gpu_clocks") }
func TestAppGPUClocks(t *testing.T) { checktest.Run(t, "check_app_gpu_clocks") }

var (
	_ = checktest.Table("check_gpu_clocks", clockScenarios)
	_ = checktest.Table("check_app_gpu_clocks", clockScenarios)
)

func clockScenarios(name string) []checktest.Scenario {
	clocks := func(change func(k *nvml.Clocks)) func(*nvml.Snapshot) {
		return checktest.Gpu3(func(g *nvml.GPU) { change(&g.Clocks) })
	}
	mhz := func(n uint32) nvml.Reading[uint32] { return nvml.Known(n) }
	says := func(severity checks.Severity, code string, remedy checks.Remedy, want, got, text string) checks.Finding {
		return checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.clocks." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	odd := checktest.OnGPUs("one cannot be read", nil, clocks(func(k *nvml.Clocks) { k.MaxMemory = nvml.Failed[uint32](checktest.ErrOdd) }),
		checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.error.value", Severity: checks.Unknown}, "cannot be read: "+checktest.OddText))
	odd.Broken = true
	return append(checktest.GPUCommon(name),
		checktest.OnGPUs("highest", nil, nil), checktest.OnV100s("an old GPU", nil, nil),
		checktest.OnGPUs("as wanted", checktest.Of("1980", "2619"), nil).OrTable(map[string]any{"graphics": int64(1980), "memory": int64(2619)}),
		checktest.OnGPUs("no application clocks", checktest.Of("1980"), clocks(func(k *nvml.Clocks) { k.AppGraphics, k.AppMemory = nvml.Reading[uint32]{}, nvml.Reading[uint32]{} })),
		checktest.OnGPUs("a default below the highest", nil, clocks(func(k *nvml.Clocks) { k.AppGraphics, k.DefaultGraphics = mhz(1275), mhz(1275) })),
		checktest.OnGPUs("no default known", nil, clocks(func(k *nvml.Clocks) { k.AppGraphics, k.DefaultGraphics = mhz(1275), nvml.Reading[uint32]{} })),
		checktest.OnGPUs("graphics set lower", nil, clocks(func(k *nvml.Clocks) { k.AppGraphics = mhz(1400) }),
			says(checks.Warn, "app", checks.FixConfig, "at least 1980 MHz", "1400 MHz", "application clock for graphics")),
		checktest.OnGPUs("graphics set lower on all GPUs", nil, allGPUs(func(g *nvml.GPU) { g.Clocks.AppGraphics = mhz(1400) })),
		checktest.OnGPUs("memory set lower", nil, clocks(func(k *nvml.Clocks) { k.AppMemory = mhz(1593) }),
			says(checks.Warn, "app", checks.FixConfig, "at least 2619 MHz", "1593 MHz", "application clock for memory")),
		checktest.OnGPUs("set lower than wanted", checktest.Of("1980"), clocks(func(k *nvml.Clocks) { k.AppGraphics = mhz(1400) }),
			says(checks.Fail, "app", checks.FixConfig, "at least 1980 MHz", "1400 MHz", "application clock for graphics")),
		checktest.OnGPUs("highest clock lower than wanted", checktest.Of("1980", "2619"), clocks(func(k *nvml.Clocks) { k.MaxMemory = mhz(1593) }),
			says(checks.Fail, "max", "", "at least 2619 MHz", "1593 MHz", "highest memory clock")),
		odd, checktest.GPUDumb(name),
	)
}
