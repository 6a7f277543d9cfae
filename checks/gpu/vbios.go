package gpu

import (
	"context"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuVBIOS checks that every GPU has the VBIOS VERSION, a match string. Without it
// the check warns where GPUs of one model differ. check_vbios_version is AzureHPC's
// name of it.
//
//	gpu* || check_gpu_vbios 96.00.30.00.01
type gpuVBIOS struct {
	Version string `arg:"1" toml:"version"` // match string for the version

	name string
}

func init() {
	for _, name := range []string{"check_gpu_vbios", "check_vbios_version"} {
		checks.Register(checks.Info{
			Name:    name,
			Usage:   "[VERSION]",
			Summary: "the VBIOS is the right one",
			Lane:    checks.NVML,
			New:     func() checks.Check { return &gpuVBIOS{name: name} },
			Do: func() map[string]string {
				return map[string]string{
					"gpu.vbios":        "Flash the VBIOS that nhc.conf asks for with the vendor's tool, or correct the line.",
					"gpu.vbios.one":    "Nothing: one VBIOS cannot differ. Give the line a VERSION to have it checked.",
					"gpu.vbios.differ": "A board was replaced or flashed by itself: bring all GPUs to one VBIOS with the vendor's tool.",
				}
			},
		})
	}
}

func (c *gpuVBIOS) Run(_ context.Context, env *checks.Env) []checks.Finding {
	var notes []checks.Finding
	match := env.Matcher(&notes)
	s, findings := AskNVML(env, c.name, 0)
	if s == nil {
		return findings
	}
	s.Each(func(s *GPUs, g *nvml.GPU) {
		got, known := Value(s, g.VBIOS)
		if known && c.Version != "" && !match(got, c.Version) {
			s.Report(g, checks.Finding{Code: "gpu.vbios", Severity: checks.Fail, Want: c.Version, Got: got}, "VBIOS")
		}
	})
	env.Fact("VBIOS %s", s.NVML.GPUs[0].VBIOS.Value)
	if c.Version == "" {
		if _, compared := s.models(func(g *nvml.GPU) bool { return g.VBIOS.Known }); !compared && s.Judged && len(s.Findings) == 0 {
			return []checks.Finding{checks.Finding{Code: "gpu.vbios.one", Severity: checks.Skip}.Describe(c.name, "no two GPUs of one model to compare, and no VERSION")}
		}
		s.unlike(func(g *nvml.GPU) (string, bool) { return g.VBIOS.Value, g.VBIOS.Known }, func(g *nvml.GPU, want, got, than string) {
			s.Report(g, checks.Finding{Code: "gpu.vbios.differ", Severity: checks.Warn, Want: want, Got: got}, "VBIOS is not that of %s", than)
		})
	}
	return append(notes, s.Done()...)
}
