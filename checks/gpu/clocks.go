package gpu

import (
	"context"
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuClocks checks the clocks of every GPU. With GRAPHICS or MEMORY it fails if the highest clock or
// the application clock is lower. Without them it warns if an application clock is lower than the
// GPU's default, unless all GPUs of the model have the same lower clock: then the site has set it.
// It also warns if the highest clock is lower than that of the node's platform, than it was before,
// or than that of the other GPUs.
//
// Newer GPUs have no application clocks. check_app_gpu_clocks is AzureHPC's name; AzureHPC's check
// sets the clocks, this one does not.
//
//	gpu* || check_gpu_clocks 1980 2619
type gpuClocks struct {
	Graphics int `arg:"1" toml:"graphics" in:"100:10000 min"` // lowest graphics clock, MHz; 0: by the GPU's default and the platform
	Memory   int `arg:"2" toml:"memory" in:"100:50000 min"`   // lowest memory clock, MHz; 0: by the GPU's default and the platform

	name string
}

func init() {
	for _, name := range []string{"check_gpu_clocks", "check_app_gpu_clocks"} {
		checks.Register(checks.Info{
			Name:    name,
			Usage:   "[GRAPHICS [MEMORY]]",
			Summary: "clocks are not lower than their defaults",
			Lane:    checks.NVML,
			New:     func() checks.Check { return &gpuClocks{name: name} },
			Do: func() map[string]string {
				return map[string]string{
					"gpu.clocks.app": "Set the application clocks with nvidia-smi -i ADDRESS -ac MEMORY,GRAPHICS, or reset them with -rac, and find out who lowered them.",
					"gpu.clocks.max": "The GPU is another model than expected, or its VBIOS limits the clock: compare nvidia-smi -q -d CLOCK of all GPUs, and correct the numbers in nhc.conf. After an intended change delete gpu-clocks.json in " + checks.PastDir + ", or set the figure in a profile (docs/thresholds.md).",
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
	s.fact("graphics up to ", " MHz", func(g *nvml.GPU) nvml.Reading[int] { return roundTo(g.Clocks.MaxGraphics, 1) })
	s.fact("memory up to ", " MHz", func(g *nvml.GPU) nvml.Reading[int] { return roundTo(g.Clocks.MaxMemory, 1) })
	s.compare("gpu-clocks", c.listFigures()...)
	return s.Done()
}

// listFigures returns the clocks that the line in nhc.conf does not give.
func (c *gpuClocks) listFigures() (list []gpuFigure) {
	if c.Graphics <= 0 {
		list = append(list, gpuFigure{
			key: "graphics", name: "highest graphics clock", unit: "MHz", code: "gpu.clocks.max",
			of:    func(g *nvml.GPU) nvml.Reading[int] { return roundTo(g.Clocks.MaxGraphics, 1) },
			least: func(p *checks.Platform) int { return p.GraphicsClock },
		})
	}
	if c.Memory <= 0 {
		list = append(list, gpuFigure{
			key: "memory", name: "highest memory clock", unit: "MHz", code: "gpu.clocks.max",
			of:    func(g *nvml.GPU) nvml.Reading[int] { return roundTo(g.Clocks.MaxMemory, 1) },
			least: func(p *checks.Platform) int { return p.MemoryClock },
		})
	}
	return list
}

func judgeClock(s *GPUs, g *nvml.GPU, clock string, want int, most nvml.Reading[uint32], app func(*nvml.GPU) nvml.Reading[uint32], usual nvml.Reading[uint32]) {
	top, known := Value(s, most)
	set, isSet := Value(s, app(g))
	given, hasDefault := Value(s, usual)
	f := checks.Finding{Severity: checks.Fail, Want: fmt.Sprintf("at least %d MHz", want)}
	switch {
	case known && want > 0 && int(top) < want:
		f.Code, f.Got = "gpu.clocks.max", fmt.Sprintf("%d MHz", top)
		s.Report(g, f, "highest %s clock", clock)
	case isSet && want > 0 && int(set) < want:
		f.Code, f.Got, f.Remedy = "gpu.clocks.app", fmt.Sprintf("%d MHz", set), checks.FixConfig
		s.Report(g, f, "application clock for %s", clock)
	case isSet && want <= 0 && hasDefault && set < given && !s.allEqual(g, func(o *nvml.GPU) nvml.Reading[int] { return roundTo(app(o), 1) }):
		f = checks.Finding{Code: "gpu.clocks.app", Severity: checks.Warn, Want: fmt.Sprintf("at least %d MHz", given), Got: fmt.Sprintf("%d MHz", set), Remedy: checks.FixConfig}
		s.Report(g, f, "application clock for %s", clock)
	}
}
