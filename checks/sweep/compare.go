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
	Cleared  []Suspect `json:"cleared,omitempty"`  // of the earlier sweep only, and tested again
	Untested []Suspect `json:"untested,omitempty"` // of the earlier sweep only, and not tested again
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
	again := now.tested()
	for _, s := range old.Suspects {
		switch {
		case after[s.key()]:
		case again(s):
			c.Cleared = append(c.Cleared, s)
		default:
			c.Untested = append(c.Untested, s)
		}
	}
	c.Added, c.Missing = without(now.Nodes, old.Nodes), without(old.Nodes, now.Nodes)
	c.Moved = moved(old, now)
	return c
}

// key identifies a suspect over several sweeps. The direction is not part of it: a bad cable can be slow
// in one direction today and in both tomorrow.
func (s *Suspect) key() string {
	gpu := ""
	if s.GPU != nil {
		gpu = strconv.Itoa(*s.GPU)
	}
	nodes := []string{s.Node, s.Peer}
	slices.Sort(nodes)
	leaves := slices.Sorted(slices.Values(s.Leaves))
	return strings.Join(slices.Concat(nodes, []string{s.Plane, gpu, s.Code}, leaves), "\x00")
}

// tested returns a function that reports whether a test of this sweep has met a suspect: a test of its
// stage and plane on its node, between its two nodes or between its two leaf switches.
func (r *Report) tested() func(Suspect) bool {
	leaf := map[string]string{}
	for _, n := range r.Nodes {
		leaf[n.Name] = n.Leaf
	}
	met := map[string]bool{}
	mark := func(t *Task, what ...string) {
		slices.Sort(what)
		for _, plane := range []string{"", t.Plane} {
			met[strings.Join(append([]string{string(t.Stage), plane}, what...), "\x00")] = true
		}
	}
	for i := range r.Stages {
		for j := range r.Stages[i].Results {
			result := &r.Stages[i].Results[j]
			t := &result.Task
			if result.Fault == FaultUnable {
				continue
			}
			for _, node := range t.Nodes {
				mark(t, node)
			}
			if len(t.Nodes) == 2 {
				mark(t, t.Nodes[0], t.Nodes[1])
				mark(t, "leaf "+leaf[t.Nodes[0]], "leaf "+leaf[t.Nodes[1]])
			}
		}
	}
	return func(s Suspect) bool {
		what := []string{s.Node}
		if s.Peer != "" {
			what = append(what, s.Peer)
		}
		if len(s.Leaves) > 0 {
			what = nil
			for _, l := range s.Leaves {
				what = append(what, "leaf "+l)
			}
		}
		slices.Sort(what)
		return met[strings.Join(append([]string{string(s.Stage), s.Plane}, what...), "\x00")]
	}
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
