package sweep

import (
	"cmp"
	"maps"
	"slices"
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
		if !p.openGroups() && !p.openPairs() {
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
		if !l.base || s == 0 || p.wide[l.test] != "" && s&(broken|unable|lossy) != 0 || p.failsApart(l) {
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
	p.ask(&inquiry{inquiryKey: key, peer: peer, base: k, symptoms: s, second: r == both && l.to == node})
}

// reopenTurned opens an inquiry again if a bad look of its node had it in the place, first or second, that was not
// tested: a connection goes from the first node to the second one. It reports whether it does.
func (p *pairPlan) reopenTurned(l *look, k, node int32) bool {
	q := p.nodeInquiry(int(l.test), node, both)
	if q == nil || q.turned || q.second == (l.to == node) || p.symptoms(l)&broken == 0 {
		return false
	}
	q.second, q.turned, q.base, q.peer = l.to == node, true, k, l.from+l.to-node
	q.reopen(nil)
	return true
}

func (p *pairPlan) ask(q *inquiry) {
	p.byKey[q.inquiryKey] = q
	p.asked = append(p.asked, q)
}

// queueTest adds a test of an inquiry to the queue.
func (p *pairPlan) queueTest(q *inquiry) {
	r := request{test: q.test, from: q.node, to: anyone, why: q}
	switch {
	case q.about == aboutPair:
		l := &p.looks[q.base]
		r.from, r.to = l.from, l.to
	case q.about == aboutGroup:
		r.to = q.other
	case q.about == aboutLeaves:
		from, to, ok := p.otherPair(q)
		if !ok {
			q.dry = true
			return
		}
		r.from, r.to = from, to
	case q.role == receives || q.second:
		r.from, r.to = anyone, q.node
	}
	q.wait++
	p.queue = append(p.queue, r)
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
			if int(l.test) != q.test || !l.base || s == 0 || !p.bothAre(l, cleared, unproven) || p.explained(l) || p.blamed[l.from] || p.blamed[l.to] || !p.takes(q.test, l.from) || !p.takes(q.test, l.to) {
				continue
			}
			if p.reopenTurned(l, k, l.from) || p.reopenTurned(l, k, l.to) {
				found = true
				break
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

// openLeaves asks other pairs of the two leaves of a faulty pair.
func (p *pairPlan) openLeaves(q *inquiry) {
	a, b := p.leafPair(q.node, q.other)
	key := inquiryKey{about: aboutLeaves, test: q.test, node: a, other: b}
	if a < 0 || p.byKey[key] != nil {
		return
	}
	p.ask(&inquiry{inquiryKey: key, peer: q.peer, base: q.base, symptoms: q.symptoms})
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

// decide closes an inquiry, or asks for further tests.
func (p *pairPlan) decide(q *inquiry) {
	switch {
	case q.about == aboutGroup:
		p.decideGroup(q)
		return
	case q.about == aboutNode && p.decideByFamily(q):
		return
	case q.about == aboutLeaves && p.failsApart(&p.looks[q.base]),
		q.about == aboutPair && (p.blamed[q.node] || p.blamed[q.other] || p.explained(&p.looks[q.base])):
		q.state = explained
		return
	case q.about == aboutNode && p.onlyApart(q):
		q.state = cleared
		return
	}
	f := p.weigh(q)
	if f.answer == yes && q.about == aboutPair && f.symptom&(slow|flaky) != 0 && (p.elsewhere(q, q.node) >= 1 || p.elsewhere(q, q.other) >= 1) {
		q.state = explained // a node that is a little slow with all others, too little to accuse it
		return
	}
	if f.answer == yes && f.symptom == broken && q.about == aboutNode && len(q.looks) < maxLooks && p.askBeforeAccusing(q) {
		return
	}
	if f.answer == yes {
		q.state, q.found = accused, f
		switch q.about {
		case aboutNode:
			p.blamed[q.node] = true
			q.found.doubt = f.doubt || f.symptom == broken && !p.failsAlike(q)
		case aboutPair:
			p.openLeaves(q)
		case aboutLeaves, aboutGroup:
		}
		return
	}
	if f.answer == no {
		q.state = cleared
		return
	}
	if f.answer == tooFew || q.dry || q.failed >= maxTries || len(q.looks) >= maxLooks || !p.takes(q.test, p.subject(q)) {
		q.state, q.found = unproven, f
		return
	}
	for range f.need {
		p.queueTest(q)
	}
}

// askBeforeAccusing asks for one more test of a node that is about to be accused: with a node of a part that was
// not tried, then with one that is alike. It reports whether it does.
func (p *pairPlan) askBeforeAccusing(q *inquiry) bool {
	untried := func(i int32) bool {
		return i != q.node && p.takes(q.test, i) && p.fresh(q, q.test, q.node, i) && p.partsOf(q.test).untried(i, q.tried) && p.provenFor(q, i)
	}
	switch {
	case !q.dry && slices.ContainsFunc(p.tests[q.test].order, untried):
	case !q.kin && !p.failsAlike(q):
		q.kin = true
	default:
		return false
	}
	p.queueTest(q)
	return true
}

// decideByFamily waits for the inquiry about the same node in an earlier test of the family, which
// can explain this one. It reports whether there is nothing else to do now.
func (p *pairPlan) decideByFamily(q *inquiry) bool {
	for t := range q.test {
		if p.tests[t].family != p.tests[q.test].family {
			continue
		}
		for _, r := range []role{both, sends, receives} {
			before := p.nodeInquiry(t, q.node, r)
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

// openGroups tests nodes that are accused, or not proven healthy, in the same test with each other: if they are healthy together
// they share a switch, a cable or a network, and none of them is at fault. It reports whether there is
// something to decide.
func (p *pairPlan) openGroups() bool {
	found := p.acquit()
	type key struct {
		test int
		role role
	}
	accusedIn, passed := map[key][]int32{}, map[key]bool{}
	var list []int32
	for _, q := range p.asked {
		k := key{q.test, q.role}
		switch {
		case q.about == aboutNode && (q.state == accused && q.found.symptom != unable || q.state == unproven && q.found.symptom == broken):
			accusedIn[k] = append(accusedIn[k], q.node)
			if !slices.Contains(list, q.node) {
				list = append(list, q.node)
			}
		case q.about == aboutGroup && q.state == cleared:
			passed[k] = true
		}
	}
	// Neighbours of the list are often at the same switch.
	slices.SortFunc(list, func(a, b int32) int { return cmp.Or(cmp.Compare(p.leaves[a], p.leaves[b]), cmp.Compare(a, b)) })
	for _, k := range slices.SortedFunc(maps.Keys(accusedIn), func(a, b key) int { return cmp.Or(a.test-b.test, int(a.role)-int(b.role)) }) {
		for _, off := range groupOffsets {
			if off > 1 && !passed[k] || off >= len(list) {
				continue
			}
			for i := range list {
				from, to := list[i], list[(i+off)%len(list)]
				if !slices.Contains(accusedIn[k], from) {
					continue
				}
				if k.role == receives {
					from, to = to, from
				}
				if k.role == both && from > to {
					from, to = to, from
				}
				n := inquiryKey{about: aboutGroup, test: k.test, node: from, other: to, role: k.role}
				if p.byKey[n] == nil && p.takes(k.test, from) && p.takes(k.test, to) {
					p.ask(&inquiry{inquiryKey: n})
					found = true
				}
			}
		}
	}
	return found
}

// groupOffsets are the distances in the list of accused nodes of those that are tested with each other:
// the others follow once neighbours are healthy together.
var groupOffsets = []int{1, 2, 3}

// acquit clears nodes that are accused of a fault which their tests with each other explain. It reports
// whether there are any.
func (p *pairPlan) acquit() (found bool) {
	var doubtful []*inquiry
	for _, q := range p.asked {
		switch {
		case q.about != aboutNode || q.state != accused || q.found.symptom != broken:
		case p.weigh(q).answer != yes:
			q.state, found = cleared, true
		case !q.again && p.blamesOthers(q):
			doubtful = append(doubtful, q)
		}
	}
	for _, q := range doubtful {
		q.again, found = true, true
		q.reopen(slices.DeleteFunc(slices.Clone(q.looks), func(k int32) bool { return p.hasAccused(q, k) }))
	}
	if found {
		clear(p.blamed)
		for _, q := range p.asked {
			if q.about == aboutNode && q.state == accused {
				p.blamed[q.node] = true
			}
		}
	}
	return found
}

// blamesOthers reports whether too few bad looks of an accused node are left without those that an accused
// partner or path explains.
func (p *pairPlan) blamesOthers(q *inquiry) bool {
	bad, looks := 0, 0
	for _, k := range q.looks {
		if !p.hasAccused(q, k) {
			looks++
			if p.symptoms(&p.looks[k])&broken != 0 {
				bad++
			}
		}
	}
	return looks < len(q.looks) && (bad < 2 || 3*bad < 2*looks)
}

// hasAccused reports whether the partner of an inquiry's node in a bad look, or the path to it, fails on the same
// plane, whichever test shows it.
func (p *pairPlan) hasAccused(q *inquiry, k int32) bool {
	l := &p.looks[k]
	return p.symptoms(l)&broken != 0 && (p.fails(q.test, l.from+l.to-q.node) || p.pathAccused(l))
}

// decideGroup decides whether two accused nodes are healthy together.
func (p *pairPlan) decideGroup(q *inquiry) {
	want := int(limitOf("looks"))
	switch {
	case q.failed > 0 || !p.takes(q.test, q.node) || !p.takes(q.test, q.other):
		q.state = unproven
	case len(q.looks) > 0 && !p.healthyTogether(q):
		q.state = accused
	case len(q.looks) >= want:
		q.state = cleared
	case len(q.looks) == 0:
		p.queueTest(q)
	default:
		for range want - len(q.looks) {
			p.queueTest(q)
		}
	}
}

// healthyTogether reports whether two accused nodes are healthy in their tests with each other. A rate is
// nearer to that of others than to the one they are accused of.
func (p *pairPlan) healthyTogether(q *inquiry) bool {
	share, limit := 0.0, 0.0
	for _, i := range []int32{q.node, q.other} {
		if a := p.nodeInquiry(q.test, i, q.role); a != nil && a.found.symptom == slow && a.found.expect > 0 {
			limit = max(limit, (1+a.found.value/a.found.expect)/2)
		}
	}
	rate := !p.tests[q.test].task.Kind.Lower()
	for _, k := range q.looks {
		l := &p.looks[k]
		s := p.symptoms(l)
		if rate {
			s &^= slow
		}
		if s != 0 || l.lost > 0 || limit > 0 && rate && !l.class.judged {
			return false
		}
		share += l.value / l.class.median / float64(len(q.looks))
	}
	return limit == 0 || !rate || share > limit
}

// accusedFast reports whether a node that is accused of a low value was fast with another one in the same place.
func (p *pairPlan) accusedFast(test int) bool {
	return slices.ContainsFunc(p.asked, func(q *inquiry) bool {
		return q.about == aboutNode && q.test == test && q.state == accused && q.found.symptom&(slow|flaky) != 0 &&
			slices.ContainsFunc(p.byNode[q.node], func(k int32) bool {
				l := &p.looks[k]
				return int(l.test) == test && p.roleOf(l, q.node) == q.role && l.fault == FaultNone && p.symptoms(l) == 0
			})
	})
}
