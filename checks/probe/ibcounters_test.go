package probe

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestIBCounters(t *testing.T) {
	t.Parallel()
	const class = "sys/class/infiniband/"
	h := tree(t, map[string]string{
		class + "mlx5_0/ports/1/counters/symbol_error":      "17\n",
		class + "mlx5_0/ports/1/counters/link_downed":       "18446744073709551615\n",
		class + "mlx5_0/ports/1/counters/port_rcv_packets":  "5\n", // no error
		class + "mlx5_0/ports/2/counters/symbol_error":      "N/A (no PMA)\n",
		class + "mlx5_0/ports/2/counters/port_rcv_errors":   "3\n",
		class + "mlx5_1/ports/1/counters/symbol_error/":     "",
		class + "mlx5_1/ports/1/counters/link_downed":       "0\n",
		class + "mlx5_2/ports":                              "not a directory",
		class + "rocep1s0/ports/1/hw_counters/out_of_order": "1\n",
	})
	list, err := h.IBCounters()
	got := map[string]map[string]uint64{}
	for _, p := range list {
		got[p.Name()] = p.Counts
	}
	want := map[string]map[string]uint64{
		"mlx5_0:1": {"symbol_error": 17, "link_downed": 1<<64 - 1}, "mlx5_0:2": {"port_rcv_errors": 3},
		"mlx5_1:1": {"link_downed": 0}, "rocep1s0:1": {},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, want := range []string{
		"parse /sys/class/infiniband/mlx5_0/ports/2/counters/symbol_error: invalid argument",
		"read /sys/class/infiniband/mlx5_1/ports/1/counters/symbol_error: is a directory",
		"read /sys/class/infiniband/mlx5_2/ports: not a directory",
	} {
		if !strings.Contains(message(err), want) {
			t.Errorf("error lacks %q:\n%v", want, err)
		}
	}
	if list, err := tree(t, nil).IBCounters(); err != nil || list != nil {
		t.Errorf("without the driver: %v, %v, want nothing", list, err)
	}
}
