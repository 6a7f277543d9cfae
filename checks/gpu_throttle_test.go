package checks

import (
	"fmt"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// before300 is a past that was taken 300 seconds before the snapshot of h100s;
// gpu3 is what was kept of that GPU.
func before300(gpu3 string) string {
	return pastAt(300*time.Second, gpu3)
}

func pastAt(ago time.Duration, gpu3 string) string {
	return fmt.Sprintf(`{"taken":%q,"gpus":{%q:%s}}`, h100s().Taken.Add(-ago).Format(time.RFC3339), fakenvml.UUID(3), gpu3)
}

func TestGPUThrottle(t *testing.T)        { testCheck(t, "check_gpu_throttle") }
func TestGPUClockThrottling(t *testing.T) { testCheck(t, "check_gpu_clock_throttling") }

var (
	_ = table("check_gpu_throttle", throttleScenarios)
	_ = table("check_gpu_clock_throttling", throttleScenarios)
)

func throttleScenarios(name string) []scenario {
	const file, second = "past/gpu-throttle.json", uint64(time.Second)
	throttle := func(change func(t *probe.Throttle)) func(*probe.NVML) {
		return gpu3(func(g *probe.GPU) { change(&g.Throttle) })
	}
	ns := func(n uint64) probe.Reading[uint64] { return probe.Known(n) }
	hardware := func(seconds uint64) func(*probe.NVML) {
		return throttle(func(t *probe.Throttle) { t.HardwareThermal = ns(seconds * second) })
	}
	mask := func(m uint64) func(*probe.NVML) { return throttle(func(t *probe.Throttle) { t.Now = ns(m) }) }
	says := func(severity Severity, code, want, got, text string) Finding {
		return gpuFinding(name, 3, Finding{Code: "gpu.throttle." + code, Severity: severity, Want: want, Got: got}, text)
	}
	const hot = "slowed down by the hardware, for it was too hot, in the last 5m0s"
	just := func(what string) Finding { return says(Warn, "now", "", what, "slowed down just now") }
	garbage := onGPUs("garbage in what was kept", nil, nil, Finding{Code: "gpu.past", Severity: Warn,
		Message: name + ":  read /past/gpu-throttle.json: invalid character '\\x00' looking for beginning of object key string"}).holding(file, "{\x00")
	garbage.broken = true
	future := onGPUs("a clock that was set back", nil, hardware(600)).holding(file, pastAt(-time.Hour, `{}`))
	future.broken = true
	odd := onGPUs("one cannot be read", nil, throttle(func(t *probe.Throttle) { t.PowerBrake = probe.Failed[uint64](errOdd) }),
		gpuFinding(name, 3, Finding{Code: "gpu.error", Severity: Unknown}, "could not tell: "+oddText))
	odd.broken = true
	return append(gpuCommon(name),
		onGPUs("healthy", nil, nil), onV100s("an old GPU", nil, nil),
		onGPUs("the first run", nil, hardware(3000)),
		onGPUs("the last run was just now", nil, hardware(3000)).holding(file, pastAt(29*time.Second, `{}`)),
		onGPUs("power cap", nil, func(n *probe.NVML) { mask(4)(n); n.GPUs[3].Throttle.PowerCap = ns(300 * second) }).holding(file, before300(`{}`)),
		onGPUs("a tenth of the time", nil, hardware(130)).holding(file, before300(`{"hardware":100000000000}`)),
		onGPUs("a share that is allowed", of("50"), hardware(150)).holding(file, before300(`{}`)).orTable(map[string]any{"percent": int64(50)}),
		onGPUs("hot", nil, hardware(190), says(Fail, "hot", "at most 10 %", "30 %", hot)).holding(file, before300(`{"hardware":100000000000}`)),
		onGPUs("hot all the time, and the driver was loaded again", nil, hardware(400), says(Fail, "hot", "at most 10 %", "100 %", hot)).
			holding(file, before300(`{"hardware":900000000000}`)),
		onGPUs("power brake", of("5"), throttle(func(t *probe.Throttle) { t.PowerBrake = ns(300 * second) }),
			says(Fail, "brake", "at most 5 %", "100 %", "slowed down by a power brake in the last 5m0s")).holding(file, before300(`{}`)),
		onGPUs("warm", nil, throttle(func(t *probe.Throttle) { t.Thermal = ns(60 * second) }),
			says(Warn, "warm", "at most 10 %", "20 %", "slowed down by the driver, for it was too hot, in the last 5m0s")).holding(file, before300(`{}`)),
		onGPUs("at the power cap, by a driver that counts it as heat, too", nil, throttle(func(t *probe.Throttle) { t.Thermal, t.PowerCap = ns(201*second), ns(200*second) })).
			holding(file, before300(`{"thermal":1000000000,"power_cap":2000000}`)),
		onGPUs("warm and at the power cap", nil, throttle(func(t *probe.Throttle) { t.Thermal, t.PowerCap = ns(60*second), ns(200*second) }),
			says(Warn, "warm", "at most 10 %", "20 %", "slowed down by the driver, for it was too hot, in the last 5m0s")).holding(file, before300(`{}`)),
		onGPUs("an instant in the first run", nil, mask(0x48), just("hardware slowdown and hardware thermal slowdown")),
		onGPUs("an instant decides nothing", nil, mask(0x80)).holding(file, before300(`{"in_a_row":1}`)),
		onGPUs("instants decide nothing where the time is counted", nil, throttle(func(t *probe.Throttle) { t.Now, t.PowerBrake = probe.Known(uint64(0x80)), ns(second) })).
			holding(file, before300(`{"in_a_row":9}`)),
		onGPUs("the power brake in the third run, and its counter stands still", nil, mask(0x80), says(Fail, "brake", "", "power brake", "slowed down in 3 runs in a row")).
			holding(file, before300(`{"in_a_row":2}`)),
		onGPUs("heat in the fourth run, and its counter stands still", nil, throttle(func(t *probe.Throttle) { t.Now, t.HardwareThermal = probe.Known(uint64(0x48)), ns(7*second) }),
			says(Fail, "hot", "", "hardware slowdown and hardware thermal slowdown", "slowed down in 4 runs in a row")).holding(file, before300(`{"in_a_row":3,"hardware":7000000000}`)),
		onGPUs("too much power, in the second run", nil, mask(0x8), just("hardware slowdown")).holding(file, before300(`{"in_a_row":1}`)),
		onGPUs("too much power, in the third run", nil, mask(0x8), says(Fail, "power", "", "hardware slowdown", "slowed down in 3 runs in a row")).
			holding(file, before300(`{"in_a_row":2}`)),
		onV100s("the second run in a row", nil, mask(0x8), just("hardware slowdown")).holding(file, before300(`{"in_a_row":1}`)),
		onV100s("the third run in a row", nil, mask(0x48), says(Fail, "hot", "", "hardware slowdown and hardware thermal slowdown", "slowed down in 3 runs in a row")).
			holding(file, before300(`{"in_a_row":2}`)),
		onV100s("the power brake in the fourth", nil, mask(0x88), says(Fail, "brake", "", "hardware slowdown and power brake", "slowed down in 4 runs in a row")).
			holding(file, before300(`{"in_a_row":3}`)),
		onV100s("the third run, too soon", nil, mask(0x8), just("hardware slowdown")).holding(file, pastAt(time.Second, `{"in_a_row":2}`)),
		onV100s("of the driver alone", nil, mask(0x20)).holding(file, before300(`{"in_a_row":2}`)),
		garbage, future, odd, gpuDumb(name),
	)
}
