package sweep

import "slices"

// planesOf returns the planes of a fleet: interfaces of the same name, or in the same subnet. Its
// name is that of its interfaces, or its subnet if they have different names.
func planesOf(f *fleet) []plane {
	var planes []plane
	byName, bySubnet := map[string]int{}, map[string]int{}
	parent := []int{}
	find := func(i int) int {
		for parent[i] != i {
			i = parent[i]
		}
		return i
	}
	key := func(seen map[string]int, name string) int {
		if k, ok := seen[name]; ok {
			return find(k)
		}
		seen[name] = len(parent)
		parent = append(parent, len(parent))
		return seen[name]
	}
	each := func(visit func(i int32, pl Plane, root int)) {
		for _, i := range f.alive() {
			for _, pl := range f.nodes[i].Planes {
				root := key(byName, pl.Name)
				if pl.Address.IsValid() && pl.Address.Bits() < pl.Address.Addr().BitLen() {
					subnet := key(bySubnet, pl.Address.Masked().String())
					parent[subnet] = root
				}
				visit(i, pl, find(root))
			}
		}
	}
	each(func(int32, Plane, int) {})
	at := map[int]int{}
	each(func(i int32, pl Plane, root int) {
		k, ok := at[find(root)]
		if !ok {
			k = len(planes)
			at[find(root)] = k
			planes = append(planes, plane{name: pl.Name, has: make([]bool, len(f.nodes)), mtu: make([]int, len(f.nodes))})
		}
		p := &planes[k]
		if p.name != pl.Name && pl.Address.IsValid() {
			p.name = pl.Address.Masked().String()
		}
		if !p.has[i] {
			p.count++
		}
		p.has[i], p.mtu[i] = true, pl.MTU
		p.speeds = append(p.speeds, pl.Speed)
	})
	return planes
}

// plane is a plane of the cluster.
type plane struct {
	name   string
	has    []bool // by node
	mtu    []int  // by node
	count  int    // nodes that have it
	speeds []int
}

// commonest returns the most frequent number, the larger one of two; and how often it occurs.
func commonest(numbers []int) (most, times int) {
	count := map[int]int{}
	for _, n := range numbers {
		count[n]++
	}
	for n, c := range count {
		if c > times || c == times && n > most {
			most, times = n, c
		}
	}
	return most, times
}

// newTCPPlan tests the bandwidth of pairs on each plane, both ways, and then rings of nodes.
func newTCPPlan(f *fleet, o PlanOptions) Plan {
	planes := slices.DeleteFunc(planesOf(f), func(p plane) bool { return !o.wants(p.name) || p.count < 2 })
	if o.NoStream && !o.NoRing {
		return newGroupPlan(f, o, ringTests(o, planes, nil), ringSizes(o, f))
	}
	var tests []series
	for i, pl := range planes {
		speed, _ := commonest(pl.speeds)
		tests = append(tests, series{
			task:     Task{Stage: StageTCP, Kind: KindStream, Plane: pl.name, Flows: o.Flows, Size: o.size(KindStream), Repeats: o.Repeats, Time: o.Time, Limit: o.limit()},
			directed: true, takes: pl.has, speed: speed, family: i,
		})
	}
	p := newPairPlan(f, o, tests)
	p.addTurns(p.matchings(o.Matchings), true, indexes(tests)...)
	c := &chain{f: f, plans: []Plan{p}}
	if !o.NoRing {
		c.later = append(c.later, func() Plan { return newGroupPlan(f, o, ringTests(o, planes, p.Fleet()), ringSizes(o, f)) })
	}
	return c
}

// newRDMAPlan tests bandwidth, both ways, and latency of pairs on each rail.
func newRDMAPlan(f *fleet, o PlanOptions) Plan {
	rails := map[string]*plane{}
	var names []string
	for i, n := range f.nodes {
		for _, r := range n.Rails {
			if !o.wants(r.Name) {
				continue
			}
			if rails[r.Name] == nil {
				rails[r.Name] = &plane{has: make([]bool, len(f.nodes))}
				names = append(names, r.Name)
			}
			rails[r.Name].has[i] = true
			rails[r.Name].speeds = append(rails[r.Name].speeds, r.Speed)
		}
	}
	var tests []series
	for _, name := range names {
		speed, _ := commonest(rails[name].speeds)
		t := Task{Stage: StageRDMA, Kind: KindWrite, Plane: name, Flows: o.Flows, Size: o.size(KindWrite), Repeats: o.Repeats, Time: o.Time, Limit: o.limit()}
		tests = append(tests, series{task: t, directed: true, takes: rails[name].has, speed: speed, family: len(tests)})
		t.Kind, t.Size, t.Flows = KindLatency, o.size(KindLatency), 1
		tests = append(tests, series{task: t, takes: rails[name].has, speed: speed, family: len(tests)})
	}
	p := newPairPlan(f, o, tests)
	p.addTurns(p.matchings(o.Matchings), true, indexes(tests)...)
	return p
}

// newNCCLPlan runs collectives on pairs of nodes. All collectives are one family: a node that is
// slow in one of them is not confirmed again for the next.
func newNCCLPlan(f *fleet, o PlanOptions) Plan {
	var tests []series
	for _, op := range o.Ops {
		t := Task{Stage: StagePairs, Kind: KindNCCL, Op: op, Size: o.size(KindNCCL), Repeats: o.Repeats, Time: o.Time, Limit: o.limit()}
		tests = append(tests, series{task: t})
		if o.NoP2P {
			t.NoP2P = true
			tests = append(tests, series{task: t})
		}
	}
	p := newPairPlan(f, o, tests)
	p.addTurns(p.matchings(o.Matchings), false, indexes(tests)...)
	return p
}

func indexes[T any](list []T) []int {
	all := make([]int, len(list))
	for i := range all {
		all[i] = i
	}
	return all
}
