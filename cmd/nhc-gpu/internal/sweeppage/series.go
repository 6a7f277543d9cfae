package sweeppage

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/page"
)

// series are the tests between two nodes of one stage and kind.
type series struct {
	stage sweep.Stage
	kind  sweep.Kind
	op    string
	unit  string
	pairs map[pair]*pairResult
	order []pair // sorted: a report always gives the same page
}

// pair is a direction between two nodes, by their positions in the sorted list of nodes.
type pair struct {
	from, to int
	plane    string
}

// pairResult is the result of the tests of a pair.
type pairResult struct {
	values []float64 // one for each test
	ratio  float64   // the median value to that of the fleet: 1 is usual, smaller is worse
	value  float64   // median
	fault  sweep.Fault
	text   string
	beside bool
}

// cluster are the nodes of a report in natural order, and its tests between two nodes.
type cluster struct {
	nodes   []*sweep.NodeReport
	at      map[string]int
	series  []*series
	accused map[string][]*sweep.Suspect // by node
}

func newCluster(r *sweep.Report) *cluster {
	c := &cluster{at: map[string]int{}, accused: map[string][]*sweep.Suspect{}}
	for i := range r.Nodes {
		c.nodes = append(c.nodes, &r.Nodes[i])
	}
	slices.SortFunc(c.nodes, func(a, b *sweep.NodeReport) int { return page.CompareNames(a.Name, b.Name) })
	for i, n := range c.nodes {
		c.at[n.Name] = i
	}
	for i := range r.Suspects {
		s := &r.Suspects[i]
		for _, node := range []string{s.Node, s.Peer} {
			if node != "" {
				c.accused[node] = append(c.accused[node], s)
			}
		}
	}
	for i := range r.Stages {
		c.add(&r.Stages[i])
	}
	return c
}

// add collects the tests of a stage.
func (c *cluster) add(g *sweep.StageReport) {
	first := len(c.series)
	for i := range g.Results {
		x := &g.Results[i]
		t := &x.Task
		if len(t.Nodes) != 2 || x.Fault == sweep.FaultUnable || t.Kind == sweep.KindCheck {
			continue
		}
		from, ok1 := c.at[t.Nodes[0]]
		to, ok2 := c.at[t.Nodes[1]]
		if !ok1 || !ok2 {
			continue
		}
		at := slices.IndexFunc(c.series[first:], func(s *series) bool { return s.kind == t.Kind && s.op == opOf(t) })
		if at < 0 {
			at = len(c.series) - first
			c.series = append(c.series, &series{stage: g.Stage, kind: t.Kind, op: opOf(t), unit: unitOf(t.Kind), pairs: map[pair]*pairResult{}})
		}
		s := c.series[first+at]
		key := pair{from, to, t.Plane}
		p := s.pairs[key]
		if p == nil {
			p = new(pairResult)
			s.pairs[key] = p
		}
		p.beside = p.beside || x.Beside
		if x.Fault != sweep.FaultNone {
			p.fault, p.text = x.Fault, x.Text
		}
		if len(x.Values) > 0 {
			p.values = append(p.values, median(x.Values))
		}
	}
	for _, s := range c.series[first:] {
		s.order = slices.SortedFunc(maps.Keys(s.pairs), func(a, b pair) int {
			return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to), page.CompareNames(a.plane, b.plane))
		})
		s.judge(c, g.Fleet)
	}
}

// opOf returns the part of the operation that makes measurements comparable: the collective.
func opOf(t *sweep.Task) string {
	if t.Kind == sweep.KindNCCL {
		return t.Op
	}
	return ""
}

// judge sets the median and the ratio of each pair.
func (s *series) judge(c *cluster, fleet []sweep.Distribution) {
	all := map[string][]float64{} // by plane
	for k, p := range s.pairs {
		if len(p.values) > 0 {
			p.value = median(p.values)
			all[k.plane] = append(all[k.plane], p.value)
		}
	}
	usual := map[string]float64{}
	for plane, values := range all {
		usual[plane] = median(values)
	}
	for k, p := range s.pairs {
		m := usual[k.plane]
		for i := range fleet {
			if d := &fleet[i]; d.Kind == s.kind && d.Op == s.op && c.belongs(k, d) && d.Median > 0 {
				m = d.Median
				s.unit = d.Unit
				break
			}
		}
		switch {
		case len(p.values) == 0:
			p.ratio = 0
		case s.kind.Lower() && p.value > 0:
			p.ratio = m / p.value
		case m > 0 && !s.kind.Lower():
			p.ratio = p.value / m
		default:
			p.ratio = 1
		}
	}
}

// belongs reports whether a pair is one of those that a distribution describes.
func (c *cluster) belongs(k pair, d *sweep.Distribution) bool {
	a, b := c.nodes[k.from], c.nodes[k.to]
	if d.Plane != k.plane || d.Model != "" && (a.Model != d.Model || b.Model != d.Model) {
		return false
	}
	known := a.Leaf != "" && b.Leaf != ""
	switch d.Far {
	case "leaf":
		return known && a.Leaf == b.Leaf
	case "spine":
		return known && a.Leaf != b.Leaf
	}
	return true
}

// planes returns the planes of a series in natural order.
func (s *series) planes() []string {
	seen := map[string]bool{}
	for k := range s.pairs {
		seen[k.plane] = true
	}
	return slices.SortedFunc(maps.Keys(seen), page.CompareNames)
}

// cell is the worst result of some tests.
type cell struct {
	ratio float64 // 0 for a failure
	fault sweep.Fault
	text  string
	tests int
}

// grid returns the worst result between each two groups of nodes. group returns the group of a node;
// only is a plane, or "" for all.
func (s *series) grid(size int, group func(int) int, only string) [][]cell {
	g := make([][]cell, size)
	for i := range g {
		g[i] = make([]cell, size)
	}
	put := func(from, to int, p *pairResult) {
		c := &g[from][to]
		if c.tests == 0 || p.fault != "" && c.fault == "" || (p.fault != "") == (c.fault != "") && p.ratio < c.ratio {
			c.ratio, c.fault, c.text = p.ratio, p.fault, p.text
		}
		c.tests++
	}
	for _, k := range s.order {
		p := s.pairs[k]
		if only != "" && k.plane != only {
			continue
		}
		from, to := group(k.from), group(k.to)
		put(from, to, p)
		if s.kind == sweep.KindNCCL && from != to { // both nodes send and receive
			put(to, from, p)
		}
	}
	return g
}

// byNode returns the result of each node: the lowest of the medians of what it sends and receives on each
// plane, of an even number the upper one. So one slow direction of one plane shows, and one slow partner of
// two does not. only is a plane, or "" for all.
func (s *series) byNode(nodes int, only string) []cell {
	type end struct {
		node, way int
		plane     string
	}
	list := make([]cell, nodes)
	ratios := map[end][]float64{}
	for _, k := range s.order {
		p := s.pairs[k]
		if only != "" && k.plane != only {
			continue
		}
		for way, node := range []int{k.from, k.to} {
			if s.kind == sweep.KindNCCL { // both nodes send and receive
				way = 0
			}
			if list[node].tests++; p.fault != "" {
				list[node].text = p.text
			}
			e := end{node, way, k.plane}
			ratios[e] = append(ratios[e], p.ratio)
		}
	}
	for i := range list {
		list[i].ratio = math.Inf(1)
	}
	for e, r := range ratios {
		slices.Sort(r)
		x := &list[e.node]
		x.ratio = min(x.ratio, r[len(r)/2])
	}
	for i := range list {
		if list[i].tests > 0 && list[i].ratio == 0 {
			list[i].fault = sweep.FaultError
		}
	}
	return list
}

// median returns the median of values, the lower one of an even number; 0 for none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)/2]
}
