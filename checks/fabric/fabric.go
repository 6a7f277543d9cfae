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

// What the checks of InfiniBand and RoCE have in common: the ports of the node,
// and which of them carry the traffic of jobs.

func init() {
	checks.RegisterAdvice(func() map[string]string {
		return map[string]string{
			"ib.none":    "Nothing: the node has no RDMA device, or no driver for it. If it should have some say so: check_ib_count N; see lspci, and modprobe mlx5_ib (Omni-Path: hfi1, EFA: efa, Broadcom: bnxt_re, Intel: irdma).",
			"ib.left":    "Nothing: every port of the node is one that checks leave alone unless it is named. nhc-gpu topo says why.",
			"ib.unnamed": "The device that the line names is not there: see ls /sys/class/infiniband, lspci and dmesg. Its driver is not loaded, it has failed, or it has another name.",
			"ib.error":   "One device could not be read: see the file that is named, as root, and dmesg. The others were judged.",
		}
	})
}

// The link layers of ports, as the kernel writes them.
const (
	layerIB  = "InfiniBand"
	LayerEth = "Ethernet"
)

// Port is a port of an RDMA device, and what it is for.
type Port struct {
	*rdma.IBPort

	HCA   *rdma.HCA
	Plane int    // of a device whose link is several planes, from 1; else 0
	idle  bool   // a port of such a device that carries nothing
	Left  string // why it is left out unless it is named; "": it carries jobs' traffic
}

// Fabric are the ports of the node.
type Fabric struct {
	Check string
	env   *checks.Env
	HCAs  []rdma.HCA
	Ports []Port
}

// Ask reads the RDMA devices. Without one there is nothing to judge: the
// findings say why, Skip if the node has none.
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
	near, roots := gpuPlaces(env)
	for i := range f.HCAs {
		a := &f.HCAs[i]
		for j := range a.Ports {
			f.Ports = append(f.Ports, Port{IBPort: &a.Ports[j], HCA: a})
		}
	}
	f.planes()
	for i := range f.Ports {
		f.Ports[i].Left = f.Ports[i].management(front)
	}
	if len(routes.V4) == 0 {
		f.keepRails()
	}
	f.leaveManagers()
	f.leaveSpares()
	f.leaveFarOnes(near, roots)
	f.leaveFrontEnd()
	*probe.Kept[*Fabric](env.Host, "fabric") = f
	return f, nil
}

// gpuPlaces are the NUMA nodes that GPUs are near to, and the root ports above them. A
// machine that does not tell has none.
func gpuPlaces(env *checks.Env) (nodes map[int]bool, roots map[string]bool) {
	nodes, roots = map[int]bool{}, map[string]bool{}
	ids, err := pci.GPUIDs(env.Host)
	if err != nil {
		return nil, nil // the checks of GPUs report it
	}
	for _, id := range ids {
		d := pci.ReadFunction(env.Host, id.Address)
		if d.NUMA >= 0 {
			nodes[d.NUMA] = true
		}
		if len(d.Path) > 0 {
			roots[d.Path[0]] = true
		}
	}
	return nodes, roots
}

// planes finds the ports of devices whose link is several planes, each of which is
// a port among others that carry nothing: checks/fabric/hca.toml knows them.
func (f *Fabric) planes() {
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

// management says why a port does not carry jobs' traffic, as far as it says so
// itself. A node may have its default route over InfiniBand because it has nothing else.
func (p *Port) management(routes map[string]bool) string {
	switch {
	case p.HCA.PCI == "":
		return "in software"
	case p.idle:
		return "no plane of its own"
	case p.Layer != layerIB && slices.ContainsFunc(p.NetDevs, func(n string) bool { return routes[n] }):
		return frontEnd
	}
	return ""
}

// keepRails judges ports with a default route of IPv6 after all where more than half of
// at least four of one kind have one: rails have them by policy routing, in VRFs and from
// leaves that advertise themselves. Those of IPv4 are of the main table alone.
func (f *Fabric) keepRails() {
	all, left := map[string]int{}, map[string]int{}
	for i := range f.Ports {
		p := &f.Ports[i]
		all[portKind(p)]++
		if p.Left == frontEnd {
			left[portKind(p)]++
		}
	}
	for i := range f.Ports {
		if p := &f.Ports[i]; p.Left == frontEnd && all[portKind(p)] >= 4 && left[portKind(p)]*2 > all[portKind(p)] {
			p.Left = ""
		}
	}
}

// Why ports of the front end are left out.
const (
	frontEnd  = "the default route"
	spareLeft = "not cabled, beside the default route"
)

// leaveSpares leaves out the ports that are down beside the front end: the second port
// of such a card is seldom cabled. A port stays judged if another card of the front end
// uses the port in its place, or if it is the only InfiniBand that the node has.
// [fatesOf] still reports one that was up earlier.
func (f *Fabric) leaveSpares() {
	front := map[string]bool{} // cards
	for i := range f.Ports {
		if p := &f.Ports[i]; p.Left == frontEnd && p.PCI != "" {
			front[card(p.PCI)] = true
		}
	}
	for i := range f.Ports {
		p := &f.Ports[i]
		if p.Left != "" || p.State != checks.IBDown || !front[card(p.PCI)] {
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

// leaveManagers leaves out the adapters that manage NVSwitches.
func (f *Fabric) leaveManagers() {
	for i := range f.Ports {
		if p := &f.Ports[i]; p.Left == "" && p.Layer == layerIB && pcie.ManagesSwitches(f.env, p.PCI, p.HCA.Model) {
			p.Left = "manages NVSwitches"
		}
	}
}

// leaveFarOnes leaves out the Ethernet ports that are near to no GPU, where others
// are: those of management. InfiniBand is never that, nor is a port of the same board as a
// near one, nor one below the root port of a GPU, whatever NUMA node the firmware tells.
func (f *Fabric) leaveFarOnes(nodes map[int]bool, roots map[string]bool) {
	below := func(p *Port) bool {
		path := pci.ReadFunction(f.env.Host, p.PCI).Path
		return len(path) > 0 && roots[path[0]]
	}
	near := map[string]bool{} // kinds
	var far []*Port
	for i := range f.Ports {
		switch p := &f.Ports[i]; {
		case p.Layer != LayerEth || p.Left != "":
		case p.HCA.NUMA < 0, nodes[p.HCA.NUMA], below(p):
			near[portKind(p)] = true
		default:
			far = append(far, p)
		}
	}
	if len(nodes) == 0 || len(near) == 0 {
		return
	}
	for _, p := range far {
		if !near[portKind(p)] {
			p.Left = fmt.Sprintf("near to no GPU (NUMA node %d)", p.HCA.NUMA)
		}
	}
}

// manyPorts is how many Ethernet ports are there for jobs, and not for a front end.
const manyPorts = 4

// leaveFrontEnd leaves out the Ethernet ports of a node whose jobs use InfiniBand.
// Where they are many, and more than those of InfiniBand, jobs use RoCE, and
// InfiniBand is that of the storage: both are judged. Whether a port is up plays no
// part, so that none changes its role as it fails.
func (f *Fabric) leaveFrontEnd() {
	count := map[string]int{}
	for _, p := range f.Ports {
		if p.Left == "" {
			count[p.Layer]++
		}
	}
	if count[layerIB] == 0 || count[LayerEth] >= manyPorts && count[LayerEth] > count[layerIB] {
		return
	}
	for i := range f.Ports {
		if p := &f.Ports[i]; p.Layer == LayerEth && p.Left == "" {
			p.Left = "Ethernet beside InfiniBand"
		}
	}
}

// Judged are the ports that a check is about: those that are named, or all that
// carry jobs' traffic. A name is a device, DEVICE:PORT, or a glob; layer is
// "InfiniBand", "Ethernet", or "" for either. Names that nothing has come back as
// failures, and so do devices that could not be read at all, as Unknown.
func (f *Fabric) Judged(names []string, layer string) (ports []*Port, findings []checks.Finding) {
	of := func(p *Port) bool { return layer == "" || strings.EqualFold(p.Layer, layer) }
	if len(names) > 0 {
		var unnamed []checks.Finding
		for _, name := range names {
			found := f.named(name)
			if len(found) == 0 && !f.broken(name) {
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
		return ports, append(f.Settle(unnamed, "ib.unnamed"), f.unread(names)...)
	}
	for i := range f.Ports {
		p := &f.Ports[i]
		if of(p) && (p.Left == "" || layer != "" && p.Left == "Ethernet beside InfiniBand") {
			ports = append(ports, p)
		}
	}
	f.fact(ports)
	findings = f.unread(nil)
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

// named finds the ports of a device, one port, or those that a glob fits. Of a
// device with planes those without one are meant by their own name only.
func (f *Fabric) named(name string) (ports []*Port) {
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

// broken says whether a name is that of a device none of whose ports can be read.
func (f *Fabric) broken(name string) bool {
	return slices.ContainsFunc(f.HCAs, func(a rdma.HCA) bool {
		return a.Err != nil && len(a.Ports) == 0 && match.Glob(a.Name, strings.Split(name, ":")[0])
	})
}

// unread are the devices without a port that could be read; of those named, or all.
func (f *Fabric) unread(names []string) (findings []checks.Finding) {
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

// Unknown is that a device could not be read.
func (f *Fabric) Unknown(d checks.Device, err error) checks.Finding {
	return checks.Finding{Code: "ib.error", Severity: checks.Unknown, Device: d}.Describe(f.Check, "could not tell: %v", err)
}

// Subject is how a finding names a port: by its name, and where it is; its UUID is
// the GUID of the adapter.
func (p *Port) Subject() checks.Device {
	return checks.Device{Kind: "port", Name: p.Name(), PCI: p.PCI, UUID: p.HCA.GUID}
}

// HCADevice is how a finding names an adapter.
func HCADevice(a *rdma.HCA) checks.Device {
	return checks.Device{Kind: "hca", Name: a.Name, PCI: a.PCI, UUID: a.GUID}
}

// card is the address of a device without its function: ports of one card differ
// by that alone.
func card(address string) string {
	card, _, _ := strings.Cut(address, ".")
	return card
}

// portKind is what ports are compared with: those of the same board, used alike.
func portKind(p *Port) string {
	return strings.Join([]string{p.HCA.Vendor, p.HCA.Model, p.HCA.Board, p.Layer}, " ")
}

// onCard is where on its card a port is.
func onCard(p *Port) string {
	_, function, _ := strings.Cut(p.PCI, ".")
	return function + ":" + p.Port
}
