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

// Which ports check_ib_bw --pairs has write to each other: those that are to be expected
// to reach each other. Rails of RoCE are often networks of their own, and InfiniBand may
// be one fabric for jobs and one for storage.

// ibSubnet names the subnet of a port of InfiniBand: by the prefix of its first GID, and
// by the LID of its subnet manager, since the prefix is the same wherever nobody has set
// it. "" if it is not told.
func (b *bwRun) ibSubnet(p *fabric.Port) string {
	gid, err := rdma.IBGID0(b.env.Host, p.Device, p.Port)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%x, %s", gid[:8], p.SMLID)
}

// subnet is the IP subnet of a port of RoCE: that of the route by which the node reaches
// its neighbours at the interface of the GID. "" if there is none, as of an interface in
// a VRF, whose routes are in another table.
func (b *bwRun) subnet(g rdma.GID) string {
	address := netip.AddrFrom16(g.ID).Unmap()
	routes, _ := network.Routes(b.env.Host) // what could not be read is not told
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

// pairUp pairs ports of one kind and one subnet, those first that are nearest to each
// other. Without pairs each has itself, as the one has that is left, or that no other is
// known to reach.
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
			if n := a.Near(&at); b.fit(p, q) && n > best {
				other, best = q, n
			}
		}
		list = append(list, [2]*fabric.Port{p, other})
		left = slices.DeleteFunc(left, func(q *fabric.Port) bool { return q == p || q == other })
	}
	b.tellAlone(ports)
	return list
}

// fit says whether two ports may be a pair.
func (b *bwRun) fit(p, q *fabric.Port) bool {
	return p != q && p.Layer == q.Layer && p.Rate == q.Rate && p.HCA.Type == q.HCA.Type && b.reach[p] != "" && b.reach[p] == b.reach[q]
}

// tellAlone says once which ports have no other to be a pair with.
func (b *bwRun) tellAlone(ports []*fabric.Port) {
	var alone []string
	for _, p := range ports {
		if !slices.ContainsFunc(ports, func(q *fabric.Port) bool { return b.fit(p, q) }) {
			alone = append(alone, p.Name())
		}
	}
	if len(alone) > 0 {
		b.report(checks.Device{}, checks.Finding{Code: "ib.bw.alone", Severity: checks.Skip, Got: strings.Join(alone, " ")}, "ports without another of their kind in their subnet write to themselves")
	}
}
