package sweep

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep/eas"
)

// carried runs a stage on some nodes, each test with the same result, and concludes it.
func carried(t *testing.T, stage Stage, nodes []Node, asked bool, lines []string, result Result) *StageReport {
	t.Helper()
	p, err := NewPlan(stage, nodes, PlanOptions{Seed: 1, Lines: lines})
	if err != nil {
		t.Fatal(err)
	}
	s := &StageReport{Stage: stage}
	for tasks := p.Next(); len(tasks) > 0; tasks = p.Next() {
		var results []Result
		for _, task := range tasks {
			result.Task = task
			results = append(results, result)
		}
		p.Take(results)
		s.Rounds++
		s.Results = append(s.Results, results...)
	}
	s.Fleet, s.Suspects = p.Fleet(), p.Suspects()
	s.Conclude(asked, nodes)
	return s
}

// No suspect is a result only if something was measured.
func TestConclude(t *testing.T) {
	t.Parallel()
	unable, silent := Result{Fault: FaultUnable, Text: "no libnccl.so.2"}, Result{Fault: FaultSilent}
	values := Result{Values: []float64{10, 10, 10, 10}}
	hung := Result{Values: []float64{5000}, Sent: 100}
	for name, tt := range map[string]struct {
		stage             Stage
		gpus              int
		asked             bool
		result            Result
		unproven, skipped string
	}{
		"healthy":                 {StagePairs, 8, true, values, "", ""},
		"no NCCL, asked":          {StagePairs, 0, true, unable, "it did not run: no test could run: no libnccl.so.2", "no test could run: no libnccl.so.2"},
		"no NCCL, by default":     {StageGroups, 8, false, unable, "it did not run: no test could run: no libnccl.so.2", "no test could run: no libnccl.so.2"},
		"no GPU, by default":      {StagePairs, 0, false, unable, "", "no test could run: no libnccl.so.2"},
		"lines unknown":           {StageNode, 8, false, unable, "it did not run: no test could run: no libnccl.so.2", "no test could run: no libnccl.so.2"},
		"lines without a GPU":     {StageNode, 0, false, unable, "", "no test could run: no libnccl.so.2"},
		"pairs of a dead fabric":  {StagePairs, 8, false, silent, "all_reduce: most nodes fail: ", ""},
		"a firewall":              {StageReach, 0, false, silent, "echo eth0: most nodes fail: ", ""},
		"groups of a dead fabric": {StageGroups, 8, false, silent, "all_reduce: most groups of 2 nodes fail: ", ""},
		"the whole fleet is slow": {StageReach, 0, false, hung, "echo eth0: the whole fleet is slow", ""},
	} {
		var nodes []Node
		for _, n := range newWorld(8, 0, 1).nodes {
			n.GPUs = tt.gpus
			nodes = append(nodes, n)
		}
		s := carried(t, tt.stage, nodes, tt.asked, []string{"check_x"}, tt.result)
		if (tt.unproven == "") != (s.Unproven == "") || !strings.HasPrefix(s.Unproven, tt.unproven) || s.Skipped != tt.skipped || len(s.Suspects) > 0 {
			t.Errorf("%s: unproven %q, skipped %q, suspects %+v", name, s.Unproven, s.Skipped, s.Suspects)
		}
	}
	for _, asked := range []bool{true, false} {
		s := &StageReport{Stage: StageReach, Skipped: Unfit(StageReach, 1)}
		if s.Conclude(asked, newWorld(1, 0, 1).nodes); (s.Unproven != "") != asked {
			t.Errorf("a stage of one node, asked for: %t: %q", asked, s.Unproven)
		}
	}
}

// A name that was asked for and that no two nodes have leaves its stage without a verdict, which has the names
// that exist.
func TestAskedByName(t *testing.T) {
	t.Parallel()
	rails := "no two nodes have it: they have mlx5_0:1, mlx5_1:1"
	for _, tt := range []struct {
		stage    Stage
		asked    []string
		change   func(n *Node, i int)
		planes   string // that were tested
		unproven string
	}{
		{StageRDMA, []string{"mlx5_0:1"}, nil, "mlx5_0:1", ""},
		{StageRDMA, []string{"mlx5_0"}, nil, "mlx5_0:1", ""},
		{StageRDMA, []string{"mlx5_0"}, func(n *Node, _ int) { n.Rails[1].Name = "mlx5_0:2" }, "mlx5_0:1 mlx5_0:2", ""},
		{StageRDMA, []string{"mlx5_"}, nil, "", "write_bw mlx5_: " + rails},
		{StageRDMA, []string{"mlx5_1:1", "mlx5_9"}, nil, "mlx5_1:1", "write_bw mlx5_9: " + rails},
		{StageRDMA, []string{"mlx5_0"}, func(n *Node, _ int) { n.Rails = nil }, "", "write_bw mlx5_0: no two nodes have it: they have none"},
		{StageRDMA, nil, func(n *Node, _ int) { n.Rails = nil }, "", ""},
		{StageRDMA, nil, func(n *Node, i int) { n.Rails = n.Rails[:min(1, i)] }, "mlx5_0:1", ""},
		{StageRDMA, nil, func(n *Node, i int) { n.Rails = n.Rails[:i/3] }, "", ""}, // one node has a port
		{StageRDMA, nil, func(n *Node, i int) { n.Rails = []Rail{{Name: name(i) + ":1"}} }, "", "it did not run: the nodes have nothing that it tests"},
		{StageTCP, []string{"ens7"}, nil, "", "stream ens7: no two nodes have it: they have eth0, eth1"},
		{StageTCP, []string{"ens7", "eth1"}, nil, "eth1", "stream ens7: no two nodes have it: they have eth0, eth1"},
		{StageTCP, []string{"ens0"}, func(n *Node, i int) { n.Planes[0].Name = []string{"eth0", "ens0", "ens0", "ens0"}[i] }, "10.77.0.0/16", ""},
		{StageReach, []string{"eth0"}, nil, "eth0", ""},
		{StageReach, []string{"ens7"}, nil, "", "connect ens7: no two nodes have it: they have eth0, eth1"},
		{StageReach, []string{"ens7"}, func(n *Node, i int) { n.Planes[1].Name, n.Planes[1].Address = name(i), netip.Prefix{} }, "", "connect ens7: no two nodes have it: they have eth0"},
	} {
		w := newWorld(4, 0, 1)
		for i := range w.nodes {
			if tt.change != nil {
				tt.change(&w.nodes[i], i)
			}
		}
		p := w.plan(t, tt.stage, PlanOptions{Seed: 1, Planes: tt.asked})
		s := &StageReport{Stage: tt.stage}
		planes := map[string]bool{}
		for tasks := p.Next(); len(tasks) > 0; tasks = p.Next() {
			var results []Result
			for _, task := range tasks {
				r, _ := w.run(task)
				results = append(results, r)
				if task.Plane != "" {
					planes[task.Plane] = true
				}
			}
			p.Take(results)
			s.Rounds++
			s.Results = append(s.Results, results...)
		}
		s.Fleet = p.Fleet()
		s.Conclude(false, w.nodes)
		if got := strings.Join(slices.Sorted(maps.Keys(planes)), " "); got != tt.planes || s.Unproven != tt.unproven || (s.Rounds == 0) != (s.Skipped != "") {
			t.Errorf("%s of %q: planes %q, want %q, unproven %q, want %q, skipped %q", tt.stage, tt.asked, got, tt.planes, s.Unproven, tt.unproven, s.Skipped)
		}
	}
}

// A node counts as tested only if a test has run on it.
func TestUntested(t *testing.T) {
	t.Parallel()
	pair := func(a, b string, f Fault) Result {
		return Result{Task: Task{Nodes: []string{a, b}}, Fault: f, Text: "no plane"}
	}
	r := &Report{Stages: []StageReport{{Results: []Result{pair("a", "b", FaultUnable), pair("b", "c", FaultSilent), pair("d", "e", FaultLost)}}, {Skipped: "no GPU"}}}
	got := r.Untested([]string{"a", "b", "c", "d"})
	if len(got) != 2 || got["a"] != "no test could run on it: no plane" || got["d"] != "no GPU" {
		t.Errorf("%q", got)
	}
}

// Tests that fail between two parts of the cluster leave the stage unproven unless the parts differ, and fail the
// items of EAS in any case.
func TestApart(t *testing.T) {
	t.Parallel()
	items := &EAS{eas.File{Sanity: eas.Check{Benchmarks: []string{"all_reduce", "all_gather", "network_connectivity"}}}}
	for name, tt := range map[string]struct {
		kind     Kind
		op       string
		remark   string
		change   func(*Node)
		unproven bool
		failed   string
	}{
		"one kind":     {KindNCCL, "all_reduce", separate + "3 nodes fail", func(*Node) {}, true, "all_reduce"},
		"two models":   {KindNCCL, "all_reduce", separate + "3 nodes fail", func(n *Node) { n.Model = "A100" }, false, "all_reduce"},
		"one subnet":   {KindConnect, "", separate + "3 nodes fail", func(*Node) {}, true, "network_connectivity"},
		"two subnets":  {KindConnect, "", separate + "3 nodes fail", func(n *Node) { n.Planes[0].Address = netip.MustParsePrefix("10.99.0.1/16") }, false, "network_connectivity"},
		"other remark": {KindConnect, "", "want the subnet", func(*Node) {}, false, ""},
	} {
		nodes := newWorld(4, 0, 1).nodes
		tt.change(&nodes[3])
		d := Distribution{Kind: tt.kind, Op: tt.op, Remark: tt.remark}
		groups := StageReport{Stage: StageGroups, Ended: time.Unix(1, 0), Results: []Result{
			{Task: Task{Stage: StageGroups, Kind: KindNCCL, Op: "all_reduce"}}, {Task: Task{Stage: StageGroups, Kind: KindNCCL, Op: "all_gather"}},
		}}
		reach := StageReport{Stage: StageReach, Ended: time.Unix(1, 0), Results: []Result{{Task: Task{Stage: StageReach, Kind: KindConnect}}}}
		s := &groups
		if tt.kind == KindConnect {
			d.Plane, s = "eth0", &reach
		}
		s.Fleet = []Distribution{d}
		if s.Conclude(true, nodes); (s.Unproven != "") != tt.unproven {
			t.Errorf("%s: unproven %q", name, s.Unproven)
		}
		failed := ""
		for _, r := range items.Results([]StageReport{groups, reach}) {
			if r.Result != EASSucceeded {
				failed += r.Name
			}
		}
		if failed != tt.failed {
			t.Errorf("%s: items %q have failed, want %q", name, failed, tt.failed)
		}
	}
}
