package sweep

import "slices"

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
