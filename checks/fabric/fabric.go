// Package fabric has the checks of InfiniBand, RoCE, EFA and Ethernet ports and their adapters.
package fabric

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/pcie"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// The frame of the RDMA checks: the ports of the node, and which of them carry the traffic of
// jobs.

func init() {
	checks.RegisterAdvice(func() map[string]string {
		return map[string]string{
			"ib.none":    "Nothing, if the node has no RDMA adapter. Otherwise set the number: check_ib_count N; see lspci, and load the driver: modprobe mlx5_ib (Omni-Path: hfi1, EFA: efa, Broadcom: bnxt_re, Intel: irdma).",
			"ib.left":    "Nothing to repair: the checks skip every port of this node unless a line names it. nhc-gpu topo shows the reasons.",
			"ib.unnamed": "If no node has this device correct the name on the line: ls /sys/class/infiniband lists the devices of the node. Otherwise see lspci and dmesg: its driver is not loaded, the adapter failed, or the device was renamed.",
			"ib.error":   "One device could not be read: read the named file as root, and see dmesg. The others were checked.",
		}
	})
}

// The link layers of ports, as the kernel names them.
const (
	layerIB  = "InfiniBand"
	LayerEth = "Ethernet"
)

// Port is a port of an RDMA device, and its role.
type Port struct {
	*rdma.IBPort

	HCA   *rdma.HCA
	Plane int    // number of the plane, from 1, on a device with several planes; else 0
	idle  bool   // a port of such a device that carries no data
	Left  string // why checks skip it unless it is named; "": it carries jobs' traffic
}

// Fabric has the ports of the node.
type Fabric struct {
	Check string
	env   *checks.Env
	HCAs  []rdma.HCA
	Ports []Port

	missing []missingHCA    // see listAllMissing
	past    *checks.History // see recallPorts
}

// Ask reads the RDMA devices. Without one it returns nil, and findings with the reason: Skip if
// the node has none.
func Ask(env *checks.Env, check string) (*Fabric, []checks.Finding) {
	env.At("read /sys/class/infiniband")
	if f := probe.Kept[*Fabric](env.Host, "fabric"); *f != nil {
		(*f).Check, (*f).env = check, env
		return *f, nil
	}
	list, err := rdma.HCAs(env.Host, env.Doing)
	if err != nil {
		return nil, checks.Unreadable(err)
	}
	if len(list) == 0 {
		return nil, []checks.Finding{checks.Finding{Code: "ib.none", Severity: checks.Skip}.Describe(check, "no RDMA device on this node")}
	}
	f := &Fabric{Check: check, env: env, HCAs: slices.Clone(list)}
	env.At("read the routes and the NUMA nodes of GPUs")
	routes, err := network.ReadDefaultRoutes(env.Host)
	if err != nil {
		return nil, checks.Unreadable(err)
	}
	front := routes.V4
	if len(front) == 0 {
		front = routes.V6
	}
	gpus := locateGPUs(env)
	for i := range f.HCAs {
		a := &f.HCAs[i]
		for j := range a.Ports {
			f.Ports = append(f.Ports, Port{IBPort: &a.Ports[j], HCA: a})
		}
	}
	f.markPlanes()
	for i := range f.Ports {
		f.Ports[i].Left = f.describeManagement(&f.Ports[i], front)
	}
	rails{f, front, gpus}.keep()
	f.skipManagers()
	f.skipSpares()
	f.skipFarOnes(gpus)
	f.skipFrontEnd()
	*probe.Kept[*Fabric](env.Host, "fabric") = f
	return f, nil
}

// gpuPlaces are the places of the GPUs, none on a machine that does not report them.
type gpuPlaces struct {
	host  *probe.Host
	count int
	nodes map[int]bool    // NUMA nodes
	roots map[string]bool // root ports above them
}

func locateGPUs(env *checks.Env) *gpuPlaces {
	g := &gpuPlaces{host: env.Host, nodes: map[int]bool{}, roots: map[string]bool{}}
	ids, err := pci.GPUIDs(env.Host)
	if err != nil {
		return g // the checks of GPUs report it
	}
	g.count = len(ids)
	for _, id := range ids {
		d := pci.ReadFunction(env.Host, id.Address)
		if d.NUMA >= 0 {
			g.nodes[d.NUMA] = true
		}
		if len(d.Path) > 0 {
			g.roots[d.Path[0]] = true
		}
	}
	return g
}

// sharesRoot reports whether a port and a GPU are below the same root port.
func (g *gpuPlaces) sharesRoot(p *Port) bool {
	path := pci.ReadFunction(g.host, p.PCI).Path
	return len(path) > 0 && g.roots[path[0]]
}

// markPlanes marks the ports of devices with several planes: each plane is a port, among others that
// carry no data. hca.toml lists these devices.
func (f *Fabric) markPlanes() {
	for i := range f.HCAs {
		a := &f.HCAs[i]
		if len(a.Ports) <= 2 {
			continue
		}
		m := ModelOf(a.Vendor, a.Model, a.Board)
		if m == nil || len(m.DataPorts) == 0 || len(a.Ports) != m.Ports {
			continue
		}
		for j := range f.Ports {
			p := &f.Ports[j]
			if n, err := strconv.Atoi(p.Port); p.HCA == a && err == nil {
				p.Plane = slices.Index(m.DataPorts, n) + 1
				p.idle = !m.Carries(n, len(a.Ports))
			}
		}
	}
}

// describeManagement returns why a port does not carry jobs' traffic, as far as the port itself shows it.
// A node can have its default route over InfiniBand because it has nothing else.
func (f *Fabric) describeManagement(p *Port, routes map[string]string) string {
	switch {
	case p.HCA.PCI == "":
		return "in software"
	case p.idle:
		return "no plane of its own"
	case f.like(p).Layer != layerIB && p.route(routes) != "":
		return frontEnd
	}
	return ""
}

// route returns the interface of the default route over a port, "" if it has none.
func (p *Port) route(routes map[string]string) string {
	for _, dev := range p.NetDevs {
		if routes[dev] != "" {
			return routes[dev]
		}
	}
	return ""
}

// Why ports are skipped.
const (
	frontEnd  = "the default route"
	spareLeft = "not cabled, on the card with the default route"
	besideIB  = "Ethernet beside InfiniBand"
)

// skipSpares skips the ports of the front end's cards that are down: their second ports are
// seldom cabled. It keeps a port if another card of the front end uses the same port, or if it is
// the only InfiniBand of the node. [judgeFates] still reports a skipped port that was up earlier.
func (f *Fabric) skipSpares() {
	front := map[string]bool{} // cards
	for i := range f.Ports {
		if p := &f.Ports[i]; p.Left == frontEnd && p.PCI != "" {
			front[card(p.PCI)] = true
		}
	}
	for i := range f.Ports {
		p := &f.Ports[i]
		if p.Left != "" || p.State != checks.IBDown && (isPortState(p.State) || isGarbled(p.IBPort)) || !front[card(p.PCI)] {
			continue
		}
		used, other := false, p.Layer != layerIB
		for j := range f.Ports {
			if q := &f.Ports[j]; q.Left == "" && q.PCI != "" && card(q.PCI) != card(p.PCI) {
				used = used || front[card(q.PCI)] && portKind(q) == portKind(p) && onCard(q) == onCard(p) && checks.PortActive(q.IBPort)
				other = other || q.Layer == layerIB
			}
		}
		if !used && other {
			p.Left = spareLeft
		}
	}
}

// skipManagers skips the adapters that manage NVSwitches.
func (f *Fabric) skipManagers() {
	for i := range f.Ports {
		if p := &f.Ports[i]; p.Left == "" && p.Layer == layerIB && pcie.ManagesSwitches(f.env, p.PCI, p.HCA.Model) {
			p.Left = "manages NVSwitches"
		}
	}
}

// skipFarOnes skips Ethernet ports that are near no GPU if others are: those of management. It
// keeps InfiniBand ports, ports of the same board as a near one, and ports below the root port of
// a GPU, whatever NUMA node the firmware reports.
func (f *Fabric) skipFarOnes(gpus *gpuPlaces) {
	near := map[string]bool{} // kinds
	var far []*Port
	for i := range f.Ports {
		switch p := &f.Ports[i]; {
		case p.Layer != LayerEth || p.Left != "":
		case p.HCA.NUMA < 0, gpus.nodes[p.HCA.NUMA], gpus.sharesRoot(p):
			near[portKind(p)] = true
		default:
			far = append(far, p)
		}
	}
	if len(gpus.nodes) == 0 || len(near) == 0 {
		return
	}
	for _, p := range far {
		if !near[portKind(p)] {
			p.Left = fmt.Sprintf("near no GPU (NUMA node %d)", p.HCA.NUMA)
		}
	}
}

// manyPorts: this number of Ethernet ports or more are for jobs, not for a front end.
const manyPorts = 4

// skipFrontEnd skips the Ethernet ports of a node with InfiniBand for jobs. If there are many,
// and more than InfiniBand ports, jobs use RoCE, and InfiniBand is for storage: it keeps both.
// Neither the state of a port nor its absence matters, so that a failing port keeps its role.
func (f *Fabric) skipFrontEnd() {
	count := map[string]int{}
	for i := range f.Ports {
		if p := &f.Ports[i]; p.Left == "" {
			count[f.like(p).Layer]++
		}
	}
	if count[layerIB] == 0 {
		return
	}
	if n := count[LayerEth]; n > 1 && n*2 > count[layerIB] { // absent ones could decide
		for _, a := range f.listAllMissing() {
			count[a.layer]++
		}
	}
	if count[LayerEth] >= manyPorts && count[LayerEth] > count[layerIB] {
		return
	}
	for i := range f.Ports {
		if p := &f.Ports[i]; p.Layer == LayerEth && p.Left == "" {
			p.Left = besideIB
		}
	}
}

// Judged returns the ports that a check judges: the named ones, or all that carry jobs' traffic.
// A name is a device, DEVICE:PORT, or a glob; layer is "InfiniBand", "Ethernet", or "" for
// either. Names that match nothing are returned as failures, and devices that could not be read
// at all as Unknown.
func (f *Fabric) Judged(names []string, layer string) (ports []*Port, findings []checks.Finding) {
	of := func(p *Port) bool { return layer == "" || strings.EqualFold(f.like(p).Layer, layer) }
	if len(names) > 0 {
		var unnamed []checks.Finding
		for _, name := range names {
			found := f.findNamed(name)
			if len(found) == 0 && !f.isBroken(name) {
				unnamed = append(unnamed, checks.Finding{Code: "ib.unnamed", Severity: checks.Fail, Device: checks.Device{Kind: "port", Name: name}, Want: name, Got: "none"}.
					Phrase(f.Check, "%s: no such RDMA device or port", name))
			}
			for _, p := range found {
				if of(p) && !slices.ContainsFunc(ports, func(q *Port) bool { return q.Name() == p.Name() }) {
					ports = append(ports, p)
				}
			}
		}
		f.fact(ports)
		if 2*len(unnamed) < len(names) { // most names are right, so it is not the line
			for i := range unnamed {
				unnamed[i].Remedy = checks.ReseatOrRMA
			}
		}
		return ports, append(f.Settle(unnamed, "ib.unnamed"), f.reportUnread(names)...)
	}
	for i := range f.Ports {
		p := &f.Ports[i]
		if of(p) && (p.Left == "" || layer != "" && p.Left == besideIB) {
			ports = append(ports, p)
		}
	}
	f.fact(ports)
	findings = f.reportUnread(nil)
	if len(ports)+len(findings) == 0 {
		return nil, []checks.Finding{checks.Finding{Code: "ib.left", Severity: checks.Skip}.
			Describe(f.Check, "no RDMA port of this node carries jobs' traffic%s", checks.Before(" over ", layer, ""))}
	}
	return ports, findings
}

// fact notes how many ports are judged, and their rates: "8 ports, 400 Gb/s".
func (f *Fabric) fact(ports []*Port) {
	var rates []string
	for _, p := range ports {
		if p.Rate != "" && !slices.Contains(rates, p.Rate) {
			rates = append(rates, p.Rate)
		}
	}
	f.env.Fact("%s", checks.Plural(len(ports), "port"))
	if len(rates) > 0 {
		f.env.Fact("%s Gb/s", strings.Join(rates, " and "))
	}
}

// findNamed returns the ports of a device, one port, or those that match a glob. On a device with
// planes, the ports without a plane match only by their full name.
func (f *Fabric) findNamed(name string) (ports []*Port) {
	for i := range f.HCAs {
		a := &f.HCAs[i]
		if a.VF && len(a.Ports) == 0 && match.Glob(a.Name, strings.Split(name, ":")[0]) {
			*a = rdma.WholeHCA(f.env.Host, a.Name)
			for j := range a.Ports {
				f.Ports = append(f.Ports, Port{IBPort: &a.Ports[j], HCA: a, Left: "a virtual function"})
			}
		}
	}
	for i := range f.Ports {
		p := &f.Ports[i]
		if p.Name() == name || match.Glob(p.Name(), name) && strings.Contains(name, ":") || match.Glob(p.Device, name) && !p.idle {
			ports = append(ports, p)
		}
	}
	return ports
}

// blameLine changes the remedy of failures with a code to fix-config, if all judged devices miss
// the same value of the line: then the line is the likelier cause. One device alone proves nothing.
func blameLine(findings []checks.Finding, code string, judged int) {
	var same []*checks.Finding
	for i := range findings {
		if x := &findings[i]; x.Code == code && x.Severity == checks.Fail && (len(same) == 0 || x.Got == same[0].Got) {
			same = append(same, x)
		}
	}
	if len(same) < 2 || len(same) < judged {
		return
	}
	for _, x := range same {
		x.Remedy = checks.FixConfig
	}
}

// countRemedy returns the remedy of too few ports: if all ports of the platform are there the
// number on the line is the likelier cause.
func countRemedy(env *checks.Env, ports int) checks.Remedy {
	if p, _ := checks.NodePlatform(env); p.NetworkPorts > 0 && ports >= p.NetworkPorts {
		return checks.FixConfig
	}
	return checks.ReseatOrRMA
}

// isBroken reports whether a name is that of a device without a readable port.
func (f *Fabric) isBroken(name string) bool {
	return slices.ContainsFunc(f.HCAs, func(a rdma.HCA) bool {
		return a.Err != nil && len(a.Ports) == 0 && match.Glob(a.Name, strings.Split(name, ":")[0])
	})
}

// reportUnread returns a finding for each device without a readable port: of those named, or all.
func (f *Fabric) reportUnread(names []string) (findings []checks.Finding) {
	for i := range f.HCAs {
		a := &f.HCAs[i]
		if a.Err == nil || len(a.Ports) > 0 {
			continue
		}
		if len(names) > 0 && !slices.ContainsFunc(names, func(n string) bool { return match.Glob(a.Name, strings.Split(n, ":")[0]) }) {
			continue
		}
		findings = append(findings, f.Unknown(HCADevice(a), a.Err))
	}
	return findings
}

// Unknown returns the finding about a device that could not be read.
func (f *Fabric) Unknown(d checks.Device, err error) checks.Finding {
	return checks.Finding{Code: "ib.error", Severity: checks.Unknown, Device: d}.Describe(f.Check, "cannot be read: %v", err)
}

// Subject returns the device of a finding about a port; the UUID is the GUID of the adapter.
func (p *Port) Subject() checks.Device {
	return checks.Device{Kind: "port", Name: p.Name(), PCI: p.PCI, UUID: p.HCA.GUID}
}

// HCADevice returns the device of a finding about an adapter.
func HCADevice(a *rdma.HCA) checks.Device {
	return checks.Device{Kind: "hca", Name: a.Name, PCI: a.PCI, UUID: a.GUID}
}

// card returns the address of a device without its function: ports of one card differ only in the
// function.
func card(address string) string {
	card, _, _ := strings.Cut(address, ".")
	return card
}

// portKind returns the key of ports that are compared: the same board and link layer.
func portKind(p *Port) string {
	return strings.Join([]string{p.HCA.Vendor, p.HCA.Model, p.HCA.Board, p.Layer}, " ")
}

// onCard returns the position of a port on its card.
func onCard(p *Port) string {
	_, function, _ := strings.Cut(p.PCI, ".")
	return function + ":" + p.Port
}

// like returns a port, or, if its link layer or its board could not be read, another one of its model, if all
// that it may be like are of one kind. It decides the role of the port, and no value of it.
func (f *Fabric) like(p *Port) *Port {
	if p.Err == nil && p.HCA.Err == nil || p.Layer != "" && p.HCA.Board != "" {
		return p
	}
	of := p
	for i := range f.Ports {
		q := &f.Ports[i]
		if q.Layer == "" || q.HCA.Board == "" || !mayBeLike(p.HCA, q) || p.Layer != "" && p.Layer != q.Layer {
			continue
		}
		if of != p && portKind(of) != portKind(q) {
			return p
		}
		of = q
	}
	return of
}

// kindOf returns the kind of a port for its role.
func (f *Fabric) kindOf(p *Port) string { return portKind(f.like(p)) }
