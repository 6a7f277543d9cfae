package sweep

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// example is the example of the documentation of EAS.
const example = `{
"aimaster": {
"runtime_check": {
"fail_action": "retain",
"micro_benchmarks": "c4d"
},
"sanity_check": {
"fail_action": "retain",
"micro_benchmarks": "gemm_flops,all_reduce_1,all_reduce_2,kernel_launch,all_reduce,all_to_all_2,all_gather_2,all_gather,multi_all_reduce_2,multi_all_reduce,pytorch_gloo_2,network_connectivity,comp_comm_overlap",
"timeout": 100
}
}
}
`

func TestEAS(t *testing.T) {
	t.Parallel()
	eas, err := ParseEAS([]byte(example))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(eas.Sanity.Benchmarks); n != 13 || eas.Sanity.Timeout != 100*time.Minute || eas.Sanity.FailAction != "retain" || eas.Runtime.Benchmarks[0] != "c4d" {
		t.Fatalf("got %+v", eas)
	}
	if diff := cmp.Diff([]Stage{StageNode, StageReach, StageTCP, StagePairs, StageGroups}, eas.Stages()); diff != "" {
		t.Error(diff)
	}
	// The whole file on a healthy fleet, and on one with a node that hangs in NCCL and one whose GPU is slow.
	for _, bad := range []bool{false, true} {
		w := newWorld(12, 0, 1)
		if bad {
			w.fault = map[string]Fault{name(3) + " nccl": FaultSilent, name(4) + " ring": FaultWrong}
			w.checks = map[string]CheckResult{}
		}
		var reports []StageReport
		for _, stage := range eas.Stages() {
			p := w.plan(t, stage, eas.Options(stage, PlanOptions{}))
			report := StageReport{Stage: stage, Ended: time.Unix(1, 0)}
			for tasks := p.Next(); len(tasks) > 0; tasks = p.Next() {
				var results []Result
				for _, task := range tasks {
					for rank, n := range task.Nodes {
						_ = rank
						if f := w.fault[n+" "+string(task.Kind)]; f != "" {
							results = append(results, Result{Task: task, Fault: f})
						}
					}
					if len(results) == 0 || results[len(results)-1].Task.ID != task.ID {
						r, _ := w.run(task)
						if task.Op == "check_gpu_gemm" && bad && task.Nodes[0] == name(5) {
							r.Fault, r.Checks = FaultCheck, []CheckResult{{Check: "check_gpu_gemm", Severity: "fail", Device: "gpu3", Message: "gpu3: slow"}}
						}
						results = append(results, r)
					}
				}
				report.Results = append(report.Results, results...)
				p.Take(results)
			}
			report.Suspects, report.Fleet = p.Suspects(), p.Fleet()
			reports = append(reports, report)
		}
		got := map[string]string{}
		for _, r := range eas.Results(reports) {
			got[r.Name] = r.Result
			if bad && r.Name == "all_gather" && r.Text != "without gpu00003, suspected by an earlier test of the stage" {
				t.Errorf("%s: %s", r.Name, r.Text)
			}
			if r.Result == EASFailed && r.Text == "" {
				t.Errorf("%s failed without a reason", r.Name)
			}
		}
		want := map[string]string{"c4d": EASWatched}
		for _, n := range eas.Sanity.Benchmarks {
			want[n] = EASSucceeded
			if bad && (n == "all_reduce" || strings.Contains(n, "all_") && strings.HasSuffix(n, "_2") || n == "pytorch_gloo_2" || n == "gemm_flops") {
				want[n] = EASFailed
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("bad %v (-want +got):\n%s", bad, diff)
		}
	}
	for _, r := range eas.Results(nil) {
		if r.Name != "c4d" && (r.Result != EASFailed || r.Text != "not run") {
			t.Errorf("without stages: %+v", r)
		}
	}
}

// An item that did not run to its end has failed, and so has one whose test process was lost on a node.
func TestEASIncomplete(t *testing.T) {
	t.Parallel()
	eas, err := ParseEAS([]byte(`{"sanity_check": {"micro_benchmarks": "gemm_flops,all_reduce_2,all_gather_2"}}`))
	if err != nil {
		t.Fatal(err)
	}
	gemm := func(node string, fault Fault) Result {
		r := Result{Task: Task{Stage: StageNode, Kind: KindCheck, Op: "check_gpu_gemm", Nodes: []string{node}}, Fault: fault}
		if fault == FaultLost {
			r.Blame, r.Text = []string{node}, "its rank has ended"
		}
		return r
	}
	nccl := func(op, a, b string) Result {
		return Result{Task: Task{Stage: StagePairs, Kind: KindNCCL, Op: op, Nodes: []string{a, b}}}
	}
	pair := nccl("all_reduce", "a", "b")
	lost := pair
	lost.Fault, lost.Blame, lost.Text = FaultLost, []string{"b"}, "its rank has ended"
	end := time.Unix(1, 0)
	for name, tt := range map[string]struct {
		stage StageReport
		item  int
		want  string // the text; "": it has succeeded
	}{
		"all nodes":             {StageReport{Stage: StageNode, Ended: end, Results: []Result{gemm("a", FaultNone), gemm("b", FaultNone)}}, 0, ""},
		"cut off":               {StageReport{Stage: StageNode, Results: []Result{gemm("a", FaultNone)}}, 0, "the sweep has ended before"},
		"cut off at once":       {StageReport{Stage: StageNode}, 0, "the sweep has ended before"},
		"skipped":               {StageReport{Stage: StageNode, Skipped: "no node is left to test"}, 0, "not run: no node is left to test"},
		"a lost node":           {StageReport{Stage: StageNode, Ended: end, Results: []Result{gemm("a", FaultNone), gemm("b", FaultLost)}}, 0, "not run on b: its rank has ended"},
		"lost, and here again":  {StageReport{Stage: StageNode, Ended: end, Results: []Result{gemm("a", FaultLost), gemm("a", FaultNone)}}, 0, ""},
		"a lost node of a pair": {StageReport{Stage: StagePairs, Ended: end, Results: []Result{pair, lost}}, 1, "not run on b: its rank has ended"},
		"lost in an item before": {
			StageReport{Stage: StagePairs, Ended: end, Results: []Result{lost, nccl("all_gather", "c", "d")}}, 2, "not run on b: its rank has ended",
		},
		"lost in an item after": {StageReport{Stage: StagePairs, Ended: end, Results: []Result{nccl("all_gather", "b", "c"), lost}}, 2, ""},
	} {
		r := eas.Results([]StageReport{tt.stage})[tt.item]
		if r.Text != tt.want || (r.Result == EASSucceeded) != (tt.want == "") {
			t.Errorf("%s: %+v, want %q", name, r, tt.want)
		}
	}
}
