package rank

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

var prefixes = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

// newNode creates a node of files, and links of files to others.
func newNode(t *testing.T, files, links map[string]string) *probe.Host {
	t.Helper()
	root := probetest.Tree(t, files)
	for name, to := range links {
		path := filepath.Join(root, name)
		probetest.Mkdir(t, filepath.Dir(path))
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
	}
	return probe.NewHost(root)
}

func newLink(name string, mtu int, addresses ...string) link {
	l := link{Interface: net.Interface{Name: name, MTU: mtu, Flags: net.FlagUp}}
	for _, a := range addresses {
		l.addresses = append(l.addresses, netip.MustParsePrefix(a))
	}
	return l
}

// Planes are adapters, and interfaces that use them; others are planes only on a node without these.
func TestPlanes(t *testing.T) {
	t.Parallel()
	const class = "sys/class/net/"
	h := newNode(t, map[string]string{
		class + "eth0/operstate": "up\n", class + "eth0/speed": "25000\n",
		class + "eth1/operstate": "up\n", class + "eth1/speed": "-1\n",
		class + "bond0/operstate": "up\n", class + "bond0/speed": "400000\n", class + "bond0/lower_eth1/": "",
		class + "vlan7/operstate": "up\n", class + "vlan7/lower_bond0/": "",
		class + "br0/operstate": "up\n", class + "br0/bridge/": "", class + "br0/lower_eth0/": "",
		class + "docker0/operstate": "up\n", class + "docker0/bridge/": "", class + "docker0/lower_veth1/": "",
		class + "veth1/operstate": "up\n", class + "veth2/operstate": "up\n", class + "veth2/speed": "10000\n",
	}, map[string]string{class + "eth0/device": "../../../0000:01:00.0", class + "eth1/device": "../../../0000:02:00.0"})
	docker, veth := newLink("docker0", 1500, "172.17.0.1/16"), newLink("veth2", 1500, "10.77.0.5/24")
	plane := func(name, address string, mtu, speed int) sweep.Plane {
		return sweep.Plane{Name: name, Address: netip.MustParsePrefix(address), MTU: mtu, Speed: speed}
	}
	for name, tt := range map[string]struct {
		links []link
		want  []sweep.Plane
	}{
		"hardware": {
			[]link{newLink("eth0", 1500, "fe80::1/64", "10.0.0.5/24", "10.0.0.6/24"), newLink("eth1", 9000), docker, newLink("bond0", 9000, "fd00::5/64", "10.1.0.5/16"), newLink("vlan7", 1500, "fe80::2/64", "fd07::5/64"), newLink("br0", 1500, "10.9.0.5/24"), veth},
			[]sweep.Plane{plane("eth0", "10.0.0.5/24", 1500, 25000), plane("bond0", "10.1.0.5/16", 9000, 400000), plane("vlan7", "fd07::5/64", 1500, 0), plane("br0", "10.9.0.5/24", 1500, 0)},
		},
		"a container":           {[]link{docker, veth}, []sweep.Plane{plane("veth2", "10.77.0.5/24", 1500, 10000)}},
		"files of another node": {[]link{newLink("eth_a", 1500, "10.77.0.5/24")}, []sweep.Plane{plane("eth_a", "10.77.0.5/24", 1500, 0)}},
		"a bridge alone":        {[]link{docker}, []sweep.Plane{plane("docker0", "172.17.0.1/16", 1500, 0)}},
		"no address":            {[]link{newLink("eth0", 1500, "fe80::1/64"), newLink("eth1", 9000)}, nil},
	} {
		if diff := cmp.Diff(tt.want, planes(h.Apart(), tt.links), prefixes, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A name may lead to any address of the node: a second one, one on lo or on an interface without hardware. A
// bridge of containers has the same address on each node.
func TestAddresses(t *testing.T) {
	t.Parallel()
	const class = "sys/class/net/"
	h := newNode(t, map[string]string{
		class + "lo/operstate": "unknown\n", class + "eth0/operstate": "up\n", class + "ovs0/operstate": "up\n", class + "br0/bridge/": "", class + "br0/lower_eth0/": "",
		class + "docker0/bridge/": "", class + "docker0/lower_veth1/": "",
	}, map[string]string{class + "eth0/device": "../../../0000:01:00.0"})
	lo := newLink("lo", 65536, "127.0.0.1/8", "::1/128", "10.255.0.5/32")
	lo.Flags |= net.FlagLoopback
	links := []link{lo, newLink("eth0", 1500, "10.0.0.100/24", "10.0.0.5/24", "fe80::5/64", "fd00::5/64"), newLink("ovs0", 1500, "10.2.0.5/24"), newLink("br0", 1500, "10.3.0.5/24"), newLink("docker0", 1500, "172.17.0.1/16")}
	var got []string
	for _, a := range addresses(h.Apart(), links) {
		got = append(got, a.String())
	}
	if diff := cmp.Diff([]string{"10.255.0.5", "10.0.0.100", "10.0.0.5", "fd00::5", "10.2.0.5", "10.3.0.5"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"eth0", "br0"}, planeNames(planes(h.Apart(), links))); diff != "" {
		t.Errorf("planes (-want +got):\n%s", diff)
	}
}

func planeNames(list []sweep.Plane) (names []string) {
	for _, p := range list {
		names = append(names, p.Name)
	}
	return names
}

// Rails are the active ports, with the address to use.
func TestRails(t *testing.T) {
	t.Parallel()
	const class = "sys/class/infiniband/"
	files := map[string]string{}
	port := func(device, state, layer string) {
		dir := class + device + "/ports/1/"
		files[dir+"state"], files[dir+"phys_state"], files[dir+"rate"], files[dir+"link_layer"] = state, "5: LinkUp", "400 Gb/sec (4X NDR)", layer
	}
	port("mlx5_0", "4: ACTIVE", "InfiniBand")
	port("mlx5_1", "1: DOWN", "InfiniBand")
	port("mlx5_2", "4: ACTIVE", "Ethernet")
	port("mlx5_3", "4: ACTIVE", "Ethernet")
	port("efa_0", "4: ACTIVE", "Unspecified")
	for i, g := range []struct{ id, kind string }{
		{"fe80:0000:0000:0000:b83f:d203:00c5:1a03", "RoCE v2"}, {"0000:0000:0000:0000:0000:ffff:0a01:0005", "IB/RoCE v1"},
		{"fd00:0000:0000:0000:0000:0000:0000:0005", "RoCE v2"}, {"0000:0000:0000:0000:0000:ffff:0a01:0005", "RoCE v2"},
	} {
		number := string(rune('0' + i))
		dir := class + "mlx5_2/ports/1/"
		files[dir+"gids/"+number], files[dir+"gid_attrs/types/"+number], files[dir+"gid_attrs/ndevs/"+number] = g.id, g.kind, "eth2"
		if i < 3 {
			dir = class + "mlx5_3/ports/1/"
			files[dir+"gids/"+number], files[dir+"gid_attrs/types/"+number], files[dir+"gid_attrs/ndevs/"+number] = g.id, g.kind, "eth3"
		}
	}
	devices := map[string]string{}
	for _, device := range []string{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "efa_0"} {
		devices[class+device+"/device"] = "../../../0000:c" + device[len(device)-1:] + ":00.0"
	}
	want := []sweep.Rail{
		{Name: "mlx5_0:1", Layer: "InfiniBand", GID: -1, Speed: 400},
		{Name: "mlx5_2:1", Layer: "Ethernet", GID: 3, Speed: 400, Left: "Ethernet beside InfiniBand"},
		{Name: "mlx5_3:1", Layer: "Ethernet", GID: 2, Speed: 400, Left: "Ethernet beside InfiniBand"},
	}
	if diff := cmp.Diff(want, rails(newNode(t, files, devices), nil)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := rails(newNode(t, nil, nil), nil); len(got) != 0 {
		t.Errorf("without RDMA: %v", got)
	}
}

// A port that no job uses says why, as the checks of ports know it. The others do not.
func TestRailRoles(t *testing.T) {
	t.Parallel()
	managers, managed := fakesys.Kinds()["dgx-b200, NVSwitch managers"], map[string]string{}
	for i := range 4 {
		device := fmt.Sprintf("ibp160s0f%d", i)
		managers.Set(device, "ports/1/state", "4: ACTIVE")
		managed[device+":1"] = "manages NVSwitches"
	}
	b200 := func(string, string, int) *checks.Platform {
		return &checks.Platform{NVSwitchGPUs: 8, NVLinkBandwidth: 53125}
	}
	for name, tt := range map[string]struct {
		node *fakesys.Node
		jobs int // ports of jobs
		left map[string]string
	}{
		"DGX H100":        {fakesys.DGXH100(), 8, map[string]string{}},
		"RoCE":            {fakesys.RoCE(), 8, map[string]string{}},
		"Azure":           {fakesys.NDH100v5(), 8, map[string]string{"mlx5_an0:1": "the default route"}},
		"storage as well": {fakesys.DGXH200(), 10, map[string]string{}},
		"NVSwitches":      {managers, 8, managed},
		"BlueField":       {fakesys.GB200(), 4, map[string]string{"mlx5_2:1": "the default route", "mlx5_5:1": "Ethernet beside InfiniBand"}},
	} {
		root := t.TempDir()
		if err := tt.node.Write(root); err != nil {
			t.Fatal(err)
		}
		jobs, left := 0, map[string]string{}
		for _, r := range rails(probe.NewHost(root), b200) {
			if r.Left == "" {
				jobs++
			} else {
				left[r.Name] = r.Left
			}
		}
		if diff := cmp.Diff(tt.left, left); diff != "" || jobs != tt.jobs {
			t.Errorf("%s: %d ports of jobs, want %d (-want +got):\n%s", name, jobs, tt.jobs, diff)
		}
	}
}

// The server, and what the PCIe link of each port is made for: a link with fewer lanes than both ends have does not
// lower it, an older slot does.
func TestHostFacts(t *testing.T) {
	t.Parallel()
	n := fakesys.New()
	n.Files["sys/class/dmi/id/product_name"] = "PowerEdge  XE9680\n"
	n.Files["proc/cpuinfo"] = "processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz\n"
	own := map[string]string{}
	for i, speed := range []string{"16.0 GT/s PCIe", "32.0 GT/s PCIe"} {
		at, slot := fmt.Sprintf("0000:2%d:00.0", i), fmt.Sprintf("0000:1%d:01.0", i)
		n.AddHCA(fakesys.HCA{PCI: fakesys.PCI{Address: at, Above: []string{slot}, ID: "15b3:1021", Speed: "32.0 GT/s PCIe", Width: 16}, Name: fmt.Sprintf("mlx5_%d", i), Layer: "InfiniBand", Rate: "400 Gb/sec (4X NDR)"})
		own[slot+"/max_link_speed"], own[at+"/current_link_width"] = speed, "8"
	}
	root := t.TempDir()
	if err := n.Write(root); err != nil {
		t.Fatal(err)
	}
	for file, value := range own {
		if err := os.WriteFile(filepath.Join(root, "sys/bus/pci/devices", file), []byte(value+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h := probe.NewHost(root)
	if got := hostModel(h); got != "PowerEdge XE9680, Some CPU @ 2.00GHz" {
		t.Errorf("host %q", got)
	}
	var got []int
	for _, r := range rails(h, func(string, string, int) *checks.Platform { return nil }) {
		got = append(got, r.PCIe)
	}
	if diff := cmp.Diff([]int{230, 460}, got); diff != "" {
		t.Errorf("PCIe (-want +got):\n%s", diff)
	}
	if got := hostModel(newNode(t, nil, nil)); got != "" {
		t.Errorf("an unknown host is %q", got)
	}
}

func TestGPUs(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for _, a := range []string{"0000:c1:00.0", "0000:c2:00.0"} {
		files["proc/driver/nvidia/gpus/"+a+"/information"] = "Model: \t\t NVIDIA H100 80GB HBM3\nDevice Minor: \t 0\n"
	}
	for visible, closed := range map[string]int{
		"unset": 0, "": 2, "NoDevFiles": 2, "0": 1, "0,1": 0, "GPU-5d6f2a1e,GPU-5d6f2a1f": 0, "MIG-5d6f2a1e": 0,
	} {
		env := func(string) (string, bool) { return visible, visible != "unset" }
		want := gpuList{[]string{"NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"}, closed}
		if diff := cmp.Diff(want, gpus(newNode(t, files, nil), env), cmp.AllowUnexported(gpuList{})); diff != "" {
			t.Errorf("CUDA_VISIBLE_DEVICES %q (-want +got):\n%s", visible, diff)
		}
		if got := gpus(newNode(t, nil, nil), env); len(got.models) != 0 || got.closed > 0 {
			t.Errorf("without GPUs: %v", got)
		}
	}
}

func TestLeaf(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ address, pattern, want string }{
		{"root.leaf1.gpu01", "switch.switch.node", "leaf1"}, {"leaf2.gpu01", "switch.node", "leaf2"}, {"gpu01", "node", ""}, {"", "", ""},
		{"b1.gpu01", "block.node", ""}, {"a.b.c", "switch.node", ""},
	} {
		if got := leaf(tt.address, tt.pattern); got != tt.want {
			t.Errorf("%s is %q, want %q", tt.address, got, tt.want)
		}
	}
}

// This machine can be described, whatever it has.
func TestDescribe(t *testing.T) {
	t.Parallel()
	n, own, silent := describe(probe.NewHost(""), "gpu01", nil)
	if n.Name != "gpu01" || len(silent) > 0 {
		t.Errorf("%+v, silent: %v", n, silent)
	}
	for _, p := range n.Planes {
		if p.MTU == 0 || !p.Address.IsValid() || p.Name == "lo" {
			t.Errorf("%+v", p)
		}
	}
	for _, p := range n.Planes {
		if !slices.Contains(own, p.Address.Addr()) && !isBridge(probe.NewHost(""), p.Name) {
			t.Errorf("%v is not among the addresses %v", p.Address, own)
		}
	}
	if n, _, _ := describe(probe.NewHost(""), "", nil); n.Name == "" {
		t.Error("the node has no name")
	}
}

// A part of the description that does not answer does not delay the others.
func TestAwait(t *testing.T) {
	t.Parallel()
	limit := time.After(time.Millisecond)
	if _, ok := await(ask(func() int { select {} }), limit); ok {
		t.Error("an answer of a call that blocks")
	}
	answer := make(chan int, 1)
	answer <- 7
	if n, ok := await(answer, limit); !ok || n != 7 { // the limit has passed
		t.Error(n, ok)
	}
}

func TestPlaneAndRail(t *testing.T) {
	t.Parallel()
	n := &node{Node: sweep.Node{Name: "a", Planes: []sweep.Plane{
		{Name: "eth0", Address: netip.MustParsePrefix("10.0.0.5/24")}, {Name: "eth1", Address: netip.MustParsePrefix("10.1.0.5/24")},
	}, Rails: []sweep.Rail{{Name: "mlx5_0:1"}}}}
	for _, tt := range []struct{ towards, name, want string }{
		{"", "", "eth0"}, {"10.1.0.5", "", "eth1"}, {"10.1.0.5", "eth0", "eth0"}, {"", "10.1.0.0/24", "eth1"}, {"", "10.1.0.9/24", "eth1"},
		{"", "eth2", ""}, {"", "10.2.0.0/24", ""}, {"", "10.1.0.0/16", ""}, {"192.0.2.1", "", "eth0"},
		{"", "ens1/eth1", "eth1"}, {"", "ens1/eth", ""},
	} {
		n.towards, _ = netip.ParseAddr(tt.towards)
		p, err := n.plane(tt.name)
		if p.Name != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%+v: %s, %v", tt, p.Name, err)
		}
	}
	if r, err := n.rail("mlx5_0:1"); err != nil || r.Name != "mlx5_0:1" {
		t.Error(r, err)
	}
	if _, err := n.rail("mlx5_9:1"); err == nil {
		t.Error("a rail that does not exist")
	}
	if _, err := (&node{}).plane(""); err == nil {
		t.Error("a plane that does not exist")
	}
}

// NCCL gets the interface that has the address by which the node reaches the launcher, and no other one.
func TestTowardsBy(t *testing.T) {
	t.Parallel()
	n := &node{Node: sweep.Node{Planes: []sweep.Plane{{Name: "eth0", Address: netip.MustParsePrefix("10.0.0.5/24")}, {Name: "eth1", Address: netip.MustParsePrefix("10.1.0.5/24")}, {Name: "eth2"}}}}
	lo := newLink("lo", 65536, "127.0.0.1/8", "10.9.0.5/32")
	lo.Flags |= net.FlagLoopback
	links := []link{lo, newLink("eth0", 1500, "10.0.0.5/24"), newLink("eth1", 1500, "10.1.0.5/24", "fd00::5/64", "10.3.0.5/24"), newLink("br0", 1500, "10.2.0.5/24")}
	for towards, want := range map[string]string{"10.0.0.5": "eth0", "10.1.0.5": "eth1", "fd00::5": "eth1", "10.3.0.5": "eth1", "10.2.0.5": "br0", "10.9.0.5": "", "192.0.2.1": "", "": ""} {
		n.towards, _ = netip.ParseAddr(towards)
		if got := n.towardsBy(func() []link { return links }); got != want {
			t.Errorf("%q: got %q, want %q", towards, got, want)
		}
	}
}
