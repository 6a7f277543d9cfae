package sweep

import (
	"fmt"
	"math"
	"slices"
)

// class describes the values of comparable looks.
type class struct {
	key        classKey
	values     []float64 // sorted
	lows, mids []float64
	spreads    []float64
	by         map[int32]int // looks of each node
	median     float64
	sigma      float64
	low, mid   float64 // medians of the windows' low deciles and medians; NaN: there are too few
	lowSigma   float64 // spread of the low deciles
	enough     bool    // there are enough values
	judged     bool    // and of enough nodes
	floor      float64 // of the site, 0 without one
	known      float64 // what healthy networks reach: the floor of the site, or one of judge.toml; 0: unknown
	note       string  // the whole fleet misses the floor of the site
	wide       string  // the whole fleet misses that of judge.toml
}

// classKey has looks that must be alike: the same test between nodes of the same models, with ports of the
// same speeds, at the same distance.
type classKey struct {
	test  int32
	far   int8 // 0 unknown, 1 within a leaf, 2 between leaves, 3 with the slow leaf
	kinds int64
}

var farNames = [...]string{"", "leaf", "spine", "spine"}

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
		c.values, c.lows, c.mids, c.spreads, c.by = nil, nil, nil, nil, map[int32]int{}
	}
	for i := range e.looks {
		if l := &e.looks[i]; l.base && l.fault == FaultNone && !math.IsNaN(l.value) {
			l.class.add(l)
		}
	}
	for _, c := range e.sorted {
		kind := e.tests[c.key.test].task.Kind
		c.compute(e.comparables(c), kind.Lower(), e.count(c.key))
		c.judged = c.judged || c.enough && len(e.tests[c.key.test].order) <= 3 // one of three nodes is in most pairs
		e.addNotes(c, kind)
	}
	for t := range e.tests {
		e.lost[t] = e.lostOf(t)
		e.loss[t] = max(1.6*e.lost[t], limitOf("loss_base"))
	}
	e.findWide()
}

// classOf returns the class of a look.
func (e *evidence) classOf(l *look) *class {
	key := e.keyOf(int(l.test), l.from, l.to)
	c := e.classes[key]
	if c == nil {
		floor := e.o.floorOf(e.tests[l.test].task)
		c = &class{key: key, floor: floor, known: floor, median: math.NaN(), low: math.NaN(), mid: math.NaN()}
		e.stale = true
		e.classes[key] = c
		e.sorted = append(e.sorted, c)
	}
	if c.floor == 0 {
		c.known = max(c.known, e.tests[l.test].known(l.from, l.to))
	}
	return c
}

func (e *evidence) keyOf(test int, from, to int32) classKey {
	kinds := e.tests[test].kinds
	a, b := kinds[from], kinds[to]
	key := classKey{test: int32(test), kinds: int64(min(a, b))*int64(len(e.names)) + int64(max(a, b))}
	switch sides := e.sidesOf(test); {
	case sides != nil && sides[from] == sides[to]:
		key.far = 1
	case sides != nil:
		key.far = 2
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

// comparables returns the values that those of a class are compared with. If they are few they are joined with
// those of other planes of the same speed, or else with those between leaves, which are the slower ones: of few
// pairs within leaves a faulty node can spoil most.
func (e *evidence) comparables(c *class) *class {
	alike, least := c, int(limitOf("class_min"))
	if len(c.values) < least {
		alike = e.join(c, c.key.far)
	}
	if n := len(alike.values); c.key.far < 2 && n < 3*least && e.sidesOf(int(c.key.test)) == nil {
		if all := e.join(c, c.key.far, 2); n < least || len(all.values) >= 3*n {
			return all
		}
	}
	return alike
}

// join joins a class with those of some distances and of other planes of the same speed.
func (e *evidence) join(c *class, far ...int8) *class {
	t := e.tests[c.key.test]
	all := &class{by: map[int32]int{}}
	for _, other := range e.sorted {
		o := e.tests[other.key.test]
		if o.task.Kind != t.task.Kind || o.task.Op != t.task.Op || o.task.NoP2P != t.task.NoP2P || o.usual != t.usual ||
			!slices.Contains(far, other.key.far) || other.key.kinds != c.key.kinds {
			continue
		}
		all.values = append(all.values, other.values...)
		all.lows, all.mids = append(all.lows, other.lows...), append(all.mids, other.mids...)
		all.spreads = append(all.spreads, other.spreads...)
		for node, n := range other.by {
			all.by[node] += n
		}
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

func (c *class) add(l *look) {
	c.values = append(c.values, l.value)
	c.by[l.from]++
	c.by[l.to]++
	c.spreads = append(c.spreads, l.spread/math.Sqrt(max(float64(l.repeats), 1)))
	if !math.IsNaN(l.low) {
		c.lows, c.mids = append(c.lows, l.low), append(c.mids, l.mid)
	}
}

// compute computes the distribution of values. One faulty node of n spoils 2/n of all pairs: the
// median is that of the others.
func (c *class) compute(from *class, lower bool, nodes int) {
	c.enough = len(from.values) >= int(limitOf("class_min"))
	c.judged = c.enough
	if len(from.values) == 0 {
		c.median, c.sigma, c.low, c.mid, c.judged = math.NaN(), math.NaN(), math.NaN(), math.NaN(), false
		return
	}
	values := slices.Sorted(slices.Values(from.values))
	shift := min(1/float64(max(nodes, 1)), 0.4)
	for _, n := range from.by { // the median would be that of one node, which may be faulty
		c.judged = c.judged && (nodes <= 2 || float64(n) < (0.5+shift)*float64(len(values)))
	}
	if lower {
		shift = -shift
	}
	c.median = quantile(values, 0.5+shift)
	// Few looks can be alike by chance: they vary at least as much as their repeats suggest.
	c.sigma = max(spreadOf(values, c.median), median(from.spreads), limitOf("sigma_floor")*math.Abs(c.median))
	if nodes <= allPairsFleet {
		c.sigma = max(limitOf("few_spreads")*median(from.spreads), 2*limitOf("sigma_floor")*math.Abs(c.median))
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
}

// limit returns the value beyond which a look is suspicious.
func (c *class) limit(k Kind) float64 {
	cut := limitOf("suspect_z") * c.sigma
	if k.Lower() {
		limit := max(limitOf(string(k)+"_factor")*c.median, c.median+limitOf(string(k)+"_excess"), c.median+cut)
		if c.floor > 0 && c.note == "" {
			limit = min(limit, c.floor)
		}
		return limit
	}
	limit := c.median - cut
	if c.note == "" {
		limit = max(limit, c.floor)
	}
	return max(limit, 0)
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

// lossNote reports a loss of the whole fleet: of most pairs, and so high that it would accuse a node.
func (e *evidence) lossNote(test int) string {
	if e.lost[test] <= limitOf("loss_share") {
		return ""
	}
	return fmt.Sprintf("most pairs lost %s %% of the datagrams: the whole fleet loses data, and only nodes that lose much more are suspects", number(100*e.lost[test]))
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
