package sweep

import (
	"fmt"
	"math"
)

// evidence is what the tests of pairs have shown, and what comparable tests have.
type evidence struct {
	f      *fleet
	o      PlanOptions
	tests  []series
	looks  []look
	byNode [][]int32 // looks of each node
	given  []Suspect // facts that need no test

	names   []string // of the kinds of nodes
	leaves  []int32  // by node; -1 is unknown
	members map[int32][]int32

	classes map[classKey]*class
	sorted  []*class
	stale   bool      // classes lack looks
	lost    []float64 // by test: share of datagrams that most pairs lost
	loss    []float64 // by test: share that healthy pairs lose
	wide    []string  // by test: the fault of the whole fleet; "" none
	parts   []*parts  // by test
	slow    []*slowLeaf

	searches map[*plane]*search
}

func newEvidence(f *fleet, o PlanOptions, tests []series) evidence {
	e := evidence{
		f: f, o: o, tests: tests, byNode: make([][]int32, len(f.nodes)), leaves: make([]int32, len(f.nodes)), members: map[int32][]int32{},
		classes: map[classKey]*class{}, lost: make([]float64, len(tests)), loss: make([]float64, len(tests)), wide: make([]string, len(tests)),
		parts: make([]*parts, len(tests)), slow: make([]*slowLeaf, len(tests)), searches: map[*plane]*search{},
	}
	kinds, leaves, order := map[string]int32{}, map[string]int32{}, f.shuffled()
	for t := range tests {
		s := &tests[t]
		s.kinds = make([]int32, len(f.nodes))
		var names []string
		names, s.odd = f.kinds(s)
		for i, kind := range names {
			if _, known := kinds[kind]; !known {
				kinds[kind] = int32(len(kinds))
				e.names = append(e.names, kind)
			}
			s.kinds[i] = kinds[kind]
		}
		for _, i := range order {
			if s.has(i) {
				s.order = append(s.order, i)
			}
		}
		if s.setAlone(); s.ports != nil {
			s.usual = s.ports.usual()
		}
	}
	for i, n := range f.nodes {
		e.leaves[i] = -1
		if n.Leaf != "" {
			if _, known := leaves[n.Leaf]; !known {
				leaves[n.Leaf] = int32(len(leaves))
			}
			e.leaves[i] = leaves[n.Leaf]
			e.members[e.leaves[i]] = append(e.members[e.leaves[i]], int32(i))
		}
	}
	return e
}

// look is the result of a test of a pair.
type look struct {
	from, to   int32
	test       int32
	repeats    int32
	class      *class
	value      float64 // NaN: none. The mean; the best one for latencies, and beside other jobs
	spread     float64 // standard deviation of the repeats
	low, mid   float64 // of the windows: low decile and median; NaN if there are too few
	sent, lost int
	fault      Fault
	text       string
	beside     bool
	base       bool // of a turn: it can open inquiries
}

// symptoms returns how a look is bad, 0 if it is not.
func (e *evidence) symptoms(l *look) (s symptom) {
	switch l.fault {
	case FaultNone:
	case FaultUnable:
		return unable
	default:
		return broken
	}
	if l.lost > 0 && poissonTail(l.lost, float64(l.sent)*e.loss[l.test]) < limitOf("loss_open") {
		s |= lossy
	}
	suspect := limitOf("suspect_z")
	if e.z(l) >= suspect {
		s |= slow
	}
	if e.lowZ(l) >= suspect {
		s |= flaky
	}
	return s
}

// z returns by how many sigma a look is worse than its class, 0 if it cannot be judged. One beyond its
// bound is suspicious.
func (e *evidence) z(l *look) float64 {
	z := e.fleetZ(l)
	if e.tests[l.test].task.Kind.isBeyond(l.value, e.boundOf(l.class)) {
		z = max(z, limitOf("suspect_z"))
	}
	return z
}

// fleetZ is z without the floor.
func (e *evidence) fleetZ(l *look) float64 {
	c := l.class
	if math.IsNaN(l.value) || math.IsNaN(c.median) || c.sigma == 0 {
		return 0
	}
	kind, z := e.tests[l.test].task.Kind, 0.0
	if c.judged {
		z = (c.median - l.value) / c.sigma
	}
	if kind.Lower() {
		excess := l.value - c.median
		if z = 0; c.judged && l.value >= limitOf(string(kind)+"_factor")*c.median && excess >= limitOf(string(kind)+"_excess") {
			z = excess / c.sigma
		}
	}
	return z
}

// lowZ returns by how many sigma the low decile of a look's windows is below that of its class.
func (e *evidence) lowZ(l *look) float64 {
	c := l.class
	if math.IsNaN(l.low) || math.IsNaN(c.low) || !c.judged || l.low > c.low*(1-limitOf("flaky_share")) {
		return 0
	}
	return (c.low - l.low) / c.lowSigma
}

// comparable reports whether a test of two nodes has others to compare it with.
func (e *evidence) comparable(test int, i, j int32) bool {
	if e.tests[test].task.Repeats == 0 || e.tests[test].task.Kind == KindName {
		return true
	}
	c := e.classes[e.keyOf(test, i, j)]
	return c == nil || math.IsNaN(c.median) || c.judged || c.floor > 0
}

// roleOf returns the role of a node in a look.
func (e *evidence) roleOf(l *look, i int32) role {
	if l.from == i {
		return e.roleIn(int(l.test), sends)
	}
	return e.roleIn(int(l.test), receives)
}

// roleIn returns a role, or both if the test has no direction.
func (e *evidence) roleIn(test int, r role) role {
	if !e.tests[test].directed {
		return both
	}
	return r
}

// slowLeafOf returns the slow leaf switch of a test, nil if there is none.
func (e *evidence) slowLeafOf(test int) *slowLeaf {
	if len(e.members) < 3 || e.tests[test].task.Kind.Lower() {
		return nil
	}
	var paths []path
	at := map[[2]int32]int{}
	for i := range e.looks {
		l := &e.looks[i]
		a, b := e.leaves[l.from], e.leaves[l.to]
		if min(a, b) < 0 || int(l.test) != test || !l.base || l.fault != FaultNone || !(l.value > 0) {
			continue
		}
		pair := [2]int32{min(l.from, l.to), max(l.from, l.to)}
		k, known := at[pair]
		if !known {
			k, at[pair] = len(paths), len(paths)
			paths = append(paths, path{nodes: [2]int32{l.from, l.to}, leaves: [2]int32{a, b}, kinds: e.keyOf(test, l.from, l.to).kinds})
		}
		paths[k].value = max(paths[k].value, l.value)
	}
	return findSlowLeaf(paths, e.members)
}

// sidesOf returns the sides in a test, nil if there are none.
func (e *evidence) sidesOf(test int) []int32 {
	if s := e.searches[e.tests[test].ports]; s != nil {
		return s.sides
	}
	return nil
}

// isLone reports whether a node is fast with no other one in a test with sides.
func (e *evidence) isLone(test int, i int32) bool { return e.searches[e.tests[test].ports].lone[i] }

// spineSuspects doubts the network between two leaves if there are no other leaves to compare with, and a node that
// is alone in one of them if it is slow: no other pair has that path.
func (e *evidence) spineSuspects() (all []Suspect) {
	if len(e.members) != 2 {
		return nil
	}
	for _, far := range e.sorted {
		kind := e.tests[far.key.test].task.Kind
		if far.key.far != 2 || !far.enough || kind.Lower() {
			continue
		}
		key := far.key
		key.far = 1
		near := e.classes[key]
		lone, share := e.loneNode(), limitOf("spine_share")
		if lone != anyone {
			share = limitOf("lone_share")
		}
		if near == nil || !near.enough || far.median >= share*near.median {
			continue
		}
		task := e.tests[far.key.test].task
		s := Suspect{
			Leaves: []string{e.f.nodes[e.members[0][0]].Leaf, e.f.nodes[e.members[1][0]].Leaf}, Plane: task.Plane, Stage: e.f.stage, Kind: kind,
			Code: codeOf(kind, slow, FaultNone), Value: far.median, Expect: near.median, Unit: unitOf(kind), Looks: len(far.values),
			Confidence: doubtConfidence, Doubt: true,
		}
		if task.Op != "" {
			s.Ops = []string{task.label()}
		}
		if lone != anyone {
			leaf := e.f.nodes[lone].Leaf
			s.Node, s.Leaves = e.f.name(lone), nil
			s = s.explain(subjectOf(s.Plane, "", kind) + fmt.Sprintf("slow: got %s %s, others among each other %s %s: the node, or the uplink of its leaf switch %s, which has no other node",
				number(far.median), s.Unit, number(near.median), s.Unit, leaf))
			s.Do = "Connect the node to the other leaf switch: if it stays slow, replace its cable, then its adapter, else see the uplink."
			all = append(all, s)
			continue
		}
		s = s.explain(subjectOf(s.Plane, "", kind) + fmt.Sprintf("between the leaf switches %s and %s: slow: got %s %s, within a leaf %s %s",
			s.Leaves[0], s.Leaves[1], number(far.median), s.Unit, number(near.median), s.Unit))
		s.Do = "Compare the bandwidth between the leaves with the one they are built for."
		all = append(all, s)
	}
	return all
}

// loneNode returns the node that is alone in one of two leaves, anyone if there is none.
func (e *evidence) loneNode() int32 {
	for _, leaf := range []int32{0, 1} {
		if len(e.members[leaf]) == 1 && len(e.members[1-leaf]) > 1 {
			return e.members[leaf][0]
		}
	}
	return anyone
}
