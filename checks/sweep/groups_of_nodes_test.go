package sweep

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// remarksOf returns the remarks of a plan, without the numbers of a distribution.
func remarksOf(p Plan) (list []string) {
	for _, d := range p.Fleet() {
		if d.Remark != "" {
			list = append(list, fmt.Sprintf("%s %s: %s", d.Kind, d.Plane, d.Remark))
		}
	}
	return list
}

// Nodes that differ in number, MTU or speed of their ports are suspects if they are one or two of many, and
// a remark if they are a group.
func TestOtherPorts(t *testing.T) {
	t.Parallel()
	otherPorts(t, 3)
}

func otherPorts(t *testing.T, seeds int) {
	t.Helper()
	on := func(k, count int, set func(*Node)) func(*world) {
		return func(w *world) {
			for i := k; i < k+count; i++ {
				set(&w.nodes[i])
			}
		}
	}
	noEth1 := func(n *Node) { n.Planes = n.Planes[:1] }
	mtu := func(n *Node) { n.Planes[0].MTU = 9000 }
	mtuOf := func(n *Node, task Task) string {
		return map[bool]string{true: fmt.Sprint(n.Planes[0].MTU)}[task.Kind == KindMTU && task.Plane == "eth0"]
	}
	slower := func(n *Node) { n.Planes[0].Speed = 25_000 }
	slowRail := func(n *Node) { n.Rails[0].Speed = 200 }
	noRails := func(n *Node) { n.Rails = nil }
	noGPU := func(n *Node) { n.GPUs, n.Model, n.Rails = 0, "", nil }
	noRail := func(n *Node) { n.Rails = n.Rails[:1] }
	for _, tc := range []struct {
		name  string
		nodes int
		stage Stage
		set   func(*world)
		want  []string
		notes []string
	}{
		{"30 of 100 without eth1", 100, StageReach, on(3, 30, noEth1), nil,
			[]string{"mtu eth1: eth1 is missing or has no address: 70 of 100 nodes have it on gpu00003, gpu00004, gpu00005, gpu00006, gpu00007, gpu00008, gpu00009, gpu00010 and 22 more"}},
		{"2 of 100 without eth1", 100, StageReach, on(3, 2, noEth1), []string{"gpu00003 eth1 sweep.reach.plane", "gpu00004 eth1 sweep.reach.plane"}, nil},
		{"1 of 3 without eth1", 3, StageReach, on(1, 1, noEth1), []string{"doubt gpu00001 eth1 sweep.reach.plane"}, nil},
		{"30 of 100 in another subnet with another MTU", 100, StageReach, func(w *world) {
			for i := 70; i < 100; i++ {
				w.readdress(i, 0, 99)
				w.nodes[i].Planes[0].MTU = 9000
			}
		}, nil, []string{"connect eth0: want the subnet 10.77.0.0/16 as on 70 of 100 nodes, got 10.99.0.0/16 on gpu00070, 10.99.0.0/16 on gpu00071, 10.99.0.0/16 on gpu00072, 10.99.0.0/16 on gpu00073, 10.99.0.0/16 on gpu00074, 10.99.0.0/16 on gpu00075, 10.99.0.0/16 on gpu00076, 10.99.0.0/16 on gpu00077 and 22 more"}},
		{"4 of 100 with another MTU", 100, StageReach, on(3, 4, mtu), []string{"gpu00003 eth0 sweep.reach.mtu", "gpu00004 eth0 sweep.reach.mtu", "gpu00005 eth0 sweep.reach.mtu", "gpu00006 eth0 sweep.reach.mtu"}, nil},
		{"4 of 100 with another MTU, which is measured", 100, StageReach, func(w *world) {
			on(3, 4, mtu)(w)
			w.apart = mtuOf
		}, []string{"gpu00003 eth0 sweep.reach.mtu", "gpu00004 eth0 sweep.reach.mtu", "gpu00005 eth0 sweep.reach.mtu", "gpu00006 eth0 sweep.reach.mtu"}, nil},
		{"2 of 100 with another MTU, which is measured", 100, StageReach, func(w *world) {
			on(3, 2, mtu)(w)
			w.apart = mtuOf
		}, []string{"gpu00003 eth0 sweep.reach.mtu", "gpu00004 eth0 sweep.reach.mtu"}, nil},
		{"3 of 200 without eth1", 200, StageReach, on(3, 3, noEth1), []string{"gpu00003 eth1 sweep.reach.plane", "gpu00004 eth1 sweep.reach.plane", "gpu00005 eth1 sweep.reach.plane"}, nil},
		{"8 of 200 without eth1", 200, StageReach, on(3, 8, noEth1), []string{"doubt gpu00003 eth1 sweep.reach.plane", "doubt gpu00004 eth1 sweep.reach.plane",
			"doubt gpu00005 eth1 sweep.reach.plane", "doubt gpu00006 eth1 sweep.reach.plane", "doubt gpu00007 eth1 sweep.reach.plane",
			"doubt gpu00008 eth1 sweep.reach.plane", "doubt gpu00009 eth1 sweep.reach.plane", "doubt gpu00010 eth1 sweep.reach.plane"}, nil},
		{"1 of 100 with another MTU", 100, StageReach, on(3, 1, mtu), []string{"gpu00003 eth0 sweep.reach.mtu"}, nil},
		{"1 of 100 at a lower speed", 100, StageTCP, on(3, 1, slower), []string{"gpu00003 eth0 sweep.tcp.slow"}, nil},
		{"2 of 10 at a lower speed", 10, StageTCP, on(3, 2, slower), []string{"doubt gpu00003 eth0 sweep.tcp.slow", "doubt gpu00004 eth0 sweep.tcp.slow"}, nil},
		{"20 of 100 at a lower speed", 100, StageTCP, on(0, 20, slower), nil,
			[]string{"stream eth0: eth0: speed of the link: want 100 Gb/s as on 80 of 100 nodes, got 25 Gb/s on gpu00000, gpu00001, gpu00002, gpu00003, gpu00004, gpu00005, gpu00006, gpu00007 and 12 more"}},
		{"half at a lower speed", 10, StageTCP, on(0, 5, slower), nil,
			[]string{"stream eth0: eth0: speed of the link: want 100 Gb/s as on 5 of 10 nodes, got 25 Gb/s on gpu00000, gpu00001, gpu00002, gpu00003, gpu00004"}},
		{"2 of 5 at a lower speed", 5, StageTCP, on(0, 2, slower), nil,
			[]string{"stream eth0: eth0: speed of the link: want 100 Gb/s as on 3 of 5 nodes, got 25 Gb/s on gpu00000, gpu00001"}},
		{"without GPUs, at a lower speed", 100, StageTCP, on(0, 20, func(n *Node) { n.GPUs, n.Model, n.Planes[0].Speed = 0, "", 25_000 }), nil, nil},
		{"a rail at a lower speed", 100, StageRDMA, on(3, 1, slowRail), []string{"gpu00003 mlx5_0:1 sweep.rdma.slow"}, nil},
		{"20 rails at a lower speed", 100, StageRDMA, on(0, 20, slowRail), nil,
			[]string{"write_bw mlx5_0:1: mlx5_0:1: speed of the link: want 400 Gb/s as on 80 of 100 nodes, got 200 Gb/s on gpu00000, gpu00001, gpu00002, gpu00003, gpu00004, gpu00005, gpu00006, gpu00007 and 12 more"}},
		{"one rail less", 100, StagePairs, on(3, 1, noRail), []string{"gpu00003 sweep.nccl.slow"}, nil},
		{"one rail less, by rail", 100, StageRDMA, on(3, 1, noRail), []string{"gpu00003 mlx5_1:1 sweep.rdma.failed"}, nil},
		{"20 nodes with one rail less, by rail", 100, StageRDMA, on(0, 20, noRail), nil,
			[]string{"write_bw mlx5_1:1: mlx5_1:1: link layer: want InfiniBand as on 80 of 100 nodes, got none on gpu00000, gpu00001, gpu00002, gpu00003, gpu00004, gpu00005, gpu00006, gpu00007 and 12 more"}},
		{"a rail of another layer", 100, StageRDMA, on(3, 1, func(n *Node) { n.Rails[0].Layer = layerEthernet }), []string{"gpu00003 mlx5_0:1 sweep.rdma.failed"}, nil},
		{"3 nodes without rails", 100, StagePairs, func(w *world) {
			on(3, 3, noRails)(w)
			w.network = true
		}, []string{"gpu00003 sweep.nccl.network", "gpu00004 sweep.nccl.network", "gpu00005 sweep.nccl.network"}, nil},
		{"20 nodes without rails", 100, StagePairs, func(w *world) {
			on(0, 20, noRails)(w)
			w.network = true
		}, nil, []string{"nccl : all RDMA ports: link layer: want InfiniBand as on 80 of 100 nodes, got none on gpu00000, gpu00001, gpu00002, gpu00003, gpu00004, gpu00005, gpu00006, gpu00007 and 12 more"}},
		{"6 of 10 without GPUs", 10, StagePairs, on(0, 6, noGPU), nil, []string{"nccl : no GPU: 4 of 10 nodes have some, and not gpu00000, gpu00001, gpu00002, gpu00003, gpu00004, gpu00005"}},
		{"6 of 10 without GPUs, in groups", 10, StageGroups, on(0, 6, noGPU), nil, []string{"nccl : no GPU: 4 of 10 nodes have some, and not gpu00000, gpu00001, gpu00002, gpu00003, gpu00004, gpu00005"}},
		{"1 of 100 without GPUs", 100, StagePairs, on(3, 1, noGPU), []string{"doubt gpu00003 sweep.nccl.unable"}, nil},
		{"20 nodes with one rail less", 100, StagePairs, on(0, 20, noRail), nil,
			[]string{"nccl : all RDMA ports: speed of the link: want 800 Gb/s as on 80 of 100 nodes, got 400 Gb/s on gpu00000, gpu00001, gpu00002, gpu00003, gpu00004, gpu00005, gpu00006, gpu00007 and 12 more"}},
		{"20 nodes with one rail less, in groups", 100, StageGroups, on(0, 20, noRail), nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(seeds) {
				w := newWorld(tc.nodes, 0, seed)
				tc.set(w)
				p := w.plan(t, tc.stage, PlanOptions{Seed: seed, Ops: []string{"all_reduce"}})
				if diff := cmp.Diff(tc.want, briefs(w.drive(t, p)), cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("seed %d (-want +got):\n%s%+v", seed, diff, p.Suspects())
				}
				if diff := cmp.Diff(tc.notes, remarksOf(p), cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("seed %d, remarks (-want +got):\n%s", seed, diff)
				}
			}
		})
	}
}

// A slow uplink of a switch that Slurm does not know accuses what its nodes share, and none of them. A slow
// node beside it is found.
func TestUnknownSwitch(t *testing.T) {
	t.Parallel()
	unknownSwitch(t, 3)
}

func unknownSwitch(t *testing.T, seeds int) {
	t.Helper()
	for _, tc := range []struct {
		nodes, behind, step int
		stage               Stage
		uplink              float64
	}{
		{64, 8, 1, StageTCP, 0.4}, {100, 16, 1, StageTCP, 0.4}, {100, 16, 6, StageTCP, 0.7}, {200, 32, 1, StageTCP, 0.85},
		{100, 4, 1, StageTCP, 0.5}, {100, 16, 1, StageRDMA, 0.5}, {100, 16, 1, StagePairs, 0.5}, {100, 16, 1, StageGroups, 0.5},
	} {
		for _, bad := range []bool{false, true} {
			t.Run(fmt.Sprint(tc, bad), func(t *testing.T) {
				t.Parallel()
				found := 0
				for seed := range uint64(seeds) {
					w := newWorld(tc.nodes, 0, seed)
					w.behind, w.uplink = map[string]string{}, tc.uplink
					for i := range tc.behind {
						w.behind[name(3+i*tc.step)] = "s"
					}
					if bad {
						w.factor = map[string]float64{name(1): 0.5}
					}
					named := map[string]bool{}
					for _, s := range w.drive(t, w.plan(t, tc.stage, PlanOptions{Seed: seed, Ops: []string{"all_reduce"}})) {
						switch {
						case strings.Contains(s.Text, "healthy with each other"):
							if slices.ContainsFunc(s.Partners, func(n string) bool { return w.behind[n] == "" }) {
								t.Errorf("seed %d: %+v", seed, s)
							}
							if len(s.Partners) >= 3 {
								found++
							}
						case s.Peer == "" && !s.Doubt:
							named[s.Node] = true
						}
					}
					if bad != named[name(1)] || len(named) > 1 || len(named) == 1 && !bad {
						t.Errorf("seed %d: %v are accused", seed, named)
					}
				}
				if found == 0 {
					t.Error("no group is found")
				}
			})
		}
	}
}

// A slow leaf is found in clusters of a few leaves, where most paths between leaves cross it.
func TestFewLeaves(t *testing.T) {
	t.Parallel()
	fewLeaves(t, 3)
}

func fewLeaves(t *testing.T, seeds int) {
	t.Helper()
	for _, tc := range []struct {
		leaves, perLeaf int
	}{{3, 8}, {3, 16}, {3, 32}, {4, 8}, {4, 16}, {5, 8}, {6, 16}, {8, 8}} {
		t.Run(fmt.Sprint(tc), func(t *testing.T) {
			t.Parallel()
			many := seeds
			if tc.leaves*tc.perLeaf == 24 { // in some seeds few pairs are between the other leaves
				many = 100
			}
			for seed := range uint64(many) {
				for _, factor := range []float64{1, 0.4, 0.7} {
					w := newWorld(tc.leaves*tc.perLeaf, tc.perLeaf, seed)
					w.leaves = map[[2]string]float64{}
					for i := range tc.leaves {
						if other := fmt.Sprintf("leaf%d", i); other != "leaf1" {
							w.leaves[[2]string{min("leaf1", other), max("leaf1", other)}] = factor
						}
					}
					suspects := w.drive(t, w.plan(t, StageTCP, PlanOptions{Seed: seed, NoRing: true}))
					for _, s := range suspects {
						if factor == 1 || s.Node != "" || !slices.Contains(s.Leaves, "leaf1") {
							t.Errorf("seed %d, %v: want leaf1 alone, got %s", seed, factor, strings.Join(briefs([]Suspect{s}), ""))
						}
					}
					if factor < 1 && len(suspects) == 0 {
						t.Errorf("seed %d, %v: no suspect", seed, factor)
					}
				}
			}
		})
	}
}

// A leaf whose nodes are faulty on two of three planes is one suspect for each plane.
func TestLeafOnTwoPlanes(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		w := newWorld(240, 8, seed)
		w.loss = map[string]float64{}
		for i := range w.nodes {
			third := w.nodes[i].Planes[1]
			third.Name, third.Address = "eth2", netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 79, 0, byte(i)}), 16)
			w.nodes[i].Planes = append(w.nodes[i].Planes, third)
			if w.nodes[i].Leaf == "leaf1" {
				w.loss[name(i)+"/eth1"], w.loss[name(i)+"/eth2"] = 0.05, 0.05
			}
		}
		want := []string{"leaf1 eth1 sweep.reach.loss", "leaf1 eth2 sweep.reach.loss"}
		if diff := cmp.Diff(want, briefs(w.drive(t, w.plan(t, StageReach, PlanOptions{Seed: seed})))); diff != "" {
			t.Errorf("seed %d (-want +got):\n%s", seed, diff)
		}
	}
}

// Several faulty nodes are found where all pairs are tested, and each other node fails with all of them.
func TestSeveralFaulty(t *testing.T) {
	t.Parallel()
	for _, n := range []int{20, 40, 64, 100} {
		for bad := 1; bad <= max(2, n/20); bad++ {
			for seed := range uint64(2) {
				w := newWorld(n, 0, seed)
				w.loss = map[string]float64{}
				var want []string
				for i := range bad {
					w.loss[name(i+3)+"/eth0"] = 0.05
					want = append(want, name(i+3)+" eth0 sweep.reach.loss")
				}
				if diff := cmp.Diff(want, briefs(w.drive(t, w.plan(t, StageReach, PlanOptions{Seed: seed})))); diff != "" {
					t.Errorf("%d of %d nodes, seed %d (-want +got):\n%s", bad, n, seed, diff)
				}
			}
		}
	}
}

// TestManySeeds shows that no healthy node is accused in 30 sweeps of each scenario.
func TestManySeeds(t *testing.T) {
	tier.All(t)
	for name, run := range map[string]func(*testing.T, int){"networks": separateNetworks, "ports": otherPorts, "switches": unknownSwitch, "leaves": fewLeaves, "groups end": groupsEnd, "many networks": manyNetworks} {
		t.Run(name, func(t *testing.T) { run(t, 30) })
	}
}

// separateGroups has some nodes whose NCCL reaches only each other.
func separateGroups(seed uint64, n, own int) *world {
	w := newWorld(n, 0, seed)
	w.apart = func(x *Node, _ Task) string { return strconv.FormatBool(x.Name < name(own)) }
	return w
}

// A node that is lost while accused nodes are tested with each other ends neither the plan nor its memory.
func TestLostInMeeting(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		stage Stage
		o     PlanOptions
	}{{StageGroups, PlanOptions{Ops: []string{"all_reduce"}}}, {StageTCP, PlanOptions{NoStream: true}}} {
		met := 0
		for after := range 6 {
			w := separateGroups(1, 32, 2)
			tc.o.Seed = 1
			p := w.plan(t, tc.stage, tc.o)
			meetings := func(task Task) bool {
				return len(task.Nodes) == 2 && task.Nodes[0] < name(2) && task.Nodes[1] < name(2) && !task.Confirms
			}
			seen, taken := 0, 0
			for tasks := p.Next(); len(tasks) > 0 && taken < 1000; tasks = p.Next() {
				var results []Result
				for _, task := range tasks {
					taken++
					if meetings(task) {
						if seen++; seen > after%3 {
							w.dies = map[string]int{name(after / 3): 0}
							met++
						}
					}
					r, _ := w.run(task)
					results = append(results, r)
				}
				p.Take(results)
			}
			if taken >= 1000 || p.Left() != 0 {
				t.Errorf("%s: after %d tests %d rounds are left", tc.stage, taken, p.Left())
			}
		}
		if met == 0 {
			t.Errorf("%s: no node is lost in a meeting", tc.stage)
		}
	}
}

// Each stage of groups ends, whichever nodes are faulty and lost.
func TestGroupsEnd(t *testing.T) {
	t.Parallel()
	groupsEnd(t, 150)
}

func groupsEnd(t *testing.T, seeds int) {
	t.Helper()
	for seed := range uint64(seeds) {
		rng := rand.New(rand.NewPCG(seed, 7))
		n := 2 + rng.IntN(40)
		w := newWorld(n, 8*rng.IntN(2), seed)
		w.dies, w.fault, w.only, w.rarely, w.factor, w.noTask = map[string]int{}, map[string]Fault{}, map[string]int{}, map[string]float64{}, map[string]float64{}, map[int]bool{}
		for range rng.IntN(1 + n/3) {
			w.dies[name(rng.IntN(n))] = rng.IntN(3 * n)
		}
		for range rng.IntN(5) {
			switch i := name(rng.IntN(n)); rng.IntN(5) {
			case 0:
				w.fault[i] = []Fault{FaultSilent, FaultWrong, FaultUnable}[rng.IntN(3)]
			case 1:
				w.only[i] = 2 + rng.IntN(n)
			case 2:
				w.rarely[i] = rng.Float64()
			case 3:
				w.factor[i] = rng.Float64()
			case 4:
				w.noTask[rng.IntN(20)] = true
			}
		}
		own, fabric := rng.IntN(1+n), rng.IntN(1+n)
		if rng.IntN(2) == 0 {
			w.apart = func(x *Node, _ Task) string { return strconv.FormatBool(x.Name < name(own)) }
		}
		for i := range w.nodes[:fabric] {
			if rng.IntN(3) == 0 {
				w.nodes[i].Rails = nil
			}
			w.nodes[i].Model = "A100"
		}
		for stage, o := range map[Stage]PlanOptions{StageGroups: {Ops: []string{"all_reduce", "all_gather"}}, StageTCP: {NoStream: true}} {
			o.Seed = seed
			w.drive(t, w.plan(t, stage, o))
			w.tasks = 0
		}
	}
}

// A failure at full scale in a cluster of two kinds is a doubt: groups of both kinds pass.
func TestScaleOfTwoKinds(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5) {
		for _, apart := range []bool{false, true} {
			w := newWorld(32, 0, seed)
			for i := range 16 {
				w.nodes[i].Model = "A100"
			}
			if apart {
				w.apart = func(n *Node, _ Task) string { return n.Model }
			} else {
				w.only = map[string]int{name(3): 32}
			}
			p := w.plan(t, StageGroups, PlanOptions{Seed: seed, Ops: []string{"all_reduce"}})
			suspects, remarks := w.drive(t, p), remarksOf(p)
			if apart == (len(suspects) > 0) || apart != strings.Contains(strings.Join(remarks, ""), "separate networks?") {
				t.Errorf("seed %d, apart %t: %q, remarks %q", seed, apart, briefs(suspects), remarks)
			}
		}
	}
}
