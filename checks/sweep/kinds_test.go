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
