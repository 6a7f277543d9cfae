package checks

import (
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestIBPKey(t *testing.T) { testCheck(t, "check_ib_pkey") }

var _ = table("check_ib_pkey", func(name string) []scenario {
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
	says := func(severity Severity, code, want, got, text string) Finding {
		return portFinding(name, "mlx5_3", 3, Finding{Code: "ib.pkey." + code, Severity: severity, Remedy: CheckFabric, Want: want, Got: got}, text)
	}
	refused := func(what, got, want string) Finding {
		return Finding{Code: "config.value", Severity: Unknown, Want: want, Got: got, Remedy: FixConfig, Message: fmt.Sprintf("%s:  %s %q, want %s", name, what, got, want)}
	}
	odd := func(file, text string) Finding {
		return ibUnknown(name, "port", "mlx5_3", 3, text+" /sys/class/infiniband/mlx5_3/ports/1/pkeys/"+file)
	}
	broken := func(s scenario) scenario {
		s.broken = true
		return s
	}
	return []scenario{
		onFabric("healthy", nil, nil),
		onRoCE("RoCE has none", nil, nil, Finding{Code: "ib.left", Severity: Skip, Message: name + ":  no RDMA port of this node carries jobs' traffic over InfiniBand"}),
		onFabric("as wanted", of("0x8001", "0xffff"), nil).orTable(map[string]any{"pkeys": []any{"0x8001", "0xffff"}}),
		onFabric("at its index", of("-i", "1", "0x8001"), nil).orTable(map[string]any{"index": int64(1), "pkeys": "0x8001"}),
		onFabric("a full member where any will do", of("0x0001"), nil),
		onFabric("a limited member where any will do", of("0x0001"), keys("0x7fff", "0x0001")),
		onFabric("a limited member of the default partition", nil, keys("0x8001", "0x7fff")),
		onFabric("not in a partition", of("0x8001"), keys("0xffff", "0x8002"), says(Fail, "missing", "0x8001", "0xffff 0x8002", "partitions")),
		onFabric("not in two partitions", of("0x8001", "0x0002", "0xffff"), func(n *fakesys.Node) {
			for i := range 8 {
				n.Set(fmt.Sprintf("mlx5_%d", i), "ports/1/pkeys/2", "0x8002")
			}
			keys("0xffff")(n)
		}, says(Fail, "missing", "0x8001 0x0002", "0xffff", "partitions")),
		onFabric("a limited member alone", of("0x8001"), keys("0xffff", "0x0001"), says(Fail, "missing", "0x8001", "0xffff 0x0001", "partitions")),
		onFabric("at another index", of("-i", "1", "0x8001"), keys("0xffff", "0x8002", "0x8001"), says(Fail, "index", "0x8001", "0x8002", "partition at index 1")),
		onFabric("nothing at an index", of("-i", "1", "0x8001"), keys("0x8001"), says(Fail, "index", "0x8001", "0x0000", "partition at index 1")),
		onFabric("no partition", nil, keys(), says(Fail, "empty", "a partition", "none", "table of partitions")),
		onFabric("no default partition", nil, keys("0x8001"), says(Warn, "default", "0x7fff or 0xffff", "0x8001", "not in the default partition")),
		onFabric("one that is down is another check's", of("0x8001"), func(n *fakesys.Node) { keys()(n); n.Down("mlx5_3") }),
		onFabric("one that is named", of("-d", "mlx5_3", "0x8007"), nil, says(Fail, "missing", "0x8007", "0xffff 0x8001", "partitions")),
		onFabric("one that is not there", of("-d", "mlx5_9"), nil, Finding{Code: "ib.unnamed", Severity: Fail, Device: Device{Kind: "port", Name: "mlx5_9"}, Want: "mlx5_9", Got: "none",
			Message: name + ":  mlx5_9: no such RDMA device or port"}),
		onRoCE("one of RoCE that is named", of("-d", "rocep3s0"), nil, Finding{Code: "ib.left", Severity: Skip, Message: name + ":  no port that is named is of the kind that the check is about"}),
		onFabric("all are down", nil, func(n *fakesys.Node) {
			for i := range 8 {
				n.Down(fmt.Sprintf("mlx5_%d", i))
			}
		}, Finding{Code: "ib.inactive", Severity: Unknown, Device: Device{Kind: "ports"}, Message: name + ":  no port is ACTIVE"}),
		onFabric("a key that is none", of("0x10001"), nil, refused("partition", "0x10001", "a number such as 0x8001")),
		onFabric("two keys at one index", of("-i", "1", "0x8001", "0x8002"), nil, refused("partitions", "0x8001 0x8002", "one for an index")),
		broken(onFabric("unreadable entry", of("0x8001"), func(n *fakesys.Node) { n.Set("mlx5_3", "ports/1/pkeys/1/", "") }, odd("1: is a directory", "read"))),
		broken(onFabric("unreadable entry behind what is wanted", of("0xffff"), func(n *fakesys.Node) { n.Set("mlx5_3", "ports/1/pkeys/1/", "") })),
		broken(onFabric("garbage", nil, keys("\xff"), odd("0: invalid argument", "parse"))),
		broken(onFabric("no table", nil, func(n *fakesys.Node) {
			n.Set("mlx5_3", "ports/1/pkeys/0", "-").Set("mlx5_3", "ports/1/pkeys/1", "-").Set("mlx5_3", "ports/1/pkeys/2", "-")
		}, odd("0: no such file or directory", "read"))),
		onNode(fakesys.NDH100v5(), "a virtual machine", of("0x8001")), onNode(fakesys.GB200(), "a tray", nil), onNode(fakesys.CX8(), "planes", nil),
		ethernetOnly(Finding{Code: "ib.none", Severity: Skip, Message: name + ":  no RDMA device on this node"}),
	}
})
