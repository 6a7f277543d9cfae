package fabric

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// Which Ethernet ports are the front end, and which are rails. A port keeps its role while another one is
// down, unread or absent.

// rails decides which ports with a default route are rails.
type rails struct {
	*Fabric

	routes map[string]string
	gpus   *gpuPlaces
}

// keep judges ports with a default route of their own after all if more than half of the ports of one kind
// have one, the kind has at least four ports, and no other kind has as many ports for jobs: rails get such routes
// from DHCP, and those of IPv6 also from policy routing, VRFs, and leaf switches that advertise themselves. The
// ports below a bond share its route: they are a front end. So are those of [rails.findFrontEnd].
func (f rails) keep() {
	all, own, free, ports := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	of := map[string]*Port{} // a port of the kind
	for i := range f.Ports {
		ports[f.Ports[i].route(f.routes)]++
	}
	isOwn := func(p *Port) bool { return p.Left == frontEnd && ports[p.route(f.routes)] == 1 }
	for i := range f.Ports {
		p := &f.Ports[i]
		kind := f.kindOf(p)
		all[kind]++
		of[kind] = f.like(p)
		if isOwn(p) {
			own[kind]++
		}
		if p.Left == "" {
			free[kind]++
		}
	}
	for kind, n := range own {
		if n*2 <= all[kind] || all[kind] == 1 {
			continue
		}
		total := all[kind]
		if total < manyPorts {
			total += len(f.listMissing(of[kind]))
		}
		others := 0
		for other, n := range free {
			if other != kind {
				others = max(others, n)
			}
		}
		if total < manyPorts || others >= total {
			continue
		}
		front := f.findFrontEnd(of[kind])
		for i := range f.Ports {
			if p := &f.Ports[i]; f.kindOf(p) == kind && isOwn(p) && card(p.PCI) != front {
				p.Left = ""
			}
		}
	}
}

// findFrontEnd returns the card of the front end if it is of the rails' kind, that of rail. There is none if a
// default route leads elsewhere: over a port of another kind, a bond, or an interface without RDMA. Otherwise the
// first of these rules that applies decides:
//
//  1. The PCI tree: if at least four cards of the kind are below root ports of GPUs, and one card with a default
//     route is not, it is the front end; if all are, there is none. The rule does not apply to an odd number of
//     GPUs: one can be missing.
//  2. An earlier run: its front end is kept while it has a default route, and the kind has no more cards than then.
//  3. The metrics: the card whose route alone has the lowest one is the front end if the kind has one card too many
//     for rails, so an odd number, each card with a port that is up has a default route, and the card is not below
//     the root port of a GPU. Rails have such a route, too: NetworkManager gives each route a metric of its own.
//
// Absent cards count for the rules 2 and 3: see [Fabric.listMissing].
func (f rails) findFrontEnd(rail *Port) (front string) {
	kind := portKind(rail)
	over := map[string][]*Port{} // by the interface of the route
	cards, routed, up, inside := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	for i := range f.Ports {
		p := &f.Ports[i]
		dev := p.route(f.routes)
		over[dev] = append(over[dev], p)
		if f.kindOf(p) != kind {
			continue
		}
		at := card(p.PCI)
		cards[at] = true
		routed[at] = routed[at] || dev != ""
		up[at] = up[at] || checks.PortActive(p.IBPort)
		if f.gpus.above(p) {
			inside[at] = true
		}
	}
	for _, dev := range f.routes {
		if len(over[dev]) == 0 && f.isRailWithoutRDMA(dev, rail) {
			continue
		}
		if len(over[dev]) != 1 || f.kindOf(over[dev][0]) != kind {
			return ""
		}
	}
	var outside []string
	complete := true
	for at := range cards {
		if routed[at] && !inside[at] {
			outside = append(outside, at)
		}
		complete = complete && (routed[at] || !up[at])
	}
	if f.gpus.count%2 == 0 && len(inside) >= manyPorts && len(outside) <= 1 {
		if len(outside) == 0 {
			return ""
		}
		return f.choose(kind, len(cards), outside[0])
	}
	for _, a := range f.listMissing(rail) {
		cards[card(a.at)] = true
	}
	then, before, _ := strings.Cut(f.recallPorts().File.Choices[kind], " ")
	if n, err := strconv.Atoi(then); err == nil && len(cards) <= n && routed[before] {
		return before
	}
	lowest := over[firstRoute(f.env)]
	if len(lowest) != 1 || f.gpus.above(lowest[0]) || len(cards)%2 == 0 || !complete {
		return ""
	}
	return f.choose(kind, len(cards), card(lowest[0].PCI))
}

// isRailWithoutRDMA reports whether an interface belongs to a rail that is no RDMA device, or is unread.
func (f rails) isRailWithoutRDMA(dev string, rail *Port) bool {
	at := network.ReadNetIf(f.env.Host, dev).PCI
	d := pci.ReadFunction(f.env.Host, at)
	return at != "" && d.Vendor == rail.HCA.Vendor && d.Device == rail.HCA.Model &&
		slices.ContainsFunc(f.listMissing(rail), func(a missingHCA) bool { return a.at == at })
}

// choose keeps a front end for later runs, with the number of cards of the kind. [portsRun.remember] stores it.
func (f rails) choose(kind string, cards int, front string) string {
	f.choices[kind] = fmt.Sprint(cards, " ", front)
	return front
}

// firstRoute returns the interface with the lowest metric of the IPv4 default routes, "" if several have it.
func firstRoute(env *checks.Env) (first string) {
	routes, _ := network.Routes(env.Host) // Ask has read the file
	lowest := uint64(math.MaxUint64)
	for _, r := range routes {
		switch {
		case r.Nowhere || r.Prefix.Bits() != 0 || !r.Prefix.Addr().Is4():
		case r.Metric < lowest:
			first, lowest = r.Dev, r.Metric
		case r.Metric == lowest && r.Dev != first:
			first = ""
		}
	}
	return first
}
