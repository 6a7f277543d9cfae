package fabric

import (
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestIBGID(t *testing.T) { checktest.Run(t, "check_ib_gid") }

var _ = checktest.Table("check_ib_gid", func(name string) []checktest.Scenario {
	const port = "/sys/class/infiniband/rocep3s0/ports/1/"
	noAddress := func(device string) func(*fakesys.Node) {
		return func(n *fakesys.Node) {
			n.Set(device, "ports/1/gids/2", "0000:0000:0000:0000:0000:0000:0000:0000").Set(device, "ports/1/gids/3", "0000:0000:0000:0000:0000:0000:0000:0000")
		}
	}
	set := func(file, content string) func(*fakesys.Node) {
		return func(n *fakesys.Node) { n.Set("rocep3s0", file, content) }
	}
	says := func(severity checks.Severity, code, want, got, text string) checks.Finding {
		return checktest.PortFinding(name, "rocep3s0", 3, checks.Finding{Code: "ib.gid." + code, Severity: severity, Remedy: checks.FixConfig, Want: want, Got: got}, text)
	}
	ofIB := func(severity checks.Severity, code, want, got, text string) checks.Finding {
		return checktest.PortFinding(name, "mlx5_3", 3, checks.Finding{Code: "ib.gid." + code, Severity: severity, Remedy: checks.CheckFabric, Want: want, Got: got}, text)
	}
	broken := func(s checktest.Scenario) checktest.Scenario {
		s.Broken = true
		return s
	}
	const local = "0: fe80::b83f:d203:c5:1a03 (IB/RoCE v1), 1: fe80::b83f:d203:c5:1a03 (RoCE v2)"
	const whole = local + ", 2: 192.168.3.1 (IB/RoCE v1)"
	var none []checks.Finding
	for i := range 8 {
		none = append(none, checktest.PortFinding(name, fmt.Sprintf("rocep%ds0", i), i, checks.Finding{Code: "ib.gid.none", Severity: checks.Warn, Remedy: checks.FixConfig, Want: "RoCE v2 with an IP address",
			Got: fmt.Sprintf("0: fe80::b83f:d203:c5:1a0%d (IB/RoCE v1), 1: fe80::b83f:d203:c5:1a0%[1]d (RoCE v2)", i)}, "no usable GID"))
	}
	lost := checktest.OnRoCE("unreadable GID", nil, set("ports/1/gids/0/", ""))
	lost.Broken = true
	still := func(s checktest.Scenario) checktest.Scenario { // the text has addresses in short
		s.Still = true
		return s
	}
	iwarp := func(i int) checks.Finding {
		d := checks.Device{Kind: "port", Name: fmt.Sprintf("irdma%d:1", i), PCI: fmt.Sprintf("0000:c0:00.%d", i), UUID: fmt.Sprintf("b83f:d203:00c5:1a%02x", 0xc0+16*i)}
		got := fmt.Sprintf("0: b83f:d2c5:1a0%d:: (IB/RoCE v1)", i)
		return checktest.About(name, d, checks.Finding{Code: "ib.gid.none", Severity: checks.Fail, Remedy: checks.FixConfig, Want: "RoCE v2 with an IP address", Got: got}, "no usable GID")
	}
	kinds := fakesys.Kinds()
	storage := checks.Finding{Code: "ib.gid.none", Severity: checks.Warn, Remedy: checks.FixConfig, Want: "RoCE v2 with an IP address", Got: "none",
		Device: checks.Device{Kind: "port", Name: "mlx5_8:1", PCI: "0000:c0:00.0", UUID: "b83f:d203:00c5:1ac0"}}
	storage.Message = name + ":  mlx5_8:1 0000:c0:00.0: no usable GID" + checktest.WantGot(storage)
	return []checktest.Scenario{
		checktest.OnRoCE("healthy RoCE", nil, nil), checktest.OnFabric("healthy", nil, nil),
		checktest.OnRoCE("as wanted", checktest.Of("-t", "v2", "-i", "3", "-m", "9000"), nil).OrTable(map[string]any{"type": "v2", "index": int64(3), "mtu": int64(9000)}),
		checktest.OnRoCE("the other type", checktest.Of("-t", "v1", "-i", "2"), nil),
		checktest.OnRoCE("a global IPv6 address", nil, func(n *fakesys.Node) {
			noAddress("rocep3s0")(n)
			set("ports/1/gids/1", "2001:0db8:0000:0000:0000:0000:0000:0003")(n)
		}),
		checktest.OnRoCE("an old kernel without types", nil, func(n *fakesys.Node) {
			set("ports/1/gid_attrs/types/2", "-")(n)
			set("ports/1/gid_attrs/types/3", "-")(n)
		}),
		still(checktest.OnRoCE("one has no address", nil, noAddress("rocep3s0"), says(checks.Fail, "none", "RoCE v2 with an IP address", local, "no usable GID"))),
		checktest.OnRoCE("one has no GID", nil, func(n *fakesys.Node) {
			for i := range 4 {
				set(fmt.Sprintf("ports/1/gids/%d", i), "0000:0000:0000:0000:0000:0000:0000:0000")(n)
			}
		}, says(checks.Fail, "none", "RoCE v2 with an IP address", "none", "no usable GID")),
		checktest.OnRoCE("none has an address", nil, func(n *fakesys.Node) {
			for i := range 8 {
				noAddress(fmt.Sprintf("rocep%ds0", i))(n)
			}
		}, none...),
		still(checktest.OnRoCE("another type than wanted", checktest.Of("-t", "v2", "rocep3s0"), set("ports/1/gid_attrs/types/3", "IB/RoCE v1"), says(checks.Fail, "none", "RoCE v2 with an IP address", whole+", 3: 192.168.3.1 (IB/RoCE v1)", "no usable GID"))),
		still(checktest.OnRoCE("at another index than wanted", checktest.Of("-i", "3"), func(n *fakesys.Node) {
			set("ports/1/gid_attrs/types/2", "RoCE v2")(n)
			set("ports/1/gid_attrs/types/3", "IB/RoCE v1")(n)
		}, says(checks.Fail, "index", "RoCE v2 with an IP address", local+", 2: 192.168.3.1 (RoCE v2), 3: 192.168.3.1 (IB/RoCE v1)", "GID at index 3"))),
		still(checktest.OnRoCE("many GIDs, none usable", checktest.Of("-t", "v2"), func(n *fakesys.Node) {
			set("ports/1/gid_attrs/types/3", "IB/RoCE v1")(n)
			set("ports/1/gids/4", "0000:0000:0000:0000:0000:ffff:c0a8:0301")(n)
			set("ports/1/gid_attrs/types/4", "IB/RoCE v1")(n)
		}, says(checks.Fail, "none", "RoCE v2 with an IP address", whole+", 3: 192.168.3.1 (IB/RoCE v1), ...", "no usable GID"))),
		checktest.OnRoCE("an MTU below -m", checktest.Of("-m", "4200"), func(n *fakesys.Node) { n.Set("eth13", "mtu", "1500") }, says(checks.Fail, "mtu", "at least 4200", "1500", "MTU of eth13")),
		checktest.OnRoCE("an MTU below the others", nil, func(n *fakesys.Node) { n.Set("eth13", "mtu", "1500") }, says(checks.Warn, "mtu", "9000", "1500", "MTU of eth13 is lower than on other ports")),
		checktest.OnRoCE("one that is down is skipped", nil, func(n *fakesys.Node) { noAddress("rocep3s0")(n); n.Down("rocep3s0") }),
		checktest.OnRoCE("an invalid type", checktest.Of("-t", "v3"), nil, checks.Finding{Code: "config.value", Severity: checks.Unknown, Remedy: checks.FixConfig, Want: "v2 or v1", Got: "v3", Message: name + `:  type "v3", want v2 or v1`}),
		checktest.OnFabric("all are down", nil, func(n *fakesys.Node) {
			for i := range 8 {
				n.Down(fmt.Sprintf("mlx5_%d", i))
			}
		}, checks.Finding{Code: "ib.inactive", Severity: checks.Unknown, Device: checks.Device{Kind: "ports"}, Message: name + ":  no port is ACTIVE"}),
		checktest.OnFabric("no GUID", nil, func(n *fakesys.Node) { n.Set("mlx5_3", "ports/1/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0000") }, ofIB(checks.Fail, "guid", "a GUID", "none", "GID 0")),
		checktest.OnFabric("another subnet", nil, func(n *fakesys.Node) { n.Set("mlx5_3", "ports/1/gids/0", "fec0:0000:0000:0002:b83f:d203:00c5:1a03") },
			ofIB(checks.Warn, "prefix", "fe80:0000:0000:0000", "fec0:0000:0000:0002", "subnet prefix differs from other ports")),
		checktest.OnFabric("each rail is a subnet", nil, func(n *fakesys.Node) {
			for i := range 8 {
				n.Set(fmt.Sprintf("mlx5_%d", i), "ports/1/gids/0", fmt.Sprintf("fec0:0000:0000:000%d:b83f:d203:00c5:1a0%[1]d", i))
			}
		}),
		lost,
		broken(checktest.OnRoCE("unreadable GIDs, and none usable", nil, func(n *fakesys.Node) { noAddress("rocep3s0")(n); set("ports/1/gids/0/", "")(n) },
			ibUnknown(name, "port", "rocep3s0", 3, "read "+port+"gids/0: is a directory"))),
		broken(checktest.OnRoCE("garbage for a GID", checktest.Of("-i", "3"), set("ports/1/gids/3", "fe80:zz"), ibUnknown(name, "port", "rocep3s0", 3, "parse "+port+"gids/3: invalid argument"))),
		broken(checktest.OnRoCE("unreadable type", checktest.Of("-i", "3"), set("ports/1/gid_attrs/types/3/", ""), ibUnknown(name, "port", "rocep3s0", 3, "read "+port+"gid_attrs/types/3: is a directory"))),
		broken(checktest.OnRoCE("unreadable MTU", nil, func(n *fakesys.Node) { n.Set("eth13", "mtu/", "") }, ibUnknown(name, "port", "rocep3s0", 3, "read /sys/bus/pci/devices/0000:23:00.0/net/eth13/mtu: is a directory"))),
		broken(checktest.OnRoCE("garbage for an MTU", nil, func(n *fakesys.Node) { n.Set("eth13", "mtu", "jumbo") }, ibUnknown(name, "port", "rocep3s0", 3, `MTU "jumbo" of eth13: not a number`))),
		broken(checktest.OnFabric("unreadable GID of InfiniBand", nil, func(n *fakesys.Node) { n.Set("mlx5_3", "ports/1/gids/0/", "") },
			ibUnknown(name, "port", "mlx5_3", 3, "read /sys/class/infiniband/mlx5_3/ports/1/gids/0: is a directory"))),
		checktest.OnNode(kinds["intel iwarp"], "iWARP", nil),
		checktest.OnNode(kinds["intel iwarp"], "iWARP, and RoCE is wanted", checktest.Of("-t", "v2"), iwarp(0), iwarp(1)),
		checktest.OnNode(kinds["roce, storage with another MTU"], "another MTU of another kind of port", nil),
		checktest.OnNode(kinds["roce, storage over a bond of two cards"], "the standby member of a bond has no GIDs", checktest.Of("-i", "3")),
		checktest.OnNode(kinds["storage in a subnet of its own"], "two ports in a subnet of their own", nil),
		checktest.OnNode(kinds["roce, storage over a bond of two cards"].Clone().NoGIDs("mlx5_8", 0), "nor has the member that works", nil, storage),
		checktest.OnNode(uncabled(), "a card that was never cabled", nil, checks.Finding{Code: "ib.inactive", Severity: checks.Skip, Device: checks.Device{Kind: "ports"}, Message: name + ":  no port is ACTIVE"}).
			Holding(ibPastFile, `{"version":1,"boot":"x","devices":{"mlx5_f4_0 0000:f4:00.0 b83f:d203:00c5:1af4 Ethernet":{"seen":1767322745}}}`),
		checktest.OnNode(uncabled(), "a card that may have been cabled", nil, checks.Finding{Code: "ib.inactive", Severity: checks.Unknown, Device: checks.Device{Kind: "ports"}, Message: name + ":  no port is ACTIVE"}),
		checktest.OnNode(uncabled(), "a card that was never cabled, and is named", checktest.Of("mlx5_f4_0"), checks.Finding{Code: "ib.inactive", Severity: checks.Unknown, Device: checks.Device{Kind: "ports"}, Message: name + ":  no port is ACTIVE"}),
		booting(checktest.OnRoCE("no address yet, a minute after a boot", nil, noAddress("rocep3s0"), checks.Finding{Code: "ib.ports.boot", Severity: checks.Skip, Device: checks.Device{Kind: "ports"},
			Message: name + ":  not judged in the first 300 s after a boot, booted 60 s ago: rocep3s0:1 0000:23:00.0: no usable GID, want RoCE v2 with an IP address, got " + local}), 60),
		checktest.OnNode(fakesys.NDH100v5(), "a virtual machine", nil), checktest.OnNode(fakesys.GB200(), "a tray", nil), checktest.OnNode(fakesys.CX8(), "planes", nil),
		ethernetOnly(checks.Finding{Code: "ib.none", Severity: checks.Skip, Message: name + ":  no RDMA device on this node"}),
	}
})
