package xid

import (
	"math"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// The driver's own word: the recovery action of NVML, or of Xid 154. It makes
// other events of the GPU worse, or takes them back as far as a warning.

// authority applies it, GPU by GPU.
func (j *xidJudge) authority(cases []*xidCase) []*xidCase {
	var kept []*xidCase
	for len(cases) > 0 {
		n := 1
		for n < len(cases) && cases[n].gpu == cases[0].gpu {
			n++
		}
		kept = append(kept, j.authorityOf(cases[:n])...)
		cases = cases[n:]
	}
	return kept
}

// authorityOf applies it to the cases of one GPU.
func (j *xidJudge) authorityOf(cases []*xidCase) (kept []*xidCase) {
	var word, worst *xidCase
	for _, c := range cases {
		if c.row.Class == checks.XidAuthority {
			word = c
			continue
		}
		kept = append(kept, c)
		if c.row.override == "" && c.row.Class != checks.XidFollow && (worst == nil || c.class.Rank() > worst.class.Rank()) {
			worst = c
		}
	}
	action, since, known := j.action(cases[0].gpu, word)
	if !known {
		return cases
	}
	class, remedy, asks := recoveryAction(action)
	if class == checks.XidIgnore {
		for _, c := range kept {
			if (c.class == checks.XidReset || c.class == checks.XidReboot) && c.last().Seq <= since && c.row.override == "" && !c.byState {
				c.class = checks.XidWatch
				c.note("the driver asks for no recovery")
			}
		}
		return kept
	}
	note := "the driver asks for " + asks
	switch {
	case worst != nil && worst.class.Drains() && worst.class.Rank() >= class.Rank():
		worst.note(note) // it says the same
	case worst != nil && worst.class.Rank() > checks.XidIgnore.Rank():
		worst.raise(class, note)
		worst.remedy = remedy
	case word != nil && !judged(word, kept):
		word.class, word.remedy = class, remedy
		word.note(note)
		kept = append(kept, word)
	}
	return kept
}

// judged says whether the driver's word is about an error that the site has
// judged itself.
func judged(word *xidCase, others []*xidCase) bool {
	return slices.ContainsFunc(others, func(c *xidCase) bool {
		return c.row.override != "" && slices.ContainsFunc(c.events, func(e *xidEvent) bool { return e.near(word.last()) })
	})
}

// action is what the driver asks for: NVML's word, else the last one in the
// log. since is the last record that it knew of: NVML speaks of now.
func (j *xidJudge) action(gpu string, word *xidCase) (action int, since uint64, known bool) {
	if s, ok := j.states[gpu]; ok && s.Recovery != nil {
		return *s.Recovery, math.MaxUint64, true
	}
	if word == nil || word.row.override != "" {
		return 0, 0, false
	}
	last := word.events[0]
	for _, e := range word.events {
		if e.Seq >= last.Seq {
			last = e
		}
	}
	return last.Action, last.Seq, true
}
