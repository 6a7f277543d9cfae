package active

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/fabric"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
	"github.com/nhc-gpu/nhc-gpu/checks/topology"
)

// The pairs of check_ib_bw --pairs: ports that are expected to reach each other. Rails of RoCE
// are often separate networks, and InfiniBand can be one fabric for jobs and one for storage.

// findIBSubnet returns the subnet of an InfiniBand port: the prefix of its first GID, and the LID of
// its subnet manager, since the prefix is the same wherever an administrator has not set it. It
// returns "" if the subnet is unknown.
func (b *bwRun) findIBSubnet(p *fabric.Port) string {
	gid, err := rdma.IBGID0(b.env.Host, p.Device, p.Port)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%x, %s", gid[:8], p.SMLID)
}

// findSubnet returns the IP subnet of a RoCE port: that of the route to the neighbours on the GID's
// interface. It returns "" if there is none, for example for an interface in a VRF: its routes
// are in another table.
func (b *bwRun) findSubnet(g rdma.GID) string {
	address := netip.AddrFrom16(g.ID).Unmap()
	routes, _ := network.Routes(b.env.Host) // unreadable routes are unknown
	var best netip.Prefix
	for _, r := range routes {
		direct := r.Dev == g.NetDev && !r.Gateway.IsValid() && !r.Nowhere && !r.Prefix.IsSingleIP()
		if direct && r.Prefix.Contains(address) && r.Prefix.Bits() > max(best.Bits(), 0) {
			best = r.Prefix
		}
	}
	if !best.IsValid() {
		return ""
	}
	return best.Masked().String()
}

// pairUp pairs ports of one kind and one subnet, the nearest first. Without --pairs, or without a
// partner, a port is paired with itself.
func (b *bwRun) pairUp(ports []*fabric.Port) (list [][2]*fabric.Port) {
	if !b.c.Pairs {
		for _, p := range ports {
			list = append(list, [2]*fabric.Port{p, p})
		}
		return list
	}
	places := map[*fabric.Port]topology.Located{}
	for _, p := range ports {
		places[p] = topology.LocateDevice(b.env, p.Device, p.PCI)
	}
	left := slices.Clone(ports)
	for len(left) > 0 {
		p, other, best := left[0], left[0], topology.Nearness(-1)
		for _, q := range left[1:] {
			a, at := places[p], places[q]
			if n := a.Near(&at); b.canPair(p, q) && n > best {
				other, best = q, n
			}
		}
		list = append(list, [2]*fabric.Port{p, other})
		left = slices.DeleteFunc(left, func(q *fabric.Port) bool { return q == p || q == other })
	}
	b.reportAlone(ports)
	return list
}

// canPair reports whether two ports can be a pair.
func (b *bwRun) canPair(p, q *fabric.Port) bool {
	return p != q && p.Layer == q.Layer && p.Rate == q.Rate && p.HCA.Type == q.HCA.Type && b.reach[p] != "" && b.reach[p] == b.reach[q]
}

// reportAlone reports once the ports without a partner.
func (b *bwRun) reportAlone(ports []*fabric.Port) {
	var alone []string
	for _, p := range ports {
		if !slices.ContainsFunc(ports, func(q *fabric.Port) bool { return b.canPair(p, q) }) {
			alone = append(alone, p.Name())
		}
	}
	if len(alone) > 0 {
		b.report(checks.Device{}, checks.Finding{Code: "ib.bw.alone", Severity: checks.Skip, Got: strings.Join(alone, " ")}, "no second port of the kind in the subnet: these ports write to themselves")
	}
}
