package sweep

import (
	_ "embed"
	"math"
	"slices"
	"sync"

	"github.com/BurntSushi/toml"
)

// judge.toml holds the limits and the codes.

//go:embed judge.toml
var judgeTOML string

// Limit is a [[limit]] of judge.toml.
type Limit struct {
	Name   string  `toml:"name"`
	Value  float64 `toml:"value"`
	Unit   string  `toml:"unit"`
	Source string  `toml:"source"`
}

// Code is a [[code]] of judge.toml.
type Code struct {
	Code  string `toml:"code"`
	Fault string `toml:"fault"` // in a few words
	Do    string `toml:"do"`
}

type judgeTable struct {
	Limits []Limit `toml:"limit"`
	Codes  []Code  `toml:"code"`
	limits map[string]float64
}

var readJudge = sync.OnceValue(func() (t judgeTable) {
	if _, err := toml.Decode(judgeTOML, &t); err != nil {
		panic("sweep: judge.toml: " + err.Error()) // TestTable
	}
	t.limits = map[string]float64{}
	for _, l := range t.Limits {
		t.limits[l.Name] = l.Value
	}
	return t
})

// Limits returns the limits by which a sweep judges, and their sources.
func Limits() []Limit { return readJudge().Limits }

// Codes returns the codes of all findings of a sweep.
func Codes() []Code { return readJudge().Codes }

func limitOf(name string) float64 {
	v, ok := readJudge().limits[name]
	if !ok {
		panic("sweep: no limit " + name) // TestTable
	}
	return v
}

// SmallestFault returns the smallest loss of speed, as a share of the median, that a sweep with
// default options finds in a node with a probability of 99.999 %, even if only one direction is slow.
// sigma is the noise of a repeat, as a share; repeats is how many a test has.
func SmallestFault(sigma float64, repeats int) float64 {
	s := max(sigma/math.Sqrt(float64(max(repeats, 1))), limitOf("sigma_floor"))
	const first = 2.73   // one of the two first tests sees it: 0.0032 squared is 1e-5
	const confirm = 4.27 // the mean of the confirmations is below the cut with 1e-5
	mean := confirm / math.Sqrt(limitOf("looks"))
	return max((limitOf("suspect_z")+max(first, mean))*s, limitOf("slow_share")+mean*s)
}

// Rounds returns how many looks with windows a fault that comes and goes needs: in each look it is
// active with the probability share, and one of them must meet it with the probability sure.
func Rounds(share, sure float64) int {
	if share <= 0 || share >= 1 {
		return 1
	}
	return int(math.Ceil(math.Log(1-sure) / math.Log(1-share)))
}

// quantile returns a quantile of sorted values, NaN of none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := q * float64(len(sorted)-1)
	low := int(at)
	if low+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}

// summarize returns the value of a look and the standard deviation of its repeats. Latencies are
// skewed upwards, and traffic of other jobs lowers rates: there the best repeat counts.
func summarize(values []float64, lower, beside bool) (value, spread float64) {
	sum, square := 0.0, 0.0
	for _, v := range values {
		sum += v
	}
	mean := sum / float64(len(values))
	for _, v := range values {
		square += (v - mean) * (v - mean)
	}
	if len(values) > 1 {
		spread = math.Sqrt(square / float64(len(values)-1))
	}
	switch {
	case lower:
		return slices.Min(values), spread
	case beside:
		return slices.Max(values), spread
	}
	return mean, spread
}

// normalTail returns the probability of a value beyond z standard deviations on one side.
func normalTail(z float64) float64 { return math.Erfc(z/math.Sqrt2) / 2 }

// poissonTail returns the probability of at least n events where mean is expected.
func poissonTail(n int, mean float64) float64 {
	if n <= 0 {
		return 1
	}
	if mean <= 0 {
		return 0
	}
	lg, _ := math.Lgamma(float64(n) + 1)
	term := math.Exp(float64(n)*math.Log(mean) - mean - lg)
	sum := 0.0
	for k := n; k < n+1000 && term > 0; k++ {
		sum += term
		if term < sum*1e-12 && float64(k) > mean {
			break
		}
		term *= mean / float64(k+1)
	}
	return min(sum, 1)
}

// classKey has looks that must be alike: the same test between nodes of the same models at the same
// distance.
type classKey struct {
	test  int32
	far   int8 // 0 unknown, 1 within a leaf, 2 between leaves
	model int64
}

// class describes the values of comparable looks.
type class struct {
	key        classKey
	values     []float64 // sorted
	lows, mids []float64
	spreads    []float64
	median     float64
	sigma      float64
	low, mid   float64 // medians of the windows' low deciles and medians; NaN: there are too few
	lowSigma   float64 // spread of the low deciles
	judged     bool    // there are enough values
	floor      float64 // of the site, 0 without one
	note       string
}

var farNames = [...]string{"", "leaf", "spine"}

// classOf returns the class of a look.
func (p *pairPlan) classOf(l *look) *class {
	key := p.keyOf(int(l.test), l.from, l.to)
	c := p.classes[key]
	if c == nil {
		c = &class{key: key, floor: p.o.floorOf(p.tests[l.test].task), median: math.NaN(), low: math.NaN(), mid: math.NaN()}
		p.stale = true
		p.classes[key] = c
		p.sorted = append(p.sorted, c)
	}
	return c
}

func (p *pairPlan) keyOf(test int, from, to int32) classKey {
	a, b := p.models[from], p.models[to]
	key := classKey{test: int32(test), model: int64(min(a, b))*int64(len(p.names)) + int64(max(a, b))}
	switch {
	case p.leaves[from] < 0 || p.leaves[to] < 0:
	case p.leaves[from] == p.leaves[to]:
		key.far = 1
	default:
		key.far = 2
	}
	return key
}

// modelOf names the models of a class.
func (p *pairPlan) modelOf(key classKey) string {
	a, b := p.names[key.model/int64(len(p.names))], p.names[key.model%int64(len(p.names))]
	if a == b {
		return a
	}
	return a + " and " + b
}

// describe computes the classes from the looks of the turns, and what concerns the whole fleet.
func (p *pairPlan) describe() {
	if !p.stale {
		return
	}
	p.stale = false
	for _, c := range p.sorted {
		c.values, c.lows, c.mids, c.spreads = nil, nil, nil, nil
	}
	for i := range p.looks {
		if l := &p.looks[i]; l.base && l.fault == FaultNone && !math.IsNaN(l.value) {
			l.class.add(l)
		}
	}
	for _, c := range p.sorted {
		values := c
		if len(c.values) < int(limitOf("class_min")) {
			values = p.likeClasses(c)
		}
		c.compute(values, p.tests[c.key.test].task.Kind.Lower(), p.count(c.key))
	}
	for t := range p.tests {
		p.loss[t] = p.lossOf(t)
	}
	p.findWide()
}

func (c *class) add(l *look) {
	c.values = append(c.values, l.value)
	c.spreads = append(c.spreads, l.spread/math.Sqrt(max(float64(l.repeats), 1)))
	if !math.IsNaN(l.low) {
		c.lows, c.mids = append(c.lows, l.low), append(c.mids, l.mid)
	}
}

// likeClasses joins a class of few values with those of other planes of the same speed.
func (p *pairPlan) likeClasses(c *class) *class {
	t := p.tests[c.key.test]
	all := &class{}
	for _, other := range p.sorted {
		o := p.tests[other.key.test]
		if o.task.Kind != t.task.Kind || o.task.Op != t.task.Op || o.task.NoP2P != t.task.NoP2P || o.speed != t.speed ||
			other.key.far != c.key.far || other.key.model != c.key.model {
			continue
		}
		all.values = append(all.values, other.values...)
		all.lows, all.mids = append(all.lows, other.lows...), append(all.mids, other.mids...)
		all.spreads = append(all.spreads, other.spreads...)
	}
	return all
}

// count returns the number of nodes that the looks of a class can have.
func (p *pairPlan) count(key classKey) int {
	a, b := key.model/int64(len(p.names)), key.model%int64(len(p.names))
	n := 0
	for _, m := range p.models {
		if int64(m) == a || int64(m) == b {
			n++
		}
	}
	return n
}

// compute computes the distribution of values. One faulty node of n spoils 2/n of all pairs: the
// median is that of the others.
func (c *class) compute(from *class, lower bool, nodes int) {
	c.judged = len(from.values) >= int(limitOf("class_min"))
	if len(from.values) == 0 {
		c.median, c.sigma, c.low, c.mid, c.judged = math.NaN(), math.NaN(), math.NaN(), math.NaN(), false
		return
	}
	values := slices.Sorted(slices.Values(from.values))
	shift := min(1/float64(max(nodes, 1)), 0.4)
	if lower {
		shift = -shift
	}
	c.median = quantile(values, 0.5+shift)
	// Few looks can be alike by chance: they vary at least as much as their repeats suggest.
	c.sigma = max(spreadOf(values, c.median), median(from.spreads), limitOf("sigma_floor")*math.Abs(c.median))
	if nodes <= allPairsFleet {
		c.sigma = max(median(from.spreads), 2*limitOf("sigma_floor")*math.Abs(c.median))
	}
	if lower {
		c.sigma = max(c.sigma, upperSpread(values, c.median, nodes))
	}
	c.low, c.mid = math.NaN(), math.NaN()
	if len(from.lows) >= int(limitOf("class_min")) {
		lows, mids := slices.Sorted(slices.Values(from.lows)), slices.Sorted(slices.Values(from.mids))
		c.low, c.mid = quantile(lows, 0.5+shift), quantile(mids, 0.5+shift)
		c.lowSigma = max(spreadOf(lows, c.low), limitOf("sigma_floor")*math.Abs(c.low))
	}
	if c.floor > 0 && (!lower && c.median < c.floor || lower && c.median > c.floor) {
		c.note = "the median misses the floor: the whole fleet is slow, or the floor is wrong"
	}
}

// spreadOf returns 1.4826 times the median absolute deviation.
func spreadOf(sorted []float64, center float64) float64 {
	off := make([]float64, len(sorted))
	for i, v := range sorted {
		off[i] = math.Abs(v - center)
	}
	return 1.4826 * median(off)
}

// upperSpread returns the standard deviation that an upper quantile suggests: latencies are skewed
// upwards. The quantile excludes the pairs of one faulty node.
func upperSpread(sorted []float64, center float64, nodes int) float64 {
	q := 0.9 * (1 - 2/float64(max(nodes, 3)))
	if q < 0.6 {
		return 0
	}
	return (quantile(sorted, q) - center) / (math.Sqrt2 * math.Erfinv(2*q-1))
}

func median(values []float64) float64 {
	return quantile(slices.Sorted(slices.Values(values)), 0.5)
}

// lossOf returns the share of datagrams that healthy pairs lose. The 30 % of pairs that lose the most,
// and those of one faulty node, do not count. So it is raised by as much as a random choice of the rest would need.
func (p *pairPlan) lossOf(test int) float64 {
	var shares []float64
	for i := range p.looks {
		if l := &p.looks[i]; int(l.test) == test && l.base && l.sent > 0 && l.fault == FaultNone {
			shares = append(shares, float64(l.lost)/float64(l.sent))
		}
	}
	slices.Sort(shares)
	sum := 0.0
	part := min(0.7, 1-2/float64(max(len(p.order), 3)))
	kept := shares[:int(math.Ceil(part*float64(len(shares))))]
	for _, s := range kept {
		sum += s
	}
	return max(1.6*sum/float64(max(len(kept), 1)), limitOf("loss_base"))
}

// findWide finds tests that fail on most nodes: then no node is accused.
func (p *pairPlan) findWide() {
	for t := range p.tests {
		fine, tested, faults := map[int32]bool{}, map[int32]bool{}, map[Fault]int{}
		for i := range p.looks {
			l := &p.looks[i]
			if int(l.test) != t || !l.base {
				continue
			}
			tested[l.from], tested[l.to] = true, true
			if p.symptoms(l)&(broken|unable|lossy) == 0 {
				fine[l.from], fine[l.to] = true, true
			} else {
				faults[l.fault]++
			}
		}
		p.wide[t] = ""
		if len(tested) > 2 && 2*len(fine) < len(tested) {
			p.wide[t] = "most nodes fail: " + faultText(commonestFault(faults))
		}
	}
}

func commonestFault(faults map[Fault]int) (f Fault) {
	for k, n := range faults {
		if n > faults[f] || n == faults[f] && k < f {
			f = k
		}
	}
	return f
}

// symptom is a set of ways in which a look is bad.
type symptom uint8

const (
	broken symptom = 1 << iota
	lossy
	slow
	flaky
	unable
)

// symptoms returns how a look is bad, 0 if it is not.
func (p *pairPlan) symptoms(l *look) (s symptom) {
	switch l.fault {
	case FaultNone:
	case FaultUnable:
		return unable
	default:
		return broken
	}
	if l.lost > 0 && poissonTail(l.lost, float64(l.sent)*p.loss[l.test]) < limitOf("loss_open") {
		s |= lossy
	}
	if p.z(l) >= limitOf("suspect_z") {
		s |= slow
	}
	if p.lowZ(l) >= limitOf("suspect_z") {
		s |= flaky
	}
	return s
}

// z returns by how many sigma a look is worse than its class, 0 if it cannot be judged. One that misses
// the floor of the site is suspicious.
func (p *pairPlan) z(l *look) float64 {
	c, z := l.class, p.fleetZ(l)
	lower := p.tests[l.test].task.Kind.Lower()
	if c.floor > 0 && c.note == "" && (!lower && l.value < c.floor || lower && l.value > c.floor) {
		z = max(z, limitOf("suspect_z"))
	}
	return z
}

// fleetZ is z without the floor.
func (p *pairPlan) fleetZ(l *look) float64 {
	c := l.class
	if math.IsNaN(l.value) || math.IsNaN(c.median) || c.sigma == 0 {
		return 0
	}
	kind, z := p.tests[l.test].task.Kind, 0.0
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
func (p *pairPlan) lowZ(l *look) float64 {
	c := l.class
	if math.IsNaN(l.low) || math.IsNaN(c.low) || !c.judged || l.low > c.low*(1-limitOf("flaky_share")) {
		return 0
	}
	return (c.low - l.low) / c.lowSigma
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

// suspicious reports whether a node is accused in a test.
func (p *pairPlan) suspicious(test int, i int32) bool {
	for _, r := range []role{both, sends, receives} {
		if q := p.byKey[inquiryKey{about: aboutNode, test: test, node: i, role: r}]; q != nil && (q.state == accused || q.state == explained) {
			return true
		}
	}
	return false
}

// proven reports whether a node passed a test in a role with another partner than the suspect, and
// failed with no other than accused ones. In a small fleet most tests must have passed.
func (p *pairPlan) proven(i, suspect int32, test int, role role) bool {
	good, bad := 0, 0
	for _, k := range p.byNode[i] {
		l := &p.looks[k]
		partner := l.from + l.to - i
		if int(l.test) != test || partner == suspect || p.roleOf(l, i) != p.roleIn(test, role) {
			continue
		}
		switch s := p.symptoms(l); {
		case s == 0 && l.fault == FaultNone:
			good++
		case s != 0 && !p.explained(l):
			bad++
		}
	}
	return good > 0 && (bad == 0 || len(p.f.nodes) < smallFleet && good >= bad)
}

// comparable reports whether a test of two nodes has others to compare it with.
func (p *pairPlan) comparable(test int, i, j int32) bool {
	if p.tests[test].task.Repeats == 0 || p.tests[test].task.Kind == KindName {
		return true
	}
	c := p.classes[p.keyOf(test, i, j)]
	return c == nil || math.IsNaN(c.median) || c.judged || c.floor > 0
}

// roleOf returns the role of a node in a look.
func (p *pairPlan) roleOf(l *look, i int32) role {
	if l.from == i {
		return p.roleIn(int(l.test), sends)
	}
	return p.roleIn(int(l.test), receives)
}

// roleIn returns a role, or both if the test has no direction.
func (p *pairPlan) roleIn(test int, r role) role {
	if !p.tests[test].directed {
		return both
	}
	return r
}
