package gpu

import (
	"context"
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuPower checks the power limit of every GPU: WATTS, or no lower than its
// default, which is only warned of, and accepted where all GPUs of the model have the
// same lower limit: a site has set it. It warns, too, where something other than that
// limit holds the GPU lower still, as a power brake of the chassis does; and
// without WATTS where the default is less than that of the node's platform, than
// it was before, or than that of the other GPUs.
//
//	gpu* || check_gpu_power 700
type gpuPower struct {
	Watts int `arg:"1" toml:"watts"` // the power limit, in watts; 0: the GPU's default
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
				"gpu.power.limit":    "nvidia-smi -pl WATTS with -i and the GPU's address sets it; see who has lowered it. It does not outlive the driver.",
				"gpu.power.default":  "The board's VBIOS caps it, or it is another board: compare nvidia-smi -q -d POWER with the other GPUs. If it was meant remove gpu-power.json in /var/lib/nhc-gpu, or see docs/thresholds.md.",
				"gpu.power.enforced": "Something beside the limit holds the power down: see nvidia-smi -q -d POWER, and the chassis for a power brake or a lost power supply.",
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
	s.fact("power limit ", " W", limitOf)
	if c.Watts <= 0 {
		s.compare("gpu-power", gpuFigure{
			key: "default", what: "default power limit", unit: "W", code: "gpu.power.default", slack: 1,
			of:    func(g *nvml.GPU) nvml.Reading[int] { return whole(g.Power.Default, 1000) },
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
	_, _ = Value(s, g.Power.Draw) // a GPU that cannot tell what it draws is faulty
	s.Judged = judged || hasUsual || known && (c.Watts > 0 || isEnforced)
	f := checks.Finding{Code: "gpu.power.limit", Severity: checks.Fail, Got: Watts(limit), Remedy: checks.FixConfig}
	switch {
	case known && c.Watts > 0 && apart(limit, uint32(c.Watts)*1000):
		f.Want = Watts(uint32(c.Watts) * 1000)
		s.Report(g, f, "power limit")
	case known && c.Watts <= 0 && hasUsual && limit < usual && apart(limit, usual) && !s.allHave(g, limitOf):
		f.Severity, f.Want = checks.Warn, Watts(usual)
		s.Report(g, f, "power limit")
	}
	if known && isEnforced && enforced < limit && apart(enforced, limit) {
		s.Report(g, checks.Finding{Code: "gpu.power.enforced", Severity: checks.Warn, Want: Watts(limit), Got: Watts(enforced)}, "power limit that is enforced")
	}
}

func limitOf(g *nvml.GPU) nvml.Reading[int] { return whole(g.Power.Limit, 1000) }

// apart says whether two powers in milliwatts differ by more than what is lost
// when one is rounded to watts.
func apart(a, b uint32) bool { return a > b+1000 || b > a+1000 }

// Watts is a power in whole watts.
func Watts(milliwatts uint32) string { return fmt.Sprintf("%d W", (uint64(milliwatts)+500)/1000) }
