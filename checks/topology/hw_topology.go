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

// hwTopology checks the PCIe and NUMA topology of GPUs and network adapters, by /sys.
//
// Each GPU must have an adapter at LEVEL: below the same PCIe switch, below the same root port, or on
// the same NUMA node; and at most GPUS GPUs must share an adapter. Without -l and -g the check uses
// the figures of the node's platform if the node has as many adapters as the platform can have. On
// other nodes it looks for a single GPU without a near adapter while all others have one. Without
// options it only warns.
//
// It also warns of a wrong NUMA node: an unknown one while those of other devices are known,
// different ones below one root port, or all GPUs of a board with NVSwitches on one of several NUMA
// nodes. A virtual machine shows no PCIe switches and is judged by NUMA nodes.
//
// FILE is a topology file of NCCL (NCCL_TOPO_FILE, as on Azure's virtual machines, or written by
// NCCL_TOPO_DUMP_FILE on a healthy node) or of lstopo (lstopo --of xml FILE). Each GPU, adapter and
// NVMe disk of the file must be present, on its NUMA node, below its bridges as far as the node has
// them, and with its number of lanes. A device that is not in the file warns. NCCL writes NUMA node 0
// if the kernel reports none. AzureHPC's check_hw_topology takes such a FILE and compares addresses
// and NUMA nodes.
//
//	gpu* || check_hw_topology
//	gpu* || check_hw_topology -l root-port -g 1
//	nd*  || check_hw_topology /opt/microsoft/ndv5-topo.xml
type hwTopology struct {
	Level string `opt:"l" toml:"level"`                      // what a GPU and its adapter must share: switch, root-port, numa or system (nothing); default: by platform
	Share int    `opt:"g" toml:"gpus_per_nic" in:"0:64 max"` // highest number of GPUs that share an adapter; 0: by platform
	File  string `arg:"1" toml:"file"`                       // file with the expected topology; none: no comparison
}

const hwTopologyName = "check_hw_topology"

func init() {
	checks.Register(checks.Info{
		Name:    hwTopologyName,
		Usage:   "[-l LEVEL] [-g GPUS] [FILE]",
		Summary: "the PCIe and NUMA topology of GPUs and adapters is correct",
		Lane:    checks.Local,
		New:     func() checks.Check { return &hwTopology{} },
		Do: func() map[string]string {
			return map[string]string{
				"topology.none":       "Nothing, if the node has no GPU. If it should have GPUs, set their number: check_gpu_count N.",
				"topology.hidden":     "The node shows no PCIe switches, for example because it is a virtual machine: use -l numa, or give the FILE of this kind of machine.",
				"topology.far":        "Look at the topology with nhc-gpu topo. An adapter is missing, or in another slot than on other nodes of this kind: check check_ib_count and lspci -tv. If the node was built like this, use -l system.",
				"topology.shared":     "Look at the topology with nhc-gpu topo. An adapter is missing, or in another slot than on other nodes of this kind. If the node was built like this, set the number with -g.",
				"topology.numa":       "The firmware reports a wrong NUMA node: compare the BIOS version and its NUMA settings (SNC, NPS) with those of other nodes. On a virtual machine check its definition, and numa=off on the kernel's command line.",
				"topology.unbalanced": "The firmware reports one NUMA node for all GPUs: compare the BIOS version and its NUMA settings (SNC, NPS) with those of other nodes. On a virtual machine check its definition.",
				"topology.file":       "The FILE of the line cannot be used: look at the line in the message. It must be an XML file of NCCL or lstopo for this kind of node, owned by root. The node is not drained for it.",
				"topology.missing":    "Look at lspci and dmesg: the device has fallen off the bus, its driver or virtual machine has lost it, or it is in another slot than in FILE. If FILE is of another kind of node, create it again.",
				"topology.extra":      "The node has a device that is not in FILE: FILE is of another kind of node, or the device was added later. Create FILE again.",
				"topology.place":      "The device is in another slot than in FILE: move it back, or create FILE again (nhc-gpu topo shows the topology).",
				"topology.width":      "Compare with similar devices (lspci -vv, LnkSta), then reseat the device or its riser. If that does not help, the device or the slot is faulty. If all devices have fewer lanes, create FILE again.",
			}
		},
	})
}

func (c *hwTopology) Validate() error {
	if c.Level != "" && c.Level != checks.NearSystem && parseLevel(c.Level) == sameNode {
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
	nics     []Located       // adapters for jobs' traffic
	ports    int             // of these adapters; the planes of a port count once, and EFA's ports do not count
	unread   int             // adapters with an unknown place
	blurred  int             // adapters with known bridges only
	starting *fabric.Fabric  // not nil soon after boot, while adapters are missing
	misfiled map[string]bool // kinds of devices that FILE probably lists wrongly
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
	skip := t.findNICs()
	if c.File != "" {
		t.judgeFile()
	}
	t.reportUnreadGPUs()
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

// findNICs finds the adapters. If there are none to judge it returns the reason.
func (t *topologyJudge) findNICs() (skip []checks.Finding) {
	f, findings := fabric.Ask(t.env, hwTopologyName)
	if f == nil {
		return t.splitSkips(findings)
	}
	if _, settling := f.SinceBoot(); settling {
		if lacking, err := f.Lacking(); err != nil || len(lacking) > 0 {
			t.starting = f
		}
	}
	ports, findings := f.Judged(nil, "")
	skip = t.splitSkips(findings)
	for _, p := range ports {
		known := slices.ContainsFunc(t.nics, func(n Located) bool { return n.Name == p.Device })
		if (!known || p.Plane == 0) && p.HCA.Vendor != vendorAmazon {
			t.ports++ // the ports that checks.Platform counts
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

// splitSkips returns the skipped findings and adds the others, for adapters that cannot be read.
func (t *topologyJudge) splitSkips(findings []checks.Finding) (skip []checks.Finding) {
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

func (t *topologyJudge) reportUnreadGPUs() {
	for i := range t.gpus {
		if g := &t.gpus[i]; g.err != nil {
			t.findings = append(t.findings, checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Device: g.device("gpu")}.
				Describe(hwTopologyName, "cannot be read: %v", g.err))
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

// showsSwitches reports whether the node shows a PCIe switch.
func (t *topologyJudge) showsSwitches() bool {
	below := func(a Located) bool { return len(a.Bridges) > 1 }
	return slices.ContainsFunc(t.gpus, below) || slices.ContainsFunc(t.nics, below)
}

// judgeNear judges the nearest adapter of each GPU. If it cannot, it returns the reason.
func (t *topologyJudge) judgeNear() (skip []checks.Finding) {
	if len(t.gpus) == 0 || len(t.nics) == 0 {
		return nil // reported before
	}
	p, ofKind := checks.NodePlatform(t.env)
	full := ofKind == len(t.gpus) && p.FullNetwork(ofKind, t.ports)
	need, severity := parseLevel(t.Level), checks.Fail
	if t.Level == "" && full {
		need, severity = parseLevel(p.GPUNetwork), checks.Warn
	}
	if need > sameHost && !t.showsSwitches() {
		hidden := checks.Finding{Code: "topology.hidden", Severity: checks.Unknown, Want: need.describe()}.
			Phrase(hwTopologyName, "the node shows no PCIe switches: cannot judge which GPUs and adapters share one")
		if t.Level != "" {
			t.findings = append(t.findings, hidden)
			return nil
		}
		hidden.Severity = checks.Skip
		if need = sameNUMA; !t.knowsNUMA() {
			return []checks.Finding{hidden}
		}
	}
	if t.Level == "" && need == sameNode {
		need, severity = t.findPeerLevel(), checks.Warn
	}
	t.judgeFar(need, severity)
	share, severity := t.Share, checks.Fail
	if share == 0 && full {
		share, severity = p.NetworkGPUs, checks.Warn
	}
	if need == sameNode && t.Share > 0 { // -g without a level
		if need = sameNUMA; t.showsSwitches() {
			need = sameRoot
		}
	}
	if share > 0 && need > sameNode {
		t.judgeShared(need, share, severity)
	}
	return nil
}

// knowsNUMA reports whether the NUMA node of any device is known.
func (t *topologyJudge) knowsNUMA() bool {
	has := func(a Located) bool { return a.NUMA >= 0 }
	return slices.ContainsFunc(t.gpus, has) || slices.ContainsFunc(t.nics, has)
}

// findNearest returns the nearest adapter of a GPU, the first of several.
func (t *topologyJudge) findNearest(g *Located) (nic *Located, near Nearness) {
	for i := range t.nics {
		if n := g.Near(&t.nics[i]); nic == nil || n > near {
			nic, near = &t.nics[i], n
		}
	}
	return nic, near
}

// minPeers is the smallest number of GPUs among which a single outlier is recognized.
const minPeers = 4

// findPeerLevel returns the nearness that all GPUs but one have to an adapter. If more GPUs differ
// the node was built like that, and it returns sameNode.
func (t *topologyJudge) findPeerLevel() Nearness {
	if len(t.gpus) < minPeers {
		return sameNode
	}
	count := map[Nearness]int{}
	for i := range t.gpus {
		_, near := t.findNearest(&t.gpus[i])
		count[min(near, sameRoot)]++
	}
	for _, near := range []Nearness{sameRoot, sameHost, sameNUMA} {
		if count[near] == len(t.gpus)-1 {
			return near
		}
	}
	return sameNode
}

// judgeFar reports the GPUs without a near adapter, unless the adapters with an unknown place could
// be near to all of them.
func (t *topologyJudge) judgeFar(need Nearness, severity checks.Severity) {
	var far []int
	for i := range t.gpus {
		if _, near := t.findNearest(&t.gpus[i]); near < need && t.gpus[i].err == nil {
			far = append(far, i)
		}
	}
	doubt := t.unread
	if need < sameRoot { // known from NUMA nodes, too
		doubt += t.blurred
	}
	if len(far) <= doubt {
		return
	}
	remedy := checks.ReseatOrRMA
	if t.Level != "" && len(far) > 1 && len(far) == len(t.gpus) { // the node was built without this level
		remedy = checks.FixConfig
	}
	for _, i := range far {
		g := &t.gpus[i]
		f := checks.Finding{Code: "topology.far", Severity: severity, Want: need.describe(), Remedy: remedy}
		nic, near := t.findNearest(g)
		if own := t.findExpected(i, need); own != nil {
			f.Got = g.Near(own).describe()
			t.report(g.device("gpu"), f, "its adapter should be %s, which is not near to any GPU", own)
			continue
		}
		f.Got = near.describe()
		t.report(g.device("gpu"), f, "has no near adapter, the nearest is %s", nic)
	}
}

// findExpected returns the adapter that a GPU should have: the nearest one that is not near to any
// GPU, and of several the one with the closest position in the order.
func (t *topologyJudge) findExpected(gpu int, need Nearness) (own *Located) {
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

// judgeShared reports the GPUs that get no near adapter in any distribution with at most most GPUs
// for each adapter.
func (t *topologyJudge) judgeShared(need Nearness, most int, severity checks.Severity) {
	served := make([][]int, len(t.nics)) // GPUs by adapter
	for i := range t.gpus {
		nic, near := t.findNearest(&t.gpus[i])
		if near < need || t.assign(i, need, most, served, make([]bool, len(t.nics))) {
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

// assign assigns a near adapter to a GPU. If necessary it assigns another adapter to another GPU.
func (t *topologyJudge) assign(gpu int, need Nearness, most int, served [][]int, seen []bool) bool {
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
			if t.assign(other, need, most, served, seen) {
				served[i][k] = gpu
				return true
			}
		}
	}
	return false
}

// judgeNUMA warns of wrong NUMA nodes.
func (t *topologyJudge) judgeNUMA() {
	t.judgeUnknownNUMA()
	t.judgeConflicts()
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
		t.findings = append(t.findings, checks.Finding{Code: "topology.unbalanced", Severity: checks.Warn, Want: checks.Plural(len(nodes), "NUMA node"), Got: fmt.Sprintf("only node %d", node)}.
			Describe(hwTopologyName, "all %d GPUs are on one NUMA node", len(t.gpus)))
	}
}

// each calls do for every device, with its kind.
func (t *topologyJudge) each(do func(kind string, a *Located)) {
	for i := range t.gpus {
		do("gpu", &t.gpus[i])
	}
	for i := range t.nics {
		do("hca", &t.nics[i])
	}
}

// judgeUnknownNUMA reports devices with an unknown NUMA node if other devices have a known one.
func (t *topologyJudge) judgeUnknownNUMA() {
	if !t.knowsNUMA() {
		return // a machine with a single NUMA node
	}
	t.each(func(kind string, a *Located) {
		if a.NUMA < 0 && a.err == nil {
			t.report(a.device(kind), checks.Finding{Code: "topology.numa", Severity: checks.Warn, Want: "a NUMA node, as other devices have"}, "its NUMA node is unknown")
		}
	})
}

// judgeConflicts reports devices below one root port that are on different NUMA nodes. It blames the
// devices that are not on the NUMA node of the root port, or without one, not on the most common
// node; it blames none if two nodes are equally common. A single device below a root port must be on
// the root port's node.
func (t *topologyJudge) judgeConflicts() {
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
		case len(at.all) == 1 && own >= 0: // a single device
			right[root] = own
		case len(at.nodes) == 1: // the site may have set the nodes of all devices
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
