package gpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/pcie"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// gpuPCIe checks the PCIe link of every GPU: its width, its generation and its errors.
//
// Width: the link must use at least WIDTH lanes. Without WIDTH it must use all lanes that both the
// GPU and the slot support; if all GPUs of the model lack the same lanes, because of a riser or
// the BIOS, the check only warns. Where the kernel shows no slot, as in most virtual machines, it
// expects the lanes of the node's platform, without a platform those that most GPUs of the model
// use. It also warns if the slot has fewer lanes than the platform.
//
// Generation: the GPU and the slot must support GEN. Without GEN the check warns if they do not
// support the generation of the platform, unless the slot is a bridge of a virtual machine. An idle
// link lowers its generation to save power: the check judges the current generation only of a GPU
// that works (by utilization and P-state, or else by power), and warns if it is too low in three
// consecutive runs.
//
// It also warns if a link has fewer lanes or a lower generation than before.
//
// Errors since the last run: a fatal error that the kernel has counted fails the check. Other
// uncorrected errors warn, and so do more than 8 replays or corrected errors per minute. With
// -r RATE more than RATE of these fail the check.
//
//	gpu* || check_gpu_pcie 5 16
type gpuPCIe struct {
	Gen   int     `arg:"1" toml:"gen" in:"1:7 min"`    // lowest PCIe generation that the GPU and the slot support; 0: by platform
	Width int     `arg:"2" toml:"width" in:"1:32 min"` // lowest number of lanes in use; 0: all that the GPU and the slot support
	Rate  float64 `opt:"r" toml:"rate"`                // highest number of replays, or of corrected errors, per minute; 0: warn above 8
}

const gpuPCIeName = "check_gpu_pcie"

func init() {
	const reseat = "Compare with the other GPUs (lspci -vv, LnkSta), then reseat the GPU or its riser. If that does not help, the GPU or the slot is faulty." + checks.ReseatLimits
	checks.Register(checks.Info{
		Name:    gpuPCIeName,
		Usage:   "[-r RATE] [GEN [WIDTH]]",
		Summary: "PCIe links of GPUs have full width and few errors",
		Lane:    checks.NVML,
		New:     func() checks.Check { return &gpuPCIe{} },
		Do: func() map[string]string {
			return map[string]string{
				"gpu.pcie.width":     reseat + " If all GPUs have the same width, or only the slot has fewer lanes, check the BIOS setting of the slot, or correct WIDTH in nhc.conf.",
				"gpu.pcie.gen":       "The GPU or its slot does not support this generation. If all GPUs have the same generation, correct GEN in nhc.conf or the BIOS setting of the slots. If one GPU is lower, check the BIOS setting of its slot, and its riser. After an intended change delete gpu-pcie-link.json in " + checks.PastDir + ", or set the figure in a profile (docs/thresholds.md).",
				"gpu.pcie.slow":      reseat,
				"gpu.pcie.differ":    reseat,
				"gpu.pcie.fatal":     "Reboot and look for AER lines in dmesg; if the errors return, reseat the GPU or its riser, then replace it.",
				"gpu.pcie.nonfatal":  "Look for AER lines in dmesg. If the errors continue, reseat the GPU or its riser.",
				"gpu.pcie.corrected": "No data is lost, but the link is poor. If jobs are slow, or the check fails, reseat the GPU or its riser.",
			}
		},
	})
}

// linkPast is the state of a GPU's link that the check keeps for the next run.
type linkPast struct {
	Replays uint64  `json:"replays"`
	AER     pci.AER `json:"aer"`
	InARow  int     `json:"in_a_row"` // consecutive runs with a slow link under load
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
		var grown checks.Growth
		count := nvml.Reading[uint64]{Value: uint64(max(replays, 0)), Known: counted}
		next.Replays, grown = m.counter(g, "replays", count, then.Replays, compare)
		c.judgeCorrected(s, g, "PCIe replays", grown)
		next.AER, grown = c.judgeAER(s, g, m)
		c.judgeCorrected(s, g, "corrected PCIe errors", grown)
		m.next.GPUs[g.UUID.Value] = next
	})
	s.fact("PCIe generation ", "", func(g *nvml.GPU) nvml.Reading[int] { return g.Link.Gen })
	s.fact("x", "", func(g *nvml.GPU) nvml.Reading[int] { return g.Link.Width })
	reportMissing(s, "PCIe width", func(g *nvml.GPU) nvml.Reading[int] { return g.Link.Width })
	s.compare("gpu-pcie-link", c.listFigures(s)...)
	judgeLower(s, "PCIe generation", func(g *nvml.GPU) nvml.Reading[int] { return g.Link.MaxGen })
	judgeLower(s, "PCIe width", func(g *nvml.GPU) nvml.Reading[int] { return g.Link.MaxWidth })
	return append(s.Done(), m.store(s)...)
}

// judgeLower warns of GPUs with a lower figure than most GPUs of their model; of two GPUs it
// names the one with the lower figure.
func judgeLower(s *GPUs, figure string, of func(*nvml.GPU) nvml.Reading[int]) {
	most := s.findCommon(of)
	for i := range s.NVML.GPUs {
		g := &s.NVML.GPUs[i]
		if r := of(g); r.Known && r.Value < most[g.Name.Value] {
			f := checks.Finding{Code: "gpu.pcie.differ", Severity: checks.Warn, Want: fmt.Sprint(most[g.Name.Value]), Got: fmt.Sprint(r.Value)}
			s.Report(g, f, "%s is lower than that of the other GPUs", figure)
		}
	}
}

// judgeLink returns in how many consecutive runs the link was too slow under load.
func (c *gpuPCIe) judgeLink(s *GPUs, g *nvml.GPU, then linkPast, compare bool) (inRow int) {
	c.judgeWidth(s, g)
	gen, hasGen := Value(s, g.Link.Gen)
	maxGen, hasMaxGen := Value(s, g.Link.MaxGen)
	if hasMaxGen && c.Gen > 0 && maxGen < c.Gen {
		f := checks.Finding{Code: "gpu.pcie.gen", Severity: checks.Fail, Want: fmt.Sprint(c.Gen), Got: fmt.Sprint(maxGen)}
		s.reportLow(g, f, "PCIe generation that the GPU and the slot support", s.allMiss(g, c.Gen, func(o *nvml.GPU) nvml.Reading[int] { return o.Link.MaxGen }))
	}
	w := &g.Link.Work
	switch unread := cmp.Or(g.Link.Gen.Err, g.Link.MaxGen.Err); {
	case unread != nil:
		return then.InARow // no sign of health
	case !hasGen || !hasMaxGen || gen >= maxGen:
		return 0
	case !atWork(w) && cmp.Or(w.State.Err, w.Busy.Err, w.Draw.Err, w.Limit.Err) != nil:
		return then.InARow
	case !atWork(w):
		return 0
	}
	if !compare {
		return 1
	}
	if inRow = then.InARow + 1; inRow >= inARow {
		s.Report(g, checks.Finding{Code: "gpu.pcie.slow", Severity: checks.Warn, Remedy: checks.ReseatOrRMA, Want: fmt.Sprint(maxGen), Got: fmt.Sprint(gen)},
			"PCIe generation under load, in %d consecutive runs", inRow)
	}
	return inRow
}

// reportLow fails a figure below the number in nhc.conf. allMiss: all GPUs of the model are alike,
// so the configuration is the likely cause.
func (s *GPUs) reportLow(g *nvml.GPU, f checks.Finding, text string, allMiss bool) {
	f.Remedy = checks.ReseatOrRMA
	if allMiss {
		f.Remedy, text = checks.FixConfig, text+", as on most GPUs of this model"
	}
	s.Report(g, f, "%s", text)
}

// The utilization and the P-state of a GPU under load. A GPU with a program that only waits shows
// a lower utilization.
const (
	busyPercent = 10
	busyState   = 2 // higher P-states are idle states
)

// atWork reports whether the GPU is under load. If NVML does not report the utilization, as with
// MIG, the GPU must draw more than half of its power limit.
func atWork(w *nvml.Work) bool {
	switch {
	case w.State.Known && w.State.Value > busyState:
		return false
	case w.Busy.Known:
		return w.Busy.Value >= busyPercent
	}
	return w.Draw.Known && w.Limit.Known && w.Draw.Value > w.Limit.Value/2
}

// judgeWidth judges the number of lanes in use.
func (c *gpuPCIe) judgeWidth(s *GPUs, g *nvml.GPU) {
	width, known := Value(s, g.Link.Width)
	Value(s, g.Link.MaxWidth)
	if !known {
		return
	}
	want, sure := c.findLanes(s, g)
	if p := s.findPlatform(g); c.Width <= 0 && sure && width == want && want < min(p.PCIeWidth, g.Link.MaxWidth.Value) {
		s.Report(g, checks.Finding{Code: "gpu.pcie.width", Severity: checks.Warn, Want: pcie.Lanes(p.PCIeWidth), Got: pcie.Lanes(want)}, "PCIe slot has fewer lanes than in %s", p.Name)
	}
	if width >= want {
		return
	}
	of := func(o *nvml.GPU) nvml.Reading[int] { return o.Link.Width }
	f := checks.Finding{Code: "gpu.pcie.width", Severity: checks.Fail, Want: pcie.Lanes(want), Got: pcie.Lanes(width)}
	if c.Width <= 0 && s.allEqual(g, of) {
		f.Severity = checks.Warn
		s.Report(g, f, "PCIe width, the same on all GPUs of this model")
		return
	}
	s.reportLow(g, f, "PCIe width", c.Width > 0 && s.allMiss(g, c.Width, of))
}

// emulated reports whether the slot is a bridge of a virtual machine: its width and generation
// are not those of the link.
func emulated(s *GPUs, g *nvml.GPU) bool {
	slot, found := pci.Slot(s.Env.Host, pci.ReadFunction(s.Env.Host, g.PCI))
	return found && slot.Class != "" && pci.VirtualBridge(slot)
}

// findLanes returns the number of lanes that should be in use, 0 if unknown. sure: both ends of
// the link report it. NVML and the device report the maximum of the GPU alone, and its slot may
// have fewer lanes.
func (c *gpuPCIe) findLanes(s *GPUs, g *nvml.GPU) (want int, sure bool) {
	if c.Width > 0 {
		return c.Width, false
	}
	s.Env.At("read /sys/bus/pci/devices/%s", g.PCI)
	d := pci.ReadFunction(s.Env.Host, g.PCI)
	most := pci.Both(g.Link.MaxWidth.Value, d.MaxWidth)
	if slot, found := pci.Slot(s.Env.Host, d); found && slot.MaxWidth > 0 && !emulated(s, g) {
		return pci.Both(most, slot.MaxWidth), true
	}
	if p := s.findPlatform(g); p.PCIeWidth > 0 {
		return pci.Both(most, p.PCIeWidth), false
	}
	return pci.Both(most, s.findCommon(func(o *nvml.GPU) nvml.Reading[int] { return o.Link.Width })[g.Name.Value]), false
}

// listFigures returns the figures that the line in nhc.conf does not give.
func (c *gpuPCIe) listFigures(s *GPUs) (list []gpuFigure) {
	if c.Gen <= 0 {
		list = append(list, gpuFigure{
			key: "generation", name: "PCIe generation of the GPU and the slot", code: "gpu.pcie.gen", notOthers: true,
			of:     func(g *nvml.GPU) nvml.Reading[int] { return g.Link.MaxGen },
			least:  func(p *checks.Platform) int { return p.PCIeGen },
			exempt: func(g *nvml.GPU) bool { return emulated(s, g) },
		})
	}
	if c.Width <= 0 {
		list = append(list, gpuFigure{
			key: "width", name: "PCIe width", unit: "lanes", code: "gpu.pcie.width", notOthers: true,
			of: func(g *nvml.GPU) nvml.Reading[int] {
				w := g.Link.Width
				want, _ := c.findLanes(s, g)
				w.Known = w.Known && w.Value >= want // judgeWidth reports fewer lanes
				return w
			},
			least: func(*checks.Platform) int { return 0 },
		})
	}
	return list
}

// judgeCorrected judges how fast a counter of corrected errors has grown.
func (c *gpuPCIe) judgeCorrected(s *GPUs, g *nvml.GPU, errors string, grown checks.Growth) {
	limit, f := c.Rate, checks.Finding{Code: "gpu.pcie.corrected", Severity: checks.Fail, Remedy: checks.ReseatOrRMA}
	if limit <= 0 {
		limit, f.Severity, f.Remedy = pcie.UsualRate, checks.Warn, checks.NoRemedy
	}
	if rate := grown.Per(time.Minute); grown.Known && rate > limit {
		f.Want, f.Got = fmt.Sprintf("at most %g per minute", limit), fmt.Sprintf("%.1f", rate)
		s.Report(g, f, "%s", errors)
	}
}

// judgeAER judges the PCIe errors that the kernel has counted since the last run; in the first
// run, since boot. It returns the counters for the next run, and the growth of that of corrected errors.
func (c *gpuPCIe) judgeAER(s *GPUs, g *nvml.GPU, m *memory[linkPast]) (now pci.AER, corrected checks.Growth) {
	past, compare := m.of(g)
	then := past.AER
	if g.PCI == "" {
		return then, corrected
	}
	s.Env.At("read /sys/bus/pci/devices/%s", g.PCI)
	now, known, err := pci.ReadAER(s.Env.Host, g.PCI)
	if err != nil {
		s.Err, known = errors.Join(s.Err, err), false
	}
	_, corrected = m.counter(g, "aer", nvml.Reading[uint64]{Value: now.Corrected, Known: known}, then.Corrected, compare)
	if !known {
		return then, corrected
	}
	compare = corrected.Known
	since := "since the last run"
	if !compare {
		then, since = pci.AER{}, "since boot"
	}
	if n := checks.GrownFrom(then.Fatal, now.Fatal, 64); n > 0 {
		f := checks.Finding{Code: "gpu.pcie.fatal", Severity: checks.Fail, Remedy: checks.RebootNode, Want: "0", Got: fmt.Sprint(n)}
		if !compare { // an error of an unknown time does not drain the node
			f.Severity = checks.Warn
		}
		s.Report(g, f, "fatal PCIe errors %s", since)
	}
	if n := checks.GrownFrom(then.NonFatal, now.NonFatal, 64); n > 0 {
		s.Report(g, checks.Finding{Code: "gpu.pcie.nonfatal", Severity: checks.Warn, Want: "0", Got: fmt.Sprint(n)}, "uncorrected PCIe errors %s", since)
	}
	return now, corrected
}
