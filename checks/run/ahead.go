package run

import (
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// What a run needs is what the run before it with the same command line has needed, as a
// rule: the workers of vendors' libraries, which take milliseconds to come up, are started
// while the configuration is still being read. Nothing is asked of them before their turn.

// StartAsBefore starts the workers that the last run of the kind has needed, if it had the
// same words.
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
			_ = p.Start(lane) // else it is tried again, and reported, when its turn has come
		}
	}
}

// RememberLanes keeps what a run of a kind needs for the next. Where that cannot
// be kept the next starts its workers when it needs them.
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
	_ = p.Save(laneFile(kind), []byte(strings.Join(list, "\n")+"\n"))
}

// digest stands for a command line, which names the configuration.
func digest(words []string) string {
	sum := fnv.New64a()
	for _, w := range words {
		_, _ = sum.Write([]byte(w + "\x00"))
	}
	return strconv.FormatUint(sum.Sum64(), 16)
}

// laneFile is the file of a kind of runs, "" for none.
func laneFile(kind string) string {
	if kind == "" {
		return ""
	}
	return "lanes." + kind
}
