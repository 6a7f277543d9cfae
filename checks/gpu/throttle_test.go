package gpu

import (
	"fmt"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// before300 returns a state file of 300 seconds before the snapshot of H100s, with the given state of
// gpu3.
func before300(gpu3 string) string {
	return pastAt(300*time.Second, gpu3)
}

func pastAt(ago time.Duration, gpu3 string) string {
	return fmt.Sprintf(`{"taken":%q,"gpus":{%q:%s}}`, checktest.H100s().Taken.Add(-ago).Format(time.RFC3339), fakenvml.UUID(3), gpu3)
}

func TestGPUThrottle(t *testing.T)        { checktest.Run(t, "check_gpu_throttle") }
func TestGPUClockThrottling(t *testing.T) { checktest.Run(t, "check_gpu_clock_throttling") }

var (
	_ = checktest.Table("check_gpu_throttle", throttleScenarios)
	_ = checktest.Table("check_gpu_clock_throttling", throttleScenarios)
)

func throttleScenarios(name string) []checktest.Scenario {
	const file, second = "past/gpu-throttle.json", uint64(time.Second)
	throttle := func(change func(t *nvml.Throttle)) func(*nvml.Snapshot) {
		return checktest.Gpu3(func(g *nvml.GPU) { change(&g.Throttle) })
	}
	ns := func(n uint64) nvml.Reading[uint64] { return nvml.Known(n) }
	hardware := func(seconds uint64) func(*nvml.Snapshot) {
		return throttle(func(t *nvml.Throttle) { t.HardwareThermal = ns(seconds * second) })
	}
	mask := func(m uint64) func(*nvml.Snapshot) { return throttle(func(t *nvml.Throttle) { t.Now = ns(m) }) }
	without := func(m uint64, counter func(t *nvml.Throttle) *nvml.Reading[uint64]) func(*nvml.Snapshot) { // a counter that is not supported
		return throttle(func(t *nvml.Throttle) { t.Now, *counter(t) = ns(m), nvml.Reading[uint64]{} })
	}
	brake := func(t *nvml.Throttle) *nvml.Reading[uint64] { return &t.PowerBrake }
	heat := func(t *nvml.Throttle) *nvml.Reading[uint64] { return &t.HardwareThermal }
	says := func(severity checks.Severity, code, want, got, text string) checks.Finding {
		return checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.throttle." + code, Severity: severity, Want: want, Got: got}, text)
	}
	const hot = "throttled by the hardware because of heat, share of the last 5 min"
	just := func(what string) checks.Finding {
		return says(checks.Warn, "now", "", "", "throttled at this moment: "+what)
	}
	garbage := checktest.OnGPUs("the stored state is garbage", nil, nil, checks.Finding{Code: "gpu.past", Severity: checks.Warn,
		Message: name + ":  /past/gpu-throttle.json is damaged"}).Holding(file, "{\x00")
	garbage.Broken = true
	future := checktest.OnGPUs("a clock that was set back", nil, hardware(600)).Holding(file, pastAt(-time.Hour, `{}`))
	future.Broken = true
	odd := checktest.OnGPUs("one cannot be read", nil, throttle(func(t *nvml.Throttle) { t.PowerBrake = nvml.Failed[uint64](checktest.ErrOdd) }),
		checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.error.value", Severity: checks.Unknown}, "cannot be read: "+checktest.OddText))
	odd.Broken = true
	return append(checktest.GPUCommon(name),
		checktest.OnGPUs("healthy", nil, nil), checktest.OnV100s("an old GPU", nil, nil),
		checktest.OnGPUs("the first run", nil, hardware(3000)),
		checktest.OnGPUs("the last run was just now", nil, hardware(3000)).Holding(file, pastAt(29*time.Second, `{}`)),
		checktest.OnGPUs("power cap", nil, func(n *nvml.Snapshot) { mask(4)(n); n.GPUs[3].Throttle.PowerCap = ns(300 * second) }).Holding(file, before300(`{}`)),
		checktest.OnGPUs("a tenth of the time", nil, hardware(130)).Holding(file, before300(`{"hardware":100000000000}`)),
		checktest.OnGPUs("an allowed share", checktest.Of("50"), hardware(150)).Holding(file, before300(`{}`)).OrTable(map[string]any{"percent": int64(50)}),
		checktest.OnGPUs("hot", nil, hardware(190), says(checks.Fail, "hot", "at most 10 %", "30 %", hot)).Holding(file, before300(`{"hardware":100000000000}`)),
		checktest.OnGPUs("hot all the time, and the driver was reloaded", nil, hardware(400), says(checks.Fail, "hot", "at most 10 %", "100 %", hot)).
			Holding(file, before300(`{"hardware":900000000000}`)),
		checktest.OnGPUs("power brake", checktest.Of("5"), throttle(func(t *nvml.Throttle) { t.PowerBrake = ns(300 * second) }),
			says(checks.Fail, "brake", "at most 5 %", "100 %", "throttled by a power brake, share of the last 5 min")).Holding(file, before300(`{}`)),
		checktest.OnGPUs("warm", nil, throttle(func(t *nvml.Throttle) { t.Thermal = ns(60 * second) }),
			says(checks.Warn, "warm", "at most 10 %", "20 %", "throttled by the driver because of heat, share of the last 5 min")).Holding(file, before300(`{}`)),
		checktest.OnGPUs("at the power cap, with a driver that also counts it as heat", nil, throttle(func(t *nvml.Throttle) { t.Thermal, t.PowerCap = ns(201*second), ns(200*second) })).
			Holding(file, before300(`{"thermal":1000000000,"power_cap":2000000}`)),
		checktest.OnGPUs("warm and at the power cap", nil, throttle(func(t *nvml.Throttle) { t.Thermal, t.PowerCap = ns(60*second), ns(200*second) }),
			says(checks.Warn, "warm", "at most 10 %", "20 %", "throttled by the driver because of heat, share of the last 5 min")).Holding(file, before300(`{}`)),
		checktest.OnGPUs("throttled now, in the first run", nil, mask(0x48), just("hardware slowdown and hardware thermal slowdown")),
		checktest.OnGPUs("throttled now, in the second run", nil, mask(0x80)).Holding(file, before300(`{"in_a_row":1}`)),
		checktest.OnGPUs("throttled now, with a time counter", nil, throttle(func(t *nvml.Throttle) { t.Now, t.PowerBrake = nvml.Known(uint64(0x80)), ns(second) })).
			Holding(file, before300(`{"in_a_row":9}`)),
		checktest.OnGPUs("the power brake in the third run, its counter does not move", nil, mask(0x80), says(checks.Fail, "brake", "", "", "throttled in 3 consecutive runs: power brake")).
			Holding(file, before300(`{"in_a_row":2}`)),
		checktest.OnGPUs("heat in the fourth run, its counter does not move", nil, throttle(func(t *nvml.Throttle) { t.Now, t.HardwareThermal = nvml.Known(uint64(0x48)), ns(7*second) }),
			says(checks.Fail, "hot", "", "", "throttled in 4 consecutive runs: hardware slowdown and hardware thermal slowdown")).Holding(file, before300(`{"in_a_row":3,"hardware":7000000000}`)),
		checktest.OnGPUs("the power brake in the second run, only heat has a counter", nil, without(0x88, brake)).Holding(file, before300(`{"in_a_row":1}`)),
		checktest.OnGPUs("the power brake in the third run, only heat has a counter", nil, without(0x88, brake),
			says(checks.Fail, "brake", "", "", "throttled in 3 consecutive runs: hardware slowdown and power brake")).Holding(file, before300(`{"in_a_row":2}`)),
		checktest.OnGPUs("heat in the third run, only the power brake has a counter", nil, without(0x48, heat),
			says(checks.Fail, "hot", "", "", "throttled in 3 consecutive runs: hardware slowdown and hardware thermal slowdown")).Holding(file, before300(`{"in_a_row":2}`)),
		checktest.OnGPUs("short heat in the third run, the power brake has no counter", nil, func(n *nvml.Snapshot) { without(0x48, brake)(n); n.GPUs[3].Throttle.HardwareThermal = ns(second) }).
			Holding(file, before300(`{"in_a_row":2}`)),
		checktest.OnGPUs("too much power, in the second run", nil, mask(0x8), just("hardware slowdown")).Holding(file, before300(`{"in_a_row":1}`)),
		checktest.OnGPUs("too much power, in the third run", nil, mask(0x8), says(checks.Fail, "power", "", "", "throttled in 3 consecutive runs: hardware slowdown")).
			Holding(file, before300(`{"in_a_row":2}`)),
		checktest.OnV100s("throttled in the second run", nil, mask(0x8), just("hardware slowdown")).Holding(file, before300(`{"in_a_row":1}`)),
		checktest.OnV100s("throttled in the third run", nil, mask(0x48), says(checks.Fail, "hot", "", "", "throttled in 3 consecutive runs: hardware slowdown and hardware thermal slowdown")).
			Holding(file, before300(`{"in_a_row":2}`)),
		checktest.OnV100s("the power brake in the fourth run", nil, mask(0x88), says(checks.Fail, "brake", "", "", "throttled in 4 consecutive runs: hardware slowdown and power brake")).
			Holding(file, before300(`{"in_a_row":3}`)),
		checktest.OnV100s("the third run, too soon", nil, mask(0x8), just("hardware slowdown")).Holding(file, pastAt(time.Second, `{"in_a_row":2}`)),
		checktest.OnV100s("by the driver only", nil, mask(0x20)).Holding(file, before300(`{"in_a_row":2}`)),
		garbage, future, odd, checktest.GPUDumb(name),
	)
}
