package checks

import (
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestIBGID(t *testing.T) { testCheck(t, "check_ib_gid") }

var _ = table("check_ib_gid", func(name string) []scenario {
	const port = "/sys/class/infiniband/rocep3s0/ports/1/"
	noAddress := func(device string) func(*fakesys.Node) {
		return func(n *fakesys.Node) {
			n.Set(device, "ports/1/gids/2", "0000:0000:0000:0000:0000:0000:0000:0000").Set(device, "ports/1/gids/3", "0000:0000:0000:0000:0000:0000:0000:0000")
		}
	}
	set := func(file, content string) func(*fakesys.Node) {
		return func(n *fakesys.Node) { n.Set("rocep3s0", file, content) }
	}
	says := func(severity Severity, code, want, got, text string) Finding {
		return portFinding(name, "rocep3s0", 3, Finding{Code: "ib.gid." + code, Severity: severity, Remedy: FixConfig, Want: want, Got: got}, text)
	}
	ofIB := func(severity Severity, code, want, got, text string) Finding {
		return portFinding(name, "mlx5_3", 3, Finding{Code: "ib.gid." + code, Severity: severity, Remedy: CheckFabric, Want: want, Got: got}, text)
	}
	broken := func(s scenario) scenario {
		s.broken = true
		return s
	}
	const local = "0: fe80::b83f:d203:c5:1a03 (IB/RoCE v1), 1: fe80::b83f:d203:c5:1a03 (RoCE v2)"
	const whole = local + ", 2: 192.168.3.1 (IB/RoCE v1)"
	var none []Finding
	for i := range 8 {
		none = append(none, portFinding(name, fmt.Sprintf("rocep%ds0", i), i, Finding{Code: "ib.gid.none", Severity: Warn, Remedy: FixConfig, Want: "RoCE v2 with an address",
			Got: fmt.Sprintf("0: fe80::b83f:d203:c5:1a0%d (IB/RoCE v1), 1: fe80::b83f:d203:c5:1a0%[1]d (RoCE v2)", i)}, "no such GID"))
	}
	lost := onRoCE("unreadable GID", nil, set("ports/1/gids/0/", ""))
	lost.broken = true
	still := func(s scenario) scenario { // the text has addresses in short
		s.still = true
		return s
	}
	iwarp := func(i int) Finding {
		d := Device{Kind: "port", Name: fmt.Sprintf("irdma%d:1", i), PCI: fmt.Sprintf("0000:c0:00.%d", i), UUID: fmt.Sprintf("b83f:d203:00c5:1a%02x", 0xc0+16*i)}
		got := fmt.Sprintf("0: b83f:d2c5:1a0%d:: (IB/RoCE v1)", i)
		return about(name, d, Finding{Code: "ib.gid.none", Severity: Fail, Remedy: FixConfig, Want: "RoCE v2 with an address", Got: got}, "no such GID")
	}
	kinds := fakesys.Kinds()
	storage := Finding{Code: "ib.gid.none", Severity: Warn, Remedy: FixConfig, Want: "RoCE v2 with an address", Got: "none",
		Device: Device{Kind: "port", Name: "mlx5_8:1", PCI: "0000:c0:00.0", UUID: "b83f:d203:00c5:1ac0"}}
	storage.Message = name + ":  mlx5_8:1 0000:c0:00.0: no such GID" + wantGot(storage)
	return []scenario{
		onRoCE("healthy RoCE", nil, nil), onFabric("healthy", nil, nil),
		onRoCE("as wanted", of("-t", "v2", "-i", "3", "-m", "9000"), nil).orTable(map[string]any{"type": "v2", "index": int64(3), "mtu": int64(9000)}),
		onRoCE("the other type", of("-t", "v1", "-i", "2"), nil),
		onRoCE("a global IPv6 address", nil, func(n *fakesys.Node) {
			noAddress("rocep3s0")(n)
			set("ports/1/gids/1", "2001:0db8:0000:0000:0000:0000:0000:0003")(n)
		}),
		onRoCE("an old kernel tells no type", nil, func(n *fakesys.Node) {
			set("ports/1/gid_attrs/types/2", "-")(n)
			set("ports/1/gid_attrs/types/3", "-")(n)
		}),
		still(onRoCE("one has no address", nil, noAddress("rocep3s0"), says(Fail, "none", "RoCE v2 with an address", local, "no such GID"))),
		onRoCE("one has no GID", nil, func(n *fakesys.Node) {
			for i := range 4 {
				set(fmt.Sprintf("ports/1/gids/%d", i), "0000:0000:0000:0000:0000:0000:0000:0000")(n)
			}
		}, says(Fail, "none", "RoCE v2 with an address", "none", "no such GID")),
		onRoCE("none has an address", nil, func(n *fakesys.Node) {
			for i := range 8 {
				noAddress(fmt.Sprintf("rocep%ds0", i))(n)
			}
		}, none...),
		still(onRoCE("not the type that is wanted", of("-t", "v2", "rocep3s0"), set("ports/1/gid_attrs/types/3", "IB/RoCE v1"), says(Fail, "none", "RoCE v2 with an address", whole+", 3: 192.168.3.1 (IB/RoCE v1)", "no such GID"))),
		still(onRoCE("not at the index that is wanted", of("-i", "3"), func(n *fakesys.Node) {
			set("ports/1/gid_attrs/types/2", "RoCE v2")(n)
			set("ports/1/gid_attrs/types/3", "IB/RoCE v1")(n)
		}, says(Fail, "index", "RoCE v2 with an address", local+", 2: 192.168.3.1 (RoCE v2), 3: 192.168.3.1 (IB/RoCE v1)", "GID at index 3"))),
		still(onRoCE("many GIDs, none of which will do", of("-t", "v2"), func(n *fakesys.Node) {
			set("ports/1/gid_attrs/types/3", "IB/RoCE v1")(n)
			set("ports/1/gids/4", "0000:0000:0000:0000:0000:ffff:c0a8:0301")(n)
			set("ports/1/gid_attrs/types/4", "IB/RoCE v1")(n)
		}, says(Fail, "none", "RoCE v2 with an address", whole+", 3: 192.168.3.1 (IB/RoCE v1), ...", "no such GID"))),
		onRoCE("an MTU below what is wanted", of("-m", "4200"), func(n *fakesys.Node) { n.Set("eth13", "mtu", "1500") }, says(Fail, "mtu", "at least 4200", "1500", "MTU of eth13")),
		onRoCE("an MTU below that of the others", nil, func(n *fakesys.Node) { n.Set("eth13", "mtu", "1500") }, says(Warn, "mtu", "9000", "1500", "MTU of eth13 is less than that of the others")),
		onRoCE("one that is down is another check's", nil, func(n *fakesys.Node) { noAddress("rocep3s0")(n); n.Down("rocep3s0") }),
		onRoCE("a type that is none", of("-t", "v3"), nil, Finding{Code: "config.value", Severity: Unknown, Remedy: FixConfig, Want: "v2 or v1", Got: "v3", Message: name + `:  type "v3", want v2 or v1`}),
		onFabric("all are down", nil, func(n *fakesys.Node) {
			for i := range 8 {
				n.Down(fmt.Sprintf("mlx5_%d", i))
			}
		}, Finding{Code: "ib.inactive", Severity: Unknown, Device: Device{Kind: "ports"}, Message: name + ":  no port is ACTIVE"}),
		onFabric("no GUID", nil, func(n *fakesys.Node) { n.Set("mlx5_3", "ports/1/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0000") }, ofIB(Fail, "guid", "a GUID", "none", "GID 0")),
		onFabric("another subnet", nil, func(n *fakesys.Node) { n.Set("mlx5_3", "ports/1/gids/0", "fec0:0000:0000:0002:b83f:d203:00c5:1a03") },
			ofIB(Warn, "prefix", "fe80:0000:0000:0000", "fec0:0000:0000:0002", "subnet prefix is not that of the others")),
		onFabric("each rail is a subnet", nil, func(n *fakesys.Node) {
			for i := range 8 {
				n.Set(fmt.Sprintf("mlx5_%d", i), "ports/1/gids/0", fmt.Sprintf("fec0:0000:0000:000%d:b83f:d203:00c5:1a0%[1]d", i))
			}
		}),
		lost,
		broken(onRoCE("unreadable GIDs, and none that will do", nil, func(n *fakesys.Node) { noAddress("rocep3s0")(n); set("ports/1/gids/0/", "")(n) },
			ibUnknown(name, "port", "rocep3s0", 3, "read "+port+"gids/0: is a directory"))),
		broken(onRoCE("garbage for a GID", of("-i", "3"), set("ports/1/gids/3", "fe80:zz"), ibUnknown(name, "port", "rocep3s0", 3, "parse "+port+"gids/3: invalid argument"))),
		broken(onRoCE("unreadable type", of("-i", "3"), set("ports/1/gid_attrs/types/3/", ""), ibUnknown(name, "port", "rocep3s0", 3, "read "+port+"gid_attrs/types/3: is a directory"))),
		broken(onRoCE("unreadable MTU", nil, func(n *fakesys.Node) { n.Set("eth13", "mtu/", "") }, ibUnknown(name, "port", "rocep3s0", 3, "read /sys/bus/pci/devices/0000:23:00.0/net/eth13/mtu: is a directory"))),
		broken(onRoCE("garbage for an MTU", nil, func(n *fakesys.Node) { n.Set("eth13", "mtu", "jumbo") }, ibUnknown(name, "port", "rocep3s0", 3, `MTU "jumbo" of eth13: not understood`))),
		broken(onFabric("unreadable GID of InfiniBand", nil, func(n *fakesys.Node) { n.Set("mlx5_3", "ports/1/gids/0/", "") },
			ibUnknown(name, "port", "mlx5_3", 3, "read /sys/class/infiniband/mlx5_3/ports/1/gids/0: is a directory"))),
		onNode(kinds["intel iwarp"], "iWARP", nil),
		onNode(kinds["intel iwarp"], "iWARP, and RoCE is wanted", of("-t", "v2"), iwarp(0), iwarp(1)),
		onNode(kinds["roce, storage with another MTU"], "another MTU of another kind of port", nil),
		onNode(kinds["roce, storage over a bond of two cards"], "the standby member of a bond has no GIDs", of("-i", "3")),
		onNode(kinds["storage in a subnet of its own"], "two ports in a subnet of their own", nil),
		onNode(kinds["roce, storage over a bond of two cards"].Clone().NoGIDs("mlx5_8", 0), "nor has the member that works", nil, storage),
		booting(onRoCE("no address yet, a minute after a boot", nil, noAddress("rocep3s0"), Finding{Code: "ib.ports.boot", Severity: Skip, Device: Device{Kind: "ports"},
			Message: name + ":  not judged until 300 s after the boot, 60 s ago: rocep3s0:1 0000:23:00.0: no such GID, want RoCE v2 with an address, got " + local}), 60),
		onNode(fakesys.NDH100v5(), "a virtual machine", nil), onNode(fakesys.GB200(), "a tray", nil), onNode(fakesys.CX8(), "planes", nil),
		ethernetOnly(Finding{Code: "ib.none", Severity: Skip, Message: name + ":  no RDMA device on this node"}),
	}
})
