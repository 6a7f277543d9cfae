// Package page writes reports as HTML pages that need no network and no script.
package page

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
)

// Limits of what a page shows and of what a fleet keeps.
const (
	maxChanges  = 500 // the newest
	maxSlow     = 15
	maxFlapping = 50
	maxRuns     = 200 // of a single node, the newest
	flaps       = 4   // changes of the verdict that make a node flapping
)

// Fleet is what a page shows of many events. Its size depends on the number of nodes and checks, not on
// that of events.
type Fleet struct {
	Events int
	nodes  map[string]*nodeState
	checks map[string]*checkState
	first  time.Time
	last   time.Time
}

type nodeState struct {
	name    string
	last    *event.Event
	cells   map[string]checks.Severity // worst of each check in the last run
	changes int                        // of the verdict
	log     []change
	runs    []run // the newest
}

type run struct {
	time  time.Time
	cells map[string]checks.Severity
}

type change struct {
	time     time.Time
	node     string
	from, to checks.Severity
	what     string
}

type checkState struct {
	name      string
	runs      int
	total     float64 // milliseconds
	slowest   float64
	slowestOn string
	failing   int // nodes whose last run fails in it
}

// NewFleet returns an empty fleet.
func NewFleet() *Fleet {
	return &Fleet{nodes: map[string]*nodeState{}, checks: map[string]*checkState{}}
}

// Add adds an event. The events of a node must come in the order of their times; an older one is
// ignored. Runs around jobs count for the durations of checks only, and the fault of a drill is none.
func (f *Fleet) Add(e *event.Event) {
	if e.ByPerson() { // a person's action, not a run
		return
	}
	f.Events++
	if f.first.IsZero() || e.Time.Before(f.first) {
		f.first = e.Time
	}
	if e.Time.After(f.last) {
		f.last = e.Time
	}
	for i := range e.Results {
		f.addDuration(e.Node, &e.Results[i])
	}
	if e.AroundJob() {
		return
	}
	n := f.nodes[e.Node]
	if n == nil {
		n = &nodeState{name: e.Node}
		f.nodes[e.Node] = n
		if len(f.nodes) == 2 {
			f.forgetRuns()
		}
	}
	if n.last != nil && e.Time.Before(n.last.Time) {
		return
	}
	n.add(e.Real())
	if len(f.nodes) > 1 {
		n.runs = nil
	}
}

func (f *Fleet) addDuration(node string, r *event.Result) {
	c := f.checks[r.Check]
	if c == nil {
		c = &checkState{name: r.Check}
		f.checks[r.Check] = c
	}
	c.runs++
	c.total += r.Milliseconds
	if r.Milliseconds > c.slowest {
		c.slowest, c.slowestOn = r.Milliseconds, node
	}
}

func (n *nodeState) add(e *event.Event) {
	if n.last != nil && n.last.Verdict != e.Verdict {
		n.changes++
		c := change{time: e.Time, node: e.Node, from: n.last.Verdict, to: e.Verdict}
		if list := append(e.Findings(), n.last.Findings()...); len(list) > 0 {
			c.what = strings.TrimSpace(list[0].Code + " " + list[0].Device.String())
		}
		if n.log = append(n.log, c); len(n.log) > maxChanges {
			n.log = n.log[1:]
		}
	}
	cells := map[string]checks.Severity{}
	for _, r := range e.Results {
		cells[r.Check] = max(cells[r.Check], r.Severity)
	}
	n.last, n.cells = e.Short(), cells
	if n.runs = append(n.runs, run{e.Time, cells}); len(n.runs) > maxRuns {
		n.runs = n.runs[1:]
	}
}

// forgetRuns keeps the last run of each node only: a fleet shows no more.
func (f *Fleet) forgetRuns() {
	for _, n := range f.nodes {
		n.runs = nil
	}
}

// rows returns the nodes, the worst first, then by name.
func (f *Fleet) rows() []*nodeState {
	return slices.SortedFunc(maps.Values(f.nodes), func(a, b *nodeState) int {
		return cmp.Or(cmp.Compare(b.last.Verdict, a.last.Verdict), CompareNames(a.name, b.name))
	})
}

// CompareNames compares names of nodes, numbers by their value: n9 before n10.
func CompareNames(a, b string) int {
	for a != "" && b != "" {
		x, y := digits(a), digits(b)
		if x != "" && y != "" {
			p, q := trimZeros(x), trimZeros(y)
			if c := cmp.Or(cmp.Compare(len(p), len(q)), cmp.Compare(p, q), cmp.Compare(len(x), len(y))); c != 0 {
				return c
			}
			a, b = a[len(x):], b[len(y):]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(a, b)
}

func digits(s string) string {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return s[:n]
}

func trimZeros(s string) string {
	for len(s) > 1 && s[0] == '0' {
		s = s[1:]
	}
	return s
}

// columns returns the checks, those that fail on most nodes first.
func (f *Fleet) columns() []*checkState {
	bad := map[string]int{}
	seen := map[string]bool{}
	for _, n := range f.nodes {
		for name, s := range n.cells {
			seen[name] = true
			if s > checks.Skip {
				bad[name]++
			}
			if s == checks.Fail {
				f.checks[name].failing++
			}
		}
	}
	list := slices.DeleteFunc(slices.Collect(maps.Values(f.checks)), func(c *checkState) bool { return !seen[c.name] })
	slices.SortFunc(list, func(a, b *checkState) int {
		return cmp.Or(cmp.Compare(bad[b.name], bad[a.name]), cmp.Compare(a.name, b.name))
	})
	return list
}

// changes returns the newest changes, the newest first.
func (f *Fleet) changes() (list []change) {
	for _, n := range f.nodes {
		list = append(list, n.log...)
	}
	slices.SortFunc(list, func(a, b change) int { return cmp.Or(b.time.Compare(a.time), CompareNames(a.node, b.node)) })
	return list[:min(len(list), maxChanges)]
}

// slowest returns the checks by their mean duration.
func (f *Fleet) slowest() []*checkState {
	list := slices.Collect(maps.Values(f.checks))
	slices.SortFunc(list, func(a, b *checkState) int {
		return cmp.Or(cmp.Compare(b.total/float64(b.runs), a.total/float64(a.runs)), cmp.Compare(a.name, b.name))
	})
	return list[:min(len(list), maxSlow)]
}

// flapping returns the nodes whose verdict changes often.
func (f *Fleet) flapping() (list []*nodeState) {
	for _, n := range f.nodes {
		if n.changes >= flaps {
			list = append(list, n)
		}
	}
	slices.SortFunc(list, func(a, b *nodeState) int {
		return cmp.Or(cmp.Compare(b.changes, a.changes), CompareNames(a.name, b.name))
	})
	return list[:min(len(list), maxFlapping)]
}
