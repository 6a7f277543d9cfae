package sweep

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// smallFaults are faults of a node, and the stages that measure them.
var smallFaults = []struct {
	name   string
	stages []Stage // nil: all
	set    func(w *world, rng *rand.Rand, node, plane string)
}{
	{"slow", []Stage{StageTCP, StageRDMA, StagePairs, StageGroups}, func(w *world, rng *rand.Rand, node, plane string) {
		w.factor[node+plane] = 0.3 + 0.3*rng.Float64()
	}},
	{"lossy", []Stage{StageReach}, func(w *world, _ *rand.Rand, node, plane string) { w.loss[node+plane] = 0.05 }},
	{"silent", nil, func(w *world, _ *rand.Rand, node, plane string) { w.fault[node+plane] = FaultSilent }},
	{"blocked inbound", []Stage{StageReach, StageTCP, StageRDMA, StagePairs, StageGroups}, func(w *world, _ *rand.Rand, node, plane string) {
		w.fault[node+plane+"/receives"] = FaultRefused
	}},
	{"dying", nil, func(w *world, rng *rand.Rand, node, _ string) { w.dies[node] = rng.IntN(4 * len(w.nodes)) }},
}

// smallSweep sweeps a small fleet with up to three faulty nodes. The fault of the first one is given.
func smallSweep(t *testing.T, stage Stage, fault int, seed uint64) (w *world, bad map[string]string, p Plan, title string) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, uint64(fault)))
	n, leaf := 3+rng.IntN(22), 2*rng.IntN(3)
	w, bad = newWorld(n, leaf, seed), map[string]string{}
	w.fault, w.factor, w.loss, w.dies = map[string]Fault{}, map[string]float64{}, map[string]float64{}, map[string]int{}
	mixed := rng.IntN(2) == 0
	count := rng.IntN(4)
	if n < 6 {
		count = min(count, 1)
	} else if n < 9 {
		count = min(count, 2)
	}
	for len(bad) < count {
		f := smallFaults[fault]
		if len(bad) > 0 && mixed {
			f = smallFaults[rng.IntN(len(smallFaults))]
		}
		if f.stages != nil && !slices.Contains(f.stages, stage) {
			continue
		}
		node, plane := name(rng.IntN(n)), ""
		if bad[node] != "" {
			continue
		}
		if rng.IntN(2) == 0 {
			plane = map[Stage]string{StageReach: "/eth0", StageTCP: "/eth0", StageRDMA: "/mlx5_0:1"}[stage]
		}
		f.set(w, rng, node, plane)
		bad[node] = f.name + plane
	}
	p = w.plan(t, stage, PlanOptions{Seed: seed, Ops: []string{"all_reduce", "all_gather"}[:1+rng.IntN(2)], Lines: []string{"check_a"}, NoRing: rng.IntN(2) == 0})
	return w, bad, p, fmt.Sprintf("%s, %s, seed %d, %d nodes, leaves of %d, faulty %v", stage, smallFaults[fault].name, seed, n, leaf, bad)
}

// falsely returns the certain suspects that are healthy: a node, a pair, a leaf with healthy nodes for the most part,
// or the path between two leaves.
func falsely(w *world, bad map[string]string, suspects []Suspect) (wrong []Suspect) {
	for _, s := range suspects {
		faulty, members := 0, 0
		for _, n := range w.nodes {
			if slices.Contains(s.Leaves, n.Leaf) {
				if members++; bad[n.Name] != "" {
					faulty++
				}
			}
		}
		switch {
		case s.Doubt:
		case s.Peer != "" && bad[s.Node] == "" && bad[s.Peer] == "", s.Peer == "" && s.Node != "" && bad[s.Node] == "",
			len(s.Leaves) > 1, len(s.Leaves) == 1 && 2*faulty <= members:
			wrong = append(wrong, s)
		}
	}
	return wrong
}

// namedBy returns the nodes that suspects name, with those of their groups and leaves.
func namedBy(w *world, suspects []Suspect) map[string]bool {
	named := map[string]bool{}
	for _, s := range suspects {
		named[s.Node], named[s.Peer] = true, true
		for _, n := range s.Partners {
			named[n] = named[n] || s.Node == ""
		}
		for _, n := range w.nodes {
			named[n.Name] = named[n.Name] || slices.Contains(s.Leaves, n.Leaf)
		}
	}
	return named
}

// died reports whether a node was lost in a plan.
func died(p Plan, node string) bool {
	switch p := p.(type) {
	case *chain:
		return p.f.dead[p.f.index[node]]
	case *pairPlan:
		return p.f.dead[p.f.index[node]]
	case *groupPlan:
		return p.f.dead[p.f.index[node]]
	case *nodePlan:
		return p.f.dead[p.f.index[node]]
	}
	return false
}

// rareSeeds have cases that few others have: a slow node that is alone in its leaf, a node that is free in a round,
// a lossy one that is alone in its leaf, and a slow one of three.
var rareSeeds = []uint64{569, 591, 816, 1016, 1372, 415, 137}

// Small fleets accuse no healthy node and no healthy leaf, and a single faulty node is a suspect, or in a doubt.
func TestSmallFleets(t *testing.T) {
	t.Parallel()
	driveSmallFleets(t, 50)
}

// The same with more of them.
func TestManySmallFleets(t *testing.T) {
	tier.All(t)
	t.Parallel()
	driveSmallFleets(t, 200)
}

// driveSmallFleets drives so many small fleets of each stage and fault.
func driveSmallFleets(t *testing.T, seeds int) {
	t.Helper()
	for _, stage := range Stages {
		for fault, f := range smallFaults {
			if f.stages != nil && !slices.Contains(f.stages, stage) {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s", stage, f.name), func(t *testing.T) {
				t.Parallel()
				found, all := 0, 0
				for i := range seeds + len(rareSeeds) {
					seed := uint64(i)
					if i >= seeds {
						seed = rareSeeds[i-seeds]
					}
					w, bad, p, title := smallSweep(t, stage, fault, seed)
					suspects := w.drive(t, p)
					if wrong := falsely(w, bad, suspects); len(wrong) > 0 {
						t.Errorf("%s: %v are accused, of %v", title, briefs(wrong), briefs(suspects))
					}
					if w.rounds > 300 {
						t.Errorf("%s: %d rounds", title, w.rounds)
					}
					named := namedBy(w, suspects)
					for _, node := range slices.Sorted(maps.Keys(bad)) {
						if _, dies := w.dies[node]; dies && !died(p, node) {
							named[node] = true // the stage has ended before
						}
						if all++; named[node] {
							found++
						} else if len(bad) == 1 {
							t.Errorf("%s: nothing says so: %v", title, cmp.Or(strings.Join(briefs(suspects), ", "), "no suspect"))
						}
					}
				}
				t.Logf("%d of %d faulty nodes are named", found, all)
			})
		}
	}
}

// Nodes that fail only as the second one of a test are named, and their partners are not.
func TestBlockedInbound(t *testing.T) {
	t.Parallel()
	for _, n := range []int{5, 8, 14, 20, 34, 100} {
		for _, stage := range []Stage{StageReach, StageRDMA, StagePairs} {
			for seed := range uint64(10) {
				w := newWorld(n, 0, seed)
				w.fault, w.dies = map[string]Fault{}, map[string]int{name(n - 1): int(seed) * n}
				bad := map[string]string{name(n - 1): "dying"}
				for i := range 1 + n/7%3 {
					bad[name(2*i)], w.fault[name(2*i)+"/receives"] = "blocked inbound", FaultRefused
				}
				suspects := w.drive(t, w.plan(t, stage, PlanOptions{Seed: seed, Ops: []string{"all_reduce"}}))
				if wrong := falsely(w, bad, suspects); len(wrong) > 0 {
					t.Errorf("%d nodes, %s, seed %d: %v are accused", n, stage, seed, briefs(wrong))
				}
				named := namedBy(w, suspects)
				for node, fault := range bad {
					if fault != "dying" && !named[node] {
						t.Errorf("%d nodes, %s, seed %d: %s is not named: %v", n, stage, seed, node, briefs(suspects))
					}
				}
			}
		}
	}
}

// In an even round and the next one each node is first once and second once.
func TestPlaces(t *testing.T) {
	t.Parallel()
	for _, n := range []int{4, 9, 10, 12, 33, 64, 101, 1000} {
		for round := 0; round+1 < circleRounds(n); round += 2 {
			firsts, tests := make([]int, n), make([]int, n)
			for _, r := range []int{round, round + 1} {
				for i, j := range circle(n, r) {
					firsts[i]++
					tests[i]++
					tests[j]++
				}
			}
			for i := range n {
				if tests[i] == 2 && firsts[i] != 1 {
					t.Fatalf("%d nodes, rounds %d and %d: node %d has one place only", n, round, round+1, i)
				}
			}
		}
	}
}

// Several nodes that lose datagrams are named where all pairs are tested: each healthy node fails with all of them.
func TestLossyNodes(t *testing.T) {
	t.Parallel()
	for _, x := range [][2]int{{16, 3}, {18, 3}, {24, 4}, {40, 8}} {
		for seed := range uint64(4) {
			w, bad := newWorld(x[0], 4, seed), map[string]string{}
			w.loss = map[string]float64{}
			rng := rand.New(rand.NewPCG(seed, 9))
			for len(bad) < x[1] {
				node := name(rng.IntN(x[0]))
				bad[node], w.loss[node+"/eth0"] = "lossy", 0.05
			}
			suspects := w.drive(t, w.plan(t, StageReach, PlanOptions{Seed: seed, Planes: []string{"eth0"}}))
			if wrong := falsely(w, bad, suspects); len(wrong) > 0 {
				t.Errorf("%v, seed %d: %v are accused", x, seed, briefs(wrong))
			}
			named := map[string]bool{}
			for _, s := range suspects {
				named[s.Node] = named[s.Node] || !s.Doubt && s.Peer == ""
				for _, n := range s.Partners {
					named[n] = named[n] || s.Node == "" && !s.Doubt
				}
			}
			for node := range bad {
				if !named[node] {
					t.Errorf("%v, seed %d: %s is not named: %v", x, seed, node, briefs(suspects))
				}
			}
		}
	}
}

// Slow nodes accuse no leaf switch, and are named, although all paths of a small leaf are slow by chance.
func TestSlowNodesBesideLeaves(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		stage   Stage
		n, slow int
	}{{StagePairs, 19, 3}, {StageTCP, 17, 2}, {StageTCP, 19, 3}, {StagePairs, 35, 3}} {
		missed := 0
		for seed := range uint64(200) {
			w, bad := newWorld(tc.n, 4, seed), map[string]string{}
			w.factor = map[string]float64{}
			rng := rand.New(rand.NewPCG(seed, 9))
			for len(bad) < tc.slow {
				node := name(rng.IntN(tc.n))
				bad[node], w.factor[node] = "slow", 0.4
			}
			o := PlanOptions{Seed: seed, Ops: []string{"all_reduce"}, NoRing: true, Planes: []string{"eth0"}}
			suspects := w.drive(t, w.plan(t, tc.stage, o))
			if wrong := falsely(w, bad, suspects); len(wrong) > 0 {
				t.Errorf("%+v, seed %d: %v are accused, faulty %v", tc, seed, briefs(wrong), bad)
			}
			named := namedBy(w, suspects)
			for node := range bad {
				if !named[node] {
					t.Logf("%+v, seed %d: %s is not named: %v", tc, seed, node, briefs(suspects))
					missed++
				}
			}
		}
		if missed > 0 {
			t.Errorf("%+v: %d of %d slow nodes are not named", tc, missed, 200*tc.slow)
		}
	}
	w := newWorld(19, 4, 141)
	w.factor = map[string]float64{name(3): 0.4, name(8): 0.3, name(9): 0.5}
	suspects := w.drive(t, w.plan(t, StagePairs, PlanOptions{Seed: 141, Ops: []string{"all_reduce"}}))
	if got := briefs(suspects); slices.Contains(got, "leaf4 sweep.nccl.slow") || len(got) < 3 {
		t.Errorf("%v", got)
	}
}

// One slow node of a few is named, wherever leaf switches divide them, and noise accuses none.
func TestSlowNodeOfFew(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 4, 5, 9, 11, 13, 17} {
		for _, stage := range []Stage{StageTCP, StageRDMA, StagePairs, StageGroups} {
			for seed := range uint64(25) {
				w := newWorld(n, 4*int(seed%2), seed)
				bad := map[string]string{name(int(seed) % n): "slow"}
				w.factor = map[string]float64{name(int(seed) % n): 0.4}
				o := PlanOptions{Seed: seed, Ops: []string{"all_reduce"}, NoRing: true}
				suspects := w.drive(t, w.plan(t, stage, o))
				if wrong := falsely(w, bad, suspects); len(wrong) > 0 || !namedBy(w, suspects)[name(int(seed)%n)] {
					t.Errorf("%d nodes, %s, seed %d: %v, faulty %v", n, stage, seed, briefs(suspects), bad)
				}
				w = newWorld(n, 0, seed)
				w.sigma = 0.1
				if suspects := w.drive(t, w.plan(t, stage, o)); len(suspects) > 0 {
					t.Errorf("%d nodes, %s, seed %d: %v are accused of noise", n, stage, seed, briefs(suspects))
				}
			}
		}
	}
}

// Of an odd number, too, each node is first once and second once at least.
func TestPlacesOfOddFleets(t *testing.T) {
	t.Parallel()
	for _, n := range []int{5, 9, 17, 33, 101} {
		for seed := range uint64(20) {
			w := newWorld(n, 0, seed)
			p := w.plan(t, StagePairs, PlanOptions{Seed: seed, Ops: []string{"all_reduce"}})
			first, second := map[string]bool{}, map[string]bool{}
			for tasks := p.Next(); len(tasks) > 0; tasks = p.Next() {
				var results []Result
				for _, task := range tasks {
					first[task.Nodes[0]], second[task.Nodes[1]] = true, true
					r, _ := w.run(task)
					results = append(results, r)
				}
				p.Take(results)
			}
			if len(first) < n || len(second) < n {
				t.Errorf("%d nodes, seed %d: %d are first, %d second", n, seed, len(first), len(second))
			}
		}
	}
}
