package topology

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// hgxNetwork returns the platform of the nodes of fakesys, with its network.
func hgxNetwork() *checks.Platform {
	p := checktest.Hgx()
	p.NVSwitchGPUs, p.NetworkPorts, p.NetworkGPUs, p.GPUNetwork = 8, 8, 1, checks.NearRootPort
	return p
}

// topologyFinding makes a finding about a GPU, or the adapter or disk near to it.
func topologyFinding(kind string, i int, f checks.Finding, text string) checks.Finding {
	serial, uuid := fmt.Sprintf("165%07d", i), fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i)
	f.Device = map[string]checks.Device{
		"gpu":  {Kind: "gpu", Name: fmt.Sprintf("gpu%d", i), PCI: fakenvml.Address(i), Serial: serial, UUID: uuid},
		"hca":  {Kind: "hca", Name: fmt.Sprintf("mlx5_%d", i), PCI: fakesys.HCAAddress(i)},
		"nvme": {Kind: "nvme", PCI: fakesys.NVMeAddress(i)},
		"gone": {Kind: "gpu", PCI: fakenvml.Address(i), Serial: serial, UUID: uuid},
	}[kind]
	f.Message = hwTopologyName + ":  " + f.Device.String() + ": " + text + checktest.WantGot(f)
	return f
}

// What two devices have in common, in messages.
const (
	oneRoot, oneSwitch = "a root port in common", "a PCIe switch in common"
	oneHost, oneNode   = "a PCIe host bridge in common", "a NUMA node in common"
)

// railBridges returns the bridges above GPU and adapter i, for tests that move other devices there.
func railBridges(i int, port string) []string {
	return []string{fmt.Sprintf("0000:%02x:01.0", 0x30+i), fmt.Sprintf("0000:%02x:00.0", 0x50+i), fmt.Sprintf("0000:%02x:%s.0", 0x60+i, port)}
}

// noSwitches removes the switches, as in a virtual machine.
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

func TestHWTopology(t *testing.T) { checktest.Run(t, "check_hw_topology") }

var _ = checktest.Table("check_hw_topology", func(name string) (list []checktest.Scenario) {
	moved := func(n *fakesys.Node) { n.Move(fakesys.HCAAddress(3), "0000:33:02.0") }
	far := func(severity checks.Severity) checks.Finding {
		return topologyFinding("gpu", 3, checks.Finding{Code: "topology.far", Severity: severity, Remedy: checks.ReseatOrRMA, Want: oneRoot, Got: oneHost}, "its adapter should be mlx5_3 0000:23:00.0, which is not near to any GPU")
	}
	allMoved := func(n *fakesys.Node) {
		for i := range 8 {
			n.Move(fakesys.HCAAddress(i), fmt.Sprintf("0000:%02x:02.0", 0x30+i))
		}
	}
	var allFar []checks.Finding
	for i := range 8 {
		f := checks.Finding{Code: "topology.far", Severity: checks.Fail, Remedy: checks.FixConfig, Want: oneRoot, Got: oneHost}
		allFar = append(allFar, topologyFinding("gpu", i, f, fmt.Sprintf("its adapter should be mlx5_%d %s, which is not near to any GPU", i, fakesys.HCAAddress(i))))
	}
	none := checktest.OnFabric("no GPU", nil, func(n *fakesys.Node) {
		for i := range 8 {
			n.Set(fakenvml.Address(i), "class", "0x088000")
		}
	}, checks.Finding{Code: "topology.none", Severity: checks.Skip, Message: name + ":  no GPU on this node"})
	noRDMA := checktest.OnNode(fakesys.EthernetOnly(), "no adapter", checktest.Of("-l", "numa"), checks.Finding{Code: "ib.none", Severity: checks.Skip, Message: name + ":  no RDMA device on this node"})
	list = append(list,
		checktest.OnFabric("healthy", nil, nil), checktest.OnRoCE("healthy, RoCE", nil, nil), checktest.OnFabric("healthy, as on the platform", nil, nil).On(hgxNetwork()),
		checktest.OnFabric("healthy, as wanted", checktest.Of("-l", "switch", "-g", "1"), nil).OrTable(map[string]any{"level": "switch", "gpus_per_nic": int64(1)}),
		as(checktest.OnFabric("any place is accepted", checktest.Of("-l", "system"), moved).On(hgxNetwork()), far(checks.Warn), false),
		checktest.OnFabric("an adapter is in another slot", checktest.Of("-l", "root-port"), moved, far(checks.Fail)),
		checktest.OnFabric("no GPU has an adapter at the wanted level", checktest.Of("-l", "root-port"), allMoved, allFar...),
		checktest.OnFabric("an adapter is in another slot than on the platform", nil, moved, far(checks.Warn)).On(hgxNetwork()),
		checktest.OnFabric("an adapter is in another slot than the others", nil, moved, far(checks.Warn)),
		checktest.OnFabric("two adapters are in other slots, as the node was built", nil, func(n *fakesys.Node) {
			moved(n)
			n.Move(fakesys.HCAAddress(5), "0000:35:02.0")
		}),
		checktest.OnFabric("near enough", checktest.Of("-l", "numa"), moved),
		checktest.AsIs(checktest.OnFabric("an adapter is missing", checktest.Of("-l", "switch"), func(n *fakesys.Node) { n.Remove(fakesys.HCAAddress(3)) },
			topologyFinding("gpu", 3, checks.Finding{Code: "topology.far", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: oneSwitch, Got: oneNode}, "has no near adapter, the nearest is mlx5_0 0000:20:00.0"))),
		checktest.AsIs(checktest.OnFabric("a GPU is in another slot", checktest.Of("-g", "1"), func(n *fakesys.Node) { n.Move(fakenvml.Address(3), railBridges(2, "05")...) },
			topologyFinding("gpu", 3, checks.Finding{Code: "topology.shared", Severity: checks.Fail, Want: "at most 1 GPU", Got: "2"}, "shares adapter mlx5_2 0000:22:00.0 with gpu2"))),
		checktest.AsIs(checktest.OnFabric("a GPU shares an adapter, unlike the platform", nil, func(n *fakesys.Node) { n.Move(fakenvml.Address(3), railBridges(2, "05")...) },
			topologyFinding("gpu", 3, checks.Finding{Code: "topology.shared", Severity: checks.Warn, Want: "at most 1 GPU", Got: "2"}, "shares adapter mlx5_2 0000:22:00.0 with gpu2")).On(hgxNetwork())),
		none, noRDMA,
	)
	list = append(list, unreadTopology(), blurredTopology())
	list = append(list, hiddenTopologies()...)
	list = append(list, numaTopologies()...)
	list = append(list, otherTopologies()...)
	return list
})

// as sets the wanted finding, or none.
func as(s checktest.Scenario, f checks.Finding, wanted bool) checktest.Scenario {
	if s.Want = nil; wanted {
		s.Want = []checks.Finding{f}
	}
	return s
}

// unreadTopology has an adapter with unreadable ports: it is unknown whether it is near to its GPU.
func unreadTopology() checktest.Scenario {
	s := checktest.OnFabric("an adapter that cannot be read", checktest.Of("-l", "switch"), func(n *fakesys.Node) {
		dir := n.Dir("mlx5_3") + "/ports"
		maps.DeleteFunc(n.Files, func(p, _ string) bool { return strings.HasPrefix(p, dir+"/") })
		n.Files[dir] = ""
	})
	f := checktest.HCAFinding(hwTopologyName, "mlx5_3", 3, checks.Finding{Code: "ib.error", Severity: checks.Unknown, Got: "-"}, "cannot be read: read /sys/class/infiniband/mlx5_3/ports: not a directory")
	f.Got, f.Message = "", strings.TrimSuffix(f.Message, ", got -")
	s.Want, s.Broken, s.UnitOnly = []checks.Finding{f}, true, true
	return s
}

// blurredTopology has adapters with unreadable NUMA nodes: no GPU is reported as far.
func blurredTopology() checktest.Scenario {
	unreadable := func(n *fakesys.Node, address string) {
		n.Set(address, "numa_node", "-").Set(address, "numa_node/", "")
	}
	s := checktest.OnFabric("NUMA nodes cannot be read", checktest.Of("-l", "numa"), func(n *fakesys.Node) {
		noSwitches(n)
		for i := range 4 {
			n.Move(fakesys.HCAAddress(i), fmt.Sprintf("0000:f%d:01.0", i))
			unreadable(n, fakesys.HCAAddress(i))
		}
	})
	s.Broken, s.UnitOnly = true, true
	for i := range 4 {
		f := checktest.HCAFinding(hwTopologyName, fmt.Sprintf("mlx5_%d", i), i, checks.Finding{Code: "ib.error", Severity: checks.Unknown, Got: "-"}, fmt.Sprintf("cannot be read: read /sys/bus/pci/devices/%s/numa_node: is a directory", fakesys.HCAAddress(i)))
		f.Got, f.Message = "", strings.TrimSuffix(f.Message, ", got -")
		s.Want = append(s.Want, f)
	}
	return s
}

func hiddenTopologies() []checktest.Scenario {
	const name = hwTopologyName
	hidden := func(severity checks.Severity, want string) checks.Finding {
		return checks.Finding{Code: "topology.hidden", Severity: severity, Want: want, Message: name + ":  the node shows no PCIe switches: cannot judge which GPUs and adapters share one"}
	}
	farNode := topologyFinding("gpu", 3, checks.Finding{Code: "topology.far", Severity: checks.Warn, Remedy: checks.ReseatOrRMA, Want: oneNode, Got: "only the node in common"}, "has no near adapter, the nearest is mlx5_0 0000:20:00.0")
	return []checktest.Scenario{
		checktest.OnFabric("a virtual machine", nil, noSwitches).On(hgxNetwork()),
		checktest.OnFabric("a virtual machine, by NUMA node", checktest.Of("-l", "numa", "-g", "1"), noSwitches).On(hgxNetwork()),
		checktest.OnFabric("a virtual machine, switches wanted", checktest.Of("-l", "switch"), noSwitches, hidden(checks.Unknown, oneSwitch)),
		checktest.OnFabric("a virtual machine without switches and NUMA nodes", nil, func(n *fakesys.Node) { noSwitches(n); onNUMA(n, "-1") }, hidden(checks.Skip, oneRoot)).On(hgxNetwork()),
		checktest.AsIs(checktest.OnFabric("a virtual machine with a GPU on a separate NUMA node", nil, func(n *fakesys.Node) {
			noSwitches(n)
			n.Move(fakenvml.Address(3), "0000:ee:01.0").Set(fakenvml.Address(3), "numa_node", "3")
		}, farNode).On(hgxNetwork())),
	}
}

func numaTopologies() []checktest.Scenario {
	const name = hwTopologyName
	numa := func(kind string, i int, want, got, text string) checks.Finding {
		return topologyFinding(kind, i, checks.Finding{Code: "topology.numa", Severity: checks.Warn, Want: want, Got: got}, text)
	}
	const peers, unknown = "a NUMA node, as other devices have", "its NUMA node is unknown"
	cpus := func(n *fakesys.Node, list string) { n.Files["sys/devices/system/node/has_cpu"] = list + "\n" }
	unbalanced := checks.Finding{Code: "topology.unbalanced", Severity: checks.Warn, Want: "2 NUMA nodes", Got: "only node 0", Message: name + ":  all 8 GPUs are on one NUMA node, want 2 NUMA nodes, got only node 0"}
	nodes := "/sys/devices/system/node/has_cpu"
	garbage := checktest.OnFabric("garbage for NUMA nodes", nil, func(n *fakesys.Node) { onNUMA(n, "0"); cpus(n, "\xff") },
		checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Message: "read " + nodes + ": no list of NUMA nodes"}).On(hgxNetwork())
	gpu := checktest.OnFabric("the NUMA node of a GPU cannot be read", nil, func(n *fakesys.Node) {
		n.Set(fakenvml.Address(3), "numa_node", "-").Set(fakenvml.Address(3), "numa_node/", "")
	},
		topologyFinding("gpu", 3, checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown}, "cannot be read: read /sys/bus/pci/devices/0000:13:00.0/numa_node: is a directory"))
	hcaUnknown := checktest.HCAFinding(name, "mlx5_3", 3, checks.Finding{Code: "ib.error", Severity: checks.Unknown, Got: "-"}, "cannot be read: read /sys/bus/pci/devices/0000:23:00.0/numa_node: is a directory")
	hcaUnknown.Got, hcaUnknown.Message = "", strings.TrimSuffix(hcaUnknown.Message, ", got -")
	hca := checktest.OnFabric("the NUMA node of an adapter cannot be read", nil, func(n *fakesys.Node) {
		n.Set(fakesys.HCAAddress(3), "numa_node", "-").Set(fakesys.HCAAddress(3), "numa_node/", "")
	}, hcaUnknown)
	routes := checktest.OnFabric("unreadable routes", nil, func(n *fakesys.Node) {
		delete(n.Files, "proc/net/route")
		n.Files["proc/net/route/"] = ""
	}, checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /proc/net/route: is a directory"})
	for _, s := range []*checktest.Scenario{&garbage, &gpu, &hca, &routes} {
		s.Broken = true
	}
	return []checktest.Scenario{
		checktest.OnFabric("one GPU has no NUMA node", nil, func(n *fakesys.Node) { n.Set(fakenvml.Address(3), "numa_node", "-1") }, numa("gpu", 3, peers, "", unknown)),
		checktest.OnFabric("one adapter has no NUMA node", nil, func(n *fakesys.Node) { n.Set(fakesys.HCAAddress(3), "numa_node", "-1") }, numa("hca", 3, peers, "", unknown)),
		checktest.OnFabric("garbage for a NUMA node", nil, func(n *fakesys.Node) { n.Set(fakenvml.Address(3), "numa_node", "\xff") }, numa("gpu", 3, peers, "", unknown)),
		checktest.OnFabric("a machine with one NUMA node", nil, func(n *fakesys.Node) { onNUMA(n, "-1") }).On(hgxNetwork()),
		checktest.AsIs(checktest.OnFabric("one GPU is on another NUMA node than its root port", nil, func(n *fakesys.Node) { n.Set(fakenvml.Address(3), "numa_node", "1") },
			numa("gpu", 3, "NUMA node 0", "1", "is below root port 0000:33:01.0 with mlx5_3 0000:23:00.0"))),
		checktest.AsIs(checktest.OnFabric("one adapter is on another NUMA node than its root port", nil, func(n *fakesys.Node) { n.Set(fakesys.HCAAddress(3), "numa_node", "1") },
			numa("hca", 3, "NUMA node 0", "1", "is below root port 0000:33:01.0 with gpu3 0000:13:00.0"))),
		checktest.AsIs(checktest.OnFabric("one of the two is on another NUMA node, the root port's is unknown", nil, func(n *fakesys.Node) {
			n.Set("0000:33:01.0", "numa_node", "-1").Set(fakesys.HCAAddress(3), "numa_node", "1")
		}, checktest.About(name, checks.Device{Kind: "bridge", PCI: "0000:33:01.0"}, checks.Finding{Code: "topology.numa", Severity: checks.Warn, Want: "one NUMA node below one root port"},
			"gpu3 0000:13:00.0 on NUMA node 0, mlx5_3 0000:23:00.0 on NUMA node 1"))),
		checktest.AsIs(checktest.OnFabric("one adapter is on another NUMA node than two GPUs", nil, func(n *fakesys.Node) {
			n.Move(fakenvml.Address(2), railBridges(3, "05")...).Move(fakesys.HCAAddress(2), railBridges(3, "06")...)
			n.Set(fakesys.HCAAddress(3), "numa_node", "1")
		}, numa("hca", 3, "NUMA node 0", "1", "is below root port 0000:33:01.0 with mlx5_2 0000:22:00.0"))),
		checktest.OnFabric("all GPUs on one NUMA node", nil, func(n *fakesys.Node) { onNUMA(n, "0"); cpus(n, "0-1") }, unbalanced).On(hgxNetwork()),
		checktest.OnFabric("all GPUs on the only NUMA node", nil, func(n *fakesys.Node) { onNUMA(n, "0"); cpus(n, "0") }).On(hgxNetwork()),
		checktest.OnFabric("all GPUs on one NUMA node, of an unknown number", nil, func(n *fakesys.Node) { onNUMA(n, "0") }).On(hgxNetwork()),
		garbage, gpu, hca, routes,
	}
}

// otherTopologies returns healthy nodes of other kinds.
func otherTopologies() (list []checktest.Scenario) {
	grace := &checks.Platform{Name: "GB200", NetworkPorts: 4, NetworkGPUs: 1, GPUNetwork: checks.NearNUMA}
	alone := topologyFinding("hca", 0, checks.Finding{Code: "topology.numa", Severity: checks.Warn, Want: "NUMA node 0", Got: "1"}, "is below root port 0000:30:02.0")
	list = append(list, checktest.OnNode(fakesys.GB200().Set(fakesys.HCAAddress(0), "numa_node", "1"), "a single adapter below a root port is on another NUMA node", nil, alone).On(grace))
	wrong := checks.Finding{Code: "topology.numa", Severity: checks.Warn, Want: "NUMA node 0", Got: "3"}
	list = append(list, checktest.OnNode(fakesys.RoCE().Set(fakesys.HCAAddress(3), "numa_node", "3"), "one RoCE adapter is on a NUMA node without a GPU", nil,
		checktest.About(hwTopologyName, checks.Device{Kind: "hca", Name: "rocep3s0", PCI: fakesys.HCAAddress(3)}, wrong, "is below root port 0000:33:01.0 with gpu3 0000:13:00.0")).On(hgxNetwork()))
	for name, n := range map[string]struct {
		sys *fakesys.Node
		on  *checks.Platform
	}{
		"DGX H200": {fakesys.DGXH200(), hgxNetwork()}, "DGX A100": {fakesys.DGXA100(), hgxNetwork()}, "HGX B200": {fakesys.HGXB200(), hgxNetwork()},
		"ND H100 v5": {fakesys.NDH100v5(), hgxNetwork()}, "GB200": {fakesys.GB200(), grace}, "a CX8 node": {fakesys.CX8(), hgxNetwork()},
	} {
		list = append(list, checktest.OnNode(n.sys, name, nil).On(n.on))
	}
	return append(list, checktest.OnNode(fakesys.New(), "an empty node", nil, checks.Finding{Code: "topology.none", Severity: checks.Skip, Message: hwTopologyName + ":  no GPU on this node"}))
}

func TestTopologyWords(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]string{
		"-l socket": `bad value "socket", want switch, root-port, numa, system`, "-g -1": `bad value "-1", want a number of GPUs`,
		"-g x": `bad value "x", want a whole number`, "a b": `unexpected argument "b", want at most 1`,
	} {
		err := checks.Bind(new(hwTopology), strings.Fields(words))
		if usage := new(checks.UsageError); !errors.As(err, &usage) || err.Error() != want {
			t.Errorf("%s: %v, want %s", words, err, want)
		}
	}
	if err := checks.BindTable(new(hwTopology), map[string]any{"level": "socket"}); err == nil {
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
		if got, back := gpu.Near(c.to), c.to.Near(gpu); got.String() != c.want || back != got {
			t.Errorf("%+v: %s and %s, want %s", c.to, got, back, c.want)
		}
	}
}

// The second reading of the topology is cheap.
func BenchmarkTopology(b *testing.B) {
	root := b.TempDir()
	if err := fakesys.DGXH200().Write(root); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		env := &checks.Env{Host: probe.NewHost(root), Platform: func(string, string, int) *checks.Platform { return hgxNetwork() }}
		if got := new(hwTopology).Run(b.Context(), env); len(got) > 0 {
			b.Fatal(got)
		}
	}
}

// An adapter that is not ready soon after boot is not a failure yet.
func TestTopologyWhileStarting(t *testing.T) {
	t.Parallel()
	for _, at := range []struct {
		up   int
		job  *checks.Job
		want checks.Severity
	}{{60, nil, checks.Skip}, {60, &checks.Job{Ended: true}, checks.Skip}, {60, &checks.Job{}, checks.Fail}, {300, nil, checks.Fail}} {
		sys := fakesys.Kinds()["booting, one adapter is not ready"].Clone()
		sys.Files["proc/uptime"] = fmt.Sprintf("%d.00 1.00\n", at.up)
		root := t.TempDir()
		if err := sys.Write(root); err != nil {
			t.Fatal(err)
		}
		got := (&hwTopology{Level: checks.NearSwitch}).Run(t.Context(), &checks.Env{Host: probe.NewHost(root), Job: at.job})
		far := slices.ContainsFunc(got, func(f checks.Finding) bool { return f.Code == "topology.far" && f.Severity == checks.Fail })
		if checks.Worst(got) != at.want || far != (at.want == checks.Fail) {
			t.Errorf("%d s after the boot, job %v: %v, want %v", at.up, at.job != nil, got, at.want)
		}
	}
}
