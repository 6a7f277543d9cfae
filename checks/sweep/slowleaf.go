package sweep

import (
	"math"
	"slices"
)

// slowLeaf is a leaf switch whose paths to all others are slow in a test.
type slowLeaf struct {
	leaf         int32
	looks        int
	value, usual float64 // medians with it, and between the others
	doubt        bool    // its nodes, or those of other leaves, may be slow, or there are few others
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
