package slurm

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestFoldHostlist(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]string{
		"gpu[01-03],login":       "gpu01 gpu02 gpu03 login",
		"gpu1,gpu1":              "gpu1",
		"rack[1-2]n[01-02]":      "rack1n01 rack1n02 rack2n01 rack2n02",
		"gpu[098-101]":           "gpu098 gpu099 gpu100 gpu101",
		"a[1,3-4]-ib":            "a1-ib a3-ib a4-ib",
		"gpu[9-11]":              "gpu9 gpu10 gpu11",
		"x99999999999999999999z": "x99999999999999999999z",
	} {
		names, err := ExpandHostlist(list)
		if err != nil || strings.Join(names, " ") != want {
			t.Errorf("%s: %q, %v, want %s", list, names, err, want)
		}
		again, err := ExpandHostlist(FoldHostlist(names))
		slices.Sort(names)
		slices.Sort(again)
		if diff := cmp.Diff(names, again); err != nil || diff != "" {
			t.Errorf("%s: folded to %s: %v\n%s", list, FoldHostlist(names), err, diff)
		}
	}
	for _, bad := range []string{"", "gpu[1-", "a b", "-w", "gpu*", "gpu1,,gpu2"} {
		if names, err := ExpandHostlist(bad); err == nil {
			t.Errorf("%q: %q, want an error", bad, names)
		}
	}
	if got := FoldHostlist([]string{"gpu10", "gpu9", "gpu03", "gpu02", "gpu01", "login", "gpu05"}); got != "gpu[9],gpu[01-03,05,10],login" && got != "gpu9,gpu[01-03,05,10],login" {
		t.Errorf("folded to %s", got)
	}
}

// The output is that of 22.05 for a node of two partitions, a drained one with a person's reason of two
// lines, one that does not answer and one in maintenance.
const sweepNodes = `gpu01|idle|low,up|a100,ib|none
gpu01|idle|main*,up,1-02:00:00,1-4|a100,ib|none
gpu01|idle|shut,inact|a100,ib|none
gpu02|drain|main|(null)|bad fan | RMA 17
second line
gpu03|idle*|main|h100|none
gpu04|mix|main|h100|none
gpu05|maint|main|h100|none
gpu06|drng|main|h100|NHC: sweep slow
gpu07|idle-|main|h100|none
gpu08|down|main|h100|Not responding
`

func TestSweepNodes(t *testing.T) {
	t.Parallel()
	nodes, err := ParseSweepNodes([]byte(sweepNodes))
	if err != nil || len(nodes) != 8 {
		t.Fatalf("%d nodes, %v", len(nodes), err)
	}
	if n := nodes[0]; !slices.Equal(n.Partitions, []string{"low", "main", "shut"}) || !slices.Equal(n.Open, []Partition{{Name: "main", Default: true, Time: 26 * time.Hour, Nodes: 4}, {Name: "low"}}) || !slices.Equal(n.Features, []string{"a100", "ib"}) || n.Reason != "" || !n.IsIdle() {
		t.Errorf("gpu01: %+v", n)
	}
	if planned := (SweepNode{State: ParseState("plnd")}); !planned.IsIdle() || planned.Usable(false, false) != "" {
		t.Errorf("a planned node is not idle, or %q", planned.Usable(false, false))
	}
	if n := nodes[1]; n.Reason != "bad fan | RMA 17" || len(n.Features) > 0 || !n.IsDrained() {
		t.Errorf("gpu02: %+v", n)
	}
	var states []string
	for _, n := range nodes {
		states = append(states, n.Usable(false, false)+"/"+n.Usable(true, false)+"/"+n.Usable(false, true))
	}
	want := []string{
		"//", "drain (bad fan | RMA 17)//drain (bad fan | RMA 17)",
		"slurmd does not answer (idle*)/slurmd does not answer (idle*)/slurmd does not answer (idle*)", "//",
		"maint/maint/", "drng (NHC: sweep slow)/drng (NHC: sweep slow)/drng (NHC: sweep slow)", "//", "down/down/down",
	}
	if diff := cmp.Diff(want, states); diff != "" {
		t.Errorf("usable (-want +got)\n%s", diff)
	}
	if _, err := ParseSweepNodes([]byte("slurm_load_partitions: error\n")); err == nil {
		t.Error("an error message is a list of nodes")
	}
}

// A reserved node (22.05: resv) gets only jobs of its reservation. That of a maintenance overlaps it.
func TestReservedNode(t *testing.T) {
	t.Parallel()
	n := SweepNode{State: ParseState("resv")}
	got := []string{n.Usable(false, false), n.Usable(true, false), n.Usable(false, true)}
	if diff := cmp.Diff([]string{"resv: test it with --reservation", "", ""}, got); diff != "" {
		t.Errorf("usable (-want +got)\n%s", diff)
	}
}

func TestMostOpen(t *testing.T) {
	t.Parallel()
	def, low, big, brief, few := Partition{Name: "main", Default: true}, Partition{Name: "low"}, Partition{Name: "big"}, Partition{Name: "brief", Time: time.Hour}, Partition{Name: "few", Nodes: 1}
	on := func(list ...Partition) SweepNode { return SweepNode{Open: list} }
	for _, tt := range []struct {
		want  string
		job   time.Duration
		nodes []SweepNode
	}{
		{"", 0, []SweepNode{{Partitions: []string{"shut"}}}},
		{"main", 0, []SweepNode{on(def, low), on(def, low)}},
		{"main", 0, []SweepNode{on(def, low), on(def, low), on(low)}}, // the default one has most of them
		{"low", 0, []SweepNode{on(def, low), on(low), on(low)}},
		{"big", 0, []SweepNode{on(big), on(def, big), on(low)}},
		{"big", 0, []SweepNode{on(low), on(low, big), on(big)}},
		{"low", 2 * time.Hour, []SweepNode{on(brief), on(brief, low)}},
		{"brief", time.Hour, []SweepNode{on(brief), on(brief, low)}},
		{"brief", 0, []SweepNode{on(brief), on(brief, low)}},
		{"low", time.Hour, []SweepNode{on(few), on(few, low)}},
		{"few", 0, []SweepNode{on(few), on(few, low)}},
		{"few", time.Hour, []SweepNode{on(few), on(few)}}, // Slurm says why not
	} {
		if got := MostOpen(tt.nodes, tt.job); got != tt.want {
			t.Errorf("%v, %v: %q, want %q", tt.nodes, tt.job, got, tt.want)
		}
	}
	for text, want := range map[string]time.Duration{"30": 30 * time.Minute, "30:00": 30 * time.Minute, "1:30:00": 90 * time.Minute, "2-01:00:00": 49 * time.Hour, "infinite": 0, "n/a": 0} {
		if p, open := partitionOf("x,up," + text + ",1-infinite"); p.Time != want || !open || p.Nodes != 0 {
			t.Errorf("%s: %+v", text, p)
		}
	}
}

func TestSelection(t *testing.T) {
	t.Parallel()
	nodes, _ := ParseSweepNodes([]byte(sweepNodes))
	for _, tt := range []struct {
		sel  Selection
		want string
	}{
		{Selection{}, "gpu01 gpu02 gpu03 gpu04 gpu05 gpu06 gpu07 gpu08"},
		{Selection{Nodes: []string{"gpu04", "gpu01"}}, "gpu01 gpu04"},
		{Selection{Partition: "low"}, "gpu01"},
		{Selection{Feature: "h100", State: "idle"}, "gpu03 gpu07"},
		{Selection{State: "drain"}, "gpu02 gpu06"},
		{Selection{IsReserved: true, Reserved: []string{"gpu05"}}, "gpu05"},
		{Selection{Partition: "none"}, "unknown to Slurm: partition none with nodes"},
		{Selection{Nodes: []string{"gpu01", "gpu98", "gpu99"}}, "unknown to Slurm: node gpu[98-99]"},
		{Selection{Feature: "x"}, "no node matches the selection"},
	} {
		chosen, err := tt.sel.Select(nodes)
		var names []string
		for _, n := range chosen {
			names = append(names, n.Name)
		}
		got := strings.Join(names, " ")
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.sel, got, tt.want)
		}
	}
}

func TestTopology(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ text, want string }{
		"tree of 22.05":  {"SwitchName=s1 Level=0 LinkSpeed=1 Nodes=gpu[01-02] \nSwitchName=s2 Level=0 LinkSpeed=1 Nodes=gpu[03-04] \nSwitchName=s0 Level=1 LinkSpeed=1 Nodes=gpu[01-04] Switches=s[1-2]\n", "s1 s1 s2 s2"},
		"block of 24.11": {"BlockName=b1 BlockIndex=0 Nodes=gpu[01-03] BlockSize=3\nBlockName=b2 BlockIndex=1 Nodes=gpu04 BlockSize=3\nAggregatedBlock=b1,b2 BlockIndex=2 Nodes=gpu[01-04] BlockSize=6\n", "b1 b1 b1 b2"},
		"none":           {"No topology information available\n", "   "},
		"garbage":        {"=\x00 SwitchName= Nodes=gpu01\n", "   "},
	} {
		leaves := ParseTopology([]byte(tt.text))
		got := strings.Join([]string{leaves["gpu01"], leaves["gpu02"], leaves["gpu03"], leaves["gpu04"]}, " ")
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestSweepAnswers(t *testing.T) {
	t.Parallel()
	busy := ParseRunning([]byte("7|gpu[01-04]\n8|gpu02\n9|\n"), "7")
	if diff := cmp.Diff(map[string]bool{"gpu02": true}, busy); diff != "" {
		t.Errorf("busy (-want +got)\n%s", diff)
	}
	reserved := ParseReservations([]byte("ReservationName=nhc-gpu-sweep-1 StartTime=2026-11-22T01:00:00 EndTime=2026-11-22T02:00:00 Duration=01:00:00\n" +
		"ReservationName=lic StartTime=x Nodes=(null) NodeCnt=0\n" +
		"ReservationName=m StartTime=2026-11-22T01:00:00 EndTime=2026-11-22T02:00:00 Duration=01:00:00 Nodes=gpu[01-02] NodeCnt=2 CoreCnt=2 Features=(null) Flags=MAINT\n"))
	if diff := cmp.Diff(map[string][]string{"nhc-gpu-sweep-1": nil, "lic": nil, "m": {"gpu01", "gpu02"}}, reserved); diff != "" {
		t.Errorf("reservations (-want +got)\n%s", diff)
	}
	for text, want := range map[string]string{
		"salloc: Pending job allocation 12\nsalloc: job 12 queued and waiting for resources\nsalloc: job 12 has been allocated resources\nsalloc: Granted job allocation 12\n": "12 true",
		"salloc: Pending job allocation 12\nsalloc: Job allocation 12 has been revoked.\n":                                                                                     "12 false",
		"salloc: error: Unable to allocate resources: Requested nodes are busy\n":                                                                                              " false",
	} {
		job, granted := ParseAllocated([]byte(text))
		if got := strings.Join([]string{job, map[bool]string{true: "true", false: "false"}[granted]}, " "); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	failed := ParseLaunchFailures([]byte("srun: error: Task launch for StepId=7.0 failed on node gpu03: Socket timed out on send/recv operation\n" +
		"srun: error: Application launch failed: Socket timed out on send/recv operation\nsrun: Job step aborted: Waiting up to 4 seconds for job step to finish.\n" +
		"srun: error: Task launch for 7.0 failed on node gpu04: Communication connection failure\n"))
	if diff := cmp.Diff(map[string]string{"gpu03": "Socket timed out on send/recv operation", "gpu04": "Communication connection failure"}, failed); diff != "" {
		t.Errorf("failed (-want +got)\n%s", diff)
	}
	for text, want := range map[string]SweepJob{
		"JobId=7 JobName=nhc-gpu-sweep UserId=root(0) JobState=RUNNING Reason=None PreemptEligibleTime=2026 PreemptTime=None NodeList=gpu[01-02] BatchHost=gpu01 ReqNodeList=gpu[01-02]": {Name: "nhc-gpu-sweep", State: "RUNNING", Nodes: []string{"gpu01", "gpu02"}},
		"JobId=7 JobState=RUNNING PreemptTime=2026-11-22T01:00:00 NodeList=gpu01":                                                                                                        {State: "RUNNING", Nodes: []string{"gpu01"}, Preempted: true},
		"JobId=7 JobState=PREEMPTED NodeList=(null)":                             {State: "PREEMPTED", Preempted: true},
		"JobId=7 JobState=RUNNING OverSubscribe=NO Contiguous=0 Licenses=(null)": {State: "RUNNING"},
		"JobId=7 JobState=RUNNING OverSubscribe=OK Contiguous=0 Licenses=(null)": {State: "RUNNING", Shares: true},
		"JobId=7 JobState=RUNNING OverSubscribe=NO Exclusive=NODE Contiguous=0":  {State: "RUNNING"},
		"JobId=7 JobState=RUNNING OverSubscribe=NO Exclusive=NO Contiguous=0":    {State: "RUNNING", Shares: true},
		"JobId=7 JobState=RUNNING OverSubscribe=YES Exclusive=NODE Contiguous=0": {State: "RUNNING", Shares: true},
		"JobId=7 JobState=RUNNING NodeList=gpu[01-04] JOB_GRES=gpu:22   Nodes=gpu[01,03] CPU_IDs=0-15 Mem=0 GRES=gpu:a100:4(IDX:0,2-4),mps:a100:0(CNT:0),gpu:1g.10gb:4(IDX:5-8)   Nodes=gpu02 CPU_IDs=0-15 Mem=0 GRES=shard:2(CNT:2),gpu:6(IDX:0-5)   Nodes=gpu04 CPU_IDs=0-15 Mem=0 GRES=(null)   MinCPUsNode=1": {
			State: "RUNNING", Nodes: []string{"gpu01", "gpu02", "gpu03", "gpu04"}, GPUs: map[string]int{"gpu01": 8, "gpu02": 6, "gpu03": 8}},
	} {
		j, err := ParseSweepJob([]byte(text))
		if diff := cmp.Diff(want, j, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", text, err, diff)
		}
	}
	if _, err := ParseSweepJob([]byte("slurm_load_jobs error: Invalid job id specified\n")); err == nil {
		t.Error("an error message is a job")
	}
	for state, want := range map[string]bool{"RUNNING": false, "PENDING": false, "COMPLETING": false, "SUSPENDED": false, "TIMEOUT": true, "BOOT_FAIL": true, "REVOKED": true} {
		if j := (SweepJob{State: state}); j.Ended() != want {
			t.Errorf("%s: ended %v", state, j.Ended())
		}
	}
	if NoSuchJob(nil) || NoSuchJob(errors.New("scancel: error: Unable to contact slurm controller")) || !NoSuchJob(errors.New("scancel: error: Kill job error on job id 5: Invalid job id specified")) {
		t.Error("NoSuchJob")
	}
}

func TestSweepArgv(t *testing.T) {
	t.Parallel()
	s := Settings{Scontrol: "/opt/slurm/bin/scontrol"}
	reserve, err := s.ReserveArgv("nhc-gpu-sweep-1", "root", []string{"gpu01", "gpu02"}, 61*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	fleet, err := s.FleetArgv()
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := Settings{Sinfo: "env X=y sinfo"}.SweepNodesArgv()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		got  []string
		want string
	}{
		{reserve, "/opt/slurm/bin/scontrol create reservation ReservationName=nhc-gpu-sweep-1 StartTime=now Duration=2 Users=root Flags=MAINT,IGNORE_JOBS Nodes=gpu[01-02]"},
		{s.AllocateArgv(Allocation{Name: "x", Nodes: []string{"gpu01"}, Time: time.Hour, Immediate: 30 * time.Second, QOS: "low", Account: "ops"}),
			"/opt/slurm/bin/salloc --no-shell --no-bell --no-kill --exclusive --mem=0 --job-name=x --time=60 --chdir=/ --nodes=1 --nodelist=gpu01 --immediate=30 --qos=low --account=ops"},
		{s.AllocateArgv(Allocation{Name: "x", Nodes: []string{"gpu01", "gpu02"}, Others: []string{}, Time: time.Hour})[7:], "--time=60 --chdir=/ --nodes=1-2"},
		{s.AllocateArgv(Allocation{Name: "x", Nodes: []string{"gpu01", "gpu02"}, Others: []string{"gpu03"}, Time: time.Hour})[7:], "--time=60 --chdir=/ --nodes=1-2 --exclude=gpu03"},
		{s.StepArgv("7", []string{"gpu02", "gpu01"}, StepGPUs{}, "/usr/sbin/nhc-gpu", "sweep", "rank"),
			"/opt/slurm/bin/srun --jobid=7 --nodes=2 --ntasks=2 --ntasks-per-node=1 --nodelist=gpu[01-02] --kill-on-bad-exit=0 --no-kill --wait=0 --mpi=none --cpu-bind=none --overlap --mem=0 --chdir=/ --propagate=NONE --label /usr/sbin/nhc-gpu sweep rank"},
		{s.StepArgv("7", []string{"gpu01"}, StepGPUs{Each: 8}, "true")[14:], "--propagate=NONE --gres=gpu:8 true"},
		{s.StepArgv("7", []string{"gpu01"}, StepGPUs{Each: 8, PerTask: true, Others: []string{"gpu03", "gpu04"}}, "true")[14:], "--propagate=NONE --gpus-per-task=8 --exclude=gpu[03-04] true"},
		{s.CancelArgv("7"), "/opt/slurm/bin/scancel 7"},
		{s.JobNodesArgv("7"), "/opt/slurm/bin/squeue -h -j 7 -o %A|%u|%N"},
		{s.EventArgv(time.Time{})[:2], "/opt/slurm/bin/sacctmgr -nP"},
		{fleet, "/opt/slurm/bin/sinfo -a -h -N -o %N|%t|%H|%u|%E"},
		{nodes, "env X=y sinfo -a -h -N -o %N|%t|%P,%a,%l,%s|%f|%E"},
	} {
		if got := strings.Join(tt.got, " "); got != tt.want {
			t.Errorf("%s\nwant %s", got, tt.want)
		}
	}
}

// The messages are those of 22.05 and 26.05.
func TestTaskEnds(t *testing.T) {
	t.Parallel()
	ends := ParseTaskEnds([]byte("srun: cluster configuration lacks support for cpu binding\n" +
		"srun: error: gpu02: task 1: Exited with exit code 2\n 1: slurmstepd: error: execve(): /usr/sbin/nhc-gpu: No such file or directory\n" +
		"3: [2026-11-27T20:19:21.097] error: execve(): /usr/sbin/nhc-gpu: Permission denied\nsrun: error: gpu04: task 3: Exited with exit code 13\n" +
		"srun: error: gpu[07,10-11]: tasks 6,9-10: Killed\n0: of a task that goes on\n10: it is\nsrun: error: gpu12: task 11: Kil"))
	want := map[string]TaskEnd{
		"gpu02": {"Exited with exit code 2", "slurmstepd: error: execve(): /usr/sbin/nhc-gpu: No such file or directory"},
		"gpu04": {"Exited with exit code 13", "[2026-11-27T20:19:21.097] error: execve(): /usr/sbin/nhc-gpu: Permission denied"},
		"gpu07": {"Killed", ""}, "gpu10": {"Killed", ""}, "gpu11": {"Killed", "it is"},
	}
	if diff := cmp.Diff(want, ends); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// A sweep drains as the checks of a node do, and resumes only what a sweep has drained.
func TestRemote(t *testing.T) {
	t.Parallel()
	verdict := SweepVerdict("sweep sends 5 Gb/s, want 90 [sweep.tcp.slow]")
	for name, tt := range map[string]struct {
		state, reason string
		v             Verdict
		want          Action
		set           string
	}{
		"in service":               {"IDLE", "", verdict, Drain, "NHC: sweep sends 5 Gb/s, want 90 [sweep.tcp.slow]"},
		"a person's drain":         {"IDLE+DRAIN", "bad fan", verdict, None, "bad fan"},
		"a drain of the checks":    {"IDLE+DRAIN", "NHC: x (check_x) [a.b]", verdict, None, "NHC: x (check_x) [a.b]"},
		"a drain of a sweep":       {"IDLE+DRAIN", "NHC: sweep old [sweep.tcp.slow]", verdict, None, "NHC: sweep old [sweep.tcp.slow]"},
		"passes, of a sweep":       {"IDLE+DRAIN", "NHC: sweep old [sweep.tcp.slow]", Verdict{Healthy: true}, Resume, ""},
		"passes, of the checks":    {"IDLE+DRAIN", "NHC: x (check_x) [a.b]", Verdict{Healthy: true}, None, "NHC: x (check_x) [a.b]"},
		"passes, a person's drain": {"IDLE+DRAIN", "bad fan", Verdict{Healthy: true}, None, "bad fan"},
	} {
		f := &fake{state: tt.state, reason: tt.reason}
		c := &Controller{Node: "gpu01", Runner: f, Remote: true}
		out, err := c.Act(t.Context(), tt.v, Manual)
		if err != nil || out.Action != tt.want || f.reason != tt.set {
			t.Errorf("%s: %v %q (%s), %v, want %v %q", name, out.Action, f.reason, out.Why, err, tt.want, tt.set)
		}
	}
	// The checks of the node itself, with and without a memory, leave the drain of a sweep alone.
	for name, dir := range map[string]StateDir{"no memory": nil} {
		f := &fake{state: "IDLE+DRAIN", reason: "NHC: sweep slow [sweep.tcp.slow]"}
		c := &Controller{Node: "gpu01", Runner: f, Dir: dir}
		for _, v := range []Verdict{{Healthy: true}, {Message: "gpu3 lost (check_gpu_count) [gpu.recovery.lost]"}} {
			if out, err := c.Act(t.Context(), v, HealthCheck); err != nil || out.Action != None || f.reason != "NHC: sweep slow [sweep.tcp.slow]" {
				t.Errorf("%s, healthy %v: %v %q (%s), %v", name, v.Healthy, out.Action, f.reason, out.Why, err)
			}
		}
	}
}

// The guard counts the drains of sweeps, and holds those that are too many.
func TestRemoteGuard(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE", groups: "main|idle|7|gpu[01-07]|none\nmain|drain|1|gpu08|NHC: sweep slow [sweep.tcp.slow]\n"}
	c := &Controller{Node: "gpu01", Runner: f, Remote: true, Guard: &Guard{Percent: 10, Nodes: 1}}
	out, err := c.Act(t.Context(), SweepVerdict("slow [sweep.tcp.slow]"), Manual)
	if err != nil || out.Guarded == "" || f.state != "IDLE" || f.comment != "" {
		t.Errorf("%+v, %v: state %s, comment %q", out.Decision, err, f.state, f.comment)
	}
}

func TestSweepDevice(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]string{
		"NHC: sweep slow TCP eth1 [sweep.tcp.slow]": "eth1", "NHC: sweep slow TCP [sweep.tcp.slow]": "", "NHC: sweep slow TCP 10.0.0.0/24 [sweep.tcp.slow] +2": "10.0.0.0/24", "x": "",
	} {
		if got := SweepDevice("sweep.tcp.slow", reason); got != want {
			t.Errorf("%s: %q, want %q", reason, got, want)
		}
	}
}
