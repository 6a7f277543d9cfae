package sweep

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// groupPlan tests groups of nodes, size by size. A group that is slow, silent or wrong is halved
// until the faulty node is found. Proven nodes fill each half up to the size of the group, so that
// its value can be compared, and a fault that needs this size still shows.
type groupPlan struct {
	f       *fleet
	o       PlanOptions
	tests   []series
	sizes   []int
	step    int // size and test
	order   []int32
	queue   []*groupRun
	sent    map[int]*groupRun
	hunts   []*hunt
	refs    map[refKey][]float64 // values of the groups of a step
	middles map[refKey]middle    // of refs
	proven  []map[int32]bool     // by test
	second  []map[int32]bool     // by test: proven in another place than the first
	found   []Suspect
	notes   []Distribution
	bad     map[badKey]bool // found so far
	mixed   map[string]bool // by plane: healthy nodes have failed with proven ones, or most groups
	begun   []*groupRun     // groups of the present step
	wide    map[int]bool    // tests in which no group passes
	kinds   [][]string      // by test and node: see fleet.kinds
	passed  map[refKey]bool // tests, with sizes 0, and kinds of nodes that have passed together
	accused []accusation
	met     []*groupRun        // tests of accused nodes with each other
	routed  map[int]bool       // tests in which nodes of different subnets have passed together
	linked  map[string][]int32 // by plane: the nodes that have passed together, directly or through others, see root
}

// badKey is a node and the plane on which it is faulty.
type badKey struct {
	node  int32
	plane string
}

// groupRun is a test of a group.
type groupRun struct {
	test, size int // size of the group that is searched
	members    []int32
	pads       []int32 // proven nodes that fill the group
	tries      int
	hunt       *hunt    // nil: a group of a step
	pair       [2]int32 // of a meeting: the two accused nodes
	meets      symptom  // theirs
	passed     int      // how often they have passed
	visit      int      // the number of an accused node, from 1, that is tested with a part
	part       int32    // a node of that part
	bad        bool
	beside     bool
	symptom    symptom
	fault      Fault
	text       string
	value      float64
	expect     float64
}

func newGroupPlan(f *fleet, o PlanOptions, tests []series, sizes []int) *groupPlan {
	p := &groupPlan{
		f: f, o: o, tests: tests, order: f.shuffled(), sent: map[int]*groupRun{}, refs: map[refKey][]float64{}, middles: map[refKey]middle{},
		proven: make([]map[int32]bool, len(tests)), second: make([]map[int32]bool, len(tests)), mixed: map[string]bool{}, bad: map[badKey]bool{}, wide: map[int]bool{}, passed: map[refKey]bool{}, routed: map[int]bool{}, linked: map[string][]int32{},
	}
	for t := range tests {
		p.proven[t], p.second[t] = map[int32]bool{}, map[int32]bool{}
		kinds, odd := f.kinds(&tests[t])
		p.kinds, tests[t].odd = append(p.kinds, kinds), odd
		p.linked[tests[t].task.Plane] = indexes32(len(f.nodes))
	}
	n := len(p.order)
	if len(sizes) == 0 {
		for s := 2; s < n; s *= 2 {
			sizes = append(sizes, s)
		}
		sizes = append(sizes, 0)
	}
	for _, s := range sizes {
		if s == 0 || s > n {
			s = n
		}
		if s >= 2 && !slices.Contains(p.sizes, s) {
			p.sizes = append(p.sizes, s)
		}
	}
	slices.Sort(p.sizes)
	return p
}

// groupTests returns the collectives of groups.
func groupTests(f *fleet, o PlanOptions) (tests []series) {
	fabrics := fabricsOf(f.nodes, f.alive())
	for _, op := range o.Ops {
		for _, fabric := range fabrics {
			tests = append(tests, series{ports: fabric, task: Task{
				Stage: StageGroups, Kind: KindNCCL, Rails: o.Planes, Op: op, Size: o.size(KindNCCL), Repeats: o.Repeats, Time: o.Time, Limit: 2 * o.limit(),
			}})
		}
	}
	return tests
}

// pairedGroups is the number of nodes up to which groups of two are all pairs: they have too few groups of two to
// compare, and too few proven nodes.
const pairedGroups = 5

// newFewGroups tests all pairs of a few nodes, and then the larger groups.
func newFewGroups(f *fleet, o PlanOptions, without difference) Plan {
	p := newPairPlan(f, o, groupTests(f, o))
	p.add(without)
	p.addTurns(p.matchings, true, indexes(p.tests)...)
	return &chain{f: f, plans: []Plan{p}, later: []func() Plan{func() Plan {
		sizes := slices.DeleteFunc(slices.Clone(o.GroupSizes), func(size int) bool { return size == 2 })
		if len(o.GroupSizes) == 0 {
			sizes = []int{4, 0}
		}
		g := newGroupPlan(f, o, groupTests(f, o), sizes)
		if len(sizes) == 0 || len(g.order) < 3 {
			g.sizes = nil
		}
		for i := range p.looks {
			if l := &p.looks[i]; p.symptoms(l) == 0 {
				g.proven[l.test][l.from], g.proven[l.test][l.to] = true, true
			}
		}
		return g
	}}}
}

// Next implements Plan.
func (p *groupPlan) Next() []Task {
	for {
		for len(p.queue) > 0 {
			if tasks := p.pack(); len(tasks) > 0 {
				return tasks
			}
		}
		p.closeStep()
		p.advance()
		if len(p.queue) > 0 {
			continue
		}
		if slices.ContainsFunc(p.hunts, func(h *hunt) bool { return !h.done }) {
			p.stopHunts()
			continue
		}
		if !p.meet() && !p.nextStep() {
			return nil
		}
	}
}

// nextStep queues the groups of the next size or test. It reports false after the last one.
func (p *groupPlan) nextStep() bool {
	for p.step < len(p.sizes)*max(len(p.tests), 1) && len(p.tests) > 0 {
		at, test := p.step/len(p.tests), p.step%len(p.tests)
		size := p.sizes[at]
		p.step++
		var nodes []int32
		for _, i := range p.order {
			if p.takes(test, i) && !p.isBad(test, i) {
				nodes = append(nodes, i)
			}
		}
		// Groups of one kind can be compared.
		slices.SortStableFunc(nodes, func(a, b int32) int { return strings.Compare(p.kinds[test][a], p.kinds[test][b]) })
		if len(nodes) < 2 || at > 0 && len(nodes) <= p.sizes[at-1] { // all nodes have been one group
			continue
		}
		size = min(size, len(nodes))
		for len(nodes) > 0 {
			n := min(size, len(nodes))
			if rest := len(nodes) - n; rest == 1 {
				n++
			}
			members := slices.Clone(nodes[:n])
			if at%2 == 1 { // the first node has another place
				slices.Reverse(members)
			}
			p.queue = append(p.queue, &groupRun{test: test, size: size, members: members})
			nodes = nodes[n:]
		}
		return true
	}
	return false
}

func (p *groupPlan) isBad(test int, i int32) bool {
	return p.bad[badKey{i, p.tests[test].task.Plane}]
}

// kindsOf names the kinds of the nodes of a group.
func (p *groupPlan) kindsOf(test int, nodes []int32) string {
	var kinds []string
	for _, i := range nodes {
		if k := p.kinds[test][i]; !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
	}
	slices.Sort(kinds)
	return strings.Join(kinds, " and ")
}

func (p *groupPlan) takes(test int, i int32) bool {
	return p.f.tested(i) && p.tests[test].has(i)
}

// Take implements Plan.
func (p *groupPlan) Take(results []Result) {
	p.f.takeLosses(results)
	settle(p.sent, results, p.take, p.retry)
}

func (p *groupPlan) retry(r *groupRun) {
	if r.tries++; r.tries < maxTries {
		p.queue = append(p.queue, r)
		return
	}
	p.drop(r)
}

func (p *groupPlan) take(r *groupRun, res Result) {
	all := r.nodes()
	if res.Fault == FaultLost || slices.ContainsFunc(all, func(i int32) bool { return p.f.dead[i] }) {
		p.retry(r)
		return
	}
	if res.Fault == FaultUnable {
		p.drop(r)
		return
	}
	r.fault, r.text, r.beside, r.value = res.Fault, res.Text, res.Beside, math.NaN()
	if len(res.Values) > 0 {
		r.value, _ = summarize(res.Values, false, true) // other groups use the same network: the best repeat counts
	}
	if r.fault == FaultNone {
		p.passed[refKey{test: r.test, kinds: p.kindsOf(r.test, all)}] = true
		p.routed[r.test] = p.routed[r.test] || p.crosses(r)
	} else {
		r.bad, r.symptom = true, broken
	}
	if r.meets != 0 {
		p.judgeValue(r, all)
		if limit, _ := p.boundsOf(r.test, len(all), p.kindsOf(r.test, all)); limit == 0 { // no groups of two: nearer to others
			r.bad = r.bad || r.value < r.expect
		}
		if !r.bad {
			p.link(r)
			if r.passed++; r.passed < int(limitOf("looks")) {
				p.queue = append(p.queue, r)
			}
		}
		return
	}
	if r.visit > 0 {
		if p.judgeValue(r, all); !r.bad {
			s := &p.accused[r.visit-1].suspect
			s.Doubt, s.Confidence = true, min(s.Confidence, doubtConfidence)
		}
		return
	}
	if r.hunt == nil {
		p.begun = append(p.begun, r)
		if !r.bad && !math.IsNaN(r.value) {
			key := refKey{r.test, r.size, p.kindsOf(r.test, r.members)}
			p.refs[key] = append(p.refs[key], r.value)
		}
		return
	}
	p.judgeValue(r, all)
	h := r.hunt
	h.wait--
	if r.bad {
		h.bad = append(h.bad, r)
		h.partners = append(h.partners, r.pads...)
	} else {
		h.good = append(h.good, r)
		p.link(r)
	}
}

// link joins nodes that have passed together, and were not slow.
func (p *groupPlan) link(r *groupRun) {
	union, nodes := p.linked[p.tests[r.test].task.Plane], r.nodes()
	for _, i := range nodes {
		union[root(union, i)] = root(union, nodes[0])
	}
}

// closeStep judges the groups of a step, and opens a hunt for each bad one.
func (p *groupPlan) closeStep() {
	if len(p.begun) == 0 {
		return
	}
	runs := p.begun
	p.begun = nil
	faulty, fault := 0, map[Fault]int{}
	for _, r := range runs {
		p.judgeValue(r, r.members)
		if r.bad {
			faulty++
			fault[r.fault]++
			continue
		}
		p.link(r)
		for k, i := range r.members {
			p.proven[r.test][i] = true
			p.second[r.test][i] = p.second[r.test][i] || k > 0
		}
	}
	if len(runs) > 3 && 2*faulty > len(runs) {
		p.note(runs[0].test, fmt.Sprintf("most groups of %d nodes fail: %s", runs[0].size, faultText(commonestFault(fault))))
		return
	}
	for _, r := range runs {
		if r.bad {
			p.hunts = append(p.hunts, &hunt{test: r.test, size: r.size, set: r.members, first: r.members[0], base: r})
		}
	}
}

// note reports a fault of the whole fleet.
func (p *groupPlan) note(test int, text string) {
	t := p.tests[test].task
	p.wide[test], p.mixed[t.Plane] = true, true
	d := p.f.row(t)
	d.Note = text
	p.notes = append(p.notes, d)
}

// Suspects implements Plan.
func (p *groupPlan) Suspects() []Suspect {
	all, _ := p.judgeAccused()
	all = slices.Concat(all, p.found, p.f.lostSuspects())
	sortSuspects(all)
	return all
}

// Left implements Plan.
func (p *groupPlan) Left() int {
	left := len(p.sizes)*len(p.tests) - p.step
	for _, h := range p.hunts {
		if !h.done {
			left = max(left, len(p.sizes)*len(p.tests)-p.step+2*int(math.Ceil(math.Log2(float64(len(h.set)+1))))+2)
		}
	}
	if len(p.queue) > 0 {
		left++
	}
	return left
}
