package gpu

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// What the checks of GPUs know of a healthy one where nhc.conf gives no number:
// the figures of the node's platform, what the GPU itself has shown before, and
// the other GPUs of the node.

// platform is that of a GPU, one without any figure if none is known.
func (s *GPUs) platform(g *nvml.GPU) *checks.Platform {
	for _, group := range checks.PlatformGroups(s.Env) {
		if group.Platform != nil && g.PCI != "" && slices.Contains(group.Addresses, g.PCI) {
			return group.Platform
		}
	}
	return &checks.Platform{}
}

// gpuFigure is something of which every GPU should have at least as much as its
// platform says, as itself has shown before, and as the other GPUs have.
type gpuFigure struct {
	key, what, unit string
	code            string
	of              func(*nvml.GPU) nvml.Reading[int]
	least           func(*checks.Platform) int
	notOthers       bool                 // the check compares the GPUs with each other itself
	slack           int                  // so much less is no difference
	unlike          func(*nvml.GPU) bool // of a GPU to which the platform's figure does not apply; nil: of none
}

// pastFigures are the highest figures that GPUs have ever shown, by UUID and key.
type pastFigures map[string]map[string]int

// compare warns of every GPU that has less of a figure than could be expected.
// What is seen is kept under name.
func (s *GPUs) compare(name string, figures ...gpuFigure) {
	past := pastFigures{}
	if err := s.Env.Recall(name, &past); err != nil || past == nil {
		past = pastFigures{} // a file that is broken is written anew
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
	others := map[string]int{} // what most of a model have
	if !f.notOthers {
		others = s.mostHave(f.of)
	}
	for i := range s.NVML.GPUs {
		g := &s.NVML.GPUs[i]
		now := f.of(g)
		if !now.Known || g.Err != nil {
			continue
		}
		p := s.platform(g)
		if f.unlike != nil && f.unlike(g) {
			p = &checks.Platform{}
		}
		then := past[g.UUID.Value][f.key]
		switch less := func(than int) bool { return now.Value+f.slack < than }; {
		case less(f.least(p)):
			s.less(g, f, now.Value, f.least(p), "is less than that of "+p.Name)
		case less(then):
			s.less(g, f, now.Value, then, "is less than this GPU has had before")
		case less(others[g.Name.Value]):
			s.less(g, f, now.Value, others[g.Name.Value], "is less than that of the others")
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

// mostHave is the figure that most GPUs of a model have, by model; where as many
// have less, the higher one: of two GPUs the lower is the odd one.
func (s *GPUs) mostHave(of func(*nvml.GPU) nvml.Reading[int]) map[string]int {
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

// whole is a reading in units of so many, rounded.
func whole(r nvml.Reading[uint32], units uint32) nvml.Reading[int] {
	return nvml.Reading[int]{Value: int((uint64(r.Value) + uint64(units)/2) / uint64(units)), Known: r.Known, Err: r.Err}
}

func (s *GPUs) less(g *nvml.GPU, f *gpuFigure, got, want int, how string) {
	number := func(n int) string { return strings.TrimSpace(fmt.Sprintf("%d %s", n, f.unit)) }
	s.Report(g, checks.Finding{Code: f.code, Severity: checks.Warn, Want: "at least " + number(want), Got: number(got)}, "%s %s", f.what, how)
}
