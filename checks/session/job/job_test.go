package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sessiontest"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

var (
	began   = time.Date(2026, 11, 23, 18, 0, 0, 0, time.UTC)
	gpu0    = checks.Device{Kind: "gpu", Name: "gpu0", PCI: fakenvml.Address(0)}
	failing = checks.Finding{Code: "gpu.ecc", Severity: checks.Fail, Device: gpu0, Message: "bad memory"}
)

// newRecord returns an open record of a job that began in this boot.
func newRecord(job string, change func(*slurm.Record)) *slurm.Record {
	r := slurm.NewRecord(slurm.Job{ID: job, UID: 1000 + len(job), Alone: true}, slurm.Scope{}, "node1", slurm.Moment{Time: began, Boot: slurm.BootID(), Uptime: 1})
	r.Looked = []string{"check_gpu_ecc"}
	if change != nil {
		change(r)
	}
	return r
}

func marshal(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// keep stores open records on a node.
func keep(t *testing.T, n *sessiontest.Node, list ...*slurm.Record) {
	t.Helper()
	for _, r := range list {
		n.Write(t, "past/"+r.Name()+".json", marshal(t, r))
	}
}

// journal returns the records of a node's journal as "JOB OUTCOME".
func journal(t *testing.T, n *sessiontest.Node) (list []string) {
	t.Helper()
	for line := range strings.Lines(n.Read("past/jobs.jsonl")) {
		r, err := slurm.ParseRecord([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, r.Job+" "+r.Outcome)
	}
	return list
}

func TestParseOpen(t *testing.T) {
	t.Parallel()
	later := newRecord("8", func(r *slurm.Record) { r.Begin.Time = began.Add(time.Hour) })
	list, damaged, errs := parseOpen([]probe.Record{
		{Name: "job-8", Data: []byte(marshal(t, later))},
		{Name: "job-7", Data: []byte(marshal(t, newRecord("7", nil)))},
		{Name: "job-5", Err: "denied"},
		{Name: "job-4", Data: []byte(`{"version":99,"job":"4"}`)},
		{Name: "job-3", Data: []byte(`{`)},
	})
	var jobs []string
	for _, r := range list {
		jobs = append(jobs, r.Job)
	}
	if diff := cmp.Diff([]string{"7", "8"}, jobs); diff != "" {
		t.Errorf("records (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"job-4", "job-3"}, damaged); diff != "" {
		t.Errorf("damaged ones, which are removed (-want +got)\n%s", diff)
	}
	if len(errs) != 3 || errs[0].Error() != "job-5: denied" || !strings.HasPrefix(errs[1].Error(), "job-4: ") {
		t.Errorf("errors %v", errs)
	}
}

func TestClosedIn(t *testing.T) {
	t.Parallel()
	line := func(job, boot string) []byte {
		return []byte(marshal(t, newRecord(job, func(r *slurm.Record) { r.End.Boot = boot })))
	}
	for _, tt := range []struct {
		name    string
		journal [][]byte
		want    bool
	}{
		{"an empty journal", nil, false},
		{"another job", [][]byte{line("8", "now")}, false},
		{"in this boot", [][]byte{line("7", "now"), line("8", "now"), []byte("{")}, true},
		{"in an earlier boot", [][]byte{line("7", "then")}, false},
		{"the last time counts", [][]byte{line("7", "now"), line("7", "then")}, false},
	} {
		if got := closedIn("now", "7", tt.journal); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestCountsAdd(t *testing.T) {
	t.Parallel()
	port, gpu := checks.Counters{Device: checks.Device{Kind: "port"}}, checks.Counters{Device: gpu0}
	mark := checks.LogMark{Boot: "now"}
	xids := []checks.XidSeen{{}}
	local := &wire.Response{Counters: []checks.Counters{port}, Xids: xids, Mark: &mark, Doubts: []string{"no log"}}
	nvml := &wire.Response{Counters: []checks.Counters{gpu}, Findings: []checks.Finding{failing}, Xids: make([]checks.XidSeen, 2), Mark: new(checks.LogMark)}
	var c counts
	c.add(checks.Local, local, nil)
	c.add(checks.NVML, nvml, nil)
	c.add(checks.NVML, nil, errors.New("no answer"))
	want := counts{counters: []checks.Counters{port, gpu}, xids: xids, end: mark, doubts: []string{"no log", "counters of nvml: no answer"}, lost: []checks.Finding{failing}}
	if diff := cmp.Diff(want, c, cmp.AllowUnexported(counts{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	c = counts{}
	c.add(checks.Local, new(wire.Response), nil)
	if c.end != (checks.LogMark{}) {
		t.Errorf("a log that cannot be read has the mark %+v", c.end)
	}
}

func TestLook(t *testing.T) {
	t.Parallel()
	warning := failing
	warning.Severity = checks.Warn
	for _, tt := range []struct {
		name            string
		list            []checks.Finding
		looked, failing []string
	}{
		{"it passes", nil, []string{"check_x"}, nil},
		{"it warns", []checks.Finding{warning}, []string{"check_x"}, nil},
		{"it fails", []checks.Finding{failing}, []string{"check_x"}, []string{slurm.FailingKey(failing)}},
		{"it fails and could not look at all", []checks.Finding{failing, {Severity: checks.Unknown}}, nil, []string{slurm.FailingKey(failing)}},
	} {
		a := new(Around)
		a.Look("check_x", tt.list)
		if diff := cmp.Diff([][]string{tt.looked, tt.failing}, [][]string{a.looked, a.failing}); diff != "" {
			t.Errorf("%s: looked, failing (-want +got)\n%s", tt.name, diff)
		}
	}
}

// withGPUs gives a node a root directory with four GPUs.
func withGPUs(t *testing.T, n *sessiontest.Node) {
	t.Helper()
	if err := fakenvml.Write(n.Dir+"/root", fakenvml.Files(fakenvml.A100, 4)); err != nil {
		t.Fatal(err)
	}
	n.Set.Put("HOSTROOT", n.Dir+"/root", false)
	n.Pool.SetVars(n.Set.WorkerVars())
}

func TestFind(t *testing.T) {
	t.Parallel()
	some := func(numbers ...int) slurm.Job { return slurm.Job{ID: "7", Share: slurm.SomeGPUs, Numbers: numbers} }
	for _, tt := range []struct {
		name       string
		job        slurm.Job
		without    bool // the node has no GPU
		known      bool
		own, other int
		keep       bool
		line       bool
		warned     string
	}{
		{name: "two of four", job: some(1, 2), known: true, own: 2, other: 2, keep: true},
		{name: "all", job: slurm.Job{ID: "7", Share: slurm.AllGPUs}, own: 4, keep: true},
		{name: "none", job: slurm.Job{ID: "7"}, known: true, keep: true},
		{name: "one that the node does not have", job: some(9), own: 4, keep: true, warned: "no GPU of this node has the device /dev/nvidia9; each failure counts as the job's"},
		{name: "one of a node without GPUs", job: some(0), without: true, keep: true, warned: "find the GPUs of job 7: "},
		{name: "of a job without a number", job: slurm.Job{Share: slurm.SomeGPUs, Minors: []int{9}}, own: 4, warned: "find the GPUs of the job (SLURM_JOB_ID is not set): "},
		{name: "one line of a person", job: some(1), line: true, known: true, own: 1, other: 3},
		{name: "a person without a job", job: slurm.Job{Share: slurm.AllGPUs}, own: 4},
		{name: "a MIG device, which only NVML knows", job: slurm.Job{ID: "7", Share: slurm.SomeGPUs, MIG: []string{"MIG-x"}}, keep: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := sessiontest.New(t, slurm.Prolog)
			n.Set.Put("HOSTROOT", n.Dir+"/none", false)
			n.Pool.SetVars(n.Set.WorkerVars())
			if !tt.without {
				withGPUs(t, n)
			}
			a := AnyJob(NewRecords(n.Node))
			a.Job = tt.job
			a.Find(tt.line)
			if s := a.Blame.Scope; s.Known != tt.known || len(s.Own) != tt.own || len(s.Other) != tt.other || a.keep != tt.keep {
				t.Errorf("known %v, own %v, other %v, keeps %v", s.Known, s.Own, s.Other, a.keep)
			}
			if got := n.Err.String(); !strings.Contains(got, tt.warned) || (got != "") != (tt.warned != "") {
				t.Errorf("warned %q, want %q", got, tt.warned)
			}
		})
	}
}

// A GPU that is excluded from the driver has no number of slurmd's.
func TestFindExcluded(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.Prolog)
	withGPUs(t, n)
	file := "proc/driver/nvidia/gpus/" + fakenvml.Address(1) + "/information"
	if err := fakenvml.Write(n.Dir+"/root", map[string]string{file: "Device Minor: \t 1\nGPU Excluded:\t Yes\n"}); err != nil {
		t.Fatal(err)
	}
	n.Set.Slurm = &jobscan.SlurmGPUs{Count: 3, Detect: "nvml"}
	a := AnyJob(NewRecords(n.Node))
	a.Job = slurm.Job{ID: "7", Share: slurm.SomeGPUs, Numbers: []int{1}}
	a.Find(false)
	if own := a.Blame.Scope.Own; !a.Blame.Scope.Known || len(own) != 1 || own[0].Index != 1 || own[0].PCI != fakenvml.Address(2) {
		t.Errorf("%+v, warned %q", a.Blame.Scope, n.Err)
	}
}

// A job with a MIG device that NVML does not show may have any GPU.
func TestFindMIG(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.Prolog)
	withGPUs(t, n)
	a := AnyJob(NewRecords(n.Node))
	a.FindMIG()
	if n.Err.String() != "" || n.Pool.Pid(checks.NVML) != 0 {
		t.Errorf("a job without MIG starts a worker of NVML: %s", n.Err)
	}
	const mig = "MIG-11111111-2222-3333-4444-555555555555"
	a.Job = slurm.Job{ID: "7", Share: slurm.SomeGPUs, MIG: []string{mig}}
	a.Find(false)
	if a.FindMIG(); a.Blame.Scope.Known || !strings.Contains(n.Err.String(), "has the MIG device "+mig+"; load libnvidia-ml.so.1") {
		t.Errorf("scope %+v, warned %q", a.Blame.Scope, n.Err)
	}
}

// A prolog opens a record, and the epilog of the same job closes it with the changes since then.
func TestRecordOfJob(t *testing.T) {
	for _, tt := range []struct {
		name    string
		refused bool
		prolog  bool // it has run
		twice   bool // two epilogs run
		exit    string
		line    string // contains
		outcome string
	}{
		{name: "complete", prolog: true, exit: "1:0", line: "nhc-gpu: job 7", outcome: slurm.ClosedWhole},
		{name: "an exit status that is none", prolog: true, exit: "1:0; rm", line: "nhc-gpu: job 7", outcome: slurm.ClosedWhole},
		{name: "refused", prolog: true, refused: true, line: "nhc-gpu: job 7", outcome: slurm.ClosedRefused},
		{name: "no prolog has run", line: "no prolog", outcome: slurm.ClosedNoProlog},
		{name: "a second epilog", prolog: true, twice: true, line: "nhc-gpu: job 7", outcome: slurm.ClosedWhole},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("SLURM_JOB_EXIT_CODE2", tt.exit)
			n := sessiontest.New(t, slurm.Prolog)
			n.Warm(t, checks.NVML, node.AsideLane)
			around := func(role slurm.Role) *Around {
				n.Role = role
				a := AnyJob(NewRecords(n.Node))
				a.Job = slurm.Job{ID: "7", User: "alice", UID: 1000, Alone: true}
				a.Find(false)
				if lost := a.Count(); len(lost) > 0 {
					t.Errorf("lost %v", lost)
				}
				return a
			}
			if tt.prolog {
				a := around(slurm.Prolog)
				a.Look("check_gpu_ecc", nil)
				a.Open(tt.refused)
				if r, err := slurm.ParseRecord([]byte(n.Read("past/job-7.json"))); err != nil || r.User != "alice" || r.Begin.Boot != slurm.BootID() || !slices.Equal(r.Looked, []string{"check_gpu_ecc"}) {
					t.Fatalf("opened %+v, %v", r, err)
				}
			}
			a := around(slurm.Epilog)
			if got := a.Attribute("check_gpu_ecc", []checks.Finding{failing}); (got[0].Jobs == "7") != (tt.prolog && !tt.refused) {
				t.Errorf("the fault is of job %q", got[0].Jobs)
			}
			line, keep := a.Close()
			if !strings.Contains(line, tt.line) {
				t.Fatalf("%q, want %q", line, tt.line)
			}
			keep()
			if tt.twice {
				if line, keep := around(slurm.Epilog).Close(); line != "" || keep != nil {
					t.Errorf("the second epilog: %q", line)
				}
			}
			if diff := cmp.Diff([]string{"7 " + tt.outcome}, journal(t, n)); diff != "" {
				t.Errorf("journal (-want +got)\n%s", diff)
			}
			r, err := slurm.ParseRecord([]byte(strings.TrimSpace(n.Read("past/jobs.jsonl"))))
			if wantExit := strings.TrimSuffix(tt.exit, "; rm"); err != nil || (r.Exit != "") != (tt.exit == "1:0") || r.Exit != "" && r.Exit != wantExit {
				t.Errorf("exit %q, %v", r.Exit, err)
			}
			if n.Read("past/job-7.json") != "" {
				t.Error("the open record is still there")
			}
			all, err := NewRecords(n.Node).All()
			if err != nil || len(all) != 1 || all[0].Job != "7" {
				t.Errorf("all records: %v, %v", all, err)
			}
			if got := n.Err.String(); got != "" {
				t.Errorf("warned %q", got)
			}
		})
	}
}

func TestFailed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		exit, derived string
		want          bool
	}{
		{"", "", false}, {"0:0", "0", false}, {"1:0", "0", true}, {"0:15", "", true}, {"0:0", "137", true}, {"", "2", true}, {"0:0", "x", false},
	} {
		if got := failed(tt.exit, tt.derived); got != tt.want {
			t.Errorf("exit %q, derived %q: %v", tt.exit, tt.derived, got)
		}
	}
}

// Runs of one line, and of a node without a memory, keep no record.
func TestKeepsNoRecord(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.Epilog)
	keep(t, n, newRecord("7", nil))
	a := AnyJob(NewRecords(n.Node))
	a.Job = slurm.Job{ID: "7"}
	a.Find(true)
	a.Open(false)
	if lost := a.Count(); lost != nil || a.record != nil {
		t.Errorf("one line: lost %v, record %v", lost, a.record)
	}
	if line, keep := a.Close(); line != "" || keep != nil {
		t.Errorf("one line: %q", line)
	}
	if uids, known := a.findBeside(); uids != nil || !known {
		t.Errorf("one line: beside %v, known %v", uids, known)
	}
}

// A prolog closes the records that no epilog will close, and removes those that cannot be read.
// No job of a cluster on this machine, which other tests start, has the IDs of these.
func TestTidy(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.Prolog)
	rebooted := newRecord("900000003", func(r *slurm.Record) { r.Begin.Boot = "then" })
	sameNode := newRecord("900000004", nil)
	keep(t, n, rebooted, sameNode)
	n.Write(t, "past/job-5.json", "{")
	a := AnyJob(NewRecords(n.Node))
	a.Job = slurm.Job{ID: "9", Alone: true, Share: slurm.AllGPUs}
	a.keep = true
	a.Open(false)
	if diff := cmp.Diff([]string{"900000003 " + slurm.ClosedReboot, "900000004 " + slurm.ClosedNoEpilog}, journal(t, n)); diff != "" {
		t.Errorf("journal (-want +got)\n%s", diff)
	}
	for _, name := range []string{"job-900000003", "job-900000004", "job-5"} {
		if n.Read("past/"+name+".json") != "" {
			t.Errorf("%s is still there", name)
		}
	}
	if n.Read("past/job-9.json") == "" {
		t.Error("the record of the job is not there")
	}
}

// Each failure names the jobs that it began in.
func TestAttribute(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.HealthCheck)
	n.Warm(t, node.AsideLane)
	keep(t, n, newRecord("7", nil), newRecord("8", func(r *slurm.Record) { r.Failing = []string{slurm.FailingKey(failing)} }), newRecord("6", func(r *slurm.Record) { r.Begin.Boot = "then" }))
	r := NewRecords(n.Node)
	list := r.Attribute("check_gpu_ecc", []checks.Finding{failing})
	if list[0].Jobs != "7" {
		t.Errorf("jobs %q, want 7", list[0].Jobs)
	}
	keep(t, n, newRecord("9", nil))
	if list = r.Attribute("check_gpu_ecc", []checks.Finding{failing}); list[0].Jobs != "7" {
		t.Errorf("the records are read twice: jobs %q", list[0].Jobs)
	}
}

func TestForChecks(t *testing.T) {
	t.Parallel()
	role := conf.Role{End: true, Grace: time.Minute}
	gpus := []slurm.GPU{{Minor: 2, PCI: gpu0.PCI, UUID: "GPU-1"}}
	want := []checks.JobGPU{{Minor: 2, PCI: gpu0.PCI, UUID: "GPU-1"}}
	job := slurm.Job{ID: "7", UID: 1000, User: "alice", Restart: 1, Het: "6", Began: began.Add(time.Hour)}
	with := func(change func(*slurm.Job)) slurm.Job {
		j := job
		change(&j)
		return j
	}
	for _, tt := range []struct {
		name  string
		role  slurm.Role
		job   slurm.Job
		scope slurm.Scope
		own   *slurm.Record
		open  []*slurm.Record
		want  checks.Job
	}{
		{name: "a prolog", role: slurm.Prolog, job: job, scope: slurm.Scope{Known: true, Own: gpus}, want: checks.Job{GPUs: want}},
		{name: "all GPUs", role: slurm.Prolog, job: with(func(j *slurm.Job) { j.Share = slurm.AllGPUs }), scope: slurm.Scope{Own: gpus}, want: checks.Job{GPUs: want}},
		{name: "unknown GPUs", role: slurm.Prolog, job: with(func(j *slurm.Job) { j.Share, j.Strange = slurm.AllGPUs, "odd" }), scope: slurm.Scope{Own: gpus}},
		{name: "an epilog without a record", role: slurm.Epilog, job: job, want: checks.Job{Ended: true, Began: job.Began}},
		{name: "an epilog beside another job", role: slurm.Epilog, job: job, open: []*slurm.Record{newRecord("88", nil)}, want: checks.Job{Ended: true, Began: job.Began, Beside: []int{1002}}},
		{name: "its record was lost", role: slurm.Epilog, job: job, own: newRecord("7", nil), open: []*slurm.Record{newRecord("88", nil)}, want: checks.Job{Ended: true, Beside: []int{1002}}},
		{name: "an epilog after a requeue", role: slurm.Epilog, job: job, own: newRecord("7", func(r *slurm.Record) { r.Restart = 2 }), open: []*slurm.Record{newRecord("7", nil)}, want: checks.Job{Ended: true, Again: true, Began: job.Began}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := sessiontest.New(t, tt.role, "SLURMD_NODENAME=node1")
			keep(t, n, tt.open...)
			a := AnyJob(NewRecords(n.Node))
			a.Job, a.Blame.Scope, a.record, a.keep = tt.job, tt.scope, tt.own, true
			want := tt.want
			want.ID, want.UID, want.User, want.Node, want.Restart, want.Het, want.End, want.Grace = "7", 1000, "alice", "node1", 1, "6", true, time.Minute
			if diff := cmp.Diff(&want, a.ForChecks(role)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// Records of jobs without an epilog are closed before an active test, if Slurm has no job on the node.
func TestSettle(t *testing.T) {
	t.Parallel()
	active := &plan.Plan{Steps: []plan.Step{{Active: true}}}
	for _, tt := range []struct {
		name    string
		role    slurm.Role
		plan    *plan.Plan
		words   string
		state   string
		records int
		prepare func(*sessiontest.Node)
		closed  int
		warned  string
	}{
		{name: "no job runs", plan: active, records: 2, closed: 2},
		{name: "no record", plan: active},
		{name: "a job runs", plan: active, state: "allocated none", records: 1},
		{name: "no active test", plan: &plan.Plan{Steps: []plan.Step{{}}}, records: 1},
		{name: "an epilog", role: slurm.Epilog, plan: active, records: 1},
		{name: "another resource manager", plan: active, words: "NHC_RM=pbs", records: 1},
		{name: "no resource manager is known", plan: active, words: "NHC_RM=", records: 1, closed: 1},
		{name: "no name", plan: active, records: 1, prepare: func(n *sessiontest.Node) { n.Bad = errors.New("no name") }},
		{name: "no memory", plan: active, records: 1, prepare: func(n *sessiontest.Node) { n.Set.Past = "" }},
		{name: "Slurm does not answer", plan: active, records: 1, state: "-", warned: "find out whether job 7 still runs"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := sessiontest.New(t, tt.role, strings.Fields(tt.words)...)
			n.Budget.Give(time.Minute)
			if tt.state != "" {
				n.Write(t, "slurm", tt.state+"\n")
			}
			if tt.state == "-" {
				n.Script(t, "bin/sinfo", "exit 1")
				n.Script(t, "bin/scontrol", "exit 1")
			}
			for i := range tt.records {
				keep(t, n, newRecord(fmt.Sprint(7+i), nil))
			}
			if tt.prepare != nil {
				tt.prepare(n)
			}
			r := NewRecords(n.Node)
			r.Settle(tt.plan)
			if closed := len(journal(t, n)); closed != tt.closed || tt.closed > 0 && len(r.readRunning(checks.Local)) > 0 {
				t.Errorf("%d records closed, want %d", closed, tt.closed)
			}
			if got := n.Err.String(); !strings.Contains(got, tt.warned) || (got != "") != (tt.warned != "") {
				t.Errorf("warned %q, want %q", got, tt.warned)
			}
		})
	}
}

// Without a memory directory each operation costs one warning and no more.
func TestNoMemory(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.Prolog)
	n.Set.Past = ""
	n.Pool.SetVars(n.Set.WorkerVars())
	a := AnyJob(NewRecords(n.Node))
	a.Job, a.keep = slurm.Job{ID: "7"}, true
	a.Open(false)
	if got := n.Err.String(); !strings.Contains(got, "keep the record of job 7: ") {
		t.Errorf("warned %q", got)
	}
	if a.wasClosed() {
		t.Error("a journal that cannot be read has a closed record")
	}
	if list, err := a.records.All(); err == nil {
		t.Errorf("records %v of no memory", list)
	}
}
