package checks

import (
	"fmt"
	"maps"
	"testing"
)

// ibNode is a node with eight InfiniBand ports at 400 Gb/s, mlx5_0:1 to
// mlx5_7:1, and what is different on it.
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

func TestHWIB(t *testing.T) { testCheck(t, "check_hw_ib") }

var _ = table("check_hw_ib", func(string) []scenario {
	const port3 = "sys/class/infiniband/mlx5_3/ports/1/"
	down := func(port, text, want, got string, remedy Remedy) []Finding {
		return []Finding{{
			Code: "hw.ib.down", Severity: Fail, Device: Device{Kind: "port", Name: port}, Remedy: remedy, Want: want, Got: got,
			Message: "check_hw_ib:  No IB port" + text + "."}}
	}
	mismatch := func(got string) []Finding {
		return []Finding{{
			Code: "hw.ib.abi", Severity: Fail, Want: "/sys/class/infiniband_mad/abi_version above 0", Got: got,
			Message: "check_hw_ib:  Version mismatch between kernel OFED drivers and userspace OFED libraries."}}
	}
	polling := ibNode(map[string]string{port3 + "state": "1: DOWN\n", port3 + "phys_state": "2: Polling\n", port3 + "rate": "10 Gb/sec (4X SDR)\n"})
	initialised := ibNode(map[string]string{port3 + "state": "2: INIT\n"})
	slow := ibNode(map[string]string{port3 + "rate": "200 Gb/sec (2X NDR)\n"})
	deaf := ibNode(map[string]string{port3 + "state": "-", port3 + "state/": ""})
	return []scenario{
		{name: "any", files: ibNode(nil)},
		{name: "any at the rate", files: ibNode(nil), words: of("400"), table: map[string]any{"rate": int64(400)}},
		{name: "one", files: ibNode(nil), words: of("400", "mlx5_3:1", "more")},
		{name: "one at any rate", files: ibNode(nil), words: of("", "mlx5_3:1"), table: map[string]any{"port": "mlx5_3:1"}},
		{name: "one bad port does not hide the others", files: polling, words: of("400", "mlx5_4:1")},
		{name: "one bad port among all", files: polling, words: of("400")},

		{name: "down", files: polling, words: of("400", "mlx5_3:1"), want: down("mlx5_3:1",
			" mlx5_3:1 is ACTIVE (LinkUp 400 Gb/sec)", "ACTIVE LinkUp 400 Gb/sec", "mlx5_3:1 DOWN Polling 10 Gb/sec", CheckCable)},
		{name: "only initialised", files: initialised, words: of("", "mlx5_3:1"), want: down("mlx5_3:1",
			" mlx5_3:1 is ACTIVE (LinkUp)", "ACTIVE LinkUp", "mlx5_3:1 INIT LinkUp 400 Gb/sec", CheckFabric)},
		{name: "at half the rate", files: slow, words: of("400", "mlx5_3:1"), want: down("mlx5_3:1",
			" mlx5_3:1 is ACTIVE (LinkUp 400 Gb/sec)", "ACTIVE LinkUp 400 Gb/sec", "mlx5_3:1 ACTIVE LinkUp 200 Gb/sec", CheckCable)},
		{name: "none at the rate", words: of("100"), want: down("",
			" is ACTIVE (LinkUp 100 Gb/sec)", "ACTIVE LinkUp 100 Gb/sec", "mlx4_0:2 ACTIVE LinkUp 56 Gb/sec", ""),
			files: map[string]string{
				"sys/class/infiniband_mad/abi_version":           "5",
				"sys/class/infiniband/mlx4_0/ports/2/state":      "4: ACTIVE",
				"sys/class/infiniband/mlx4_0/ports/2/phys_state": "5: LinkUp",
				"sys/class/infiniband/mlx4_0/ports/2/rate":       "56 Gb/sec (4X FDR)",
			}},
		{name: "no such port", files: ibNode(nil), words: of("400", "mlx5_3"), want: []Finding{{
			Code: "hw.ib.missing", Severity: Fail, Device: Device{Kind: "port", Name: "mlx5_3"}, Want: "ACTIVE LinkUp 400 Gb/sec",
			Message: "check_hw_ib:  No IB port mlx5_3 is ACTIVE (LinkUp 400 Gb/sec)."}}},
		{name: "no adapter", words: of("400"), want: mismatch("")},
		{name: "no ports", words: of(""), files: map[string]string{"sys/class/infiniband_mad/abi_version": "5"}, want: []Finding{{
			Code: "hw.ib.missing", Severity: Fail, Device: Device{Kind: "port"}, Want: "ACTIVE LinkUp",
			Message: "check_hw_ib:  No IB port is ACTIVE (LinkUp)."}}},
		{name: "ib_umad not loaded", words: of("400"), want: mismatch("0"),
			files: ibNode(map[string]string{"sys/class/infiniband_mad/abi_version": "0\n"})},

		{name: "unreadable port", broken: true, files: deaf, words: of("400", "mlx5_3:1"), want: down("mlx5_3:1",
			" mlx5_3:1 is ACTIVE (LinkUp 400 Gb/sec)", "ACTIVE LinkUp 400 Gb/sec",
			"mlx5_3:1 read /sys/class/infiniband/mlx5_3/ports/1/state: is a directory", NoRemedy)},
		{name: "unreadable port among eight", broken: true, files: deaf, words: of("400")},
		{name: "garbage version", broken: true, words: of("400"), want: mismatch("five"),
			files: ibNode(map[string]string{"sys/class/infiniband_mad/abi_version": "five\n"})},
		{name: "unreadable class", broken: true, files: map[string]string{"sys/class/infiniband": ""}, words: of("400"),
			want: []Finding{{Code: "probe.unreadable", Severity: Unknown, Message: "read /sys/class/infiniband: not a directory"}}},
	}
})
