package sweep

import (
	"maps"
	"math"
	"net/netip"
	"slices"
)

// pairPlan tests pairs of nodes. It runs the turns, which are the same for all nodes, and then
// confirms: each node of a suspicious pair is tested with different proven partners, then the pair
// once more, then other pairs of its leaves.
type pairPlan struct {
	evidence

	turns    []turn
	turned   int // the next turn
	queue    []request
	compared bool // see addCompared
	searched int  // looks in which sides were searched
	sent     map[int]request
	opened   int // looks that have opened inquiries
	asked    []*inquiry
	byKey    map[inquiryKey]*inquiry
	remarks  []Distribution
	blamed   []bool              // by node: accused in a test
	all      []bool              // by test: its turns have all pairs
	counts   map[countKey][2]int // while a round is made: see countLooks
}

func newPairPlan(f *fleet, o PlanOptions, tests []series) *pairPlan {
	return &pairPlan{
		evidence: newEvidence(f, o, tests), sent: map[int]request{}, byKey: map[inquiryKey]*inquiry{},
		blamed: make([]bool, len(f.nodes)), all: make([]bool, len(tests)),
	}
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
		if p.addMates() || p.addCompared() || p.searchSides() {
			continue
		}
		if steps%maxSteps == 0 {
			p.giveUp()
		}
		if !p.confirm() && !p.searchSides() {
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

// addCompared gives the nodes of small kinds as many tests that can be compared as others have: in the turns
// they can meet each other, and there are too few such pairs. It reports whether there are any.
func (p *pairPlan) addCompared() bool {
	if p.compared {
		return false
	}
	p.compared = true
	p.describe()
	for t := range p.tests {
		s := &p.tests[t]
		if len(s.order) <= allPairsFleet || s.task.Repeats == 0 || s.task.Kind.Lower() {
			continue
		}
		members := map[int32]int{}
		for _, i := range s.order {
			members[s.kinds[i]]++
		}
		for _, i := range s.order {
			if 2*members[s.kinds[i]] > len(s.order) {
				continue
			}
			seen, judged, own := map[role]bool{}, map[role]int{}, map[*class]int{}
			for _, k := range p.byNode[i] {
				own[p.looks[k].class]++
			}
			for _, k := range p.byNode[i] {
				if l := &p.looks[k]; int(l.test) == t && l.fault == FaultNone {
					r := p.roleOf(l, i)
					if seen[r] = true; l.class.judged && own[l.class] < len(l.class.values) { // not with itself
						judged[r]++
					}
				}
			}
			for _, r := range slices.Sorted(maps.Keys(seen)) {
				for range fewLooks - judged[r] {
					q := request{test: t, from: i, to: anyone}
					if r == receives {
						q.from, q.to = anyone, i
					}
					p.queue = append(p.queue, q)
				}
			}
		}
	}
	return len(p.queue) > 0
}

// fewLooks is how many tests in each place a node has in two rounds.
const fewLooks = 2

// searchSides tests further pairs of the tests whose values have two peaks. It reports whether there is something
// new to test or to judge.
func (p *pairPlan) searchSides() bool {
	if len(p.members) > 0 || p.searched == len(p.looks) {
		return false
	}
	p.describe()
	p.searched = len(p.looks)
	for t := range p.tests {
		s := &p.tests[t]
		if !slices.Contains([]Kind{KindStream, KindWrite, KindNCCL}, s.task.Kind) || s.ports == nil {
			continue
		}
		x := p.searches[s.ports]
		if x == nil {
			x = &search{test: t}
			p.searches[s.ports] = x
		}
		if x.done || x.rounds > 0 && x.test != t {
			continue
		}
		ties, found := findPatches(&p.evidence, t)
		if x.rounds == 0 && !found && !p.accusedFast(t) {
			continue
		}
		x.test = t
		groups := groupsOf(len(p.f.nodes), ties)
		queue := x.meetings(p, groups, ties, false)
		if len(queue) == 0 && x.alone < leastGroup+1 {
			queue = x.meetings(p, groups, ties, true)
			x.alone++
		}
		if len(queue) > 0 && x.rounds < mostSearch {
			x.rounds++
			p.queue = append(p.queue, queue...)
			p.searched = -1
			return true
		}
		if x.done = true; x.settle(groups, ties, len(p.f.nodes)) {
			p.startAgain(s.ports)
			return true
		}
	}
	return false
}

// startAgain judges the tests of a plane, a rail or a network once more, by their sides.
func (p *pairPlan) startAgain(ports *plane) {
	for i := range p.looks {
		if l := &p.looks[i]; p.tests[l.test].ports == ports {
			l.class = p.classOf(l)
		}
	}
	p.asked = slices.DeleteFunc(p.asked, func(q *inquiry) bool {
		again := p.tests[q.test].ports == ports
		if again {
			delete(p.byKey, q.inquiryKey)
		}
		return again
	})
	clear(p.blamed)
	for _, q := range p.asked {
		if q.about == aboutNode && q.state == accused {
			p.blamed[q.node] = true
		}
	}
	p.opened, p.stale = 0, true
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

// Take implements Plan.
func (p *pairPlan) Take(results []Result) {
	p.f.takeLosses(results)
	settle(p.sent, results, p.take, p.retry)
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
		if r.Summarize(); r.Mid > 0 {
			l.low, l.mid = r.Low, r.Mid
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
