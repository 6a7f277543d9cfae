package sweep

import (
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

// hasCommonNode reports whether one node is in all bad looks of an inquiry about two leaves: it may be the cause.
func (e *evidence) hasCommonNode(q *inquiry) bool {
	base := &e.looks[q.base]
	in := func(i int32) bool {
		return !slices.ContainsFunc(q.looks, func(k int32) bool {
			l := &e.looks[k]
			return e.symptoms(l) != 0 && l.from != i && l.to != i
		})
	}
	return in(base.from) || in(base.to)
}
