package sweep

import (
	"fmt"
	"slices"
)

// connects is the number of connections of a test. The fastest one counts: a node that is busy for a
// moment is not slow.
const connects = 10

// newReachPlan tests whether nodes reach each other on each plane: echo, MTU, connect, and names.
func newReachPlan(f *fleet, o PlanOptions) Plan {
	planes := slices.DeleteFunc(planesOf(f.nodes, f.alive()), func(p plane) bool { return !o.wants(p.name) })
	var tests []series
	var onPlanes []int
	for i, pl := range planes {
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
			tests = append(tests, series{task: t, directed: kind != KindEcho, takes: pl.has, family: i})
		}
	}
	names := len(tests)
	tests = append(tests, series{task: Task{Stage: StageReach, Kind: KindName, Repeats: 1, Limit: o.Setup}, directed: true, family: len(planes)})
	p := newPairPlan(f, o, tests)
	p.given = comparePlanes(f, planes)
	addEnds(p, tests)
	if o.Ends {
		return p
	}
	count := len(p.order)
	if count > o.AllPairs {
		count = o.Degree
	}
	rounds := pickRounds(f.rng, len(p.order), count)
	p.addTurns(rounds, false, onPlanes...)
	p.addTurns(rounds[:min(len(rounds), o.Degree)], true, names)
	return p
}

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

// comparePlanes finds nodes without a plane, or with another MTU, that most nodes of their model
// have.
func comparePlanes(f *fleet, planes []plane) (all []Suspect) {
	models := map[string][]int32{}
	for _, i := range f.alive() {
		models[f.nodes[i].Model] = append(models[f.nodes[i].Model], i)
	}
	for _, pl := range planes {
		for _, list := range models {
			if len(list) < 3 {
				continue // two nodes: it is not known which one is right
			}
			var with, without []int32
			var sizes []int
			for _, i := range list {
				if pl.has[i] {
					with, sizes = append(with, i), append(sizes, pl.mtu[i])
				} else {
					without = append(without, i)
				}
			}
			if mostly(len(with), len(list)) {
				for _, i := range without {
					all = append(all, planeSuspect(f, i, pl, "sweep.reach.plane", len(with), len(list),
						fmt.Sprintf("%s is missing or has no address: %d of %d nodes have it", pl.name, len(with), len(list))))
				}
			}
			mtu, times := commonest(sizes)
			if !mostly(times, len(sizes)) || len(sizes) < 3 {
				continue
			}
			for _, i := range with {
				if pl.mtu[i] != mtu {
					s := planeSuspect(f, i, pl, "sweep.reach.mtu", times, len(sizes),
						fmt.Sprintf("%s: MTU: want %d as on %d of %d nodes, got %d", pl.name, mtu, times, len(sizes), pl.mtu[i]))
					s.Value, s.Expect, s.Unit = float64(pl.mtu[i]), float64(mtu), "bytes"
					all = append(all, s)
				}
			}
		}
	}
	return all
}

// mostly reports whether so many nodes agree that the others are the exception: two of three.
func mostly(part, all int) bool {
	return float64(part) >= limitOf("agree_share")*float64(all) && part < all
}

func planeSuspect(f *fleet, i int32, pl plane, code string, agree, of int, text string) Suspect {
	s := Suspect{
		Node: f.name(i), Plane: pl.name, Stage: StageReach, Kind: KindMTU, Code: code, Confidence: float64(agree) / float64(of+1),
		Partners: []string{},
	}
	return s.explain(text)
}
