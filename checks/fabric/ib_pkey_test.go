package fabric

import (
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestIBPKey(t *testing.T) { checktest.Run(t, "check_ib_pkey") }

var _ = checktest.Table("check_ib_pkey", func(name string) []checktest.Scenario {
	keys := func(list ...string) func(*fakesys.Node) {
		return func(n *fakesys.Node) {
			for i := range 3 {
				n.Set("mlx5_3", fmt.Sprintf("ports/1/pkeys/%d", i), "0x0000")
			}
			for i, k := range list {
				n.Set("mlx5_3", fmt.Sprintf("ports/1/pkeys/%d", i), k)
			}
		}
	}
	says := func(severity checks.Severity, code, want, got, text string) checks.Finding {
		return checktest.PortFinding(name, "mlx5_3", 3, checks.Finding{Code: "ib.pkey." + code, Severity: severity, Remedy: checks.CheckFabric, Want: want, Got: got}, text)
	}
	refused := func(what, got, want string) checks.Finding {
		return checks.Finding{Code: "config.value", Severity: checks.Unknown, Want: want, Got: got, Remedy: checks.FixConfig, Message: fmt.Sprintf("%s:  %s %q, want %s", name, what, got, want)}
	}
	odd := func(file, text string) checks.Finding {
		return ibUnknown(name, "port", "mlx5_3", 3, text+" /sys/class/infiniband/mlx5_3/ports/1/pkeys/"+file)
	}
	broken := func(s checktest.Scenario) checktest.Scenario {
		s.Broken = true
		return s
	}
	return []checktest.Scenario{
		checktest.OnFabric("healthy", nil, nil),
		checktest.OnRoCE("RoCE has none", nil, nil, checks.Finding{Code: "ib.left", Severity: checks.Skip, Message: name + ":  no RDMA port of this node carries jobs' traffic over InfiniBand"}),
		checktest.OnFabric("as wanted", checktest.Of("0x8001", "0xffff"), nil).OrTable(map[string]any{"pkeys": []any{"0x8001", "0xffff"}}),
		checktest.OnFabric("at its index", checktest.Of("-i", "1", "0x8001"), nil).OrTable(map[string]any{"index": int64(1), "pkeys": "0x8001"}),
		checktest.OnFabric("a full member, any membership wanted", checktest.Of("0x0001"), nil),
		checktest.OnFabric("a limited member, any membership wanted", checktest.Of("0x0001"), keys("0x7fff", "0x0001")),
		checktest.OnFabric("a limited member of the default partition", nil, keys("0x8001", "0x7fff")),
		checktest.OnFabric("not in a partition", checktest.Of("0x8001"), keys("0xffff", "0x8002"), says(checks.Fail, "missing", "0x8001", "0xffff 0x8002", "partitions")),
		checktest.AsIs(checktest.OnFabric("none is in a partition: the line is wrong", checktest.Of("0x8007"), nil, onEach(func(i int) checks.Finding {
			return checktest.PortFinding(name, fmt.Sprintf("mlx5_%d", i), i, checks.Finding{Code: "ib.pkey.missing", Severity: checks.Fail, Remedy: checks.FixConfig, Want: "0x8007", Got: "0xffff 0x8001"}, "partitions")
		})...)),
		checktest.OnFabric("not in two partitions", checktest.Of("0x8001", "0x0002", "0xffff"), func(n *fakesys.Node) {
			for i := range 8 {
				n.Set(fmt.Sprintf("mlx5_%d", i), "ports/1/pkeys/2", "0x8002")
			}
			keys("0xffff")(n)
		}, says(checks.Fail, "missing", "0x8001 0x0002", "0xffff", "partitions")),
		checktest.OnFabric("a limited member alone", checktest.Of("0x8001"), keys("0xffff", "0x0001"), says(checks.Fail, "missing", "0x8001", "0xffff 0x0001", "partitions")),
		checktest.OnFabric("at another index", checktest.Of("-i", "1", "0x8001"), keys("0xffff", "0x8002", "0x8001"), says(checks.Fail, "index", "0x8001", "0x8002", "partition at index 1")),
		checktest.OnFabric("nothing at an index", checktest.Of("-i", "1", "0x8001"), keys("0x8001"), says(checks.Fail, "index", "0x8001", "0x0000", "partition at index 1")),
		checktest.OnFabric("no partition", nil, keys(), says(checks.Fail, "empty", "a partition", "none", "table of partitions")),
		checktest.OnFabric("no default partition", nil, keys("0x8001"), says(checks.Warn, "default", "0x7fff or 0xffff", "0x8001", "not in the default partition")),
		checktest.OnFabric("one that is down is skipped", checktest.Of("0x8001"), func(n *fakesys.Node) { keys()(n); n.Down("mlx5_3") }),
		checktest.OnFabric("a named port", checktest.Of("-d", "mlx5_3", "0x8007"), nil, says(checks.Fail, "missing", "0x8007", "0xffff 0x8001", "partitions")),
		checktest.OnFabric("a device that does not exist", checktest.Of("-d", "mlx5_9"), nil, checks.Finding{Code: "ib.unnamed", Severity: checks.Fail, Device: checks.Device{Kind: "port", Name: "mlx5_9"}, Want: "mlx5_9", Got: "none",
			Message: name + ":  mlx5_9: no such RDMA device or port"}),
		checktest.OnRoCE("a named RoCE port", checktest.Of("-d", "rocep3s0"), nil, checks.Finding{Code: "ib.left", Severity: checks.Skip, Message: name + ":  no named port has the right link layer"}),
		checktest.OnFabric("all are down", nil, func(n *fakesys.Node) {
			for i := range 8 {
				n.Down(fmt.Sprintf("mlx5_%d", i))
			}
		}, checks.Finding{Code: "ib.inactive", Severity: checks.Unknown, Device: checks.Device{Kind: "ports"}, Message: name + ":  no port is ACTIVE"}),
		checktest.OnFabric("an invalid key", checktest.Of("0x10001"), nil, refused("partition", "0x10001", "a number such as 0x8001")),
		checktest.OnFabric("two keys at one index", checktest.Of("-i", "1", "0x8001", "0x8002"), nil, refused("partitions", "0x8001 0x8002", "one for an index")),
		broken(checktest.OnFabric("unreadable entry", checktest.Of("0x8001"), func(n *fakesys.Node) { n.Set("mlx5_3", "ports/1/pkeys/1/", "") }, odd("1: is a directory", "read"))),
		broken(checktest.OnFabric("unreadable entry after the wanted one", checktest.Of("0xffff"), func(n *fakesys.Node) { n.Set("mlx5_3", "ports/1/pkeys/1/", "") })),
		broken(checktest.OnFabric("garbage", nil, keys("\xff"), odd("0: invalid argument", "parse"))),
		broken(checktest.OnFabric("no table", nil, func(n *fakesys.Node) {
			n.Set("mlx5_3", "ports/1/pkeys/0", "-").Set("mlx5_3", "ports/1/pkeys/1", "-").Set("mlx5_3", "ports/1/pkeys/2", "-")
		}, odd("0: no such file or directory", "read"))),
		checktest.OnNode(fakesys.NDH100v5(), "a virtual machine", checktest.Of("0x8001")), checktest.OnNode(fakesys.GB200(), "a tray", nil), checktest.OnNode(fakesys.CX8(), "planes", nil),
		ethernetOnly(checks.Finding{Code: "ib.none", Severity: checks.Skip, Message: name + ":  no RDMA device on this node"}),
	}
})
