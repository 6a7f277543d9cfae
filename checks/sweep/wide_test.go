package sweep

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// all gives every node of a world the same value.
func all(w *world, v float64) map[string]float64 {
	m := map[string]float64{}
	for _, n := range w.nodes {
		m[n.Name] = v
	}
	return m
}

// Two nodes have no third one to compare with. A number that no healthy network has is a doubt about the pair.
func TestTwoNodes(t *testing.T) {
	t.Parallel()
	reach := func(what string) []string {
		return []string{"doubt gpu00000 gpu00001 eth0 sweep.reach." + what, "doubt gpu00000 gpu00001 eth1 sweep.reach." + what}
	}
	rails := func(what string) []string {
		return []string{"doubt gpu00000 gpu00001 mlx5_0:1 sweep.rdma." + what, "doubt gpu00000 gpu00001 mlx5_1:1 sweep.rdma." + what}
	}
	for _, tc := range []struct {
		name  string
		stage Stage
		o     PlanOptions
		set   func(*world)
		want  []string
		text  string // of the first suspect
	}{
		{"lose 9 %", StageReach, PlanOptions{}, func(w *world) { w.loss = all(w, 0.09) }, reach("loss"), "healthy pairs lose 0.005 %"},
		{"lose 2 % on one plane", StageReach, PlanOptions{}, func(w *world) { w.loss = map[string]float64{name(1) + "/eth1": 0.02} }, reach("loss")[1:], ""},
		{"lose 0.05 %", StageReach, PlanOptions{}, func(w *world) { w.loss = all(w, 0.0005) }, nil, ""},
		{"answer after 50 ms", StageReach, PlanOptions{}, func(w *world) { w.delay = all(w, 1.0/51) }, slices.Sorted(slices.Values(slices.Repeat(reach("latency"), 2))), "want about 10 ms, got 50"},
		{"answer after 4 ms", StageReach, PlanOptions{}, func(w *world) { w.delay = all(w, 1.0/5) }, nil, ""},
		{"slow rails", StageRDMA, PlanOptions{}, func(w *world) { w.factor = all(w, 0.5) }, rails("slow"), "want about 320 Gb/s, got 19"},
		{"a port of half the rate", StageRDMA, PlanOptions{}, func(w *world) {
			for k := range w.nodes[1].Rails {
				w.nodes[1].Rails[k].Speed = 200
			}
		}, nil, ""},
		{"late rails", StageRDMA, PlanOptions{}, func(w *world) { w.delay = all(w, 1.0/51) }, rails("latency"), "want about 20 us, got 5"},
		{"below the floor of the site", StageTCP, PlanOptions{NoRing: true, Planes: []string{"eth0"}, Floors: []Floor{{Kind: KindStream, Value: 90}}}, func(w *world) { w.factor = all(w, 0.5) },
			[]string{"doubt gpu00000 gpu00001 eth0 sweep.tcp.slow"}, "want about 90 Gb/s, got 4"},
	} {
		for seed := range uint64(5) {
			w := newWorld(2, 0, seed)
			tc.set(w)
			suspects := w.drive(t, w.plan(t, tc.stage, PlanOptions{Seed: seed, NoRing: tc.o.NoRing, Planes: tc.o.Planes, Floors: tc.o.Floors}))
			for i, s := range suspects {
				suspects[i].Node, suspects[i].Peer = min(s.Node, s.Peer), max(s.Node, s.Peer)
			}
			if diff := cmp.Diff(tc.want, briefs(suspects), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s, seed %d (-want +got):\n%s%+v", tc.name, seed, diff, suspects)
			} else if len(suspects) > 0 && !strings.Contains(suspects[0].Text, tc.text) {
				t.Errorf("%s, seed %d: text %q, want %q", tc.name, seed, suspects[0].Text, tc.text)
			}
		}
	}
}

// A fault that all nodes share accuses no node, and a note reports it. A node that is far worse is found.
func TestWholeFleet(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		stage Stage
		set   func(*world)
		want  []string
		notes []string
	}{
		{"nothing", StageReach, func(*world) {}, nil, nil},
		{"loses 0.01 %", StageReach, func(w *world) { w.loss = all(w, 0.0001) }, nil, nil},
		{"loses 2 %", StageReach, func(w *world) { w.loss = all(w, 0.02) }, nil, []string{"echo eth0: lost", "echo eth1: lost"}},
		{"loses 2 %, one node 30 %", StageReach, func(w *world) {
			w.loss = all(w, 0.02)
			w.loss[name(1)+"/eth0"] = 0.3
		}, []string{"gpu00001 eth0 sweep.reach.loss"}, []string{"echo eth0: lost", "echo eth1: lost"}},
		{"answers after 50 ms", StageReach, func(w *world) { w.delay = all(w, 1.0/51) }, nil,
			[]string{"echo eth0: want at most 10 ms", "connect eth0: want at most 10 ms", "echo eth1: want at most 10 ms", "connect eth1: want at most 10 ms"}},
		{"healthy rails", StageRDMA, func(*world) {}, nil, nil},
		{"slow rails", StageRDMA, func(w *world) { w.factor = all(w, 0.5) }, nil,
			[]string{"write_bw mlx5_0:1: want at least 320 Gb/s", "write_bw mlx5_1:1: want at least 320 Gb/s"}},
	} {
		for _, n := range []int{3, 4, 8, 33, 70} {
			t.Run(fmt.Sprintf("%s/%d", tc.name, n), func(t *testing.T) {
				t.Parallel()
				for seed := range uint64(3) {
					w := newWorld(n, 0, seed)
					tc.set(w)
					p := w.plan(t, tc.stage, PlanOptions{Seed: seed})
					suspects := w.drive(t, p)
					if diff := cmp.Diff(tc.want, briefs(suspects), cmpopts.EquateEmpty()); diff != "" {
						t.Errorf("seed %d (-want +got):\n%s%+v", seed, diff, suspects)
					}
					var notes []string
					for _, d := range p.Fleet() {
						if text := cmpText(d.Note, d.Remark); text != "" {
							notes = append(notes, fmt.Sprintf("%s %s: %s", d.Kind, d.Plane, text))
						}
					}
					missing := len(notes) != len(tc.notes)
					for _, want := range tc.notes {
						kind, text, _ := strings.Cut(want, ": ")
						found := false
						for _, got := range notes {
							found = found || strings.HasPrefix(got, kind) && strings.Contains(got, text)
						}
						missing = missing || !found
					}
					if missing {
						t.Errorf("seed %d: notes %q, want %q", seed, notes, tc.notes)
					}
				}
			})
		}
	}
}
