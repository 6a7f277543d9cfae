package sweep

import (
	"net/netip"
	"strings"
	"testing"
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
	eas := &EAS{Sanity: EASCheck{Benchmarks: []string{"all_reduce", "all_gather", "network_connectivity"}}}
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
		groups := StageReport{Stage: StageGroups, Results: []Result{
			{Task: Task{Stage: StageGroups, Kind: KindNCCL, Op: "all_reduce"}}, {Task: Task{Stage: StageGroups, Kind: KindNCCL, Op: "all_gather"}},
		}}
		reach := StageReport{Stage: StageReach, Results: []Result{{Task: Task{Stage: StageReach, Kind: KindConnect}}}}
		s := &groups
		if tt.kind == KindConnect {
			d.Plane, s = "eth0", &reach
		}
		s.Fleet = []Distribution{d}
		if s.Conclude(true, nodes); (s.Unproven != "") != tt.unproven {
			t.Errorf("%s: unproven %q", name, s.Unproven)
		}
		failed := ""
		for _, r := range eas.Results([]StageReport{groups, reach}) {
			if r.Result != EASSucceeded {
				failed += r.Name
			}
		}
		if failed != tt.failed {
			t.Errorf("%s: items %q have failed, want %q", name, failed, tt.failed)
		}
	}
}
