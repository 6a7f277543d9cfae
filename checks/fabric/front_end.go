package fabric

import (
	"slices"

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

// findFrontEnd returns the card of the front end if it is of the rails' kind, that of rail: the only card with a
// default route that is below no root port of a GPU, beside at least four that are. There is none if a default route
// leads elsewhere: over a port of another kind, a bond, or an interface without RDMA. Without such a PCI tree nothing
// distinguishes it from a rail, whichever of them has the lowest metric: all are judged. With an odd number of GPUs and
// of such cards a GPU can be missing, and its rail is not the front end.
func (f rails) findFrontEnd(rail *Port) (front string) {
	kind := f.kindOf(rail)
	over := map[string][]*Port{} // by the interface of the route
	inside, outside := map[string]bool{}, map[string]bool{}
	for i := range f.Ports {
		p := &f.Ports[i]
		dev := p.route(f.routes)
		over[dev] = append(over[dev], p)
		switch {
		case f.kindOf(p) != kind:
		case f.gpus.sharesRoot(p):
			inside[card(p.PCI)] = true
		case dev != "":
			outside[card(p.PCI)] = true
		}
	}
	if len(inside) < manyPorts || f.gpus.count%2 != 0 && len(inside)%2 != 0 {
		return ""
	}
	for _, dev := range f.routes {
		if len(over[dev]) == 0 && f.isRailWithoutRDMA(dev, rail) {
			continue
		}
		if len(over[dev]) != 1 || f.kindOf(over[dev][0]) != kind {
			return ""
		}
	}
	for at := range outside {
		switch {
		case inside[at]:
		case front != "":
			return ""
		default:
			front = at
		}
	}
	return front
}

// isRailWithoutRDMA reports whether an interface belongs to a rail that is no RDMA device, or is unread.
func (f rails) isRailWithoutRDMA(dev string, rail *Port) bool {
	at := network.ReadNetIf(f.env.Host, dev).PCI
	d := pci.ReadFunction(f.env.Host, at)
	return at != "" && d.Vendor == rail.HCA.Vendor && d.Device == rail.HCA.Model &&
		slices.ContainsFunc(f.listMissing(rail), func(a missingHCA) bool { return a.at == at })
}
