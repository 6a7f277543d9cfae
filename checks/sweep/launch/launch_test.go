package launch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/slurm"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

func calls(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a command that was ended at once has written nothing
		t.Fatal(err)
	}
	return string(data)
}

func TestHealthyCluster(t *testing.T) {
	t.Parallel()
	dir, o := fakeSlurm(t, 4)
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	pair := []string{"gpu01-gpu02 [11]  ", "gpu03-gpu04 [11]  "} // the receiver measures
	if diff := cmp.Diff(slices.Concat(pair, pair), resultsOf(r)); diff != "" {
		t.Errorf("results (-want +got)\n%s", diff)
	}
	if len(r.Nodes) != 4 || len(r.Suspects) > 0 || r.Interrupted != "" || r.Cluster != "fake" || r.Job != "7" {
		t.Errorf("report %+v", r)
	}
	if n := r.Nodes[1]; n.Leaf != "s1" || !n.Busy || n.State != "tested" || !r.Stages[0].Results[0].Beside || r.Stages[0].Results[1].Beside {
		t.Errorf("node %+v, results %+v", n, r.Stages[0].Results)
	}
	log := calls(t, dir)
	for _, want := range []string{"salloc --no-shell", "--exclusive", "--time=10", "srun --jobid=7 --nodes=1 --ntasks=1", "scancel 7"} {
		if !strings.Contains(log, want) {
			t.Errorf("no call %s in\n%s", want, log)
		}
	}
	if left := livingRanks(dir); len(left) > 0 {
		t.Errorf("ranks %v are left", left)
	}
	again, err := LoadReport(o.State, r.ID)
	if err != nil || len(again.Stages) != 1 || len(again.Stages[0].Results) != 4 {
		t.Errorf("saved report: %v", err)
	}
	if list, err := List(o.State); err != nil || len(list) != 1 || list[0].Running || list[0].Suspects != 0 || list[0].Job != "7" {
		t.Errorf("list %+v, %v", list, err)
	}
	err = filepath.Walk(o.State, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// On the nodes of a job that is not exclusive, other jobs can start at any time: each test counts as beside
// others.
func TestSharedJob(t *testing.T) {
	t.Parallel()
	dir, o := fakeSlurm(t, 4)
	put(t, dir, "gres", "OverSubscribe=OK")
	put(t, dir, "jobs", "")
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range r.Nodes {
		if !n.Busy {
			t.Errorf("%s counts as alone", n.Name)
		}
	}
	for _, x := range r.Stages[0].Results {
		if !x.Beside {
			t.Errorf("the test of %v counts as alone", x.Task.Nodes)
		}
	}
}

// Each step asks for the GPUs that the job owns on its nodes. If Slurm refuses them, the ranks start
// without, and the stages that need GPUs exclude the nodes whose ranks cannot use all.
func TestGPUsOfSteps(t *testing.T) {
	t.Parallel()
	for _, refused := range []bool{false, true} {
		dir, o := fakeSlurm(t, 4)
		put(t, dir, "gres", "Nodes=gpu[01-02] CPU_IDs=0-15 Mem=0 GRES=gpu:8(IDX:0-7) Nodes=gpu[03-04] CPU_IDs=0-15 Mem=0 GRES=gpu:8(IDX:0-7)")
		put(t, dir, "closed-gpu01", "")
		if refused {
			put(t, dir, "no-gres", "")
		}
		o.Stages, o.OnGPUs = []sweep.Stage{sweep.StageTCP, sweep.StagePairs}, []sweep.Stage{sweep.StagePairs}
		r, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		pair := []string{"gpu01-gpu02 [11]  ", "gpu03-gpu04 [11]  "}
		if diff := cmp.Diff(slices.Concat(pair, pair, []string{"gpu02-gpu03 [11]  ", "gpu02-gpu03 [11]  "}), resultsOf(r)); diff != "" {
			t.Errorf("refused %v: results (-want +got)\n%s", refused, diff)
		}
		want := "not tested by pairs: job 7 can use 2 of its 8 GPUs: give the job all of them (--exclusive, and with --gres all that gres.conf has)"
		if state, why := stateOf(r, "gpu01"); state != "excluded" || why != want {
			t.Errorf("refused %v: gpu01: %s (%s)", refused, state, why)
		}
		log := calls(t, dir)
		if strings.Count(log, "--gres=gpu:8") != 4 || strings.Contains(log, "--gpus-per-task=8") != refused {
			t.Errorf("refused %v: the steps ask for other GPUs\n%s", refused, log)
		}
	}
}

// A node that a stage of a continued sweep lacks is tested in the next one.
func TestAbsentInOneStage(t *testing.T) {
	t.Parallel()
	dir, o := fakeSlurm(t, 2)
	o.Plan = pairRounds(1, 20*time.Second)
	o.Stages, o.OnGPUs = []sweep.Stage{sweep.StagePairs, sweep.StageTCP}, []sweep.Stage{sweep.StagePairs}
	ctx, cancel := context.WithCancelCause(t.Context())
	o.Progress = func(p Progress) {
		if p.Stage == sweep.StagePairs {
			cancel(errors.New("SIGTERM"))
		}
	}
	r, err := Run(ctx, o)
	if err != nil || r.Interrupted != "SIGTERM" {
		t.Fatalf("interrupted %q, %v", r.Interrupted, err)
	}
	for _, name := range []string{"cancelled", "joblist"} {
		_ = os.Remove(filepath.Join(dir, name))
	}
	put(t, dir, "gres", "Nodes=gpu[01-02] CPU_IDs=0-15 Mem=0 GRES=gpu:8(IDX:0-7)")
	put(t, dir, "closed-gpu01", "")
	o.Continue, o.Progress = r.ID, nil
	if r, err = Run(t.Context(), o); err != nil || len(r.Stages) != 2 {
		t.Fatalf("%d stages, %v", len(r.Stages), err)
	}
	if x := r.Stages[0].Results; len(x) != 1 || x[0].Fault != sweep.FaultUnable {
		t.Errorf("pairs: %+v", x)
	}
	if x := r.Stages[1].Results; len(x) != 1 || x[0].Fault != sweep.FaultNone {
		t.Errorf("tcp: %+v", x)
	}
}

// Each faulty node is a result, and the others are tested to the end.
func TestFaultyNodes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		files   []string
		limit   time.Duration
		state   string // of gpu04
		why     string
		results []string
	}{
		"frozen":           {[]string{"frozen-gpu04"}, 20 * time.Second, "frozen", "its slurmd starts nothing: Socket timed out", []string{"gpu01-gpu02 [11]  ", "gpu01-gpu02 [11]  "}},
		"freezes later":    {[]string{"freezes-gpu04"}, 20 * time.Second, "frozen", "its slurmd starts nothing: Socket timed out", []string{"gpu01-gpu02 [11]  ", "gpu01-gpu02 [11]  "}},
		"another version":  {[]string{"old-gpu04"}, 20 * time.Second, "refused", "gpu04 has nhc-gpu 0.1, the launcher has 1.0", []string{"gpu01-gpu02 [11]  ", "gpu01-gpu02 [11]  "}},
		"dies":             {[]string{"dies-gpu04", "gone-gpu04"}, 20 * time.Second, "dead", "its rank has ended, and Slurm starts nothing on the node: srun: error: Task launch", []string{"gpu01-gpu02 [11]  ", "gpu03-gpu04 null lost gpu04", "gpu01-gpu02 [11]  ", "gpu03-gpu04 null lost gpu04"}},
		"starts again":     {[]string{"dies-gpu04", "restarted-gpu04"}, 20 * time.Second, "dead", "its rank has ended, and the node has started again", []string{"gpu01-gpu02 [11]  ", "gpu03-gpu04 null lost gpu04", "gpu01-gpu02 [11]  ", "gpu03-gpu04 null lost gpu04"}},
		"Slurm is gone":    {[]string{"dies-gpu04", "gone-gpu04"}, 20 * time.Second, "dead", "its rank has ended, and Slurm could not be asked", []string{"gpu01-gpu02 [11]  ", "gpu03-gpu04 null lost gpu04", "gpu01-gpu02 [11]  ", "gpu03-gpu04 null lost gpu04"}},
		"Slurm is busy":    {[]string{"dies-gpu04", "busy"}, 20 * time.Second, "dead", "its rank has ended, and Slurm is busy: srun: Job 7 step creation temporarily disabled", []string{"gpu01-gpu02 [11]  ", "gpu03-gpu04 null lost gpu04", "gpu01-gpu02 [11]  ", "gpu03-gpu04 null lost gpu04"}},
		"Slurm was busy":   {[]string{"dies-gpu04", "busy", "created", "gone-gpu04"}, 20 * time.Second, "dead", "its rank has ended, and Slurm starts nothing on the node: srun: error: Task launch", []string{"gpu01-gpu02 [11]  ", "gpu03-gpu04 null lost gpu04", "gpu01-gpu02 [11]  ", "gpu03-gpu04 null lost gpu04"}},
		"a killed rank":    {[]string{"dies-gpu04"}, 20 * time.Second, "excluded", "its rank has ended, although the node responds", []string{"gpu01-gpu02 [11]  ", "gpu03-gpu04 null lost gpu04", "gpu01-gpu02 [11]  ", "gpu03-gpu04 null lost gpu04"}},
		"is ended":         {[]string{"leaves-gpu04"}, 20 * time.Second, "excluded", "its rank was ended before the sweep: ended by SIGTERM", []string{"gpu01-gpu02 [11]  ", "gpu01-gpu02 [11]  "}},
		"stops":            {[]string{"stops-gpu04", "gone-gpu04"}, 60 * time.Second, "dead", "its rank is silent, and Slurm starts nothing on the node", []string{"gpu01-gpu02 [11]  ", "gpu03-gpu04 null lost gpu04", "gpu01-gpu02 [11]  ", "gpu03-gpu04 null lost gpu04"}},
		"is cut off":       {[]string{"stops-gpu04"}, 60 * time.Second, "excluded", "its rank is silent, although the node responds", []string{"gpu01-gpu02 [11]  ", "gpu03-gpu04 null lost gpu04", "gpu01-gpu02 [11]  ", "gpu03-gpu04 null lost gpu04"}},
		"does not answer":  {[]string{"mute-gpu04"}, time.Second, "suspect", "no answer within 2s from gpu04", []string{"gpu01-gpu02 [11]  ", "gpu03-gpu04 null silent gpu04", "gpu01-gpu02 [11]  ", "gpu03-gpu04 null silent gpu04"}},
		"cannot":           {[]string{"unready-gpu04"}, 20 * time.Second, "excluded", "no test could run on it: no such plane", []string{"gpu01-gpu02 [11]  ", "gpu03-gpu04 null unable ", "gpu01-gpu02 [11]  ", "gpu03-gpu04 null unable "}},
		"computes wrongly": {[]string{"faulty-gpu04"}, 20 * time.Second, "tested", "", []string{"gpu01-gpu02 [11]  ", "gpu03-gpu04 null wrong ", "gpu01-gpu02 [11]  ", "gpu03-gpu04 null wrong "}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, o := fakeSlurm(t, 4)
			for _, f := range tt.files {
				put(t, dir, f, "")
			}
			o.Plan = pairRounds(2, tt.limit)
			switch name {
			case "does not answer":
				o.limits.slack = time.Second
			case "Slurm is gone":
				o.Progress = func(p Progress) {
					if p.Ended > 0 {
						put(t, dir, "fail-sinfo", "")
					}
				}
			}
			r, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.results, resultsOf(r)); diff != "" {
				t.Errorf("results (-want +got)\n%s", diff)
			}
			state, why := stateOf(r, "gpu04")
			if state != tt.state || !strings.HasPrefix(why, tt.why) {
				t.Errorf("gpu04: %s (%s), want %s (%s)", state, why, tt.state, tt.why)
			}
			for _, n := range []string{"gpu01", "gpu02"} {
				if state, why := stateOf(r, n); state != "tested" {
					t.Errorf("%s: %s (%s)", n, state, why)
				}
			}
		})
	}
}

// A sweep whose tests cannot run has tested nothing, and says so.
func TestNothingRuns(t *testing.T) {
	t.Parallel()
	dir, o := fakeSlurm(t, 2)
	put(t, dir, "unready-gpu02", "")
	o.Stages, o.Asked = []sweep.Stage{sweep.StagePairs}, true
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if x := r.Stages[0]; x.Unproven != "it did not run: no test could run: no such plane" {
		t.Errorf("unproven %q", x.Unproven)
	}
	if state, why := stateOf(r, "gpu01"); state != "excluded" || why != "no test could run on it: no such plane" {
		t.Errorf("gpu01: %s (%s)", state, why)
	}
}

// Steps of 64 nodes are started again without the frozen node that has ended them. They go on without nodes
// whose process has ended, which have the reason.
func TestLargeSteps(t *testing.T) {
	tier.All(t)
	t.Parallel()
	dir, o := fakeSlurm(t, 67)
	put(t, dir, "freezes-gpu10", "")
	put(t, dir, "noexec-gpu20", "")
	put(t, dir, "killed-gpu30", "")
	o.Plan = pairRounds(1, 60*time.Second)
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if state, why := stateOf(r, "gpu10"); state != "frozen" {
		t.Errorf("gpu10: %s (%s)", state, why)
	}
	if state, why := stateOf(r, "gpu20"); state != "excluded" || !strings.HasPrefix(why, "there is no "+o.Program[0]) {
		t.Errorf("gpu20: %s (%s)", state, why)
	}
	if state, why := stateOf(r, "gpu30"); state != "excluded" || why != "its process ended: Killed" {
		t.Errorf("gpu30: %s (%s)", state, why)
	}
	tested := 0
	for _, n := range r.Nodes {
		if n.State == "tested" {
			tested++
		}
	}
	if tested != 64 || len(r.Stages[0].Results) != 32 {
		t.Errorf("%d nodes and %d pairs tested, want 64 and 32", tested, len(r.Stages[0].Results))
	}
	if log := calls(t, dir); !strings.Contains(log, "--nodes=64") || !strings.Contains(log, "--nodelist=gpu[01-09,11-64]") {
		t.Error("the steps are not those of 64 nodes, and again without gpu10")
	}
}

// The messages of srun name the reason of a step that does not start. Those of a step that Slurm ends, and
// that starts again, name none.
func TestHear(t *testing.T) {
	t.Parallel()
	const busy = "srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)"
	for errs, want := range map[string]string{
		busy + "\n": "its step does not start: " + busy,
		"srun: error: gpu01: task 0: Killed\n0: out of memory\n":                                                           "its process ended: out of memory",
		"srun: error: Task launch for 7.0 failed on node gpu02: timed out\nsrun: error: gpu01: task 0: Killed\n0: ended\n": "",
		"srun: cluster configuration lacks support for cpu binding\n":                                                      "",
	} {
		s := &sweeper{
			Options: Options{Program: []string{"/usr/sbin/nhc-gpu"}}, stopped: map[string]string{}, unsure: map[string]string{},
			hub: newHub([]string{"gpu01"}, time.Second, t.Logf),
		}
		s.hear(t.Context(), []string{"gpu01", "gpu02"})([]byte(errs))
		if got := s.stopped["gpu01"] + s.unsure["gpu01"]; got != want {
			t.Errorf("%s: %q, want %q", errs, got, want)
		}
	}
}

// The ranks may come as late as a prolog allows.
func TestLimitOfProlog(t *testing.T) {
	t.Parallel()
	for config, want := range map[string]time.Duration{
		"PrologEpilogTimeout = 120 sec\n":                                                 0,
		"Prolog[0] = /etc/slurm/prolog.d/*\nPrologEpilogTimeout = 120 sec\n":              2 * time.Minute,
		"Prolog = /etc/slurm/prolog\nPrologTimeout = 60\nPrologEpilogTimeout = 120 sec\n": time.Minute,
		"Prolog = /etc/slurm/prolog\nPrologEpilogTimeout = 65534\n":                       0,
	} {
		dir, o := fakeSlurm(t, 2)
		put(t, dir, "config", config)
		if _, message, prolog, err := newManager(o.Settings, nil).config(t.Context()); err != nil || message != time.Second || prolog != want {
			t.Errorf("%s: %v and %v, %v, want %v", config, message, prolog, err, want)
		}
	}
}

// Commands of Slurm that hang, fail or print garbage end the sweep with an error that names them.
func TestUnusableSlurm(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"hang-sinfo":       "list the nodes: sinfo did not answer within 2s",
		"fail-sinfo":       "list the nodes: sinfo: exit status 1: sinfo: error: Unable to contact slurm controller",
		"garbage-sinfo":    "want NODE|STATE|PARTITION|FEATURES|REASON",
		"hang-scontrol":    "read the configuration of Slurm: scontrol did not answer within 2s",
		"garbage-scontrol": "want SLURM_VERSION",
		"fail-salloc":      "allocate 4 nodes: salloc: exit status 1: salloc: error: Unable to contact",
		"garbage-salloc":   "allocate 4 nodes: salloc names no job",
		"fail-srun":        "no node has a rank: node gpu01: its step ended with exit status 1: srun: error: Unable to contact",
		"garbage-srun":     "no node has a rank",
	} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			dir, o := fakeSlurm(t, 4)
			put(t, dir, file, "")
			if strings.HasPrefix(file, "hang-") {
				o.limits.ask = 2 * time.Second
			}
			_, err := Run(t.Context(), o)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
		})
	}
	t.Run("no program", func(t *testing.T) {
		t.Parallel()
		_, o := fakeSlurm(t, 2)
		o.Program = []string{"/nowhere/nhc-gpu"}
		if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "there is no /nowhere/nhc-gpu: install nhc-gpu at the same path on all nodes") {
			t.Error(err)
		}
	})
}

// A signal ends a sweep within 5 s: the job is cancelled, the report says why, and no rank is left. The
// sweep can be continued: finished rounds do not run again.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	dir, o := fakeSlurm(t, 4)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	put(t, dir, "mute-gpu04", "") // the second round hangs
	rounds := 0
	inner := pairRounds(3, 10*time.Minute)
	o.Plan = func(stage sweep.Stage, nodes []sweep.Node, seed uint64, first int) (sweep.Plan, error) {
		p, err := inner(stage, nodes, seed, first)
		p.(*fakePlan).rounds[0] = p.(*fakePlan).rounds[0][:1] // the first round is without gpu04
		return p, err
	}
	var began time.Time
	o.Progress = func(p Progress) {
		if p.Round == 2 && p.Ended == 1 {
			began = time.Now()
			cancel(errors.New("SIGTERM"))
		}
		rounds = p.Round
	}
	r, err := Run(ctx, o)
	if err != nil || r.Interrupted != "SIGTERM" || rounds != 2 {
		t.Fatalf("interrupted %q in round %d, %v", r.Interrupted, rounds, err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it ended after %v", took)
	}
	if left := livingRanks(dir); len(left) > 0 {
		t.Errorf("ranks %v are left", left)
	}
	if !strings.Contains(calls(t, dir), "scancel 7") {
		t.Error("the job was not cancelled")
	}
	if list, err := List(o.State); err != nil || len(list) != 1 || list[0].Unsettled {
		t.Errorf("list %+v, %v", list, err)
	}
	for _, name := range []string{"mute-gpu04", "cancelled", "joblist"} {
		_ = os.Remove(filepath.Join(dir, name))
	}
	if last, err := LastReport(o.State, o.Stages, ""); last != nil || err != nil {
		t.Errorf("an interrupted sweep is the last one: %+v, %v", last, err)
	}
	var again []int
	o.Continue = r.ID
	o.Progress = func(p Progress) {
		if p.Doing == "" && !slices.Contains(again, p.Round) {
			again = append(again, p.Round)
			if list, err := List(o.State); err != nil || !list[0].Running || list[0].Stage != sweep.StageTCP || list[0].About < 0 {
				t.Errorf("list %+v, %v", list, err)
			}
		}
	}
	r, err = Run(t.Context(), o)
	if err != nil || r.Interrupted != "" || len(r.Continued) != 1 || !slices.Equal(again, []int{2, 3}) {
		t.Fatalf("continued at %v in rounds %v, interrupted %q, %v", r.Continued, again, r.Interrupted, err)
	}
	for _, tt := range []struct {
		stage   sweep.Stage
		without string
		want    bool
	}{{sweep.StageTCP, "", true}, {sweep.StagePairs, "", false}, {sweep.StageTCP, r.ID, false}} {
		last, err := LastReport(o.State, []sweep.Stage{sweep.StageNode, tt.stage}, tt.without)
		if err != nil || (last != nil) != tt.want || last != nil && last.ID != r.ID {
			t.Errorf("last sweep with stage %s without %q: %+v, %v", tt.stage, tt.without, last, err)
		}
	}
	r.Stages[0].Unproven = "most nodes fail"
	put(t, filepath.Join(o.State, r.ID), reportFile, jsonOf(t, r))
	if last, err := LastReport(o.State, o.Stages, ""); last != nil || err != nil {
		t.Errorf("a sweep that says nothing is the last one: %+v, %v", last, err)
	}
	want := []string{"gpu01-gpu02 [11]  ", "gpu01-gpu02 [11]  ", "gpu03-gpu04 [11]  ", "gpu01-gpu02 [11]  ", "gpu03-gpu04 [11]  "}
	if diff := cmp.Diff(want, resultsOf(r)); diff != "" || r.Stages[0].Rounds != 3 {
		t.Errorf("results (-want +got)\n%s", diff)
	}
}

// Only root tests nodes without --partition in one that sinfo does not show.
func TestHiddenPartition(t *testing.T) {
	t.Parallel()
	for root, want := range map[bool]string{true: "secret", false: "main"} {
		dir, o := fakeSlurm(t, 3)
		put(t, dir, "nodes", "gpu01|idle|main*,up|(null)|none\ngpu01|idle|secret,up|(null)|none\ngpu02|idle|secret,up|(null)|none\ngpu03|idle|secret,up|(null)|none\n")
		o.Root = root
		r, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if log := calls(t, dir); !strings.Contains(log, "--partition="+want) {
			t.Errorf("root %t, nodes %+v: the partition is not %s\n%s", root, r.Nodes, want, log)
		}
		if state, why := stateOf(r, "gpu03"); !root && (state != "excluded" || !strings.HasPrefix(why, "none of its partitions starts jobs of this user")) {
			t.Errorf("gpu03 is %s: %s", state, why)
		}
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// A job that Slurm ends, ends the sweep.
func TestCancelledJob(t *testing.T) {
	t.Parallel()
	dir, o := fakeSlurm(t, 4)
	put(t, dir, "mute-gpu04", "")
	o.Plan = pairRounds(1, 10*time.Minute)
	o.Progress = func(p Progress) {
		if p.Ended == 1 {
			put(t, dir, "cancelled", "")
			for _, pid := range livingRanks(dir) {
				_ = unix.Kill(pid, unix.SIGTERM)
			}
		}
	}
	r, err := Run(t.Context(), o)
	if err != nil || !strings.Contains(r.Interrupted, "job 7 is cancelled") {
		t.Errorf("interrupted %q, %v", r.Interrupted, err)
	}
	wantNoneAccused(t, r)
}

// endlessPlan never returns from Next.
type endlessPlan struct {
	fakePlan
	asked func()
	end   chan struct{}
}

func (p *endlessPlan) Next() []sweep.Task {
	p.asked()
	<-p.end
	return nil
}

// A plan that does not end keeps no sweep from its end: the job is cancelled.
func TestEndlessPlan(t *testing.T) {
	t.Parallel()
	dir, o := fakeSlurm(t, 2)
	ctx, cancel := context.WithCancelCause(t.Context())
	p := &endlessPlan{asked: func() { cancel(errors.New("SIGTERM")) }, end: make(chan struct{})}
	defer close(p.end)
	forecast := false
	o.Plan = func(sweep.Stage, []sweep.Node, uint64, int) (sweep.Plan, error) {
		if !forecast {
			forecast = true
			return &fakePlan{}, nil
		}
		return p, nil
	}
	r, err := Run(ctx, o)
	if err != nil || r.Interrupted != "SIGTERM" || len(r.Stages) != 1 || !r.Stages[0].Ended.IsZero() {
		t.Errorf("%+v, %v", r, err)
	}
	if !strings.Contains(calls(t, dir), "scancel 7") {
		t.Error("the job was not cancelled")
	}
}

// wantNoneAccused is for a sweep of healthy nodes that others have ended.
func wantNoneAccused(t *testing.T, r *sweep.Report) {
	t.Helper()
	for _, n := range r.Nodes {
		if n.State != "tested" && n.Why != "the sweep has ended before" {
			t.Errorf("%s is %s: %s", n.Name, n.State, n.Why)
		}
	}
	for _, x := range r.Suspects {
		t.Errorf("suspect %+v", x)
	}
}

// When its time is over, a sweep ends before its ranks do, which end one after the other.
func TestEndOfTime(t *testing.T) {
	t.Parallel()
	dir, o := fakeSlurm(t, 4)
	put(t, dir, "mute-gpu04", "")
	o.Plan, o.Time = pairRounds(1, 10*time.Minute), 5*time.Second
	r, err := Run(t.Context(), o)
	if err != nil || r.Interrupted != errTime.Error() {
		t.Errorf("interrupted %q, %v", r.Interrupted, err)
	}
	wantNoneAccused(t, r)
	if left := livingRanks(dir); len(left) > 0 {
		t.Errorf("ranks %v are left", left)
	}
}

func TestSelectionOfNodes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*Options)
		nodes  string
		want   string
	}{
		"partitions":    {func(*Options) {}, "gpu01|idle|main*,up|(null)|none\ngpu02|idle|low,up|(null)|none\ngpu03|idle|low,up|(null)|none\ngpu04|idle|old,down|(null)|none\n", "gpu02 gpu03 -gpu01: not in partition low, which has most of the nodes: test it with --partition main -gpu04: none of its partitions starts jobs of this user: old"},
		"idle only":     {func(o *Options) { o.Idle = true }, "gpu01|idle|main*,up|(null)|none\ngpu02|mix|main*,up|(null)|none\n", "gpu01 -gpu02: not idle (mix)"},
		"reserved":      {func(*Options) {}, "gpu01|idle|main*,up|(null)|none\ngpu02|resv|main*,up|(null)|none\n", "gpu01 -gpu02: resv: test it with --reservation"},
		"in it":         {func(o *Options) { o.Reservation = "r" }, "gpu01|idle|main*,up|(null)|none\ngpu02|resv|main*,up|(null)|none\n", "gpu02"},
		"drained":       {func(*Options) {}, "gpu01|idle|main*,up|(null)|none\ngpu02|drain|main*,up|(null)|bad fan\n", "gpu01 -gpu02: drain (bad fan)"},
		"maintenance":   {func(o *Options) { o.Maintenance = true }, "gpu01|idle|main*,up|(null)|none\ngpu02|drain|main*,up|(null)|bad fan\n", "gpu01 gpu02"},
		"no node":       {func(*Options) {}, "gpu02|down|main*,up|(null)|bad fan\n", "none of 1 nodes can be tested: node gpu02: down"},
		"reservation":   {func(o *Options) { o.Reservation = "x" }, "gpu01|idle|main*,up|(null)|none\n", "unknown to Slurm: reservation x"},
		"a job's nodes": {func(o *Options) { o.Job = "7" }, "gpu01|alloc|main*,up|(null)|none\ngpu02|alloc|main*,up|(null)|none\n", "gpu02"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, o := fakeSlurm(t, 2)
			put(t, dir, "nodes", tt.nodes)
			put(t, dir, "joblist", "gpu02")
			put(t, dir, "reservations", "ReservationName=r StartTime=2026-11-22T01:00:00 Nodes=gpu02 NodeCnt=1\n")
			tt.change(&o)
			nodes, away, err := Look(t.Context(), o)
			var got []string
			for _, n := range nodes {
				got = append(got, n.Name)
			}
			for _, n := range away {
				got = append(got, "-"+n.Name+": "+n.Why)
			}
			if err != nil {
				got = []string{err.Error()}
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("%s, want %s", strings.Join(got, " "), tt.want)
			}
		})
	}
}

// A drained node is tested in a maintenance, and is drained again with its reason.
func TestMaintenance(t *testing.T) {
	t.Parallel()
	dir, o := fakeSlurm(t, 2)
	put(t, dir, "nodes", "gpu01|idle|main*,up|(null)|none\ngpu02|drain|main*,up|(null)|bad fan\n")
	o.Maintenance, o.User = true, "root"
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if n := r.Nodes[1]; n.Held != "bad fan" || n.After != "drained again, with the same reason" || n.State != "tested" {
		t.Errorf("%+v", n)
	}
	at := 0
	log := calls(t, dir)
	for _, want := range []string{
		"create reservation ReservationName=nhc-gpu-sweep-" + r.ID + " StartTime=now Duration=10080 Users=root Flags=MAINT,IGNORE_JOBS Nodes=gpu[01-02]",
		"update NodeName=gpu02 State=RESUME", "--reservation=nhc-gpu-sweep-" + r.ID, "scancel 7", "show reservation",
	} {
		i := strings.Index(log[at:], want)
		if i < 0 {
			t.Fatalf("no %s after byte %d of\n%s", want, at, log)
		}
		at += i
	}
}

// The reservation of nodes that were not drained lasts as long as the job can wait, start and run.
func TestDurationOfReservation(t *testing.T) {
	t.Parallel()
	dir, o := fakeSlurm(t, 2)
	o.Maintenance, o.User, o.Queue = true, "root", time.Hour
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if log := calls(t, dir); !strings.Contains(log, "Duration=86 ") { // minutes: 10 of --time, 60 of --queue, 6 to start, 10 to end
		t.Errorf("another duration:\n%s", log)
	}
}

// The report has the state of a node that a person drains during the test, or removes from slurm.conf.
func TestNodeDrainedMeanwhile(t *testing.T) {
	t.Parallel()
	const idle, person = "gpu04|idle|main*,up|(null)|none\n", "gpu04|drain|main*,up|(null)|bad PSU\n"
	for _, tt := range []struct {
		resume    bool
		now, want string
		drains    bool
	}{
		{true, idle, "in service: it passes", false},
		{true, person, "drained meanwhile: bad PSU", false},
		{false, idle, "drained again, with the same reason", true},
		{false, person, "drained meanwhile: bad PSU", false},
		{false, "", "not drained again: Slurm does not know it any more", true},
	} {
		dir, o := fakeSlurm(t, 4)
		const others = "gpu01|idle|main*,up|(null)|none\ngpu02|idle|main*,up|(null)|none\ngpu03|idle|main*,up|(null)|none\n"
		put(t, dir, "nodes", others+"gpu04|drain|main*,up|(null)|NHC: sweep lost [sweep.node.lost]\n")
		o.Maintenance, o.User, o.Resume = true, "root", tt.resume
		o.Progress = func(p Progress) {
			if p.Ended > 0 {
				put(t, dir, "nodes", others+tt.now)
				if tt.now == "" {
					put(t, dir, "removed-gpu04", "")
				}
			}
		}
		r, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if n := r.Nodes[3]; n.After != tt.want {
			t.Errorf("%+v, want %s", n, tt.want)
		}
		if log := calls(t, dir); strings.Contains(log, "NodeName=gpu04 State=DRAIN") != tt.drains {
			t.Errorf("it is to be drained again %v:\n%s", tt.drains, log)
		}
	}
}

// The job of a sweep ends although slurmctld does not answer for a moment, or the journal of a maintenance
// cannot be written.
func TestEndOfJob(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]bool{"once-scancel": false, "once-squeue": true, "full-disk": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, o := fakeSlurm(t, 2)
			want := "scancel 7\n"
			switch name {
			case "once-scancel":
				put(t, dir, name, "")
				want += want
			case "once-squeue": // salloc has not printed the number of the job
				put(t, dir, "fail-salloc", "")
				put(t, dir, "waits", "")
				put(t, dir, name, "")
				want = "scancel 8\n"
				o.Progress = func(Progress) {
					if dirs, _ := filepath.Glob(filepath.Join(o.State, "*")); len(dirs) > 0 {
						put(t, dir, "jobname", "nhc-gpu-sweep-"+filepath.Base(dirs[0]))
					}
				}
			case "full-disk":
				o.Maintenance, o.User = true, "root"
				put(t, dir, name, filepath.Join(o.State, "*", journalFile))
			}
			if _, err := Run(t.Context(), o); (err != nil) != fails {
				t.Error(err)
			}
			got := ""
			for line := range strings.Lines(calls(t, dir)) {
				if strings.HasPrefix(line, "scancel") {
					got += line
				}
			}
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// Others must not be able to write the state of root's sweeps.
func TestPrivateState(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := prepare(dir); err == nil || !strings.Contains(err.Error(), "writable by others") {
		t.Error(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	if err := private(link); err == nil || !strings.Contains(err.Error(), "is not a directory") {
		t.Error(err)
	}
	for _, id := range []string{"", "../x", "a/b", "."} {
		if _, err := reopen(t.TempDir(), id); err == nil {
			t.Errorf("%q is the ID of a sweep", id)
		}
	}
	base := filepath.Join(t.TempDir(), "s")
	for i := range 5 {
		r, err := create(base, Meta{ID: "2026-" + string(rune('a'+i)), Began: time.Unix(int64(i), 0)})
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 { // it has to be repaired
			if err := r.appendLine(journalFile, entry{Reserve: "x"}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := reopen(base, r.Meta.ID); !errors.Is(err, ErrRunning) {
			t.Errorf("a sweep under way: %v", err)
		}
		r.close()
	}
	prune(base, 2, keptBytes)
	var ids []string
	list, err := List(base)
	for _, s := range list {
		ids = append(ids, s.ID)
	}
	if diff := cmp.Diff([]string{"2026-e", "2026-d", "2026-a"}, ids); err != nil || diff != "" {
		t.Errorf("kept (-want +got) %v\n%s", err, diff)
	}
}

// Old sweeps are removed beyond a size, too, but never the last one.
func TestPruneBySize(t *testing.T) {
	t.Parallel()
	base := filepath.Join(t.TempDir(), "s")
	for i := range 4 {
		r, err := create(base, Meta{ID: string(rune('a' + i)), Began: time.Unix(int64(i), 0)})
		if err != nil {
			t.Fatal(err)
		}
		put(t, r.dir, resultsFile, strings.Repeat("x", 1<<20))
		r.close()
	}
	for _, tt := range []struct {
		most int64
		want string
	}{{10 << 20, "dcba"}, {3<<20 - 1, "dc"}, {1, "d"}} {
		prune(base, 10, tt.most)
		ids := ""
		list, err := List(base)
		for _, s := range list {
			ids += s.ID
		}
		if ids != tt.want || err != nil {
			t.Errorf("at most %d bytes: %q are left, want %q, %v", tt.most, ids, tt.want, err)
		}
	}
}

// report.json does not repeat what results.jsonl has. A reader gets all results, also of a sweep that was cut off in a
// round, and of one by an earlier version.
func TestStoredResults(t *testing.T) {
	t.Parallel()
	result := func(id int) sweep.Result {
		return sweep.Result{Task: sweep.Task{ID: id, Stage: sweep.StageTCP, Kind: sweep.KindStream, Nodes: []string{"gpu01", "gpu02"}}, Values: []float64{9}}
	}
	rep := &sweep.Report{
		Schema: 1, ID: "1", Nodes: []sweep.NodeReport{}, Suspects: []sweep.Suspect{},
		Stages: []sweep.StageReport{{Stage: sweep.StageReach, Skipped: "x"}, {Stage: sweep.StageTCP, Rounds: 2, Results: []sweep.Result{result(1), result(2), result(3)}}},
	}
	base := filepath.Join(t.TempDir(), "s")
	r, err := create(base, Meta{ID: "1"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	for i, l := range []line{{Stage: sweep.StageTCP, Nodes: []sweep.Node{{Name: "gpu01"}}}, {Stage: sweep.StageTCP, Round: 1, Results: []sweep.Result{result(1)}},
		{Stage: sweep.StageTCP, Round: 2, Results: []sweep.Result{result(2)}}, {Stage: sweep.StageTCP, Round: 3, Results: []sweep.Result{result(9)}}} { // a later process has run the third
		if err := r.appendLine(resultsFile, l); err != nil {
			t.Fatal(i, err)
		}
	}
	path := filepath.Join(r.dir, reportFile)
	check := func(when string) {
		t.Helper()
		one, err := LoadReport(base, "1")
		if diff := cmp.Diff(rep, one); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got)\n%s", when, err, diff)
		}
		two, err := ReadReport(path)
		if diff := cmp.Diff(rep, two); err != nil || diff != "" {
			t.Errorf("%s, by its path: %v (-want +got)\n%s", when, err, diff)
		}
	}
	if err := r.saveReport(rep, map[sweep.Stage][]sweep.Result{sweep.StageTCP: {result(3)}}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if got := bytes.Count(data, []byte("gpu01")); err != nil || got != 1 || len(rep.Stages[1].Results) != 3 {
		t.Errorf("report.json has %d results, want 1: %v", got, err)
	}
	check("saved")
	put(t, r.dir, reportFile, jsonOf(t, rep))
	check("of an earlier version")
	if err := r.saveReport(rep, nil); err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(t.TempDir(), "copy.json")
	if data, err = os.ReadFile(path); err == nil {
		err = os.WriteFile(elsewhere, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ReadReport(elsewhere); err == nil || !strings.Contains(err.Error(), "results.jsonl has no results of round 1 of stage tcp") {
		t.Errorf("a copy without its results: %v", err)
	}
}

// A maintenance does not begin without space for its results and its journal.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	dir, o := fakeSlurm(t, 4)
	o.Maintenance, o.User, o.limits.room = true, "root", 1<<58
	_, err := Run(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "MB free, a maintenance of 4 nodes needs") || !strings.Contains(err.Error(), o.State) {
		t.Errorf("%v", err)
	}
	if log := calls(t, dir); strings.Contains(log, "create reservation") || strings.Contains(log, "salloc") {
		t.Errorf("the maintenance has begun:\n%s", log)
	}
}

// A list of the sweeps reads a report at most once, and the results only of a sweep under way. A digest of
// another report does not count.
func TestDigest(t *testing.T) {
	t.Parallel()
	base := filepath.Join(t.TempDir(), "s")
	r, err := create(base, Meta{ID: "1"})
	if err != nil {
		t.Fatal(err)
	}
	rep := &sweep.Report{
		ID: "1", Ended: time.Unix(7, 0).UTC(), Interrupted: "scancel",
		Stages:   []sweep.StageReport{{Stage: sweep.StageNode}, {Stage: sweep.StageTCP, Unproven: "x"}, {Stage: sweep.StageRDMA, Skipped: "x"}},
		Suspects: []sweep.Suspect{{Node: "gpu01", Stage: sweep.StageNode, Kind: sweep.KindCheck, Code: "sweep.node.check", Ops: []string{"check_x"}}, {Node: "gpu01", Stage: sweep.StageTCP, Code: "sweep.tcp.slow"}},
	}
	if err := r.saveReport(rep, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(r.dir, resultsFile), 0o700); err != nil { // it cannot be read
		t.Fatal(err)
	}
	r.close()
	path := filepath.Join(r.dir, reportFile)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, data []byte, at time.Time) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(r.dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(filepath.Join(r.dir, name), at, at); err != nil {
			t.Fatal(err)
		}
	}
	found := []sweep.Accusal{
		{Node: "gpu01", Code: "sweep.node.check", Stage: sweep.StageNode, Kind: sweep.KindCheck, Ops: []string{"check_x"}}, {Node: "gpu01", Code: "sweep.tcp.slow", Stage: sweep.StageTCP},
	}
	listed := func(when string, suspects int) {
		t.Helper()
		list, err := List(base)
		if err != nil || len(list) != 1 {
			t.Fatalf("%s: %+v, %v", when, list, err)
		}
		s := list[0]
		if s.File != path || !s.Ended.Equal(rep.Ended) || s.Interrupted != "scancel" || s.Suspects != suspects || !slices.Equal(s.Proven, []sweep.Stage{sweep.StageNode}) ||
			!cmp.Equal(faultsOf(list, "gpu01", "sweep.node.check", ""), found[:suspects]) || len(faultsOf(list, "gpu02", "sweep.node.check", "")) > 0 {
			t.Errorf("%s: %+v", when, s)
		}
	}
	listed("with a digest", 2)
	write(reportFile, bytes.Repeat([]byte("x"), len(data)), file.ModTime())
	listed("without reading the report", 2)
	write(reportFile, data, file.ModTime())
	for _, other := range []string{"", "null", `{"suspects":9}`} {
		write(digestFile, []byte(other), file.ModTime())
		listed("with another digest", 2)
		write(reportFile, bytes.Repeat([]byte("x"), len(data)), file.ModTime())
		listed("the second time", 2)
		write(reportFile, data, file.ModTime())
	}
	rep.Suspects = rep.Suspects[:1]
	write(reportFile, []byte(jsonOf(t, rep)), time.Now())
	listed("another report", 1)
}

// The faults of a drained node are those of all sweeps since the one that found the fault of its reason.
func TestFaultsOf(t *testing.T) {
	t.Parallel()
	tcp, rdma, other := sweep.Accusal{Node: "a", Code: "sweep.tcp.slow", Device: "eth1"}, sweep.Accusal{Node: "a", Code: "sweep.rdma.slow"}, sweep.Accusal{Node: "b", Code: "sweep.tcp.slow", Device: "eth1"}
	sweepOf := func(list ...sweep.Accusal) Summary { return Summary{digest: digest{Accused: list}} }
	running := sweepOf(rdma)
	running.Running = true
	for name, tt := range map[string]struct {
		list []Summary
		want []sweep.Accusal
	}{
		"one sweep":                  {[]Summary{sweepOf(tcp, other, rdma)}, []sweep.Accusal{tcp, rdma}},
		"another one since":          {[]Summary{sweepOf(), sweepOf(rdma), sweepOf(tcp), sweepOf(rdma)}, []sweep.Accusal{rdma, tcp}},
		"without that of the reason": {[]Summary{sweepOf(other), sweepOf(rdma), sweepOf(rdma)}, []sweep.Accusal{rdma}},
		"under way":                  {[]Summary{running, sweepOf(tcp)}, []sweep.Accusal{tcp}},
		"none":                       {[]Summary{sweepOf(other), {}}, nil},
	} {
		if diff := cmp.Diff(tt.want, faultsOf(tt.list, "a", "sweep.tcp.slow", "eth1")); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

// The last line of the results is found before one that a crash has cut off, however long it is.
func TestLastLine(t *testing.T) {
	t.Parallel()
	r, err := create(filepath.Join(t.TempDir(), "s"), Meta{ID: "1"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	first, long := jsonOf(t, line{Stage: sweep.StageReach, Round: 1}), jsonOf(t, line{Stage: sweep.StageTCP, Round: 2, Results: []sweep.Result{{Text: strings.Repeat("x", 3*lastTail)}}})
	for text, want := range map[string]int{
		"": 0, "\n": 0, first: 1, first + "\n": 1, first + "\n" + long + "\n": 2, long + "\n" + first: 1,
		first + "\n" + long[:2*lastTail]: 1, long + "\n" + long[:2*lastTail]: 2, long[:2*lastTail]: 0, first + "\n" + long + "\n{}\nnull\n": 2,
	} {
		if err := os.WriteFile(filepath.Join(r.dir, resultsFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if l := r.lastLine(); l.Round != want {
			t.Errorf("%.60s, %d bytes: round %d, want %d", text, len(text), l.Round, want)
		}
	}
}

// A job can take an idle node before the sweep does.
func TestIdleNodeTaken(t *testing.T) {
	t.Parallel()
	for _, idle := range []bool{false, true} {
		dir, o := fakeSlurm(t, 2)
		put(t, dir, "taken-gpu02", "")
		want := "not idle (mix)"
		if idle {
			put(t, dir, "looks-idle", "")
			want = "idle, but Slurm does not allocate it now: see its reservations, and the limits of partition main"
		}
		o.Idle = true
		r, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		state1, _ := stateOf(r, "gpu01")
		state2, why := stateOf(r, "gpu02")
		if state1 != "excluded" || state2 != "excluded" || why != want || r.Stages[0].Skipped != "it needs two nodes" {
			t.Errorf("gpu01 %s, gpu02 %s (%s), want %s; %+v", state1, state2, why, want, r.Stages)
		}
		if log := calls(t, dir); !strings.Contains(log, "--immediate=30") {
			t.Errorf("no --immediate in\n%s", log)
		}
	}
}

// A sweep with --idle gives way if jobs have all nodes, or are faster. Other reasons are errors.
func TestNoIdleNode(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		state, file string
		want        string // why it is interrupted; "": an error
	}{
		"busy":     {"alloc", "", "none of 2 nodes can be tested: node gpu01: not idle (alloc)"},
		"faster":   {"idle", "jobs-are-faster", "allocate 2 nodes: salloc: exit status 1: salloc: error: Unable to allocate resources: Connection timed out"},
		"drained":  {"drain", "", ""},
		"no Slurm": {"idle", "fail-salloc", ""},
	} {
		dir, o := fakeSlurm(t, 2)
		put(t, dir, "nodes", "gpu01|"+tt.state+"|main*,up|(null)|none\ngpu02|"+tt.state+"|main*,up|(null)|none\n")
		if tt.file != "" {
			put(t, dir, tt.file, "")
		}
		o.Idle = true
		r, err := Run(t.Context(), o)
		if (err != nil) != (tt.want == "") || r.Interrupted != tt.want {
			t.Errorf("%s: %v, interrupted %q, want %q", name, err, r.Interrupted, tt.want)
		}
	}
}

// A job that waits for nodes waits no longer than --queue.
func TestQueue(t *testing.T) {
	t.Parallel()
	dir, o := fakeSlurm(t, 2)
	put(t, dir, "queues-salloc", "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	m := newManager(o.Settings, nil)
	m.limit = 100 * time.Millisecond
	if _, err := m.allocate(ctx, slurm.Allocation{Nodes: []string{"gpu01", "gpu02"}}, time.Second); err == nil || err.Error() != "allocate 2 nodes: they are not free after 1s" {
		t.Error(err)
	}
}

// Nodes that were granted have to be ready soon, however long the job might have waited.
func TestNodesNotReady(t *testing.T) {
	t.Parallel()
	dir, o := fakeSlurm(t, 2)
	put(t, dir, "silent-gpu02", "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	m := newManager(o.Settings, nil)
	m.start = 100 * time.Millisecond
	job, err := m.allocate(ctx, slurm.Allocation{Nodes: []string{"gpu01", "gpu02"}}, time.Hour)
	const want = "allocate 2 nodes: job 6 has them, but they are not ready after 100ms: salloc: Granted job allocation 6"
	if job != "6" || err == nil || err.Error() != want {
		t.Errorf("job %s, %v, want %s", job, err, want)
	}
}

// A node that stops answering while Slurm prepares the job is a result, and the others are tested. The
// job is cancelled, also if salloc had not printed its number.
func TestSilentNodeOfAllocation(t *testing.T) {
	t.Parallel()
	for number, files := range map[string][]string{"6": {"silent-gpu02"}, "8": {"silent-gpu02", "waits"}} {
		t.Run("job "+number, func(t *testing.T) {
			t.Parallel()
			dir, o := fakeSlurm(t, 2)
			for _, name := range files {
				put(t, dir, name, "")
			}
			r, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			state1, _ := stateOf(r, "gpu01")
			state2, why := stateOf(r, "gpu02")
			if state1 != "excluded" || state2 != "frozen" || why != "slurmd does not answer (down*)" || r.Job != "7" {
				t.Errorf("gpu01 %s, gpu02 %s (%s), job %s", state1, state2, why, r.Job)
			}
			_, log, _ := strings.Cut(calls(t, dir), "--nodelist=gpu[01-02]")
			first, then, _ := strings.Cut(log, "salloc ")
			if !strings.Contains(first, "scancel "+number) || !strings.Contains(then, "--nodelist=gpu01 ") {
				t.Errorf("job %s is not cancelled before the next one, or gpu02 is in that:\n%s", number, log)
			}
		})
	}
}

// A sweep that has ended is not under way while a list of the sweeps looks at it, or while a process is
// being started that still has its lock file.
func TestEndedSweepIsNotUnderWay(t *testing.T) {
	t.Parallel()
	base := filepath.Join(t.TempDir(), "s")
	r, err := create(base, Meta{ID: "1"})
	if err != nil {
		t.Fatal(err)
	}
	started, err := unix.Dup(int(r.lock.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(started)
	if list, _ := List(base); len(list) != 1 || !list[0].Running {
		t.Errorf("list of a sweep under way: %+v", list)
	}
	r.close()
	look := &record{dir: r.dir}
	if err := look.take(true); err != nil {
		t.Fatal(err)
	}
	if list, _ := List(base); len(list) != 1 || list[0].Running {
		t.Errorf("list of an ended sweep: %+v", list)
	}
	time.AfterFunc(50*time.Millisecond, look.close)
	again, err := reopen(base, "1")
	if err != nil {
		t.Fatal(err)
	}
	again.close()
}

// The job of a sweep whose launcher was killed is cancelled, and no other one that has its number by now.
func TestJobOfKilledSweep(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{"killed": "scancel 7", "other-job": "", "cancelled": "", "waits": "scancel 8", "never asked": ""} {
		dir, o := fakeSlurm(t, 2)
		put(t, dir, file, "")
		put(t, dir, "jobname", "nhc-gpu-sweep-1")
		m := Meta{ID: "1", Job: "7", Own: true}
		if file == "waits" || file == "never asked" {
			m.Job = ""
		}
		r, err := create(o.State, m)
		if err != nil {
			t.Fatal(err)
		}
		r.close()
		if list, err := List(o.State); err != nil || len(list) != 1 || !list[0].Unsettled {
			t.Errorf("%s: list %+v, %v", file, list, err)
		}
		if err := Repair(o); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if list, err := List(o.State); err != nil || len(list) != 1 || list[0].Unsettled {
			t.Errorf("%s: after the repair the list is %+v, %v", file, list, err)
		}
		got := ""
		for line := range strings.Lines(calls(t, dir)) {
			if strings.HasPrefix(line, "scancel") {
				got += strings.TrimSpace(line)
			}
		}
		if got != want {
			t.Errorf("%s: %q, want %q", file, got, want)
		}
	}
}
