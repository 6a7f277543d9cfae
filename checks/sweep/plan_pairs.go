package sweep

import (
	"math"
	"net/netip"
	"slices"
)

// pairPlan tests pairs of nodes. It runs the turns, which are the same for all nodes, and then
// confirms: each node of a suspicious pair is tested with different proven partners, then the pair
// once more, then other pairs of its leaves.
type pairPlan struct {
	evidence

	turns   []turn
	turned  int // the next turn
	queue   []request
	sent    map[int]request
	opened  int // looks that have opened inquiries
	asked   []*inquiry
	byKey   map[inquiryKey]*inquiry
	remarks []Distribution
	blamed  []bool              // by node: accused in a test
	all     []bool              // by test: its turns have all pairs
	counts  map[countKey][2]int // while a round is made: see countLooks
}

func newPairPlan(f *fleet, o PlanOptions, tests []series) *pairPlan {
	return &pairPlan{
		evidence: newEvidence(f, o, tests), sent: map[int]request{}, byKey: map[inquiryKey]*inquiry{},
		blamed: make([]bool, len(f.nodes)), all: make([]bool, len(tests)),
	}
}

// evidence is what the tests of pairs have shown, and what comparable tests have.
type evidence struct {
	f      *fleet
	o      PlanOptions
	tests  []series
	looks  []look
	byNode [][]int32 // looks of each node
	given  []Suspect // facts that need no test

	names   []string // of the kinds of nodes
	leaves  []int32  // by node; -1 is unknown
	members map[int32][]int32

	classes map[classKey]*class
	sorted  []*class
	stale   bool      // classes lack looks
	lost    []float64 // by test: share of datagrams that most pairs lost
	loss    []float64 // by test: share that healthy pairs lose
	wide    []string  // by test: the fault of the whole fleet; "" none
	parts   []*parts  // by test
	slow    []*slowLeaf
}

func newEvidence(f *fleet, o PlanOptions, tests []series) evidence {
	e := evidence{
		f: f, o: o, tests: tests, byNode: make([][]int32, len(f.nodes)), leaves: make([]int32, len(f.nodes)), members: map[int32][]int32{},
		classes: map[classKey]*class{}, lost: make([]float64, len(tests)), loss: make([]float64, len(tests)), wide: make([]string, len(tests)),
		parts: make([]*parts, len(tests)), slow: make([]*slowLeaf, len(tests)),
	}
	kinds, leaves, order := map[string]int32{}, map[string]int32{}, f.shuffled()
	for t := range tests {
		s := &tests[t]
		s.kinds = make([]int32, len(f.nodes))
		for i, kind := range f.kinds(s.ports) {
			if _, known := kinds[kind]; !known {
				kinds[kind] = int32(len(kinds))
				e.names = append(e.names, kind)
			}
			s.kinds[i] = kinds[kind]
		}
		for _, i := range order {
			if s.has(i) {
				s.order = append(s.order, i)
			}
		}
		if s.setAlone(); s.ports != nil {
			s.usual = s.ports.usual()
		}
	}
	for i, n := range f.nodes {
		e.leaves[i] = -1
		if n.Leaf != "" {
			if _, known := leaves[n.Leaf]; !known {
				leaves[n.Leaf] = int32(len(leaves))
			}
			e.leaves[i] = leaves[n.Leaf]
			e.members[e.leaves[i]] = append(e.members[e.leaves[i]], int32(i))
		}
	}
	return e
}

// turn is a round that all nodes take part in.
type turn struct {
	round int // of the circle method
	test  int
	flip  bool // the second node of each pair comes first
}

// request asks for a test. A partner of anyone is chosen when the round is made.
type request struct {
	test     int
	from, to int32
	tries    int
	why      *inquiry // nil: a turn
}

const anyone int32 = -1

// look is the result of a test of a pair.
type look struct {
	from, to   int32
	test       int32
	repeats    int32
	class      *class
	value      float64 // NaN: none. The mean; the best one for latencies, and beside other jobs
	spread     float64 // standard deviation of the repeats
	low, mid   float64 // of the windows: low decile and median; NaN if there are too few
	sent, lost int
	fault      Fault
	text       string
	beside     bool
	base       bool // of a turn: it can open inquiries
}

// add adds what needs no test.
func (p *pairPlan) add(d difference) {
	p.given, p.remarks = append(p.given, d.suspects...), append(p.remarks, d.remarks...)
}

// addTurns adds the turns of all tests: the same rounds of pairs among the nodes that take part, test by
// test, both ways for those with both. count returns how many rounds so many nodes have.
func (p *pairPlan) addTurns(count func(nodes int) int, both bool, tests ...int) {
	rounds, most := map[int][]int{}, 0
	for _, t := range tests {
		n := len(p.tests[t].order)
		p.all[t] = count(n) >= circleRounds(n)
		if _, known := rounds[n]; !known {
			rounds[n] = pickRounds(p.f.rng, n, count(n))
			most = max(most, len(rounds[n]))
		}
	}
	for k := range most {
		for _, t := range tests {
			list := rounds[len(p.tests[t].order)]
			if k >= len(list) {
				continue
			}
			p.turns = append(p.turns, turn{round: list[k], test: t})
			if both && (p.tests[t].directed || len(p.tests[t].order) <= bothWaysFleet) {
				p.turns = append(p.turns, turn{round: list[k], test: t, flip: true})
			}
		}
	}
	for _, t := range tests {
		p.addPlaces(t)
	}
}

// addPlaces tests the nodes of a test without directions in the place, first or second, that they have in no turn:
// of an odd number one is free in each round.
func (p *pairPlan) addPlaces(test int) {
	order := p.tests[test].order
	if n := len(order); p.tests[test].directed || n%2 == 0 || n <= bothWaysFleet {
		return
	}
	first, second := map[int32]bool{}, map[int32]bool{}
	for _, t := range p.turns {
		if t.test != test {
			continue
		}
		for i, j := range circle(len(order), t.round) {
			first[order[i]], second[order[j]] = true, true
		}
	}
	for _, i := range order {
		if !first[i] {
			p.queue = append(p.queue, request{test: test, from: i, to: anyone})
		}
		if !second[i] {
			p.queue = append(p.queue, request{test: test, from: anyone, to: i})
		}
	}
}

// matchings returns how many rounds so many nodes have.
func (p *pairPlan) matchings(nodes int) int {
	switch {
	case nodes <= allPairsFleet:
		return nodes
	case nodes <= smallFleet:
		return max(p.o.Matchings, smallMatchings)
	}
	return p.o.Matchings
}

// Next implements Plan.
func (p *pairPlan) Next() []Task {
	for steps := 1; ; steps++ {
		for p.turned < len(p.turns) {
			p.turned++
			if tasks := p.runTurn(p.turns[p.turned-1]); len(tasks) > 0 {
				return tasks
			}
		}
		for len(p.queue) > 0 {
			if tasks := p.pack(); len(tasks) > 0 {
				return tasks
			}
		}
		if p.addMates() {
			continue
		}
		if steps%maxSteps == 0 {
			p.giveUp()
		}
		if !p.confirm() {
			return nil
		}
	}
}

// addMates tests nodes with two others of their subnet if subnets are networks of their own: the turns mix
// them. It reports whether there are any.
func (p *pairPlan) addMates() bool {
	for t := range p.tests {
		s := &p.tests[t]
		if s.mated || !p.partsOf(t).split {
			continue
		}
		s.mated = true
		members := map[netip.Prefix][]int32{}
		for _, i := range s.order {
			members[s.ports.subnet[i]] = append(members[s.ports.subnet[i]], i)
		}
		for _, i := range s.order {
			list := members[s.ports.subnet[i]]
			for off := 1; off <= 2 && s.mates[i] >= leastGroup; off++ {
				p.queue = append(p.queue, request{test: t, from: i, to: list[(slices.Index(list, i)+off)%len(list)]})
			}
		}
	}
	return len(p.queue) > 0
}

// runTurn returns the tasks of a turn. A node whose partner is dead gets another one later.
func (p *pairPlan) runTurn(t turn) (tasks []Task) {
	order := p.tests[t.test].order
	for i, j := range circle(len(order), t.round) {
		from, to := order[i], order[j]
		if t.flip {
			from, to = to, from
		}
		tasks = p.start(tasks, request{test: t.test, from: from, to: to})
	}
	return tasks
}

// start adds the task of a request, whose nodes are both known. If one of them is dead the other
// gets another partner.
func (p *pairPlan) start(tasks []Task, r request) []Task {
	if !p.takes(r.test, r.from) || !p.takes(r.test, r.to) {
		p.replace(r)
		return tasks
	}
	t := p.tests[r.test].task
	t.ID, t.Nodes = p.f.nextID(), []string{p.f.name(r.from), p.f.name(r.to)}
	t.Confirms = r.why != nil
	p.sent[t.ID] = r
	return append(tasks, t)
}

// takes reports whether a node takes part in a test.
func (p *pairPlan) takes(test int, i int32) bool {
	return p.f.tested(i) && p.tests[test].has(i)
}

// replace repeats a test in which a node died with another partner.
func (p *pairPlan) replace(r request) {
	if r.why != nil {
		r.why.wait--
		return // the inquiry asks again
	}
	if r.tries++; r.tries >= maxTries || r.to == anyone || r.from == anyone {
		return
	}
	from, to := p.takes(r.test, r.from), p.takes(r.test, r.to)
	switch {
	case from && !to && p.f.dead[r.to]:
		p.queue = append(p.queue, request{test: r.test, from: r.from, to: anyone, tries: r.tries})
	case to && !from && p.f.dead[r.from]:
		p.queue = append(p.queue, request{test: r.test, from: anyone, to: r.to, tries: r.tries})
	}
}

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

// Take implements Plan.
func (p *pairPlan) Take(results []Result) {
	p.f.takeLosses(results)
	settle(p.sent, results, p.take, p.retry)
}

// retry starts a test once more that has no result.
func (p *pairPlan) retry(r request) {
	if p.f.dead[r.from] || p.f.dead[r.to] {
		p.replace(r)
		return
	}
	if r.tries++; r.tries < maxTries {
		p.queue = append(p.queue, r)
		return
	}
	if r.why != nil {
		r.why.wait--
		r.why.failed++
	}
}

func (p *pairPlan) take(q request, r Result) {
	if r.Fault == FaultLost || p.f.dead[q.from] || p.f.dead[q.to] {
		p.retry(q)
		return
	}
	l := look{
		from: q.from, to: q.to, test: int32(q.test), repeats: int32(len(r.Values)), sent: r.Sent, lost: r.Lost,
		fault: r.Fault, text: r.Text, beside: r.Beside, base: q.why == nil, value: math.NaN(), low: math.NaN(), mid: math.NaN(),
	}
	if l.sent > 0 && l.lost >= l.sent && l.fault == FaultNone {
		l.fault = FaultSilent
	}
	kind := p.tests[q.test].task.Kind
	if len(r.Values) > 0 && l.fault == FaultNone {
		l.value, l.spread = summarize(r.Values, kind.Lower(), r.Beside)
		if len(r.Windows) >= int(limitOf("windows_min")) && !kind.Lower() {
			windows := slices.Sorted(slices.Values(r.Windows))
			l.low, l.mid = quantile(windows, limitOf("flaky_decile")), quantile(windows, 0.5)
		}
	}
	l.class = p.classOf(&l)
	k := int32(len(p.looks))
	p.looks = append(p.looks, l)
	p.byNode[q.from] = append(p.byNode[q.from], k)
	p.byNode[q.to] = append(p.byNode[q.to], k)
	p.stale = p.stale || l.base
	if q.why != nil {
		q.why.wait--
		q.why.looks = append(q.why.looks, k)
	}
}

// Left implements Plan. How many confirmations follow is not known before the last turn.
func (p *pairPlan) Left() int {
	left := len(p.turns) - p.turned
	busy := map[int32]int{}
	most := 0
	for _, r := range p.queue {
		node := max(r.from, r.to)
		if r.from != anyone && r.why != nil && r.why.about == aboutNode {
			node = r.why.node
		}
		busy[node]++
		most = max(most, busy[node])
	}
	if left > 0 {
		return left + int(limitOf("looks"))
	}
	return left + most
}

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

// leafPair returns the leaves of two nodes, the smaller number first; -1 if they are unknown or the
// same.
func (p *pairPlan) leafPair(i, j int32) (a, b int32) {
	a, b = min(p.leaves[i], p.leaves[j]), max(p.leaves[i], p.leaves[j])
	if a < 0 || a == b {
		return -1, -1
	}
	return a, b
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
