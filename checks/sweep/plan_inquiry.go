package sweep

import "slices"

// inquiryKey identifies an inquiry.
type inquiryKey struct {
	about about
	test  int
	node  int32 // of leaves: the number of the first one
	other int32 // the second node of a pair, or the second leaf
	role  role
}

// inquiry finds out whether a node, a pair or the path between two leaves is faulty.
type inquiry struct {
	inquiryKey
	peer     int32   // of a node: the partner in the look that opened it
	symptoms symptom // of that look
	base     int32   // that look
	looks    []int32 // since then
	tried    []int32 // partners
	wait     int     // tests under way
	failed   int     // tests that never had a result
	dry      bool    // there is no further partner
	state    state
	found    finding
}

type about int8

const (
	aboutNode about = iota
	aboutPair
	aboutLeaves
)

type role int8

const (
	both role = iota
	sends
	receives
)

func (r role) opposite() role {
	switch r {
	case sends:
		return receives
	case receives:
		return sends
	}
	return both
}

func (r role) String() string { return [...]string{"", "sends", "receives"}[r] }

type state int8

const (
	open state = iota
	accused
	cleared
	unproven  // it failed, but there are not enough proven partners
	explained // by an accused test of the same family
)

// confirm asks for the tests that decide the open inquiries. It reports whether there are any.
func (p *pairPlan) confirm() bool {
	p.describe()
	p.openNodes()
	for range maxSteps {
		for _, q := range p.asked {
			if q.state == open && q.wait == 0 {
				p.decide(q)
			}
		}
		if len(p.queue) > 0 {
			return true
		}
		if !p.openPairs() {
			return slices.ContainsFunc(p.asked, func(q *inquiry) bool { return q.state == open && q.wait == 0 }) && p.giveUp()
		}
	}
	return len(p.queue) > 0
}

// maxLooks bounds the tests of an inquiry, with those that cannot be judged.
const maxLooks = 12

// maxSteps bounds how many inquiries follow each other without a test.
const maxSteps = 64

// giveUp closes inquiries that ask for no further test. It reports false: the plan is over.
func (p *pairPlan) giveUp() bool {
	for _, q := range p.asked {
		if q.state == open {
			q.state = unproven
		}
	}
	return false
}

// openNodes opens inquiries about both nodes of each new suspicious look of a turn.
func (p *pairPlan) openNodes() {
	for ; p.opened < len(p.looks); p.opened++ {
		l := &p.looks[p.opened]
		s := p.symptoms(l)
		if !l.base || s == 0 || p.wide[l.test] != "" && s&(broken|unable|lossy) != 0 {
			continue
		}
		p.openNode(l, int32(p.opened), l.from, l.to, p.roleIn(int(l.test), sends), s)
		p.openNode(l, int32(p.opened), l.to, l.from, p.roleIn(int(l.test), receives), s)
	}
}

func (p *pairPlan) openNode(l *look, k, node, peer int32, r role, s symptom) {
	key := inquiryKey{about: aboutNode, test: int(l.test), node: node, role: r}
	if q := p.byKey[key]; q != nil {
		q.symptoms |= s
		return
	}
	p.ask(&inquiry{inquiryKey: key, peer: peer, base: k, symptoms: s})
}

func (p *pairPlan) ask(q *inquiry) {
	p.byKey[q.inquiryKey] = q
	p.asked = append(p.asked, q)
}

// openPairs opens inquiries about pairs whose nodes are both cleared, one at a time for each two
// leaves. It reports whether there are any.
func (p *pairPlan) openPairs() bool {
	found := false
	busy := map[[3]int32]bool{}
	for _, q := range p.asked {
		if q.about == aboutPair && q.state == open {
			a, b := p.leafPair(q.node, q.other)
			busy[[3]int32{int32(q.test), a, b}] = true
		}
	}
	for _, q := range slices.Clone(p.asked) {
		if q.about != aboutNode || q.state != cleared && q.state != unproven || q.symptoms&^unable == 0 {
			continue
		}
		for _, k := range p.byNode[q.node] {
			l := &p.looks[k]
			s := p.symptoms(l) &^ unable
			if int(l.test) != q.test || !l.base || s == 0 || !p.settled(l) || p.explained(l) || p.blamed[l.from] || p.blamed[l.to] || !p.takes(q.test, l.from) || !p.takes(q.test, l.to) {
				continue
			}
			from, to := l.from, l.to
			if !p.tests[q.test].directed && from > to {
				from, to = to, from
			}
			key := inquiryKey{about: aboutPair, test: q.test, node: from, other: to}
			a, b := p.leafPair(from, to)
			leaves := [3]int32{int32(q.test), a, b}
			if p.byKey[key] != nil || a >= 0 && busy[leaves] {
				continue
			}
			busy[leaves] = true
			p.ask(&inquiry{inquiryKey: key, peer: to, base: k, symptoms: s})
			found = true
		}
	}
	return found
}

// settled reports whether the inquiries about both nodes of a look are closed, and neither node is
// accused.
func (p *pairPlan) settled(l *look) bool {
	for _, i := range []int32{l.from, l.to} {
		q := p.byKey[inquiryKey{about: aboutNode, test: int(l.test), node: i, role: p.roleOf(l, i)}]
		if q == nil || q.state != cleared && q.state != unproven {
			return false
		}
	}
	return true
}

// leafPair returns the leaves of two nodes, the smaller number first; -1 if they are unknown or the
// same.
func (p *pairPlan) leafPair(i, j int32) (a, b int32) {
	a, b = min(p.leaves[i], p.leaves[j]), max(p.leaves[i], p.leaves[j])
	if a < 0 || a == b {
		return -1, -1
	}
	return a, b
}

// explained reports whether an accused node, pair or path explains a look.
func (p *pairPlan) explained(l *look) bool {
	t := int(l.test)
	for _, i := range []int32{l.from, l.to} {
		if q := p.byKey[inquiryKey{about: aboutNode, test: t, node: i, role: p.roleOf(l, i)}]; q != nil && (q.state == accused || q.state == explained) {
			return true
		}
	}
	a, b := p.leafPair(l.from, l.to)
	if a < 0 {
		return false
	}
	for i := range p.tests {
		if p.tests[i].family == p.tests[t].family {
			if q := p.byKey[inquiryKey{about: aboutLeaves, test: i, node: a, other: b}]; q != nil && q.state == accused {
				return true
			}
		}
	}
	return false
}

// decide closes an inquiry, or asks for further tests.
func (p *pairPlan) decide(q *inquiry) {
	if q.about == aboutNode && p.decideByFamily(q) {
		return
	}
	if q.about == aboutPair && (p.blamed[q.node] || p.blamed[q.other] || p.explained(&p.looks[q.base])) {
		q.state = explained
		return
	}
	f := p.weigh(q)
	if f.answer == yes && q.about == aboutPair && f.symptom&(slow|flaky) != 0 && (p.elsewhere(q, q.node) >= 1 || p.elsewhere(q, q.other) >= 1) {
		q.state = explained // a node that is a little slow with all others, too little to accuse it
		return
	}
	if f.answer == yes {
		q.state, q.found = accused, f
		switch q.about {
		case aboutNode:
			p.blamed[q.node] = true
		case aboutPair:
			p.openLeaves(q)
		case aboutLeaves:
		}
		return
	}
	if f.answer == no {
		q.state = cleared
		return
	}
	if f.answer == alone || q.dry || q.failed >= maxTries || len(q.looks) >= maxLooks || !p.takes(q.test, p.subject(q)) {
		q.state, q.found = unproven, f
		return
	}
	for range f.need {
		p.request(q)
	}
}

// elsewhere returns by how many sigma a node of a pair is slow with most of its other partners. It is
// the median: a bad path between two leaves slows the node with several partners, and not with most.
func (p *pairPlan) elsewhere(q *inquiry, i int32) float64 {
	var list []float64
	role := p.roleOf(&p.looks[q.base], i)
	for _, k := range p.byNode[i] {
		l := &p.looks[k]
		pair := l.from+l.to == q.node+q.other && (l.from == q.node || l.from == q.other)
		if int(l.test) == q.test && !pair && l.fault == FaultNone && p.roleOf(l, i) == role {
			list = append(list, p.fleetZ(l))
		}
	}
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[len(list)/2]
}

// subject returns the node that must take part in the tests of an inquiry.
func (p *pairPlan) subject(q *inquiry) int32 {
	if q.about == aboutLeaves {
		return p.looks[q.base].from
	}
	return q.node
}

// decideByFamily waits for the inquiry about the same node in an earlier test of the family, which
// can explain this one. It reports whether there is nothing else to do now.
func (p *pairPlan) decideByFamily(q *inquiry) bool {
	for t := range q.test {
		if p.tests[t].family != p.tests[q.test].family {
			continue
		}
		for _, r := range []role{both, sends, receives} {
			before := p.byKey[inquiryKey{about: aboutNode, test: t, node: q.node, role: r}]
			switch {
			case before == nil:
			case before.state == open:
				return true
			case before.state == accused && (before.found.symptom == broken || q.symptoms&broken == 0):
				q.state, q.found = explained, before.found
				return true
			}
		}
	}
	return false
}

// request adds a test of an inquiry to the queue.
func (p *pairPlan) request(q *inquiry) {
	r := request{test: q.test, from: q.node, to: anyone, why: q}
	switch {
	case q.about == aboutPair:
		l := &p.looks[q.base]
		r.from, r.to = l.from, l.to
	case q.about == aboutLeaves:
		from, to, ok := p.otherPair(q)
		if !ok {
			q.dry = true
			return
		}
		r.from, r.to = from, to
	case q.role == receives:
		r.from, r.to = anyone, q.node
	}
	q.wait++
	p.queue = append(p.queue, r)
}

// openLeaves asks other pairs of the two leaves of a faulty pair.
func (p *pairPlan) openLeaves(q *inquiry) {
	a, b := p.leafPair(q.node, q.other)
	key := inquiryKey{about: aboutLeaves, test: q.test, node: a, other: b}
	if a < 0 || p.byKey[key] != nil {
		return
	}
	p.ask(&inquiry{inquiryKey: key, peer: q.peer, base: q.base, symptoms: q.symptoms})
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

// suspicious reports whether a node is accused in a test.
func (p *pairPlan) suspicious(test int, i int32) bool {
	for _, r := range []role{both, sends, receives} {
		if q := p.byKey[inquiryKey{about: aboutNode, test: test, node: i, role: r}]; q != nil && (q.state == accused || q.state == explained) {
			return true
		}
	}
	return false
}
