package sweep

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// difference is how the ports of nodes differ from those of most.
type difference struct {
	suspects []Suspect
	remarks  []Distribution
}

// compare compares a number of nodes with those of the same sort. A node with another one than most is a
// suspect, in doubt unless nearly all agree and few differ alike. A group of such nodes is a remark, and so is each difference if
// no number is that of most. text describes a difference, "" if it does not count.
func (d *difference) compare(f *fleet, s Suspect, nodes []int32, sort func(int32) string, number func(int32) int, text func(got, want, times, of int) string) {
	sorts := map[string][]int32{}
	for _, i := range nodes {
		sorts[sort(i)] = append(sorts[sort(i)], i)
	}
	for _, key := range slices.Sorted(maps.Keys(sorts)) {
		list := sorts[key]
		var all []int
		others := map[int][]int32{}
		for _, i := range list {
			all = append(all, number(i))
			others[number(i)] = append(others[number(i)], i)
		}
		want, times := commonest(all)
		known := len(list) >= 3 && mostly(times, len(list)) // of two nodes it is not known which one is right
		for _, got := range slices.Sorted(maps.Keys(others)) {
			t := text(got, want, times, len(list))
			switch odd := others[got]; {
			case got == want || t == "":
			case !known || isGroup(len(odd), len(list)):
				names := f.names(odd)
				d.remarks = append(d.remarks, Distribution{Stage: f.stage, Kind: s.Kind, Plane: s.Plane, Unit: unitOf(s.Kind), Remark: t + " on " + listed(names), Nodes: strings.Join(names, ",")})
			default:
				for _, i := range odd {
					x := s
					x.Node, x.Stage, x.Confidence = f.name(i), f.stage, float64(times)/float64(len(list)+1)
					if x.Unit != "" {
						x.Value, x.Expect = float64(got), float64(want)
					}
					if x.Doubt = float64(times) < limitOf("sure_share")*float64(len(list)) || len(odd) >= int(limitOf("sure_nodes")); x.Doubt {
						x.Confidence = min(x.Confidence, doubtConfidence)
					}
					d.suspects = append(d.suspects, x.explain(t))
				}
			}
		}
	}
}

// comparePlane compares whether nodes have a plane with those of their model, and its MTU with those in the
// same subnet.
func comparePlane(f *fleet, pl *plane) (all difference) {
	model := func(i int32) string { return f.nodes[i].Model }
	missing := Suspect{Plane: pl.name, Kind: KindMTU, Code: "sweep.reach.plane"}
	all.compare(f, missing, f.alive(), model, func(i int32) int { return map[bool]int{true: 1}[pl.has[i]] }, func(got, want, times, of int) string {
		if got > want {
			return ""
		}
		return fmt.Sprintf("%s is missing or has no address: %d of %d nodes have it", pl.name, times, of)
	})
	subnet := func(i int32) string {
		if pl.subnet[i].IsValid() {
			return pl.subnet[i].String()
		}
		return "\x00" + model(i)
	}
	mtu := Suspect{Plane: pl.name, Kind: KindMTU, Code: "sweep.reach.mtu", Unit: "bytes"}
	all.compare(f, mtu, pl.nodes(), subnet, func(i int32) int { return pl.mtu[i] }, func(got, want, times, of int) string {
		return fmt.Sprintf("%s: MTU: want %d as on %d of %d nodes, got %d", pl.name, want, times, of, got)
	})
	return all
}

// compareSpeeds compares the speed of the ports of a plane among nodes of a model. A port that is faster is
// no fault.
func compareSpeeds(f *fleet, pl *plane, kind Kind) (all difference) {
	known := slices.DeleteFunc(pl.nodes(), func(i int32) bool { return pl.speed[i] == 0 })
	s := Suspect{Plane: pl.name, Kind: kind, Code: codeOf(kind, slow, FaultNone), Unit: "Gb/s"}
	all.compare(f, s, known, func(i int32) string { return f.nodes[i].Model }, func(i int32) int { return pl.speed[i] / 1000 }, func(got, want, times, of int) string {
		if got > want {
			return ""
		}
		return fmt.Sprintf("%s: speed of the link: want %d Gb/s as on %d of %d nodes, got %d Gb/s", cmpText(pl.name, "all RDMA ports"), want, times, of, got)
	})
	return all
}

// compareLayers compares the link layer of an RDMA port, or of all of a node, among nodes of a model. A port
// is not suspicious if most nodes lack it.
func compareLayers(f *fleet, s Suspect, layerOf func(i int32) string) (all difference) {
	layers := []string{"none", layerEthernet, layerInfiniBand}
	all.compare(f, s, f.alive(), func(i int32) string { return f.nodes[i].Model }, func(i int32) int { return max(slices.Index(layers, layerOf(i)), 0) }, func(got, want, times, of int) string {
		if want == 0 {
			return ""
		}
		return fmt.Sprintf("%s: link layer: want %s as on %d of %d nodes, got %s", cmpText(s.Plane, "all RDMA ports"), layers[want], times, of, layers[got])
	})
	return all
}

// leaveOut excludes the nodes without GPUs from a stage that needs them, if others have some. One or two of
// many are in doubt: their GPUs may be lost.
func (f *fleet) leaveOut() (d difference) {
	alive := f.alive()
	none := slices.DeleteFunc(slices.Clone(alive), func(i int32) bool { return f.nodes[i].GPUs > 0 })
	if len(none) == 0 || len(none) == len(alive) {
		return d
	}
	names := f.names(none)
	text := fmt.Sprintf("no GPU: %d of %d nodes have some", len(alive)-len(none), len(alive))
	for _, i := range none {
		f.out[i] = true
		s := Suspect{Node: f.name(i), Stage: f.stage, Kind: KindNCCL, Code: codeOf(KindNCCL, unable, FaultUnable), Confidence: doubtConfidence, Doubt: true}
		d.suspects = append(d.suspects, s.explain(text))
	}
	if isGroup(len(none), len(alive)) {
		remark := Distribution{Stage: f.stage, Kind: KindNCCL, Unit: unitOf(KindNCCL), Remark: text + ", and not " + listed(names), Nodes: strings.Join(names, ",")}
		return difference{remarks: []Distribution{remark}}
	}
	return d
}

// nodes returns the nodes that have a plane.
func (p *plane) nodes() (list []int32) {
	for i, has := range p.has {
		if has {
			list = append(list, int32(i))
		}
	}
	return list
}

// isGroup reports whether so many nodes of all that differ alike are a group, such as another delivery.
func isGroup(odd, all int) bool {
	return odd >= leastGroup && float64(all-odd) < limitOf("sure_share")*float64(all)
}

// mostly reports whether so many nodes agree that the others are the exception: two of three.
func mostly(part, all int) bool {
	return float64(part) >= limitOf("agree_share")*float64(all) && part < all
}
