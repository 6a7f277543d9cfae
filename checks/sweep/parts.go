package sweep

import (
	"math"
	"slices"
)

// parts are the parts of the cluster that are apart in a test: the nodes of each reach each other,
// directly or through others.
type parts struct {
	looks  int                     // of the plan that are counted
	split  bool                    // no node reaches one of another subnet
	routed bool                    // some do
	union  []int32                 // by node: see root
	nodes  map[int32][]int32       // by root, if there are failures
	failed map[[2]int32][]pairLook // failed looks between two parts of several nodes, one for each pair of nodes
}

// pairLook is the result of a test of two nodes: the number of the look, and whether it passed.
type pairLook struct {
	number   int32
	from, to int32
	passed   bool
}

func newParts(nodes int, looks []pairLook) *parts {
	a := &parts{union: indexes32(nodes), nodes: map[int32][]int32{}, failed: map[[2]int32][]pairLook{}}
	failures := false
	for _, l := range looks {
		if l.passed {
			a.union[root(a.union, l.from)] = root(a.union, l.to)
		}
		failures = failures || !l.passed
	}
	if !failures {
		return a
	}
	for i := range int32(nodes) {
		a.nodes[root(a.union, i)] = append(a.nodes[root(a.union, i)], i)
	}
	seen := map[[2]int32]bool{}
	for _, l := range looks {
		key, pair := a.between(l.from, l.to), [2]int32{min(l.from, l.to), max(l.from, l.to)}
		if !l.passed && !seen[pair] && key[0] != key[1] && len(a.nodes[key[0]]) > 1 && len(a.nodes[key[1]]) > 1 {
			seen[pair] = true
			a.failed[key] = append(a.failed[key], l)
		}
	}
	return a
}

func root(union []int32, i int32) int32 {
	for union[i] != i {
		union[i] = union[union[i]]
		i = union[i]
	}
	return i
}

// between returns the parts of two nodes.
func (a *parts) between(i, j int32) [2]int32 {
	i, j = root(a.union, i), root(a.union, j)
	return [2]int32{min(i, j), max(i, j)}
}

// apart reports whether two nodes are in parts of the cluster between which all pairs fail. Both parts
// work, so neither node is at fault.
func (a *parts) apart(i, j int32) bool {
	return len(a.failed) > 0 && a.cut(a.between(i, j))
}

// cut reports whether enough different nodes of two parts have failed with the other part, and most of the
// smaller one: a few faulty nodes fail with many, and the rest of their part was not tested with the other one.
func (a *parts) cut(key [2]int32) bool {
	least := int(limitOf("apart_pairs"))
	if len(a.failed[key]) < least {
		return false
	}
	nodes := [2]map[int32]bool{{}, {}}
	for _, l := range a.failed[key] {
		for _, i := range []int32{l.from, l.to} {
			nodes[slices.Index(key[:], root(a.union, i))][i] = true
		}
	}
	few, many := 0, 1
	if len(a.nodes[key[0]]) > len(a.nodes[key[1]]) {
		few, many = 1, 0
	}
	return 2*len(nodes[few]) > len(a.nodes[key[few]]) && len(nodes[many]) >= min(least, len(a.nodes[key[many]]))
}

// untried reports whether a node is in a part, of those that are apart, in which no node was tried.
func (a *parts) untried(i int32, tried []int32) bool {
	part := root(a.union, i)
	for key := range a.failed {
		if (key[0] == part || key[1] == part) && a.cut(key) {
			return !slices.ContainsFunc(tried, func(j int32) bool { return root(a.union, j) == part })
		}
	}
	return false
}

// largest returns the part with the most nodes.
func (a *parts) largest() (most int32) {
	for r, nodes := range a.nodes {
		if best := a.nodes[most]; len(nodes) > len(best) || len(nodes) == len(best) && r < most {
			most = r
		}
	}
	return most
}

// leastGroup is how many nodes that differ from the others in the same way can be a group, such as another
// delivery, and no faulty nodes.
const leastGroup = 3

// slowLeaf is a leaf switch whose paths to all others are slow in a test.
type slowLeaf struct {
	leaf         int32
	looks        int
	value, usual float64 // medians with it, and between the others
	doubt        bool    // its nodes, or those of other leaves, may be slow, or there are few others
}

// path is the best value of the tests of two nodes, the leaves of both, and their kinds.
type path struct {
	nodes, leaves [2]int32
	kinds         int64
	value         float64
}

// findSlowLeaf finds the leaf switch whose paths to all others are slow, while those between the others
// are not; nil if there is none. Of few leaves its paths are so many that they are the median. Paths are of
// different pairs of nodes.
func findSlowLeaf(paths []path, members map[int32][]int32) *slowLeaf {
	count, most := map[int64]int{}, int64(0)
	for _, x := range paths {
		if count[x.kinds]++; count[x.kinds] > count[most] || count[x.kinds] == count[most] && x.kinds < most {
			most = x.kinds
		}
	}
	paths = slices.DeleteFunc(slices.Clone(paths), func(x path) bool { return x.kinds != most })
	values := map[int32][]float64{}
	for _, x := range paths {
		if x.leaves[0] != x.leaves[1] {
			values[x.leaves[0]], values[x.leaves[1]] = append(values[x.leaves[0]], x.value), append(values[x.leaves[1]], x.value)
		}
	}
	worst, least := int32(-1), math.Inf(1)
	for leaf, list := range values {
		if len(list) < int(limitOf("class_min")) || len(members[leaf]) < leastGroup {
			continue
		}
		if m := median(list); m < least || m == least && leaf < worst {
			worst, least = leaf, m
		}
	}
	if worst < 0 {
		return nil
	}
	var others []float64
	for _, x := range paths {
		if x.leaves[0] != x.leaves[1] && !slices.Contains(x.leaves[:], worst) {
			others = append(others, x.value)
		}
	}
	s, limit := compareLeaf(values[worst], others)
	if s != nil {
		s.leaf, s.doubt = worst, s.doubt || !isSwitch(paths, worst, limit, len(members[worst]))
	}
	return s
}

// isSwitch reports whether most nodes of a leaf are slow with nodes of other leaves that are fast elsewhere: faulty
// nodes of other leaves, or a few in this one, make its paths slow, too. Nodes without such a partner do not count.
func isSwitch(paths []path, leaf int32, limit float64, members int) bool {
	elsewhere, inside := map[int32][]float64{}, map[int32][]float64{}
	for _, x := range paths {
		if !slices.Contains(x.leaves[:], leaf) {
			for _, i := range x.nodes {
				elsewhere[i] = append(elsewhere[i], x.value)
			}
		}
	}
	for _, x := range paths {
		for k, i := range x.nodes {
			if list := elsewhere[x.nodes[1-k]]; x.leaves[k] == leaf && x.leaves[1-k] != leaf && len(list) > 0 && median(list) >= limit {
				inside[i] = append(inside[i], x.value)
			}
		}
	}
	slow := 0
	for _, list := range inside {
		if median(list) < limit {
			slow++
		}
	}
	return slow >= leastGroup && 3*slow >= members && 2*slow > len(inside)
}

// compareLeaf compares the values of the paths of a leaf with those between other leaves. A few others are a doubt:
// between two of three leaves two rounds have few pairs. It returns the value below which a path is slow, too.
func compareLeaf(inside, others []float64) (s *slowLeaf, limit float64) {
	if len(others) == 0 {
		return nil, 0
	}
	slices.Sort(inside)
	slices.Sort(others)
	s = &slowLeaf{looks: len(inside), value: quantile(inside, 0.5), usual: quantile(others, 0.5), doubt: len(others) < int(limitOf("class_min"))}
	drop := max(limitOf("group_share")*s.usual, limitOf("suspect_z")*spreadOf(others, s.usual))
	limit = s.usual - drop/2
	if s.usual-s.value < drop || quantile(inside, limitOf("leaf_share")) > limit || quantile(others, 1-limitOf("leaf_share")) < limit {
		return nil, 0
	}
	return s, limit
}

// name returns the number of the leaf, -1 if there is none without doubt.
func (s *slowLeaf) name() int32 {
	if s == nil || s.doubt {
		return -1
	}
	return s.leaf
}

// crossed reports whether a path between two leaves ends at the slow one.
func (s *slowLeaf) crossed(a, b int32) bool { return s.name() >= 0 && (s.leaf == a || s.leaf == b) }
