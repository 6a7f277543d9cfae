package rdma

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

// A counter that cannot be read, for a moment or for good, leaves the sum unknown once: it would jump.
func TestLoadSums(t *testing.T) {
	t.Parallel()
	const port, counters = "sys/class/infiniband/mlx5_0/ports/1/", "sys/class/infiniband/mlx5_0/ports/1/counters/"
	root := probetest.Tree(t, map[string]string{
		port + "state": "4: ACTIVE\n", port + "phys_state": "5: LinkUp\n", port + "link_layer": "InfiniBand\n",
		counters + "port_xmit_data": "100\n", counters + "port_rcv_data": "10\n",
	})
	w := WatchPorts(probe.NewHost(root))
	defer w.Close()
	if _, err := w.States(); err != nil {
		t.Fatal(err)
	}
	for i, test := range []struct {
		received string
		want     float64
	}{{"10\n", 440}, {"11\n", 444}, {"\n", math.NaN()}, {"\n", 400}, {"12\n", math.NaN()}, {"13\n", 452}} {
		if err := os.WriteFile(filepath.Join(root, counters+"port_rcv_data"), []byte(test.received), 0o600); err != nil {
			t.Fatal(err)
		}
		load := w.Loads([]string{"mlx5_0:1"})["mlx5_0:1"]
		if load.Data != test.want && !(math.IsNaN(load.Data) && math.IsNaN(test.want)) || !math.IsNaN(load.Wait) {
			t.Errorf("load %d: %+v, want %v bytes", i, load, test.want)
		}
	}
}
