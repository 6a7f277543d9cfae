package sweep

import (
	"fmt"
	"slices"
	"testing"
)

// Nodes with different slow rails are not a group, even if they are slow by the same factor: each is found, with its rail.
func TestDifferentRails(t *testing.T) {
	t.Parallel()
	for _, n := range []int{12, 40} {
		w := newWorld(n, 0, 1)
		w.sigma = 0.01
		for i := range w.nodes {
			w.nodes[i].Rails = nil
			for r := range 8 {
				w.nodes[i].Rails = append(w.nodes[i].Rails, Rail{Name: fmt.Sprintf("mlx5_%d:1", r), Layer: layerInfiniBand, Speed: 400, PCIe: 453})
			}
		}
		w.factor = map[string]float64{name(1) + "/mlx5_0:1": 0.5, name(3) + "/mlx5_3:1": 0.5, name(5) + "/mlx5_6:1": 0.5}
		got := briefs(w.drive(t, w.plan(t, StageRDMA, PlanOptions{Seed: 1})))
		want := []string{"gpu00001 mlx5_0:1 sweep.rdma.slow", "gpu00003 mlx5_3:1 sweep.rdma.slow", "gpu00005 mlx5_6:1 sweep.rdma.slow"}
		if !slices.Equal(got, want) {
			t.Errorf("%d nodes: got %v, want %v", n, got, want)
		}
	}
}

// The looks between two kinds of hosts do not clear a slow node if most of them are its own: of few nodes each is
// found, whatever its kind.
func TestTwoHosts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ nodes, others, bad int }{{9, 3, 8}, {9, 4, 8}, {10, 4, 9}, {10, 5, 0}, {12, 3, 11}, {12, 6, 0}, {16, 3, 15}} {
		for _, stage := range rateStages {
			for seed := range uint64(20) {
				w := newWorld(c.nodes, 0, seed)
				w.sigma, w.factor = 0.01, map[string]float64{name(c.bad): 0.5}
				for i := range w.nodes {
					if w.nodes[i].Host = "XE9680"; i >= c.nodes-c.others {
						w.nodes[i].Host = "XE8545"
					}
				}
				suspects := w.drive(t, w.plan(t, stage, PlanOptions{Seed: seed, NoRing: true}))
				found := false
				for _, s := range suspects {
					is := s.Node == name(c.bad) && s.Peer == "" && !s.Doubt
					found = found || is
					if !is && !s.Doubt {
						t.Errorf("%+v, %s, seed %d: %s is accused", c, stage, seed, brief(s))
					}
				}
				if !found {
					t.Errorf("%+v, %s, seed %d: not found: %v", c, stage, seed, briefs(suspects))
				}
			}
		}
	}
}

// A host whose name is unlike each other explains no loss, and a GPU fewer explains only a small one.
func TestNotOdd(t *testing.T) {
	t.Parallel()
	for _, n := range []int{4, 8, 20} {
		for title, set := range map[string]func(i int, node *Node){
			"names of their own": func(i int, node *Node) { node.Host = fmt.Sprintf("SYS-%d", i) },
			"7 GPUs":             func(i int, node *Node) { on(i == 2, node, func(node *Node) { node.GPUs = 7 }) },
		} {
			for _, stage := range []Stage{StageTCP, StagePairs, StageGroups} {
				w := newWorld(n, 0, 1)
				w.sigma, w.factor = 0.01, map[string]float64{name(2): 0.4}
				for i := range w.nodes {
					set(i, &w.nodes[i])
				}
				suspects := w.drive(t, w.plan(t, stage, PlanOptions{Seed: 1, NoRing: true}))
				if !slices.ContainsFunc(suspects, func(s Suspect) bool { return s.Node == name(2) && s.Peer == "" && !s.Doubt }) {
					t.Errorf("%d nodes, %s, %s: %v", n, title, stage, briefs(suspects))
				}
			}
		}
	}
	w := newWorld(20, 0, 1)
	w.sigma, w.factor, w.nodes[2].GPUs = 0.01, map[string]float64{name(2): 0.85}, 7
	if got := briefs(w.drive(t, w.plan(t, StagePairs, PlanOptions{Seed: 1}))); !slices.Equal(got, []string{"doubt gpu00002 sweep.nccl.slow"}) {
		t.Errorf("a loss that 7 of 8 GPUs explain: %v", got)
	}
}

// Names of hosts that are those of chassis do not make kinds: a plan of thousands of nodes stays fast, and finds the bad one.
func TestManyHosts(t *testing.T) {
	t.Parallel()
	w := newWorld(600, 0, 1)
	w.sigma, w.factor = 0.01, map[string]float64{name(2): 0.5}
	for i := range w.nodes {
		w.nodes[i].Host = fmt.Sprintf("chassis %d", i/3)
	}
	p := w.plan(t, StageTCP, PlanOptions{Seed: 1, NoRing: true})
	if got := briefs(w.drive(t, p)); !slices.Equal(got, []string{"gpu00002 sweep.tcp.slow"}) {
		t.Errorf("%v", got)
	}
	for _, d := range p.Fleet() {
		if d.Model != "H100" && d.Model != "" {
			t.Errorf("a kind %q", d.Model)
		}
	}
	if w.rounds > 60 {
		t.Errorf("%d rounds", w.rounds)
	}
}
