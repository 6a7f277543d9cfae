package sweep

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/launch"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// An EAS file chooses the stages, what they test, and the time limit.
func TestEAS(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "eas.json")
	text := `{"aimaster": {"sanity_check": {"fail_action": "retain", "micro_benchmarks": "gemm_flops,all_reduce_2", "timeout": 100}}}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o, file, err := parsed(t, "--eas", path).options("1.0", false)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]sweep.Stage{sweep.StageNode, sweep.StagePairs}, o.Stages); diff != "" || o.Time != 100*time.Minute || file == nil {
		t.Errorf("time %v, stages (-want +got)\n%s", o.Time, diff)
	}
	plan, err := o.Plan(sweep.StageNode, []sweep.Node{{Name: "a"}}, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	if tasks := plan.Next(); len(tasks) != 1 || tasks[0].Op != "check_gpu_gemm" {
		t.Errorf("%+v", tasks)
	}
	if _, _, err := parsed(t, "--eas", path, "--stages", "tcp").options("1.0", false); err == nil || !strings.Contains(err.Error(), "--eas excludes --stages") {
		t.Error(err)
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
		f := parsed(t, strings.Fields(c.words)...)
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

// Stages that are named must say something.
func TestAsked(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]bool{"": false, "--skip groups": false, "--stages tcp": true, "--check check_gpu_count": true} {
		o, _, err := parsed(t, strings.Fields(words)...).options("1.0", false)
		if err != nil || o.Asked != want {
			t.Errorf("%s: %t, want %t, %v", words, o.Asked, want, err)
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

// Without a terminal there is a line for each stage, not for each test.
func TestPlainProgress(t *testing.T) {
	t.Parallel()
	var lines []string
	w := &watcher{print: func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }}
	w.progress(launch.Progress{Doing: "start the ranks"})
	for ended := range 3 {
		w.progress(launch.Progress{Stage: sweep.StageTCP, Round: 1, Left: 3, Tasks: 2, Ended: ended, About: time.Minute})
	}
	w.log("node %s is not tested", "gpu01")
	w.plain = w.plain.Add(-plainEvery)
	w.progress(launch.Progress{Stage: sweep.StageTCP, Round: 4, Tasks: 2, Ended: 1, Suspects: 1})
	w.progress(launch.Progress{Stage: sweep.StagePairs, Round: 1})
	want := []string{
		"start the ranks", "tcp: round 1 of about 4, 2 tests running, about 60 s left", "node gpu01 is not tested",
		"tcp: round 4 of about 4, 1 suspect, 1 test running", "pairs: round 1 of about 1",
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestExitStatus(t *testing.T) {
	t.Parallel()
	tested := []sweep.NodeReport{{State: "tested"}}
	bad := errors.New("cancel job 7: scancel did not answer")
	for _, tt := range []struct {
		r    sweep.Report
		err  error
		want int
	}{
		{sweep.Report{Nodes: tested}, nil, 0},
		{sweep.Report{Nodes: tested, Suspects: []sweep.Suspect{{}}, Interrupted: "x"}, nil, 1},
		{sweep.Report{Nodes: tested, Stages: []sweep.StageReport{{}}, Suspects: []sweep.Suspect{{}}}, bad, 1},
		{sweep.Report{Nodes: tested, Interrupted: "x"}, nil, 3},
		{sweep.Report{Nodes: tested, Interrupted: "x"}, bad, 3},
		{sweep.Report{Nodes: tested, Stages: []sweep.StageReport{{}}}, bad, 3},
		{sweep.Report{}, bad, 10},
		{sweep.Report{Nodes: tested, Stages: []sweep.StageReport{{Skipped: "no GPU"}}}, nil, 0},
		{sweep.Report{Nodes: tested, Stages: []sweep.StageReport{{Unproven: "most nodes fail"}}}, nil, 3},
		{sweep.Report{Nodes: slices.Concat(tested, []sweep.NodeReport{{State: "frozen"}})}, nil, 3},
		{sweep.Report{Nodes: tested, EAS: []sweep.EASResult{{Result: sweep.EASFailed}}}, nil, 3},
		{sweep.Report{Nodes: tested, EAS: []sweep.EASResult{{Result: sweep.EASSucceeded}}}, nil, 0},
	} {
		if got := exitOf(&tt.r, tt.err); got != tt.want {
			t.Errorf("%+v, %v: %d, want %d", tt.r, tt.err, got, tt.want)
		}
	}
}

// Each stage has rounds to count before the nodes have described themselves.
func TestAssumed(t *testing.T) {
	t.Parallel()
	f := parsed(t)
	nodes := []sweep.Node{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	f.assume(nodes)
	for _, stage := range sweep.Stages {
		plan, err := f.planner(nil)(stage, nodes, 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		if len(plan.Next()) == 0 {
			t.Errorf("%s: no task", stage)
		}
	}
}

// A report that cannot be written does not hide the suspects.
func TestUnwritableReport(t *testing.T) {
	t.Parallel()
	f := parsed(t, "--report", "/no/such/directory/x.json")
	for want, r := range map[int]*sweep.Report{
		1: {Suspects: []sweep.Suspect{{Node: "a", Code: "sweep.tcp.slow"}}, Stages: []sweep.StageReport{{}}},
		3: {Nodes: []sweep.NodeReport{{State: "tested"}}, Stages: []sweep.StageReport{{}}},
	} {
		if got := f.end(r, nil, nil); got != want {
			t.Errorf("%+v: %d, want %d", r, got, want)
		}
	}
}

// A sweep is continued with its own options. Others are refused, not ignored.
func TestRecall(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	if err := os.Mkdir(filepath.Join(state, "1"), 0o700); err != nil {
		t.Fatal(err)
	}
	text := `{"id": "1", "command": ["sweep", "--nodes", "gpu[01-04]", "--stages", "tcp", "--time", "1h"]}`
	if err := os.WriteFile(filepath.Join(state, "1", "sweep.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for words, want := range map[string]string{
		"":                                  "",
		"--json --drain --time 2h":          "",
		"--nodes gpu[01-04] --stages tcp":   "",
		"--resume":                          "--continue has the options of sweep 1: --resume cannot be added",
		"--drain --skip groups":             "--continue has the options of sweep 1: --skip cannot be added",
		"--nodes gpu[01-05] --compare last": "--continue has the options of sweep 1: --nodes cannot be added",
		"--dry-run":                         "--continue has the options of sweep 1: --dry-run cannot be added",
	} {
		f := new(flags)
		cmd := &cobra.Command{Use: "sweep"}
		f.add(cmd)
		if err := cmd.ParseFlags(append(strings.Fields(words), "--continue", "1")); err != nil {
			t.Fatal(err)
		}
		_, err := f.recall(cmd, state)
		if (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%s: %v, want %q", words, err, want)
		}
		if err == nil && (f.nodes != "gpu[01-04]" || f.goOn != "1" || f.drain != strings.Contains(words, "--drain")) {
			t.Errorf("%s: %+v", words, f)
		}
	}
}

// The report says of a suspect what became of its drain, and of one that a maintenance has drained again, that.
func TestNoteAction(t *testing.T) {
	t.Parallel()
	none := slurm.Outcome{Decision: slurm.Decision{Why: "drained for this reason already"}}
	drain := slurm.Outcome{Decision: slurm.Decision{Action: slurm.Drain, Reason: "NHC: x"}}
	for _, tt := range []struct {
		after string
		out   slurm.Outcome
		want  string
	}{
		{"", none, "not drained: drained for this reason already"},
		{"drained again, with the same reason", none, "drained again, with the same reason"},
		{"not drained again: nhc-gpu sweep --repair", drain, "drained: NHC: x"},
		{"", drain, "drained: NHC: x"},
	} {
		n := &sweep.NodeReport{After: tt.after}
		if noteAction(n, new(event.Event), &tt.out, nil, false); n.After != tt.want {
			t.Errorf("%q: %q, want %q", tt.after, n.After, tt.want)
		}
	}
}

// With --resume each node has more partners than are needed.
func TestResumeMatchings(t *testing.T) {
	t.Parallel()
	var nodes []sweep.Node
	for i := range 40 {
		nodes = append(nodes, sweep.Node{Name: fmt.Sprint("gpu", i), GPUs: 8, Planes: []sweep.Plane{{Name: "eth0"}}})
	}
	for words, want := range map[string]int{"": 2, "--maintenance --resume": 4} {
		plan, err := parsed(t, strings.Fields(words)...).planner(nil)(sweep.StageTCP, nodes, 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		partners := map[string]bool{}
		for tasks := plan.Next(); len(tasks) > 0; tasks = plan.Next() {
			var results []sweep.Result
			for _, task := range tasks {
				if task.Kind == sweep.KindStream && task.Nodes[0] == "gpu0" {
					partners[task.Nodes[1]] = true
				}
				results = append(results, sweep.Result{Task: task, Values: []float64{90, 90, 90, 90}})
			}
			plan.Take(results)
		}
		if len(partners) != want {
			t.Errorf("%q: %d partners, want %d", words, len(partners), want)
		}
	}
}
