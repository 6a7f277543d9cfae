package sweep

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep/eas"
)

func name(i int) string { return fmt.Sprintf("gpu%05d", i) }

// TestFaults shows that each fault is found and named, in fleets of several sizes, and that no other
// node is accused.
func TestFaults(t *testing.T) {
	t.Parallel()
	noRing := PlanOptions{NoRing: true}
	for _, tc := range []struct {
		name  string
		sizes []int
		leaf  int // nodes of a leaf
		stage Stage
		o     PlanOptions
		set   func(*world)
		want  []string
	}{
		{"slow node", []int{3, 4, 5, 8, 9, 32, 65, 200}, 0, StageTCP, noRing, func(w *world) { w.factor = map[string]float64{name(1): 0.7} },
			[]string{"gpu00001 sweep.tcp.slow"}},
		{"slow plane", []int{3, 4, 8, 33, 200}, 0, StageTCP, noRing, func(w *world) { w.factor = map[string]float64{name(1) + "/eth1": 0.1} },
			[]string{"gpu00001 eth1 sweep.tcp.slow"}},
		{"one direction", []int{4, 8, 33, 200}, 0, StageTCP, noRing, func(w *world) { w.factor = map[string]float64{name(2) + "/eth0/sends": 0.5} },
			[]string{"gpu00002 eth0 sends sweep.tcp.slow"}},
		{"one direction of all planes", []int{8, 33}, 0, StageTCP, noRing, func(w *world) { w.factor = map[string]float64{name(2) + "/receives": 0.5} },
			[]string{"gpu00002 receives sweep.tcp.slow"}},
		{"a pair", []int{4, 8}, 0, StageTCP, noRing, func(w *world) { w.pairs = map[[2]string]float64{{name(0), name(2)}: 0.3} },
			[]string{"gpu00000 gpu00002 eth0 sends sweep.tcp.slow", "gpu00000 gpu00002 eth1 sends sweep.tcp.slow"}},
		{"two leaves", []int{64, 128}, 8, StageTCP, PlanOptions{NoRing: true, Matchings: 20}, func(w *world) { w.leaves = map[[2]string]float64{{"leaf1", "leaf3"}: 0.4} },
			[]string{"leaf1-leaf3 eth0 sweep.tcp.slow", "leaf1-leaf3 eth1 sweep.tcp.slow"}},
		{"a leaf", []int{64, 256}, 8, StageTCP, noRing, func(w *world) {
			w.leaves = map[[2]string]float64{}
			for i := range 32 {
				other := fmt.Sprintf("leaf%d", i)
				if other != "leaf1" {
					w.leaves[[2]string{min("leaf1", other), max("leaf1", other)}] = 0.4
				}
			}
		}, nil},
		{"slow at times", []int{33, 200}, 0, StageTCP, noRing, func(w *world) {
			w.window, w.flaky = 20, map[string][2]float64{name(5): {0.3, 0.4}}
		}, []string{"gpu00005 sweep.tcp.flaky"}},
		{"refused", []int{3, 4, 8, 33}, 0, StageTCP, noRing, func(w *world) { w.fault = map[string]Fault{name(1) + "/eth1": FaultRefused} },
			[]string{"gpu00001 eth1 sweep.tcp.failed"}},
		{"dies", []int{4, 8, 33, 200}, 0, StageTCP, noRing, func(w *world) { w.dies = map[string]int{name(1): 6} },
			[]string{"gpu00001 sweep.node.lost"}},
		{"two nodes", []int{2}, 0, StageTCP, noRing, func(w *world) { w.factor = map[string]float64{name(1) + "/eth1": 0.1} },
			[]string{"doubt gpu00000 gpu00001 eth1 sweep.tcp.slow"}},
		{"rounds without results", []int{8, 33}, 0, StageTCP, noRing, func(w *world) {
			w.noTask, w.factor = map[int]bool{0: true, 2: true, 9: true}, map[string]float64{name(1): 0.7}
		}, []string{"gpu00001 sweep.tcp.slow"}},
		{"one cannot", []int{8, 33}, 0, StageTCP, noRing, func(w *world) { w.fault = map[string]Fault{name(1): FaultUnable} },
			[]string{"doubt gpu00001 sweep.tcp.unable"}},

		{"ring computes wrongly", []int{8, 33, 64}, 0, StageTCP, PlanOptions{NoStream: true, RingSizes: []int{4, 0}},
			func(w *world) { w.fault = map[string]Fault{name(1): FaultWrong} },
			[]string{"gpu00001 eth0 sweep.tcp.wrong", "gpu00001 eth1 sweep.tcp.wrong"}},
		{"ring beside slow pairs", []int{33}, 0, StageTCP, PlanOptions{}, func(w *world) { w.factor = map[string]float64{name(1): 0.5} },
			[]string{"gpu00001 sweep.tcp.slow"}},

		{"loss", []int{3, 4, 8, 32, 65}, 0, StageReach, PlanOptions{}, func(w *world) { w.loss = map[string]float64{name(1) + "/eth0": 0.01} },
			[]string{"gpu00001 eth0 sweep.reach.loss"}},
		{"delay", []int{3, 4, 8, 32, 65}, 0, StageReach, PlanOptions{}, func(w *world) { w.delay = map[string]float64{name(1) + "/eth0": 1.0 / 11} },
			[]string{"gpu00001 eth0 sweep.reach.latency"}},
		{"dead link", []int{3, 4, 8, 32, 65}, 0, StageReach, PlanOptions{}, func(w *world) { w.fault = map[string]Fault{name(1) + "/eth0": FaultSilent} },
			[]string{"gpu00001 eth0 sweep.reach.loss"}},
		{"name", []int{4, 8, 32}, 0, StageReach, PlanOptions{}, func(w *world) { w.fault = map[string]Fault{name(1) + "/receives name": FaultRefused} },
			[]string{"gpu00001 receives sweep.reach.name"}},
		{"MTU", []int{4, 8, 32}, 0, StageReach, PlanOptions{}, func(w *world) {
			w.nodes[1].Planes[0].MTU = 1400
			w.fault = map[string]Fault{name(1) + "/eth0/receives mtu": FaultMTU}
		}, []string{"gpu00001 eth0 sweep.reach.mtu"}},
		{"MTU of the path", []int{8, 32}, 0, StageReach, PlanOptions{}, func(w *world) {
			w.fault = map[string]Fault{name(1) + "/eth0/sends mtu": FaultMTU}
		}, []string{"gpu00001 eth0 sends sweep.reach.mtu"}},
		{"no plane", []int{20, 32}, 0, StageReach, PlanOptions{}, func(w *world) { w.nodes[1].Planes = w.nodes[1].Planes[:1] },
			[]string{"gpu00001 eth1 sweep.reach.plane"}},
		{"no plane, of few nodes", []int{3, 4, 19}, 0, StageReach, PlanOptions{}, func(w *world) { w.nodes[1].Planes = w.nodes[1].Planes[:1] },
			[]string{"doubt gpu00001 eth1 sweep.reach.plane"}},
		{"ends only", []int{8, 32, 100}, 0, StageReach, PlanOptions{Ends: true}, func(w *world) {
			w.fault = map[string]Fault{name(0) + "/eth0": FaultSilent}
		}, []string{"gpu00000 eth0 sweep.reach.loss"}},
		{"no path between two leaves", []int{32, 64}, 8, StageReach, PlanOptions{}, func(w *world) { w.cut = map[[2]string]Fault{{"leaf1", "leaf2"}: FaultSilent} },
			[]string{"leaf1-leaf2 eth0 sweep.reach.connect", "leaf1-leaf2 eth0 sweep.reach.loss", "leaf1-leaf2 eth0 sweep.reach.mtu",
				"leaf1-leaf2 eth1 sweep.reach.connect", "leaf1-leaf2 eth1 sweep.reach.loss", "leaf1-leaf2 eth1 sweep.reach.mtu", "leaf1-leaf2 sweep.reach.name"}},
		{"no path between two nodes", []int{4, 8, 32}, 0, StageReach, PlanOptions{}, func(w *world) {
			w.fault = map[string]Fault{name(0) + ">" + name(2): FaultRefused, name(2) + ">" + name(0): FaultRefused}
		}, nil},
		{"two nodes, dead link", []int{2}, 0, StageReach, PlanOptions{}, func(w *world) { w.fault = map[string]Fault{name(1) + "/eth0": FaultSilent} },
			nil},

		{"rail", []int{4, 8, 33}, 0, StageRDMA, PlanOptions{}, func(w *world) { w.factor = map[string]float64{name(1) + "/mlx5_1:1": 0.5} },
			[]string{"gpu00001 mlx5_1:1 sweep.rdma.slow"}},
		{"latency of a rail", []int{4, 8, 33}, 0, StageRDMA, PlanOptions{}, func(w *world) { w.delay = map[string]float64{name(1) + "/mlx5_1:1": 0.1} },
			[]string{"gpu00001 mlx5_1:1 sweep.rdma.latency"}},

		{"hang", []int{3, 4, 8, 33}, 0, StagePairs, PlanOptions{}, func(w *world) { w.fault = map[string]Fault{name(1): FaultSilent} },
			[]string{"gpu00001 sweep.nccl.hang"}},
		{"wrong data", []int{3, 4, 8, 33}, 0, StagePairs, PlanOptions{NoP2P: true}, func(w *world) { w.fault = map[string]Fault{name(1): FaultWrong} },
			[]string{"gpu00001 sweep.nccl.wrong"}},
		{"TCP in NCCL", []int{4, 8, 33}, 0, StagePairs, PlanOptions{}, func(w *world) { w.fault = map[string]Fault{name(1): FaultNetwork} },
			[]string{"gpu00001 sweep.nccl.network"}},
		{"slow NCCL", []int{4, 8, 33}, 0, StagePairs, PlanOptions{}, func(w *world) { w.factor = map[string]float64{name(1): 0.6} },
			[]string{"gpu00001 sweep.nccl.slow"}},

		{"hang in groups", []int{4, 8, 33, 64, 200}, 0, StageGroups, PlanOptions{Ops: []string{"all_reduce"}}, func(w *world) { w.fault = map[string]Fault{name(1): FaultSilent} },
			[]string{"gpu00001 sweep.nccl.hang"}},
		{"slow groups", []int{8, 33, 64, 200}, 0, StageGroups, PlanOptions{Ops: []string{"all_reduce"}}, func(w *world) { w.factor = map[string]float64{name(1): 0.6} },
			[]string{"gpu00001 sweep.nccl.slow"}},
		{"two slow nodes", []int{64, 200}, 0, StageGroups, PlanOptions{Ops: []string{"all_reduce"}, GroupSizes: []int{8, 0}},
			func(w *world) { w.factor = map[string]float64{name(1): 0.6, name(7): 0.5} },
			[]string{"gpu00001 sweep.nccl.slow", "gpu00007 sweep.nccl.slow"}},
		{"node fails only in groups of 8", []int{33, 64}, 0, StageGroups, PlanOptions{Ops: []string{"all_reduce"}, GroupSizes: []int{2, 4, 8}},
			func(w *world) { w.only = map[string]int{name(1): 8} },
			[]string{"gpu00001 sweep.nccl.hang"}},
		{"only the group of all nodes fails", []int{33, 64}, 0, StageGroups, PlanOptions{Ops: []string{"all_reduce"}}, func(w *world) {
			w.only = map[string]int{name(1): len(w.nodes)}
		}, []string{"doubt sweep.nccl.hang"}},
		{"hangs at times", []int{33, 64}, 0, StagePairs, PlanOptions{Ops: []string{"all_reduce"}, Matchings: 6}, func(w *world) { w.rarely = map[string]float64{name(1): 0.7} }, nil},
		{"dies in a group", []int{33, 64}, 0, StageGroups, PlanOptions{Ops: []string{"all_reduce"}}, func(w *world) { w.dies = map[string]int{name(1): 5} },
			[]string{"gpu00001 sweep.node.lost"}},

		{"check", []int{1, 2, 33}, 0, StageNode, PlanOptions{Lines: []string{"check_gpu_gemm", "check_gpu_pcie"}, Batch: 10}, func(w *world) {
			w.checks = map[string]CheckResult{name(0): {Check: "check_gpu_gemm", Severity: "fail", Device: "gpu3 0000:c1:00.0", Message: "slow"}}
		}, []string{"gpu00000 sweep.node.check", "gpu00000 sweep.node.check"}},
	} {
		for _, n := range tc.sizes {
			t.Run(fmt.Sprintf("%s/%d", tc.name, n), func(t *testing.T) {
				t.Parallel()
				for seed := range uint64(3) {
					w := newWorld(n, tc.leaf, seed)
					tc.set(w)
					o := tc.o
					o.Seed = seed
					p := w.plan(t, tc.stage, o)
					suspects := w.drive(t, p)
					switch tc.name {
					case "a leaf":
						checkLeaf(t, suspects)
					case "hangs at times": // 7 of 10 times: two of five tests are enough for a doubt; else its pairs are suspects
						if len(suspects) == 0 || slices.ContainsFunc(suspects, func(s Suspect) bool { return s.Node != name(1) && s.Peer != name(1) || s.Code != "sweep.nccl.hang" }) {
							t.Errorf("seed %d: %+v", seed, suspects)
						}
					case "no path between two nodes":
						if len(suspects) == 0 {
							t.Error("no suspect")
						}
						for _, s := range suspects {
							if pair := []string{min(s.Node, s.Peer), max(s.Node, s.Peer)}; !slices.Equal(pair, []string{name(0), name(2)}) {
								t.Errorf("want the pair alone, got %+v", s)
							}
						}
					case "two nodes, dead link":
						for _, s := range suspects {
							if !s.Doubt || s.Peer == "" {
								t.Errorf("want a doubt about the pair, got %+v", s)
							}
						}
						if len(suspects) == 0 {
							t.Error("no suspect")
						}
					default:
						if diff := cmp.Diff(tc.want, briefs(suspects), cmpopts.EquateEmpty()); diff != "" {
							t.Errorf("seed %d, %d rounds (-want +got):\n%s%+v", seed, w.rounds, diff, suspects)
						}
					}
				}
			})
		}
	}
}

// checkLeaf checks that a leaf whose paths to all others are slow is accused, and no node.
func checkLeaf(t *testing.T, suspects []Suspect) {
	t.Helper()
	planes := map[string]bool{}
	for _, s := range suspects {
		if s.Node != "" || !slices.Contains(s.Leaves, "leaf1") {
			t.Errorf("want leaf1 alone, got %+v", s)
		}
		planes[s.Plane] = true
	}
	if len(planes) == 0 {
		t.Error("no suspect")
	}
}

// TestHealthy shows that fleets which only look faulty have no suspects.
func TestHealthy(t *testing.T) {
	t.Parallel()
	stages := []Stage{StageReach, StageTCP, StageRDMA, StagePairs, StageGroups}
	for _, tc := range []struct {
		name  string
		sizes []int
		leaf  int
		set   func(*world)
	}{
		{"nothing", []int{1, 2, 3, 4, 8, 33, 65, 200}, 0, func(*world) {}},
		{"all values equal", []int{2, 3, 4, 8, 33, 65}, 0, func(w *world) { w.sigma = 0 }},
		{"10 % of noise", []int{2, 3, 4, 8, 33, 200}, 0, func(w *world) { w.sigma = 0.1 }},
		{"one node with 8 % of noise", []int{4, 8, 33, 200}, 0, func(w *world) { w.sigma, w.noise = 0.02, map[string]float64{name(1): 0.08} }},
		{"two models", []int{4, 8, 33, 200}, 0, func(w *world) {
			w.model = map[string]float64{"A": 1, "B": 0.5}
			for i := range w.nodes {
				w.nodes[i].Model = []string{"A", "B"}[i%2]
			}
		}},
		{"one node of another model", []int{4, 8, 33, 200}, 0, func(w *world) {
			w.model = map[string]float64{"A": 1, "B": 0.5}
			for i := range w.nodes {
				w.nodes[i].Model = "A"
			}
			w.nodes[1].Model = "B"
		}},
		{"fast within a leaf", []int{32, 64, 200}, 8, func(w *world) { w.leaf = 1.5 }},
		{"beside other jobs", []int{8, 33, 200}, 0, func(w *world) { w.beside = true }},
		{"a model without eth1", []int{8, 33}, 0, func(w *world) {
			for i := range w.nodes {
				if i%2 == 0 {
					w.nodes[i].Model, w.nodes[i].Planes, w.nodes[i].Rails = "B", w.nodes[i].Planes[:1], w.nodes[i].Rails[:1]
				}
			}
		}},
		{"all fail", []int{8, 33}, 0, func(w *world) {
			w.fault = map[string]Fault{}
			for _, n := range w.nodes {
				w.fault[n.Name] = FaultError
			}
		}},
		{"all are unable", []int{3, 8, 33}, 0, func(w *world) {
			w.fault = map[string]Fault{}
			for _, n := range w.nodes {
				w.fault[n.Name] = FaultUnable
			}
		}},
	} {
		for _, n := range tc.sizes {
			t.Run(fmt.Sprintf("%s/%d", tc.name, n), func(t *testing.T) {
				t.Parallel()
				for _, stage := range stages {
					for seed := range uint64(4) {
						w := newWorld(n, tc.leaf, seed)
						tc.set(w)
						p := w.plan(t, stage, PlanOptions{Seed: seed})
						for _, s := range w.drive(t, p) {
							t.Errorf("stage %s, seed %d: %+v", stage, seed, s)
						}
					}
				}
			})
		}
	}
}

// TestTwoLeaves shows that a slow network between the only two leaves accuses no node.
func TestTwoLeaves(t *testing.T) {
	t.Parallel()
	for _, n := range []int{8, 16, 64} {
		w := newWorld(n, n/2, 1)
		w.leaves = map[[2]string]float64{{"leaf0", "leaf1"}: 0.3}
		want := []string{"doubt leaf0-leaf1 eth0 sweep.tcp.slow", "doubt leaf0-leaf1 eth1 sweep.tcp.slow"}
		if diff := cmp.Diff(want, briefs(w.drive(t, w.plan(t, StageTCP, PlanOptions{NoRing: true})))); diff != "" {
			t.Errorf("%d nodes (-want +got):\n%s", n, diff)
		}
	}
}

// TestFloors shows that a floor accuses slow nodes, and no node if the whole fleet is below it.
func TestFloors(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		floor float64
		want  []string
		note  bool
	}{
		{110, nil, true},
		{93, []string{"gpu00001 sweep.tcp.slow"}, false},
		{50, nil, false},
	} {
		w := newWorld(20, 0, 3)
		w.sigma = 0.04
		w.factor = map[string]float64{name(1): 0.96} // too little for a comparison with the fleet
		o := PlanOptions{Seed: 1, NoRing: true, Floors: []Floor{{Kind: KindStream, Value: tc.floor}, {Kind: KindWrite, Value: 1e6}}}
		p := w.plan(t, StageTCP, o)
		var got []string // in which directions it is found is chance
		for _, s := range w.drive(t, p) {
			got = append(got, s.Node+" "+s.Code)
		}
		if diff := cmp.Diff(tc.want, slices.Compact(got), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("floor %v (-want +got):\n%s%+v\n%+v", tc.floor, diff, p.Suspects(), p.Fleet())
		}
		for _, d := range p.Fleet() {
			if (d.Note != "") != tc.note {
				t.Errorf("floor %v: note %q", tc.floor, d.Note)
			}
		}
	}
}

// TestBeside shows that a slow node is found beside other jobs, too.
func TestBeside(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5) {
		w := newWorld(100, 0, seed)
		w.beside, w.factor = true, map[string]float64{name(1): 0.4}
		suspects := w.drive(t, w.plan(t, StageTCP, PlanOptions{Seed: seed, NoRing: true}))
		if diff := cmp.Diff([]string{"gpu00001 sweep.tcp.slow"}, briefs(suspects)); diff != "" {
			t.Errorf("seed %d (-want +got):\n%s", seed, diff)
			continue
		}
		if s := suspects[0]; s.Looks < 5 || s.Confidence > 0.9 || !strings.Contains(s.Text, "beside other jobs") {
			t.Errorf("want at least five looks, and less confidence: %+v", s)
		}
	}
}

// TestTexts shows the text and the advice of suspects.
func TestTexts(t *testing.T) {
	t.Parallel()
	w := newWorld(33, 0, 1)
	w.sigma, w.factor = 0, map[string]float64{name(1) + "/eth0/sends": 0.5}
	s := w.drive(t, w.plan(t, StageTCP, PlanOptions{NoRing: true}))[0]
	want := "eth0: sends: slow: want about 94 Gb/s, got 47 Gb/s, with 3 different nodes"
	if s.Text != want || s.Do == "" || s.Value != 47 || s.Expect != 94 || s.Unit != "Gb/s" || len(s.Partners) != 3 {
		t.Errorf("want %q, got %+v", want, s)
	}
	w = newWorld(33, 0, 1)
	w.fault = map[string]Fault{name(1): FaultSilent}
	s = w.drive(t, w.plan(t, StagePairs, PlanOptions{Ops: []string{"all_reduce", "all_gather"}}))[0]
	want = "hang: no answer in all_reduce, all_gather, with 3 different nodes"
	if s.Text != want || !slices.Equal(s.Ops, []string{"all_reduce", "all_gather"}) {
		t.Errorf("want %q, got %+v", want, s)
	}
	w = newWorld(1, 0, 1)
	w.checks = map[string]CheckResult{name(0): {Check: "check_gpu_gemm", Severity: "fail", Device: "gpu3 0000:c1:00.0", Message: "gpu3 0000:c1:00.0: slow\nagain"}}
	s = w.drive(t, w.plan(t, StageNode, PlanOptions{Lines: []string{"check_gpu_gemm --time 5s"}}))[0]
	if s.GPU == nil || *s.GPU != 3 || s.Text != "check_gpu_gemm: gpu3 0000:c1:00.0: slow again" {
		t.Errorf("got %+v", s)
	}
}

// A check that cannot be evaluated on one node is a doubt about it if the others can; one that is skipped
// there is none. Neither has passed.
func TestCheckWithoutVerdict(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		severity string
		nodes    int // that cannot
		want     []string
	}{
		{"unknown", 1, []string{"doubt gpu00000 sweep.node.unable"}},
		{"unknown", 8, []string{}},
		{"skip", 1, []string{}},
	} {
		w := newWorld(8, 0, 1)
		w.checks = map[string]CheckResult{}
		for i := range tt.nodes {
			w.checks[name(i)] = CheckResult{Check: "check_gpu_gemm", Severity: tt.severity, Message: "too little memory"}
		}
		items := &EAS{eas.File{Sanity: eas.Check{Benchmarks: []string{"gemm_flops"}}}}
		p := w.plan(t, StageNode, items.Options(StageNode, PlanOptions{}))
		s := StageReport{Stage: StageNode, Ended: time.Unix(1, 0)}
		for tasks := p.Next(); len(tasks) > 0; tasks = p.Next() {
			var results []Result
			for _, task := range tasks {
				r, _ := w.run(task)
				results = append(results, r)
			}
			p.Take(results)
			s.Results = append(s.Results, results...)
		}
		s.Suspects = p.Suspects()
		if diff := cmp.Diff(tt.want, briefs(s.Suspects)); diff != "" {
			t.Errorf("%s on %d nodes (-want +got):\n%s", tt.severity, tt.nodes, diff)
		}
		if want := "check_gpu_gemm: too little memory; 7 nodes can"; len(s.Suspects) > 0 && s.Suspects[0].Text != want {
			t.Errorf("text %q, want %q", s.Suspects[0].Text, want)
		}
		if r := items.Results([]StageReport{s})[0]; r.Result != EASFailed || !strings.Contains(r.Text, "too little memory") {
			t.Errorf("%s on %d nodes: %+v", tt.severity, tt.nodes, r)
		}
	}
}

// A line that most nodes cannot run leaves the stage without a verdict although the other lines pass.
func TestLineThatCannotRun(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		able     int // nodes that run the second line
		severity string
		suspects int
		unproven string
	}{
		{0, "unknown", 0, "check_y: 4 of 4 nodes cannot run it, such as gpu00000: no library"},
		{1, "unknown", 0, "check_y: 3 of 4 nodes cannot run it, such as gpu00001: no library"},
		{2, "unknown", 2, ""},
		{0, "skip", 0, ""},
	} {
		w := newWorld(4, 0, 1)
		p := w.plan(t, StageNode, PlanOptions{Lines: []string{"check_x", "check_y"}})
		s := &StageReport{Stage: StageNode}
		for tasks := p.Next(); len(tasks) > 0; tasks = p.Next() {
			var results []Result
			for _, task := range tasks {
				r := Result{Task: task}
				if task.Op == "check_y" && task.Nodes[0] >= name(tt.able) {
					r.Fault, r.Text, r.Checks = FaultUnable, "no library", []CheckResult{{Check: "check_y", Severity: tt.severity}}
				}
				results = append(results, r)
			}
			p.Take(results)
			s.Rounds++
			s.Results = append(s.Results, results...)
		}
		s.Fleet = p.Fleet()
		if s.Conclude(false, w.nodes); s.Unproven != tt.unproven || len(p.Suspects()) != tt.suspects {
			t.Errorf("%+v: unproven %q, suspects %q", tt, s.Unproven, briefs(p.Suspects()))
		}
	}
}

// A line that most nodes fail the same way accuses none of them: its threshold is wrong, or they share the
// cause. A node that fails it in another way, or another line, is still a suspect.
func TestCheckFailsEverywhere(t *testing.T) {
	t.Parallel()
	slow := func(int) Result {
		return Result{Fault: FaultCheck, Checks: []CheckResult{{Check: "check_x", Code: "gpu.slow", Severity: "fail", Device: "gpu1", Message: "slow"}, {Check: "check_x", Code: "gpu.slow", Severity: "fail", Device: "gpu2", Message: "slow"}}}
	}
	for name, tt := range map[string]struct {
		nodes, bad int // that fail
		result     func(tries int) Result
		batch      int
		suspects   int
		note       string
	}{
		"a threshold":  {8, 8, slow, 3, 0, "most nodes fail: 8 of 8, such as gpu00000: check_x: gpu1: slow"},
		"most":         {8, 5, slow, 0, 0, "most nodes fail: 5 of 8, such as gpu00000: check_x: gpu1: slow"},
		"half":         {8, 4, slow, 0, 8, ""}, // each of two GPUs
		"two of three": {3, 2, slow, 0, 4, ""},
		"a stall":      {4, 4, func(int) Result { return Result{Fault: FaultSilent} }, 0, 0, "most nodes fail: 4 of 4, such as gpu00000: check_x: no answer"},
		"a short stall": {4, 4, func(tries int) Result {
			if tries > 1 {
				return Result{}
			}
			return Result{Fault: FaultSilent}
		}, 0, 0, ""},
		"one hangs": {4, 1, func(int) Result { return Result{Fault: FaultSilent} }, 0, 1, ""},
	} {
		w := newWorld(tt.nodes, 0, 1)
		p := w.plan(t, StageNode, PlanOptions{Lines: []string{"check_x"}, Batch: tt.batch})
		tries := map[string]int{}
		for tasks := p.Next(); len(tasks) > 0; tasks = p.Next() {
			var results []Result
			for _, task := range tasks {
				r, node := Result{}, task.Nodes[0]
				if tries[node]++; node < fmt.Sprintf("gpu%05d", tt.bad) {
					r = tt.result(tries[node])
				}
				r.Task = task
				results = append(results, r)
			}
			p.Take(results)
		}
		note := ""
		for _, d := range p.Fleet() {
			note += d.Note
		}
		if suspects := p.Suspects(); len(suspects) != tt.suspects || note != tt.note {
			t.Errorf("%s: %d suspects, want %d, note %q", name, len(suspects), tt.suspects, note)
		}
		for node, n := range tries {
			if want := 1; n != want && (tt.result(1).Fault != FaultSilent || n != 2) {
				t.Errorf("%s: %d tries of %s", name, n, node)
			}
		}
	}
}

// TestTable checks that each limit and code has its reason, and that each possible code has a row.
func TestTable(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, l := range Limits() {
		if l.Value <= 0 || l.Unit == "" || l.Source == "" || seen[l.Name] {
			t.Errorf("limit %+v: want a value, a unit and a source, once", l)
		}
		seen[l.Name] = true
	}
	for _, k := range []Kind{KindEcho, KindConnect, KindName, KindLatency} {
		limitOf(string(k) + "_factor")
		limitOf(string(k) + "_excess")
		limitOf(string(k) + "_most")
	}
	for _, c := range Codes() {
		if c.Fault == "" || c.Do == "" || seen[c.Code] {
			t.Errorf("code %+v: want a fault and advice, once", c)
		}
		seen[c.Code] = true
	}
	used := map[string]bool{lostCode: true}
	for _, k := range []Kind{KindEcho, KindMTU, KindConnect, KindName, KindStream, KindRing, KindWrite, KindLatency, KindNCCL} {
		for _, s := range []symptom{broken, lossy, slow, flaky, unable} {
			if s == lossy && k != KindEcho || s == flaky && k.Lower() {
				continue
			}
			for _, f := range []Fault{FaultNone, FaultRefused, FaultSilent, FaultWrong, FaultMTU, FaultError, FaultNetwork} {
				code := codeOf(k, s, f)
				if used[code] = true; !seen[code] {
					t.Errorf("%s %v %s: code %s has no row", k, s, f, code)
				}
			}
		}
	}
	var plans strings.Builder // they have the codes that are not of a measurement
	for _, name := range []string{"difference.go", "plan_node.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		plans.Write(text)
	}
	for _, c := range Codes() {
		if !used[c.Code] && !strings.Contains(plans.String(), strconv.Quote(c.Code)) {
			t.Errorf("no finding has the code %s", c.Code)
		}
	}
}
