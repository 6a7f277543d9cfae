package checks

import (
	"fmt"
	"slices"
)

// judgeNUMA warns of NUMA nodes that cannot be true.
func (t *topologyJudge) judgeNUMA() {
	t.untold()
	t.contradicted()
	p, ofKind := t.env.platform()
	if ofKind < len(t.gpus) || !p.HasNVSwitches(ofKind) {
		return
	}
	node := t.gpus[0].NUMA
	if node < 0 || slices.ContainsFunc(t.gpus, func(g Located) bool { return g.NUMA != node }) {
		return
	}
	t.env.At("read /sys/devices/system/node")
	nodes, err := t.env.Host.NUMANodes()
	if err != nil {
		t.findings = append(t.findings, unreadable(err)...)
		return
	}
	if len(nodes) > 1 {
		f := Finding{Code: "topology.unbalanced", Severity: Warn, Want: plural(len(nodes), "NUMA node"), Got: fmt.Sprintf("node %d alone", node)}
		f.Message = fmt.Sprintf("%s:  all %d GPUs are on one NUMA node", hwTopologyName, len(t.gpus)) + wantGot(f)
		t.findings = append(t.findings, f)
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
			t.report(a.device(kind), Finding{Code: "topology.numa", Severity: Warn, Want: "a NUMA node, as its peers have"}, "its NUMA node is not told")
		}
	})
}

// contradicted finds devices that are below one root port, but on another NUMA node
// than most of those there. Of two that differ it is the GPU.
func (t *topologyJudge) contradicted() {
	byRoot := map[string]map[int]int{} // how much there is on each NUMA node
	name := map[string]map[int]string{}
	t.each(func(kind string, a *Located) {
		if a.NUMA < 0 || len(a.Bridges) == 0 {
			return
		}
		root := a.Bridges[0]
		if byRoot[root] == nil {
			byRoot[root], name[root] = map[int]int{}, map[int]string{}
		}
		byRoot[root][a.NUMA] += map[string]int{"gpu": 2, "hca": 3}[kind]
		name[root][a.NUMA] = a.String()
	})
	t.each(func(kind string, a *Located) {
		if a.NUMA < 0 || len(a.Bridges) == 0 {
			return
		}
		root := a.Bridges[0]
		most := a.NUMA
		for node, n := range byRoot[root] {
			if n > byRoot[root][most] || n == byRoot[root][most] && node < most {
				most = node
			}
		}
		if most != a.NUMA {
			f := Finding{Code: "topology.numa", Severity: Warn, Want: fmt.Sprintf("NUMA node %d", most), Got: fmt.Sprint(a.NUMA)}
			t.report(a.device(kind), f, "is below one root port %s with %s", root, name[root][most])
		}
	})
}
