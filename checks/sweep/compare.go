package sweep

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Comparison is the difference between a sweep and an earlier one.
type Comparison struct {
	With     string    `json:"with"`               // ID of the earlier sweep
	Began    time.Time `json:"began"`              // of the earlier sweep
	New      []Suspect `json:"new,omitempty"`      // of this sweep only
	Still    []Suspect `json:"still,omitempty"`    // of both, with the numbers of this sweep
	Cleared  []Suspect `json:"cleared,omitempty"`  // of the earlier sweep only, and passed the same tests
	Untested []Suspect `json:"untested,omitempty"` // of the earlier sweep only, and the same tests did not run
	Moved    []Moved   `json:"moved,omitempty"`
	Added    []string  `json:"added,omitempty"`   // nodes of this sweep only
	Missing  []string  `json:"missing,omitempty"` // nodes of the earlier sweep only
}

// Moved is a median that differs by more than [MovedPercent] from that of the earlier sweep.
type Moved struct {
	Stage   Stage   `json:"stage"`
	Kind    Kind    `json:"kind"`
	Op      string  `json:"op,omitempty"`
	Plane   string  `json:"plane,omitempty"`
	Model   string  `json:"model,omitempty"`
	Far     string  `json:"far,omitempty"`
	Unit    string  `json:"unit"`
	Old     float64 `json:"old"`
	New     float64 `json:"new"`
	Percent float64 `json:"percent"` // 100 * (new / old - 1)
	Worse   bool    `json:"worse,omitempty"`
}

// MovedPercent is the difference of two medians from which on it is reported. The median of many pairs
// varies far less.
const MovedPercent = 5

// Compare returns the difference between a sweep and an earlier one.
func Compare(old, now *Report) *Comparison {
	c := &Comparison{With: old.ID, Began: old.Began}
	before, after := map[string]bool{}, map[string]bool{}
	for _, s := range old.Suspects {
		before[s.key()] = true
	}
	for _, s := range now.Suspects {
		after[s.key()] = true
		if before[s.key()] {
			c.Still = append(c.Still, s)
		} else {
			c.New = append(c.New, s)
		}
	}
	were, are := old.tests(), now.tests()
	for _, s := range old.Suspects {
		switch {
		case after[s.key()] || slices.ContainsFunc(now.Suspects, func(n Suspect) bool { return n.covers(&s) }):
		case now.proves(&s) && s.showsIn(are(&s), were(&s)):
			c.Cleared = append(c.Cleared, s)
		default:
			c.Untested = append(c.Untested, s)
		}
	}
	c.Added, c.Missing = without(now.Nodes, old.Nodes), without(old.Nodes, now.Nodes)
	c.Moved = moved(old, now)
	return c
}

// proves reports whether a sweep says something about the stage, the plane and the node of a suspect: that a test
// fails as on most nodes clears none.
func (r *Report) proves(old *Suspect) bool {
	passed := false
	for i := range r.Stages {
		s := &r.Stages[i]
		if s.Stage == old.Stage && s.unproven(old.Plane) != "" {
			return false
		}
		passed = passed || slices.ContainsFunc(s.Results, func(x Result) bool {
			return x.Fault == FaultNone && x.Task.Stage == old.Stage && (old.Node == "" || slices.Contains(x.Task.Nodes, old.Node))
		})
	}
	return passed
}

// key identifies a suspect over several sweeps. The direction is not part of it: a bad cable can be slow
// in one direction today and in both tomorrow. Each check is a suspicion of its own.
func (s *Suspect) key() string {
	gpu := ""
	if s.GPU != nil {
		gpu = strconv.Itoa(*s.GPU)
	}
	nodes := []string{s.Node, s.Peer}
	slices.Sort(nodes)
	leaves := slices.Sorted(slices.Values(s.Leaves))
	return strings.Join(slices.Concat(nodes, []string{s.Plane, gpu, s.Code, s.check()}, leaves), "\x00")
}

// check returns the name of the check that accuses a node, "" for other suspects.
func (s *Suspect) check() string {
	if s.Kind != KindCheck || len(s.Ops) == 0 {
		return ""
	}
	name, _, _ := strings.Cut(s.Ops[0], " ")
	return name
}

// covers reports whether a suspect keeps an older one of the same stage and plane from being cleared: a
// cable that was slow and now fails is not repaired. A check, or a name, concerns no other test.
func (s *Suspect) covers(old *Suspect) bool {
	switch {
	case s.Stage != old.Stage || s.Plane != old.Plane && s.Plane != "" && old.Plane != "":
		return false
	case s.Code != lostCode && (old.Kind == KindCheck || (s.Kind == KindName) != (old.Kind == KindName)):
		return false
	case len(old.Leaves) > 0:
		return slices.Equal(slices.Sorted(slices.Values(s.Leaves)), slices.Sorted(slices.Values(old.Leaves)))
	}
	return s.doubts(old.Node) || s.doubts(old.Peer)
}

// doubts reports whether a suspect accuses or doubts a node. The nodes of a path are healthy with others.
func (s *Suspect) doubts(node string) bool {
	switch {
	case node == "" || len(s.Leaves) > 1:
		return false
	case s.Node == "":
		return slices.Contains(s.Partners, node)
	case s.Peer != "":
		return s.Doubt && (s.Node == node || s.Peer == node)
	}
	return s.Node == node
}

// tests returns a function that returns the tests of a sweep that can show a suspect: those of its stage,
// kind and plane, on its node, between its two nodes, or between its leaf switches.
func (r *Report) tests() func(*Suspect) []*Task {
	leaf, byNode := map[string]string{}, map[string][]*Task{}
	for _, n := range r.Nodes {
		leaf[n.Name] = n.Leaf
	}
	var all []*Task
	for i := range r.Stages {
		for j := range r.Stages[i].Results {
			result := &r.Stages[i].Results[j]
			if result.Fault == FaultUnable || result.Fault == FaultLost {
				continue
			}
			t := &result.Task
			all = append(all, t)
			for _, node := range t.Nodes {
				byNode[node] = append(byNode[node], t)
			}
		}
	}
	return func(s *Suspect) (list []*Task) {
		from := byNode[s.Node]
		if len(s.Leaves) > 0 {
			from = all
		}
		for _, t := range from {
			switch {
			case t.Stage != s.Stage || s.Plane != "" && t.Plane != s.Plane || t.Kind != s.Kind && s.Code != lostCode:
			case s.Peer != "" && (len(t.Nodes) != 2 || !slices.Contains(t.Nodes, s.Peer)):
			case len(s.Leaves) > 0 && !t.joins(s.Leaves, leaf):
			default:
				list = append(list, t)
			}
		}
		return list
	}
}

// showsIn reports whether tests would have shown a suspect again: all its checks or collectives ran, and
// all planes were tested that the earlier sweep tested.
func (s *Suspect) showsIn(now, old []*Task) bool {
	ops, planes := map[string]bool{}, map[string]bool{}
	for _, t := range now {
		ops[t.label()], planes[t.Plane] = true, true
	}
	return len(now) > 0 &&
		!slices.ContainsFunc(s.Ops, func(op string) bool { return !ops[op] }) &&
		(s.Code == lostCode || !slices.ContainsFunc(old, func(t *Task) bool { return !planes[t.Plane] }))
}

// joins reports whether a test is between two leaf switches, or between a single one and another.
func (t *Task) joins(leaves []string, leaf map[string]string) bool {
	if len(t.Nodes) != 2 || leaf[t.Nodes[0]] == leaf[t.Nodes[1]] {
		return false
	}
	own := []string{leaf[t.Nodes[0]], leaf[t.Nodes[1]]}
	return !slices.ContainsFunc(leaves, func(l string) bool { return !slices.Contains(own, l) })
}

// without returns the names of nodes that others lack, in their order.
func without(nodes, others []NodeReport) (names []string) {
	has := map[string]bool{}
	for _, n := range others {
		has[n.Name] = true
	}
	for _, n := range nodes {
		if !has[n.Name] {
			names = append(names, n.Name)
		}
	}
	return names
}

// moved compares the medians of two sweeps. The greatest difference comes first.
func moved(old, now *Report) (list []Moved) {
	key := func(d Distribution) Distribution {
		return Distribution{Stage: d.Stage, Kind: d.Kind, Op: d.Op, Plane: d.Plane, Model: d.Model, Far: d.Far, Unit: d.Unit}
	}
	before := map[Distribution]float64{}
	for _, s := range old.Stages {
		for _, d := range s.Fleet {
			before[key(d)] = d.Median
		}
	}
	for _, s := range now.Stages {
		for _, d := range s.Fleet {
			m := before[key(d)]
			if m <= 0 {
				continue
			}
			percent := 100 * (d.Median/m - 1)
			if math.Abs(percent) > MovedPercent {
				list = append(list, Moved{d.Stage, d.Kind, d.Op, d.Plane, d.Model, d.Far, d.Unit, m, d.Median, percent, (percent > 0) == d.Kind.Lower()})
			}
		}
	}
	slices.SortStableFunc(list, func(a, b Moved) int { return cmp.Compare(math.Abs(b.Percent), math.Abs(a.Percent)) })
	return list
}
