package xid

import (
	"cmp"
	"math"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// The driver's recovery action, from NVML or from Xid 154. It raises other events of the GPU, or lowers
// them to a warning.

// applyActions applies the recovery actions, GPU by GPU.
func (j *xidJudge) applyActions(cases []*xidCase) []*xidCase {
	var kept []*xidCase
	for len(cases) > 0 {
		n := 1
		for n < len(cases) && cases[n].gpu == cases[0].gpu {
			n++
		}
		kept = append(kept, j.applyAction(cases[:n])...)
		cases = cases[n:]
	}
	return kept
}

// applyAction applies the recovery action to the cases of one GPU.
func (j *xidJudge) applyAction(cases []*xidCase) (kept []*xidCase) {
	var authority, worst *xidCase // authority: Xid 154
	for _, c := range cases {
		if c.row.Class == checks.XidAuthority {
			authority = c
			continue
		}
		kept = append(kept, c)
		if c.row.override == "" && c.row.Class != checks.XidFollow && (worst == nil || c.class.Rank() > worst.class.Rank()) {
			worst = c
		}
	}
	action, since, known := j.findAction(cases[0].gpu, authority)
	if !known {
		return cases
	}
	class, remedy, asks := explainAction(action)
	if class == checks.XidIgnore {
		for _, c := range kept {
			if (c.class == checks.XidReset || c.class == checks.XidReboot) && c.last().Seq <= since && c.row.override == "" && !c.byState && c.row.marked(j.ledger.Driver) {
				c.class = checks.XidWatch
				c.note("the driver requests no recovery")
			}
		}
		return kept
	}
	note := "the driver requests " + asks
	switch {
	case worst != nil && worst.class.Drains() && worst.class.Rank() >= class.Rank():
		worst.note(note) // the action agrees
	case worst != nil && worst.class.Rank() > checks.XidIgnore.Rank():
		worst.raise(class, note)
		worst.note(note)
		if worst.class == class && worst.remedy != checks.PowerCycle {
			worst.remedy = cmp.Or(remedy, worst.remedy)
		}
	case authority != nil && !judgedBySite(authority, kept):
		authority.class, authority.remedy = class, remedy
		authority.note(note)
		kept = append(kept, authority)
	}
	return kept
}

// marked reports whether a driver that has recovery actions sets one for errors of the row.
func (r *xidRow) marked(driver string) bool {
	marked := r.Marks == nil
	for _, first := range r.Marks {
		if parseBranch(driver) >= parseBranch(first) {
			marked = probe.CompareVersions(driver, first) >= 0
		}
	}
	return marked
}

// judgedBySite reports whether the recovery action belongs to an error with a class of the site.
func judgedBySite(authority *xidCase, others []*xidCase) bool {
	return slices.ContainsFunc(others, func(c *xidCase) bool {
		return c.row.override != "" && slices.ContainsFunc(c.events, func(e *xidEvent) bool { return e.near(authority.last()) })
	})
}

// findAction returns the recovery action of NVML, or else the last one in the log. since is the number
// of the last record before it; NVML's action is later than all records.
func (j *xidJudge) findAction(gpu string, authority *xidCase) (action int, since uint64, known bool) {
	if s, ok := j.states[gpu]; ok && s.Recovery != nil {
		return *s.Recovery, math.MaxUint64, true
	}
	if authority == nil || authority.row.override != "" {
		return 0, 0, false
	}
	last := authority.events[0]
	for _, e := range authority.events {
		if e.Seq >= last.Seq {
			last = e
		}
	}
	return last.Action, last.Seq, true
}
