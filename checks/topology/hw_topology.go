package topology

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"cmp"
	"maps"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/fabric"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// hwTopology checks how GPUs, adapters of the network and NUMA nodes lie to each
// other, by /sys. Each GPU has an adapter near to it: below one PCIe switch, below
// one root port, or on one NUMA node, as -l says, and -g GPUs at most share one;
// what is otherwise fails. Without -l the node's platform says it where the node
// has as many adapters as that has at best; of others one GPU is found that has no
// near adapter where all the rest have; these only warn, as does a NUMA node that
// cannot be true: one that is not told where others are, one that devices below
// one root port do not share, all GPUs of a board with NVSwitches on one of
// several. A virtual machine shows no switches, and is judged by NUMA nodes.
//
// FILE is a topology of NCCL's (NCCL_TOPO_FILE, as Azure has them for its virtual
// machines, or what NCCL_TOPO_DUMP_FILE has left on a good node) or one that lstopo
// wrote (lstopo --of xml FILE). Each GPU, adapter and NVMe disk in it has to be
// there, on its NUMA node, below its bridges as far as the node has them, and with
// as many lanes. What is there and not in it is warned of. NCCL writes NUMA node 0
// where the kernel tells none. AzureHPC's check_hw_topology is this with the FILE
// of its machine; it compares addresses and NUMA nodes.
//
//	gpu* || check_hw_topology
//	gpu* || check_hw_topology -l root-port -g 1
//	nd*  || check_hw_topology /opt/microsoft/ndv5-topo.xml
type hwTopology struct {
	Level string `opt:"l" toml:"level"`        // what a GPU and its adapter have in common: switch, root-port, numa, system (anything)
	Share int    `opt:"g" toml:"gpus_per_nic"` // most GPUs that share an adapter
	File  string `arg:"1" toml:"file"`         // the topology that the node should have
}

const hwTopologyName = "check_hw_topology"

func init() {
	checks.Register(checks.Info{
		Name:    hwTopologyName,
		Usage:   "[-l LEVEL] [-g GPUS] [FILE]",
		Summary: "GPUs, adapters and NUMA nodes lie to each other as they should",
		Lane:    checks.Local,
		New:     func() checks.Check { return &hwTopology{} },
		Do: func() map[string]string {
			return map[string]string{
				"topology.none":       "Nothing: the node has no GPU on its PCI bus. If it should have some say so: check_gpu_count N.",
				"topology.hidden":     "The node shows no PCIe switch, as a virtual machine does not: ask for less, check_hw_topology -l numa, or give the FILE of this kind of machine.",
				"topology.far":        "nhc-gpu topo prints the map. An adapter is missing, or in another slot than on other nodes of this kind: see check_ib_count, lspci -tv. If the node was built so, say so: -l system.",
				"topology.shared":     "nhc-gpu topo prints the map. An adapter is missing, or in another slot than on other nodes of this kind. If the node was built so, say so with -g.",
				"topology.numa":       "The firmware tells a wrong NUMA node: compare the BIOS version and its NUMA settings (SNC, NPS) with those of other nodes; of a virtual machine see its definition, and numa=off on the kernel's command line.",
				"topology.unbalanced": "The firmware tells one NUMA node for all GPUs: compare the BIOS version and its NUMA settings (SNC, NPS) with those of other nodes; of a virtual machine see its definition.",
				"topology.file":       "The file in the line cannot be used: see the line that is named. It has to be XML of NCCL or of lstopo, of this kind of node, and root's. No node is drained for it.",
				"topology.missing":    "See lspci and dmesg: the device has fallen off the bus, its driver or virtual machine has lost it, or it is in another slot than the file has. If the file is of another kind of node, write it anew.",
				"topology.extra":      "The node has a device that the file has not: it is of another kind of node, or was added since. Write the file anew.",
				"topology.place":      "The device is in another slot than the file has: move it back, or write the file anew (nhc-gpu topo prints the map).",
				"topology.width":      "Reseat the device or its riser; compare with its peers (lspci -vv, LnkSta). If it stays the device or the slot is bad.",
			}
		},
	})
}

func (c *hwTopology) Bind(words []string) error {
	if err := checks.BindTags(c, words); err != nil {
		return err
	}
	return c.Validate()
}

func (c *hwTopology) Validate() error {
	if c.Level != "" && c.Level != checks.NearSystem && needed(c.Level) == sameNode {
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Level, Want: strings.Join([]string{checks.NearSwitch, checks.NearRootPort, checks.NearNUMA, checks.NearSystem}, ", ")}
	}
	if c.Share < 0 {
		return &checks.UsageError{Kind: checks.BadValue, Word: fmt.Sprint(c.Share), Want: "a number of GPUs"}
	}
	return nil
}

// topologyJudge is one run of the check.
type topologyJudge struct {
	*hwTopology

	env      *checks.Env
	gpus     []Located
	nics     []Located      // that carry jobs' traffic
	ports    int            // of them; the planes of one are one, and EFA's are none
	unread   int            // adapters that are there, nobody knows where
	blurred  int            // adapters of which only the bridges are known
	starting *fabric.Fabric // a boot has not brought all of its adapters up yet; else nil
	findings []checks.Finding
}

func (c *hwTopology) Run(_ context.Context, env *checks.Env) []checks.Finding {
	t := &topologyJudge{hwTopology: c, env: env}
	gpus, err := LocateGPUs(env)
	if err != nil {
		return checks.Unreadable(err)
	}
	t.gpus = gpus
	if len(gpus) == 0 && c.File == "" {
		return []checks.Finding{checks.Finding{Code: "topology.none", Severity: checks.Skip}.Describe(hwTopologyName, "no GPU on this node")}
	}
	env.Fact("%s", checks.Plural(len(gpus), "GPU"))
	skip := t.askNICs()
	if c.File != "" {
		t.judgeFile()
	}
	t.unreadGPUs()
	if c.File == "" || c.Level != "" || c.Share > 0 {
		skip = append(skip, t.judgeNear()...)
	}
	if c.File == "" {
		t.judgeNUMA()
	}
	if len(t.findings) == 0 && c.File == "" {
		return skip
	}
	if t.starting != nil {
		return t.starting.Settle(t.findings, "topology.far", "topology.shared", "topology.missing")
	}
	return t.findings
}

// vendorAmazon is the PCI vendor id of EFA.
const vendorAmazon = "1d0f"

// askNICs finds the adapters. What comes back is why there is nothing to judge.
func (t *topologyJudge) askNICs() (skip []checks.Finding) {
	f, findings := fabric.Ask(t.env, hwTopologyName)
	if f == nil {
		return t.sort(findings)
	}
	if _, settling := f.SinceBoot(); settling {
		if lacking, err := f.Lacking(); err != nil || len(lacking) > 0 {
			t.starting = f
		}
	}
	ports, findings := f.Judged(nil, "")
	skip = t.sort(findings)
	for _, p := range ports {
		known := slices.ContainsFunc(t.nics, func(n Located) bool { return n.Name == p.Device })
		if (!known || p.Plane == 0) && p.HCA.Vendor != vendorAmazon {
			t.ports++ // see Platform
		}
		if known {
			continue
		}
		n := LocateDevice(t.env, p.Device, p.HCA.PCI)
		if n.err != nil {
			t.findings = append(t.findings, f.Unknown(fabric.HCADevice(p.HCA), n.err))
		}
		switch {
		case n.err != nil && len(n.Bridges) == 0:
			t.unread++
			continue
		case n.err != nil:
			t.blurred++
		}
		t.nics = append(t.nics, n)
	}
	return skip
}

// sort keeps what could not be read, and hands back why there is nothing.
func (t *topologyJudge) sort(findings []checks.Finding) (skip []checks.Finding) {
	for i := range findings {
		if findings[i].Severity == checks.Skip {
			skip = append(skip, findings[i])
			continue
		}
		t.findings = append(t.findings, findings[i])
		t.unread++
	}
	return skip
}

// unreadGPUs tells of GPUs of which something could not be read.
func (t *topologyJudge) unreadGPUs() {
	for i := range t.gpus {
		if g := &t.gpus[i]; g.err != nil {
			t.findings = append(t.findings, checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Device: g.device("gpu")}.
				Describe(hwTopologyName, "could not tell: %v", g.err))
		}
	}
}

func (a *Located) device(kind string) checks.Device {
	return checks.Device{Kind: kind, Name: a.Name, PCI: a.PCI}
}

func (a *Located) String() string { return a.Name + " " + a.PCI }

// report adds a finding about a device.
func (t *topologyJudge) report(d checks.Device, f checks.Finding, format string, args ...any) {
	f.Device = d
	t.findings = append(t.findings, f.Describe(hwTopologyName, format, args...))
}

// switches says whether any PCIe switch is to be seen.
func (t *topologyJudge) switches() bool {
	below := func(a Located) bool { return len(a.Bridges) > 1 }
	return slices.ContainsFunc(t.gpus, below) || slices.ContainsFunc(t.nics, below)
}

// judgeNear judges each GPU by the adapter that is nearest to it. What comes back
// is why it was not.
func (t *topologyJudge) judgeNear() (skip []checks.Finding) {
	if len(t.gpus) == 0 || len(t.nics) == 0 {
		return nil // which has been said
	}
	p, ofKind := checks.NodePlatform(t.env)
	full := ofKind == len(t.gpus) && p.FullNetwork(ofKind, t.ports)
	need, severity := needed(t.Level), checks.Fail
	if t.Level == "" && full {
		need, severity = needed(p.GPUNetwork), checks.Warn
	}
	if need > sameHost && !t.switches() {
		hidden := checks.Finding{Code: "topology.hidden", Severity: checks.Unknown, Want: need.common()}.
			Phrase(hwTopologyName, "no PCIe switch is to be seen on this node: cannot tell what GPUs and adapters have in common")
		if t.Level != "" {
			t.findings = append(t.findings, hidden)
			return nil
		}
		hidden.Severity = checks.Skip
		if need = sameNUMA; !t.told() {
			return []checks.Finding{hidden}
		}
	}
	if t.Level == "" && need == sameNode {
		need, severity = t.ofPeers(), checks.Warn
	}
	t.far(need, severity)
	share, severity := t.Share, checks.Fail
	if share == 0 && full {
		share, severity = p.NetworkGPUs, checks.Warn
	}
	if need == sameNode && t.Share > 0 { // nothing says what near is
		if need = sameNUMA; t.switches() {
			need = sameRoot
		}
	}
	if share > 0 && need > sameNode {
		t.shared(need, share, severity)
	}
	return nil
}

// told says whether the NUMA node of some device is.
func (t *topologyJudge) told() bool {
	has := func(a Located) bool { return a.NUMA >= 0 }
	return slices.ContainsFunc(t.gpus, has) || slices.ContainsFunc(t.nics, has)
}

// nearest is the adapter that is nearest to a GPU, the first of several.
func (t *topologyJudge) nearest(g *Located) (nic *Located, near Nearness) {
	for i := range t.nics {
		if n := g.Near(&t.nics[i]); nic == nil || n > near {
			nic, near = &t.nics[i], n
		}
	}
	return nic, near
}

// fewPeers is how many GPUs a node has at least if one is to be told from the rest.
const fewPeers = 4

// ofPeers is what all GPUs but one have in common with an adapter: nothing if they
// differ more, as by the way the node was built.
func (t *topologyJudge) ofPeers() Nearness {
	if len(t.gpus) < fewPeers {
		return sameNode
	}
	count := map[Nearness]int{}
	for i := range t.gpus {
		_, near := t.nearest(&t.gpus[i])
		count[min(near, sameRoot)]++
	}
	for _, near := range []Nearness{sameRoot, sameHost, sameNUMA} {
		if count[near] == len(t.gpus)-1 {
			return near
		}
	}
	return sameNode
}

// far finds the GPUs without a near adapter. As many as there are adapters nobody
// knows the place of are given the benefit of the doubt.
func (t *topologyJudge) far(need Nearness, severity checks.Severity) {
	var far []int
	for i := range t.gpus {
		if _, near := t.nearest(&t.gpus[i]); near < need && t.gpus[i].err == nil {
			far = append(far, i)
		}
	}
	doubt := t.unread
	if need < sameRoot { // which NUMA nodes tell, too
		doubt += t.blurred
	}
	if len(far) <= doubt {
		return
	}
	for _, i := range far {
		g := &t.gpus[i]
		f := checks.Finding{Code: "topology.far", Severity: severity, Want: need.common(), Remedy: checks.ReseatOrRMA}
		nic, near := t.nearest(g)
		if own := t.expected(i, need); own != nil {
			f.Got = g.Near(own).common()
			t.report(g.device("gpu"), f, "its adapter should be %s, which is near to no GPU", own)
			continue
		}
		f.Got = near.common()
		t.report(g.device("gpu"), f, "no adapter is near to it, the nearest is %s", nic)
	}
}

// expected is the adapter that a GPU should have: of those that are near to no GPU
// the nearest, and of several the one at its own place in their order.
func (t *topologyJudge) expected(gpu int, need Nearness) (own *Located) {
	best := 0
	for i := range t.nics {
		n := &t.nics[i]
		if slices.ContainsFunc(t.gpus, func(g Located) bool { return g.Near(n) >= need }) {
			continue
		}
		distance := i - gpu
		if distance < 0 {
			distance = -distance
		}
		if rank := int(t.gpus[gpu].Near(n))<<16 - distance; own == nil || rank > best {
			own, best = n, rank
		}
	}
	return own
}

// shared finds the GPUs for which no near adapter is left when each serves so many:
// that is so only if no other distribution has one.
func (t *topologyJudge) shared(need Nearness, most int, severity checks.Severity) {
	served := make([][]int, len(t.nics)) // GPUs by adapter
	for i := range t.gpus {
		nic, near := t.nearest(&t.gpus[i])
		if near < need || t.serve(i, need, most, served, make([]bool, len(t.nics))) {
			continue
		}
		at := slices.IndexFunc(t.nics, func(n Located) bool { return n.Name == nic.Name })
		var others []string
		for _, o := range served[at] {
			others = append(others, t.gpus[o].Name)
		}
		f := checks.Finding{Code: "topology.shared", Severity: severity, Want: "at most " + checks.Plural(most, "GPU"), Got: fmt.Sprint(len(others) + 1)}
		t.report(t.gpus[i].device("gpu"), f, "shares adapter %s with %s", nic, strings.Join(others, " "))
	}
}

// serve gives a GPU a near adapter, if need be by giving another GPU another one.
func (t *topologyJudge) serve(gpu int, need Nearness, most int, served [][]int, seen []bool) bool {
	order := make([]int, len(t.nics))
	for i := range order {
		order[i] = i
	}
	g := &t.gpus[gpu]
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(g.Near(&t.nics[b]), g.Near(&t.nics[a])) })
	for _, i := range order {
		if seen[i] || g.Near(&t.nics[i]) < need {
			continue
		}
		seen[i] = true
		if len(served[i]) < most {
			served[i] = append(served[i], gpu)
			return true
		}
		for k, other := range served[i] {
			if t.serve(other, need, most, served, seen) {
				served[i][k] = gpu
				return true
			}
		}
	}
	return false
}

// judgeNUMA warns of NUMA nodes that cannot be true.
func (t *topologyJudge) judgeNUMA() {
	t.untold()
	t.contradicted()
	p, ofKind := checks.NodePlatform(t.env)
	if ofKind < len(t.gpus) || !p.HasNVSwitches(ofKind) {
		return
	}
	node := t.gpus[0].NUMA
	if node < 0 || slices.ContainsFunc(t.gpus, func(g Located) bool { return g.NUMA != node }) {
		return
	}
	t.env.At("read /sys/devices/system/node")
	nodes, err := pci.ReadNUMANodes(t.env.Host)
	if err != nil {
		t.findings = append(t.findings, checks.Unreadable(err)...)
		return
	}
	if len(nodes) > 1 {
		t.findings = append(t.findings, checks.Finding{Code: "topology.unbalanced", Severity: checks.Warn, Want: checks.Plural(len(nodes), "NUMA node"), Got: fmt.Sprintf("node %d alone", node)}.
			Describe(hwTopologyName, "all %d GPUs are on one NUMA node", len(t.gpus)))
	}
}

// each calls for every device, with its kind.
func (t *topologyJudge) each(do func(kind string, a *Located)) {
	for i := range t.gpus {
		do("gpu", &t.gpus[i])
	}
	for i := range t.nics {
		do("hca", &t.nics[i])
	}
}

// untold finds devices without a NUMA node where others have one.
func (t *topologyJudge) untold() {
	if !t.told() {
		return // a machine with one
	}
	t.each(func(kind string, a *Located) {
		if a.NUMA < 0 && a.err == nil {
			t.report(a.device(kind), checks.Finding{Code: "topology.numa", Severity: checks.Warn, Want: "a NUMA node, as its peers have"}, "its NUMA node is not told")
		}
	})
}

// contradicted finds devices below one root port that are on different NUMA nodes. Wrong
// are those that are not on the root port's own or, where it tells none, on that of most.
// Of as many on one node as on another none is blamed. A device alone below its root port
// has to be on the root port's own.
func (t *topologyJudge) contradicted() {
	type place struct {
		nodes map[int]int
		names map[int]string
		all   []string
	}
	byRoot := map[string]*place{}
	var roots []string
	t.each(func(_ string, a *Located) {
		if a.NUMA < 0 || len(a.Bridges) == 0 {
			return
		}
		root := a.Bridges[0]
		if byRoot[root] == nil {
			byRoot[root] = &place{nodes: map[int]int{}, names: map[int]string{}}
			roots = append(roots, root)
		}
		at := byRoot[root]
		at.nodes[a.NUMA]++
		at.names[a.NUMA] = " with " + a.String()
		at.all = append(at.all, fmt.Sprintf("%s on NUMA node %d", a, a.NUMA))
	})
	right := map[string]int{}
	for _, root := range roots {
		at := byRoot[root]
		own := pci.ReadFunction(t.env.Host, root).NUMA
		for node, n := range at.nodes {
			if most, known := right[root]; !known || n > at.nodes[most] || n == at.nodes[most] && node < most {
				right[root] = node
			}
		}
		tied := slices.ContainsFunc(slices.Collect(maps.Keys(at.nodes)), func(node int) bool {
			return node != right[root] && at.nodes[node] == at.nodes[right[root]]
		})
		switch {
		case len(at.all) == 1 && own >= 0: // nothing else shares the root port
			right[root] = own
		case len(at.nodes) == 1: // a site may have set those of all devices
		case at.nodes[own] > 0:
			right[root] = own
		case tied:
			delete(right, root)
			t.report(checks.Device{Kind: "bridge", PCI: root}, checks.Finding{Code: "topology.numa", Severity: checks.Warn, Want: "one NUMA node below one root port"}, "%s", strings.Join(at.all, ", "))
		}
	}
	t.each(func(kind string, a *Located) {
		if a.NUMA < 0 || len(a.Bridges) == 0 {
			return
		}
		root := a.Bridges[0]
		if node, known := right[root]; known && node != a.NUMA {
			f := checks.Finding{Code: "topology.numa", Severity: checks.Warn, Want: fmt.Sprintf("NUMA node %d", node), Got: fmt.Sprint(a.NUMA)}
			t.report(a.device(kind), f, "is below root port %s%s", root, byRoot[root].names[node])
		}
	})
}
