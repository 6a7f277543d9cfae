package active

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
)

// An operation of all GPUs is as slow as its slowest GPU, and does not show which one that is. So
// at its end every GPU exchanges data with every other one, pair by pair: a GPU that is slow with
// all others is the slow one, and so is one that receives wrong data from all.

// ncclPairs is the exchange as an operation in messages.
var ncclPairs = &cuda.NCCLOp{Name: "exchange of pairs", Sends: true}

// ncclPairTimes is the number of exchanges of a pair.
const ncclPairTimes = 4

// measurePairs lets all pairs exchange data, in rounds where every GPU has at most one
// partner. A GPU is compared by the median of its pairs of one kind: a GPU on another socket than
// most has more far pairs.
func measurePairs(t *ncclRun) {
	n := len(t.ranks)
	if t.broken || t.groups() > 1 || n < 3 || !t.lib.CanSend() {
		return
	}
	count := min(t.room, ncclPairBytes/4)
	doing := fmt.Sprintf("exchange of %s between pairs of GPUs", sizeText(4*count))
	if !t.prepare(ncclPairs, count, doing) {
		return
	}
	rates := make([]map[string][]float64, n) // by GPU, then by the kind of connection to the other
	for _, round := range planPairRounds(t) {
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
				continue // different models are not compared
			}
			if rates[i] == nil {
				rates[i] = map[string][]float64{}
			}
			kind, both := classifyPair(t, i, partner), max(took[i], took[partner], time.Nanosecond)
			rates[i][kind] = append(rates[i][kind], float64(ncclPairTimes*4*count)/both.Seconds()/1e9)
		}
	}
	for i, g := range t.ranks {
		for _, kind := range slices.Sorted(maps.Keys(rates[i])) {
			if len(rates[i][kind]) < 2 { // of one pair, either GPU can be the slow one
				continue
			}
			t.record(measure{
				Test: strings.Replace(t.test, t.op.Name, "pairs", 1), Algorithm: "p2p", Size: 4 * count, Ranks: 2, Device: checks.GPUDevice(g.gpu), Model: g.gpu.Name.Value, Peers: kind,
				What: "exchange with each other GPU by " + kind + ", each way", Value: median(rates[i][kind]), Unit: "GB/s", Unlike: describeUnlike(t.activeRun, g.loaded(), kind),
			})
		}
	}
}

// classifyPair returns the kind of connection of two GPUs: pairs of one kind are compared.
func classifyPair(t *ncclRun, i, j int) string {
	if t.NoP2P {
		return "network"
	}
	return t.ranks[i].loaded().classifyLink(t.ranks[j].loaded())
}

func (g *ncclGPU) loaded() *loadedGPU { return &loadedGPU{gpu: g.gpu, c: g.Context} }

// planPairRounds returns the rounds of a tournament, each divided until no two of its pairs share
// a part of their path: sharing slows pairs down, and the number of pairs that share a part
// differs from round to round.
func planPairRounds(t *ncclRun) (rounds [][]int) {
	for _, round := range pairAll(len(t.ranks)) {
		if t.NoP2P {
			rounds = append(rounds, round)
			continue
		}
		rounds = append(rounds, divideRound(round, func(i, j int) []string { return t.ranks[i].loaded().way(t.ranks[j].loaded()) })...)
	}
	return rounds
}

// divideRound divides a round into rounds of pairs that share no part of their path.
func divideRound(round []int, way func(i, j int) []string) (rounds [][]int) {
	var taken []map[string]bool // parts used, by round
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
			if err := t.comms[0].Exchange(g.Work(g.rank, count), round[i], round[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// verifyPairs verifies the data that each GPU received from its partner. The next round
// overwrites them with other values, so nothing needs clearing.
func verifyPairs(t *ncclRun, round []int, count int64, doing string) bool {
	return t.verifyParts(ncclPairs, doing, func(g *ncclGPU) []cuda.NCCLPart {
		if round[g.rank] < 0 {
			return nil
		}
		return []cuda.NCCLPart{{Count: count, From: round[g.rank], Ranks: 1}}
	})
}

// pairAll returns rounds where each of n meets at most one other; after the last round all have
// met: round[i] is the partner of i, -1 for a bye. It is the circle method of chess tournaments.
func pairAll(n int) (rounds [][]int) {
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

// ncclWrong is a wrong part of the data that a GPU received.
type ncclWrong struct {
	doing, op        string
	receiver, sender *ncclGPU // sender: nil if several have added to it
	count, at        uint64   // number of wrong elements, at most about a million, and the position of one
	of               uint64   // number of verified elements
	want, got        float32
}

// has reports whether a GPU can have had a part in it.
func (w *ncclWrong) has(g *ncclGPU) bool { return w.receiver == g || w.sender == g || w.sender == nil }

// finding returns a finding with the expected and the received value.
func (w *ncclWrong) finding(code string, severity checks.Severity) checks.Finding {
	f := checks.Finding{Code: code, Severity: severity, Want: fmt.Sprintf("%v in element %d", w.want, w.at), Got: fmt.Sprint(w.got)}
	if severity == checks.Fail {
		f.Remedy = checks.ReseatOrRMA
	}
	return f
}

// ncclCounted is the highest count of nccl_verify.
const ncclCounted = 1_000_000

// wrongEverywhere reports whether most data of every GPU are wrong. A faulty GPU or link corrupts
// some of the data, or leaves the exchange of the others correct.
func wrongEverywhere(t *ncclRun) bool {
	return !slices.ContainsFunc(t.ranks, func(g *ncclGPU) bool {
		return !slices.ContainsFunc(t.wrong, func(w ncclWrong) bool { return w.receiver == g && w.count > min(w.of, ncclCounted)/2 })
	})
}

// reportWrong reports wrong data once, for the GPU that all of them have in common.
func reportWrong(t *ncclRun) {
	if len(t.wrong) == 0 {
		return
	}
	first, g := t.wrong[0], findCulprit(t)
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
		t.report(checks.Device{}, first.finding("nccl.alike", checks.Unknown), "%s: most data wrong on all %s", first.doing, checks.Plural(len(t.ranks), "GPU"))
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

// findCulprit returns the GPU with a part in all wrong data, nil if there is none or if it can be
// another one: of two GPUs that exchanged data, either can be the cause.
func findCulprit(t *ncclRun) *ncclGPU {
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
		return t.wrong[0].receiver // the data of one sender are wrong on this GPU only
	}
	return nil
}
