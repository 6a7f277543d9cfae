package active

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// An operation of all GPUs is as slow as the slowest of them, and does not tell which
// that is. So at its end every GPU exchanges data with every other one, pair by pair:
// a GPU that is slow with all others is the one, and so is one with which data arrive
// wrong.

// ncclPairs is the exchange, as an operation for messages.
var ncclPairs = &ncclOp{name: "exchange of pairs", sends: true}

// ncclPairTimes is how often a pair exchanges its data.
const ncclPairTimes = 4

// pairsOf has all pairs exchange data, in rounds in which every GPU has one partner at most.
// A GPU is compared by the median of its pairs of one kind: one on another socket than
// most has more of them far away.
func pairsOf(t *ncclRun) {
	n := len(t.ranks)
	if t.broken || t.groups() > 1 || n < 3 || !t.lib.CanSend() {
		return
	}
	count := min(t.room, ncclPairBytes/4)
	doing := fmt.Sprintf("exchange of %s between pairs of GPUs", sizeText(4*count))
	if !t.prepare(ncclPairs, count, doing) {
		return
	}
	rates := make([]map[string][]float64, n) // of each GPU, by what joins it to the other
	for _, round := range roundsOfPairs(t) {
		work := func() error { return exchangePairs(t, round, count) }
		if _, ok := t.timed(doing, 1, work); !ok { // connections are made
			return
		}
		took, ok := t.timed(doing, ncclPairTimes, work)
		if !ok || !verifyPairs(t, round, count, doing) {
			return
		}
		for i, partner := range round {
			if partner < 0 || t.ranks[i].gpu.Name.Value != t.ranks[partner].gpu.Name.Value {
				continue // those of unlike models are no peers
			}
			if rates[i] == nil {
				rates[i] = map[string][]float64{}
			}
			kind, both := joinedPairs(t, i, partner), max(took[i], took[partner], time.Nanosecond)
			rates[i][kind] = append(rates[i][kind], float64(ncclPairTimes*4*count)/both.Seconds()/1e9)
		}
	}
	for i, g := range t.ranks {
		for _, kind := range slices.Sorted(maps.Keys(rates[i])) {
			if len(rates[i][kind]) < 2 { // one pair may be slow for the other's sake
				continue
			}
			t.measured(measure{
				Test: strings.Replace(t.test, t.op.name, "pairs", 1), Algorithm: "p2p", Size: 4 * count, Ranks: 2, Device: checks.GPUDevice(g.gpu), Model: g.gpu.Name.Value, Peers: kind,
				What: "exchange with each other GPU by " + kind + ", each way", Value: median(rates[i][kind]), Unit: "GB/s", Unlike: unlikePeers(t.activeRun, g.loaded(), kind),
			})
		}
	}
}

// joinedPairs is what joins two GPUs: pairs that have the same are compared.
func joinedPairs(t *ncclRun, i, j int) string {
	if t.NoP2P {
		return "network"
	}
	return t.ranks[i].loaded().joined(t.ranks[j].loaded())
}

func (g *ncclGPU) loaded() *loadedGPU { return &loadedGPU{gpu: g.gpu, c: g.cuda} }

// roundsOfPairs are those of a tournament, each divided until no two of its pairs have a part of
// their way in common: that makes pairs slower, and as many as share it differ from round
// to round.
func roundsOfPairs(t *ncclRun) (rounds [][]int) {
	for _, round := range tournament(len(t.ranks)) {
		if t.NoP2P {
			rounds = append(rounds, round)
			continue
		}
		rounds = append(rounds, unshared(round, func(i, j int) []string { return t.ranks[i].loaded().way(t.ranks[j].loaded()) })...)
	}
	return rounds
}

// unshared divides a round into some whose pairs have nothing of their way in common.
func unshared(round []int, way func(i, j int) []string) (rounds [][]int) {
	var taken []map[string]bool // of each
	for i, partner := range round {
		if partner < i {
			continue
		}
		parts := way(i, partner)
		at := slices.IndexFunc(taken, func(by map[string]bool) bool {
			return !slices.ContainsFunc(parts, func(p string) bool { return by[p] })
		})
		if at < 0 {
			at = len(rounds)
			rounds, taken = append(rounds, slices.Repeat([]int{-1}, len(round))), append(taken, map[string]bool{})
		}
		rounds[at][i], rounds[at][partner] = partner, i
		for _, p := range parts {
			taken[at][p] = true
		}
	}
	return rounds
}

func exchangePairs(t *ncclRun, round []int, count int64) error {
	return t.lib.Group(func() error {
		for i, g := range t.ranks {
			if round[i] < 0 {
				continue
			}
			if err := exchange(t.comms[0], g.work(count), round[i], round[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// verifyPairs looks at what each has received from its partner. The next round writes
// over it with other values, so that nothing has to be taken away.
func verifyPairs(t *ncclRun, round []int, count int64, doing string) bool {
	return t.verifyParts(ncclPairs, doing, func(g *ncclGPU) []ncclPart {
		if round[g.rank] < 0 {
			return nil
		}
		return []ncclPart{{count: count, from: round[g.rank], ranks: 1}}
	})
}

// tournament gives rounds in which every one of n meets one other, and all meet in the
// end: round[i] is the partner of i, -1 if it has a rest. It is the circle method of
// chess tournaments.
func tournament(n int) (rounds [][]int) {
	even := n + n%2
	for r := range even - 1 {
		round := slices.Repeat([]int{-1}, even)
		for k := range even / 2 {
			a, b := (r+k)%(even-1), (r-k+even-1)%(even-1)
			if k == 0 {
				b = even - 1
			}
			if a < n && b < n {
				round[a], round[b] = b, a
			}
		}
		rounds = append(rounds, round[:n])
	}
	return rounds
}

// ncclWrong is a part of what a GPU has received that is wrong.
type ncclWrong struct {
	doing, op        string
	receiver, sender *ncclGPU // sender: nil if several have added to it
	count, at        uint64   // elements that are wrong, at most about a million, and one of them
	of               uint64   // elements that were looked at
	want, got        float32
}

// has says whether a GPU may have had a part in it.
func (w *ncclWrong) has(g *ncclGPU) bool { return w.receiver == g || w.sender == g || w.sender == nil }

// finding is one that tells what is wanted and was got.
func (w *ncclWrong) finding(code string, severity checks.Severity) checks.Finding {
	f := checks.Finding{Code: code, Severity: severity, Want: fmt.Sprintf("%v in element %d", w.want, w.at), Got: fmt.Sprint(w.got)}
	if severity == checks.Fail {
		f.Remedy = checks.ReseatOrRMA
	}
	return f
}

// ncclCounted is how far nccl_verify counts.
const ncclCounted = 1_000_000

// wrongEverywhere says whether most of what every GPU has received is wrong. What a GPU or a
// link does to data it does to some of them, or the others exchange theirs rightly.
func wrongEverywhere(t *ncclRun) bool {
	return !slices.ContainsFunc(t.ranks, func(g *ncclGPU) bool {
		return !slices.ContainsFunc(t.wrong, func(w ncclWrong) bool { return w.receiver == g && w.count > min(w.of, ncclCounted)/2 })
	})
}

// tellWrong reports wrong data once, for the GPU that all of them have in common.
func tellWrong(t *ncclRun) {
	if len(t.wrong) == 0 {
		return
	}
	first, g := t.wrong[0], culprit(t)
	for _, w := range t.wrong {
		if g != nil && first.sender == nil && first.receiver != g && (w.sender == g || w.receiver == g) {
			first = w
		}
	}
	f := first.finding("nccl.wrong", checks.Fail)
	elements := checks.Plural(int(first.count), "wrong element")
	if first.sender != nil {
		elements += " from " + checks.GPUDevice(first.sender.gpu).Name
	}
	if g != nil {
		if first.receiver != g {
			elements += " on " + checks.GPUDevice(first.receiver.gpu).Name
		}
		t.report(checks.GPUDevice(g.gpu), f, "%s: %s", first.doing, elements)
		return
	}
	if wrongEverywhere(t) {
		t.failures = true
		t.report(checks.Device{}, first.finding("nccl.alike", checks.Unknown), "%s: most of the data are wrong on all %s", first.doing, checks.Plural(len(t.ranks), "GPU"))
		return
	}
	var on []string
	for _, w := range t.wrong {
		if name := checks.GPUDevice(w.receiver.gpu).Name; !slices.Contains(on, name) {
			on = append(on, name)
		}
	}
	t.report(checks.Device{}, f, "%s: %s on %s", first.doing, elements, strings.Join(on, ", "))
}

// culprit is the GPU that has had a part in whatever is wrong, nil if there is none, or
// if it may as well be another: of two that exchanged data nobody knows.
func culprit(t *ncclRun) *ncclGPU {
	var found []*ncclGPU
	for _, g := range t.ranks {
		if !slices.ContainsFunc(t.wrong, func(w ncclWrong) bool { return !w.has(g) }) {
			found = append(found, g)
		}
	}
	switch {
	case len(found) == 1:
		return found[0]
	case len(found) > 1 && !slices.ContainsFunc(t.wrong, func(w ncclWrong) bool { return w.receiver != t.wrong[0].receiver }):
		return t.wrong[0].receiver // the data of one sender are wrong there alone
	}
	return nil
}
