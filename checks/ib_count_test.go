package checks

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// noRDMADevice takes the RDMA device of adapter 3 away, and leaves it on the bus.
func noRDMADevice(n *fakesys.Node) { noRoCE(n, "mlx5_3") }

// lacksFinding is that adapter 3 is on the bus alone.
func lacksFinding(check, text string) Finding {
	f := hcaFinding(check, "", 3, Finding{Code: "ib.lacking", Severity: Fail, Remedy: ReseatOrRMA}, text)
	f.Device.UUID = ""
	return f
}

const lacksText = "ConnectX-7 is on the PCI bus, but no RDMA device; its driver is mlx5_core"

func TestIBCount(t *testing.T) { testCheck(t, "check_ib_count") }

var _ = table("check_ib_count", func(name string) []scenario {
	remove := func(n *fakesys.Node) { n.Remove(fakesys.HCAAddress(3)) }
	count := func(severity Severity, remedy Remedy, want, got, text string) Finding {
		return Finding{Code: "ib.count", Severity: severity, Remedy: remedy, Device: Device{Kind: "hcas"}, Want: want, Got: got, Message: name + ":  " + text}
	}
	all := "(mlx5_0 mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_7)"
	seven := strings.Replace(all, " mlx5_3", "", 1)
	unreadable := func(n *fakesys.Node) {
		dir := n.Dir("mlx5_3") + "/ports/"
		maps.DeleteFunc(n.Files, func(f, _ string) bool { return strings.HasPrefix(f, dir) })
		n.Set("mlx5_3", "ports", "")
	}
	odd := ibUnknown(name, "hca", "mlx5_3", 3, "read /sys/class/infiniband/mlx5_3/ports: not a directory")
	broken := func(s scenario) scenario {
		s.broken = true
		return s
	}
	still := func(s scenario) scenario { // the text has all names in order
		s.still, s.broken = true, true
		return s
	}
	noBus := onFabric("unreadable PCI bus", nil, nil, Finding{Code: "probe.unreadable", Severity: Unknown, Message: "read /sys/bus/pci/devices: not a directory"})
	noBus.files, noBus.links, noBus.node, noBus.nvml, noBus.broken = map[string]string{"sys/bus/pci/devices": ""}, nil, "", nil, true
	bonded := fakesys.RoCE()
	noRoCE(bonded, "rocep3s0")
	bonded.AddBond("bond0", "active-backup 1", "eth13")
	bonded.Links[bonded.Dir("eth13")+"/master"] = "../../../../virtual/net/bond0"
	routed := fakesys.RoCE()
	noRoCE(routed, "rocep3s0")
	routed.Links[routed.Dir("eth13")+"/master"] = "../../../../virtual/net/vrf0"
	return []scenario{
		onFabric("healthy", nil, nil).on(h100Network()),
		onFabric("as many as wanted", of("8"), nil).orTable(map[string]any{"count": int64(8)}),
		onFabric("one is missing", of("8"), remove, count(Fail, ReseatOrRMA, "8", "7", "7 RDMA devices "+seven+", want 8")),
		onFabric("one is no RDMA device, as the line can tell", of("8"), noRDMADevice, count(Fail, ReseatOrRMA, "8", "7", "7 RDMA devices "+seven+", want 8; on the PCI bus without one: 0000:23:00.0")),
		onFabric("one is no RDMA device", nil, noRDMADevice, lacksFinding(name, lacksText)).on(h100Network()),
		onFabric("one too many", of("7"), nil, count(Warn, FixConfig, "7", "8", "8 RDMA devices "+all+", want 7")),
		onFabric("one fewer than the platform", nil, remove, Finding{Code: "ib.count.platform", Severity: Warn, Device: Device{Kind: "hcas"}, Want: "8", Got: "7", Message: name + ":  7 ports, want 8 of HGX H100"}).on(h100Network()),
		onFabric("far fewer than the platform", nil, remove).on(&Platform{NetworkPorts: 32}),
		onFabric("of one model", of("-m", "ConnectX-7", "8"), nil).orTable(map[string]any{"model": "ConnectX-7", "count": int64(8)}),
		onFabric("of one PCI id", of("-m", "15b3:10*", "8"), nil),
		onFabric("of a model that is not there", of("-m", "BlueField-3*", "2"), nil, count(Fail, ReseatOrRMA, "2", "0", "0 RDMA devices, want 2")),
		onRoCE("one of RoCE is no RDMA device", nil, func(n *fakesys.Node) { noRoCE(n, "rocep3s0") }, lacksFinding(name, lacksText)),
		onNode(bonded, "one of RoCE is part of a bond", nil),
		onNode(routed, "one of RoCE in a VRF is no RDMA device", nil, lacksFinding(name, lacksText)),
		onNode(dualRoCE(noSecondPort), "the second port of a card is no RDMA device", nil, lacksSecond(name)),
		onNode(dualRoCE(func(n *fakesys.Node) {
			for i := range 8 {
				noRoCE(n, fmt.Sprintf("rocep%ds0f1", i))
			}
		}), "cards with RDMA on their first port alone", nil),
		onNode(opaAlone(), "Omni-Path without an RDMA device", nil, opaLacks(name)),
		onNode(fakesys.NDH100v5(), "a virtual machine", of("8")),
		onNode(fakesys.GB200(), "a tray", of("4")),
		onNode(fakesys.GB200(), "the DPUs of a tray", of("-m", "BlueField-3*", "2")),
		onNode(fakesys.CX8(), "planes are one", of("8")).on(&Platform{NetworkPorts: 8}),
		onNode(fakesys.CX8(), "planes are one port of the platform", nil).on(&Platform{NetworkPorts: 8}),
		broken(onFabric("one cannot be read", of("8"), unreadable, odd)),
		still(onFabric("one cannot be read, one is missing", of("9"), unreadable, odd, count(Fail, ReseatOrRMA, "9", "7", "7 RDMA devices "+seven+", want 9"))),
		noBus,
		ethernetOnly(Finding{Code: "ib.none", Severity: Skip, Message: name + ":  no RDMA device on this node"}),
		ethernetOnly(count(Fail, ReseatOrRMA, "8", "0", "0 RDMA devices, want 8"), "8"),
	}
})

// noRoCE is [noRDMADevice] of another name.
func noRoCE(n *fakesys.Node, device string) { n.NoRDMA(device) }
