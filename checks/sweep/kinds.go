package sweep

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// build is what the values of a test depend on besides the model of the GPUs and the speed of the port: the number
// of GPUs, that of RDMA ports, the PCIe link, the host. Unknown and unimportant parts are "".
type build [4]string

// buildOf returns the build of a node in a test.
func (f *fleet) buildOf(s *series, i int32) (b build) {
	n := &f.nodes[i]
	switch s.task.Kind {
	case KindNCCL:
		_, ports := n.fabric()
		b[0], b[1] = fmt.Sprintf("%d GPUs", n.GPUs-n.Closed), fmt.Sprintf("%d RDMA ports", len(ports))
	case KindStream, KindRing, KindWrite:
	default:
		return b
	}
	if s.ports != nil && s.ports.pcie[i] > 0 {
		b[2] = fmt.Sprintf("%d Gb/s of PCIe", s.ports.pcie[i])
	}
	if !f.manyHosts {
		b[3] = strings.ReplaceAll(n.Host, " and ", ", ") // see kindsOf of groups
	}
	return b
}

// unlike returns the parts of a build that differ from another one, "" if none does.
func (b build) unlike(other build) string {
	var parts []string
	for k, part := range b {
		if part != other[k] {
			parts = append(parts, cmpText(part, "unknown"))
		}
	}
	return strings.Join(parts, ", ")
}

// explains returns down to which share of the value of another build one explains the loss: as far as it has fewer or
// more GPUs and RDMA ports, and any loss on another host or PCIe link.
func (b build) explains(other build) float64 {
	share := 1.0
	for k, part := range b {
		if part == other[k] {
			continue
		}
		if k >= 2 {
			return 0
		}
		var x, y float64
		_, _ = fmt.Sscan(part, &x)
		_, _ = fmt.Sscan(other[k], &y)
		share *= min(x, y) / max(x, y)
	}
	return share
}

// kinds returns the kind of each node in a test: its model, the speed of its port if that is not the usual one,
// and its build if that is not the usual one of these. A build of fewer nodes than a group is no kind: such nodes
// are compared with the others, since nothing else shows their faults. odd says how they differ, if a group or most
// nodes have the usual build.
func (f *fleet) kinds(s *series) (kinds []string, odd []oddity) {
	p, usual := s.ports, 0
	kinds, odd = make([]string, len(f.nodes)), make([]oddity, len(f.nodes))
	if p != nil {
		usual = p.usual()
	}
	builds, count := make([]build, len(f.nodes)), map[string]map[build]int{}
	for i, n := range f.nodes {
		kinds[i] = n.Model
		if p != nil && p.speed[i] > 0 && p.speed[i] != usual {
			kinds[i] = strings.TrimSpace(n.Model + " " + number(float64(p.speed[i])/1000) + " Gb/s")
		}
		if builds[i] = f.buildOf(s, int32(i)); count[kinds[i]] == nil {
			count[kinds[i]] = map[build]int{}
		}
		if s.has(int32(i)) && f.tested(int32(i)) {
			count[kinds[i]][builds[i]]++
		}
	}
	most, all := map[string]build{}, map[string]int{}
	for kind, of := range count {
		for b, n := range of {
			all[kind] += n
			if best, known := most[kind]; !known || cmp.Or(of[best]-n, slices.Compare(b[:], best[:])) < 0 {
				most[kind] = b
			}
		}
	}
	for i, kind := range kinds {
		b, best := builds[i], most[kind]
		alike := count[kind][best]
		switch {
		case b == best:
		case count[kind][b] >= leastGroup:
			kinds[i] = strings.TrimSpace(kind + " (" + b.unlike(best) + ")")
		case alike >= leastGroup || 2*alike > all[kind]:
			odd[i] = oddity{fmt.Sprintf("it has %s, most others %s", b.unlike(best), best.unlike(b)), b.explains(best)}
		}
	}
	return kinds, odd
}

// doubtOdd makes an accusation for a low value a doubt if the build of the node can explain it.
func (s *Suspect) doubtOdd(odd oddity, symptom symptom) {
	if odd.text == "" || symptom != slow && symptom != flaky || s.Kind.Lower() || s.Value < (odd.share-limitOf("slow_share"))*s.Expect {
		return
	}
	s.Doubt, s.Confidence = true, min(s.Confidence, doubtConfidence)
	s.Text += ": " + odd.text
}

// joinAlike replaces nodes that are slow by about the same factor on the same plane or rail by one doubt, if they are a
// group of so many nodes: they are rather other hardware than faulty, even if no fact shows it.
func joinAlike(all []Suspect, nodes int) (kept []Suspect) {
	factors := map[string][]float64{}
	key := func(s *Suspect) string { return s.Code + " " + s.Plane }
	factor := func(s *Suspect) (float64, bool) {
		single := s.Node != "" && s.Peer == "" && len(s.Leaves) == 0 && s.Expect > 0 && !s.Kind.Lower()
		return s.Value / s.Expect, single && (s.Code == codeOf(s.Kind, slow, FaultNone) || s.Code == codeOf(s.Kind, flaky, FaultNone))
	}
	for i := range all {
		if x, ok := factor(&all[i]); ok {
			factors[key(&all[i])] = append(factors[key(&all[i])], x)
		}
	}
	same := func(a, b float64) bool { return math.Abs(a-b) <= limitOf("slow_share")/2 }
	usual := map[string]float64{}
	for k, list := range factors {
		most := 0
		for _, x := range list {
			n := 0
			for _, y := range list {
				if same(x, y) {
					n++
				}
			}
			if n > most {
				most, usual[k] = n, x
			}
		}
	}
	groups := map[string][]Suspect{}
	for _, s := range all {
		if x, ok := factor(&s); ok && same(x, usual[key(&s)]) {
			groups[key(&s)] = append(groups[key(&s)], s)
		} else {
			kept = append(kept, s)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(groups)) {
		list := groups[k]
		s := list[0]
		s.Node, s.Partners, s.Looks = "", nil, 0
		for _, x := range list {
			s.Partners, s.Looks = append(s.Partners, x.Node), s.Looks+x.Looks
		}
		slices.Sort(s.Partners)
		if s.Partners = slices.Compact(s.Partners); !isGroup(len(s.Partners), nodes) {
			kept = append(kept, list...)
			continue
		}
		s.Doubt, s.Confidence = true, min(s.Confidence, doubtConfidence)
		s = s.explain(fmt.Sprintf("%s: %d nodes by about the same factor: %s", s.Text, len(s.Partners), listed(s.Partners)))
		s.Do = "Compare hardware, firmware and settings of these nodes with those of the others: they may be another delivery."
		kept = append(kept, s)
	}
	return kept
}
