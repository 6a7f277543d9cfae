package run

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// What a run needs is what the run before it has needed, as a rule: the workers
// of vendors' libraries, which take milliseconds to come up, are started while the
// configuration is still being read. Nothing is asked of them before their turn.

// StartAsBefore starts the workers that the last run of a kind has needed.
func (p *Pool) StartAsBefore(kind string) {
	for _, lane := range p.lanesBefore(kind) {
		if _, stuck := p.opts.Ledger.Find(lane, ""); !stuck {
			_ = p.Start(lane) // else it is tried again, and reported, when its turn has come
		}
	}
}

// RememberLanes keeps what a run of a kind needs for the next. Where that cannot
// be kept the next starts its workers when it needs them.
func (p *Pool) RememberLanes(kind string, lanes []checks.Lane) {
	lanes = slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(lanes))), func(l checks.Lane) bool { return !l.Vendor() })
	if path := p.aheadFile(kind); path != "" && !slices.Equal(lanes, p.lanesBefore(kind)) {
		var b strings.Builder
		for _, l := range lanes {
			b.WriteString(string(l) + "\n")
		}
		_ = writeState(path, []byte(b.String()))
	}
}

func (p *Pool) aheadFile(kind string) string {
	if p.opts.Ledger.dir == "" {
		return ""
	}
	return filepath.Join(p.opts.Ledger.dir, "lanes."+kind)
}

func (p *Pool) lanesBefore(kind string) (lanes []checks.Lane) {
	path := p.aheadFile(kind)
	if path == "" {
		return nil
	}
	data, err := readState(path)
	if err != nil {
		return nil
	}
	for word := range strings.FieldsSeq(string(data)) {
		if l := checks.Lane(word); l.Vendor() {
			lanes = append(lanes, l)
		}
	}
	return lanes
}
