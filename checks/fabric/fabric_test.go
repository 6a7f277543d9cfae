package fabric

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// onEach returns a finding about each of the eight ports or adapters of a node, with its number.
func onEach(finding func(i int) checks.Finding) (list []checks.Finding) {
	for i := range 8 {
		list = append(list, finding(i))
	}
	return list
}

// The ports that carry jobs' traffic on each kind of node, and the reasons to skip the others.
func TestFabricRoles(t *testing.T) {
	t.Parallel()
	withVFs := fakesys.DGXH100()
	withVFs.AddVF("mlx5_0", "0000:20:00.1", "mlx5_100", 0x70)
	far := fakesys.RoCE()
	management := frontEndPort(0xf1, 0)
	management.NUMA = 3
	far.AddHCA(management)
	wrong := fakesys.RoCE().Set(fakesys.HCAAddress(3), "numa_node", "3").Set("rocep3s0", "board_id", "MT_0000000844")
	rails := fakesys.RoCE()
	for i := 4; i < 8; i++ {
		rails.Move(fakesys.HCAAddress(i), fmt.Sprintf("0000:b%d:01.0", i)).Set(fakesys.HCAAddress(i), "numa_node", "3")
	}
	const eight = "rocep0s0:1 rocep1s0:1 rocep2s0:1 rocep3s0:1 rocep4s0:1 rocep5s0:1 rocep6s0:1 rocep7s0:1"
	storage := fakesys.RoCE()
	storage.AddHCA(fakesys.HCA{PCI: fakesys.PCI{Address: "0000:29:00.0", ID: "15b3:101b", Driver: "mlx5_core", Speed: "16.0 GT/s PCIe", Width: 16},
		Name: "mlx5_9", Type: "MT4123", Layer: "InfiniBand", Rate: "200 Gb/sec (4X HDR)", Index: 9})
	kinds := fakesys.Kinds()
	six := fakesys.RoCE().DefaultRoute6("eth13")
	six.Files["proc/net/route"] = ""
	dhcp, dhcpFive := fakesys.RoCE(), fakesys.RoCE()
	for i := range 8 {
		if dhcp.DefaultRoute(fmt.Sprintf("eth1%d", i)); i < 5 {
			dhcpFive.DefaultRoute(fmt.Sprintf("eth1%d", i))
		}
	}
	front := func(routes ...string) *fakesys.Node { // four more ports of a front end
		n := fakesys.RoCE()
		for i := range 4 {
			n.AddHCA(frontEndPort(0xf1, i))
		}
		if n.Files["proc/net/route"] = ""; len(routes) == 0 {
			n.AddBond("bond0", "802.3ad 4", "ens1", "ens2", "ens3", "ens4")
			return n.DefaultRoute6("bond0")
		}
		for _, dev := range routes {
			n.DefaultRoute(dev)
		}
		return n
	}
	byNM := func(n *fakesys.Node, devs ...string) *fakesys.Node { // each route has another metric
		n.Files["proc/net/route"] = ""
		for i, dev := range devs {
			n.DefaultRouteOf(dev, 100+i)
		}
		return n
	}
	ethernets := []string{"eth10", "eth11", "eth12", "eth13", "eth14", "eth15", "eth16", "eth17"}
	ninth := func(routes ...string) *fakesys.Node { // the front end is a port of the rails' kind
		n := fakesys.RoCE()
		p := frontEndPort(0xf1, 0)
		p.ID, p.Type, p.Board, p.Rate = "15b3:1021", "MT4129", "MT_0000000834", "200 Gb/sec (2X NDR)"
		n.AddHCA(p)
		return byNM(n, routes...)
	}
	rooted := func(n *fakesys.Node) *fakesys.Node { // no GPU is near a rail, as in a virtual machine
		for i := range 8 {
			n.Move(fakesys.HCAAddress(i), fmt.Sprintf("0000:b%d:01.0", i))
		}
		return n
	}
	twoPorts := func() *fakesys.Node { // the front end's card has a second port without a cable; so have those of the rails
		n := byNM(fakesys.RoCE(), append([]string{"ens1"}, ethernets...)...)
		for i := range 2 {
			p := frontEndPort(0xf1, i)
			p.ID, p.Type, p.Board = "15b3:1021", "MT4129", "MT_0000000834"
			n.AddHCA(p)
		}
		return n.Down("mlx5_f1_1")
	}
	fronts := map[string]string{"mlx5_f1_0:1": frontEnd, "mlx5_f1_1:1": frontEnd, "mlx5_f1_2:1": frontEnd, "mlx5_f1_3:1": frontEnd}
	twoOfRails := fakesys.RoCE()
	twoOfRails.DefaultRoute("eth13")
	twoOfRails.DefaultRoute("eth14")
	soft := fakesys.EthernetOnly()
	soft.Files["sys/class/infiniband/rxe0/ports/1/link_layer"] = "Ethernet\n"
	for _, c := range []struct {
		name string
		sys  *fakesys.Node
		data string
		left map[string]string
	}{
		{"DGX H100", fakesys.DGXH100(), "mlx5_0:1 mlx5_1:1 mlx5_2:1 mlx5_3:1 mlx5_4:1 mlx5_5:1 mlx5_6:1 mlx5_7:1", nil},
		{"DGX H200", fakesys.DGXH200(), "mlx5_0:1 mlx5_1:1 mlx5_2:1 mlx5_3:1 mlx5_4:1 mlx5_5:1 mlx5_6:1 mlx5_7:1 mlx5_8:1 mlx5_9:1", nil},
		{"ND H100 v5", fakesys.NDH100v5(), "mlx5_ib0:1 mlx5_ib1:1 mlx5_ib2:1 mlx5_ib3:1 mlx5_ib4:1 mlx5_ib5:1 mlx5_ib6:1 mlx5_ib7:1", map[string]string{"mlx5_an0:1": "the default route"}},
		{"RoCE", fakesys.RoCE(), "rocep0s0:1 rocep1s0:1 rocep2s0:1 rocep3s0:1 rocep4s0:1 rocep5s0:1 rocep6s0:1 rocep7s0:1", nil},
		{"GB200", fakesys.GB200(), "mlx5_0:1 mlx5_1:1 mlx5_3:1 mlx5_4:1", map[string]string{"mlx5_2:1": "the default route", "mlx5_5:1": "Ethernet beside InfiniBand"}},
		{"virtual functions", withVFs, "mlx5_0:1 mlx5_1:1 mlx5_2:1 mlx5_3:1 mlx5_4:1 mlx5_5:1 mlx5_6:1 mlx5_7:1", nil},
		{"far from GPUs", far, eight, map[string]string{"mlx5_f1_0:1": "near no GPU (NUMA node 3)"}},
		{"a wrong NUMA node", wrong, eight, nil},
		{"rails of a socket without a GPU", rails, eight, nil},
		{"RoCE, and storage over InfiniBand", storage, "mlx5_9:1 rocep0s0:1 rocep1s0:1 rocep2s0:1 rocep3s0:1 rocep4s0:1 rocep5s0:1 rocep6s0:1 rocep7s0:1", nil},
		{"RoCE with default routes of IPv6", kinds["roce, leaves that advertise a default route of IPv6"], "rocep0s0:1 rocep1s0:1 rocep2s0:1 rocep3s0:1 rocep4s0:1 rocep5s0:1 rocep6s0:1 rocep7s0:1", nil},
		{"RoCE with routes of IPv6 alone", kinds["roce, IPv6 alone, a default route on each rail"], "rocep0s0:1 rocep1s0:1 rocep2s0:1 rocep3s0:1 rocep4s0:1 rocep5s0:1 rocep6s0:1 rocep7s0:1", nil},
		{"a front end of IPv6", six, "rocep0s0:1 rocep1s0:1 rocep2s0:1 rocep4s0:1 rocep5s0:1 rocep6s0:1 rocep7s0:1", map[string]string{"rocep3s0:1": "the default route"}},
		{"RoCE with DHCP", dhcp, eight, nil},
		{"RoCE, five rails with DHCP", dhcpFive, eight, nil},
		{"RoCE with DHCP, a metric for each", byNM(fakesys.RoCE(), ethernets...), eight, nil},
		{"RoCE with DHCP, far from GPUs", byNM(rooted(fakesys.RoCE()), ethernets...), eight, nil},
		{"RoCE with DHCP, and a front end of another kind", byNM(fakesys.RoCE(), append([]string{"eth0"}, ethernets...)...), eight, nil},
		{"RoCE with DHCP, and a front end of the rails' kind", ninth(append([]string{"ens1"}, ethernets...)...), eight, map[string]string{"mlx5_f1_0:1": frontEnd}},
		{"the same, far from GPUs", rooted(ninth(append([]string{"ens1"}, ethernets...)...)), "mlx5_f1_0:1 " + eight, nil},
		{"RoCE with DHCP, and a front end of two ports", twoPorts(), eight, map[string]string{"mlx5_f1_0:1": frontEnd, "mlx5_f1_1:1": spareLeft}},
		{"RoCE with DHCP, and a front end without a route", ninth(ethernets...), "mlx5_f1_0:1 " + eight, nil},
		{"RoCE with DHCP, nine rails and a front end", ninth(append([]string{"ens1", "eno1"}, ethernets...)...), "mlx5_f1_0:1 " + eight, nil},
		{"a front end of two ports of the rails' kind", twoOfRails, "rocep0s0:1 rocep1s0:1 rocep2s0:1 rocep5s0:1 rocep6s0:1 rocep7s0:1", map[string]string{"rocep3s0:1": frontEnd, "rocep4s0:1": frontEnd}},
		{"a front end of four ports with a route each", front("ens1", "ens2", "ens3", "ens4"), eight, fronts},
		{"a front end of four ports below a bond", front(), eight, fronts},
		{"software", soft, "", map[string]string{"rxe0:1": "in software"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := fabricOf(t, c.sys)
			var data []string
			left := map[string]string{}
			for _, p := range f.Ports {
				if p.Left == "" {
					data = append(data, p.Name())
				} else {
					left[p.Name()] = p.Left
				}
			}
			if got := strings.Join(data, " "); got != c.data {
				t.Errorf("data ports %s, want %s", got, c.data)
			}
			if want := c.left; want == nil && len(left) > 0 || want != nil && !maps.Equal(left, want) {
				t.Errorf("left out %v, want %v", left, want)
			}
		})
	}
}

func fabricOf(t *testing.T, sys *fakesys.Node) *Fabric {
	t.Helper()
	root := t.TempDir()
	if err := sys.Write(root); err != nil {
		t.Fatal(err)
	}
	f, findings := Ask(&checks.Env{Host: probe.NewHost(root)}, "check_x")
	if f == nil {
		t.Fatal(findings)
	}
	return f
}

func TestFabricPlanes(t *testing.T) {
	t.Parallel()
	got := map[string]int{}
	for _, p := range fabricOf(t, fakesys.CX8()).Ports {
		if p.Device == "mlx5_3" && p.Left == "" {
			got[p.Port] = p.Plane
		}
	}
	if diff := cmp.Diff(map[string]int{"3": 1, "6": 2, "9": 3, "12": 4}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFabricNames(t *testing.T) {
	t.Parallel()
	sys := fakesys.DGXH100()
	sys.AddVF("mlx5_0", "0000:20:00.1", "mlx5_100", 0x70)
	f := fabricOf(t, sys)
	for words, want := range map[string]string{
		"mlx5_3": "mlx5_3:1", "mlx5_3:1": "mlx5_3:1", "mlx5_3:2": "ib.unnamed", "mlx5_[12]": "mlx5_1:1 mlx5_2:1", "mlx5_*:2": "ib.unnamed",
		"mlx5_3 mlx5_3:1": "mlx5_3:1", "mlx5_100": "mlx5_100:1", "mlx4_0": "ib.unnamed",
	} {
		ports, findings := f.Judged(strings.Fields(words), "")
		var got []string
		for _, p := range ports {
			got = append(got, p.Name())
		}
		for _, f := range findings {
			got = append(got, f.Code)
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s: %s, want %s", words, text, want)
		}
	}
	if ports, findings := f.Judged(nil, LayerEth); len(ports) != 0 || len(findings) != 1 || findings[0].Code != "ib.left" {
		t.Errorf("Ethernet: %v, %v", ports, findings)
	}
}
