package sweep

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// judgeValue finds out whether a group is slow, compared with groups of its size. Without those it
// is compared with the next smaller ones.
func (p *groupPlan) judgeValue(r *groupRun, nodes []int32) {
	if r.bad || math.IsNaN(r.value) {
		return
	}
	t := p.tests[r.test].task
	limit, expect := p.boundsOf(r.test, len(nodes), p.kindsOf(r.test, nodes))
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

// boundsOf returns the value that a group of a size must reach, and the expected one; 0 if unknown. A
// group of several kinds must reach the least of them.
func (p *groupPlan) boundsOf(test, size int, kinds string) (limit, expect float64) {
	if limit, expect = p.boundsOfKind(test, size, kinds); limit > 0 || !strings.Contains(kinds, " and ") {
		return limit, expect
	}
	for i, m := range strings.Split(kinds, " and ") {
		l, e := p.boundsOfKind(test, size, m)
		if l == 0 {
			return 0, 0
		}
		if i == 0 || l < limit {
			limit, expect = l, e
		}
	}
	return limit, expect
}

func (p *groupPlan) boundsOfKind(test, size int, kinds string) (limit, expect float64) {
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
	mid := m.mid
	if p.tests[test].task.Op == "all_to_all" { // the larger the group, the more of the data leaves a node
		mid *= (1 - 1/float64(best)) / (1 - 1/float64(size))
	}
	return mid * (1 - min(share, 0.9)), mid
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

// Fleet implements Plan.
func (p *groupPlan) Fleet() []Distribution {
	_, apart := p.judgeAccused()
	all := slices.Concat(p.notes, apart)
	for t := range p.tests {
		for _, key := range p.keys(t) {
			values := slices.Sorted(slices.Values(p.refs[key]))
			task := p.tests[t].task
			mid := quantile(values, 0.5)
			limit, _ := p.boundsOf(t, key.size, key.kinds)
			d := Distribution{
				Stage: p.f.stage, Kind: task.Kind, Op: task.Op, Plane: task.Plane, Model: key.kinds, Unit: unitOf(task.Kind), Count: len(values),
				Median: mid, Sigma: spreadOf(values, mid), Floor: limit,
			}
			d.Op = fmt.Sprintf("%s of %d nodes", cmpText(d.Op, "ring"), key.size)
			if floor := p.o.floorOf(task); floor > 0 && p.misses(t, floor) {
				d.Note = missesFloor
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
