package sweep

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/launch"
)

// example is the file of EAS's documentation.
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
}`

func TestEAS(t *testing.T) {
	t.Parallel()
	e, err := parseEAS([]byte(example))
	if err != nil {
		t.Fatal(err)
	}
	if len(e.items) != 13 || e.limit != 100*time.Minute || e.action != "retain" || len(e.notes) != 2 {
		t.Errorf("%+v", e)
	}
	want := []sweep.Stage{sweep.StageNode, sweep.StageReach, sweep.StageTCP, sweep.StagePairs, sweep.StageGroups}
	if diff := cmp.Diff(want, e.stages()); diff != "" {
		t.Errorf("stages (-want +got)\n%s", diff)
	}
	for stage, want := range map[sweep.Stage]sweep.PlanOptions{
		sweep.StageNode:   {Lines: []string{"check_gpu_gemm", "check_nccl all_reduce", "check_gpu_launch", "check_comp_comm_overlap"}},
		sweep.StageReach:  {Ends: true},
		sweep.StageTCP:    {NoStream: true, RingSizes: []int{2}},
		sweep.StagePairs:  {Ops: []string{"all_reduce", "all_to_all", "all_gather", "multi_all_reduce"}},
		sweep.StageGroups: {Ops: []string{"all_reduce", "all_gather", "multi_all_reduce"}, GroupSizes: []int{0}},
	} {
		var o sweep.PlanOptions
		e.apply(stage, &o)
		if diff := cmp.Diff(want, o); diff != "" {
			t.Errorf("%s (-want +got)\n%s", stage, diff)
		}
	}
	if e, err := parseEAS([]byte(`{"sanity_check": {"micro_benchmarks": "GEMM_FLOPS, gemm_flops"}}`)); err != nil || len(e.items) != 1 || e.limit != 0 {
		t.Errorf("without aimaster: %+v, %v", e, err)
	}
	for text, want := range map[string]string{
		"":   "want an object of JSON",
		"[]": "want an object of JSON",
		"{}": "it has no sanity_check",
		`{"sanity_check": {"micro_benchmarks": " , "}}`:                              "micro_benchmarks of sanity_check is empty",
		`{"sanity_check": {"micro_benchmarks": "gemm_flop"}}`:                        `there is no check item "gemm_flop"; did you mean gemm_flops`,
		`{"sanity_check": {"micro_benchmarks": "gemm_flops", "timeout": -1}}`:        "timeout -1: want minutes",
		`{"sanity_check": {"micro_benchmarks": "gemm_flops", "timeout": "an hour"}}`: "want an object of JSON",
	} {
		if _, err := parseEAS([]byte(text)); err == nil || !strings.Contains(err.Error(), strings.SplitN(want, ";", 2)[0]) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func TestEASResults(t *testing.T) {
	t.Parallel()
	e := eas{items: []string{"gemm_flops", "kernel_launch", "network_connectivity", "pytorch_gloo_2", "all_reduce_2", "all_gather_2", "all_to_all_2", "all_reduce"}}
	task := func(k sweep.Kind, op string, nodes ...string) sweep.Task {
		return sweep.Task{Kind: k, Op: op, Nodes: nodes}
	}
	now := time.Now()
	r := &sweep.Report{Interrupted: "SIGTERM", Stages: []sweep.StageReport{
		{
			Stage: sweep.StageNode, Ended: now, Results: []sweep.Result{{Task: task(sweep.KindCheck, "check_gpu_gemm", "a")}, {Task: task(sweep.KindCheck, "check_gpu_launch", "a")}},
			Suspects: []sweep.Suspect{{Node: "a", Ops: []string{"check_gpu_gemm"}, Text: "gpu3 is slow"}},
		},
		{Stage: sweep.StageReach, Ended: now, Results: []sweep.Result{{Task: task(sweep.KindEcho, "", "a", "b")}}},
		{Stage: sweep.StageTCP, Skipped: "it needs two nodes"},
		{
			Stage: sweep.StagePairs, Ended: now,
			Results: []sweep.Result{
				{Task: task(sweep.KindNCCL, "all_reduce", "a", "b")}, {Task: task(sweep.KindNCCL, "all_gather", "a", "b")},
				{Task: task(sweep.KindNCCL, "all_to_all", "a", "b"), Fault: sweep.FaultUnable, Text: "no NCCL"},
			},
			Suspects: []sweep.Suspect{{Node: "b", Ops: []string{"all_gather"}, Text: "b is slow"}},
		},
		{Stage: sweep.StageGroups},
	}}
	want := []sweep.EASResult{
		{Name: "gemm_flops", Result: failed, Text: "gpu3 is slow"},
		{Name: "kernel_launch", Result: succeeded},
		{Name: "network_connectivity", Result: succeeded},
		{Name: "pytorch_gloo_2", Result: failed, Text: "not run: it needs two nodes"},
		{Name: "all_reduce_2", Result: succeeded},
		{Name: "all_gather_2", Result: failed, Text: "b is slow"},
		{Name: "all_to_all_2", Result: failed, Text: "not run: no NCCL"},
		{Name: "all_reduce", Result: failed, Text: "not finished: SIGTERM"},
	}
	if diff := cmp.Diff(want, e.judge(r)); diff != "" {
		t.Errorf("results (-want +got)\n%s", diff)
	}
}

// parsed returns the options of a command line.
func parsed(t *testing.T, words ...string) *flags {
	t.Helper()
	f := new(flags)
	cmd := &cobra.Command{Use: "sweep"}
	f.add(cmd)
	if err := cmd.ParseFlags(words); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestConflicts(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]string{
		"":                          "",
		"--maintenance":             "--maintenance needs root",
		"--drain":                   "--drain needs root",
		"--resume":                  "--resume is an option of --maintenance",
		"--time 0s":                 "want a positive time",
		"--batch -1":                "want a number that is not negative",
		"--stages tcp,pears":        `there is no stage "pears"`,
		"--stages tcp --skip tcp":   "all stages are skipped",
		"--nodes gpu[1-":            `--nodes: "gpu[1-" is not a list of nodes`,
		"--eas /no/such/file":       "--eas: open /no/such/file",
		"--check x --skip node":     "all stages are skipped",
		"--stages node --check 'x'": "",
	} {
		_, _, err := parsed(t, strings.Fields(words)...).options("1.0", false)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", words, err, want)
		}
	}
	f := parsed(t)
	for what, c := range map[string]struct {
		o     launch.Options
		words string
		want  string
	}{
		"maintenance in a job": {launch.Options{Root: true, Job: "7"}, "--maintenance", "does not work inside of a job"},
		"idle in a job":        {launch.Options{Job: "7"}, "--idle", "inside of a job --idle"},
		"both":                 {launch.Options{Root: true}, "--maintenance --idle", "exclude each other"},
		"in order":             {launch.Options{Root: true}, "--maintenance --resume --drain", ""},
	} {
		f = parsed(t, strings.Fields(c.words)...)
		if err := f.conflicts(&c.o, false); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}

func TestStages(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]string{
		"":                        "node reach tcp rdma pairs groups",
		"--stages tcp,reach":      "reach tcp",
		"--skip node,groups":      "reach tcp rdma pairs",
		"--check check_gpu_count": "node",
		"--check x --stages tcp":  "tcp",
	} {
		list, err := parsed(t, strings.Fields(words)...).chosenStages(nil)
		var got []string
		for _, s := range list {
			got = append(got, string(s))
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %v, %v, want %s", words, got, err, want)
		}
	}
}

// The plans get the options: each stage its own planes.
func TestPlanner(t *testing.T) {
	t.Parallel()
	f := parsed(t, "--planes", "eth0", "--rails", "mlx5_0:1", "--check", "check_gpu_count", "--batch", "1")
	node := func(name string) sweep.Node {
		return sweep.Node{Name: name, Planes: []sweep.Plane{{Name: "eth0"}, {Name: "eth1"}}, Rails: []sweep.Rail{{Name: "mlx5_0:1"}, {Name: "mlx5_1:1"}}}
	}
	for stage, want := range map[sweep.Stage]string{sweep.StageNode: "", sweep.StageReach: "eth0", sweep.StageTCP: "eth0", sweep.StageRDMA: "mlx5_0:1"} {
		plan, err := f.planner(nil)(stage, []sweep.Node{node("a"), node("b")}, 7, 5)
		if err != nil {
			t.Fatal(err)
		}
		tasks := plan.Next()
		if len(tasks) == 0 {
			t.Errorf("%s: no task", stage)
		}
		for _, task := range tasks {
			if task.Plane != want || task.ID < 5 || stage == sweep.StageNode && (task.Op != "check_gpu_count" || len(tasks) != 1) {
				t.Errorf("%s: %+v", stage, task)
			}
		}
	}
}

func TestExitStatus(t *testing.T) {
	t.Parallel()
	tested := []sweep.NodeReport{{State: "tested"}}
	for _, tt := range []struct {
		r    sweep.Report
		want int
	}{
		{sweep.Report{Nodes: tested}, 0},
		{sweep.Report{Nodes: tested, Suspects: []sweep.Suspect{{}}, Interrupted: "x"}, 1},
		{sweep.Report{Nodes: tested, Interrupted: "x"}, 3},
		{sweep.Report{Nodes: slices.Concat(tested, []sweep.NodeReport{{State: "frozen"}})}, 3},
		{sweep.Report{Nodes: tested, EAS: []sweep.EASResult{{Result: failed}}}, 3},
		{sweep.Report{Nodes: tested, EAS: []sweep.EASResult{{Result: succeeded}}}, 0},
	} {
		if got := exitOf(&tt.r); got != tt.want {
			t.Errorf("%+v: %d, want %d", tt.r, got, tt.want)
		}
	}
}
