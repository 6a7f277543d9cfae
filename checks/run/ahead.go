package run

import (
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// What a run needs is what the run before it has needed, as a rule: the workers
// of vendors' libraries, which take milliseconds to come up, are started while the
// configuration is still being read. Nothing is asked of them before their turn.

// StartAsBefore starts the workers that the last run of the kind has needed.
func (p *Pool) StartAsBefore() {
	p.state.mu.Lock()
	lanes := slices.Clone(p.state.lanes)
	p.state.mu.Unlock()
	for _, lane := range lanes {
		if _, stuck := p.ledger.Find(lane, ""); !stuck {
			_ = p.Start(lane) // else it is tried again, and reported, when its turn has come
		}
	}
}

// RememberLanes keeps what a run of a kind needs for the next. Where that cannot
// be kept the next starts its workers when it needs them.
func (p *Pool) RememberLanes(kind string, lanes []checks.Lane) {
	lanes = slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(lanes))), func(l checks.Lane) bool { return !l.Vendor() })
	p.state.mu.Lock()
	same := kind == p.state.kind && slices.Equal(lanes, p.state.lanes)
	p.state.mu.Unlock()
	if same || kind == "" {
		return
	}
	var b strings.Builder
	for _, l := range lanes {
		b.WriteString(string(l) + "\n")
	}
	_ = p.Save(laneFile(kind), []byte(b.String()))
}

// laneFile is the file of a kind of runs, "" for none.
func laneFile(kind string) string {
	if kind == "" {
		return ""
	}
	return "lanes." + kind
}
