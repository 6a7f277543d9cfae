package gpu

import (
	"context"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuVBIOS checks that every GPU has the VBIOS version VERSION, a match string. Without VERSION it
// warns if GPUs of one model differ. check_vbios_version is AzureHPC's name.
//
//	gpu* || check_gpu_vbios 96.00.30.00.01
type gpuVBIOS struct {
	Version string `arg:"1" toml:"version"` // match string for the version; none: the same on all GPUs of a model

	name string
}

func init() {
	for _, name := range []string{"check_gpu_vbios", "check_vbios_version"} {
		checks.Register(checks.Info{
			Name:    name,
			Usage:   "[VERSION]",
			Summary: "the VBIOS version is correct",
			Lane:    checks.NVML,
			New:     func() checks.Check { return &gpuVBIOS{name: name} },
			Do: func() map[string]string {
				return map[string]string{
					"gpu.vbios":        "Flash the VBIOS version that nhc.conf wants with the vendor's tool, or correct the line.",
					"gpu.vbios.one":    "Nothing: there are no two GPUs of one model to compare. Add VERSION to the line to check the version.",
					"gpu.vbios.differ": "One board was replaced or flashed: bring all GPUs to one VBIOS version with the vendor's tool.",
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
		if _, compared := s.groupByModel(func(g *nvml.GPU) bool { return g.VBIOS.Known }); !compared && s.Judged && len(s.Findings) == 0 {
			return []checks.Finding{checks.Finding{Code: "gpu.vbios.one", Severity: checks.Skip}.Describe(c.name, "no two GPUs of one model to compare, and no VERSION")}
		}
		s.reportOutliers(func(g *nvml.GPU) (string, bool) { return g.VBIOS.Value, g.VBIOS.Known }, func(g *nvml.GPU, want, got, reference string) {
			s.Report(g, checks.Finding{Code: "gpu.vbios.differ", Severity: checks.Warn, Want: want, Got: got}, "VBIOS differs from that of %s", reference)
		})
	}
	return append(notes, s.Done()...)
}
