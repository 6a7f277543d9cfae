package gpu

import (
	"context"
	"fmt"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuPower checks the power limit of every GPU. With WATTS the limit must be WATTS. Without WATTS
// it warns if the limit is lower than the GPU's default, unless all GPUs of the model have the same
// lower limit: then the site has set it.
//
// It also warns if the enforced limit is lower than the set one, for example by a power brake of
// the chassis. Where the limit of a module covers GPU and CPU (GH200), that is normal: it warns if
// the enforced limit is also lower than that of another GPU. Without WATTS it warns if the default
// is lower than that of the node's platform, than it was before, or than that of the other GPUs.
//
//	gpu* || check_gpu_power 700
type gpuPower struct {
	Watts int `arg:"1" toml:"watts" in:"20:5000"` // power limit, watts; 0: the GPU's default
}

const gpuPowerName = "check_gpu_power"

func init() {
	checks.Register(checks.Info{
		Name:    gpuPowerName,
		Usage:   "[WATTS]",
		Summary: "power limits are as wanted",
		Lane:    checks.NVML,
		New:     func() checks.Check { return &gpuPower{} },
		Do: func() map[string]string {
			return map[string]string{
				"gpu.power.limit":    "Set the limit with nvidia-smi -i ADDRESS -pl WATTS, and find out who changed it. The setting is lost when the driver is unloaded.",
				"gpu.power.default":  "The VBIOS of the board limits the power, or the board is another model: compare nvidia-smi -q -d POWER of all GPUs. After an intended change delete gpu-power.json in " + checks.PastDir + ", or set the figure in a profile (docs/thresholds.md).",
				"gpu.power.enforced": "Something else limits the power: check nvidia-smi -q -d POWER, and the chassis for a power brake or a failed power supply.",
			}
		},
	})
}

func (c *gpuPower) Run(_ context.Context, env *checks.Env) []checks.Finding {
	s, findings := AskNVML(env, gpuPowerName, nvml.GroupPower)
	if s == nil {
		return findings
	}
	s.Each(c.judge)
	s.fact("power limit ", " W", readLimitWatts)
	if c.Watts <= 0 {
		s.compare("gpu-power", gpuFigure{
			key: "default", name: "default power limit", unit: "W", code: "gpu.power.default", slack: 1,
			of:    func(g *nvml.GPU) nvml.Reading[int] { return roundTo(g.Power.Default, 1000) },
			least: func(p *checks.Platform) int { return p.PowerLimit },
		})
	}
	return s.Done()
}

func (c *gpuPower) judge(s *GPUs, g *nvml.GPU) {
	judged := s.Judged
	limit, known := Value(s, g.Power.Limit)
	usual, hasUsual := Value(s, g.Power.Default)
	enforced, isEnforced := Value(s, g.Power.Enforced)
	_, _ = Value(s, g.Power.Draw) // a GPU without a power reading is faulty
	s.Judged = judged || hasUsual || known && (c.Watts > 0 || isEnforced)
	f := checks.Finding{Code: "gpu.power.limit", Severity: checks.Fail, Got: Watts(limit), Remedy: checks.FixConfig}
	switch {
	case known && c.Watts > 0 && apart(limit, uint32(c.Watts)*1000):
		f.Want = Watts(uint32(c.Watts) * 1000)
		s.Report(g, f, "power limit")
	case known && c.Watts <= 0 && hasUsual && limit < usual && apart(limit, usual) && !s.allEqual(g, readLimitWatts):
		f.Severity, f.Want = checks.Warn, Watts(usual)
		s.Report(g, f, "power limit")
	}
	if known && isEnforced && enforced < limit && apart(enforced, limit) && !sharesPower(s, g) {
		s.Report(g, checks.Finding{Code: "gpu.power.enforced", Severity: checks.Warn, Want: Watts(limit), Got: Watts(enforced)}, "enforced power limit")
	}
}

// sharesPower reports whether the GPU shares the limit of a module with a Grace CPU, whose memory it can
// use, and no GPU of its model has a higher enforced limit.
func sharesPower(s *GPUs, g *nvml.GPU) bool {
	return s.findPlatform(g).MemoryNode > 0 && isHighest(s, g)
}

// isHighest reports whether no GPU of the same model has a higher enforced power limit.
func isHighest(s *GPUs, g *nvml.GPU) bool {
	return !slices.ContainsFunc(s.NVML.GPUs, func(o nvml.GPU) bool {
		return o.Name.Value == g.Name.Value && o.Power.Enforced.Value > g.Power.Enforced.Value && apart(o.Power.Enforced.Value, g.Power.Enforced.Value)
	})
}

// LoweredLimit returns the power limit, in milliwatts, that an administrator has lowered below the
// default, 0 if there is none. A BMC lowers only the enforced limit, and that of all GPUs of a
// model. A module lowers it, too, to share its power between GPU and CPU: that is its design.
func LoweredLimit(s *GPUs, g *nvml.GPU) uint32 {
	limit, enforced := g.Power.Limit.Value, g.Power.Enforced.Value
	lower := func(mW uint32) bool { return mW > 0 && mW < g.Power.Default.Value && apart(mW, g.Power.Default.Value) }
	switch {
	case lower(limit):
		return limit
	case lower(enforced) && isHighest(s, g) && !sharesPower(s, g):
		return enforced
	}
	return 0
}

func readLimitWatts(g *nvml.GPU) nvml.Reading[int] { return roundTo(g.Power.Limit, 1000) }

// apart reports whether two powers in milliwatts differ by more than the rounding to watts.
func apart(a, b uint32) bool { return a > b+1000 || b > a+1000 }

// Watts formats a power in whole watts.
func Watts(milliwatts uint32) string { return fmt.Sprintf("%d W", (uint64(milliwatts)+500)/1000) }
