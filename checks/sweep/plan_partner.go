package sweep

import "slices"

// pack makes a round of the queue. Requests that do not fit stay in it.
func (p *pairPlan) pack() (tasks []Task) {
	used := make([]bool, len(p.f.nodes))
	queue := p.queue
	p.queue, p.counts = nil, map[countKey][2]int{}
	defer func() { p.counts = nil }()
	for _, r := range queue {
		switch p.place(&r, used) {
		case placed:
			used[r.from], used[r.to] = true, true
			tasks = p.start(tasks, r)
		case later:
			p.queue = append(p.queue, r)
		case never:
			if r.why != nil {
				r.why.wait--
				r.why.dry = true
			}
		}
	}
	return tasks
}

// placing is whether a request fits into a round.
type placing int

const (
	placed placing = iota
	later
	never
)

// place chooses the partner of a request.
func (p *pairPlan) place(r *request, used []bool) placing {
	node, role := r.from, sends
	if node == anyone {
		node, role = r.to, receives
	}
	if !p.takes(r.test, node) {
		return never
	}
	if used[node] {
		return later
	}
	if r.from != anyone && r.to != anyone {
		if !p.takes(r.test, r.to) {
			return never
		}
		if used[r.to] {
			return later
		}
		return placed
	}
	partner, exists := p.findPartner(r.why, r.test, node, role, used)
	switch {
	case partner == anyone && exists:
		return later
	case partner == anyone:
		return never
	case role == receives:
		r.from = partner
	default:
		r.to = partner
	}
	if r.why != nil {
		r.why.tried = append(r.why.tried, partner)
	}
	return placed
}

// findPartner returns a partner for a node that is not in the round yet, or anyone and whether one
// exists that is. Partners of an inquiry are proven and different. The first choice is one from a
// leaf that has not been tried, so that a bad path between two leaves does not accuse a node.
func (p *pairPlan) findPartner(q *inquiry, test int, node int32, role role, used []bool) (int32, bool) {
	failed := q != nil && q.symptoms&broken != 0
	fresh := func(i int32) bool { return p.fresh(q, test, node, i) }
	passes := []func(int32) bool{func(i int32) bool { return p.newLeaf(q, i) && fresh(i) }, fresh}
	if sides := p.sidesOf(test); sides != nil { // between sides even a slow node can be as fast as others
		passes[0] = func(i int32) bool { return sides[i] == sides[node] && !p.isLone(test, i) && fresh(i) }
	}
	if failed {
		passes = slices.Insert(passes, 0, func(i int32) bool { return fresh(i) && p.partsOf(test).untried(i, q.tried) })
	}
	if failed && !slices.ContainsFunc(q.tried, func(i int32) bool { return p.alike(test, node, i) }) {
		alike := func(i int32) bool { return fresh(i) && p.alike(test, node, i) }
		passes = slices.Insert(passes, 0, func(i int32) bool { return p.newLeaf(q, i) && alike(i) }, alike)
	}
	if p.isSmall(test, node) {
		again := func(i int32) bool { return !p.apart(test, node, i) }
		passes = append(passes, func(i int32) bool { return again(i) && (q == nil || !slices.Contains(q.tried, i)) }, again)
	}
	switch {
	case q == nil: // of a turn
		passes = passes[1:2]
	case q.kin:
		passes = []func(int32) bool{func(i int32) bool { return !slices.Contains(q.tried, i) && p.alike(test, node, i) }}
	}
	n := len(p.f.nodes)
	for _, times := range p.provenTimes(test) {
		for _, fits := range passes {
			exists, start := false, p.f.rng.IntN(n)
			for k := range n {
				i := int32((start + k) % n)
				if i == node || exists && used[i] || !p.takes(test, i) || !fits(i) ||
					q != nil && !q.kin && (p.fails(test, i) || !p.proven(i, node, test, role.opposite(), times)) {
					continue
				}
				if !used[i] {
					return i, true
				}
				exists = true
			}
			if exists {
				return anyone, true
			}
		}
	}
	return anyone, false
}

// fresh reports whether a node can show something new about another one: it is not apart from it, and a value
// has others to compare with.
func (p *pairPlan) fresh(q *inquiry, test int, node, i int32) bool {
	return !p.knows(q, i) && !p.apart(test, node, i) && (q != nil && q.symptoms&broken != 0 || p.comparable(test, node, i))
}

// isSmall reports whether a node has few others that it can be tested with.
func (p *pairPlan) isSmall(test int, i int32) bool {
	s := &p.tests[test]
	return len(p.f.nodes) < smallFleet || p.partsOf(test).split && s.mates[i] >= leastGroup && s.mates[i] < smallFleet
}

// knows reports whether an inquiry has used a partner, or was opened by a test with it.
func (p *pairPlan) knows(q *inquiry, i int32) bool {
	return q != nil && (q.peer == i || slices.Contains(q.tried, i))
}

// newLeaf reports whether a node is in another leaf than the partners of an inquiry so far.
func (p *pairPlan) newLeaf(q *inquiry, i int32) bool {
	leaf := p.leaves[i]
	if q == nil || leaf < 0 {
		return true
	}
	same := func(j int32) bool { return p.leaves[j] == leaf }
	return !same(q.peer) && !slices.ContainsFunc(q.tried, same)
}

// otherPair chooses two nodes of the leaves of an inquiry that it has not used, in the direction of
// the look that opened it.
func (p *pairPlan) otherPair(q *inquiry) (from, to int32, ok bool) {
	l := &p.looks[q.base]
	pick := func(near int32) int32 {
		var free []int32
		for _, i := range p.members[p.leaves[near]] {
			if i != near && p.takes(q.test, i) && !slices.Contains(q.tried, i) && !p.suspicious(q.test, i) {
				free = append(free, i)
			}
		}
		if len(free) == 0 {
			return anyone
		}
		return free[p.f.rng.IntN(len(free))]
	}
	from, to = pick(l.from), pick(l.to)
	if from == anyone || to == anyone {
		if from, to = p.crossPair(q, l); from == anyone {
			return from, to, false
		}
	}
	q.tried = append(q.tried, from, to)
	return from, to, true
}

// crossPair chooses a pair of small leaves that the inquiry has not used although it has used one of
// its nodes.
func (p *pairPlan) crossPair(q *inquiry, l *look) (from, to int32) {
	for _, i := range p.members[p.leaves[l.from]] {
		for _, j := range p.members[p.leaves[l.to]] {
			used := i == l.from && j == l.to
			for k := 0; k < len(q.tried); k += 2 {
				used = used || q.tried[k] == i && q.tried[k+1] == j
			}
			if !used && p.takes(q.test, i) && p.takes(q.test, j) && !p.suspicious(q.test, i) && !p.suspicious(q.test, j) {
				return i, j
			}
		}
	}
	return anyone, anyone
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

// fails reports whether a node is accused of a fault in any test of the same plane.
func (p *pairPlan) fails(test int, i int32) bool {
	if !p.blamed[i] {
		return false
	}
	for t := range p.tests {
		for _, r := range []role{both, sends, receives} {
			q := p.nodeInquiry(t, i, r)
			if q != nil && q.state == accused && q.found.symptom == broken && p.tests[t].task.Plane == p.tests[test].task.Plane {
				return true
			}
		}
	}
	return false
}

// failsAlike reports whether an inquiry has a bad look with a proven node that is alike.
func (p *pairPlan) failsAlike(q *inquiry) bool {
	return slices.ContainsFunc(q.looks, func(k int32) bool {
		l := &p.looks[k]
		partner := l.from + l.to - q.node
		return p.symptoms(l)&broken != 0 && p.alike(q.test, l.from, l.to) && p.provenFor(q, partner)
	})
}
