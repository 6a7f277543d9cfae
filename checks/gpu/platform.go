package gpu

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// The figures of a healthy GPU if nhc.conf gives no number: those of the node's platform, those
// of the GPU in earlier runs, and those of the other GPUs.

// findPlatform returns the platform of a GPU; one without figures if it is unknown.
func (s *GPUs) findPlatform(g *nvml.GPU) *checks.Platform {
	for _, group := range checks.PlatformGroups(s.Env) {
		if group.Platform != nil && g.PCI != "" && slices.Contains(group.Addresses, g.PCI) {
			return group.Platform
		}
	}
	return &checks.Platform{}
}

// gpuFigure is a figure that should not be lower than that of the GPU's platform, of the GPU in
// earlier runs, and of the other GPUs.
type gpuFigure struct {
	key, name, unit string
	code            string
	of              func(*nvml.GPU) nvml.Reading[int]
	least           func(*checks.Platform) int
	notOthers       bool                 // the check itself compares the GPUs with each other
	slack           int                  // tolerated difference
	exempt          func(*nvml.GPU) bool // GPUs that need not reach the platform's figure; nil: none
}

// pastFigures are the highest figures that GPUs have shown, by UUID and key.
type pastFigures map[string]map[string]int

// compare warns of every GPU with a figure that is lower than expected. It keeps the highest
// figures in the state file name.
func (s *GPUs) compare(name string, figures ...gpuFigure) {
	past := pastFigures{}
	if err := s.Env.Recall(name, &past); err != nil || past == nil {
		past = pastFigures{} // start again if the file is damaged
	}
	grown := false
	for i := range figures {
		grown = s.compareOne(&figures[i], past) || grown
	}
	if grown {
		s.Findings = append(s.Findings, checks.KeepForLater(s.Env, s.check, name, past)...)
	}
}

func (s *GPUs) compareOne(f *gpuFigure, past pastFigures) (grown bool) {
	others := map[string]int{} // the most common figure of each model
	if !f.notOthers {
		others = s.findCommon(f.of)
	}
	for i := range s.NVML.GPUs {
		g := &s.NVML.GPUs[i]
		now := f.of(g)
		if !now.Known || g.Err != nil {
			continue
		}
		p := s.findPlatform(g)
		if f.exempt != nil && f.exempt(g) {
			p = &checks.Platform{}
		}
		then := past[g.UUID.Value][f.key]
		switch less := func(than int) bool { return now.Value+f.slack < than }; {
		case less(f.least(p)):
			s.reportLess(g, f, now.Value, f.least(p), "is lower than that of "+p.Name)
		case less(then):
			s.reportLess(g, f, now.Value, then, "is lower than this GPU had before")
		case less(others[g.Name.Value]):
			s.reportLess(g, f, now.Value, others[g.Name.Value], "is lower than that of the other GPUs")
		}
		if now.Value > then && g.UUID.Known {
			of := maps.Clone(past[g.UUID.Value])
			if of == nil {
				of = map[string]int{}
			}
			of[f.key] = now.Value
			past[g.UUID.Value], grown = of, true
		}
	}
	return grown
}

// findCommon returns the most common figure of each model; of two equally common ones the higher,
// so that of two GPUs the one with the lower figure is the outlier.
func (s *GPUs) findCommon(of func(*nvml.GPU) nvml.Reading[int]) map[string]int {
	count := map[string]map[int]int{}
	for i := range s.NVML.GPUs {
		g := &s.NVML.GPUs[i]
		if r := of(g); r.Known && g.Err == nil {
			if count[g.Name.Value] == nil {
				count[g.Name.Value] = map[int]int{}
			}
			count[g.Name.Value][r.Value]++
		}
	}
	most := map[string]int{}
	for model, of := range count {
		for v, n := range of {
			if was := most[model]; n > of[was] || n == of[was] && v > was {
				most[model] = v
			}
		}
	}
	return most
}

// roundTo returns a reading divided by units, rounded.
func roundTo(r nvml.Reading[uint32], units uint32) nvml.Reading[int] {
	return nvml.Reading[int]{Value: int((uint64(r.Value) + uint64(units)/2) / uint64(units)), Known: r.Known, Err: r.Err}
}

func (s *GPUs) reportLess(g *nvml.GPU, f *gpuFigure, got, want int, how string) {
	number := func(n int) string { return strings.TrimSpace(fmt.Sprintf("%d %s", n, f.unit)) }
	s.Report(g, checks.Finding{Code: f.code, Severity: checks.Warn, Want: "at least " + number(want), Got: number(got)}, "%s %s", f.name, how)
}
