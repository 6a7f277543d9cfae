package sweep

import (
	"fmt"
	"slices"
	"testing"
)

// Nodes with different slow rails are no group, even if they are slow by the same factor: each is found, with its rail.
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

// The looks between two kinds of hosts, most of which are those of one slow node, do not clear it: of few nodes each is
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
