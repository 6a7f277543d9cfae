package sweep

// series is a test that pairs run: the template of a task.
type series struct {
	task     Task
	directed bool   // the nodes have different roles
	ports    *plane // only nodes that have it take part; nil: all
	family   int    // tests of a family show the same faults: only the first one is confirmed

	order []int32 // nodes that take part
	kinds []int32 // by node: see fleet.kinds
	odd   []oddity
	alone []bool // by node: no other one is in the subnet of its port
	mates []int  // by node: how many are in the subnet of its port, with itself
	mated bool   // the nodes of each subnet were tested with each other
	usual int    // speed of the ports
}

// oddity is how the build of a node differs from that of most others, and down to which share of their values that
// explains a loss. The text is "" if it does not differ.
type oddity struct {
	text  string
	share float64
}

// has reports whether a node can take part in a test.
func (s *series) has(i int32) bool { return s.ports == nil || s.ports.has[i] }

// known returns the value that every healthy network between two nodes reaches, 0 if it is unknown. For
// times it is the longest.
func (s *series) known(from, to int32) float64 {
	switch k := s.task.Kind; {
	case k.Lower():
		return limitOf(string(k) + "_most")
	case k == KindWrite:
		return limitOf("write_bw_share") * min(s.ports.least(from), s.ports.least(to))
	}
	return 0
}

// crosses reports whether two nodes are in different subnets that each have a group of nodes.
func (s *series) crosses(i, j int32) bool {
	return s.ports != nil && min(s.mates[i], s.mates[j]) >= leastGroup && s.ports.subnet[i] != s.ports.subnet[j]
}

// setAlone counts the nodes in each subnet.
func (s *series) setAlone() {
	if s.ports == nil {
		return
	}
	count := map[string]int{}
	for _, i := range s.order {
		count[s.ports.subnet[i].String()]++
	}
	s.alone, s.mates = make([]bool, len(s.kinds)), make([]int, len(s.kinds))
	for i, subnet := range s.ports.subnet {
		if subnet.IsValid() {
			s.mates[i] = count[subnet.String()]
		}
		s.alone[i] = s.mates[i] < 2
	}
}
