package sweep

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// parts are the parts of the cluster that are apart in a test: the nodes of each reach each other,
// directly or through others.
type parts struct {
	looks  int                     // of the plan that are counted
	split  bool                    // no node reaches one of another subnet
	routed bool                    // some do
	union  []int32                 // by node: see root
	nodes  map[int32][]int32       // by root, if there are failures
	failed map[[2]int32][]pairLook // failed looks between two parts of several nodes, one for each pair of nodes
	cuts   map[[2]int32]bool       // by two parts of failed: whether all pairs between them fail
}

// pairLook is the result of a test of two nodes: the number of the look, and whether it passed.
type pairLook struct {
	number   int32
	from, to int32
	passed   bool
}

func newParts(nodes int, looks []pairLook) *parts {
	a := &parts{union: indexes32(nodes), nodes: map[int32][]int32{}, failed: map[[2]int32][]pairLook{}}
	failures := false
	for _, l := range looks {
		if l.passed {
			a.union[root(a.union, l.from)] = root(a.union, l.to)
		}
		failures = failures || !l.passed
	}
	if !failures {
		return a
	}
	for i := range int32(nodes) {
		a.nodes[root(a.union, i)] = append(a.nodes[root(a.union, i)], i)
	}
	seen := map[[2]int32]bool{}
	for _, l := range looks {
		key, pair := a.between(l.from, l.to), [2]int32{min(l.from, l.to), max(l.from, l.to)}
		if !l.passed && !seen[pair] && key[0] != key[1] && len(a.nodes[key[0]]) > 1 && len(a.nodes[key[1]]) > 1 {
			seen[pair] = true
			a.failed[key] = append(a.failed[key], l)
		}
	}
	a.cuts = map[[2]int32]bool{}
	for key := range a.failed {
		a.cuts[key] = a.cut(key)
	}
	return a
}

func root(union []int32, i int32) int32 {
	for union[i] != i {
		union[i] = union[union[i]]
		i = union[i]
	}
	return i
}

// between returns the parts of two nodes.
func (a *parts) between(i, j int32) [2]int32 {
	i, j = root(a.union, i), root(a.union, j)
	return [2]int32{min(i, j), max(i, j)}
}

// apart reports whether two nodes are in parts of the cluster between which all pairs fail. Both parts
// work, so neither node is at fault.
func (a *parts) apart(i, j int32) bool {
	return len(a.failed) > 0 && a.cuts[a.between(i, j)]
}

// cut reports whether enough different nodes of two parts have failed with the other part, and most of the
// smaller one: a few faulty nodes fail with many, and the rest of their part was not tested with the other one.
func (a *parts) cut(key [2]int32) bool {
	least := int(limitOf("apart_pairs"))
	if len(a.failed[key]) < least {
		return false
	}
	nodes := [2]map[int32]bool{{}, {}}
	for _, l := range a.failed[key] {
		for _, i := range []int32{l.from, l.to} {
			nodes[slices.Index(key[:], root(a.union, i))][i] = true
		}
	}
	few, many := 0, 1
	if len(a.nodes[key[0]]) > len(a.nodes[key[1]]) {
		few, many = 1, 0
	}
	return 2*len(nodes[few]) > len(a.nodes[key[few]]) && len(nodes[many]) >= min(least, len(a.nodes[key[many]]))
}

// untried reports whether a node is in a part, of those that are apart, in which no node was tried.
func (a *parts) untried(i int32, tried []int32) bool {
	part := root(a.union, i)
	for key := range a.failed {
		if (key[0] == part || key[1] == part) && a.cuts[key] {
			return !slices.ContainsFunc(tried, func(j int32) bool { return root(a.union, j) == part })
		}
	}
	return false
}

// largest returns the part with the most nodes.
func (a *parts) largest() (most int32) {
	for r, nodes := range a.nodes {
		if best := a.nodes[most]; len(nodes) > len(best) || len(nodes) == len(best) && r < most {
			most = r
		}
	}
	return most
}

// partsOf returns the parts of a test.
func (e *evidence) partsOf(test int) *parts {
	if a := e.parts[test]; a != nil && a.looks == len(e.looks) {
		return a
	}
	var looks []pairLook
	for k := range e.looks {
		if l := &e.looks[k]; int(l.test) == test && e.symptoms(l)&unable == 0 {
			looks = append(looks, pairLook{int32(k), l.from, l.to, l.fault == FaultNone})
		}
	}
	a := newParts(len(e.f.nodes), looks)
	a.looks = len(e.looks)
	failed, passed := 0, 0 // between subnets
	for _, l := range looks {
		switch {
		case !e.tests[test].crosses(l.from, l.to):
		case l.passed:
			passed++
		default:
			failed++
		}
	}
	a.routed = passed > 0
	a.split = !a.routed && failed >= int(limitOf("apart_pairs"))
	e.parts[test] = a
	return a
}

// apart reports whether two nodes are in parts of the cluster, or in subnets, that do not reach each other.
func (e *evidence) apart(test int, i, j int32) bool {
	a := e.partsOf(test)
	return a.split && e.tests[test].crosses(i, j) || a.apart(i, j)
}

// failsApart reports whether a look has failed because its nodes are apart.
func (e *evidence) failsApart(l *look) bool {
	return e.symptoms(l) == broken && e.apart(int(l.test), l.from, l.to)
}

// onlyApart reports whether a node has failed in a test only with nodes that are apart from it.
func (e *evidence) onlyApart(q *inquiry) bool {
	found := false
	for _, k := range e.byNode[q.node] {
		l := &e.looks[k]
		if int(l.test) != q.test || !l.base || e.roleOf(l, q.node) != q.role || e.symptoms(l) == 0 {
			continue
		}
		if !e.failsApart(l) {
			return false
		}
		found = true
	}
	return found
}

// alike reports whether two nodes must be able to reach each other if any can: they are in the same
// subnet, or else of the same model.
func (e *evidence) alike(test int, i, j int32) bool {
	s := &e.tests[test]
	switch {
	case s.alone != nil && !s.alone[i] && !s.alone[j]:
		return s.ports.subnet[i] == s.ports.subnet[j]
	case s.task.Kind == KindName:
		return true
	}
	return e.f.nodes[i].Model == e.f.nodes[j].Model
}

// networkOf returns the subnet of a node in a test, or its model if no other node is in it. All nodes resolve the
// names of all others.
func (e *evidence) networkOf(test int, i int32) string {
	s := &e.tests[test]
	switch {
	case s.task.Kind == KindName:
		return ""
	case s.alone != nil && !s.alone[i]:
		return s.ports.subnet[i].String()
	}
	return e.f.nodes[i].Model
}

// separated reports the parts of the cluster that do not reach each other: as a remark if their models or subnets
// differ, since they may be separate networks, else as a doubt. A part of fewer nodes than a group is a doubt, too.
func (e *evidence) separated() (doubts []Suspect, remarks []Distribution) {
	seen := map[*plane]bool{}
	for t := range e.tests {
		a, ports := e.partsOf(t), e.tests[t].ports
		if seen[ports] {
			continue
		}
		if a.split {
			seen[ports] = true
			d := e.f.row(e.tests[t].task)
			d.Remark = separate + "no node reaches one of another subnet"
			remarks = append(remarks, d)
		}
		most := a.largest()
		for _, key := range slices.SortedFunc(maps.Keys(a.failed), func(a, b [2]int32) int { return slices.Compare(a[:], b[:]) }) {
			failed := a.failed[key]
			few, many, task := a.nodes[key[0]], a.nodes[key[1]], e.tests[t].task
			if key[0] == most || key[1] != most && len(few) > len(many) {
				few, many = many, few
			}
			if !a.cuts[key] || !a.split && key[0] != most && key[1] != most || a.split && e.differ(t, few, many) {
				continue
			}
			code := codeOf(task.Kind, broken, e.looks[failed[0].number].fault)
			if e.allGiven(e.f.names(few), "", task.Plane) {
				continue
			}
			seen[ports] = true
			text := fmt.Sprintf("%d nodes fail with %d others, and pass among each other: %s", len(few), len(many), listed(e.f.names(few)))
			leaf := e.leafAlone(few, many)
			if leaf == nil && len(few) >= leastGroup && e.differ(t, few, many) {
				d := e.f.row(task)
				d.Remark, d.Nodes = separate+text, strings.Join(e.f.names(few), ",")
				remarks = append(remarks, d)
				continue
			}
			s := Suspect{Leaves: leaf, Plane: task.Plane, Stage: e.f.stage, Kind: task.Kind, Code: code, Looks: len(failed), Partners: e.f.names(few), Confidence: doubtConfidence, Doubt: true}
			s = s.explain(subjectOf(task.Plane, "", task.Kind) + codeRow(s.Code).Fault + ": " + text)
			s.Do = doShared
			doubts = append(doubts, s)
		}
	}
	return doubts, remarks
}

// allGiven reports whether nodes are suspects without a test, for a fault or, without a code, for any.
func (e *evidence) allGiven(names []string, code, plane string) bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		return !slices.ContainsFunc(e.given, func(s Suspect) bool {
			return s.Node == name && (code == "" || s.Code == code) && (plane == "" || s.Plane == plane)
		})
	})
}

// leafAlone returns the leaf switch of a few nodes that are apart from others of their model, if they are
// most of its nodes; nil if there is none.
func (e *evidence) leafAlone(few, many []int32) []string {
	leaf := e.leaves[few[0]]
	if leaf < 0 || len(few) < leastGroup || 2*len(few) <= len(e.members[leaf]) ||
		slices.ContainsFunc(few, func(i int32) bool { return e.leaves[i] != leaf }) ||
		!slices.ContainsFunc(many, func(i int32) bool { return e.f.nodes[i].Model == e.f.nodes[few[0]].Model }) {
		return nil
	}
	return []string{e.f.nodes[few[0]].Leaf}
}

// differ reports whether no node of a list is alike to one of the other list. If routers connect other subnets,
// nodes of the same model are alike.
func (e *evidence) differ(test int, few, many []int32) bool {
	network := func(i int32) string { return e.networkOf(test, i) }
	if e.partsOf(test).routed {
		network = func(i int32) string { return e.f.nodes[i].Model }
	}
	networks := map[string]bool{}
	for _, i := range few {
		networks[network(i)] = true
	}
	return !slices.ContainsFunc(many, func(i int32) bool { return networks[network(i)] })
}
