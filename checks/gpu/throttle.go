package gpu

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuThrottle checks for how long GPUs were slowed down since the last run: it
// fails where the hardware did so, because it was too hot or by a power brake, for
// more than PERCENT of that time, and warns where the driver did because of
// heat. Where the time is not counted (before Ampere, by an older driver, or because
// the GPU draws too much power at once, or because the counter does not move) it fails if
// the hardware slows the GPU down in three runs one after the other. That a power cap
// limits the clocks is normal. check_gpu_clock_throttling is AzureHPC's name of it.
//
//	gpu* || check_gpu_throttle
type gpuThrottle struct {
	Percent float64 `arg:"1" toml:"percent"` // percent of the time since the last run

	name string
}

func init() {
	for _, name := range []string{"check_gpu_throttle", "check_gpu_clock_throttling"} {
		checks.Register(checks.Info{
			Name:    name,
			Usage:   "[PERCENT]",
			Summary: "the hardware does not slow GPUs down",
			Lane:    checks.NVML,
			New:     func() checks.Check { return &gpuThrottle{Percent: 10, name: name} },
			Do: func() map[string]string {
				return map[string]string{
					"gpu.throttle.hot":   "The hardware halves the clocks because of heat: look at fans, coolant and the room. One GPU alone has a bad heat sink.",
					"gpu.throttle.brake": "The chassis pulls the power brake: look at power supplies and the PDU (ipmitool sel list), and at the rack's power limit.",
					"gpu.throttle.power": "The hardware halves the clocks for the GPU draws too much power at once: compare with the other GPUs, look at power supplies and cables; if it is one GPU alone have it replaced.",
					"gpu.throttle.warm":  "The driver lowers the clocks because of heat: look at the cooling before the hardware does worse.",
					"gpu.throttle.now":   "Nothing by itself: seen at this instant. If it lasts the check fails in the third run.",
				}
			},
		})
	}
}

// throttled is what is kept of a GPU.
type throttled struct {
	Thermal  uint64 `json:"thermal"` // nanoseconds since the driver was loaded, of each reason
	Hardware uint64 `json:"hardware"`
	Brake    uint64 `json:"brake"`
	PowerCap uint64 `json:"power_cap"`
	InARow   int    `json:"in_a_row"` // runs in which the hardware slowed it down
}

// HardwareReasons are those that the hardware itself slows a GPU down for.
const HardwareReasons = nvml.ThrottleHardware | nvml.ThrottleHardwareThermal | nvml.ThrottlePowerBrake

func (c *gpuThrottle) Run(_ context.Context, env *checks.Env) []checks.Finding {
	s, findings := AskNVML(env, c.name, nvml.GroupThrottle)
	if s == nil {
		return findings
	}
	m := recallGPU[throttled](env, c.name, "gpu-throttle", s.NVML.Taken)
	s.Each(func(s *GPUs, g *nvml.GPU) { c.judge(s, g, m) })
	return append(s.Done(), m.store(env)...)
}

func (c *gpuThrottle) judge(s *GPUs, g *nvml.GPU, m *memory[throttled]) {
	then, compare := m.of(g)
	var next throttled
	mask, _ := Value(s, g.Throttle.Now)
	thermal, _ := Value(s, g.Throttle.Thermal)
	hardware, hasHardware := Value(s, g.Throttle.HardwareThermal)
	brake, hasBrake := Value(s, g.Throttle.PowerBrake)
	power, _ := Value(s, g.Throttle.PowerCap)
	next.Thermal, next.Hardware, next.Brake, next.PowerCap = thermal, hardware, brake, power
	slowed := mask & HardwareReasons
	if slowed != 0 {
		next.InARow = then.InARow + 1
	}
	still := slowed&nvml.ThrottleHardwareThermal != 0 && hasHardware && hardware == then.Hardware ||
		slowed&nvml.ThrottlePowerBrake != 0 && hasBrake && brake == then.Brake
	counted := hasHardware || hasBrake
	if counted && (slowed == nvml.ThrottleHardware || still && next.InARow >= inARow) { // too much power drawn at once has no counter; or one does not count
		counted = false
		if compare {
			c.overTime(s, g, then, next, m.elapsed)
		}
	}
	switch {
	case counted && compare:
		c.overTime(s, g, then, next, m.elapsed)
	case slowed != 0 && !counted && next.InARow >= inARow && compare:
		f := checks.Finding{Code: "gpu.throttle.hot", Severity: checks.Fail, Got: ThrottleWords(slowed)}
		if slowed == nvml.ThrottleHardware && (hasHardware || hasBrake) {
			f.Code = "gpu.throttle.power"
		}
		if slowed&nvml.ThrottlePowerBrake != 0 {
			f.Code = "gpu.throttle.brake"
		}
		s.Report(g, f, "slowed down in %d runs in a row", next.InARow)
	case slowed != 0:
		s.Report(g, checks.Finding{Code: "gpu.throttle.now", Severity: checks.Warn, Got: ThrottleWords(slowed)}, "slowed down just now")
	}
	m.next.GPUs[g.UUID.Value] = next
}

// overTime judges each reason by the share of the time that it lasted.
func (c *gpuThrottle) overTime(s *GPUs, g *nvml.GPU, then, now throttled, elapsed time.Duration) {
	for _, r := range []struct {
		then, now uint64
		severity  checks.Severity
		code, who string
	}{
		{then.Hardware, now.Hardware, checks.Fail, "gpu.throttle.hot", "the hardware, for it was too hot,"},
		{then.Brake, now.Brake, checks.Fail, "gpu.throttle.brake", "a power brake"},
		{then.Thermal, now.Thermal, checks.Warn, "gpu.throttle.warm", "the driver, for it was too hot,"},
	} {
		grown := since(r.then, r.now)
		share := min(100*float64(grown)/float64(elapsed), 100)
		if share <= c.Percent || r.code == "gpu.throttle.warm" && grownAlike(grown, since(then.PowerCap, now.PowerCap)) {
			continue
		}
		s.Report(g, checks.Finding{Code: r.code, Severity: r.severity, Want: fmt.Sprintf("at most %g %%", c.Percent), Got: fmt.Sprintf("%.0f %%", share)},
			"slowed down by %s in the last %s", r.who, elapsed.Round(time.Second))
	}
}

// since returns by how much a counter has grown. It begins at 0 when the driver is
// loaded again.
func since(then, now uint64) uint64 {
	if now < then {
		return now
	}
	return now - then
}

// grownAlike reports whether two times differ by at most a hundredth. Drivers of release 575
// count a GPU at its power cap in the counter of the thermal slowdown, too.
func grownAlike(a, b uint64) bool {
	more, less := max(a, b), min(a, b)
	return more-less <= more/100
}

// ThrottleWords names the reasons in a mask.
func ThrottleWords(mask uint64) string {
	var words []string
	for _, r := range []struct {
		bit  uint64
		word string
	}{
		{nvml.ThrottleHardware, "hardware slowdown"}, {nvml.ThrottleHardwareThermal, "hardware thermal slowdown"}, {nvml.ThrottlePowerBrake, "power brake"},
	} {
		if mask&r.bit != 0 {
			words = append(words, r.word)
		}
	}
	return strings.Join(words, " and ")
}
