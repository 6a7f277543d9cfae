package sweep

import "slices"

// chain runs plans one after the other. Nodes that a plan suspects take no part in the next one.
type chain struct {
	f     *fleet
	plans []Plan
	later []func() Plan
}

// Next implements Plan.
func (c *chain) Next() []Task {
	for {
		if tasks := c.last().Next(); len(tasks) > 0 || len(c.later) == 0 {
			return tasks
		}
		for _, s := range c.last().Suspects() {
			names := []string{s.Node}
			switch {
			case s.shared():
				names = s.Partners
			case s.Peer != "" || s.Doubt:
				names = nil
			}
			for _, name := range names {
				if i, known := c.f.index[name]; known {
					c.f.out[i] = true
				}
			}
		}
		c.plans = append(c.plans, c.later[0]())
		c.later = c.later[1:]
	}
}

func (c *chain) last() Plan { return c.plans[len(c.plans)-1] }

// Take implements Plan.
func (c *chain) Take(results []Result) { c.last().Take(results) }

// Left implements Plan.
func (c *chain) Left() int { return c.last().Left() + 2*len(c.later) }

// Suspects implements Plan.
func (c *chain) Suspects() (all []Suspect) {
	for i, p := range c.plans {
		before := all
		for _, s := range p.Suspects() {
			shared := func(b Suspect) bool { return b.shared() && b.Code == s.Code && (b.Plane == "" || b.Plane == s.Plane) }
			if s.Node != "" && slices.ContainsFunc(before, shared) { // the node may be one more behind the same switch
				s.Doubt, s.Confidence = true, min(s.Confidence, doubtConfidence)
			}
			if s.Code != lostCode || i == len(c.plans)-1 { // each plan has those of the fleet
				all = append(all, s)
			}
		}
	}
	sortSuspects(all)
	return all
}

// Fleet implements Plan.
func (c *chain) Fleet() (all []Distribution) {
	for _, p := range c.plans {
		all = append(all, p.Fleet()...)
	}
	return all
}
