package topology

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// judgeNUMA warns of NUMA nodes that cannot be true.
func (t *topologyJudge) judgeNUMA() {
	t.untold()
	t.contradicted()
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
		t.findings = append(t.findings, checks.Finding{Code: "topology.unbalanced", Severity: checks.Warn, Want: checks.Plural(len(nodes), "NUMA node"), Got: fmt.Sprintf("node %d alone", node)}.
			Describe(hwTopologyName, "all %d GPUs are on one NUMA node", len(t.gpus)))
	}
}

// each calls for every device, with its kind.
func (t *topologyJudge) each(do func(kind string, a *Located)) {
	for i := range t.gpus {
		do("gpu", &t.gpus[i])
	}
	for i := range t.nics {
		do("hca", &t.nics[i])
	}
}

// untold finds devices without a NUMA node where others have one.
func (t *topologyJudge) untold() {
	if !t.told() {
		return // a machine with one
	}
	t.each(func(kind string, a *Located) {
		if a.NUMA < 0 && a.err == nil {
			t.report(a.device(kind), checks.Finding{Code: "topology.numa", Severity: checks.Warn, Want: "a NUMA node, as its peers have"}, "its NUMA node is not told")
		}
	})
}

// contradicted finds devices below one root port that are on different NUMA nodes. Wrong
// are those that are not on the root port's own or, where it tells none, on that of most.
// Of as many on one node as on another none is blamed. A device alone below its root port
// has to be on the root port's own.
func (t *topologyJudge) contradicted() {
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
		case len(at.all) == 1 && own >= 0: // nothing else shares the root port
			right[root] = own
		case len(at.nodes) == 1: // a site may have set those of all devices
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
