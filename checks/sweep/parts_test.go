package sweep

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// older makes the last nodes of a world another delivery.
func (w *world) older(count int, set func(n *Node)) {
	for i := len(w.nodes) - count; i < len(w.nodes); i++ {
		set(&w.nodes[i])
	}
}

// isOld returns whether older has changed a node.
func (w *world) isOld(count int) func(name string) bool {
	return func(n string) bool {
		return slices.IndexFunc(w.nodes, func(x Node) bool { return x.Name == n }) >= len(w.nodes)-count
	}
}

func roce(n *Node) {
	n.Model = "A100"
	for k := range n.Rails {
		n.Rails[k].Layer = layerEthernet
	}
}

// layerOf is the network that NCCL and RDMA use.
func layerOf(n *Node, t Task) string {
	switch {
	case t.Kind != KindNCCL && t.Kind != KindWrite && t.Kind != KindLatency:
		return ""
	case len(n.Rails) == 0:
		return "none"
	}
	return n.Rails[0].Layer
}

// Networks that are separate accuse no node: the nodes of each work with each other.
func TestSeparateNetworks(t *testing.T) {
	t.Parallel()
	separateNetworks(t, 3)
}

func separateNetworks(t *testing.T, seeds int) {
	t.Helper()
	for _, tc := range []struct {
		name   string
		nodes  int
		old    int
		leaf   int
		set    func(*world, int)
		notes  []Stage // that have a remark
		doubts []Stage // that have a doubt about the nodes
	}{
		{"RoCE beside InfiniBand", 100, 20, 0, func(w *world, old int) {
			w.older(old, roce)
			w.apart = layerOf
		}, nil, nil},
		{"InfiniBand of its own", 100, 20, 0, func(w *world, old int) {
			w.older(old, func(n *Node) { n.Model = "A100" })
			w.apart = func(n *Node, t Task) string {
				return layerOf(n, t) + map[bool]string{layerOf(n, t) != "": n.Model}[true]
			}
		}, []Stage{StageRDMA, StagePairs, StageGroups}, nil},
		{"InfiniBand of its own, the same model", 100, 20, 0, func(w *world, old int) {
			isOld := w.isOld(old)
			w.apart = func(n *Node, t Task) string {
				return layerOf(n, t) + map[bool]string{layerOf(n, t) != "": fmt.Sprint(isOld(n.Name))}[true]
			}
		}, nil, []Stage{StageRDMA, StagePairs}},
		{"InfiniBand of its own, known leaves", 96, 24, 8, func(w *world, old int) {
			isOld := w.isOld(old)
			w.apart = func(n *Node, t Task) string {
				return layerOf(n, t) + map[bool]string{layerOf(n, t) != "": fmt.Sprint(isOld(n.Name))}[true]
			}
		}, nil, []Stage{StageRDMA, StagePairs}},
		{"half", 80, 40, 0, func(w *world, old int) {
			isOld := w.isOld(old)
			w.apart = func(n *Node, t Task) string {
				return layerOf(n, t) + map[bool]string{layerOf(n, t) != "": fmt.Sprint(isOld(n.Name))}[true]
			}
		}, nil, []Stage{StageRDMA, StagePairs}},
		{"no rails", 100, 20, 0, func(w *world, old int) {
			w.older(old, func(n *Node) { n.Model, n.Rails = "L4", nil })
			w.apart = layerOf
		}, nil, nil},
		{"subnets that are not routed", 100, 20, 0, func(w *world, old int) {
			for i := len(w.nodes) - old; i < len(w.nodes); i++ {
				w.readdress(i, 0, 99)
			}
			w.unrouted = true
		}, []Stage{StageReach, StageTCP}, nil},
		{"subnets that are not routed, all pairs", 40, 10, 0, func(w *world, old int) {
			for i := len(w.nodes) - old; i < len(w.nodes); i++ {
				w.readdress(i, 0, 99)
			}
			w.unrouted = true
		}, []Stage{StageReach, StageTCP}, nil},
		{"a few nodes", 30, 3, 0, func(w *world, old int) {
			w.older(old, func(n *Node) { n.Model = "A100" })
			w.apart = func(n *Node, t Task) string {
				return layerOf(n, t) + map[bool]string{layerOf(n, t) != "": n.Model}[true]
			}
		}, []Stage{StageRDMA, StagePairs, StageGroups}, nil},
	} {
		for _, bad := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", tc.name, bad), func(t *testing.T) {
				t.Parallel()
				for _, stage := range []Stage{StageReach, StageTCP, StageRDMA, StagePairs, StageGroups} {
					if tc.name == "half" && stage == StageGroups {
						continue // of equal halves groups do not know which one is a network of its own
					}
					for seed := range uint64(seeds) {
						w := newWorld(tc.nodes, tc.leaf, seed)
						tc.set(w, tc.old)
						var want []string
						if bad {
							w.fault = map[string]Fault{name(7): FaultRefused}
							want = []string{name(7)}
						}
						p := w.plan(t, stage, PlanOptions{Seed: seed, Ops: []string{"all_reduce", "all_gather"}})
						suspects := w.drive(t, p)
						var got []string
						doubted := false
						for _, s := range suspects {
							if s.Doubt && s.Node == "" && (stage == StageGroups || slices.Contains(tc.doubts, stage)) {
								doubted = true
								continue // of two nodes it is not known
							}
							if who := s.Node + s.Peer + strings.Join(s.Leaves, "-"); !slices.Contains(got, who) {
								got = append(got, who)
							}
						}
						if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
							t.Errorf("%s, seed %d, %d rounds (-want +got):\n%s%v", stage, seed, w.rounds, diff, briefs(suspects)[:min(len(suspects), 9)])
						}
						if stage != StageGroups && doubted != slices.Contains(tc.doubts, stage) {
							t.Errorf("%s, seed %d: want a doubt about the nodes, got %v", stage, seed, briefs(suspects))
						}
						remarks := slices.DeleteFunc(p.Fleet(), func(d Distribution) bool { return !strings.Contains(d.Remark, "separate networks? ") })
						if (len(remarks) > 0) != slices.Contains(tc.notes, stage) {
							t.Errorf("%s, seed %d: remarks %+v", stage, seed, remarks)
						}
					}
				}
			})
		}
	}
}

// A leaf switch that no other one reaches is the suspect, and none of its nodes.
func TestLeafAlone(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		leaves int
		stage  Stage
		want   string
	}{
		{8, StageRDMA, "doubt leaf1 mlx5_0:1 sweep.rdma.failed, doubt leaf1 mlx5_1:1 sweep.rdma.failed"}, {8, StagePairs, "doubt leaf1 sweep.nccl.hang"},
		{3, StagePairs, "doubt leaf1 sweep.nccl.hang"}, {16, StageTCP, "doubt leaf1 eth0 sweep.tcp.failed, doubt leaf1 eth1 sweep.tcp.failed"},
	} {
		for seed := range uint64(5) {
			w := newWorld(8*tc.leaves, 8, seed)
			w.apart = func(n *Node, _ Task) string { return map[bool]string{true: "apart"}[n.Leaf == "leaf1"] }
			got := briefs(w.drive(t, w.plan(t, tc.stage, PlanOptions{Seed: seed, NoRing: true, Ops: []string{"all_reduce"}})))
			if diff := cmp.Diff(tc.want, strings.Join(got, ", ")); diff != "" {
				t.Errorf("%v, seed %d (-want +got):\n%s", tc, seed, diff)
			}
		}
	}
}

// A sweep ends in few rounds, whatever its planes and faults are.
func TestEnds(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 3))
		n, rack := 16+rng.IntN(40), 5+rng.IntN(9)
		w := newWorld(n, rng.IntN(2)*rack, seed)
		w.unrouted = true
		for k := range w.nodes[0].Planes {
			if k > 0 || rng.IntN(3) == 0 {
				for i := range w.nodes {
					w.readdress(i, k, 100*k+i/rack)
				}
			}
		}
		w.fault, w.dies = map[string]Fault{}, map[string]int{}
		kinds := map[Stage][]Kind{StageReach: {KindEcho, KindMTU, KindConnect, KindName}, StageTCP: {KindStream}, StageRDMA: {KindWrite, KindLatency}, StagePairs: {KindNCCL}}
		for _, stage := range []Stage{StageReach, StageTCP, StageRDMA, StagePairs} {
			for range rng.IntN(4) {
				node, kind := name(rng.IntN(n)), kinds[stage][rng.IntN(len(kinds[stage]))]
				key := []string{node, node + "/eth1", node + "/receives", node + "/sends", node + "/eth1/receives", node + "/eth1/sends"}[rng.IntN(6)]
				w.fault[key+" "+string(kind)] = []Fault{FaultRefused, FaultSilent}[rng.IntN(2)]
			}
			if rng.IntN(3) == 0 {
				w.dies[name(rng.IntN(n))] = w.tasks + rng.IntN(2000)
			}
			w.drive(t, w.plan(t, stage, PlanOptions{Seed: seed, NoRing: true, Ops: []string{"all_reduce"}}))
			if w.rounds > 400 {
				t.Errorf("seed %d, stage %s: %d rounds", seed, stage, w.rounds)
			}
		}
	}
}

// Two nodes with the same fault pass with each other: that is no network of their own.
func TestSameFault(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		stage Stage
		kind  Kind
		want  string
	}{
		{StageRDMA, KindWrite, "doubt mlx5_0:1 sweep.rdma.failed"}, {StagePairs, KindNCCL, "doubt sweep.nccl.hang"}, {StageReach, KindName, "doubt sweep.reach.name"},
	} {
		for seed := range uint64(5) {
			w := newWorld(40, 0, seed)
			w.apart = func(n *Node, task Task) string {
				odd := n.Name == name(3) || n.Name == name(17) || tc.kind == KindName && n.Name > name(30)
				return map[bool]string{true: "apart"}[odd && task.Kind == tc.kind && task.Plane != "mlx5_1:1"]
			}
			p := w.plan(t, tc.stage, PlanOptions{Seed: seed, Ops: []string{"all_reduce"}})
			if got := briefs(w.drive(t, p)); len(got) != 1 || got[0] != tc.want {
				t.Errorf("%v, seed %d: %v %v, want %s", tc, seed, got, remarksOf(p), tc.want)
			}
		}
	}
}

// Many small networks do not accuse most nodes. A faulty node is found beside those of its own network, and
// in each network if routers connect them.
func TestManyNetworks(t *testing.T) {
	t.Parallel()
	manyNetworks(t, 3)
}

func manyNetworks(t *testing.T, seeds int) {
	t.Helper()
	for _, routed := range []bool{false, true} {
		for _, stage := range []Stage{StageReach, StageTCP} {
			for _, bad := range []bool{false, true} {
				for seed := range uint64(seeds) {
					w := newWorld(100, 0, seed)
					for i := range w.nodes {
						w.readdress(i, 1, 100+i/5)
					}
					w.unrouted = !routed
					var want, remarks []string
					if bad {
						w.fault = map[string]Fault{name(7) + "/eth1": FaultRefused}
						want = []string{name(7)}
					}
					if !routed {
						remarks = []string{map[Stage]string{StageReach: "echo", StageTCP: "stream"}[stage] + " eth1: separate networks? no node reaches one of another subnet"}
					}
					p := w.plan(t, stage, PlanOptions{Seed: seed, NoRing: true})
					var got []string
					for _, s := range w.drive(t, p) {
						if who := s.Node + s.Peer + strings.Join(s.Leaves, "-"); !slices.Contains(got, who) {
							got = append(got, who)
						}
					}
					if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
						t.Errorf("routed %v, %s, seed %d, %d rounds (-want +got):\n%s%v", routed, stage, seed, w.rounds, diff, briefs(p.Suspects()))
					}
					if diff := cmp.Diff(remarks, remarksOf(p), cmpopts.EquateEmpty()); diff != "" {
						t.Errorf("routed %v, %s, seed %d, remarks (-want +got):\n%s", routed, stage, seed, diff)
					}
					for _, d := range p.Fleet() {
						if d.Note != "" {
							t.Errorf("routed %v, %s, seed %d: note %s", routed, stage, seed, d.Note)
						}
					}
				}
			}
		}
	}
}

// Rings that fail only across subnets which no router connects accuse none, although few nodes of a subnet have
// passed with each other.
func TestRingsOfSubnets(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		w := newWorld(40, 0, seed)
		for i := 30; i < 40; i++ {
			w.readdress(i, 0, 99)
		}
		w.unrouted = true
		p := w.plan(t, StageTCP, PlanOptions{Seed: seed})
		if suspects := w.drive(t, p); len(suspects) > 0 || !strings.Contains(strings.Join(remarksOf(p), ""), separate) {
			t.Errorf("seed %d: %v, remarks %v", seed, briefs(suspects), remarksOf(p))
		}
	}
}

// Nodes that others of their kind should reach are a doubt, and no network of their own: routers connect the other
// subnets, or nodes of their model are on the other side.
func TestCutOff(t *testing.T) {
	t.Parallel()
	for _, stage := range []Stage{StageReach, StageTCP, StageGroups} {
		for seed := range uint64(5) {
			w := newWorld(64, 0, seed)
			cut := func(n *Node) bool { return n.Name >= name(48) }
			for i := range w.nodes {
				w.readdress(i, 0, 100+i/16)
				if i < 16 && stage == StageGroups {
					w.nodes[i].Model = "A100"
				}
			}
			w.apart = func(n *Node, t Task) string {
				return fmt.Sprint(cut(n) && (t.Plane == "eth0" || t.Kind == KindNCCL))
			}
			p := w.plan(t, stage, PlanOptions{Seed: seed, Ops: []string{"all_reduce"}})
			suspects := w.drive(t, p)
			found := false
			for _, s := range suspects {
				if !s.Doubt || s.Node != "" {
					t.Errorf("%s, seed %d: %s is accused", stage, seed, brief(s))
				}
				inside := slices.IndexFunc(s.Partners, func(n string) bool { return n < name(48) }) < 0
				found = found || inside && len(s.Partners) >= leastGroup
			}
			if !found || len(remarksOf(p)) > 0 && strings.Contains(strings.Join(remarksOf(p), ""), separate) {
				t.Errorf("%s, seed %d: %v, remarks %v", stage, seed, briefs(suspects), remarksOf(p))
			}
		}
	}
}

// Of two halves that do not reach each other, or slowly, groups accuse no node.
func TestHalves(t *testing.T) {
	t.Parallel()
	for _, slow := range []bool{false, true} {
		for seed := range uint64(80) {
			n := 24 + int(seed%2)*16
			w := newWorld(n, 0, seed)
			half := func(node string) string { return strconv.FormatBool(node < name(n/2)) }
			if slow {
				w.behind, w.uplink = map[string]string{}, 0.5
				for _, x := range w.nodes {
					w.behind[x.Name] = half(x.Name)
				}
			} else {
				w.apart = func(x *Node, _ Task) string { return half(x.Name) }
			}
			for _, s := range w.drive(t, w.plan(t, StageGroups, PlanOptions{Seed: seed, Ops: []string{"all_reduce"}})) {
				if s.Node != "" && s.Peer == "" && !s.Doubt {
					t.Errorf("slow %t, seed %d: %s is accused", slow, seed, brief(s))
				}
			}
		}
	}
}
