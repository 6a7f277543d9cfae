package sweep

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
)

// A rail that jobs do not use, or that has no address, is not tested, unless it is named. On few nodes of many the
// same is a fault, which the tests find.
func TestUseRails(t *testing.T) {
	t.Parallel()
	front := func(n *Node) { n.Rails[1].Left = "the default route" }
	bare := func(n *Node) { n.Rails[1].Layer, n.Rails[1].GID = layerEthernet, -1 }
	other := func(n *Node) { n.Model = "A100" }
	remark := func(nodes int) string {
		return fmt.Sprintf("not tested: no RoCE v2 address on %d of %d nodes", nodes, nodes)
	}
	for name, tt := range map[string]struct {
		stage  Stage
		named  []string
		change func(n *Node, i int)
		tested string // rails of stage rdma, or the rails that NCCL is compared by
		remark string
	}{
		"all rails":              {StageRDMA, nil, func(*Node, int) {}, "mlx5_0:1 mlx5_1:1", ""},
		"a front end":            {StageRDMA, nil, func(n *Node, _ int) { front(n) }, "mlx5_0:1", ""},
		"a front end of most":    {StageRDMA, nil, func(n *Node, i int) { on(i != 3, n, front) }, "mlx5_0:1", ""},
		"a front end of one":     {StageRDMA, nil, func(n *Node, i int) { on(i == 3, n, front) }, "mlx5_0:1 mlx5_1:1", ""},
		"a front end, named":     {StageRDMA, []string{"mlx5_1"}, func(n *Node, _ int) { front(n) }, "mlx5_1:1", ""},
		"no address":             {StageRDMA, nil, func(n *Node, _ int) { bare(n) }, "mlx5_0:1", remark(16)},
		"no address on one":      {StageRDMA, nil, func(n *Node, i int) { bare(n); on(i != 3, n, func(n *Node) { n.Rails[1].GID = 3 }) }, "mlx5_0:1 mlx5_1:1", ""},
		"no address, named":      {StageRDMA, []string{"mlx5_1:1"}, func(n *Node, _ int) { bare(n) }, "mlx5_1:1", ""},
		"of one model of two":    {StageRDMA, nil, func(n *Node, i int) { on(i < 6, n, front); on(i < 6, n, other) }, "mlx5_0:1 mlx5_1:1", ""},
		"NCCL needs no address":  {StagePairs, nil, func(n *Node, _ int) { bare(n) }, "mlx5_0:1 mlx5_1:1", ""},
		"NCCL and the front end": {StageGroups, nil, func(n *Node, _ int) { front(n) }, "mlx5_0:1", ""},
	} {
		w := newWorld(16, 0, 1)
		for i := range w.nodes {
			tt.change(&w.nodes[i], i)
		}
		o := PlanOptions{Seed: 1, Planes: tt.named}
		f, err := newFleet(tt.stage, w.nodes, o)
		if err != nil {
			t.Fatal(err)
		}
		tested := map[string]bool{}
		for _, n := range f.nodes {
			for _, r := range n.Rails {
				tested[r.Name] = tested[r.Name] || len(tt.named) == 0 || o.names(r.Name)
			}
		}
		maps.DeleteFunc(tested, func(_ string, is bool) bool { return !is })
		remarks := ""
		for _, d := range f.bare {
			remarks += d.Remark
		}
		if got := strings.Join(slices.Sorted(maps.Keys(tested)), " "); got != tt.tested || remarks != tt.remark {
			t.Errorf("%s: tests %q, want %q; remarks %q, want %q", name, got, tt.tested, remarks, tt.remark)
		}
		if len(w.nodes[0].Rails) != 2 {
			t.Errorf("%s: the description of the nodes was changed", name)
		}
	}
}

// A RoCE port without an address on the only node of its model is found by the tests, as on one of many.
func TestBareRail(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 3, 8} {
		for model, count := range map[string]int{"H100": 1, "H200": 1, "H200 of most": n - 1} {
			w := newWorld(n, 0, 1)
			w.sigma, w.fault = 0.01, map[string]Fault{}
			for i := range w.nodes {
				for k := range w.nodes[i].Rails {
					r := &w.nodes[i].Rails[k]
					if r.Layer, r.GID = layerEthernet, 3; k == 1 && i >= n-count {
						r.GID, w.nodes[i].Model = -1, model
						w.fault[w.nodes[i].Name+"/"+r.Name] = FaultError
					}
				}
			}
			p := w.plan(t, StageRDMA, PlanOptions{Seed: 1})
			suspects, remarks := w.drive(t, p), ""
			for _, d := range p.Fleet() {
				if strings.HasPrefix(d.Remark, "not tested") {
					remarks += d.Nodes
				}
			}
			found := slices.ContainsFunc(suspects, func(s Suspect) bool {
				return (s.Node == name(n-1) || s.Peer == name(n-1)) && s.Plane == "mlx5_1:1"
			})
			// A remark names no nodes if all of a model are alike: the port is not meant for RDMA there.
			few, alike := 2*count < n || n == 2, count >= leastGroup
			if found != few || strings.Contains(remarks, name(n-1)) != (!few && !alike) {
				t.Errorf("%d nodes, %s: %v, remarks about %q", n, model, briefs(suspects), remarks)
			}
		}
	}
}

func on(is bool, n *Node, change func(*Node)) {
	if is {
		change(n)
	}
}

// A rail on which no test passes hides nothing about the others: their suspects are cleared, and drains on them end.
func TestDeadRail(t *testing.T) {
	t.Parallel()
	var results []Result
	for _, other := range []string{"gpu02", "gpu03", "gpu04"} {
		for _, rail := range []string{"mlx5_0:1", "mlx5_1:1"} {
			r := Result{Task: Task{Stage: StageRDMA, Kind: KindWrite, Plane: rail, Nodes: []string{"gpu01", other}}}
			if rail == "mlx5_1:1" {
				r.Fault = FaultError
			}
			results = append(results, r)
		}
	}
	dead := Distribution{Stage: StageRDMA, Kind: KindWrite, Plane: "mlx5_1:1", Note: "most nodes fail: error"}
	s := StageReport{Stage: StageRDMA, Rounds: 2, Results: results, Fleet: []Distribution{dead}}
	s.Conclude(true, nil)
	if s.Unproven != "write_bw mlx5_1:1: most nodes fail: error" {
		t.Errorf("the stage: %q", s.Unproven)
	}
	whole := s
	whole.Fleet = []Distribution{{Stage: StageRDMA, Kind: KindWrite, Note: "most nodes fail: error"}}
	both := s
	both.Results = slices.DeleteFunc(slices.Clone(results), func(r Result) bool { return r.Fault == FaultNone })
	suspect := func(rail string) Suspect {
		return Suspect{Node: "gpu01", Plane: rail, Stage: StageRDMA, Kind: KindWrite, Code: "sweep.rdma.slow"}
	}
	old := &Report{Stages: []StageReport{s}, Suspects: []Suspect{suspect("mlx5_0:1"), suspect("mlx5_1:1"), suspect("")}}
	lost := Accusal{Code: lostCode, Stage: StageRDMA, Kind: KindWrite}
	slow := func(rail string) Accusal {
		return Accusal{Code: "sweep.rdma.slow", Device: rail, Stage: StageRDMA, Kind: KindWrite, Planes: []string{rail}}
	}
	const none = "stage rdma has no verdict: "
	for name, tt := range map[string]struct {
		stage              StageReport
		cleared            string // rails of the suspects
		good, bad, lostWhy string
	}{
		"one rail":       {s, "mlx5_0:1", "", none + s.Unproven, ""},
		"the whole test": {whole, "", none + s.Unproven, none + s.Unproven, none + s.Unproven},
		"nothing passes": {both, "", "tested on mlx5_0:1 with 0 nodes", none + s.Unproven, none + s.Unproven},
	} {
		now := &Report{Stages: []StageReport{tt.stage}, Nodes: []NodeReport{{Node: Node{Name: "gpu01"}}}}
		cleared := ""
		for _, x := range Compare(old, now).Cleared {
			cleared += x.Plane
		}
		if cleared != tt.cleared {
			t.Errorf("%s: cleared on %q, want %q", name, cleared, tt.cleared)
		}
		for want, a := range map[string]Accusal{"good" + tt.good: slow("mlx5_0:1"), "bad" + tt.bad: slow("mlx5_1:1"), "lost" + tt.lostWhy: lost} {
			want = strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(want, "good"), "bad"), "lost")
			d := &Drained{Node: "gpu01", Code: a.Code, Device: a.Device, Faults: []Accusal{a}}
			if why := now.Cleared(d); !strings.HasPrefix(why, want) || (why == "") != (want == "") {
				t.Errorf("%s: %s %s: %q, want %q", name, a.Code, a.Device, why, want)
			}
		}
		if proven := tt.stage.Says(); proven != (name == "one rail") {
			t.Errorf("%s: says something: %t", name, proven)
		}
	}
}

// A result is judged the same with its windows and without: only a test that confirms a suspicion keeps them.
func TestSummarize(t *testing.T) {
	t.Parallel()
	var windows []float64
	for i := range 100 {
		windows = append(windows, float64((i*37)%100))
	}
	for _, tt := range []struct {
		kind     Kind
		confirms bool
		windows  []float64
		low, mid float64
		left     int
	}{
		{KindStream, false, windows, 10, 50, 0}, {KindStream, true, windows, 10, 50, 100}, {KindStream, false, windows[:2], 0, 0, 0}, {KindEcho, true, windows, 0, 0, 100}, {KindWrite, false, nil, 0, 0, 0},
	} {
		r := Result{Task: Task{Kind: tt.kind, Confirms: tt.confirms}, Windows: tt.windows}
		for range 2 { // the second time without windows
			if r.Summarize(); math.Abs(r.Low-tt.low) > 1 || math.Abs(r.Mid-tt.mid) > 1 || len(r.Windows) != tt.left {
				t.Errorf("%s, confirms %t: low %v, median %v, %d windows", tt.kind, tt.confirms, r.Low, r.Mid, len(r.Windows))
			}
		}
	}
}
