package sweep

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
)

// Suspects implements Plan.
func (p *pairPlan) Suspects() []Suspect {
	all, _ := p.separated()
	all = slices.Concat(p.given, p.f.lostSuspects(), all)
	all = append(all, p.nodeSuspects()...)
	for _, q := range p.asked {
		switch {
		case p.isPairFault(q):
			all = append(all, p.pairSuspect(q))
		case q.about == aboutLeaves && q.state == accused && !p.failsApart(&p.looks[q.base]):
			all = append(all, p.leavesSuspect(q))
		}
	}
	all = slices.Concat(all, p.spineSuspects(), p.slowLeaves(), p.sideSuspects())
	all = merge(all)
	sortSuspects(all)
	return all
}

// isPairFault reports whether an inquiry accuses a pair, and nothing else explains its fault. Of a pair that fails in
// both directions only one is a suspect.
func (p *pairPlan) isPairFault(q *inquiry) bool {
	return q.about == aboutPair && q.state == accused && !p.failsApart(&p.looks[q.base]) && !p.leavesAccused(q) &&
		!p.blamed[q.node] && !p.blamed[q.other] && (q.node <= q.other || !p.reverse(q))
}

// reverse reports whether the other direction of a pair is faulty, too.
func (p *pairPlan) reverse(q *inquiry) bool {
	back := p.byKey[inquiryKey{about: aboutPair, test: q.test, node: q.other, other: q.node}]
	return back != nil && back.state == accused
}

// leavesAccused reports whether the path between two leaves explains a faulty pair.
func (p *pairPlan) leavesAccused(q *inquiry) bool {
	a, b := p.leafPair(q.node, q.other)
	l := p.byKey[inquiryKey{about: aboutLeaves, test: q.test, node: a, other: b}]
	return a >= 0 && l != nil && l.state == accused
}

// nodeSuspects makes one suspect of all inquiries that accuse a node of the same fault. A plane is
// named if the node has others that are healthy.
func (p *pairPlan) nodeSuspects() (all []Suspect) {
	type key struct {
		node int32
		code string
	}
	groups := map[key][]*inquiry{}
	var order []key
	for _, q := range p.asked {
		if q.about != aboutNode || q.state != accused {
			continue
		}
		k := key{q.node, codeOf(p.tests[q.test].task.Kind, q.found.symptom, q.found.fault)}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], q)
	}
	var lists [][]*inquiry // of each suspect
	add := func(k key, plane string, list []*inquiry) {
		all, lists = append(all, p.nodeSuspect(k.node, k.code, plane, list)), append(lists, list)
	}
	for _, k := range order {
		planes := map[string][]*inquiry{}
		for _, q := range groups[k] {
			planes[p.tests[q.test].task.Plane] = append(planes[p.tests[q.test].task.Plane], q)
		}
		if len(planes) > 1 && len(planes) == p.planesWith(k.node, groups[k][0].test) {
			add(k, "", groups[k])
		} else {
			for _, name := range slices.Sorted(maps.Keys(planes)) {
				add(k, name, planes[name])
			}
		}
	}
	return joinAlike(p.joinGroups(p.joinLeaves(all, lists)), len(p.f.alive()))
}

// planesWith returns how many planes of a test's kind a node has.
func (p *pairPlan) planesWith(node int32, test int) (n int) {
	for t := range p.tests {
		if p.tests[t].task.Kind == p.tests[test].task.Kind && p.tests[t].task.Op == p.tests[test].task.Op && p.tests[t].has(node) {
			n++
		}
	}
	return n
}

// joinLeaves accuses a leaf switch instead of its nodes if most of them are suspects for the same
// fault, and other leaves are healthy. It returns the suspects and the inquiries of each.
func (p *pairPlan) joinLeaves(all []Suspect, lists [][]*inquiry) (kept []Suspect, of [][]*inquiry) {
	leaves := map[string][]int{} // by code, plane and leaf
	for i, s := range all {
		if leaf := p.f.nodes[p.f.index[s.Node]].Leaf; leaf != "" {
			at := s.Code + "\x00" + s.Plane + "\x00" + leaf
			leaves[at] = append(leaves[at], i)
		}
	}
	drop := map[int]bool{}
	for _, at := range slices.Sorted(maps.Keys(leaves)) {
		list := leaves[at]
		s := all[list[0]]
		number := p.leaves[p.f.index[s.Node]]
		members := len(p.members[number])
		if len(list) < 3 || 2*len(list) <= members || 2*members > len(p.f.nodes) {
			continue
		}
		var nodes []string
		for _, i := range list {
			drop[i] = true
			nodes = append(nodes, all[i].Node)
		}
		leaf := p.f.nodes[p.f.index[s.Node]].Leaf
		s.Node, s.Leaves, s.Partners, s.Looks = "", []string{leaf}, nodes, len(list)*s.Looks
		s.Text = fmt.Sprintf("%s: %d of %d nodes of leaf %s: %s", cmpText(s.Plane, "all planes"), len(list), members, leaf, codeRow(s.Code).Fault)
		s.Do = doUplinks
		all, lists = append(all, s), append(lists, nil)
	}
	for i, s := range all {
		if !drop[i] {
			kept, of = append(kept, s), append(of, lists[i])
		}
	}
	return kept, of
}

func (p *pairPlan) nodeSuspect(node int32, code, plane string, list []*inquiry) Suspect {
	first := list[0]
	for _, q := range list {
		if q.found.confidence(p.inquiries(q.test)) > first.found.confidence(p.inquiries(first.test)) {
			first = q
		}
	}
	task := p.tests[first.test].task
	s := Suspect{
		Node: p.f.name(node), Plane: plane, Stage: p.f.stage, Kind: task.Kind, Code: code,
		Looks: first.found.looks, Partners: p.f.names(first.found.partners), Confidence: first.found.confidence(p.inquiries(first.test)),
		Doubt: first.found.doubt || first.found.symptom == unable || first.found.symptom == broken && p.blamesOthers(first), Way: p.way(list), Ops: p.opsOf(node, list),
	}
	if s.Doubt {
		s.Confidence = min(s.Confidence, 0.5)
	}
	addNumbers(&s, first.found)
	s = s.explain(subjectOf(s.Plane, s.Way, s.Kind) + describeFinding(s, first.found))
	s.doubtOdd(p.tests[first.test].odd[node], first.found.symptom)
	return s
}

// inquiries returns how many inquiries a test has opened.
func (p *pairPlan) inquiries(test int) (n int) {
	for _, q := range p.asked {
		if q.test == test && q.about != aboutGroup {
			n++
		}
	}
	return n
}

// way returns the direction of a fault that shows in one only.
func (p *pairPlan) way(list []*inquiry) string {
	role := list[0].role
	for _, q := range list {
		if q.role != role {
			return ""
		}
	}
	return role.String()
}

// opsOf lists the collectives that show a fault, with those that needed no confirmation of their own.
func (p *pairPlan) opsOf(node int32, list []*inquiry) (ops []string) {
	for _, q := range p.asked {
		if q.about != aboutNode || q.node != node || q.state != accused && q.state != explained {
			continue
		}
		t := p.tests[q.test]
		if t.family != p.tests[list[0].test].family || t.task.Op == "" {
			continue
		}
		op := t.task.label()
		if !slices.Contains(ops, op) {
			ops = append(ops, op)
		}
	}
	return ops
}

// pairSuspect accuses a pair whose nodes are healthy with others. If no other partner could prove
// that, it is a doubt.
func (p *pairPlan) pairSuspect(q *inquiry) Suspect {
	l, task := &p.looks[q.base], p.tests[q.test].task
	s := Suspect{
		Node: p.f.name(l.from), Peer: p.f.name(l.to), Plane: task.Plane, Stage: p.f.stage, Kind: task.Kind,
		Code: codeOf(task.Kind, q.found.symptom, q.found.fault), Looks: q.found.looks, Confidence: 0.9 * q.found.confidence(p.inquiries(q.test)),
	}
	if task.Op != "" {
		s.Ops = []string{task.label()}
	}
	s.Doubt = !p.bothAre(l, cleared)
	if p.tests[q.test].directed {
		s.Way = sends.String()
		if p.reverse(q) {
			s.Way = ""
		}
	}
	addNumbers(&s, q.found)
	text := fmt.Sprintf("%s to %s: ", s.Node, s.Peer)
	if s.Way == "" {
		text = fmt.Sprintf("between %s and %s: ", s.Node, s.Peer)
	}
	text = subjectOf(s.Plane, "", s.Kind) + text + describeFinding(s, q.found)
	if s.Doubt {
		s.Confidence = min(s.Confidence, doubtConfidence)
		s = s.explain(text + ", and no proven third node shows which of them is faulty")
		s.Do = "Test each of the two with a third node."
		return s
	}
	s = s.explain(text + ", although both are healthy with others")
	s.Do = "Exchange the ports of one node with a healthy one: if the fault stays with the path, replace the cable between the switches, or correct the route."
	return s
}

func (p *pairPlan) leavesSuspect(q *inquiry) Suspect {
	task := p.tests[q.test].task
	leaves := []string{p.f.nodes[p.members[q.node][0]].Leaf, p.f.nodes[p.members[q.other][0]].Leaf}
	s := Suspect{
		Leaves: leaves, Plane: task.Plane, Stage: p.f.stage, Kind: task.Kind, Code: codeOf(task.Kind, q.found.symptom, q.found.fault),
		Looks: q.found.looks, Partners: p.f.names(q.tried), Confidence: 0.95 * q.found.confidence(p.inquiries(q.test)),
	}
	if s.Doubt = !p.bothAre(&p.looks[q.base], cleared) || p.hasCommonNode(q); s.Doubt {
		s.Confidence = min(s.Confidence, doubtConfidence)
	}
	addNumbers(&s, q.found)
	bare := s
	bare.Partners = nil
	s = s.explain(subjectOf(s.Plane, "", s.Kind) + fmt.Sprintf("between the leaf switches %s and %s: ", leaves[0], leaves[1]) + describeFinding(bare, q.found) + ", between different pairs of nodes")
	s.Do = "Look for errors at the uplinks of both leaf switches, and replace the cables between them and the spine one by one."
	return s
}

// together reports whether a node is healthy with another accused one in the test of an inquiry that
// accuses it, and with which.
func (p *pairPlan) together(q *inquiry) (others []int32) {
	for _, g := range p.asked {
		if g.about != aboutGroup || g.state != cleared || g.test != q.test || g.role != q.role {
			continue
		}
		switch {
		case g.node == q.node && q.role != receives:
			others = append(others, g.other)
		case g.other == q.node && q.role != sends:
			others = append(others, g.node)
		}
	}
	return others
}

// joinGroups replaces suspects that pass together by one suspect: what they share, such as a switch.
func (p *pairPlan) joinGroups(all []Suspect, lists [][]*inquiry) []Suspect {
	groups := map[string][]int{} // by code
	with := map[int][]int32{}
	for i, s := range all {
		var others []int32
		for _, q := range lists[i] {
			list := p.together(q)
			if len(list) == 0 {
				others = nil
				break
			}
			others = append(others, list...)
		}
		if len(others) > 0 {
			with[i] = others
			groups[s.Code] = append(groups[s.Code], i)
		}
	}
	drop := map[int]bool{}
	for _, k := range slices.Sorted(maps.Keys(groups)) {
		union := indexes32(len(p.f.nodes))
		for _, i := range groups[k] {
			for _, other := range with[i] {
				union[root(union, p.f.index[all[i].Node])] = root(union, other)
			}
		}
		joined := map[int32][]int{}
		var order []int32
		for _, i := range groups[k] {
			r := root(union, p.f.index[all[i].Node])
			if joined[r] == nil {
				order = append(order, r)
			}
			joined[r] = append(joined[r], i)
		}
		for _, r := range order {
			list := joined[r]
			if len(list) == 1 {
				s := &all[list[0]]
				s.Doubt, s.Confidence = true, min(s.Confidence, doubtConfidence)
				continue
			}
			slices.SortStableFunc(list, func(a, b int) int {
				return cmp.Or(len(all[a].Plane)-len(all[b].Plane), len(all[a].Way)-len(all[b].Way))
			})
			s := all[list[0]]
			text := s.Text
			s.Node, s.Partners, s.Looks = "", nil, 0
			for _, i := range list {
				drop[i] = true
				s.Partners, s.Looks = append(s.Partners, all[i].Node), s.Looks+all[i].Looks
			}
			slices.Sort(s.Partners)
			s.Partners = slices.Compact(s.Partners)
			if !p.allGiven(s.Partners, s.Code, s.Plane) {
				all = append(all, groupSuspect(s, text))
			}
		}
	}
	var kept []Suspect
	for i, s := range all {
		if !drop[i] {
			kept = append(kept, s)
		}
	}
	return kept
}

// slowLeaves returns the leaf switches whose paths are slow. With fewer than five leaves they may be far
// from the others. A slow node explains a leaf in doubt.
func (p *pairPlan) slowLeaves() (all []Suspect) {
	for t, found := range p.slow {
		if found == nil || found.doubt && slices.ContainsFunc(p.asked, func(q *inquiry) bool {
			return q.about == aboutNode && q.test == t && (q.state == accused || q.state == explained)
		}) {
			continue
		}
		task, nodes := p.tests[t].task, p.members[found.leaf]
		s := Suspect{
			Leaves: []string{p.f.nodes[nodes[0]].Leaf}, Plane: task.Plane, Stage: p.f.stage, Kind: task.Kind, Code: codeOf(task.Kind, slow, FaultNone),
			Value: found.value, Expect: found.usual, Unit: unitOf(task.Kind), Looks: found.looks, Partners: p.f.names(nodes), Confidence: leafConfidence,
		}
		if s.Doubt = found.doubt || len(p.members) < 5; s.Doubt {
			s.Confidence = doubtConfidence
		}
		if task.Op != "" {
			s.Ops = []string{task.label()}
		}
		s = s.explain(subjectOf(s.Plane, "", s.Kind) + fmt.Sprintf("between the leaf switch %s and all others: slow: got %s %s, between the others %s %s",
			s.Leaves[0], number(s.Value), s.Unit, number(s.Expect), s.Unit))
		s.Do = doUplinks
		all = append(all, s)
	}
	return all
}

// sideSuspects doubts what the nodes of each side share.
func (p *pairPlan) sideSuspects() (all []Suspect) {
	for t := range p.tests {
		x := p.searches[p.tests[t].ports]
		if x == nil || x.test != t || x.sides == nil {
			continue
		}
		var near, far *class
		for _, c := range p.sorted {
			if int(c.key.test) == t && c.key.far == 2 && (far == nil || len(c.values) > len(far.values)) {
				if n := p.classes[classKey{c.key.test, 1, c.key.kinds}]; n != nil && len(n.values) > 0 {
					near, far = n, c
				}
			}
		}
		if near == nil || len(far.values) == 0 {
			continue
		}
		var sides [][]string
		for i, side := range x.sides {
			for int(side) >= len(sides) {
				sides = append(sides, nil)
			}
			if p.tests[t].has(int32(i)) && !x.lone[i] {
				sides[side] = append(sides[side], p.f.name(int32(i)))
			}
		}
		task := p.tests[t].task
		s := Suspect{
			Plane: task.Plane, Stage: p.f.stage, Kind: task.Kind, Code: codeOf(task.Kind, slow, FaultNone), Value: far.median, Expect: near.median,
			Unit: unitOf(task.Kind), Looks: len(far.values), Confidence: doubtConfidence, Doubt: true, Partners: slices.Sorted(slices.Values(slices.Concat(sides[1:]...))),
		}
		if task.Op != "" {
			s.Ops = []string{task.label()}
		}
		text := subjectOf(s.Plane, "", s.Kind) + fmt.Sprintf("slow with others: got %s %s, among each other %s %s", number(s.Value), s.Unit, number(s.Expect), s.Unit)
		s = groupSuspect(s, text)
		if len(sides) > 2 {
			s.Text = fmt.Sprintf("%s: %d groups of nodes, each healthy with each other:", text, len(sides))
			for _, names := range sides {
				s.Text += fmt.Sprintf(" [%s]", listed(names[:min(len(names), 3)]))
			}
		}
		all = append(all, s)
	}
	return all
}

// Fleet implements Plan.
func (p *pairPlan) Fleet() (all []Distribution) {
	p.describe()
	for _, c := range p.sorted {
		if len(c.values) == 0 || math.IsNaN(c.median) {
			continue
		}
		t := p.tests[c.key.test].task
		d := Distribution{
			Stage: p.f.stage, Kind: t.Kind, Op: t.label(), Plane: t.Plane, Model: p.modelOf(c.key), Far: farNames[c.key.far], Unit: unitOf(t.Kind),
			Count: len(c.values), Median: c.median, Sigma: c.sigma, Floor: c.limit(t.Kind), Note: c.note, Remark: c.wide,
		}
		all = append(all, d)
	}
	for t := range p.tests {
		for _, note := range []string{p.wide[t], p.lossNote(t)} {
			if note != "" {
				d := p.f.row(p.tests[t].task)
				d.Note = note
				all = append(all, d)
			}
		}
	}
	_, apart := p.separated()
	return slices.Concat(all, p.remarks, apart)
}
