package checks

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A board of four GPUs has no NVSwitches. A board of eight GPUs has them, even with one GPU missing.
func TestHasNVSwitches(t *testing.T) {
	t.Parallel()
	board := &Platform{GPUs: []int{1, 2, 4, 8}, NVSwitchGPUs: 8}
	got := map[int]bool{}
	for _, n := range []int{0, 1, 4, 5, 7, 8, 9} {
		got[n] = board.HasNVSwitches(n)
	}
	if diff := cmp.Diff(map[int]bool{0: false, 1: false, 4: false, 5: true, 7: true, 8: true, 9: true}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if (&Platform{GPUs: []int{8}}).HasNVSwitches(8) {
		t.Error("of a platform that is unknown")
	}
}

// One or two of eight missing is a fault; half of them is how the node was built.
func TestPortsMissing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ full, ports, least int }{{8, 5, 6}, {4, 2, 3}, {2, 1, 2}, {1, 0, 1}, {0, 0, 0}} {
		p := &Platform{NetworkPorts: c.full}
		for ports := range 12 {
			if got, want := p.PortsMissing(ports), ports > c.ports && ports >= c.least && ports < c.full; got != want {
				t.Errorf("%d of %d missing: %v, want %v", ports, c.full, got, want)
			}
		}
	}
}

func TestFullNetwork(t *testing.T) {
	t.Parallel()
	p := &Platform{NetworkGPUs: 2}
	for _, c := range []struct {
		gpus, ports int
		want        bool
	}{{8, 4, true}, {8, 3, false}, {7, 4, true}, {0, 0, false}, {8, 0, false}, {8, 16, true}} {
		if got := p.FullNetwork(c.gpus, c.ports); got != c.want {
			t.Errorf("%d ports for %d GPUs: %v", c.ports, c.gpus, got)
		}
	}
	if (&Platform{}).FullNetwork(8, 8) {
		t.Error("of a platform that is unknown")
	}
}
