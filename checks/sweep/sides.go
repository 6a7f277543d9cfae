package sweep

import (
	"cmp"
	"slices"
)

// A switch or a rack that Slurm does not know makes the paths between its nodes and all others slow. The values of
// such a test have two peaks, and a node whose partners are all on the other side looks slow. So more pairs are
// tested then, until it is known which nodes are fast with each other: these are a side, and values are compared
// within the sides and between them, as within leaf switches and between them.

// search looks for the sides of the nodes of a plane, a rail or a network of NCCL.
type search struct {
	test   int
	rounds int
	alone  int // rounds in which nodes that are fast with none meet each other
	done   bool
	sides  []int32 // by node, the largest one is 0; nil: there are none
	lone   []bool  // by node: it is fast with no other, and counts for the largest side
}

// mostSearch bounds the rounds of a search.
const mostSearch = 32

// tie is the best value of two nodes in a test, as a share of the upper peak of those of the same kinds.
type tie struct {
	nodes      [2]int32
	kinds      int64
	value      float64
	fast, slow bool // neither: it is between the peaks
}

// tiesOf returns the pairs of a test that can be compared with others.
func tiesOf(e *evidence, test int) (ties []tie) {
	at, kinds := map[[2]int32]int{}, map[int64][]float64{}
	for i := range e.looks {
		l := &e.looks[i]
		if int(l.test) != test || l.fault != FaultNone || !(l.value > 0) {
			continue
		}
		pair := [2]int32{min(l.from, l.to), max(l.from, l.to)}
		k, known := at[pair]
		if !known {
			k, at[pair] = len(ties), len(ties)
			ties = append(ties, tie{nodes: pair, kinds: e.keyOf(test, l.from, l.to).kinds})
		}
		ties[k].value = max(ties[k].value, l.value)
	}
	for _, t := range ties {
		kinds[t.kinds] = append(kinds[t.kinds], t.value)
	}
	ties = slices.DeleteFunc(ties, func(t tie) bool { return len(kinds[t.kinds]) < int(limitOf("class_min")) })
	for k, values := range kinds {
		slices.Sort(values)
		kinds[k] = []float64{median(values[lowerPeak(values):])}
	}
	for i := range ties {
		ties[i].value /= kinds[ties[i].kinds][0]
	}
	return ties
}

// lowerPeak returns how many of some sorted values are in the lower one of two peaks: those whose means are the
// farthest apart (Otsu's method).
func lowerPeak(values []float64) (lower int) {
	total, sum, best := 0.0, 0.0, -1.0
	for _, v := range values {
		total += v
	}
	for k := 1; k < len(values); k++ {
		sum += values[k-1]
		n, m := float64(k), float64(len(values)-k)
		if d := (total-sum)/m - sum/n; n*m*d*d > best {
			best, lower = n*m*d*d, k
		}
	}
	return lower
}

// peaks returns the two peaks of the values of pairs, and whether there are two: noise is that of a test. The upper
// one can itself have two while it has the pairs of all but slow nodes, unless it must be sharp.
func peaks(ties []tie, noise float64, sharp bool) (low, high float64, two bool) {
	values := make([]float64, 0, len(ties))
	for _, t := range ties {
		values = append(values, t.value)
	}
	slices.Sort(values)
	k := lowerPeak(values)
	if k == 0 {
		return 0, 0, false
	}
	low, high = median(values[:k]), median(values[k:])
	if sharp {
		noise = max(noise, spreadOf(values[k:], high))
	}
	return low, high, high-low >= max(limitOf("slow_share")*high, 6*noise)
}

// mark marks the pairs near to each of two peaks.
func mark(ties []tie, low, high float64) {
	for i := range ties {
		t := &ties[i]
		t.fast, t.slow = t.value > high-(high-low)/3, t.value < low+(high-low)/3
	}
}

// findPatches returns the pairs of a test, and whether some are slow that no slow nodes explain: both nodes are fast with
// others, or so many nodes are fast with none that they are a group.
func findPatches(e *evidence, test int) (ties []tie, found bool) {
	ties = tiesOf(e, test)
	noise := 0.0
	for _, c := range e.sorted {
		if int(c.key.test) == test && c.median > 0 && len(c.spreads) > 0 {
			noise = max(noise, median(slices.Clone(c.spreads))/c.median)
		}
	}
	low, high, two := peaks(ties, noise, false)
	if !two { // all are fast
		low, high = 0, 0
	}
	if mark(ties, low, high); !two {
		return ties, false
	}
	fast, met := map[int32]bool{}, map[int32]bool{}
	for _, t := range ties {
		for _, i := range t.nodes {
			if met[i] = true; t.fast {
				fast[i] = true
			}
		}
	}
	rest := slices.DeleteFunc(slices.Clone(ties), func(t tie) bool { return !fast[t.nodes[0]] || !fast[t.nodes[1]] })
	if low, high, two = peaks(rest, noise, true); two { // without the slow nodes
		mark(ties, low, high)
		mark(rest, low, high)
		isSlow := func(t tie) bool { return t.slow }
		if n := count(rest, isSlow); n > 0 && 10*n >= count(ties, isSlow) {
			return ties, true
		}
	}
	return ties, isGroup(len(met)-len(fast), len(met))
}

func count[T any](list []T, is func(T) bool) (n int) {
	for _, x := range list {
		if is(x) {
			n++
		}
	}
	return n
}

// groupsOf returns the nodes that are fast with each other, directly or through others, the largest group first.
func groupsOf(nodes int, ties []tie) (groups [][]int32) {
	union, at := indexes32(nodes), map[int32]int{}
	for _, t := range ties {
		if t.fast {
			union[root(union, t.nodes[0])] = root(union, t.nodes[1])
		}
	}
	met := map[int32]bool{}
	for _, t := range ties {
		met[t.nodes[0]], met[t.nodes[1]] = true, true
	}
	for i := range int32(nodes) {
		if !met[i] {
			continue
		}
		r := root(union, i)
		k, known := at[r]
		if !known {
			k, at[r] = len(groups), len(groups)
			groups = append(groups, nil)
		}
		groups[k] = append(groups[k], i)
	}
	slices.SortStableFunc(groups, func(a, b []int32) int { return cmp.Compare(len(b), len(a)) })
	return groups
}

// meetings returns the tests of a round between groups whose relation is unknown: two different pairs of them are
// not slow yet. Nodes that are fast with none meet the larger groups, or each other. Nodes with few slow pairs come first, since a slow node says nothing about its group.
func (s *search) meetings(p *pairPlan, groups [][]int32, ties []tie, alone bool) (queue []request) {
	group, tied, bad, slow := map[int32]int{}, map[[2]int32]bool{}, map[int32]int{}, map[[2]int]int{}
	for g, nodes := range groups {
		for _, i := range nodes {
			group[i] = g
		}
	}
	for _, t := range ties {
		if tied[t.nodes] = true; t.slow {
			a, b := group[t.nodes[0]], group[t.nodes[1]]
			slow[[2]int{min(a, b), max(a, b)}]++
			bad[t.nodes[0]]++
			bad[t.nodes[1]]++
		}
	}
	used := map[int32]bool{}
	free := make([][]int32, len(groups))
	for g, nodes := range groups {
		free[g] = slices.DeleteFunc(slices.Clone(nodes), func(i int32) bool { return !p.takes(s.test, i) })
		p.f.rng.Shuffle(len(free[g]), func(i, j int) { free[g][i], free[g][j] = free[g][j], free[g][i] })
		slices.SortStableFunc(free[g], func(i, j int32) int { return bad[i] - bad[j] })
	}
	pick := func(g, h int) (from, to int32, ok bool) {
		for _, i := range free[g] {
			for _, j := range free[h] {
				if !used[i] && !used[j] && !tied[[2]int32{min(i, j), max(i, j)}] {
					return i, j, true
				}
			}
		}
		return 0, 0, false
	}
	for g := 1; g < len(groups); g++ {
		for h := range g {
			if alone != (len(groups[h]) < 2) || slow[[2]int{h, g}] >= 2 {
				continue
			}
			from, to, ok := pick(g, h)
			if !ok {
				continue
			}
			used[from], used[to] = true, true
			queue = append(queue, request{test: s.test, from: from, to: to})
			free[g] = slices.DeleteFunc(free[g], func(i int32) bool { return used[i] })
			free[h] = slices.DeleteFunc(free[h], func(i int32) bool { return used[i] })
			if len(free[g]) == 0 {
				break
			}
		}
	}
	return queue
}

// settle takes the groups of several nodes as sides. It reports whether there are at least two, and most pairs
// between them are slow.
func (s *search) settle(groups [][]int32, ties []tie, nodes int) bool {
	if len(groups) < 2 || len(groups[1]) < 2 {
		return false
	}
	sides, lone := make([]int32, nodes), make([]bool, nodes)
	for g, list := range groups {
		for _, i := range list {
			if lone[i] = len(list) == 1; !lone[i] {
				sides[i] = int32(g)
			}
		}
	}
	across := slices.DeleteFunc(slices.Clone(ties), func(t tie) bool {
		i, j := t.nodes[0], t.nodes[1]
		return lone[i] || lone[j] || sides[i] == sides[j]
	})
	if slow := count(across, func(t tie) bool { return t.slow }); float64(slow) < limitOf("leaf_share")*float64(len(across)) {
		return false
	}
	s.sides, s.lone = sides, lone
	return true
}
