package sweep

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// mixedFleet is a healthy cluster in which some pairs are slower than others.
type mixedFleet struct {
	name   string
	nodes  int
	stages []Stage
	set    func(w *world)
	bad    int // a node that is made faulty
	doubts int // at most, of the healthy cluster
}

// hidden gives the nodes switches of some sizes that Slurm does not know.
func hidden(uplink float64, sizes ...int) func(*world) {
	return func(w *world) {
		w.behind, w.uplink = map[string]string{}, uplink
		i := 0
		for s, size := range sizes {
			for range size {
				w.behind[name(i)] = fmt.Sprint("s", s)
				i++
			}
		}
	}
}

// delivery makes the last nodes slower in all tests: their hosts are older. known: the ranks report that.
func delivery(count int, known bool) func(*world) {
	return func(w *world) {
		w.host = map[string]float64{}
		for i := range w.nodes {
			n := &w.nodes[i]
			if n.Host = "XE9680, new"; i < len(w.nodes)-count {
				continue
			}
			if w.host[n.Name] = 0.65; known {
				n.Host = "XE8545, old"
			}
		}
	}
}

// gpus gives the last nodes 16 GPUs instead of 8, and all nodes one adapter.
func gpus(count int) func(*world) {
	return func(w *world) {
		w.oneRail = true
		for i := range w.nodes {
			if n := &w.nodes[i]; i >= len(w.nodes)-count {
				n.GPUs = 16
			}
			w.nodes[i].Rails = w.nodes[i].Rails[:1]
		}
	}
}

var (
	rateStages = []Stage{StageTCP, StageRDMA, StagePairs}
	ncclStages = []Stage{StagePairs, StageGroups}
)

var mixedFleets = []mixedFleet{
	{"two leaves of 4", 8, rateStages, hidden(0.5, 4, 4), 1, 2},
	{"two leaves of 6", 12, rateStages, hidden(0.5, 6, 6), 1, 2},
	{"two leaves of 18", 36, rateStages, hidden(0.5, 18, 18), 1, 2},
	{"leaves of 18 and 9", 27, rateStages, hidden(0.5, 18, 9), 20, 2},
	{"leaves of 16 and 8", 24, rateStages, hidden(0.7, 16, 8), 20, 2},
	{"two leaves of 32", 64, rateStages, hidden(0.5, 32, 32), 1, 2},
	{"three leaves", 45, rateStages, hidden(0.5, 20, 20, 5), 1, 2},
	{"four leaves", 64, rateStages, hidden(0.4, 16, 16, 16, 16), 40, 2},
	{"a leaf of 3", 64, rateStages, hidden(0.5, 61, 3), 1, 2},
	{"two leaves of 64", 128, rateStages, hidden(0.7, 64, 64), 100, 2},

	{"another delivery", 40, rateStages, delivery(6, true), 38, 0},
	{"a small delivery", 64, rateStages, delivery(3, true), 62, 0},
	{"an unknown delivery", 40, rateStages, delivery(6, false), 1, 2},
	{"another delivery in groups", 40, ncclStages, delivery(8, true), 38, 0},
	{"an unknown delivery in groups", 40, ncclStages, delivery(5, false), 1, 2},
	{"two older nodes", 40, append(rateStages, StageGroups), delivery(2, true), 1, 4},
	{"one older node", 8, rateStages, delivery(1, true), 1, 4},

	{"four nodes with more GPUs", 24, ncclStages[:1], gpus(4), 22, 0},
	{"eight nodes with more GPUs", 32, ncclStages, gpus(8), 30, 0},
	{"more GPUs, bad node of the others", 24, ncclStages, gpus(4), 1, 0},
	{"one node with more GPUs", 24, ncclStages, gpus(1), 1, 1},
	{"half with more GPUs", 16, ncclStages, gpus(8), 1, 0},
}

// Healthy clusters of several kinds of nodes, or with switches that Slurm does not know, accuse no node. A node that
// is slow with all others is found there with certainty.
func TestMixedFleets(t *testing.T) {
	t.Parallel()
	driveMixedFleets(t, 2)
}

// The same with more seeds.
func TestManyMixedFleets(t *testing.T) {
	tier.All(t)
	t.Parallel()
	driveMixedFleets(t, 100)
}

func driveMixedFleets(t *testing.T, seeds uint64) {
	t.Helper()
	for _, f := range mixedFleets {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			for _, stage := range f.stages {
				for seed := range seeds {
					for _, factor := range []float64{1, 0.45, 0.25} {
						w := newWorld(f.nodes, 0, seed)
						f.set(w)
						if w.sigma = 0.01; factor < 1 {
							w.factor = map[string]float64{name(f.bad): factor}
						}
						suspects := w.drive(t, w.plan(t, stage, PlanOptions{Seed: seed, NoRing: true, Ops: []string{"all_reduce", "all_to_all"}}))
						title := fmt.Sprintf("%s, seed %d, factor %v, %d rounds: %v", stage, seed, factor, w.rounds, briefs(suspects))
						found := false
						for _, s := range suspects {
							switch is := s.Node == name(f.bad) && s.Peer == ""; {
							case is && factor < 1:
								found = found || !s.Doubt
							case !s.Doubt:
								t.Errorf("%s: %s is accused: %s", title, brief(s), s.Text)
							}
						}
						if factor < 1 && !found {
							t.Errorf("%s: %s is not found: %+v", title, name(f.bad), suspects)
						}
						if factor == 1 && len(suspects) > f.doubts {
							t.Errorf("%s: want at most %d doubts", title, f.doubts)
						}
						if w.rounds > 150 {
							t.Errorf("%s: too many rounds", title)
						}
					}
				}
			}
		})
	}
}

// A node with a marginal cable, which is slow with most and fast with some, is found beside switches that Slurm does
// not know, too.
func TestMarginalCable(t *testing.T) {
	t.Parallel()
	for _, sizes := range [][]int{nil, {20, 20}} {
		found := 0
		for seed := range uint64(10) {
			w := newWorld(40, 0, seed)
			hidden(0.5, sizes...)(w)
			w.pairs = map[[2]string]float64{}
			for i := range 40 {
				if i%6 != 0 {
					w.pairs[[2]string{name(5), name(i)}], w.pairs[[2]string{name(i), name(5)}] = 0.4, 0.4
				}
			}
			for _, s := range w.drive(t, w.plan(t, StageTCP, PlanOptions{Seed: seed, NoRing: true})) {
				if s.Node != "" && s.Node != name(5) && s.Peer != name(5) && !s.Doubt {
					t.Errorf("%v, seed %d: %s", sizes, seed, brief(s))
				}
				if s.Node == name(5) && s.Peer == "" && !s.Doubt {
					found++
					break
				}
			}
		}
		if found < 8 {
			t.Errorf("%v: the node is found in %d of 10 sweeps", sizes, found)
		}
	}
}

// An older PCIe slot is what limits RDMA, and no fault of the whole fleet. The same rate in a slot that lets the
// port's through is one.
func TestPCIeLimit(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 16} {
		for pcie, want := range map[int]bool{0: true, 432: true, 230: false} {
			w := newWorld(n, 0, 1)
			for i := range w.nodes {
				for k := range w.nodes[i].Rails {
					w.nodes[i].Rails[k].PCIe = pcie
				}
			}
			w.factor = map[string]float64{}
			for _, x := range w.nodes {
				w.factor[x.Name] = 0.53 // 207 of 390 Gb/s
			}
			p := w.plan(t, StageRDMA, PlanOptions{})
			suspects := w.drive(t, p)
			r := StageReport{Stage: StageRDMA, Fleet: p.Fleet(), Suspects: suspects, Results: []Result{{}}}
			r.Conclude(false, w.nodes)
			if got := r.Unproven != "" || len(suspects) > 0; got != want {
				t.Errorf("%d nodes, PCIe of %d Gb/s: %v, %q", n, pcie, briefs(suspects), r.Unproven)
			}
		}
	}
}

// A node whose adapter or number of GPUs differs is compared with the others, and only doubted.
func TestOddNode(t *testing.T) {
	t.Parallel()
	w := newWorld(40, 0, 1)
	delivery(1, true)(w)
	suspects := w.drive(t, w.plan(t, StageTCP, PlanOptions{NoRing: true}))
	if len(suspects) == 0 || slices.ContainsFunc(suspects, func(s Suspect) bool { return s.Node != name(39) || !s.Doubt }) {
		t.Errorf("%v", briefs(suspects))
	}
	if want := ": it has XE8545, old, most others XE9680, new"; len(suspects) > 0 && !strings.HasSuffix(suspects[0].Text, want) {
		t.Errorf("got %q, want it to end with %q", suspects[0].Text, want)
	}
}
