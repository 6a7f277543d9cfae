package gpu

import (
	"context"
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuClocks checks that the application clocks are not set lower than each GPU's own
// default, and warns where they are. It accepts the same lower clock of all GPUs of a
// model: a site has set it. GRAPHICS and MEMORY are clocks
// in MHz that the GPU has to reach: it fails where its highest clock or its
// application clock is lower. Without them it warns where a highest clock is less
// than that of the node's platform, than it was before, or than that of the
// other GPUs.
// check_app_gpu_clocks is AzureHPC's name of it, which set the clocks;
// this program sets none. Newer GPUs have no application clocks.
//
//	gpu* || check_gpu_clocks 1980 2619
type gpuClocks struct {
	Graphics int `arg:"1" toml:"graphics"` // graphics clock that is reached at least, MHz
	Memory   int `arg:"2" toml:"memory"`   // memory clock that is reached at least, MHz

	name string
}

func init() {
	for _, name := range []string{"check_gpu_clocks", "check_app_gpu_clocks"} {
		checks.Register(checks.Info{
			Name:    name,
			Usage:   "[GRAPHICS [MEMORY]]",
			Summary: "clocks are not set lower than they are by default",
			Lane:    checks.NVML,
			New:     func() checks.Check { return &gpuClocks{name: name} },
			Do: func() map[string]string {
				return map[string]string{
					"gpu.clocks.app": "nvidia-smi -ac MEMORY,GRAPHICS with -i and the GPU's address sets application clocks, -rac takes them back; see who has lowered them.",
					"gpu.clocks.max": "The GPU is another model than is expected, or its VBIOS caps it: compare with the other GPUs in nvidia-smi -q -d CLOCK. If it was meant remove gpu-clocks.json in /var/lib/nhc-gpu, or see docs/thresholds.md.",
				}
			},
		})
	}
}

func (c *gpuClocks) Run(_ context.Context, env *checks.Env) []checks.Finding {
	s, findings := AskNVML(env, c.name, nvml.GroupClocks)
	if s == nil {
		return findings
	}
	s.Each(func(s *GPUs, g *nvml.GPU) {
		k := g.Clocks
		judgeClock(s, g, "graphics", c.Graphics, k.MaxGraphics, func(g *nvml.GPU) nvml.Reading[uint32] { return g.Clocks.AppGraphics }, k.DefaultGraphics)
		judgeClock(s, g, "memory", c.Memory, k.MaxMemory, func(g *nvml.GPU) nvml.Reading[uint32] { return g.Clocks.AppMemory }, k.DefaultMemory)
	})
	s.fact("graphics up to ", " MHz", func(g *nvml.GPU) nvml.Reading[int] { return whole(g.Clocks.MaxGraphics, 1) })
	s.fact("memory up to ", " MHz", func(g *nvml.GPU) nvml.Reading[int] { return whole(g.Clocks.MaxMemory, 1) })
	s.compare("gpu-clocks", c.figures()...)
	return s.Done()
}

// figures are the clocks of which the configuration says nothing.
func (c *gpuClocks) figures() (list []gpuFigure) {
	if c.Graphics <= 0 {
		list = append(list, gpuFigure{
			key: "graphics", what: "highest graphics clock", unit: "MHz", code: "gpu.clocks.max",
			of:    func(g *nvml.GPU) nvml.Reading[int] { return whole(g.Clocks.MaxGraphics, 1) },
			least: func(p *checks.Platform) int { return p.GraphicsClock },
		})
	}
	if c.Memory <= 0 {
		list = append(list, gpuFigure{
			key: "memory", what: "highest memory clock", unit: "MHz", code: "gpu.clocks.max",
			of:    func(g *nvml.GPU) nvml.Reading[int] { return whole(g.Clocks.MaxMemory, 1) },
			least: func(p *checks.Platform) int { return p.MemoryClock },
		})
	}
	return list
}

func judgeClock(s *GPUs, g *nvml.GPU, what string, want int, most nvml.Reading[uint32], app func(*nvml.GPU) nvml.Reading[uint32], usual nvml.Reading[uint32]) {
	top, known := Value(s, most)
	set, isSet := Value(s, app(g))
	given, hasDefault := Value(s, usual)
	f := checks.Finding{Severity: checks.Fail, Want: fmt.Sprintf("at least %d MHz", want)}
	switch {
	case known && want > 0 && int(top) < want:
		f.Code, f.Got = "gpu.clocks.max", fmt.Sprintf("%d MHz", top)
		s.Report(g, f, "highest %s clock", what)
	case isSet && want > 0 && int(set) < want:
		f.Code, f.Got, f.Remedy = "gpu.clocks.app", fmt.Sprintf("%d MHz", set), checks.FixConfig
		s.Report(g, f, "application clock for %s", what)
	case isSet && want <= 0 && hasDefault && set < given && !s.allHave(g, func(o *nvml.GPU) nvml.Reading[int] { return whole(app(o), 1) }):
		f = checks.Finding{Code: "gpu.clocks.app", Severity: checks.Warn, Want: fmt.Sprintf("at least %d MHz", given), Got: fmt.Sprintf("%d MHz", set), Remedy: checks.FixConfig}
		s.Report(g, f, "application clock for %s", what)
	}
}
