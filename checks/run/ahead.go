package run

import (
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// A run usually needs the same workers as the previous run with the same command line. The workers
// of vendor libraries take milliseconds to start, so a run starts them while it still reads the
// configuration. They get no request before their turn.

// StartAsBefore starts the workers that the last run of this kind needed, if that run had the same
// arguments.
func (p *Pool) StartAsBefore(words []string) {
	p.state.mu.Lock()
	lanes := slices.Clone(p.state.lanes)
	p.state.mu.Unlock()
	if len(lanes) == 0 || lanes[0] != digest(words) {
		return
	}
	for _, word := range lanes[1:] {
		lane := checks.Lane(word)
		if _, stuck := p.ledger.Find(lane, ""); lane.Vendor() && !stuck {
			_ = p.Start(lane) // an error is reported when the first request of the lane tries again
		}
	}
}

// RememberLanes saves the lanes that a run of a kind needed, for the next run. If it cannot save
// them, the next run starts each worker when it first needs it.
func (p *Pool) RememberLanes(kind string, words []string, lanes []checks.Lane) {
	list := []string{digest(words)}
	for _, l := range slices.Compact(slices.Sorted(slices.Values(lanes))) {
		if l.Vendor() {
			list = append(list, string(l))
		}
	}
	p.state.mu.Lock()
	same := kind == p.state.kind && (slices.Equal(list, p.state.lanes) || len(list) == 1 && len(p.state.lanes) == 0)
	p.state.mu.Unlock()
	if same || kind == "" {
		return
	}
	_ = p.Save(nameLaneFile(kind), []byte(strings.Join(list, "\n")+"\n"))
}

// digest returns a short hash of a command line, which names the configuration.
func digest(words []string) string {
	sum := fnv.New64a()
	for _, w := range words {
		_, _ = sum.Write([]byte(w + "\x00"))
	}
	return strconv.FormatUint(sum.Sum64(), 16)
}

// nameLaneFile returns the name of the state file for a kind of runs, "" if that kind has none.
func nameLaneFile(kind string) string {
	if kind == "" {
		return ""
	}
	return "lanes." + kind
}
