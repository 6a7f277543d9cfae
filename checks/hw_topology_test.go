package checks

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// hgxNetwork is the platform of the nodes of fakesys, with its network.
func hgxNetwork() *Platform {
	p := hgx()
	p.NVSwitchGPUs, p.NetworkPorts, p.NetworkGPUs, p.GPUNetwork = 8, 8, 1, NearRootPort
	return p
}

// topologyFinding is about a GPU, or the adapter or disk beside it.
func topologyFinding(kind string, i int, f Finding, text string) Finding {
	serial, uuid := fmt.Sprintf("165%07d", i), fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i)
	f.Device = map[string]Device{
		"gpu":  {Kind: "gpu", Name: fmt.Sprintf("gpu%d", i), PCI: fakenvml.Address(i), Serial: serial, UUID: uuid},
		"hca":  {Kind: "hca", Name: fmt.Sprintf("mlx5_%d", i), PCI: fakesys.HCAAddress(i)},
		"nvme": {Kind: "nvme", PCI: fakesys.NVMeAddress(i)},
		"gone": {Kind: "gpu", PCI: fakenvml.Address(i), Serial: serial, UUID: uuid},
	}[kind]
	f.Message = hwTopologyName + ":  " + f.Device.String() + ": " + text + wantGot(f)
	return f
}

// The text that is said of two devices.
const (
	oneRoot, oneSwitch = "a root port in common", "a PCIe switch in common"
	oneHost, oneNode   = "a PCIe host bridge in common", "a NUMA node in common"
)

// rail is the bridges above GPU and adapter i, for tests that move others there.
func railBridges(i int, port string) []string {
	return []string{fmt.Sprintf("0000:%02x:01.0", 0x30+i), fmt.Sprintf("0000:%02x:00.0", 0x50+i), fmt.Sprintf("0000:%02x:%s.0", 0x60+i, port)}
}

// noSwitches takes the switches away, as a virtual machine does.
func noSwitches(n *fakesys.Node) {
	for i := range 8 {
		n.Move(fakenvml.Address(i), fmt.Sprintf("0000:%02x:05.0", 0x30+i))
		n.Move(fakesys.HCAAddress(i), fmt.Sprintf("0000:%02x:06.0", 0x30+i))
	}
}

// onNUMA puts all GPUs and adapters on a NUMA node.
func onNUMA(n *fakesys.Node, node string) {
	for i := range 8 {
		n.Set(fakenvml.Address(i), "numa_node", node).Set(fakesys.HCAAddress(i), "numa_node", node)
	}
}

func TestHWTopology(t *testing.T) { testCheck(t, "check_hw_topology") }

var _ = table("check_hw_topology", func(name string) (list []scenario) {
	moved := func(n *fakesys.Node) { n.Move(fakesys.HCAAddress(3), "0000:33:02.0") }
	far := func(severity Severity) Finding {
		return topologyFinding("gpu", 3, Finding{Code: "topology.far", Severity: severity, Remedy: ReseatOrRMA, Want: oneRoot, Got: oneHost}, "its adapter should be mlx5_3 0000:23:00.0, which is near to no GPU")
	}
	none := onFabric("no GPU", nil, func(n *fakesys.Node) {
		for i := range 8 {
			n.Set(fakenvml.Address(i), "class", "0x088000")
		}
	}, Finding{Code: "topology.none", Severity: Skip, Message: name + ":  no GPU on this node"})
	noRDMA := onNode(fakesys.EthernetOnly(), "no adapter", of("-l", "numa"), Finding{Code: "ib.none", Severity: Skip, Message: name + ":  no RDMA device on this node"})
	list = append(list,
		onFabric("healthy", nil, nil), onRoCE("healthy, RoCE", nil, nil), onFabric("healthy, as the platform says", nil, nil).on(hgxNetwork()),
		onFabric("healthy, as wanted", of("-l", "switch", "-g", "1"), nil).orTable(map[string]any{"level": "switch", "gpus_per_nic": int64(1)}),
		onFabric("anything will do", of("-l", "system"), moved).on(hgxNetwork()).as(far(Warn), false),
		onFabric("an adapter is in another slot", of("-l", "root-port"), moved, far(Fail)),
		onFabric("an adapter is in another slot than that of the platform", nil, moved, far(Warn)).on(hgxNetwork()),
		onFabric("an adapter is in another slot than its peers", nil, moved, far(Warn)),
		onFabric("two adapters are in other slots, as the node was built", nil, func(n *fakesys.Node) {
			moved(n)
			n.Move(fakesys.HCAAddress(5), "0000:35:02.0")
		}),
		onFabric("near enough", of("-l", "numa"), moved),
		asIs(onFabric("an adapter is missing", of("-l", "switch"), func(n *fakesys.Node) { n.Remove(fakesys.HCAAddress(3)) },
			topologyFinding("gpu", 3, Finding{Code: "topology.far", Severity: Fail, Remedy: ReseatOrRMA, Want: oneSwitch, Got: oneNode}, "no adapter is near to it, the nearest is mlx5_0 0000:20:00.0"))),
		asIs(onFabric("a GPU is in another slot", of("-g", "1"), func(n *fakesys.Node) { n.Move(fakenvml.Address(3), railBridges(2, "05")...) },
			topologyFinding("gpu", 3, Finding{Code: "topology.shared", Severity: Fail, Want: "at most 1 GPU", Got: "2"}, "shares adapter mlx5_2 0000:22:00.0 with gpu2"))),
		asIs(onFabric("a GPU shares an adapter, unlike the platform", nil, func(n *fakesys.Node) { n.Move(fakenvml.Address(3), railBridges(2, "05")...) },
			topologyFinding("gpu", 3, Finding{Code: "topology.shared", Severity: Warn, Want: "at most 1 GPU", Got: "2"}, "shares adapter mlx5_2 0000:22:00.0 with gpu2")).on(hgxNetwork())),
		none, noRDMA,
	)
	list = append(list, unreadTopology(), blurredTopology())
	list = append(list, hiddenTopologies()...)
	list = append(list, numaTopologies()...)
	list = append(list, otherTopologies()...)
	return list
})

// as sets what is wanted, none if it is not.
func (s scenario) as(f Finding, wanted bool) scenario {
	if s.want = nil; wanted {
		s.want = []Finding{f}
	}
	return s
}

// unreadTopology has an adapter without a port that can be read: whether it is near
// to its GPU nobody knows.
func unreadTopology() scenario {
	s := onFabric("an adapter that cannot be read", of("-l", "switch"), func(n *fakesys.Node) {
		dir := n.Dir("mlx5_3") + "/ports"
		maps.DeleteFunc(n.Files, func(p, _ string) bool { return strings.HasPrefix(p, dir+"/") })
		n.Files[dir] = ""
	})
	f := hcaFinding(hwTopologyName, "mlx5_3", 3, Finding{Code: "ib.error", Severity: Unknown, Got: "-"}, "could not tell: read /sys/class/infiniband/mlx5_3/ports: not a directory")
	f.Got, f.Message = "", strings.TrimSuffix(f.Message, ", got -")
	s.want, s.broken, s.unitOnly = []Finding{f}, true, true
	return s
}

// blurredTopology has one GPU and one adapter of which not all is known: neither is
// said to be far.
func blurredTopology() scenario {
	unreadable := func(n *fakesys.Node, address string) {
		n.Set(address, "numa_node", "-").Set(address, "numa_node/", "")
	}
	s := onFabric("NUMA nodes that cannot be read, where they matter", of("-l", "numa"), func(n *fakesys.Node) {
		noSwitches(n)
		for i := range 4 {
			n.Move(fakesys.HCAAddress(i), fmt.Sprintf("0000:f%d:01.0", i))
			unreadable(n, fakesys.HCAAddress(i))
		}
	})
	s.broken, s.unitOnly = true, true
	for i := range 4 {
		f := hcaFinding(hwTopologyName, fmt.Sprintf("mlx5_%d", i), i, Finding{Code: "ib.error", Severity: Unknown, Got: "-"}, fmt.Sprintf("could not tell: read /sys/bus/pci/devices/%s/numa_node: is a directory", fakesys.HCAAddress(i)))
		f.Got, f.Message = "", strings.TrimSuffix(f.Message, ", got -")
		s.want = append(s.want, f)
	}
	return s
}

func hiddenTopologies() []scenario {
	const name = hwTopologyName
	hidden := func(severity Severity, want string) Finding {
		return Finding{Code: "topology.hidden", Severity: severity, Want: want, Message: name + ":  no PCIe switch is to be seen on this node: cannot tell what GPUs and adapters have in common"}
	}
	farNode := topologyFinding("gpu", 3, Finding{Code: "topology.far", Severity: Warn, Remedy: ReseatOrRMA, Want: oneNode, Got: "nothing but the node in common"}, "no adapter is near to it, the nearest is mlx5_0 0000:20:00.0")
	return []scenario{
		onFabric("a virtual machine", nil, noSwitches).on(hgxNetwork()),
		onFabric("a virtual machine, by NUMA node", of("-l", "numa", "-g", "1"), noSwitches).on(hgxNetwork()),
		onFabric("a virtual machine, asked for switches", of("-l", "switch"), noSwitches, hidden(Unknown, oneSwitch)),
		onFabric("a virtual machine that shows nothing", nil, func(n *fakesys.Node) { noSwitches(n); onNUMA(n, "-1") }, hidden(Skip, oneRoot)).on(hgxNetwork()),
		asIs(onFabric("a virtual machine with a GPU on a NUMA node of its own", nil, func(n *fakesys.Node) {
			noSwitches(n)
			n.Move(fakenvml.Address(3), "0000:ee:01.0").Set(fakenvml.Address(3), "numa_node", "3")
		}, farNode).on(hgxNetwork())),
	}
}

func numaTopologies() []scenario {
	const name = hwTopologyName
	numa := func(kind string, i int, want, got, text string) Finding {
		return topologyFinding(kind, i, Finding{Code: "topology.numa", Severity: Warn, Want: want, Got: got}, text)
	}
	const peers, untold = "a NUMA node, as its peers have", "its NUMA node is not told"
	cpus := func(n *fakesys.Node, list string) { n.Files["sys/devices/system/node/has_cpu"] = list + "\n" }
	unbalanced := Finding{Code: "topology.unbalanced", Severity: Warn, Want: "2 NUMA nodes", Got: "node 0 alone", Message: name + ":  all 8 GPUs are on one NUMA node, want 2 NUMA nodes, got node 0 alone"}
	nodes := "/sys/devices/system/node/has_cpu"
	garbage := onFabric("garbage for NUMA nodes", nil, func(n *fakesys.Node) { onNUMA(n, "0"); cpus(n, "\xff") },
		Finding{Code: "probe.unreadable", Severity: Unknown, Message: "read " + nodes + ": no list of NUMA nodes"}).on(hgxNetwork())
	gpu := onFabric("a GPU whose NUMA node cannot be read", nil, func(n *fakesys.Node) {
		n.Set(fakenvml.Address(3), "numa_node", "-").Set(fakenvml.Address(3), "numa_node/", "")
	},
		topologyFinding("gpu", 3, Finding{Code: "probe.unreadable", Severity: Unknown}, "could not tell: read /sys/bus/pci/devices/0000:13:00.0/numa_node: is a directory"))
	hcaUnknown := hcaFinding(name, "mlx5_3", 3, Finding{Code: "ib.error", Severity: Unknown, Got: "-"}, "could not tell: read /sys/bus/pci/devices/0000:23:00.0/numa_node: is a directory")
	hcaUnknown.Got, hcaUnknown.Message = "", strings.TrimSuffix(hcaUnknown.Message, ", got -")
	hca := onFabric("an adapter whose NUMA node cannot be read", nil, func(n *fakesys.Node) {
		n.Set(fakesys.HCAAddress(3), "numa_node", "-").Set(fakesys.HCAAddress(3), "numa_node/", "")
	}, hcaUnknown)
	routes := onFabric("unreadable routes", nil, func(n *fakesys.Node) {
		delete(n.Files, "proc/net/route")
		n.Files["proc/net/route/"] = ""
	}, Finding{Code: "probe.unreadable", Severity: Unknown, Message: "read /proc/net/route: is a directory"})
	for _, s := range []*scenario{&garbage, &gpu, &hca, &routes} {
		s.broken = true
	}
	return []scenario{
		onFabric("one GPU has no NUMA node", nil, func(n *fakesys.Node) { n.Set(fakenvml.Address(3), "numa_node", "-1") }, numa("gpu", 3, peers, "", untold)),
		onFabric("one adapter has no NUMA node", nil, func(n *fakesys.Node) { n.Set(fakesys.HCAAddress(3), "numa_node", "-1") }, numa("hca", 3, peers, "", untold)),
		onFabric("garbage for a NUMA node", nil, func(n *fakesys.Node) { n.Set(fakenvml.Address(3), "numa_node", "\xff") }, numa("gpu", 3, peers, "", untold)),
		onFabric("a machine with one NUMA node", nil, func(n *fakesys.Node) { onNUMA(n, "-1") }).on(hgxNetwork()),
		asIs(onFabric("one GPU is on another NUMA node than its root port", nil, func(n *fakesys.Node) { n.Set(fakenvml.Address(3), "numa_node", "1") },
			numa("gpu", 3, "NUMA node 0", "1", "is below root port 0000:33:01.0 with mlx5_3 0000:23:00.0"))),
		asIs(onFabric("one adapter is on another NUMA node than its root port", nil, func(n *fakesys.Node) { n.Set(fakesys.HCAAddress(3), "numa_node", "1") },
			numa("hca", 3, "NUMA node 0", "1", "is below root port 0000:33:01.0 with gpu3 0000:13:00.0"))),
		asIs(onFabric("one of the two is on another NUMA node, and the root port tells none", nil, func(n *fakesys.Node) {
			n.Set("0000:33:01.0", "numa_node", "-1").Set(fakesys.HCAAddress(3), "numa_node", "1")
		}, about(name, Device{Kind: "bridge", PCI: "0000:33:01.0"}, Finding{Code: "topology.numa", Severity: Warn, Want: "one NUMA node below one root port"},
			"gpu3 0000:13:00.0 on NUMA node 0, mlx5_3 0000:23:00.0 on NUMA node 1"))),
		asIs(onFabric("one adapter is on another NUMA node than two GPUs", nil, func(n *fakesys.Node) {
			n.Move(fakenvml.Address(2), railBridges(3, "05")...).Move(fakesys.HCAAddress(2), railBridges(3, "06")...)
			n.Set(fakesys.HCAAddress(3), "numa_node", "1")
		}, numa("hca", 3, "NUMA node 0", "1", "is below root port 0000:33:01.0 with mlx5_2 0000:22:00.0"))),
		onFabric("all GPUs on one NUMA node", nil, func(n *fakesys.Node) { onNUMA(n, "0"); cpus(n, "0-1") }, unbalanced).on(hgxNetwork()),
		onFabric("all GPUs on one NUMA node, of one", nil, func(n *fakesys.Node) { onNUMA(n, "0"); cpus(n, "0") }).on(hgxNetwork()),
		onFabric("all GPUs on one NUMA node, nobody knows of how many", nil, func(n *fakesys.Node) { onNUMA(n, "0") }).on(hgxNetwork()),
		garbage, gpu, hca, routes,
	}
}

// otherTopologies are healthy nodes of other kinds.
func otherTopologies() (list []scenario) {
	grace := &Platform{Name: "GB200", NetworkPorts: 4, NetworkGPUs: 1, GPUNetwork: NearNUMA}
	alone := topologyFinding("hca", 0, Finding{Code: "topology.numa", Severity: Warn, Want: "NUMA node 0", Got: "1"}, "is below root port 0000:30:02.0")
	list = append(list, onNode(fakesys.GB200().Set(fakesys.HCAAddress(0), "numa_node", "1"), "one adapter is on another NUMA node than the root port that it has for itself", nil, alone).on(grace))
	wrong := Finding{Code: "topology.numa", Severity: Warn, Want: "NUMA node 0", Got: "3"}
	list = append(list, onNode(fakesys.RoCE().Set(fakesys.HCAAddress(3), "numa_node", "3"), "one RoCE adapter is on a NUMA node without a GPU", nil,
		about(hwTopologyName, Device{Kind: "hca", Name: "rocep3s0", PCI: fakesys.HCAAddress(3)}, wrong, "is below root port 0000:33:01.0 with gpu3 0000:13:00.0")).on(hgxNetwork()))
	for name, n := range map[string]struct {
		sys *fakesys.Node
		on  *Platform
	}{
		"DGX H200": {fakesys.DGXH200(), hgxNetwork()}, "DGX A100": {fakesys.DGXA100(), hgxNetwork()}, "HGX B200": {fakesys.HGXB200(), hgxNetwork()},
		"ND H100 v5": {fakesys.NDH100v5(), hgxNetwork()}, "GB200": {fakesys.GB200(), grace}, "a CX8 node": {fakesys.CX8(), hgxNetwork()},
	} {
		list = append(list, onNode(n.sys, name, nil).on(n.on))
	}
	return append(list, onNode(fakesys.New(), "an empty node", nil, Finding{Code: "topology.none", Severity: Skip, Message: hwTopologyName + ":  no GPU on this node"}))
}

func TestTopologyWords(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]string{
		"-l socket": `bad value "socket", want switch, root-port, numa, system`, "-g -1": `bad value "-1", want a number of GPUs`,
		"-g x": `bad value "x", want a whole number`, "a b": `surplus argument "b", want at most 1`,
	} {
		err := Bind(new(hwTopology), strings.Fields(words))
		if usage := new(UsageError); !errors.As(err, &usage) || err.Error() != want {
			t.Errorf("%s: %v, want %s", words, err, want)
		}
	}
	if err := BindTable(new(hwTopology), map[string]any{"level": "socket"}); err == nil {
		t.Error("a table with another level")
	}
}

// What two devices have in common.
func TestNear(t *testing.T) {
	t.Parallel()
	at := func(numa int, pci string, bridges ...string) *Located {
		return &Located{PCI: pci, NUMA: numa, Bridges: bridges}
	}
	const root, up = "0000:c0:01.0", "0000:c1:00.0"
	gpu := at(1, "0000:c4:00.0", root, up, "0000:c2:00.0")
	for _, c := range []struct {
		to   *Located
		want string
	}{
		{at(1, "0000:c5:00.0", root, up, "0000:c2:01.0"), "PIX"},
		{at(1, "0000:c1:00.1", root, up), "PIX"}, // a function of the switch itself
		{at(1, "0000:c8:00.0", root, up, "0000:c2:02.0", "0000:c6:00.0", "0000:c7:00.0"), "PXB"},
		{at(0, "0000:c9:00.0", root), "PXB"},
		{at(1, "0000:d0:00.0", "0000:c0:02.0"), "PHB"},
		{at(1, "0000:c0:1f.0"), "PHB"},
		{at(1, "0000:e1:00.0", "0000:e0:01.0"), "NODE"},
		{at(0, "0000:01:00.0", "0000:00:01.0"), "SYS"},
		{at(1, ""), "SYS"}, {at(0, "garbage"), "SYS"},
	} {
		if got, back := gpu.near(c.to), c.to.near(gpu); got.String() != c.want || back != got {
			t.Errorf("%+v: %s and %s, want %s", c.to, got, back, c.want)
		}
	}
}

// One pass reads all: the second costs nothing but thought.
func BenchmarkTopology(b *testing.B) {
	root := b.TempDir()
	if err := fakesys.DGXH200().Write(root); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		env := &Env{Host: probe.NewHost(root), Platform: func(string, string, int) *Platform { return hgxNetwork() }}
		if got := new(hwTopology).Run(b.Context(), env); len(got) > 0 {
			b.Fatal(got)
		}
	}
}

// An adapter that is not ready while a node starts is far from nothing yet.
func TestTopologyWhileStarting(t *testing.T) {
	t.Parallel()
	for _, at := range []struct {
		up   int
		job  *Job
		want Severity
	}{{60, nil, Skip}, {60, &Job{Ended: true}, Skip}, {60, &Job{}, Fail}, {300, nil, Fail}} {
		sys := fakesys.Kinds()["booting, one adapter is not ready"].Clone()
		sys.Files["proc/uptime"] = fmt.Sprintf("%d.00 1.00\n", at.up)
		root := t.TempDir()
		if err := sys.Write(root); err != nil {
			t.Fatal(err)
		}
		got := (&hwTopology{Level: NearSwitch}).Run(t.Context(), &Env{Host: probe.NewHost(root), Job: at.job})
		far := slices.ContainsFunc(got, func(f Finding) bool { return f.Code == "topology.far" && f.Severity == Fail })
		if Worst(got) != at.want || far != (at.want == Fail) {
			t.Errorf("%d s after the boot, job %v: %v, want %v", at.up, at.job != nil, got, at.want)
		}
	}
}
