package sweep

import (
	"cmp"
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

// refKey has groups that must be alike: the same kinds of nodes.
type refKey struct {
	test, size int
	kinds      string
}

// middle describes some values.
type middle struct {
	count      int
	mid, share float64 // share: the spread, compared with mid
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
		p.kinds = append(p.kinds, f.kinds(tests[t].ports))
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
				Stage: StageGroups, Kind: KindNCCL, Op: op, Size: o.size(KindNCCL), Repeats: o.Repeats, Time: o.Time, Limit: 2 * o.limit(),
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

// ringTests returns the rings of all planes. An all-reduce moves twice its data over each link: with
// rates, those of pairs, it takes no longer than a repeat.
func ringTests(o PlanOptions, planes []plane, rates []Distribution) (tests []series) {
	for i, pl := range planes {
		size := o.size(KindRing)
		for _, d := range rates {
			if d.Kind == KindStream && d.Plane == pl.name && d.Median > 0 && o.Sizes[KindRing] == 0 {
				size = min(size, max(leastRing, int64(d.Median*1e9/8*o.Time.Seconds()/2)))
			}
		}
		tests = append(tests, series{task: Task{
			Stage: StageTCP, Kind: KindRing, Plane: pl.name, Size: size, Flows: 1, Repeats: o.Repeats, Time: o.Time, Limit: o.limit(),
		}, ports: &planes[i]})
	}
	return tests
}

// leastRing is the least data of a ring, in bytes.
const leastRing = 64 << 10

// ringSizes returns the sizes of rings. One ring of thousands of nodes is as slow as its slowest
// link, and long to set up: beyond 1,024 nodes only rings of 16 run.
func ringSizes(o PlanOptions, f *fleet) []int {
	if len(o.RingSizes) > 0 {
		return o.RingSizes
	}
	if len(f.alive()) > 1024 {
		return []int{16}
	}
	return []int{16, 0}
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

// pack makes a round of the queue.
func (p *groupPlan) pack() (tasks []Task) {
	used := make([]bool, len(p.f.nodes))
	hunted := p.hunted()
	queue := p.queue
	p.queue = nil
	for _, r := range queue {
		r.members = slices.DeleteFunc(slices.Clone(r.members), func(i int32) bool { return !p.takes(r.test, i) })
		if len(r.members) == 0 {
			p.drop(r)
			continue
		}
		if slices.ContainsFunc(r.members, func(i int32) bool { return used[i] }) {
			p.queue = append(p.queue, r)
			continue
		}
		for _, i := range r.members {
			used[i] = true
		}
		want := r.size - len(r.members)
		if r.hunt == nil && r.visit == 0 {
			want = 0
		}
		r.pads = p.pad(r, want, used, hunted[r.test])
		if len(r.pads) < want && len(tasks) > 0 { // others have the proven nodes in this round
			for _, i := range r.members {
				used[i] = false
			}
			p.queue = append(p.queue, r)
			continue
		}
		if len(r.members)+len(r.pads) < 2 {
			p.drop(r)
			continue
		}
		for _, i := range r.pads {
			used[i] = true
		}
		t := p.tests[r.test].task
		t.ID, t.Nodes, t.Confirms = p.f.nextID(), p.f.names(r.nodes()), r.hunt != nil
		p.sent[t.ID] = r
		tasks = append(tasks, t)
	}
	return tasks
}

// nodes returns the nodes of a run. A fault may show in the first node only, or in the others: nodes that came
// later in the group come after those that fill it.
func (r *groupRun) nodes() []int32 {
	if h := r.hunt; h != nil && !slices.Contains(r.members, h.first) {
		return slices.Concat(r.pads, r.members)
	}
	return slices.Concat(r.members, r.pads)
}

// pad chooses proven nodes for a group: first those that its hunt has not used, and that were proven in another
// place than the first. A visit takes those of one part.
func (p *groupPlan) pad(r *groupRun, want int, used []bool, hunted map[int32]bool) (pads []int32) {
	if want <= 0 {
		return nil
	}
	alike := func(i int32) bool { return p.kinds[r.test][i] == p.kinds[r.test][r.members[0]] }
	union, partners := p.linked[p.tests[r.test].task.Plane], []int32(nil)
	if r.hunt != nil {
		partners = r.hunt.partners
	}
	for pass := range 8 {
		second, again := pass%2 == 0, pass/2%2 == 1
		start := p.f.rng.IntN(len(p.order))
		for k := range p.order {
			i := p.order[(start+k)%len(p.order)]
			if len(pads) == want {
				return pads
			}
			if used[i] || p.isBad(r.test, i) || pass < 4 && !alike(i) || second && !p.second[r.test][i] || !p.proven[r.test][i] || !p.takes(r.test, i) ||
				slices.Contains(pads, i) || hunted[i] || slices.Contains(partners, i) != again || r.visit > 0 && root(union, i) != root(union, r.part) {
				continue
			}
			pads = append(pads, i)
		}
	}
	return pads
}

// hunted returns the nodes in the sets of open hunts, by test.
func (p *groupPlan) hunted() map[int]map[int32]bool {
	all := map[int]map[int32]bool{}
	for _, h := range p.hunts {
		if h.done {
			continue
		}
		if all[h.test] == nil {
			all[h.test] = map[int32]bool{}
		}
		for _, i := range h.set {
			all[h.test][i] = true
		}
	}
	return all
}

// drop gives a test up.
func (p *groupPlan) drop(r *groupRun) {
	if r.hunt != nil {
		r.hunt.wait--
	}
}

// Take implements Plan.
func (p *groupPlan) Take(results []Result) {
	slices.SortFunc(results, byID)
	for _, r := range results {
		p.f.kill(r)
	}
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
		if limit, _ := p.limitOf(r.test, len(all), p.kindsOf(r.test, all)); limit == 0 { // no groups of two: nearer to others
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

// judgeValue finds out whether a group is slow, compared with groups of its size. Without those it
// is compared with the next smaller ones.
func (p *groupPlan) judgeValue(r *groupRun, nodes []int32) {
	if r.bad || math.IsNaN(r.value) {
		return
	}
	t := p.tests[r.test].task
	limit, expect := p.limitOf(r.test, len(nodes), p.kindsOf(r.test, nodes))
	if floor := p.o.floorOf(t); floor > 0 && !p.misses(r.test, floor) {
		limit = max(limit, floor)
		expect = max(expect, floor)
	}
	if r.value < limit {
		r.bad, r.symptom, r.expect = true, slow, expect
	}
}

// misses reports whether most groups are below a floor: then it is the fleet.
func (p *groupPlan) misses(test int, floor float64) bool {
	below, n := 0, 0
	for key, values := range p.refs {
		if key.test == test {
			for _, v := range values {
				if n++; v < floor {
					below++
				}
			}
		}
	}
	return n >= 3 && 2*below > n
}

// limitOf returns the value that a group of a size must reach, and the expected one; 0 if unknown. A
// group of several kinds must reach the least of them.
func (p *groupPlan) limitOf(test, size int, kinds string) (limit, expect float64) {
	if limit, expect = p.limitOfOne(test, size, kinds); limit > 0 || !strings.Contains(kinds, " and ") {
		return limit, expect
	}
	for i, m := range strings.Split(kinds, " and ") {
		l, e := p.limitOfOne(test, size, m)
		if l == 0 {
			return 0, 0
		}
		if i == 0 || l < limit {
			limit, expect = l, e
		}
	}
	return limit, expect
}

func (p *groupPlan) limitOfOne(test, size int, kinds string) (limit, expect float64) {
	best := 0
	for key, values := range p.refs {
		if key.test == test && key.kinds == kinds && key.size <= size && len(values) >= 3 {
			best = max(best, key.size)
		}
	}
	if best == 0 {
		return 0, 0
	}
	key := refKey{test, best, kinds}
	m := p.middles[key]
	if values := p.refs[key]; m.count != len(values) { // only a step adds values
		values = slices.Sorted(slices.Values(values))
		mid := quantile(values, 0.5+min(0.4, 1/float64(len(values))))
		m = middle{len(values), mid, spreadOf(values, mid) / mid}
		p.middles[key] = m
	}
	share := max(limitOf("group_share"), limitOf("suspect_z")*m.share)
	if size > best+1 {
		share += limitOf("scale_share")
	}
	return m.mid * (1 - min(share, 0.9)), m.mid
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
	p.notes = append(p.notes, Distribution{Stage: p.f.stage, Kind: t.Kind, Op: t.Op, Plane: t.Plane, Unit: unitOf(t.Kind), Note: text})
}

// Suspects implements Plan.
func (p *groupPlan) Suspects() []Suspect {
	all, _ := p.judgeAccused()
	all = slices.Concat(all, p.found, p.f.lostSuspects())
	sortSuspects(all)
	return all
}

// Fleet implements Plan.
func (p *groupPlan) Fleet() []Distribution {
	_, apart := p.judgeAccused()
	all := slices.Concat(p.notes, apart)
	for t := range p.tests {
		for _, key := range p.keys(t) {
			values := slices.Sorted(slices.Values(p.refs[key]))
			task := p.tests[t].task
			mid := quantile(values, 0.5)
			limit, _ := p.limitOf(t, key.size, key.kinds)
			d := Distribution{
				Stage: p.f.stage, Kind: task.Kind, Op: task.Op, Plane: task.Plane, Model: key.kinds, Unit: unitOf(task.Kind), Count: len(values),
				Median: mid, Sigma: spreadOf(values, mid), Floor: limit,
			}
			d.Op = fmt.Sprintf("%s of %d nodes", cmpText(d.Op, "ring"), key.size)
			if floor := p.o.floorOf(task); floor > 0 && p.misses(t, floor) {
				d.Note = "the median misses the floor: the whole fleet is slow, or the floor is wrong"
			}
			all = append(all, d)
		}
	}
	return all
}

// keys returns the kinds of groups of a test that have values, by size.
func (p *groupPlan) keys(test int) (keys []refKey) {
	for key := range p.refs {
		if key.test == test {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b refKey) int { return cmp.Or(a.size-b.size, strings.Compare(a.kinds, b.kinds)) })
	return keys
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
