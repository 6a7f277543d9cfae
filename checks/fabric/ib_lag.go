package fabric

import (
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
)

// A RoCE LAG is one RDMA device (mlx5_bond_0) over two ports of a card. The device stays ACTIVE
// while one of its ports is up, so only the bond's members show the other one.

// lag is the bond of a LAG port, with its members on the card of the port.
type lag struct {
	bond    network.NetIf
	members []network.NetIf
}

// lagOf returns the LAG of a RoCE port, nil if it has none. A bond of ports with an RDMA device
// each is not a LAG: each device shows the state of its own port.
func (f *Fabric) lagOf(p *Port) *lag {
	if p.Layer != LayerEth || p.PCI == "" {
		return nil
	}
	bonds, err := network.Bonds(f.env.Host)
	if err != nil {
		return nil // check_eth_link reports it
	}
	for _, name := range bonds {
		l := lag{bond: network.ReadNetIf(f.env.Host, name)}
		if l.bond.Bond == nil || !slices.ContainsFunc(p.NetDevs, func(dev string) bool { return slices.Contains(l.bond.Bond.Members, dev) }) {
			continue
		}
		for _, dev := range l.bond.Bond.Members {
			m := network.ReadNetIf(f.env.Host, dev)
			of := func(a rdma.HCA) bool { return a.PCI == m.PCI }
			if card(m.PCI) == card(p.PCI) && (m.PCI == p.PCI || !slices.ContainsFunc(f.HCAs, of)) {
				l.members = append(l.members, m)
			}
		}
		if len(l.members) > 1 {
			return &l
		}
	}
	return nil
}

// isStandby reports whether the interface of a port is a standby member of a bond: the kernel gives
// such a port no GID, though it is up. A LAG has the GIDs of its bond.
func (f *Fabric) isStandby(p *Port) bool {
	bonds, err := network.Bonds(f.env.Host)
	if err != nil || f.lagOf(p) != nil {
		return false
	}
	return slices.ContainsFunc(bonds, func(name string) bool {
		b := network.ReadNetIf(f.env.Host, name).Bond
		return b != nil && b.Active != "" && !slices.Contains(p.NetDevs, b.Active) &&
			slices.ContainsFunc(p.NetDevs, func(dev string) bool { return slices.Contains(b.Members, dev) })
	})
}

// interfaces returns the network interfaces that carry the traffic of a port, and the addresses of their
// adapters: of a LAG those of all members of its bond.
func (f *Fabric) interfaces(p *Port) (devs, pci []string) {
	l := f.lagOf(p)
	if l == nil {
		return p.NetDevs, []string{p.PCI}
	}
	for i := range l.members {
		devs, pci = append(devs, l.members[i].Name), append(pci, l.members[i].PCI)
	}
	return devs, pci
}

// netDevs returns the network interfaces alone.
func (f *Fabric) netDevs(p *Port) []string {
	devs, _ := f.interfaces(p)
	return devs
}
