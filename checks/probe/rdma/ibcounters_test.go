package rdma

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestIBCounters(t *testing.T) {
	t.Parallel()
	const class = "sys/class/infiniband/"
	h := probe.NewHost(probetest.Tree(t, map[string]string{
		class + "mlx5_0/ports/1/counters/symbol_error":      "17\n",
		class + "mlx5_0/ports/1/counters/link_downed":       "18446744073709551615\n",
		class + "mlx5_0/ports/1/counters/port_rcv_packets":  "5\n", // no error
		class + "mlx5_0/ports/2/counters/symbol_error":      "-1\n",
		class + "mlx5_0/ports/2/counters/link_downed":       "N/A (no PMA)\n",
		class + "mlx5_0/ports/2/counters/port_rcv_errors":   "3\n",
		class + "mlx5_1/ports/1/counters/symbol_error/":     "",
		class + "mlx5_1/ports/1/counters/link_downed":       "0\n",
		class + "mlx5_2/ports":                              "not a directory",
		class + "rocep1s0/ports/1/hw_counters/out_of_order": "1\n",
		class + "rdmap0s6/ports/1/state":                    "4: ACTIVE\n",
		class + "rdmap0s6/hw_counters/cmds_err":             "4\n",
	}))
	names := []string{"counters/symbol_error", "counters/link_downed", "counters/port_rcv_errors", "device/cmds_err"}
	got := map[string]map[string]uint64{}
	var err error
	for _, p := range []string{"mlx5_0 1", "mlx5_0 2", "mlx5_1 1", "mlx5_2 1", "rocep1s0 1", "rdmap0s6 1"} {
		device, port, _ := strings.Cut(p, " ")
		counts, bad := IBCounters(h, device, port, []string{"eth0", "eth1", "eth2"}, names)
		got[p], err = counts, errors.Join(err, bad)
	}
	want := map[string]map[string]uint64{
		"mlx5_0 1": {"counters/symbol_error": 17, "counters/link_downed": 1<<64 - 1}, "mlx5_0 2": {"counters/port_rcv_errors": 3},
		"mlx5_1 1": {"counters/link_downed": 0}, "mlx5_2 1": {}, "rocep1s0 1": {}, "rdmap0s6 1": {"device/cmds_err": 4},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, want := range []string{
		"parse /sys/class/infiniband/mlx5_0/ports/2/counters/symbol_error: invalid argument",
		"read /sys/class/infiniband/mlx5_1/ports/1/counters/symbol_error: is a directory",
		"read /sys/class/infiniband/mlx5_2/ports/1: not a directory",
	} {
		if !strings.Contains(probetest.Message(err), want) {
			t.Errorf("error lacks %q:\n%v", want, err)
		}
	}
}

// The counts of two interfaces of one port are summed; a missing one counts nothing.
func TestIBCountersOfInterfaces(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(probetest.Tree(t, map[string]string{
		"sys/class/infiniband/mlx5_bond_0/ports/1/state": "4: ACTIVE\n",
		"sys/class/net/eth0/statistics/rx_crc_errors":    "3\n",
		"sys/class/net/eth1/statistics/rx_crc_errors":    "5\n",
		"sys/class/net/eth1/statistics/tx_errors":        "x\n",
		"sys/class/net/eth0/statistics/tx_errors":        "7\n", // a part of a sum is none
	}))
	got, err := IBCounters(h, "mlx5_bond_0", "1", []string{"eth0", "eth1", "eth2"}, []string{"net/rx_crc_errors", "net/tx_errors", "net/rx_errors"})
	if diff := cmp.Diff(map[string]uint64{"net/rx_crc_errors": 8}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if want := "parse /sys/class/net/eth1/statistics/tx_errors: invalid argument"; probetest.Message(err) != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func FuzzCounter(f *testing.F) {
	for _, seed := range []string{"0\n", "18446744073709551615", "18446744073709551616", "N/A (no PMA)", "-1", "\xff", "1 2"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, known, ok := parseCounter(text)
		if known && !ok || !known && n != 0 {
			t.Errorf("%q: %d, %v, %v", text, n, known, ok)
		}
	})
}
