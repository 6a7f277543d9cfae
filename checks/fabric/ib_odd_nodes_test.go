package fabric

import (
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/selftest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// bridges adds the ConnectX-7 through which Fabric Manager reaches the NVSwitches of an HGX B200:
// four functions with InfiniBand ports that no job uses.
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
	n := bridges(fakesys.HGXB200())
	for i := range 4 { // the chip has more lanes than the board wires
		n.Set(fmt.Sprintf("0000:a0:00.%d", i), "max_link_width", "16").Set("0000:9f:01.0", "max_link_width", "16")
	}
	root := t.TempDir()
	if err := n.Write(root); err != nil {
		t.Fatal(err)
	}
	for _, check := range []checks.Check{&ibPorts{}, checktest.Bound(t, []string{"check_pcie"}), &ibCount{Count: 8}, &ibPCIe{}, &ibErrors{}, &ibGID{Index: -1}} {
		env := &checks.Env{Host: probe.NewHost(root), Platform: func(string, string, int) *checks.Platform {
			return &checks.Platform{Name: "HGX B200", NVSwitchGPUs: 8, NVLinkBandwidth: 53125, NetworkPorts: 8, NetworkRate: 400, NetworkPCIeGen: 5, NetworkPCIeWidth: 16}
		}}
		if got := check.Run(t.Context(), env); checks.Worst(got) != checks.OK {
			t.Errorf("%T: %v", check, got)
		}
	}
}

// A node can have IP over InfiniBand as its only default route.
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

// Interfaces that other software creates on a port do not belong to the port.
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
	n = fakesys.Kinds()["ip over infiniband, partitions made by netlink"]
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

// A link that comes up and goes down again during a boot is not a flap, in any source.
func TestFlapsOfABoot(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	sys := fakesys.DGXH100()
	sys.Files["dev/kmsg"] = ""
	if err := sys.Write(root); err != nil {
		t.Fatal(err)
	}
	run := func(up, downed int) checks.Severity {
		for name, n := range map[string]string{"proc/uptime": fmt.Sprintf("%d.00 1.00\n", up), sys.Dir("mlx5_3") + "/ports/1/counters/link_downed": fmt.Sprintf("%d\n", downed)} {
			if err := selftest.Place(root, name, n); err != nil {
				t.Fatal(err)
			}
		}
		env := &checks.Env{Host: probe.NewHost(root)}
		env.Host.SetPast("/past")
		return checks.Worst((&ibLinkFlapping{Hours: 24, Count: 5}).Run(t.Context(), env))
	}
	for _, step := range []struct {
		up, downed int
		want       checks.Severity
	}{{60, 1, checks.OK}, {200, 7, checks.OK}, {290, 8, checks.OK}, {600, 8, checks.OK}, {900, 9, checks.Warn}, {960, 13, checks.Fail}} {
		if got := run(step.up, step.downed); got != step.want {
			t.Errorf("%d s after the boot, %d times: %v, want %v", step.up, step.downed, got, step.want)
		}
	}
}

// A failure for repeated events also fails in a run soon after.
func TestErrorsOfTwoRuns(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	sys := fakesys.DGXH100()
	if err := sys.Write(root); err != nil {
		t.Fatal(err)
	}
	errors := 0
	run := func(up, more int) checks.Severity {
		errors += more
		for name, n := range map[string]string{"proc/uptime": fmt.Sprintf("%d.00 1.00\n", up), sys.Dir("mlx5_3") + "/ports/1/counters/port_rcv_errors": fmt.Sprintf("%d\n", errors)} {
			if err := selftest.Place(root, name, n); err != nil {
				t.Fatal(err)
			}
		}
		env := &checks.Env{Host: probe.NewHost(root)}
		env.Host.SetPast("/past")
		return checks.Worst((&ibErrors{}).Run(t.Context(), env))
	}
	for i, step := range []struct {
		up, more int
		want     checks.Severity
	}{{1000, 0, checks.OK}, {1400, 10000, checks.Warn}, {1800, 10000, checks.Warn}, {2200, 10000, checks.Fail}, {2210, 0, checks.Fail}, {2230, 0, checks.Fail}, {2600, 0, checks.Fail}, {9000, 0, checks.OK}} {
		if got := run(step.up, step.more); got != step.want {
			t.Errorf("run %d: %v, want %v", i, got, step.want)
		}
	}
}
