package checks

import (
	"context"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
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
		Register(Info{
			Name:    name,
			Usage:   "[VERSION]",
			Summary: "the VBIOS is the right one",
			Lane:    NVML,
			New:     func() Check { return &gpuVBIOS{name: name} },
			Do: map[string]string{
				"gpu.vbios":        "Flash the VBIOS that nhc.conf asks for with the vendor's tool, or correct the line.",
				"gpu.vbios.one":    "Nothing: one VBIOS cannot differ. Give the line a VERSION to have it checked.",
				"gpu.vbios.differ": "A board was replaced or flashed by itself: bring all GPUs to one VBIOS with the vendor's tool.",
			},
		})
	}
}

func (c *gpuVBIOS) Run(_ context.Context, env *Env) []Finding {
	var notes []Finding
	match := env.matcher(&notes)
	s, findings := askNVML(env, c.name, 0)
	if s == nil {
		return findings
	}
	s.each(func(s *gpus, g *probe.GPU) {
		got, known := value(s, g.VBIOS)
		if known && c.Version != "" && !match(got, c.Version) {
			s.report(g, Finding{Code: "gpu.vbios", Severity: Fail, Want: c.Version, Got: got}, "VBIOS")
		}
	})
	if c.Version == "" {
		if _, compared := s.models(func(g *probe.GPU) bool { return g.VBIOS.Known }); !compared && s.judged && len(s.findings) == 0 {
			return []Finding{{Code: "gpu.vbios.one", Severity: Skip, Message: c.name + ":  no two GPUs of one model to compare, and no VERSION"}}
		}
		s.unlike(func(g *probe.GPU) (string, bool) { return g.VBIOS.Value, g.VBIOS.Known }, func(g *probe.GPU, want, got, than string) {
			s.report(g, Finding{Code: "gpu.vbios.differ", Severity: Warn, Want: want, Got: got}, "VBIOS is not that of %s", than)
		})
	}
	return append(notes, s.done()...)
}
