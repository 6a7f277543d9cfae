package gpu

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuThrottle checks for how long the GPUs were throttled since the last run. It fails if the
// hardware has throttled a GPU, because of heat or by a power brake, for more than PERCENT of that
// time, and warns if the driver has, because of heat.
//
// Some throttling has no time counter: before Ampere, with an older driver, or because the GPU
// draws too much power at once; and some counters do not move. Then the check fails if the
// hardware throttles the GPU in three consecutive runs.
//
// A power cap that limits the clocks is normal. check_gpu_clock_throttling is AzureHPC's name.
//
//	gpu* || check_gpu_throttle
type gpuThrottle struct {
	Percent float64 `arg:"1" toml:"percent" in:"0:100 max"` // highest share of throttled time since the last run, percent

	name string
}

func init() {
	for _, name := range []string{"check_gpu_throttle", "check_gpu_clock_throttling"} {
		checks.Register(checks.Info{
			Name:    name,
			Usage:   "[PERCENT]",
			Summary: "the hardware does not throttle GPUs",
			Lane:    checks.NVML,
			New:     func() checks.Check { return &gpuThrottle{Percent: 10, name: name} },
			Do: func() map[string]string {
				return map[string]string{
					"gpu.throttle.hot":   "The hardware halves the clocks because of heat: check fans, coolant and the room temperature. If only one GPU is hot, its heat sink is faulty.",
					"gpu.throttle.brake": "The chassis applies the power brake: check the power supplies and the PDU (ipmitool sel list), and the power limit of the rack.",
					"gpu.throttle.power": "The hardware halves the clocks because the GPU draws too much power at once: compare with the other GPUs, check power supplies and cables. If only one GPU is affected, have it replaced.",
					"gpu.throttle.warm":  "The driver lowers the clocks because of heat: check the cooling before the hardware throttles the GPU.",
					"gpu.throttle.now":   "Nothing now: the GPU is throttled at this moment. If that lasts, the check fails in the third run.",
				}
			},
		})
	}
}

// throttled is the state of a GPU that the check keeps for the next run.
type throttled struct {
	Thermal  uint64 `json:"thermal"` // throttled time since the driver was loaded, nanoseconds, by reason
	Hardware uint64 `json:"hardware"`
	Brake    uint64 `json:"brake"`
	PowerCap uint64 `json:"power_cap"`
	InARow   int    `json:"in_a_row"` // consecutive runs with throttling by the hardware
}

// HardwareReasons are the reasons of throttling by the hardware itself.
const HardwareReasons = nvml.ThrottleHardware | nvml.ThrottleHardwareThermal | nvml.ThrottlePowerBrake

func (c *gpuThrottle) Run(_ context.Context, env *checks.Env) []checks.Finding {
	s, findings := AskNVML(env, c.name, nvml.GroupThrottle)
	if s == nil {
		return findings
	}
	m := recallGPU[throttled](env, c.name, "gpu-throttle", s.NVML.Taken)
	s.Each(func(s *GPUs, g *nvml.GPU) { c.judge(s, g, m) })
	s.total("slowed down by the hardware", func(g *nvml.GPU) (n uint64, known bool) {
		if g.Throttle.Now.Value&HardwareReasons != 0 {
			n = 1
		}
		return n, g.Throttle.Now.Known
	})
	return append(s.Done(), m.store(s)...)
}

func (c *gpuThrottle) judge(s *GPUs, g *nvml.GPU, m *memory[throttled]) {
	then, compare := m.of(g)
	next := throttled{InARow: then.InARow} // stays if the reasons cannot be read
	mask, known := Value(s, g.Throttle.Now)
	count := func(name string, now nvml.Reading[uint64], then uint64) (uint64, checks.Growth) {
		Value(s, now)
		return m.counter(g, name, now, then, compare)
	}
	var thermal, hardware, brake, power checks.Growth
	next.Thermal, thermal = count("thermal", g.Throttle.Thermal, then.Thermal)
	next.Hardware, hardware = count("hardware", g.Throttle.HardwareThermal, then.Hardware)
	next.Brake, brake = count("brake", g.Throttle.PowerBrake, then.Brake)
	next.PowerCap, power = count("power_cap", g.Throttle.PowerCap, then.PowerCap)
	slowed := mask & HardwareReasons
	switch {
	case slowed != 0:
		next.InARow++
	case known:
		next.InARow = 0
	}
	answers := func(name string, r nvml.Reading[uint64]) bool { // an unread counter exists if it was read in the last hour
		return r.Known || r.Err != nil && compare && s.NVML.Taken.Sub(m.readAt(g.UUID.Value, name)) < failureDuration
	}
	silent := func(name string, r nvml.Reading[uint64], grown checks.Growth) bool {
		return grown.Known && grown.N == 0 || !answers(name, r)
	}
	still := slowed&nvml.ThrottleHardwareThermal != 0 && silent("hardware", g.Throttle.HardwareThermal, hardware) ||
		slowed&nvml.ThrottlePowerBrake != 0 && silent("brake", g.Throttle.PowerBrake, brake)
	hasCounter := answers("hardware", g.Throttle.HardwareThermal) || answers("brake", g.Throttle.PowerBrake)
	counted := hasCounter
	if slowed == nvml.ThrottleHardware || still && next.InARow >= inARow {
		counted = false // too much power at once has no counter, and this counter does not move
	}
	// Drivers of release 575 also count time at the power cap in the counter of the thermal slowdown.
	if g.Throttle.PowerCap.Err != nil || power.Known && (power.Over != thermal.Over || areAlike(power.N, thermal.N)) {
		thermal.Known = false
	}
	if hasCounter && compare {
		c.judgeShares(s, g, hardware, brake, thermal)
	}
	switch {
	case counted && compare && cmp.Or(g.Throttle.HardwareThermal.Err, g.Throttle.PowerBrake.Err) == nil:
	case slowed != 0 && !counted && next.InARow >= inARow && compare:
		f := checks.Finding{Code: "gpu.throttle.hot", Severity: checks.Fail}
		if slowed == nvml.ThrottleHardware && hasCounter {
			f.Code = "gpu.throttle.power"
		}
		if slowed&nvml.ThrottlePowerBrake != 0 {
			f.Code = "gpu.throttle.brake"
		}
		s.Report(g, f, "throttled in %d consecutive runs: %s", next.InARow, ThrottleWords(slowed))
	case slowed != 0:
		s.Report(g, checks.Finding{Code: "gpu.throttle.now", Severity: checks.Warn}, "throttled at this moment: %s", ThrottleWords(slowed))
	}
	m.next.GPUs[g.UUID.Value] = next
}

// judgeShares judges each reason by its share of the time since its counter was last read.
func (c *gpuThrottle) judgeShares(s *GPUs, g *nvml.GPU, hardware, brake, thermal checks.Growth) {
	for _, r := range []struct {
		checks.Growth

		severity    checks.Severity
		code, cause string
	}{
		{hardware, checks.Fail, "gpu.throttle.hot", "the hardware because of heat"},
		{brake, checks.Fail, "gpu.throttle.brake", "a power brake"},
		{thermal, checks.Warn, "gpu.throttle.warm", "the driver because of heat"},
	} {
		share := min(100*float64(r.N)/float64(r.Over), 100)
		if !r.Known || share <= c.Percent {
			continue
		}
		s.Report(g, checks.Finding{Code: r.code, Severity: r.severity, Want: fmt.Sprintf("at most %g %%", c.Percent), Got: fmt.Sprintf("%.0f %%", share)},
			"throttled by %s, share of the last %s", r.cause, checks.Lasted(r.Over))
	}
}

// areAlike reports whether two times differ by at most 1 %.
func areAlike(a, b uint64) bool {
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
