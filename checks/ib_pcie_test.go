package checks

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestIBPCIe(t *testing.T) { testCheck(t, "check_ib_pcie") }

var _ = table("check_ib_pcie", func(name string) []scenario {
	const adapter, toGPU = "0000:23:00.0", "0000:63:00.0"
	rdma3 := hcaFinding(name, "mlx5_3", 3, Finding{}, "").Device
	says := func(severity Severity, code string, remedy Remedy, want, got, text string) Finding {
		return about(name, rdma3, Finding{Code: "ib.pcie." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	above := func(severity Severity, code string, remedy Remedy, want, got, text string) Finding {
		return about(name, switch3, Finding{Code: "ib.pcie." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	config := func(device string, c fakesys.PCIConfig) func(*fakesys.Node) {
		return links(device, "config", c.Config())
	}
	requests := func(n int) func(*fakesys.Node) { return config(adapter, fakesys.PCIConfig{ReadRequest: n, ACS: -1}) }
	redirect := func(devices ...string) func(*fakesys.Node) {
		return func(n *fakesys.Node) {
			for _, d := range devices {
				config(d, fakesys.PCIConfig{ReadRequest: 128, ACS: fakesys.Redirect | 1})(n)
			}
		}
	}
	odd := func(s scenario) scenario {
		s.broken = true
		return s
	}
	unknown := func(text string) Finding {
		return (&fabric{check: name}).unknown(rdma3, errors.New(text))
	}
	hidden := func(all bool) func(*fakesys.Node) {
		return func(n *fakesys.Node) {
			for i := range 8 {
				a := fakesys.HCAAddress(i)
				n.Set(a, "config", "-")
				if all {
					n.Set(a, nowWidth, "0").Set(a, nowSpeed, "Unknown")
				}
			}
		}
	}
	unseen := func(text string) Finding {
		return Finding{Code: "ib.pcie.unseen", Severity: Skip, Message: name + ":  " + text}
	}
	const of3, bits = "/sys/bus/pci/devices/0000:23:00.0/", " (ReqRedir CmpltRedir UpstreamFwd)"
	const acs = "ACS redirects traffic to GPUs over the root port"
	network := &Platform{Name: "HGX H100", NetworkRate: 400, NetworkPCIeGen: 5, NetworkPCIeWidth: 16}
	slot8 := func(n *fakesys.Node) {
		links(adapter, nowWidth, "8", maxWidth, "8")(n)
		links("0000:63:01.0", nowWidth, "8", maxWidth, "8")(n)
	}
	gen4 := links(adapter, nowSpeed, "16.0 GT/s PCIe", maxSpeed, "16.0 GT/s PCIe")
	allOf := func(file, content string) func(*fakesys.Node) {
		return func(n *fakesys.Node) {
			for i := range 8 {
				n.Set(fakesys.HCAAddress(i), file, content)
			}
		}
	}
	return []scenario{
		onFabric("healthy", nil, nil), onRoCE("healthy, RoCE", nil, nil), onFabric("healthy, as its platform", nil, nil).on(network),
		onFabric("as wanted", of("-w", "16", "-s", "5", "-m", "4096", "-a"), nil).
			orTable(map[string]any{"width": int64(16), "speed": int64(5), "read_request": int64(4096), "acs": true}),
		onFabric("one by name", of("mlx5_4"), links(adapter, nowWidth, "8")),
		{name: "no RDMA device", want: []Finding{{Code: "ib.none", Severity: Skip, Message: name + ":  no RDMA device on this node"}}},
		onFabric("a name that is none", of("mlx5_9"), nil, Finding{Code: "ib.unnamed", Severity: Fail, Device: Device{Kind: "port", Name: "mlx5_9"}, Want: "mlx5_9", Got: "none", Message: name + ":  mlx5_9: no such RDMA device or port"}),

		onFabric("lanes lost", nil, links(adapter, nowWidth, "8"), says(Fail, "width", ReseatOrRMA, "x16", "x8", "PCIe width")),
		onFabric("slow", nil, links(adapter, nowSpeed, "16.0 GT/s PCIe"), says(Fail, "speed", ReseatOrRMA, "32 GT/s", "16 GT/s", "PCIe speed")),
		onFabric("fewer lanes than wanted", of("-w", "16"), slot8, says(Fail, "width", ReseatOrRMA, "x16", "x8", "PCIe width")),
		onFabric("slower than wanted", of("-s", "gen5"), gen4, says(Fail, "speed", ReseatOrRMA, "32 GT/s", "16 GT/s", "PCIe speed")),
		onFabric("a slot of eight lanes", nil, slot8, says(Warn, "slot", "", "x16", "x8", "PCIe slot has fewer lanes than those of its kind")),
		onFabric("one adapter alone, less than its platform has", of("mlx5_3"), slot8, says(Warn, "platform", "", "x16", "x8", "PCIe width is less than that of HGX H100")).on(network),
		onFabric("one adapter alone, slower than its platform's", of("mlx5_3"), gen4, says(Warn, "platform", "", "32 GT/s", "16 GT/s", "PCIe speed is less than that of HGX H100")).on(network),
		onFabric("does not answer", nil, links(adapter, "config", fakesys.Gone), says(Fail, "gone", RebootNode, "", "", "does not answer: every register reads as ones")),

		onFabric("lanes lost above the switch", nil, links("0000:53:00.0", nowWidth, "8"), above(Fail, "width", ReseatOrRMA, "x16", "x8", "PCIe width of a link above mlx5_3")),
		onFabric("slow above the switch", nil, links("0000:53:00.0", nowSpeed, "8.0 GT/s PCIe"), above(Fail, "speed", ReseatOrRMA, "32 GT/s", "8 GT/s", "PCIe speed of a link above mlx5_3")),
		onFabric("a root port of eight lanes", nil, func(n *fakesys.Node) {
			links("0000:53:00.0", nowWidth, "8")(n)
			links("0000:33:01.0", nowWidth, "8", maxWidth, "8")(n)
		}, above(Warn, "tree", "", "x16", "x8", "PCIe slot has fewer lanes than those of its kind of a link above mlx5_3")),
		onFabric("one adapter below a root port of eight lanes", of("mlx5_3"), func(n *fakesys.Node) {
			links("0000:53:00.0", nowWidth, "8")(n)
			links("0000:33:01.0", nowWidth, "8", maxWidth, "8")(n)
		}, above(Warn, "tree", "", "x16", "x8", "PCIe width of a link above mlx5_3 is less than its own")),
		onFabric("one adapter below a slow root port", of("mlx5_3"), func(n *fakesys.Node) {
			links("0000:53:00.0", nowSpeed, "16.0 GT/s PCIe")(n)
			links("0000:33:01.0", maxSpeed, "16.0 GT/s PCIe")(n)
		}, above(Warn, "tree", "", "32 GT/s", "16 GT/s", "PCIe speed of a link above mlx5_3 is less than its own")),
		onFabric("bridges of a virtual machine", of("mlx5_3"), func(n *fakesys.Node) {
			links("0000:53:00.0", nowWidth, "1", "vendor", "0x1b36")(n)
		}),

		onFabric("small reads", nil, requests(512), says(Warn, "readreq", FixConfig, "at least 4096", "512", "MaxReadReq is below what is recommended for ConnectX-7")),
		onFabric("smaller reads than wanted", of("-m", "1024"), requests(512), says(Fail, "readreq", FixConfig, "at least 1024", "512", "MaxReadReq")),
		onFabric("smaller reads than the others, a device that is not known", nil, func(n *fakesys.Node) {
			allOf("device", "0x1027")(n)
			requests(2048)(n)
		}, says(Warn, "readreq", FixConfig, "at least 4096", "2048", "MaxReadReq is less than that of the others")),
		onFabric("no relaxed ordering", nil, config(adapter, fakesys.PCIConfig{ReadRequest: 4096, ACS: -1, NoRelaxed: true}), says(Warn, "ordering", FixConfig, "on", "off", "relaxed ordering is not that of the others")),
		onFabric("no relaxed ordering on any", nil, allOf("config", fakesys.PCIConfig{ReadRequest: 4096, ACS: -1, NoRelaxed: true}.Config())),

		onFabric("ACS of a switch", nil, redirect(toGPU, "0000:63:01.0"), says(Warn, "acs", FixConfig, "off", toGPU+bits+", 0000:63:01.0"+bits, acs)),
		onFabric("ACS of a root port does not matter below a switch", nil, redirect("0000:33:01.0")),
		onFabric("ACS anywhere", of("-a"), redirect("0000:33:01.0"), says(Fail, "acs", FixConfig, "off", "0000:33:01.0"+bits, acs)),

		onFabric("nothing is shown", nil, hidden(true), unseen("the PCIe links of RDMA devices are not shown here")),
		onFabric("registers are not shown", nil, hidden(false)),
		onFabric("registers are not shown, and asked for", of("-m", "4096"), hidden(false), unseen("the registers of PCI Express are not shown here: MaxReadReq and ACS were not judged")),
		odd(onFabric("unreadable registers", nil, links(adapter, "config/", ""), unknown("read "+of3+"config: is a directory"))),
		odd(onFabric("garbage in registers", nil, links(adapter, "config", "\xfe"), unknown("read "+of3+"config: not a configuration space"))),
		odd(onFabric("an unreadable speed", nil, links(adapter, maxSpeed+"/", ""), unknown("read "+of3+maxSpeed+": is a directory"))),
		odd(onFabric("an unreadable bridge", nil, links("0000:53:00.0", nowSpeed+"/", ""), unknown("read /sys/bus/pci/devices/0000:53:00.0/"+nowSpeed+": is a directory"))),
		odd(onFabric("unreadable registers of a bridge", nil, links(toGPU, "config/", ""), unknown("read /sys/bus/pci/devices/"+toGPU+"/config: is a directory"))),
		odd(onFabric("garbage for a width", nil, links(adapter, nowWidth, "\xff"))),
		odd(scenario{name: "unreadable RDMA devices", files: map[string]string{"sys/class/infiniband": ""}, want: unreadable(fmt.Errorf("read /sys/class/infiniband: not a directory"))}),
		onFabric("a speed that is none", of("-s", "fast"), nil, badWord(name, "PCIe speed", "fast", "a generation, 1 to 7, or a speed in GT/s")),

		onNode(fakesys.Kinds()["b300, storage over ConnectX-7"], "an adapter for storage that is older than those of its platform", nil).
			on(&Platform{Name: "HGX B300", NetworkRate: 400, NetworkPCIeGen: 6}),
		onNode(fakesys.NDH100v5(), "ND H100 v5", nil), onNode(fakesys.DGXA100(), "DGX A100", nil), onNode(fakesys.DGXH200(), "DGX H200", nil), onNode(fakesys.HGXB200(), "HGX B200", nil),
		onNode(fakesys.GB200(), "GB200", nil), onNode(fakesys.CX8(), "CX8", nil), onNode(fakesys.EthernetOnly(), "Ethernet only", nil,
			Finding{Code: "ib.none", Severity: Skip, Message: name + ":  no RDMA device on this node"}),
	}
})

// A platform whose links above the adapters are slower by design is not warned of.
func TestIBPCIeTreeOfPlatform(t *testing.T) {
	t.Parallel()
	sys := fakesys.CX8()
	for i := range 8 {
		for _, b := range []string{fmt.Sprintf("0000:5%d:00.0", i), fmt.Sprintf("0000:3%d:01.0", i)} {
			sys.Set(b, nowSpeed, "32.0 GT/s PCIe").Set(b, maxSpeed, "32.0 GT/s PCIe")
		}
	}
	for gen, want := range map[int]int{0: 8, 5: 0, 6: 8} {
		f := fabricOf(t, sys)
		f.env.Platform = func(string, string, int) *Platform { return &Platform{Name: "HGX B300", NetworkTreeGen: gen} }
		if got := (&ibPCIe{}).Run(t.Context(), f.env); len(got) != want {
			t.Errorf("generation %d: %d findings, want %d: %v", gen, len(got), want, got)
		}
	}
}
