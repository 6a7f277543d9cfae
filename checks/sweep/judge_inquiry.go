package sweep

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// weigh judges the looks of an inquiry since it was opened: the look that opened it was chosen
// because it is bad, so it says nothing.
func (e *evidence) weigh(q *inquiry) finding {
	least := int(limitOf("looks"))
	r := rule{no: least, yes: least, most: int(limitOf("looks_most")), partners: 2}
	switch q.about {
	case aboutPair:
		r = rule{no: 1, yes: 2, most: least + 2}
	case aboutLeaves:
		r = rule{no: least, yes: 2, most: least}
	case aboutNode, aboutGroup:
	}
	if q.dry && q.about == aboutLeaves { // the leaves have no further pair
		r.no = min(r.no, max(len(q.looks), 2))
	}
	beside := e.looks[q.base].beside || slices.ContainsFunc(q.looks, func(k int32) bool { return e.looks[k].beside })
	if beside {
		extra := int(limitOf("looks_beside")) - least
		r.yes, r.no, r.most = r.yes+extra, r.no+min(extra, r.no-1), r.most+extra
	}
	seen := q.symptoms
	for _, k := range q.looks {
		seen |= e.symptoms(&e.looks[k]) &^ unable
	}
	best := finding{answer: no}
	for _, s := range []symptom{broken, lossy, slow, flaky, unable} {
		if seen&s == 0 {
			continue
		}
		f := e.weighSymptom(q, s, r)
		f.beside = beside
		if f.symptom == 0 {
			f.symptom = s
		}
		if f.answer == yes {
			return f
		}
		if f.answer == more && best.answer != more || f.answer == tooFew && best.answer == no {
			best = f
		}
	}
	return best
}

func (e *evidence) weighSymptom(q *inquiry, s symptom, r rule) (f finding) {
	node := q.node
	if q.about != aboutNode {
		node = anyone
	}
	if q.about == aboutPair && s&(slow|flaky) != 0 { // values need as many looks as those of a node
		r.yes, r.most = max(r.yes, int(limitOf("looks"))), max(r.most, int(limitOf("looks_most")))
	}
	switch s {
	case lossy:
		f = e.weighLoss(q, r)
	case slow, flaky:
		if e.tests[q.test].task.Kind.Lower() {
			f = e.weighCount(q, s, r)
		} else {
			f = e.weighValues(q, s, r)
		}
	default:
		f = e.weighCount(q, s, r)
	}
	f.partners = e.badPartners(q, node, s)
	if f.answer == yes && len(f.partners) < r.partners {
		if f.answer = more; f.looks >= r.most-2 {
			f.answer = tooFew
		}
	}
	if f.answer == more {
		f.need = max(1, r.no-f.looks)
		if f.looks >= r.most {
			f.answer = no
		}
	}
	e.addValues(q, s, &f)
	return f
}

// badPartners returns the different partners with which a node is bad.
func (e *evidence) badPartners(q *inquiry, node int32, s symptom) (list []int32) {
	for _, k := range q.looks {
		l := &e.looks[k]
		bad := e.symptoms(l)&s != 0
		if s == slow || s == flaky || s == lossy {
			bad = l.fault == FaultNone // the mean decides
		}
		if partner := l.from + l.to - node; node != anyone && bad && !slices.Contains(list, partner) {
			list = append(list, partner)
		}
	}
	return list
}

// weighCount counts bad looks.
func (e *evidence) weighCount(q *inquiry, s symptom, r rule) (f finding) {
	faults := map[Fault]int{}
	for _, k := range q.looks {
		l := &e.looks[k]
		got := e.symptoms(l)
		if got == unable && s != unable || e.failsApart(l) {
			continue
		}
		f.looks++
		if got&s != 0 {
			f.bad++
			faults[l.fault]++
			f.text = cmpText(f.text, l.text)
		}
	}
	f.fault = commonestFault(faults)
	part := 2 // of 3: bad looks that accuse
	if s == slow {
		part = 3 // of 4: latency varies
	}
	switch {
	case f.looks < r.no:
	case f.bad == 0:
		f.answer = no
	case f.looks < r.yes:
	case f.bad >= 2 && (part+1)*f.bad >= part*f.looks:
		f.answer = yes
	case f.looks >= r.yes+2 && f.bad >= 2 && s == broken && q.about == aboutNode:
		f.answer, f.doubt = yes, 2*f.bad < f.looks
	case f.looks >= r.yes+2:
		f.answer = no
	}
	return f
}

// weighLoss adds up datagrams.
func (e *evidence) weighLoss(q *inquiry, r rule) (f finding) {
	sent, lost := 0, 0
	for _, k := range q.looks {
		l := &e.looks[k]
		if l.fault != FaultNone {
			continue
		}
		f.looks++
		sent, lost = sent+l.sent, lost+l.lost
		if l.lost > 0 {
			f.bad++
		}
	}
	if f.looks < r.no || sent == 0 {
		return f
	}
	share, tail := float64(lost)/float64(sent), poissonTail(lost, float64(sent)*e.loss[q.test])
	f.value, f.expect, f.z = 100*share, 100*e.loss[q.test], -math.Log10(max(tail, 1e-300))
	switch {
	case lost < 2 || share < limitOf("loss_share"):
		f.answer = no
	case f.looks >= r.yes && f.bad >= 2 && tail < limitOf("loss_sure"):
		f.answer = yes
	case f.looks >= r.yes+2:
		f.answer = no
	}
	return f
}

// weighValues judges the mean of the looks, in sigma of the fleet and of the node itself.
func (e *evidence) weighValues(q *inquiry, s symptom, r rule) (f finding) {
	var sum, drop, square, own float64
	weak := 0
	cut := limitOf("suspect_z")
	var drops []float64
	for _, k := range q.looks {
		l := &e.looks[k]
		z, relative, sigma := e.distance(l, s)
		if math.IsNaN(z) {
			continue
		}
		f.looks++
		z = min(z, limitOf("cap_z"))
		if z < cut/2 {
			weak++
		} else {
			f.bad++
		}
		sum, drop, own = sum+z, drop+relative, own+sigma*sigma
		drops = append(drops, relative)
	}
	n := float64(f.looks)
	if f.looks < r.no || n == 0 {
		return f
	}
	mean := drop / n
	for _, d := range drops {
		square += (d - mean) * (d - mean)
	}
	f.z = sum / n * math.Sqrt(n)
	share := limitOf("slow_share")
	if s == flaky {
		share = limitOf("flaky_share")
	}
	deviation := 0.0
	if n > 1 {
		deviation = math.Sqrt(square / (n - 1))
	}
	// Looks that vary more than those of other nodes must agree among themselves.
	if deviation > 1.5*e.relativeSigma(q, s) {
		own = max(own, deviation*deviation*n)
	}
	low := e.belowFloor(q, s)
	steady := own == 0 || mean >= limitOf("own_z")*math.Sqrt(own)/n
	switch {
	case f.looks >= r.yes && low >= limitOf("floor_z"):
		f.answer, f.z, f.bad = yes, low, f.looks
	case low > 0 && f.looks < r.most:
	case sum/n < cut || mean < share:
		f.answer = no
	case f.looks >= r.yes && f.z >= limitOf("sure_z") && 4*weak <= f.looks && steady:
		f.answer = yes
	case f.looks >= r.most:
		f.answer = no
	}
	return f
}

// belowFloor returns by how many standard errors the mean of the looks is below its bound, 0 if it is
// not.
func (e *evidence) belowFloor(q *inquiry, s symptom) float64 {
	value, floor, sigma, n := 0.0, 0.0, 0.0, 0.0
	for _, k := range q.looks {
		l := &e.looks[k]
		if bound := e.boundOf(l.class); l.fault == FaultNone && !math.IsNaN(l.value) && bound > 0 {
			value, floor, sigma, n = value+l.value, floor+bound, sigma+max(l.class.sigma, limitOf("sigma_floor")*bound), n+1
		}
	}
	if s != slow || n == 0 || value >= floor {
		return 0
	}
	return (floor - value) / sigma * math.Sqrt(n)
}

// distance returns how far a look is below its class: in sigma, as a share of the median, and the
// standard error of the look itself as a share. NaN if it cannot be judged.
func (e *evidence) distance(l *look, s symptom) (z, relative, sigma float64) {
	c := l.class
	if l.fault != FaultNone || math.IsNaN(l.value) || !c.judged && e.boundOf(c) == 0 {
		return math.NaN(), 0, 0
	}
	if s == flaky {
		if math.IsNaN(l.low) || math.IsNaN(c.low) {
			return math.NaN(), 0, 0
		}
		return e.lowZ(l), 1 - l.low/c.low, 0
	}
	expect := c.median
	if !c.judged {
		return 0, 0, 0 // only the bound counts
	}
	return e.fleetZ(l), 1 - l.value/expect, l.spread / math.Sqrt(max(float64(l.repeats), 1)) / expect
}

// relativeSigma returns the noise of the class of an inquiry's looks as a share.
func (e *evidence) relativeSigma(q *inquiry, s symptom) float64 {
	sum, n := 0.0, 0
	for _, k := range q.looks {
		c := e.looks[k].class
		switch {
		case s == flaky && !math.IsNaN(c.low):
			sum, n = sum+c.lowSigma/c.low, n+1
		case s == slow && !math.IsNaN(c.median):
			sum, n = sum+c.sigma/c.median, n+1
		}
	}
	return sum / float64(max(n, 1))
}

// addValues adds the mean value and the expected one, and whether the node is fast most of the time.
func (e *evidence) addValues(q *inquiry, s symptom, f *finding) {
	if s != slow && s != flaky {
		return
	}
	value, expect, mids, n := 0.0, 0.0, 0.0, 0
	for _, k := range q.looks {
		l := &e.looks[k]
		if l.fault != FaultNone || math.IsNaN(l.value) || math.IsNaN(l.class.median) {
			continue
		}
		n++
		if s == flaky {
			value, expect = value+l.low, expect+l.class.low
		} else {
			value, expect = value+l.value, expect+e.expect(l)
		}
		if !math.IsNaN(l.mid) && !math.IsNaN(l.class.mid) {
			mids += 1 - l.mid/l.class.mid
		} else {
			mids = math.NaN()
		}
	}
	if n == 0 {
		return
	}
	f.value, f.expect = value/float64(n), expect/float64(n)
	// The middle of the windows is healthy: the mean is low only because of some of them.
	if s == slow && f.answer == yes && !math.IsNaN(mids) && mids/float64(n) < limitOf("slow_share") && !e.tests[q.test].task.Kind.Lower() {
		f.symptom = flaky
	}
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

// elsewhere returns by how many sigma a node of a pair is slow with most of its other partners. It is
// the median: a bad path between two leaves slows the node with several partners, and not with most.
func (e *evidence) elsewhere(q *inquiry, i int32) float64 {
	var list []float64
	role := e.roleOf(&e.looks[q.base], i)
	for _, k := range e.byNode[i] {
		l := &e.looks[k]
		pair := l.from+l.to == q.node+q.other && (l.from == q.node || l.from == q.other)
		if int(l.test) == q.test && !pair && l.fault == FaultNone && e.roleOf(l, i) == role {
			list = append(list, e.fleetZ(l))
		}
	}
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[len(list)/2]
}

// subject returns the node that must take part in the tests of an inquiry.
func (e *evidence) subject(q *inquiry) int32 {
	if q.about == aboutLeaves {
		return e.looks[q.base].from
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
