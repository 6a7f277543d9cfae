package sweep

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// plane is a plane or a rail of the cluster, or all rails of one layer. Lists are by node.
type plane struct {
	name   string
	names  []string // of its interfaces, or of the device of a rail
	has    []bool
	count  int // nodes that have it
	mtu    []int
	speed  []int // Mb/s; 0 is unknown
	pcie   []int // Gb/s, as of a port; 0 is unknown
	subnet []netip.Prefix
}

func newPlane(name string, nodes int) *plane {
	return &plane{name: name, has: make([]bool, nodes), mtu: make([]int, nodes), speed: make([]int, nodes), pcie: make([]int, nodes), subnet: make([]netip.Prefix, nodes)}
}

// add adds the port of a node.
func (p *plane) add(i int32, speed, pcie int) {
	if !p.has[i] {
		p.has[i], p.count = true, p.count+1
	}
	p.speed[i] += max(speed, 0)
	p.pcie[i] += max(pcie, 0)
}

// least returns what the port of a node and its PCIe link both let through, Gb/s; 0 if it is unknown.
func (p *plane) least(i int32) float64 {
	speed, pcie := float64(p.speed[i])/1000, float64(p.pcie[i])
	if pcie > 0 && pcie < speed {
		return pcie
	}
	return speed
}

// called reports whether a plane or a rail has a name, or an interface or the device with it.
func (p *plane) called(name string) bool { return name == p.name || slices.Contains(p.names, name) }

// In reports whether an interface belongs to a plane of the cluster. The name of a plane is the name of
// its interfaces, or those names with / in between, or the subnet.
func (p Plane) In(plane string) bool {
	if subnet, err := netip.ParsePrefix(plane); err == nil {
		return p.Address.IsValid() && p.Address.Masked() == subnet.Masked()
	}
	return slices.Contains(strings.Split(plane, "/"), p.Name)
}

// subnet returns the subnet of an interface, and whether others can be in it.
func (p Plane) subnet() (netip.Prefix, bool) {
	return p.Address.Masked(), p.Address.IsValid() && p.Address.Bits() < p.Address.Addr().BitLen()
}

// planesOf returns the planes of the nodes that are alive. Interfaces of the same name are one plane, and
// so are different names in the same subnet, unless a node has both: it has two interfaces in the subnet,
// or one of them has the wrong name or address.
func planesOf(nodes []Node, alive []int32) (planes []plane) {
	n := newNaming(nodes, alive)
	n.joinSubnets()
	at := map[*nameGroup]int{}
	for _, i := range alive {
		for _, pl := range nodes[i].Planes {
			g := n.groups[pl.Name]
			k, ok := at[g]
			if !ok {
				k = len(planes)
				at[g] = k
				p := newPlane(g.name(), len(nodes))
				p.names = g.names
				planes = append(planes, *p)
			}
			p := &planes[k]
			p.add(i, pl.Speed, pl.PCIe)
			p.mtu[i] = pl.MTU
			if subnet, ok := pl.subnet(); ok {
				p.subnet[i] = subnet
			}
		}
	}
	return planes
}

// planes returns the planes that are to be tested, and notes the others that were asked for.
func (f *fleet) planes(o *PlanOptions, kind Kind) (planes []plane, unmet []Distribution) {
	planes = planesOf(f.nodes, f.alive())
	unmet = f.unmet(o, kind, func(yield func(*plane) bool) {
		for i := range planes {
			if !yield(&planes[i]) {
				return
			}
		}
	})
	return slices.DeleteFunc(planes, func(p plane) bool { return !o.wants(&p) }), unmet
}

// naming finds out which names of interfaces are the same plane.
type naming struct {
	groups  map[string]*nameGroup // by the name of an interface
	subnets map[netip.Prefix]map[string]int
	crowded map[netip.Prefix]bool // a node has two interfaces there
}

// nameGroup is the names of one plane. No node has two of them.
type nameGroup struct {
	names  []string
	nodes  map[int32]bool
	subnet netip.Prefix // the plane is all interfaces in this subnet, and has its name
}

// mostNames bounds the names of a plane that has no subnet of its own. They are its name.
const mostNames = 8

func newNaming(nodes []Node, alive []int32) *naming {
	n := &naming{groups: map[string]*nameGroup{}, subnets: map[netip.Prefix]map[string]int{}, crowded: map[netip.Prefix]bool{}}
	for _, i := range alive {
		seen := map[netip.Prefix]bool{}
		for _, pl := range nodes[i].Planes {
			g := n.groups[pl.Name]
			if g == nil {
				g = &nameGroup{names: []string{pl.Name}, nodes: map[int32]bool{}}
				n.groups[pl.Name] = g
			}
			g.nodes[i] = true
			subnet, ok := pl.subnet()
			if !ok {
				continue
			}
			if n.subnets[subnet] == nil {
				n.subnets[subnet] = map[string]int{}
			}
			n.subnets[subnet][pl.Name]++
			n.crowded[subnet] = n.crowded[subnet] || seen[subnet]
			seen[subnet] = true
		}
	}
	return n
}

// joinSubnets joins the names in the same subnet. Names of many nodes come first: a single wrong name or
// address joins nothing that most nodes keep apart.
func (n *naming) joinSubnets() {
	type member struct {
		subnet netip.Prefix
		name   string
		nodes  int
	}
	var list []member
	for subnet, names := range n.subnets {
		if n.owns(subnet, names) {
			n.joinAll(subnet, names)
			continue
		}
		for name, nodes := range names {
			list = append(list, member{subnet, name, nodes})
		}
	}
	slices.SortFunc(list, func(a, b member) int {
		return cmp.Or(b.nodes-a.nodes, strings.Compare(a.name, b.name), a.subnet.Compare(b.subnet))
	})
	placed := map[netip.Prefix][]*nameGroup{}
	for _, m := range list {
		g := n.groups[m.name]
		if !slices.ContainsFunc(placed[m.subnet], func(other *nameGroup) bool { return n.join(n.groups[other.names[0]], g) }) {
			placed[m.subnet] = append(placed[m.subnet], g)
		}
	}
}

// owns reports whether the names of a subnet are in no other one, and each node has one interface in it.
func (n *naming) owns(subnet netip.Prefix, names map[string]int) bool {
	if n.crowded[subnet] {
		return false
	}
	for name, nodes := range names {
		if len(n.groups[name].nodes) != nodes {
			return false
		}
	}
	return true
}

// joinAll joins all names of a subnet.
func (n *naming) joinAll(subnet netip.Prefix, names map[string]int) {
	all := &nameGroup{nodes: map[int32]bool{}, subnet: subnet}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		all.add(n.groups[name])
		n.groups[name] = all
	}
}

// join joins two groups, unless a node is in both or they have too many names. It reports whether they
// are one group then.
func (n *naming) join(a, b *nameGroup) bool {
	if a == b {
		return true
	}
	if len(a.names)+len(b.names) > mostNames || a.meets(b) {
		return false
	}
	a.add(b)
	for _, name := range b.names {
		n.groups[name] = a
	}
	return true
}

func (g *nameGroup) meets(other *nameGroup) bool {
	for i := range other.nodes {
		if g.nodes[i] {
			return true
		}
	}
	return false
}

func (g *nameGroup) add(other *nameGroup) {
	g.names = append(g.names, other.names...)
	for i := range other.nodes {
		g.nodes[i] = true
	}
}

func (g *nameGroup) name() string {
	if len(g.names) > 1 && g.subnet.IsValid() {
		return g.subnet.String()
	}
	return strings.Join(g.names, "/")
}

// strays remarks on the interfaces that are in another subnet than those of the same name on most nodes.
func strays(f *fleet, planes []plane, kind Kind) (remarks []Distribution) {
	where := map[string]map[netip.Prefix][]string{}
	for _, i := range f.alive() {
		for _, pl := range f.nodes[i].Planes {
			if subnet, ok := pl.subnet(); ok {
				if where[pl.Name] == nil {
					where[pl.Name] = map[netip.Prefix][]string{}
				}
				where[pl.Name][subnet] = append(where[pl.Name][subnet], f.name(i))
			}
		}
	}
	for _, pl := range planes {
		for _, name := range pl.names {
			if remark, nodes := strayRemark(where[name]); remark != "" {
				remarks = append(remarks, Distribution{Stage: f.stage, Kind: kind, Plane: name, Unit: unitOf(kind), Remark: remark, Nodes: strings.Join(nodes, ",")})
			}
		}
	}
	return remarks
}

// strayRemark returns the nodes that are not in the subnet of most, and a remark that names them, "" if there
// is no such subnet.
func strayRemark(nodes map[netip.Prefix][]string) (remark string, strays []string) {
	var usual netip.Prefix
	total := 0
	for subnet, list := range nodes {
		total += len(list)
		if len(list) > len(nodes[usual]) {
			usual = subnet
		}
	}
	most := len(nodes[usual])
	if total < 3 || !mostly(most, total) {
		return "", nil
	}
	var list []string
	for subnet, names := range nodes {
		for _, name := range names {
			if subnet != usual {
				list, strays = append(list, fmt.Sprintf("%s on %s", subnet, name)), append(strays, name)
			}
		}
	}
	slices.Sort(list)
	slices.Sort(strays)
	return fmt.Sprintf("want the subnet %s as on %d of %d nodes, got %s", usual, most, total, listed(list)), strays
}

// usual returns the speed that most nodes have, 0 if it is unknown.
func (p *plane) usual() int {
	speed, _ := commonest(slices.DeleteFunc(slices.Clone(p.speed), func(s int) bool { return s == 0 }))
	return speed
}

// railsOf returns the rails of the nodes that are alive: the ports of the same name and link layer.
func railsOf(nodes []Node, alive []int32) (rails []*plane) {
	at := map[[2]string]*plane{}
	for _, i := range alive {
		for _, r := range nodes[i].Rails {
			key := [2]string{r.Name, r.Layer}
			if at[key] == nil {
				at[key] = newPlane(r.Name, len(nodes))
				device, _, _ := strings.Cut(r.Name, ":")
				at[key].names = []string{device}
				rails = append(rails, at[key])
			}
			at[key].add(i, 1000*r.Speed, r.PCIe)
			for _, pl := range nodes[i].Planes {
				if subnet, ok := pl.subnet(); ok && pl.Name == r.Interface && r.Layer == layerEthernet {
					at[key].subnet[i] = subnet
				}
			}
		}
	}
	return rails
}

// The link layers of RDMA ports.
const (
	layerInfiniBand = "InfiniBand"
	layerEthernet   = "Ethernet"
)

// fabric returns the network that NCCL uses between nodes that have it: InfiniBand, else RoCE, else TCP, which
// is "", and its ports.
func (n *Node) fabric() (layer string, ports []Rail) {
	for _, l := range []string{layerEthernet, layerInfiniBand} {
		if slices.ContainsFunc(n.Rails, func(r Rail) bool { return r.Layer == l }) {
			layer = l
		}
	}
	return layer, slices.DeleteFunc(slices.Clone(n.Rails), func(r Rail) bool { return r.Layer != layer })
}

// fabricsOf returns the nodes between which NCCL can use the same network. Nodes without the network of most
// of their model are tested with them, unless they are a group: a fault, until they pass. So are one or two
// nodes of other models.
func fabricsOf(nodes []Node, alive []int32) (fabrics []*plane) {
	models := map[string]map[string]int{} // nodes by model and layer
	total := map[string]int{}
	for _, i := range alive {
		n := &nodes[i]
		if models[n.Model] == nil {
			models[n.Model] = map[string]int{}
		}
		layer, _ := n.fabric()
		models[n.Model][layer]++
		total[n.Model]++
	}
	at := map[string]*plane{}
	var layers []string
	for _, i := range alive {
		layer, ports := nodes[i].fabric()
		if count := models[nodes[i].Model]; !isGroup(count[layer], total[nodes[i].Model]) {
			layer = slices.MaxFunc(slices.Sorted(maps.Keys(count)), func(a, b string) int { return count[a] - count[b] })
		}
		if at[layer] == nil {
			at[layer] = newPlane("", len(nodes))
			layers = append(layers, layer)
		}
		at[layer].add(i, 0, 0)
		for _, r := range ports {
			at[layer].add(i, 1000*r.Speed, r.PCIe)
		}
	}
	slices.SortStableFunc(layers, func(a, b string) int { return at[b].count - at[a].count })
	for _, l := range layers {
		if at[l].count >= leastGroup || len(fabrics) == 0 {
			fabrics = append(fabrics, at[l])
			continue
		}
		for i, has := range at[l].has {
			if has {
				fabrics[0].add(int32(i), at[l].speed[i], at[l].pcie[i])
			}
		}
	}
	return fabrics
}

// commonest returns the most frequent number, the larger one of two; and how often it occurs.
func commonest(numbers []int) (most, times int) {
	count := map[int]int{}
	for _, n := range numbers {
		count[n]++
	}
	for n, c := range count {
		if c > times || c == times && n > most {
			most, times = n, c
		}
	}
	return most, times
}

// noAddress is why a RoCE port is not tested by perftest.
const noAddress = "no RoCE v2 address"

// anyModel is used instead of a model for the nodes of all models.
const anyModel = "all models"

// useRails returns the nodes with the rails that a stage uses, and remarks on the others. The rails that are named
// are used in any case. Else it excludes a rail on the nodes of a model if jobs do not use it on at least half of
// them, or if stage rdma has no address there: it is healthy, and each test would fail. On fewer nodes it is tested,
// and its fault is found. One or two nodes of a model show no usual address: those of all models do.
func useRails(stage Stage, nodes []Node, o *PlanOptions) (used []Node, remarks []Distribution) {
	type port struct{ model, name, layer string }
	of := func(n *Node, r *Rail) port { return port{n.Model, r.Name, r.Layer} }
	why := func(r *Rail) string {
		if r.Left == "" && stage == StageRDMA && r.Layer == layerEthernet && r.GID < 0 {
			return noAddress
		}
		return r.Left
	}
	has, left, bare := map[port]int{}, map[port]int{}, map[port][]string{}
	var ports []port
	for i := range nodes {
		for k := range nodes[i].Rails {
			r := &nodes[i].Rails[k]
			for at, p := range []port{of(&nodes[i], r), {anyModel, r.Name, r.Layer}} {
				if has[p]++; has[p] == 1 && at == 0 {
					ports = append(ports, p)
				}
				if w := why(r); w != "" {
					left[p]++
					if w == noAddress {
						bare[p] = append(bare[p], nodes[i].Name)
					}
				}
			}
		}
	}
	peers := func(p port) port {
		if has[p] < leastGroup && len(bare[p]) > 0 {
			p.model = anyModel
		}
		return p
	}
	out := func(p port) bool {
		q := peers(p)
		switch {
		case left[p] == 0 || o.names(p.name):
			return false
		case has[q] < leastGroup && len(bare[p]) > 0:
			return left[q] == has[q]
		}
		return 2*left[q] >= has[q]
	}
	used = slices.Clone(nodes)
	for i := range used {
		n := &used[i]
		n.Rails = slices.DeleteFunc(slices.Clone(n.Rails), func(r Rail) bool { return out(of(n, &r)) })
	}
	for _, p := range ports {
		if out(p) && len(bare[p]) > 0 {
			d := Distribution{Stage: stage, Kind: KindWrite, Plane: p.name, Model: p.model, Unit: unitOf(KindWrite), Remark: fmt.Sprintf("not tested: %s on %d of %d nodes", noAddress, len(bare[p]), has[p])}
			if q := peers(p); len(bare[q]) < has[q] { // the nodes differ from others
				d.Nodes = strings.Join(bare[p], ",")
			}
			remarks = append(remarks, d)
		}
	}
	return used, remarks
}
