package sweep

import (
	"fmt"
	"slices"
)

// noAddress is why a RoCE port is not tested by perftest.
const noAddress = "no RoCE v2 address"

// useRails returns the nodes with the rails that a stage uses, and remarks on the others. The rails that are named
// are used in any case. Else a rail is left out on the nodes of a model if jobs do not use it on at least half of
// them, or if stage rdma has no address there: nothing is wrong with it, and each test would fail. On fewer nodes
// it is tested, and its fault is found.
func useRails(stage Stage, nodes []Node, o *PlanOptions) (used []Node, remarks []Distribution) {
	type port struct{ model, name, layer string }
	of := func(n *Node, r *Rail) port { return port{n.Model, r.Name, r.Layer} }
	why := func(r *Rail) string {
		if r.Left == "" && stage == StageRDMA && r.Layer == layerEthernet && r.GID < 0 {
			return noAddress
		}
		return r.Left
	}
	has, left, bare := map[port]int{}, map[port]int{}, map[port]int{}
	var ports []port
	for i := range nodes {
		for k := range nodes[i].Rails {
			r := &nodes[i].Rails[k]
			p := of(&nodes[i], r)
			if has[p]++; has[p] == 1 {
				ports = append(ports, p)
			}
			if w := why(r); w != "" {
				left[p]++
				if w == noAddress {
					bare[p]++
				}
			}
		}
	}
	out := func(p port) bool { return 2*left[p] >= has[p] && left[p] > 0 && !o.names(p.name) }
	used = slices.Clone(nodes)
	for i := range used {
		n := &used[i]
		n.Rails = slices.DeleteFunc(slices.Clone(n.Rails), func(r Rail) bool { return out(of(n, &r)) })
	}
	for _, p := range ports {
		if out(p) && bare[p] > 0 {
			remarks = append(remarks, Distribution{Stage: stage, Kind: KindWrite, Plane: p.name, Model: p.model, Unit: unitOf(KindWrite),
				Remark: fmt.Sprintf("not tested: %s on %d of %d nodes", noAddress, bare[p], has[p])})
		}
	}
	return used, remarks
}
