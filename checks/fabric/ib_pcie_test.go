package fabric

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestIBPCIe(t *testing.T) { checktest.Run(t, "check_ib_pcie") }

var _ = checktest.Table("check_ib_pcie", func(name string) []checktest.Scenario {
	const adapter, toGPU = "0000:23:00.0", "0000:63:00.0"
	rdma3 := checktest.HCAFinding(name, "mlx5_3", 3, checks.Finding{}, "").Device
	says := func(severity checks.Severity, code string, remedy checks.Remedy, want, got, text string) checks.Finding {
		return checktest.About(name, rdma3, checks.Finding{Code: "ib.pcie." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	above := func(severity checks.Severity, code string, remedy checks.Remedy, want, got, text string) checks.Finding {
		return checktest.About(name, checktest.Switch3, checks.Finding{Code: "ib.pcie." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	config := func(device string, c fakesys.PCIConfig) func(*fakesys.Node) {
		return checktest.Links(device, "config", c.Config())
	}
	requests := func(n int) func(*fakesys.Node) { return config(adapter, fakesys.PCIConfig{ReadRequest: n, ACS: -1}) }
	redirect := func(devices ...string) func(*fakesys.Node) {
		return func(n *fakesys.Node) {
			for _, d := range devices {
				config(d, fakesys.PCIConfig{ReadRequest: 128, ACS: fakesys.Redirect | 1})(n)
			}
		}
	}
	odd := func(s checktest.Scenario) checktest.Scenario {
		s.Broken = true
		return s
	}
	unknown := func(text string) checks.Finding {
		return (&Fabric{Check: name}).Unknown(rdma3, errors.New(text))
	}
	hidden := func(all bool) func(*fakesys.Node) {
		return func(n *fakesys.Node) {
			for i := range 8 {
				a := fakesys.HCAAddress(i)
				n.Set(a, "config", "-")
				if all {
					n.Set(a, checktest.NowWidth, "0").Set(a, checktest.NowSpeed, "Unknown")
				}
			}
		}
	}
	unseen := func(text string) checks.Finding {
		return checks.Finding{Code: "ib.pcie.unseen", Severity: checks.Skip, Message: name + ":  " + text}
	}
	const of3, bits = "/sys/bus/pci/devices/0000:23:00.0/", " (ReqRedir CmpltRedir UpstreamFwd)"
	const acs = "ACS redirects traffic to GPUs over the root port"
	network := &checks.Platform{Name: "HGX H100", NetworkRate: 400, NetworkPCIeGen: 5, NetworkPCIeWidth: 16}
	slot8 := func(n *fakesys.Node) {
		checktest.Links(adapter, checktest.NowWidth, "8", checktest.MaxWidth, "8")(n)
		checktest.Links("0000:63:01.0", checktest.NowWidth, "8", checktest.MaxWidth, "8")(n)
	}
	gen4 := checktest.Links(adapter, checktest.NowSpeed, "16.0 GT/s PCIe", checktest.MaxSpeed, "16.0 GT/s PCIe")
	allOf := func(file, content string) func(*fakesys.Node) {
		return func(n *fakesys.Node) {
			for i := range 8 {
				n.Set(fakesys.HCAAddress(i), file, content)
			}
		}
	}
	return []checktest.Scenario{
		checktest.OnFabric("healthy", nil, nil), checktest.OnRoCE("healthy, RoCE", nil, nil), checktest.OnFabric("healthy, as its platform", nil, nil).On(network),
		checktest.OnFabric("as wanted", checktest.Of("-w", "16", "-s", "5", "-m", "4096", "-a"), nil).
			OrTable(map[string]any{"width": int64(16), "speed": int64(5), "read_request": int64(4096), "acs": true}),
		checktest.OnFabric("one by name", checktest.Of("mlx5_4"), checktest.Links(adapter, checktest.NowWidth, "8")),
		{Name: "no RDMA device", Want: []checks.Finding{{Code: "ib.none", Severity: checks.Skip, Message: name + ":  no RDMA device on this node"}}},
		checktest.OnFabric("a device that does not exist", checktest.Of("mlx5_9"), nil, checks.Finding{Code: "ib.unnamed", Severity: checks.Fail, Device: checks.Device{Kind: "port", Name: "mlx5_9"}, Want: "mlx5_9", Got: "none", Message: name + ":  mlx5_9: no such RDMA device or port"}),

		checktest.OnFabric("lanes lost", nil, checktest.Links(adapter, checktest.NowWidth, "8"), says(checks.Fail, "width", checks.ReseatOrRMA, "x16", "x8", "PCIe width")),
		checktest.OnFabric("one adapter alone, built with eight lanes", checktest.Of("mlx5_3"), checktest.Links(adapter, checktest.NowWidth, "8"), says(checks.Warn, "width", "", "x16", "x8", "PCIe width, not higher in any earlier run")),
		checktest.AsIs(checktest.OnFabric("one adapter alone, lanes lost", checktest.Of("mlx5_3"), checktest.Links(adapter, checktest.NowWidth, "8"),
			says(checks.Fail, "width", checks.ReseatOrRMA, "x16", "x8", "PCIe width is lower than this device had before"))).
			Holding("past/pcie-link.json", `{"0000:23:00.0":{"is":"15b3:1021 0000:33:01.0 0000:53:00.0 0000:63:01.0","width":16,"speed":32}}`),
		checktest.OnFabric("slow", nil, checktest.Links(adapter, checktest.NowSpeed, "16.0 GT/s PCIe"), says(checks.Fail, "speed", checks.ReseatOrRMA, "32 GT/s", "16 GT/s", "PCIe speed")),
		checktest.OnFabric("fewer lanes than wanted", checktest.Of("-w", "16"), slot8, says(checks.Fail, "width", checks.ReseatOrRMA, "x16", "x8", "PCIe width")),
		checktest.AsIs(checktest.OnFabric("all with fewer lanes than wanted: the line is wrong", checktest.Of("-w", "32"), nil, onEach(func(i int) checks.Finding {
			return checktest.HCAFinding(name, fmt.Sprintf("mlx5_%d", i), i, checks.Finding{Code: "ib.pcie.width", Severity: checks.Fail, Remedy: checks.FixConfig, Want: "x32", Got: "x16"}, "PCIe width, as on most devices of its kind")
		})...)),
		checktest.OnFabric("slower than wanted", checktest.Of("-s", "gen5"), gen4, says(checks.Fail, "speed", checks.ReseatOrRMA, "32 GT/s", "16 GT/s", "PCIe speed")),
		checktest.OnFabric("a slot of eight lanes", nil, slot8, says(checks.Warn, "slot", "", "x16", "x8", "PCIe slot has fewer lanes than those of its kind")),
		checktest.OnFabric("one adapter alone, less than its platform has", checktest.Of("mlx5_3"), slot8, says(checks.Warn, "platform", "", "x16", "x8", "PCIe width is lower than on HGX H100")).On(network),
		checktest.OnFabric("one adapter alone, slower than its platform's", checktest.Of("mlx5_3"), gen4, says(checks.Warn, "platform", "", "32 GT/s", "16 GT/s", "PCIe speed is lower than on HGX H100")).On(network),
		checktest.OnFabric("does not answer", nil, checktest.Links(adapter, "config", fakesys.Gone), says(checks.Fail, "gone", checks.PowerCycle, "", "", "does not answer on the PCI bus")),

		checktest.OnFabric("lanes lost above the switch", nil, checktest.Links("0000:53:00.0", checktest.NowWidth, "8"), above(checks.Fail, "width", checks.ReseatOrRMA, "x16", "x8", "PCIe width of a link above mlx5_3")),
		checktest.OnFabric("slow above the switch", nil, checktest.Links("0000:53:00.0", checktest.NowSpeed, "8.0 GT/s PCIe"), above(checks.Fail, "speed", checks.ReseatOrRMA, "32 GT/s", "8 GT/s", "PCIe speed of a link above mlx5_3")),
		checktest.OnFabric("a root port of eight lanes", nil, func(n *fakesys.Node) {
			checktest.Links("0000:53:00.0", checktest.NowWidth, "8")(n)
			checktest.Links("0000:33:01.0", checktest.NowWidth, "8", checktest.MaxWidth, "8")(n)
		}, above(checks.Warn, "tree", "", "x16", "x8", "PCIe slot has fewer lanes than those of its kind of a link above mlx5_3")),
		checktest.OnFabric("one adapter below a root port of eight lanes", checktest.Of("mlx5_3"), func(n *fakesys.Node) {
			checktest.Links("0000:53:00.0", checktest.NowWidth, "8")(n)
			checktest.Links("0000:33:01.0", checktest.NowWidth, "8", checktest.MaxWidth, "8")(n)
		}, above(checks.Warn, "tree", "", "x16", "x8", "PCIe width of a link above mlx5_3 is lower than its own")),
		checktest.OnFabric("one adapter below a slow root port", checktest.Of("mlx5_3"), func(n *fakesys.Node) {
			checktest.Links("0000:53:00.0", checktest.NowSpeed, "16.0 GT/s PCIe")(n)
			checktest.Links("0000:33:01.0", checktest.MaxSpeed, "16.0 GT/s PCIe")(n)
		}, above(checks.Warn, "tree", "", "32 GT/s", "16 GT/s", "PCIe speed of a link above mlx5_3 is lower than its own")),
		checktest.OnFabric("bridges of a virtual machine", checktest.Of("mlx5_3"), func(n *fakesys.Node) {
			checktest.Links("0000:53:00.0", checktest.NowWidth, "1", "vendor", "0x1b36")(n)
		}),

		checktest.OnFabric("small reads", nil, requests(512), says(checks.Warn, "readreq", checks.FixConfig, "at least 4096", "512", "MaxReadReq is below the recommendation for ConnectX-7")),
		checktest.OnFabric("smaller reads than wanted", checktest.Of("-m", "1024"), requests(512), says(checks.Fail, "readreq", checks.FixConfig, "at least 1024", "512", "MaxReadReq")),
		checktest.OnFabric("smaller reads than the others, an unknown device", nil, func(n *fakesys.Node) {
			allOf("device", "0x1027")(n)
			requests(2048)(n)
		}, says(checks.Warn, "readreq", checks.FixConfig, "at least 4096", "2048", "MaxReadReq is lower than on other adapters")),
		checktest.OnFabric("no relaxed ordering", nil, config(adapter, fakesys.PCIConfig{ReadRequest: 4096, ACS: -1, NoRelaxed: true}), says(checks.Warn, "ordering", checks.FixConfig, "on", "off", "relaxed ordering differs from other adapters")),
		checktest.OnFabric("no relaxed ordering on any", nil, allOf("config", fakesys.PCIConfig{ReadRequest: 4096, ACS: -1, NoRelaxed: true}.Config())),

		checktest.OnFabric("ACS of a switch", nil, redirect(toGPU, "0000:63:01.0"), says(checks.Warn, "acs", checks.FixConfig, "off", toGPU+bits+", 0000:63:01.0"+bits, acs)),
		checktest.OnFabric("ACS of a root port does not matter below a switch", nil, redirect("0000:33:01.0")),
		checktest.OnFabric("ACS anywhere", checktest.Of("-a"), redirect("0000:33:01.0"), says(checks.Fail, "acs", checks.FixConfig, "off", "0000:33:01.0"+bits, acs)),

		checktest.OnFabric("everything is hidden", nil, hidden(true), unseen("the kernel does not show the PCIe links of RDMA devices")),
		checktest.OnFabric("registers are hidden", nil, hidden(false)),
		checktest.OnFabric("registers are hidden, -m", checktest.Of("-m", "4096"), hidden(false), unseen("PCI Express registers cannot be read: MaxReadReq and ACS not checked")),
		odd(checktest.OnFabric("unreadable registers", nil, checktest.Links(adapter, "config/", ""), unknown("read "+of3+"config: is a directory"))),
		odd(checktest.OnFabric("garbage in registers", nil, checktest.Links(adapter, "config", "\xfe"), unknown("read "+of3+"config: not a configuration space"))),
		odd(checktest.OnFabric("an unreadable speed", nil, checktest.Links(adapter, checktest.MaxSpeed+"/", ""), unknown("read "+of3+checktest.MaxSpeed+": is a directory"))),
		odd(checktest.OnFabric("an unreadable bridge", nil, checktest.Links("0000:53:00.0", checktest.NowSpeed+"/", ""), unknown("read /sys/bus/pci/devices/0000:53:00.0/"+checktest.NowSpeed+": is a directory"))),
		odd(checktest.OnFabric("unreadable registers of a bridge", nil, checktest.Links(toGPU, "config/", ""), unknown("read /sys/bus/pci/devices/"+toGPU+"/config: is a directory"))),
		odd(checktest.OnFabric("garbage for a width", nil, checktest.Links(adapter, checktest.NowWidth, "\xff"))),
		odd(checktest.Scenario{Name: "unreadable RDMA devices", Files: map[string]string{"sys/class/infiniband": ""}, Want: checks.Unreadable(fmt.Errorf("read /sys/class/infiniband: not a directory"))}),
		checktest.OnFabric("an invalid speed", checktest.Of("-s", "fast"), nil, checks.BadWord(name, "PCIe speed", "fast", "a generation, 1 to 7, or a speed in GT/s")),

		checktest.OnNode(fakesys.Kinds()["b300, storage over ConnectX-7"], "an adapter for storage that is older than those of its platform", nil).
			On(&checks.Platform{Name: "HGX B300", NetworkRate: 400, NetworkPCIeGen: 6}),
		checktest.OnNode(fakesys.NDH100v5(), "ND H100 v5", nil), checktest.OnNode(fakesys.DGXA100(), "DGX A100", nil), checktest.OnNode(fakesys.DGXH200(), "DGX H200", nil), checktest.OnNode(fakesys.HGXB200(), "HGX B200", nil),
		checktest.OnNode(fakesys.GB200(), "GB200", nil), checktest.OnNode(fakesys.CX8(), "CX8", nil), checktest.OnNode(fakesys.EthernetOnly(), "Ethernet only", nil,
			checks.Finding{Code: "ib.none", Severity: checks.Skip, Message: name + ":  no RDMA device on this node"}),
	}
})

// A platform with slower links above the adapters by design does not warn.
func TestIBPCIeTreeOfPlatform(t *testing.T) {
	t.Parallel()
	sys := fakesys.CX8()
	for i := range 8 {
		for _, b := range []string{fmt.Sprintf("0000:5%d:00.0", i), fmt.Sprintf("0000:3%d:01.0", i)} {
			sys.Set(b, checktest.NowSpeed, "32.0 GT/s PCIe").Set(b, checktest.MaxSpeed, "32.0 GT/s PCIe")
		}
	}
	for gen, want := range map[int]int{0: 8, 5: 0, 6: 8} {
		f := fabricOf(t, sys)
		f.env.Platform = func(string, string, int) *checks.Platform {
			return &checks.Platform{Name: "HGX B300", NetworkTreeGen: gen}
		}
		if got := (&ibPCIe{}).Run(t.Context(), f.env); len(got) != want {
			t.Errorf("generation %d: %d findings, want %d: %v", gen, len(got), want, got)
		}
	}
}
