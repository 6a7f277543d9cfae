package lbnl

import (
	"fmt"
	"maps"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

// ibNode returns the files of a node with eight InfiniBand ports at 400 Gb/s, mlx5_0:1 to
// mlx5_7:1, with some of them replaced.
func ibNode(change map[string]string) map[string]string {
	files := map[string]string{"sys/class/infiniband_mad/abi_version": "5\n"}
	for i := range 8 {
		dir := fmt.Sprintf("sys/class/infiniband/mlx5_%d/ports/1/", i)
		files[dir+"state"] = "4: ACTIVE\n"
		files[dir+"phys_state"] = "5: LinkUp\n"
		files[dir+"rate"] = "400 Gb/sec (4X NDR)\n"
	}
	maps.Copy(files, change)
	for name, content := range files {
		if content == "-" {
			delete(files, name)
		}
	}
	return files
}

func TestHWIB(t *testing.T) { checktest.Run(t, "check_hw_ib") }

var _ = checktest.Table("check_hw_ib", func(string) []checktest.Scenario {
	const port3 = "sys/class/infiniband/mlx5_3/ports/1/"
	down := func(port, text, want, got string, remedy checks.Remedy) []checks.Finding {
		return []checks.Finding{{
			Code: "hw.ib.down", Severity: checks.Fail, Device: checks.Device{Kind: "port", Name: port}, Remedy: remedy, Want: want, Got: got,
			Message: "check_hw_ib:  No IB port" + text + "."}}
	}
	mismatch := func(got string) []checks.Finding {
		return []checks.Finding{{
			Code: "hw.ib.abi", Severity: checks.Fail, Want: "/sys/class/infiniband_mad/abi_version above 0", Got: got,
			Message: "check_hw_ib:  Version mismatch between kernel OFED drivers and userspace OFED libraries."}}
	}
	polling := ibNode(map[string]string{port3 + "state": "1: DOWN\n", port3 + "phys_state": "2: Polling\n", port3 + "rate": "10 Gb/sec (4X SDR)\n"})
	initialised := ibNode(map[string]string{port3 + "state": "2: INIT\n"})
	slow := ibNode(map[string]string{port3 + "rate": "200 Gb/sec (2X NDR)\n"})
	deaf := ibNode(map[string]string{port3 + "state": "-", port3 + "state/": ""})
	return []checktest.Scenario{
		{Name: "any", Files: ibNode(nil)},
		{Name: "any at the rate", Files: ibNode(nil), Words: checktest.Of("400"), Table: map[string]any{"rate": int64(400)}},
		{Name: "one", Files: ibNode(nil), Words: checktest.Of("400", "mlx5_3:1", "more")},
		{Name: "one at any rate", Files: ibNode(nil), Words: checktest.Of("", "mlx5_3:1"), Table: map[string]any{"port": "mlx5_3:1"}},
		{Name: "one bad port does not hide the others", Files: polling, Words: checktest.Of("400", "mlx5_4:1")},
		{Name: "one bad port among all", Files: polling, Words: checktest.Of("400")},

		{Name: "down", Files: polling, Words: checktest.Of("400", "mlx5_3:1"), Want: down("mlx5_3:1",
			" mlx5_3:1 is ACTIVE (LinkUp 400 Gb/sec)", "ACTIVE LinkUp 400 Gb/sec", "mlx5_3:1 DOWN Polling 10 Gb/sec", checks.CheckCable)},
		{Name: "only initialised", Files: initialised, Words: checktest.Of("", "mlx5_3:1"), Want: down("mlx5_3:1",
			" mlx5_3:1 is ACTIVE (LinkUp)", "ACTIVE LinkUp", "mlx5_3:1 INIT LinkUp 400 Gb/sec", checks.CheckFabric)},
		{Name: "at half the rate", Files: slow, Words: checktest.Of("400", "mlx5_3:1"), Want: down("mlx5_3:1",
			" mlx5_3:1 is ACTIVE (LinkUp 400 Gb/sec)", "ACTIVE LinkUp 400 Gb/sec", "mlx5_3:1 ACTIVE LinkUp 200 Gb/sec", checks.CheckCable)},
		{Name: "none at the rate", Words: checktest.Of("100"), Want: down("",
			" is ACTIVE (LinkUp 100 Gb/sec)", "ACTIVE LinkUp 100 Gb/sec", "mlx4_0:2 ACTIVE LinkUp 56 Gb/sec", ""),
			Files: map[string]string{
				"sys/class/infiniband_mad/abi_version":           "5",
				"sys/class/infiniband/mlx4_0/ports/2/state":      "4: ACTIVE",
				"sys/class/infiniband/mlx4_0/ports/2/phys_state": "5: LinkUp",
				"sys/class/infiniband/mlx4_0/ports/2/rate":       "56 Gb/sec (4X FDR)",
			}},
		{Name: "no such port", Files: ibNode(nil), Words: checktest.Of("400", "mlx5_3"), Want: []checks.Finding{{
			Code: "hw.ib.missing", Severity: checks.Fail, Device: checks.Device{Kind: "port", Name: "mlx5_3"}, Want: "ACTIVE LinkUp 400 Gb/sec",
			Message: "check_hw_ib:  No IB port mlx5_3 is ACTIVE (LinkUp 400 Gb/sec)."}}},
		{Name: "no adapter", Words: checktest.Of("400"), Want: mismatch("")},
		{Name: "no ports", Words: checktest.Of(""), Files: map[string]string{"sys/class/infiniband_mad/abi_version": "5"}, Want: []checks.Finding{{
			Code: "hw.ib.missing", Severity: checks.Fail, Device: checks.Device{Kind: "port"}, Want: "ACTIVE LinkUp",
			Message: "check_hw_ib:  No IB port is ACTIVE (LinkUp)."}}},
		{Name: "ib_umad not loaded", Words: checktest.Of("400"), Want: mismatch("0"),
			Files: ibNode(map[string]string{"sys/class/infiniband_mad/abi_version": "0\n"})},

		{Name: "unreadable port", Broken: true, Files: deaf, Words: checktest.Of("400", "mlx5_3:1"), Want: down("mlx5_3:1",
			" mlx5_3:1 is ACTIVE (LinkUp 400 Gb/sec)", "ACTIVE LinkUp 400 Gb/sec",
			"mlx5_3:1 read /sys/class/infiniband/mlx5_3/ports/1/state: is a directory", checks.NoRemedy)},
		{Name: "unreadable port among eight", Broken: true, Files: deaf, Words: checktest.Of("400")},
		{Name: "garbage version", Broken: true, Words: checktest.Of("400"), Want: mismatch("five"),
			Files: ibNode(map[string]string{"sys/class/infiniband_mad/abi_version": "five\n"})},
		{Name: "unreadable class", Broken: true, Files: map[string]string{"sys/class/infiniband": ""}, Words: checktest.Of("400"),
			Want: []checks.Finding{{Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /sys/class/infiniband: not a directory"}}},
	}
})
