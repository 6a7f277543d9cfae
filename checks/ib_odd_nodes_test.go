package checks

import (
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// bridges adds the ConnectX-7 by which Fabric Manager reaches the NVSwitches of an
// HGX B200: four functions with InfiniBand ports that no job uses.
func bridges(n *fakesys.Node) *fakesys.Node {
	for i := range 4 {
		address := fmt.Sprintf("0000:a0:00.%d", i)
		n.AddHCA(fakesys.HCA{
			PCI:  fakesys.PCI{Address: address, Above: []string{"0000:9f:01.0"}, ID: "15b3:1021", Driver: "mlx5_core", Speed: "32.0 GT/s PCIe", Width: 2},
			Name: fmt.Sprintf("ibp160s0f%d", i), Type: "MT4129", Board: "MT_0000001182", Fw: "28.42.1000", Layer: "InfiniBand", Rate: "400 Gb/sec (4X NDR)", Index: 0xb0 + i,
		})
		n.Set(address, "vpd", "\x82\x0bConnectX-7\x90\x10V3SMDL=SW_MNGRV")
		n.Set(fmt.Sprintf("ibp160s0f%d", i), "ports/1/state", "2: INIT")
	}
	return n
}

func TestNVSwitchBridges(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := bridges(fakesys.HGXB200()).Write(root); err != nil {
		t.Fatal(err)
	}
	for _, check := range []Check{&ibPorts{}, &ibCount{Count: 8}, &ibPCIe{}, &ibErrors{}, &ibGID{Index: -1}} {
		env := &Env{Host: probe.NewHost(root), Platform: func(device, subsystem string, gpus int) *Platform {
			return &Platform{Name: "HGX B200", NVSwitchGPUs: 8, NVLinkBandwidth: 53125, NetworkPorts: 8, NetworkRate: 400, NetworkPCIeGen: 5, NetworkPCIeWidth: 16}
		}}
		if got := check.Run(t.Context(), env); Worst(got) != OK {
			t.Errorf("%T: %v", check, got)
		}
	}
}

// The node's only way out may be over IP over InfiniBand.
func TestDefaultRouteOverInfiniBand(t *testing.T) {
	t.Parallel()
	n := fakesys.DGXH100()
	n.Files["proc/net/route"] = ""
	n.DefaultRoute("ib0")
	for _, p := range fabricOf(t, n).Ports {
		if p.Left != "" {
			t.Errorf("%s is left out: %s", p.Name(), p.Left)
		}
	}
}

// Interfaces that others have made on a port are not the port's.
func TestNetDevsOfOthers(t *testing.T) {
	t.Parallel()
	n := fakesys.DGXH100()
	n.AddNet(fakesys.Net{Name: "ib3.8001", PCI: fakesys.HCAAddress(3), IB: true, Index: 0x80})
	n.Set("ib3.8001", "parent", "ib3")
	for _, p := range fabricOf(t, n).Ports {
		if p.Device == "mlx5_3" && fmt.Sprint(p.NetDevs) != "[ib3]" {
			t.Errorf("%s has %v", p.Name(), p.NetDevs)
		}
	}
	n = fakesys.RoCE()
	n.Set("eth13", "phys_port_name", "p0")
	for i := range 3 {
		rep := fmt.Sprintf("eth13_%d", i)
		n.AddNet(fakesys.Net{Name: rep, PCI: fakesys.HCAAddress(3), Index: 0x90 + i})
		n.Set(rep, "phys_port_name", fmt.Sprintf("pf0vf%d", i))
	}
	for _, p := range fabricOf(t, n).Ports {
		if p.Device == "rocep3s0" && fmt.Sprint(p.NetDevs) != "[eth13]" {
			t.Errorf("%s has %v", p.Name(), p.NetDevs)
		}
	}
}
