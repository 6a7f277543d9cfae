package gpu

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/pcie"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// gpuPCIe checks the PCIe link of every GPU: WIDTH lanes are in use, without WIDTH
// as many as GPU and slot have together. It only warns where all GPUs of the model
// lack the same lanes, as a riser or the BIOS makes it. Where the kernel shows no
// slot, as in most virtual machines, the lanes of the node's platform are expected;
// without a platform those that most GPUs of the model use. A slot that has fewer
// lanes than the platform is warned of. GPU and slot reach GEN; without GEN the
// check warns where they do not reach the platform's generation, unless the slot is a
// bridge of a virtual machine. It also warns of
// fewer lanes or a lower generation than the GPU had before. An idle link lowers its
// generation to save power: the current generation is judged only of a GPU that
// NVML shows at work (utilization and P-state, else power), and warned of when it is
// too low in three runs one after the other. By rate, since the last run: fatal
// errors that the kernel has seen fail; other uncorrected ones, and more than RATE
// corrected ones or replays in a minute, are warned of. -r RATE fails in place of
// the latter.
//
//	gpu* || check_gpu_pcie 5 16
type gpuPCIe struct {
	Gen   int     `arg:"1" toml:"gen"`   // lowest generation that GPU and slot have together
	Width int     `arg:"2" toml:"width"` // fewest lanes in use
	Rate  float64 `opt:"r" toml:"rate"`  // replays or corrected errors in a minute that are too many
}

const gpuPCIeName = "check_gpu_pcie"

func init() {
	const cable = "Reseat the GPU or its riser; compare with the other GPUs (lspci -vv, LnkSta). If it stays the GPU or the slot is bad."
	checks.Register(checks.Info{
		Name:    gpuPCIeName,
		Usage:   "[-r RATE] [GEN [WIDTH]]",
		Summary: "PCIe links have their full width and few errors",
		Lane:    checks.NVML,
		New:     func() checks.Check { return &gpuPCIe{} },
		Do: func() map[string]string {
			return map[string]string{
				"gpu.pcie.width":     cable + " If only the slot has fewer lanes see the BIOS's setting for it, or give the number in nhc.conf.",
				"gpu.pcie.gen":       "GPU and slot cannot do what is asked for: see the BIOS's setting for the slot, the riser, and the line itself. If it was meant remove gpu-pcie-link.json in /var/lib/nhc-gpu, or see docs/thresholds.md.",
				"gpu.pcie.slow":      cable,
				"gpu.pcie.differ":    cable,
				"gpu.pcie.fatal":     "Reboot and see dmesg for AER lines; if it comes back reseat the GPU or its riser, then replace it.",
				"gpu.pcie.nonfatal":  "See dmesg for AER lines. If it goes on reseat the GPU or its riser.",
				"gpu.pcie.corrected": "Nothing is lost, but the link is poor: watch it. If bandwidth suffers reseat the GPU or its riser.",
			}
		},
	})
}

// linkPast is what is kept of a GPU's link.
type linkPast struct {
	Replays uint64  `json:"replays"`
	AER     pci.AER `json:"aer"`
	InARow  int     `json:"in_a_row"` // runs in which it was too slow at work
}

func (c *gpuPCIe) Run(_ context.Context, env *checks.Env) []checks.Finding {
	s, findings := AskNVML(env, gpuPCIeName, nvml.GroupPCIe)
	if s == nil {
		return findings
	}
	m := recallGPU[linkPast](env, gpuPCIeName, "gpu-pcie", s.NVML.Taken)
	s.Each(func(s *GPUs, g *nvml.GPU) {
		then, compare := m.of(g)
		next := linkPast{InARow: c.judgeLink(s, g, then, compare)}
		replays, counted := Value(s, g.Link.Replays)
		next.Replays = uint64(max(replays, 0))
		if counted && compare {
			c.tooMany(s, g, "PCIe replays", then.Replays, next.Replays, m.elapsed)
		}
		next.AER = c.judgeAER(env, s, g, then.AER, m.elapsed, compare)
		m.next.GPUs[g.UUID.Value] = next
	})
	s.fact("PCIe generation ", "", func(g *nvml.GPU) nvml.Reading[int] { return g.Link.Gen })
	s.fact("x", "", func(g *nvml.GPU) nvml.Reading[int] { return g.Link.Width })
	reportLacking(s, "PCIe width", func(g *nvml.GPU) nvml.Reading[int] { return g.Link.Width })
	s.compare("gpu-pcie-link", c.figures(s)...)
	judgeLower(s, "PCIe generation", func(g *nvml.GPU) nvml.Reading[int] { return g.Link.MaxGen })
	judgeLower(s, "PCIe width", func(g *nvml.GPU) nvml.Reading[int] { return g.Link.MaxWidth })
	return append(s.Done(), m.store(env)...)
}

// judgeLower warns of GPUs whose slot, or board, has less of something than most of their
// model: of two GPUs the one with less.
func judgeLower(s *GPUs, what string, of func(*nvml.GPU) nvml.Reading[int]) {
	most := s.mostHave(of)
	for i := range s.NVML.GPUs {
		g := &s.NVML.GPUs[i]
		if r := of(g); r.Known && r.Value < most[g.Name.Value] {
			f := checks.Finding{Code: "gpu.pcie.differ", Severity: checks.Warn, Want: fmt.Sprint(most[g.Name.Value]), Got: fmt.Sprint(r.Value)}
			s.Report(g, f, "%s is not that of the others", what)
		}
	}
}

// judgeLink returns in how many runs in a row the link was too slow at work.
func (c *gpuPCIe) judgeLink(s *GPUs, g *nvml.GPU, then linkPast, compare bool) (inRow int) {
	c.judgeWidth(s, g)
	gen, hasGen := Value(s, g.Link.Gen)
	maxGen, hasMaxGen := Value(s, g.Link.MaxGen)
	if hasMaxGen && c.Gen > 0 && maxGen < c.Gen {
		s.Report(g, checks.Finding{Code: "gpu.pcie.gen", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: fmt.Sprint(c.Gen), Got: fmt.Sprint(maxGen)}, "PCIe generation that GPU and slot can do")
	}
	if !hasGen || !hasMaxGen || gen >= maxGen || !atWork(&g.Link.Work) {
		return 0
	}
	if !compare {
		return 1
	}
	if inRow = then.InARow + 1; inRow >= inARow {
		s.Report(g, checks.Finding{Code: "gpu.pcie.slow", Severity: checks.Warn, Remedy: checks.ReseatOrRMA, Want: fmt.Sprint(maxGen), Got: fmt.Sprint(gen)},
			"PCIe generation at work, in %d runs in a row", inRow)
	}
	return inRow
}

// What proves that a GPU is at work. A lower utilization, or half the power, is
// also seen of GPUs on which a program only waits.
const (
	busyPercent = 10
	busyState   = 2 // P-states above it are of idle GPUs
)

// atWork reports whether NVML proves that the GPU is at work. Where it does not tell
// the utilization, as with MIG, half of the power limit does.
func atWork(w *nvml.Work) bool {
	switch {
	case w.State.Known && w.State.Value > busyState:
		return false
	case w.Busy.Known:
		return w.Busy.Value >= busyPercent
	}
	return w.Draw.Known && w.Limit.Known && w.Draw.Value > w.Limit.Value/2
}

// judgeWidth judges how many lanes are in use.
func (c *gpuPCIe) judgeWidth(s *GPUs, g *nvml.GPU) {
	width, known := Value(s, g.Link.Width)
	Value(s, g.Link.MaxWidth)
	if !known {
		return
	}
	want, sure := c.lanes(s, g)
	if p := s.platform(g); c.Width <= 0 && sure && width == want && want < min(p.PCIeWidth, g.Link.MaxWidth.Value) {
		s.Report(g, checks.Finding{Code: "gpu.pcie.width", Severity: checks.Warn, Want: pcie.Lanes(p.PCIeWidth), Got: pcie.Lanes(want)}, "PCIe slot has fewer lanes than that of %s", p.Name)
	}
	if width >= want {
		return
	}
	f := checks.Finding{Code: "gpu.pcie.width", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: pcie.Lanes(want), Got: pcie.Lanes(width)}
	if c.Width <= 0 && s.allHave(g, func(o *nvml.GPU) nvml.Reading[int] { return o.Link.Width }) {
		f.Severity, f.Remedy = checks.Warn, checks.NoRemedy
		s.Report(g, f, "PCIe width, as all GPUs of its model")
		return
	}
	s.Report(g, f, "PCIe width")
}

// emulated reports whether the slot is a bridge of a virtual machine, whose width and
// generation say nothing of the link.
func emulated(s *GPUs, g *nvml.GPU) bool {
	slot, found := pci.Slot(s.Env.Host, pci.ReadFunction(s.Env.Host, g.PCI))
	return found && slot.Class != "" && pcie.VirtualBridge(slot)
}

// lanes returns how many lanes should be in use, 0 if that is unknown. sure says that
// both ends of the link have told it: NVML's maximum, and that of the device, are of
// the GPU alone, whose slot may have fewer.
func (c *gpuPCIe) lanes(s *GPUs, g *nvml.GPU) (want int, sure bool) {
	if c.Width > 0 {
		return c.Width, false
	}
	s.Env.At("read /sys/bus/pci/devices/%s", g.PCI)
	d := pci.ReadFunction(s.Env.Host, g.PCI)
	most := pcie.Both(g.Link.MaxWidth.Value, d.MaxWidth)
	if slot, found := pci.Slot(s.Env.Host, d); found && slot.MaxWidth > 0 && !emulated(s, g) {
		return pcie.Both(most, slot.MaxWidth), true
	}
	if p := s.platform(g); p.PCIeWidth > 0 {
		return pcie.Both(most, p.PCIeWidth), false
	}
	return pcie.Both(most, s.mostHave(func(o *nvml.GPU) nvml.Reading[int] { return o.Link.Width })[g.Name.Value]), false
}

// figures are those of which the configuration says nothing.
func (c *gpuPCIe) figures(s *GPUs) (list []gpuFigure) {
	if c.Gen <= 0 {
		list = append(list, gpuFigure{
			key: "generation", what: "PCIe generation of GPU and slot", code: "gpu.pcie.gen", notOthers: true,
			of:     func(g *nvml.GPU) nvml.Reading[int] { return g.Link.MaxGen },
			least:  func(p *checks.Platform) int { return p.PCIeGen },
			unlike: func(g *nvml.GPU) bool { return emulated(s, g) },
		})
	}
	if c.Width <= 0 {
		list = append(list, gpuFigure{
			key: "width", what: "PCIe width", unit: "lanes", code: "gpu.pcie.width", notOthers: true,
			of: func(g *nvml.GPU) nvml.Reading[int] {
				w := g.Link.Width
				want, _ := c.lanes(s, g)
				w.Known = w.Known && w.Value >= want // else it has failed already
				return w
			},
			least: func(*checks.Platform) int { return 0 },
		})
	}
	return list
}

// tooMany judges how fast a counter of corrected errors has grown.
func (c *gpuPCIe) tooMany(s *GPUs, g *nvml.GPU, what string, then, now uint64, elapsed time.Duration) {
	limit, severity := c.Rate, checks.Fail
	if limit <= 0 {
		limit, severity = pcie.UsualRate, checks.Warn
	}
	if rate := perMinute(then, now, elapsed); rate > limit {
		s.Report(g, checks.Finding{Code: "gpu.pcie.corrected", Severity: severity, Remedy: checks.ReseatOrRMA, Want: fmt.Sprintf("at most %g a minute", limit), Got: fmt.Sprintf("%.1f", rate)}, "%s", what)
	}
}

// judgeAER judges what the kernel has counted since the last run, or since it
// was booted where there was none.
func (c *gpuPCIe) judgeAER(env *checks.Env, s *GPUs, g *nvml.GPU, then pci.AER, elapsed time.Duration, compare bool) pci.AER {
	if g.PCI == "" {
		return then
	}
	env.At("read /sys/bus/pci/devices/%s", g.PCI)
	now, known, err := pci.ReadAER(env.Host, g.PCI)
	if err != nil {
		s.Err = errors.Join(s.Err, err)
		return then
	}
	if !known {
		return now
	}
	since := "since the last run"
	if !compare {
		then, since = pci.AER{}, "since the node was booted"
	}
	if n := checks.GrownFrom(then.Fatal, now.Fatal, 64); n > 0 {
		f := checks.Finding{Code: "gpu.pcie.fatal", Severity: checks.Fail, Remedy: checks.RebootNode, Want: "0", Got: fmt.Sprint(n)}
		if !compare { // what was long ago drains nobody
			f.Severity = checks.Warn
		}
		s.Report(g, f, "fatal PCIe errors %s", since)
	}
	if n := checks.GrownFrom(then.NonFatal, now.NonFatal, 64); n > 0 {
		s.Report(g, checks.Finding{Code: "gpu.pcie.nonfatal", Severity: checks.Warn, Want: "0", Got: fmt.Sprint(n)}, "uncorrected PCIe errors %s", since)
	}
	if compare {
		c.tooMany(s, g, "corrected PCIe errors", then.Corrected, now.Corrected, elapsed)
	}
	return now
}
