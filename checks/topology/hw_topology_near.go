package topology

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// switches says whether any PCIe switch is to be seen.
func (t *topologyJudge) switches() bool {
	below := func(a Located) bool { return len(a.Bridges) > 1 }
	return slices.ContainsFunc(t.gpus, below) || slices.ContainsFunc(t.nics, below)
}

// judgeNear judges each GPU by the adapter that is nearest to it. What comes back
// is why it was not.
func (t *topologyJudge) judgeNear() (skip []checks.Finding) {
	if len(t.gpus) == 0 || len(t.nics) == 0 {
		return nil // which has been said
	}
	p, ofKind := checks.NodePlatform(t.env)
	full := ofKind == len(t.gpus) && p.FullNetwork(ofKind, t.ports)
	need, severity := needed(t.Level), checks.Fail
	if t.Level == "" && full {
		need, severity = needed(p.GPUNetwork), checks.Warn
	}
	if need > sameHost && !t.switches() {
		hidden := checks.Finding{Code: "topology.hidden", Severity: checks.Unknown, Want: need.common()}.
			Phrase(hwTopologyName, "no PCIe switch is to be seen on this node: cannot tell what GPUs and adapters have in common")
		if t.Level != "" {
			t.findings = append(t.findings, hidden)
			return nil
		}
		hidden.Severity = checks.Skip
		if need = sameNUMA; !t.told() {
			return []checks.Finding{hidden}
		}
	}
	if t.Level == "" && need == sameNode {
		need, severity = t.ofPeers(), checks.Warn
	}
	t.far(need, severity)
	share, severity := t.Share, checks.Fail
	if share == 0 && full {
		share, severity = p.NetworkGPUs, checks.Warn
	}
	if need == sameNode && t.Share > 0 { // nothing says what near is
		if need = sameNUMA; t.switches() {
			need = sameRoot
		}
	}
	if share > 0 && need > sameNode {
		t.shared(need, share, severity)
	}
	return nil
}

// told says whether the NUMA node of some device is.
func (t *topologyJudge) told() bool {
	has := func(a Located) bool { return a.NUMA >= 0 }
	return slices.ContainsFunc(t.gpus, has) || slices.ContainsFunc(t.nics, has)
}

// nearest is the adapter that is nearest to a GPU, the first of several.
func (t *topologyJudge) nearest(g *Located) (nic *Located, near Nearness) {
	for i := range t.nics {
		if n := g.Near(&t.nics[i]); nic == nil || n > near {
			nic, near = &t.nics[i], n
		}
	}
	return nic, near
}

// fewPeers is how many GPUs a node has at least if one is to be told from the rest.
const fewPeers = 4

// ofPeers is what all GPUs but one have in common with an adapter: nothing if they
// differ more, as by the way the node was built.
func (t *topologyJudge) ofPeers() Nearness {
	if len(t.gpus) < fewPeers {
		return sameNode
	}
	count := map[Nearness]int{}
	for i := range t.gpus {
		_, near := t.nearest(&t.gpus[i])
		count[min(near, sameRoot)]++
	}
	for _, near := range []Nearness{sameRoot, sameHost, sameNUMA} {
		if count[near] == len(t.gpus)-1 {
			return near
		}
	}
	return sameNode
}

// far finds the GPUs without a near adapter. As many as there are adapters nobody
// knows the place of are given the benefit of the doubt.
func (t *topologyJudge) far(need Nearness, severity checks.Severity) {
	var far []int
	for i := range t.gpus {
		if _, near := t.nearest(&t.gpus[i]); near < need && t.gpus[i].err == nil {
			far = append(far, i)
		}
	}
	doubt := t.unread
	if need < sameRoot { // which NUMA nodes tell, too
		doubt += t.blurred
	}
	if len(far) <= doubt {
		return
	}
	for _, i := range far {
		g := &t.gpus[i]
		f := checks.Finding{Code: "topology.far", Severity: severity, Want: need.common(), Remedy: checks.ReseatOrRMA}
		nic, near := t.nearest(g)
		if own := t.expected(i, need); own != nil {
			f.Got = g.Near(own).common()
			t.report(g.device("gpu"), f, "its adapter should be %s, which is near to no GPU", own)
			continue
		}
		f.Got = near.common()
		t.report(g.device("gpu"), f, "no adapter is near to it, the nearest is %s", nic)
	}
}

// expected is the adapter that a GPU should have: of those that are near to no GPU
// the nearest, and of several the one at its own place in their order.
func (t *topologyJudge) expected(gpu int, need Nearness) (own *Located) {
	best := 0
	for i := range t.nics {
		n := &t.nics[i]
		if slices.ContainsFunc(t.gpus, func(g Located) bool { return g.Near(n) >= need }) {
			continue
		}
		distance := i - gpu
		if distance < 0 {
			distance = -distance
		}
		if rank := int(t.gpus[gpu].Near(n))<<16 - distance; own == nil || rank > best {
			own, best = n, rank
		}
	}
	return own
}

// shared finds the GPUs for which no near adapter is left when each serves so many:
// that is so only if no other distribution has one.
func (t *topologyJudge) shared(need Nearness, most int, severity checks.Severity) {
	served := make([][]int, len(t.nics)) // GPUs by adapter
	for i := range t.gpus {
		nic, near := t.nearest(&t.gpus[i])
		if near < need || t.serve(i, need, most, served, make([]bool, len(t.nics))) {
			continue
		}
		at := slices.IndexFunc(t.nics, func(n Located) bool { return n.Name == nic.Name })
		var others []string
		for _, o := range served[at] {
			others = append(others, t.gpus[o].Name)
		}
		f := checks.Finding{Code: "topology.shared", Severity: severity, Want: "at most " + checks.Plural(most, "GPU"), Got: fmt.Sprint(len(others) + 1)}
		t.report(t.gpus[i].device("gpu"), f, "shares adapter %s with %s", nic, strings.Join(others, " "))
	}
}

// serve gives a GPU a near adapter, if need be by giving another GPU another one.
func (t *topologyJudge) serve(gpu int, need Nearness, most int, served [][]int, seen []bool) bool {
	order := make([]int, len(t.nics))
	for i := range order {
		order[i] = i
	}
	g := &t.gpus[gpu]
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(g.Near(&t.nics[b]), g.Near(&t.nics[a])) })
	for _, i := range order {
		if seen[i] || g.Near(&t.nics[i]) < need {
			continue
		}
		seen[i] = true
		if len(served[i]) < most {
			served[i] = append(served[i], gpu)
			return true
		}
		for k, other := range served[i] {
			if t.serve(other, need, most, served, seen) {
				served[i][k] = gpu
				return true
			}
		}
	}
	return false
}
