package sweep

import (
	"fmt"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/conf/spell"
)

// NewPlan returns the plan of a stage. It tests the nodes in the order that seed gives; head and tail
// of the list are the first and the last node.
func NewPlan(stage Stage, nodes []Node, o PlanOptions) (Plan, error) {
	if err := o.setDefaults(stage); err != nil {
		return nil, fmt.Errorf("plan of stage %s: %w", stage, err)
	}
	f, err := newFleet(stage, nodes, o)
	if err != nil {
		return nil, fmt.Errorf("plan of stage %s: %w", stage, err)
	}
	switch stage {
	case StageNode:
		return newNodePlan(f, o), nil
	case StageReach:
		return newReachPlan(f, o), nil
	case StageTCP:
		return newTCPPlan(f, o), nil
	case StageRDMA:
		return newRDMAPlan(f, o), nil
	case StagePairs:
		return newNCCLPlan(f, o), nil
	case StageGroups:
		without := f.leaveOut()
		if n := len(f.alive()); n > 2 && n <= pairedGroups && (len(o.GroupSizes) == 0 || slices.Contains(o.GroupSizes, 2)) {
			return newFewGroups(f, o, without), nil
		}
		p := newGroupPlan(f, o, groupTests(f, o), o.GroupSizes)
		p.found, p.notes = without.suspects, without.remarks
		return p, nil
	}
	names := make([]string, 0, len(Stages))
	for _, s := range Stages {
		names = append(names, string(s))
	}
	return nil, fmt.Errorf("unknown stage %q: want %s", stage, spell.OneOf(string(stage), names))
}

// newReachPlan tests whether nodes reach each other on each plane: echo, MTU, connect, and names.
func newReachPlan(f *fleet, o PlanOptions) Plan {
	planes, unmet := f.planes(&o, KindConnect)
	var tests []series
	var onPlanes []int
	for i := range planes {
		pl := &planes[i]
		if pl.count < 2 {
			continue
		}
		for _, kind := range []Kind{KindEcho, KindMTU, KindConnect} {
			t := Task{Stage: StageReach, Kind: kind, Plane: pl.name, Limit: o.Setup}
			if kind == KindEcho {
				t.Count = int(limitOf("echo_datagrams"))
			}
			switch kind {
			case KindEcho:
				t.Repeats = 1
			case KindConnect:
				t.Repeats = connects
			}
			onPlanes = append(onPlanes, len(tests))
			tests = append(tests, series{task: t, directed: kind != KindEcho, ports: pl, family: i})
		}
	}
	names := len(tests)
	tests = append(tests, series{task: Task{Stage: StageReach, Kind: KindName, Repeats: 1, Limit: o.Setup}, directed: true, family: len(planes)})
	p := newPairPlan(f, o, tests)
	p.remarks = append(unmet, strays(f, planes, KindConnect)...)
	for i := range planes {
		p.add(comparePlane(f, &planes[i]))
	}
	addEnds(p, tests)
	if o.Ends {
		return p
	}
	p.addTurns(func(nodes int) int {
		if nodes > o.AllPairs {
			return o.Degree
		}
		return nodes
	}, false, onPlanes...)
	p.addTurns(func(int) int { return o.Degree }, true, names)
	return p
}

// connects is the number of connections of a test. The fastest one counts: a node that is busy for a
// moment is not slow.
const connects = 10

// addEnds tests the first node of the list with the last one, both ways. With the option Ends, and
// up to AllPairs nodes, each other node is tested with both; beyond that some are.
func addEnds(p *pairPlan, tests []series) {
	if len(p.f.nodes) < 2 {
		return
	}
	head, tail := int32(0), int32(len(p.f.nodes)-1)
	pairs := [][2]int32{{head, tail}}
	if p.o.Ends {
		others := p.f.shuffled()
		others = slices.DeleteFunc(others, func(i int32) bool { return i == head || i == tail })
		for _, i := range others[:min(len(others), p.o.AllPairs)] {
			pairs = append(pairs, [2]int32{head, i}, [2]int32{i, tail})
		}
	}
	for _, pair := range pairs {
		for t := range tests {
			p.queue = append(p.queue, request{test: t, from: pair[0], to: pair[1]})
			if tests[t].directed && pair == pairs[0] {
				p.queue = append(p.queue, request{test: t, from: pair[1], to: pair[0]})
			}
		}
	}
}

// newTCPPlan tests the bandwidth of pairs on each plane, both ways, and then rings of nodes.
func newTCPPlan(f *fleet, o PlanOptions) Plan {
	planes, unmet := f.planes(&o, KindStream)
	planes = slices.DeleteFunc(planes, func(p plane) bool { return p.count < 2 })
	if o.NoStream && !o.NoRing {
		p := newGroupPlan(f, o, ringTests(o, planes, nil), ringSizes(o, f))
		p.notes = unmet
		return p
	}
	var tests []series
	for i, pl := range planes {
		tests = append(tests, series{
			task:     Task{Stage: StageTCP, Kind: KindStream, Plane: pl.name, Flows: o.Flows, Size: o.size(KindStream), Repeats: o.Repeats, Time: o.Time, Limit: o.limit()},
			directed: true, ports: &planes[i], family: i,
		})
	}
	p := newPairPlan(f, o, tests)
	p.remarks = append(unmet, strays(f, planes, KindStream)...)
	for i := range planes {
		p.add(compareSpeeds(f, &planes[i], KindStream))
	}
	p.addTurns(p.matchings, true, indexes(tests)...)
	c := &chain{f: f, plans: []Plan{p}}
	if !o.NoRing {
		c.later = append(c.later, func() Plan { return newGroupPlan(f, o, ringTests(o, planes, p.Fleet()), ringSizes(o, f)) })
	}
	return c
}

// ringTests returns the rings of all planes. An all-reduce moves twice its data over each link: with
// rates, those of pairs, it takes no longer than a repeat.
func ringTests(o PlanOptions, planes []plane, rates []Distribution) (tests []series) {
	for i, pl := range planes {
		size := o.size(KindRing)
		for _, d := range rates {
			if d.Kind == KindStream && d.Plane == pl.name && d.Median > 0 && o.Sizes[KindRing] == 0 {
				size = min(size, max(leastRing, int64(d.Median*1e9/8*o.Time.Seconds()/2)))
			}
		}
		tests = append(tests, series{task: Task{
			Stage: StageTCP, Kind: KindRing, Plane: pl.name, Size: size, Flows: 1, Repeats: o.Repeats, Time: o.Time, Limit: o.limit(),
		}, ports: &planes[i]})
	}
	return tests
}

// leastRing is the least data of a ring, in bytes.
const leastRing = 64 << 10

// ringSizes returns the sizes of rings. One ring of thousands of nodes is as slow as its slowest
// link, and long to set up: beyond 1,024 nodes only rings of 16 run.
func ringSizes(o PlanOptions, f *fleet) []int {
	if len(o.RingSizes) > 0 {
		return o.RingSizes
	}
	if len(f.alive()) > 1024 {
		return []int{16}
	}
	return []int{16, 0}
}

// newRDMAPlan tests bandwidth, both ways, and latency of pairs on each rail.
func newRDMAPlan(f *fleet, o PlanOptions) Plan {
	rails := railsOf(f.nodes, f.alive())
	unmet := f.unmet(&o, KindWrite, slices.Values(rails))
	rails = slices.DeleteFunc(rails, func(r *plane) bool { return !o.wants(r) })
	var tests []series
	for _, r := range rails {
		t := Task{Stage: StageRDMA, Kind: KindWrite, Plane: r.name, Flows: o.Flows, Size: o.size(KindWrite), Repeats: o.Repeats, Time: o.Time, Limit: o.limit()}
		tests = append(tests, series{task: t, directed: true, ports: r, family: len(tests)})
		t.Kind, t.Size, t.Flows = KindLatency, o.size(KindLatency), 1
		tests = append(tests, series{task: t, ports: r, family: len(tests)})
	}
	p := newPairPlan(f, o, tests)
	p.remarks = append(unmet, f.bare...)
	seen := map[string]bool{}
	for _, r := range rails {
		if p.add(compareSpeeds(f, r, KindWrite)); seen[r.name] {
			continue
		}
		seen[r.name] = true
		p.add(compareLayers(f, Suspect{Plane: r.name, Kind: KindWrite, Code: codeOf(KindWrite, broken, FaultError)}, func(i int32) string {
			if k := slices.IndexFunc(f.nodes[i].Rails, func(x Rail) bool { return x.Name == r.name }); k >= 0 {
				return f.nodes[i].Rails[k].Layer
			}
			return ""
		}))
	}
	p.addTurns(p.matchings, true, indexes(tests)...)
	return p
}

// newNCCLPlan runs collectives on pairs of nodes. All collectives are one family: a node that is
// slow in one of them is not confirmed again for the next.
func newNCCLPlan(f *fleet, o PlanOptions) Plan {
	without := f.leaveOut()
	var tests []series
	fabrics := fabricsOf(f.nodes, f.alive())
	for _, op := range o.Ops {
		t := Task{Stage: StagePairs, Kind: KindNCCL, Rails: o.Planes, Op: op, Size: o.size(KindNCCL), Repeats: o.Repeats, Time: o.Time, Limit: o.limit()}
		for _, fabric := range fabrics {
			tests = append(tests, series{task: t, ports: fabric})
		}
		if t.NoP2P = o.NoP2P; t.NoP2P {
			for _, fabric := range fabrics {
				tests = append(tests, series{task: t, ports: fabric})
			}
		}
	}
	p := newPairPlan(f, o, tests)
	p.add(without)
	p.add(compareLayers(f, Suspect{Kind: KindNCCL, Code: codeOf(KindNCCL, broken, FaultNetwork)}, func(i int32) string {
		layer, _ := f.nodes[i].fabric()
		return layer
	}))
	for _, fabric := range fabrics {
		p.add(compareSpeeds(f, fabric, KindNCCL))
	}
	p.addTurns(p.matchings, true, indexes(tests)...)
	return p
}
