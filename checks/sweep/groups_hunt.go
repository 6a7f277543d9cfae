package sweep

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// hunt searches a set of nodes that is faulty together.
type hunt struct {
	test, size int
	set        []int32
	first      int32 // of the group that is searched
	base       *groupRun
	wait       int
	splits     int
	bad, good  []*groupRun // tests of halves, or of a single node
	partners   []int32
	done       bool
	repeated   bool
	last       bool // the whole set is tested once more before it is reported
	lone       bool // it came from halving: its own test is in bad
}

// advance takes all open hunts a step further.
func (p *groupPlan) advance() {
	for i := 0; i < len(p.hunts); i++ {
		h := p.hunts[i]
		if h.done || h.wait > 0 {
			continue
		}
		h.set = slices.DeleteFunc(h.set, func(i int32) bool { return !p.takes(h.test, i) || p.isBad(h.test, i) })
		switch {
		case len(h.set) == 0:
			h.done = true
		case len(h.set) == 1:
			p.confirm(h)
		case p.repeat(h):
		default:
			p.split(h)
		}
	}
	p.hunts = slices.DeleteFunc(p.hunts, func(h *hunt) bool { return h.done })
}

// repeat tests a slow group again before it is halved: noise does not stay. It reports whether there
// is nothing else to do now.
func (p *groupPlan) repeat(h *hunt) bool {
	if h.base.symptom != slow || h.lone || h.repeated && len(h.good)+len(h.bad) == 0 {
		return false
	}
	if !h.repeated {
		h.repeated = true
		h.wait++
		p.queue = append(p.queue, &groupRun{test: h.test, size: h.size, members: h.set, hunt: h})
		return true
	}
	if h.splits > 0 {
		return false
	}
	h.done = len(h.good) > 0
	h.bad, h.good = nil, nil
	return h.done
}

// maxSplits bounds how often a set is halved in another way: if both halves pass, the fault may need
// two nodes that were separated.
const maxSplits = 3

// split halves a set, or follows the halves that are bad.
func (p *groupPlan) split(h *hunt) {
	if h.last {
		if h.done = true; len(h.bad) > 0 || h.base.symptom == broken {
			p.giveUp(h)
		}
		return
	}
	if len(h.good)+len(h.bad) > 0 {
		for _, r := range h.good {
			for _, i := range r.members {
				p.proven[h.test][i] = len(h.bad) > 0 || p.proven[h.test][i]
				p.second[h.test][i] = len(h.bad) > 0 && i != h.first || p.second[h.test][i]
			}
		}
		for _, r := range h.bad {
			p.hunts = append(p.hunts, &hunt{test: h.test, size: h.size, set: r.members, first: h.first, base: r, partners: slices.Clone(r.pads), lone: true})
		}
		if len(h.bad) > 0 {
			h.done = true
			return
		}
		h.good = nil
	}
	if h.splits == maxSplits {
		h.last = true
		h.wait++
		p.queue = append(p.queue, &groupRun{test: h.test, size: h.size, members: h.set, hunt: h})
		return
	}
	h.splits++
	set := slices.Clone(h.set)
	if h.splits > 1 {
		p.f.rng.Shuffle(len(set), func(i, j int) { set[i], set[j] = set[j], set[i] })
	}
	half := len(set) / 2
	for _, members := range [][]int32{set[:half:half], set[half:]} {
		h.wait++
		p.queue = append(p.queue, &groupRun{test: h.test, size: h.size, members: members, hunt: h})
	}
}

// confirm tests a single node with different proven nodes.
func (p *groupPlan) confirm(h *hunt) {
	bad, good := len(h.bad), len(h.good)
	want := int(limitOf("looks"))
	if slices.ContainsFunc(h.bad, func(r *groupRun) bool { return r.beside }) {
		want = int(limitOf("looks_beside"))
	}
	switch {
	case bad >= want && bad > 2*good, bad+good >= want+2 && bad > good:
		h.done = true
		p.accuse(h)
	case good >= 2 && good >= bad, bad+good >= want+2:
		h.done = true
		plane := p.tests[h.test].task.Plane
		p.mixed[plane] = p.mixed[plane] || bad > 0
	case h.splits >= want+2: // tests without a result, or no proven node
		h.done = true
		p.giveUp(h)
	default:
		h.splits++
		h.wait++
		p.queue = append(p.queue, &groupRun{test: h.test, size: h.size, members: h.set, hunt: h})
	}
}

// accuse makes a node a suspect.
func (p *groupPlan) accuse(h *hunt) {
	node := h.set[0]
	p.bad[badKey{node, p.tests[h.test].task.Plane}] = true
	s, f := p.suspectOf(h, h.bad)
	s.Node = p.f.name(node)
	f.partners = uniq(h.partners)
	s.Doubt = len(f.partners) < 2
	s.Partners = p.f.names(f.partners[:min(len(f.partners), maxPartners)])
	s.Confidence = f.confidence(1)
	if s.Doubt {
		s.Confidence = min(s.Confidence, doubtConfidence)
	}
	bare := s
	bare.Partners = nil
	text := subjectOf(s.Plane, "", s.Kind) + describeFinding(bare, f) + fmt.Sprintf(", in %d groups of %d with different proven nodes", len(h.bad), h.size)
	s = s.explain(text)
	s.doubtOdd(p.tests[h.test].odd[node], f.symptom)
	p.accused = append(p.accused, accusation{test: h.test, size: h.size, node: node, symptom: f.symptom, bad: h.bad, suspect: s})
}

// accusation is a suspect that stands unless the node is healthy with others that are accused.
type accusation struct {
	test    int
	size    int
	node    int32
	symptom symptom
	bad     []*groupRun
	visited bool
	suspect Suspect
}

// blamesOthers reports whether each bad run of an accused node had another one in it, or fewer than two had none.
func (p *groupPlan) blamesOthers(a accusation) bool {
	free := 0
	for _, r := range a.bad {
		if !slices.ContainsFunc(p.accused, func(b accusation) bool {
			return b.node != a.node && b.suspect.Plane == a.suspect.Plane && slices.Contains(r.pads, b.node)
		}) {
			free++
		}
	}
	return free < 2
}

// visit tests accused nodes with each of the largest parts of proven nodes that have passed together, if healthy
// nodes have failed with proven ones, too, or most groups: the cluster may be two halves that do not reach each
// other.
func (p *groupPlan) visit() {
	for k := range p.accused {
		a := &p.accused[k]
		plane := a.suspect.Plane
		if a.visited || !p.mixed[plane] || !p.takes(a.test, a.node) {
			continue
		}
		a.visited = true
		union, parts := p.linked[plane], map[int32]int{}
		for i := range p.proven[a.test] {
			if r := root(union, i); i != a.node && p.takes(a.test, i) && !p.isBad(a.test, i) {
				parts[r]++
			}
		}
		order := slices.SortedFunc(maps.Keys(parts), func(x, y int32) int { return cmp.Or(parts[y]-parts[x], int(x-y)) })
		for _, part := range order[:min(len(order), mostVisits)] {
			if parts[part] >= max(leastGroup, a.size-1) {
				p.queue = append(p.queue, &groupRun{test: a.test, size: a.size, members: []int32{a.node}, visit: k + 1, part: part})
			}
		}
	}
}

// mostVisits bounds how many parts an accused node is tested with.
const mostVisits = 3

// meet tests accused nodes with each other. It reports whether there is something to test.
func (p *groupPlan) meet() bool {
	list := slices.SortedFunc(slices.Values(p.accused), func(a, b accusation) int {
		return cmp.Or(strings.Compare(a.suspect.Plane, b.suspect.Plane), cmp.Compare(a.node, b.node))
	})
	for i, a := range list {
		for _, b := range list[i+1 : min(i+3, len(list))] {
			pair := [2]int32{a.node, b.node}
			if a.suspect.Plane != b.suspect.Plane || !p.takes(a.test, a.node) || !p.takes(a.test, b.node) || slices.ContainsFunc(p.met, func(r *groupRun) bool {
				return r.pair == pair && p.tests[r.test].task.Plane == a.suspect.Plane
			}) {
				continue
			}
			r := &groupRun{test: a.test, size: 2, members: pair[:], pair: pair, meets: a.symptom | b.symptom,
				expect: max(a.suspect.Value+a.suspect.Expect, b.suspect.Value+b.suspect.Expect) / 2}
			p.met, p.queue = append(p.met, r), append(p.queue, r)
		}
	}
	p.visit()
	return len(p.queue) > 0
}

// judgeAccused returns the suspects among the accused nodes. Those that are healthy with each other have a
// network of their own, for which there is a remark, or share a faulty part.
func (p *groupPlan) judgeAccused() (suspects []Suspect, remarks []Distribution) {
	groups := map[string][]accusation{}
	var order []string
	union := map[string][]int32{} // by plane
	for _, a := range p.accused {
		if plane := a.suspect.Plane; union[plane] == nil {
			union[plane] = indexes32(len(p.f.nodes))
		}
	}
	for _, r := range p.met {
		if u := union[p.tests[r.test].task.Plane]; r.passed >= int(limitOf("looks")) {
			u[root(u, r.pair[0])] = root(u, r.pair[1])
		}
	}
	for _, a := range p.accused {
		key := fmt.Sprint(a.suspect.Plane, root(union[a.suspect.Plane], a.node))
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], a)
	}
	for _, key := range order {
		list := groups[key]
		s := list[0].suspect
		if len(list) == 1 {
			if p.blamesOthers(list[0]) {
				s.Doubt, s.Confidence = true, min(s.Confidence, doubtConfidence)
			}
			suspects = append(suspects, s)
			continue
		}
		s.Node, s.Partners = "", nil
		for _, a := range list {
			s.Partners = append(s.Partners, a.suspect.Node)
		}
		slices.Sort(s.Partners)
		if list[0].symptom == broken && len(list) >= leastGroup && p.differ(list) {
			remarks = append(remarks, p.apart(list[0].test, fmt.Sprintf("%d nodes fail with others, and pass among each other: %s", len(list), listed(s.Partners))))
			continue
		}
		suspects = append(suspects, groupSuspect(s, list[0].suspect.Text))
	}
	return joinAlike(suspects, len(p.order)), remarks
}

// differ reports whether other networks explain why accused nodes fail: no node of their part, those that have
// passed together, is of the model of others. If no group of several subnets has passed, they have never failed in
// one of a single subnet.
func (p *groupPlan) differ(list []accusation) bool {
	a := list[0]
	if ports := p.tests[a.test].ports; ports != nil && ports.subnet[a.node].IsValid() && !p.routed[a.test] {
		return !slices.ContainsFunc(list, func(b accusation) bool {
			return slices.ContainsFunc(b.bad, func(r *groupRun) bool { return !p.crosses(r) })
		})
	}
	union := p.linked[a.suspect.Plane]
	inside := func(i int32) bool { return root(union, i) == root(union, a.node) }
	models := map[string]bool{}
	for _, i := range p.order {
		models[p.f.nodes[i].Model] = models[p.f.nodes[i].Model] || inside(i)
	}
	return !slices.ContainsFunc(p.order, func(i int32) bool { return !inside(i) && p.tests[a.test].has(i) && models[p.f.nodes[i].Model] })
}

// crosses reports whether the nodes of a run are in different subnets.
func (p *groupPlan) crosses(r *groupRun) bool {
	ports, nodes := p.tests[r.test].ports, r.nodes()
	return ports != nil && slices.ContainsFunc(nodes, func(i int32) bool { return ports.subnet[i] != ports.subnet[nodes[0]] })
}

// apart remarks on networks that may be separate.
func (p *groupPlan) apart(test int, text string) Distribution {
	d := p.f.row(p.tests[test].task)
	d.Remark = separate + text
	return d
}

// maxPartners bounds how many nodes of a group a suspect names.
const maxPartners = 16

// suspectOf begins a suspect from the bad tests of a hunt.
func (p *groupPlan) suspectOf(h *hunt, runs []*groupRun) (Suspect, finding) {
	faults, f := map[Fault]int{}, finding{symptom: slow, bad: len(runs), looks: len(runs) + len(h.good)}
	n := 0.0
	for _, r := range runs {
		faults[r.fault]++
		if r.symptom == broken {
			f.symptom = broken
		}
		f.text, f.beside = cmpText(f.text, r.text), f.beside || r.beside
		if r.symptom == slow {
			f.value, f.expect, n = f.value+r.value, f.expect+r.expect, n+1
		}
	}
	if f.fault = commonestFault(faults); n > 0 {
		f.value, f.expect = f.value/n, f.expect/n
	}
	if f.symptom == broken {
		f.value, f.expect = 0, 0
	}
	t := p.tests[h.test].task
	s := Suspect{Plane: t.Plane, Stage: p.f.stage, Kind: t.Kind, Code: codeOf(t.Kind, f.symptom, f.fault), Looks: f.looks}
	if t.Op != "" {
		s.Ops = []string{t.Op}
	}
	addNumbers(&s, f)
	return s, f
}

// giveUp reports a group whose parts pass alone: a doubt that names no single node.
func (p *groupPlan) giveUp(h *hunt) {
	if len(p.proven[h.test]) == 0 && len(p.order) > 2 {
		if !p.wide[h.test] {
			p.note(h.test, "no group passes: "+faultText(h.base.fault))
		}
		return
	}
	if kinds := p.kindsOf(h.test, h.set); h.base.symptom == broken && p.kindsApart(h.test, kinds) {
		if d := p.apart(h.test, "nodes of "+kinds+" fail together, and pass apart"); !slices.Contains(p.notes, d) {
			p.notes = append(p.notes, d)
		}
		return
	}
	s, f := p.suspectOf(h, []*groupRun{h.base})
	f.doubt = true
	s.Doubt, s.Confidence = true, doubtConfidence
	list := p.f.names(h.set)
	s.Partners = list[:min(len(list), maxPartners)]
	bare := s
	bare.Partners = nil
	text := subjectOf(s.Plane, "", s.Kind) + describeFinding(bare, f)
	switch {
	case len(h.set) == 2 && h.size == 2:
		s.Node, s.Peer = list[0], list[1]
		s = s.explain(fmt.Sprintf("%s: between %s and %s only", text, list[0], list[1]))
		s.Do = "Test each of the two with a third node."
	case len(h.set) == 1:
		s.Node = list[0]
		s = s.explain(text + ": there are not enough proven nodes to be sure")
	default:
		s = s.explain(fmt.Sprintf("%s: only in a group of %d nodes, its parts pass", text, len(h.set)))
		s.Do = "Run the stage again with this size. If it fails again, look at the network between the leaves, and at the limits of NCCL."
	}
	if slices.ContainsFunc(p.found, func(f Suspect) bool { return f.Text == s.Text && f.Plane == s.Plane && f.Node == s.Node }) {
		return
	}
	p.found = append(p.found, s)
}

// kindsApart reports whether nodes of several kinds have failed in all tests with nodes of another kind, and
// passed in those of each kind alone.
func (p *groupPlan) kindsApart(test int, kinds string) bool {
	list := strings.Split(kinds, " and ")
	for _, k := range list {
		if !p.passed[refKey{test: test, kinds: k}] {
			return false
		}
	}
	for key := range p.passed {
		if key.test == test && strings.Contains(key.kinds, " and ") {
			return false
		}
	}
	return len(list) > 1
}

// stopHunts ends hunts that cannot go on.
func (p *groupPlan) stopHunts() {
	for _, h := range p.hunts {
		if !h.done && h.wait <= 0 {
			h.done = true
			p.giveUp(h)
		}
		h.wait = 0
	}
}

func uniq(list []int32) []int32 {
	return slices.Compact(slices.Sorted(slices.Values(list)))
}
