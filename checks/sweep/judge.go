package sweep

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// classOf returns the class of a look.
func (e *evidence) classOf(l *look) *class {
	key := e.keyOf(int(l.test), l.from, l.to)
	c := e.classes[key]
	if c == nil {
		floor := e.o.floorOf(e.tests[l.test].task)
		c = &class{key: key, floor: floor, known: cmp.Or(floor, e.tests[l.test].known(l.from, l.to)), median: math.NaN(), low: math.NaN(), mid: math.NaN()}
		e.stale = true
		e.classes[key] = c
		e.sorted = append(e.sorted, c)
	}
	return c
}

// boundOf returns the value beyond which a look is suspicious whatever others have, 0 without one. Two
// nodes have no others.
func (e *evidence) boundOf(c *class) float64 {
	switch {
	case len(e.tests[c.key.test].order) <= 2:
		return c.known
	case c.note != "":
		return 0
	}
	return c.floor
}

// isBeyond reports whether a value is worse than a bound.
func (k Kind) isBeyond(value, bound float64) bool {
	return bound > 0 && (!k.Lower() && value < bound || k.Lower() && value > bound)
}

// expect returns the value that a look should have.
func (e *evidence) expect(l *look) float64 {
	bound := e.boundOf(l.class)
	if e.tests[l.test].task.Kind.isBeyond(l.class.median, bound) {
		return bound
	}
	return l.class.median
}

func (e *evidence) keyOf(test int, from, to int32) classKey {
	kinds := e.tests[test].kinds
	a, b := kinds[from], kinds[to]
	key := classKey{test: int32(test), kinds: int64(min(a, b))*int64(len(e.names)) + int64(max(a, b))}
	switch {
	case e.leaves[from] < 0 || e.leaves[to] < 0:
	case e.leaves[from] == e.leaves[to]:
		key.far = 1
	case e.slow[test].crossed(e.leaves[from], e.leaves[to]):
		key.far = 3
	default:
		key.far = 2
	}
	return key
}

// modelOf names the kinds of nodes of a class.
func (e *evidence) modelOf(key classKey) string {
	a, b := e.names[key.kinds/int64(len(e.names))], e.names[key.kinds%int64(len(e.names))]
	if a == b {
		return a
	}
	return a + " and " + b
}

// describe computes the classes from the looks of the turns, and what concerns the whole fleet.
func (e *evidence) describe() {
	if !e.stale {
		return
	}
	moved := false
	for t := range e.tests {
		before := e.slow[t]
		e.slow[t] = e.slowLeafOf(t)
		moved = moved || before.name() != e.slow[t].name()
	}
	if moved {
		for i := range e.looks {
			e.looks[i].class = e.classOf(&e.looks[i])
		}
	}
	e.stale = false // classOf sets it for new classes
	for _, c := range e.sorted {
		c.values, c.lows, c.mids, c.spreads = nil, nil, nil, nil
	}
	for i := range e.looks {
		if l := &e.looks[i]; l.base && l.fault == FaultNone && !math.IsNaN(l.value) {
			l.class.add(l)
		}
	}
	for _, c := range e.sorted {
		kind := e.tests[c.key.test].task.Kind
		c.compute(e.comparables(c), kind.Lower(), e.count(c.key))
		e.addNotes(c, kind)
	}
	for t := range e.tests {
		e.lost[t] = e.lostOf(t)
		e.loss[t] = max(1.6*e.lost[t], limitOf("loss_base"))
	}
	e.findWide()
}

// comparables returns the values that those of a class are compared with. If they are few they are joined with
// those of other planes of the same speed, or else with those between leaves, which are the slower ones: of few
// pairs within leaves a faulty node can spoil most.
func (e *evidence) comparables(c *class) *class {
	alike, least := c, int(limitOf("class_min"))
	if len(c.values) < least {
		alike = e.join(c, c.key.far)
	}
	if n := len(alike.values); c.key.far < 2 && n < 3*least {
		if all := e.join(c, c.key.far, 2); n < least || len(all.values) >= 3*n {
			return all
		}
	}
	return alike
}

// join joins a class with those of some distances and of other planes of the same speed.
func (e *evidence) join(c *class, far ...int8) *class {
	t := e.tests[c.key.test]
	all := &class{}
	for _, other := range e.sorted {
		o := e.tests[other.key.test]
		if o.task.Kind != t.task.Kind || o.task.Op != t.task.Op || o.task.NoP2P != t.task.NoP2P || o.usual != t.usual ||
			!slices.Contains(far, other.key.far) || other.key.kinds != c.key.kinds {
			continue
		}
		all.values = append(all.values, other.values...)
		all.lows, all.mids = append(all.lows, other.lows...), append(all.mids, other.mids...)
		all.spreads = append(all.spreads, other.spreads...)
	}
	return all
}

// count returns the number of nodes that the looks of a class can have.
func (e *evidence) count(key classKey) int {
	a, b := key.kinds/int64(len(e.names)), key.kinds%int64(len(e.names))
	n := 0
	for _, m := range e.tests[key.test].kinds {
		if int64(m) == a || int64(m) == b {
			n++
		}
	}
	return n
}

// addNotes notes or remarks that the whole fleet is slow. With two nodes it is a doubt about the pair instead.
func (e *evidence) addNotes(c *class, kind Kind) {
	c.wide = ""
	if len(e.tests[c.key.test].order) <= 2 || !kind.isBeyond(c.median, c.known) {
		return
	}
	if c.floor > 0 {
		c.note = missesFloor
		return
	}
	most := "least"
	if kind.Lower() {
		most = "most"
	}
	c.wide = fmt.Sprintf("the whole fleet is slow: want at %s %s %s, got a median of %s %s", most, number(c.known), unitOf(kind), number(c.median), unitOf(kind))
}

// lostOf returns the share of datagrams that most pairs lose. The 30 % of pairs that lose the most, and
// those of one faulty node, do not count: of two nodes none is left. So the share of healthy pairs is
// higher, by as much as a random choice of them needs. Head and tail of the list are tested twice.
func (e *evidence) lostOf(test int) float64 {
	var shares []float64
	seen := map[[2]int32]bool{}
	for i := range e.looks {
		l := &e.looks[i]
		pair := [2]int32{min(l.from, l.to), max(l.from, l.to)}
		if int(l.test) == test && l.base && l.sent > 0 && l.fault == FaultNone && !seen[pair] {
			seen[pair] = true
			shares = append(shares, float64(l.lost)/float64(l.sent))
		}
	}
	slices.Sort(shares)
	sum := 0.0
	part := min(0.7, 1-2/float64(max(len(e.tests[test].order), 2)))
	kept := shares[:int(math.Ceil(part*float64(len(shares))))]
	for _, s := range kept {
		sum += s
	}
	return sum / float64(max(len(kept), 1))
}

// findWide finds tests that fail on most nodes: then no node is accused.
func (e *evidence) findWide() {
	for t := range e.tests {
		fine, tested, faults := map[int32]bool{}, map[int32]bool{}, map[Fault]int{}
		for i := range e.looks {
			l := &e.looks[i]
			if int(l.test) != t || !l.base || e.symptoms(l)&broken != 0 && e.partsOf(t).split && e.tests[t].crosses(l.from, l.to) {
				continue
			}
			tested[l.from], tested[l.to] = true, true
			if e.symptoms(l)&(broken|unable|lossy) == 0 {
				fine[l.from], fine[l.to] = true, true
			} else {
				faults[l.fault]++
			}
		}
		e.wide[t] = ""
		if len(tested) > 2 && 2*len(fine) < len(tested) {
			e.wide[t] = "most nodes fail: " + faultText(commonestFault(faults))
		}
	}
}

// lossNote reports a loss of the whole fleet: of most pairs, and so high that it would accuse a node.
func (e *evidence) lossNote(test int) string {
	if e.lost[test] <= limitOf("loss_share") {
		return ""
	}
	return fmt.Sprintf("most pairs lost %s %% of the datagrams: the whole fleet loses data, and only nodes that lose much more are suspects", number(100*e.lost[test]))
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
	if e.z(l) >= limitOf("suspect_z") {
		s |= slow
	}
	if e.lowZ(l) >= limitOf("suspect_z") {
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

// nodeInquiry returns the inquiry about a node in a role of a test, nil if there is none.
func (p *pairPlan) nodeInquiry(test int, node int32, r role) *inquiry {
	return p.byKey[inquiryKey{about: aboutNode, test: test, node: node, role: r}]
}

// bothAre reports whether the inquiries about both nodes of a look are each in one of some states.
func (p *pairPlan) bothAre(l *look, states ...state) bool {
	for _, i := range []int32{l.from, l.to} {
		if q := p.nodeInquiry(int(l.test), i, p.roleOf(l, i)); q == nil || !slices.Contains(states, q.state) {
			return false
		}
	}
	return true
}

// explained reports whether an accused node, pair or path explains a look.
func (p *pairPlan) explained(l *look) bool {
	for _, i := range []int32{l.from, l.to} {
		if q := p.nodeInquiry(int(l.test), i, p.roleOf(l, i)); q != nil && (q.state == accused || q.state == explained) {
			return true
		}
	}
	return p.failsApart(l) || p.pathAccused(l)
}

// pathAccused reports whether the path between the leaves of a look is accused in a test of the same family.
func (p *pairPlan) pathAccused(l *look) bool {
	a, b := p.leafPair(l.from, l.to)
	if a < 0 {
		return false
	}
	for i := range p.tests {
		if p.tests[i].family == p.tests[l.test].family {
			if q := p.byKey[inquiryKey{about: aboutLeaves, test: i, node: a, other: b}]; q != nil && q.state == accused {
				return true
			}
		}
	}
	return false
}

// suspicious reports whether a node is accused in a test, or failed it without enough proven partners.
func (p *pairPlan) suspicious(test int, i int32) bool {
	for _, r := range []role{both, sends, receives} {
		if q := p.nodeInquiry(test, i, r); q != nil && q.state != open && q.state != cleared {
			return true
		}
	}
	return false
}

// proven reports whether a node passed a test in a role with another partner than the suspect, and
// failed with no other than accused ones. In a small fleet, and where all pairs are tested, most tests must
// have passed: several faulty nodes each fail with all others. times is how many must have passed for each
// failed one.
func (p *pairPlan) proven(i, suspect int32, test int, role role, times int) bool {
	key := countKey{test, i, role}
	count, known := p.counts[key]
	if !known || slices.ContainsFunc(p.byNode[suspect], func(k int32) bool { return p.looks[k].from == i || p.looks[k].to == i }) {
		count = p.countLooks(i, suspect, test, role)
	}
	if !known && p.counts != nil {
		p.counts[key] = p.countLooks(i, anyone, test, role)
	}
	good, bad := count[0], count[1]
	return good > 0 && (bad == 0 || p.isSmall(test, i) && good >= bad || good >= times*bad)
}

// provenFor reports whether a node is proven enough to show that the node of an inquiry is faulty.
func (p *pairPlan) provenFor(q *inquiry, i int32) bool {
	return p.proven(i, q.node, q.test, q.role.opposite(), slices.Min(p.provenTimes(q.test)))
}

// countKey is a node in a role of a test.
type countKey struct {
	test int
	node int32
	role role
}

// countLooks counts the passed looks of a node, and the failed ones that nothing explains, without those with
// another one.
func (p *pairPlan) countLooks(i, without int32, test int, role role) [2]int {
	good, bad := 0, 0
	for _, k := range p.byNode[i] {
		l := &p.looks[k]
		partner := l.from + l.to - i
		if int(l.test) != test || partner == without || p.roleOf(l, i) != p.roleIn(test, role) {
			continue
		}
		switch s := p.symptoms(l); {
		case s == 0 && l.fault == FaultNone:
			good++
		case s != 0 && !p.explained(l):
			bad++
		}
	}
	return [2]int{good, bad}
}

// provenTimes returns how many tests of a proven partner must have passed for each failed one. Where all pairs
// were tested a healthy node fails with each faulty one, and a faulty one with nearly all: then fewer are enough
// if no partner is better.
func (p *pairPlan) provenTimes(test int) []int {
	most := int(limitOf("proven_times"))
	if p.all[test] {
		return []int{most, 2}
	}
	return []int{most}
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

// failsAlike reports whether an inquiry has a bad look with a proven node that is alike.
func (p *pairPlan) failsAlike(q *inquiry) bool {
	return slices.ContainsFunc(q.looks, func(k int32) bool {
		l := &p.looks[k]
		partner := l.from + l.to - q.node
		return p.symptoms(l)&broken != 0 && p.alike(q.test, l.from, l.to) && p.provenFor(q, partner)
	})
}
