package fabric

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// noRDMADevice removes the RDMA device of adapter 3, and leaves the adapter on the bus.
func noRDMADevice(n *fakesys.Node) { noRoCE(n, "mlx5_3") }

// lacksFinding returns the finding that adapter 3 is only on the bus.
func lacksFinding(check, text string) checks.Finding {
	f := checktest.HCAFinding(check, "", 3, checks.Finding{Code: "ib.lacking", Severity: checks.Fail, Remedy: checks.ReseatOrRMA}, text)
	f.Device.UUID = ""
	return f
}

const lacksText = "ConnectX-7 is on the PCI bus, but is not an RDMA device; its driver is mlx5_core"

func TestIBCount(t *testing.T) { checktest.Run(t, "check_ib_count") }

var _ = checktest.Table("check_ib_count", func(name string) []checktest.Scenario {
	remove := func(n *fakesys.Node) { n.Remove(fakesys.HCAAddress(3)) }
	count := func(severity checks.Severity, remedy checks.Remedy, want, got, text string) checks.Finding {
		return checks.Finding{Code: "ib.count", Severity: severity, Remedy: remedy, Device: checks.Device{Kind: "hcas"}, Want: want, Got: got, Message: name + ":  " + text}
	}
	all := "(mlx5_0 mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_7)"
	seven := strings.Replace(all, " mlx5_3", "", 1)
	unreadable := func(n *fakesys.Node) {
		dir := n.Dir("mlx5_3") + "/ports/"
		maps.DeleteFunc(n.Files, func(f, _ string) bool { return strings.HasPrefix(f, dir) })
		n.Set("mlx5_3", "ports", "")
	}
	odd := ibUnknown(name, "hca", "mlx5_3", 3, "read /sys/class/infiniband/mlx5_3/ports: not a directory")
	broken := func(s checktest.Scenario) checktest.Scenario {
		s.Broken = true
		return s
	}
	still := func(s checktest.Scenario) checktest.Scenario { // the text has all names in order
		s.Still, s.Broken = true, true
		return s
	}
	noClass := func(n *fakesys.Node) { noRDMADevice(n); n.Set(fakesys.HCAAddress(3), "class/", "") }
	classless := checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /sys/bus/pci/devices/0000:23:00.0/class: is a directory"}
	noBus := checktest.OnFabric("unreadable PCI bus", nil, nil, checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /sys/bus/pci/devices: not a directory"})
	noBus.Files, noBus.Links, noBus.Node, noBus.NVML, noBus.Broken = map[string]string{"sys/bus/pci/devices": ""}, nil, "", nil, true
	bonded := fakesys.RoCE()
	noRoCE(bonded, "rocep3s0")
	bonded.AddBond("bond0", "active-backup 1", "eth13")
	bonded.Links[bonded.Dir("eth13")+"/master"] = "../../../../virtual/net/bond0"
	routed := fakesys.RoCE()
	noRoCE(routed, "rocep3s0")
	routed.Links[routed.Dir("eth13")+"/master"] = "../../../../virtual/net/vrf0"
	return []checktest.Scenario{
		checktest.OnFabric("healthy", nil, nil).On(h100Network()),
		checktest.OnFabric("as many as wanted", checktest.Of("8"), nil).OrTable(map[string]any{"count": int64(8)}),
		checktest.OnFabric("one is missing", checktest.Of("8"), remove, count(checks.Fail, checks.ReseatOrRMA, "8", "7", "7 RDMA devices "+seven+", want 8")),
		checktest.OnFabric("one is not an RDMA device, COUNT", checktest.Of("8"), noRDMADevice, count(checks.Fail, checks.ReseatOrRMA, "8", "7", "7 RDMA devices "+seven+", want 8; on the PCI bus without one: 0000:23:00.0")),
		checktest.OnFabric("one is not an RDMA device", nil, noRDMADevice, lacksFinding(name, lacksText)).On(h100Network()),
		broken(checktest.OnFabric("one is not an RDMA device, and its class cannot be read", nil, noClass, classless)),
		broken(checktest.OnFabric("the class of an RDMA device cannot be read", checktest.Of("8"), func(n *fakesys.Node) { n.Set(fakesys.HCAAddress(3), "class/", "") })),
		broken(checktest.OnFabric("the class of a GPU cannot be read", nil, func(n *fakesys.Node) { n.Set("0000:13:00.0", "class/", "") })),
		checktest.OnFabric("one too many", checktest.Of("7"), nil, count(checks.Warn, checks.FixConfig, "7", "8", "8 RDMA devices "+all+", want 7")),
		checktest.OnFabric("one fewer than the platform", nil, remove, checks.Finding{Code: "ib.count.platform", Severity: checks.Warn, Device: checks.Device{Kind: "hcas"}, Want: "8", Got: "7", Message: name + ":  7 ports, want 8 of HGX H100"}).On(h100Network()),
		checktest.OnFabric("far fewer than the platform", nil, remove).On(&checks.Platform{NetworkPorts: 32}),
		checktest.OnFabric("of one model", checktest.Of("-m", "ConnectX-7", "8"), nil).OrTable(map[string]any{"model": "ConnectX-7", "count": int64(8)}),
		checktest.OnFabric("of one PCI id", checktest.Of("-m", "15b3:10*", "8"), nil),
		checktest.OnFabric("of a model that the node does not have", checktest.Of("-m", "BlueField-3*", "2"), nil, count(checks.Fail, checks.FixConfig, "2", "0", "0 RDMA devices, want 2")),
		checktest.OnFabric("more than the platform has: the line is wrong", checktest.Of("9"), nil, count(checks.Fail, checks.FixConfig, "9", "8", "8 RDMA devices "+all+", want 9")).On(h100Network()),
		checktest.OnRoCE("a RoCE adapter is not an RDMA device", nil, func(n *fakesys.Node) { noRoCE(n, "rocep3s0") }, lacksFinding(name, lacksText)),
		checktest.OnNode(bonded, "one of RoCE is part of a bond", nil),
		checktest.OnNode(routed, "one of RoCE in a VRF is no RDMA device", nil, lacksFinding(name, lacksText)),
		checktest.OnNode(dualRoCE(noSecondPort), "the second port of a card is no RDMA device", nil, lacksSecond(name)),
		checktest.OnNode(dualRoCE(func(n *fakesys.Node) {
			for i := range 8 {
				noRoCE(n, fmt.Sprintf("rocep%ds0f1", i))
			}
		}), "cards with RDMA on their first port alone", nil),
		checktest.OnNode(opaAlone(), "Omni-Path without an RDMA device", nil, opaLacks(name)),
		checktest.OnNode(fakesys.NDH100v5(), "a virtual machine", checktest.Of("8")),
		checktest.OnNode(fakesys.GB200(), "a tray", checktest.Of("4")),
		checktest.OnNode(fakesys.GB200(), "the DPUs of a tray", checktest.Of("-m", "BlueField-3*", "2")),
		checktest.OnNode(fakesys.CX8(), "planes are one", checktest.Of("8")).On(&checks.Platform{NetworkPorts: 8}),
		checktest.OnNode(fakesys.CX8(), "planes are one port of the platform", nil).On(&checks.Platform{NetworkPorts: 8}),
		broken(checktest.OnFabric("one cannot be read", checktest.Of("8"), unreadable, odd)),
		still(checktest.OnFabric("one cannot be read, one is missing", checktest.Of("9"), unreadable, odd, count(checks.Fail, checks.ReseatOrRMA, "9", "7", "7 RDMA devices "+seven+", want 9"))),
		noBus,
		ethernetOnly(checks.Finding{Code: "ib.none", Severity: checks.Skip, Message: name + ":  no RDMA device on this node"}),
		ethernetOnly(count(checks.Fail, checks.ReseatOrRMA, "8", "0", "0 RDMA devices, want 8"), "8"),
	}
})

// noRoCE is [noRDMADevice] for another name.
func noRoCE(n *fakesys.Node, device string) { n.NoRDMA(device) }
