package session

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

func TestBeganAt(t *testing.T) {
	t.Parallel()
	byProlog, bySlurm := time.Unix(1000, 0).UTC(), time.Unix(900, 0).UTC()
	rec := func(change func(*slurm.Record)) *slurm.Record {
		r := &slurm.Record{Restart: 1, Begin: slurm.Moment{Time: byProlog, Boot: "a", Uptime: 50}}
		change(r)
		return r
	}
	now := slurm.Moment{Time: byProlog.Add(time.Minute), Boot: "a", Uptime: 110}
	for _, tt := range []struct {
		name string
		rec  *slurm.Record
		want time.Time
	}{
		{"no record", nil, bySlurm},
		{"the prolog's word", rec(func(*slurm.Record) {}), byProlog},
		{"of an earlier start of the job", rec(func(r *slurm.Record) { r.Restart = 0 }), bySlurm},
		{"refused", rec(func(r *slurm.Record) { r.Outcome = slurm.ClosedRefused }), bySlurm},
		{"booted since", rec(func(r *slurm.Record) { r.Begin.Boot = "b" }), time.Time{}},
		{"the clock was set since", rec(func(r *slurm.Record) { r.Begin.Uptime = 20 }), time.Time{}},
		{"the clock goes a little wrong", rec(func(r *slurm.Record) { r.Begin.Uptime = 46 }), byProlog},
	} {
		if got := BeganAt(slurm.Job{Restart: 1, Began: bySlurm}, tt.rec, now); !got.Equal(tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestBeside(t *testing.T) {
	t.Parallel()
	rec := func(job string, uid int, boot, outcome string) *slurm.Record {
		return &slurm.Record{Job: job, UID: uid, Begin: slurm.Moment{Boot: boot}, Outcome: outcome}
	}
	own := rec("7", 1000, "now", "")
	for _, tt := range []struct {
		name  string
		own   *slurm.Record
		open  []*slurm.Record
		uids  []int
		known bool
	}{
		{"alone", own, []*slurm.Record{own}, nil, true},
		{"another user", own, []*slurm.Record{own, rec("8", 1001, "now", "")}, []int{1001}, true},
		{"of an earlier boot", own, []*slurm.Record{own, rec("8", 1001, "then", "")}, nil, true},
		{"refused", own, []*slurm.Record{own, rec("8", 1001, "now", slurm.ClosedRefused)}, nil, true},
		{"its own record was lost since", own, []*slurm.Record{rec("8", 1001, "now", "")}, []int{1001}, false},
		{"it never had one", nil, []*slurm.Record{rec("8", 1001, "now", "")}, []int{1001}, true},
	} {
		uids, known := Beside("7", tt.own, tt.open, "now")
		if diff := cmp.Diff(tt.uids, uids); diff != "" || known != tt.known {
			t.Errorf("%s: known %v, want %v (-want +got)\n%s", tt.name, known, tt.known, diff)
		}
	}
}

func TestCloses(t *testing.T) {
	t.Parallel()
	now := &slurm.Record{Job: "9", GPUs: []slurm.GPU{{PCI: ownGPU.PCI}}, Begin: slurm.Moment{Boot: "now"}}
	rec := func(job, boot string, whole bool, pci string) *slurm.Record {
		return &slurm.Record{Job: job, Whole: whole, GPUs: []slurm.GPU{{PCI: pci}}, Begin: slurm.Moment{Boot: boot}}
	}
	for _, tt := range []struct {
		name    string
		rec     *slurm.Record
		newer   int
		parts   bool
		running bool
		want    string
	}{
		{name: "of another GPU", rec: rec("8", "now", false, otherGPU.PCI)},
		{name: "of an earlier boot", rec: rec("8", "then", false, otherGPU.PCI), running: true, want: slurm.ClosedReboot},
		{name: "the same job, requeued", rec: rec("9", "now", false, otherGPU.PCI), running: true, want: slurm.ClosedNoEpilog},
		{name: "it had the node for itself", rec: rec("8", "now", true, otherGPU.PCI), want: slurm.ClosedNoEpilog},
		{name: "it had the same GPU", rec: rec("8", "now", false, ownGPU.PCI), want: slurm.ClosedNoEpilog},
		{name: "and has processes", rec: rec("8", "now", false, ownGPU.PCI), running: true},
		{name: "jobs may have parts of a GPU", rec: rec("8", "now", false, ownGPU.PCI), parts: true},
		{name: "too many", rec: rec("8", "now", false, otherGPU.PCI), newer: openMost + 1, running: true, want: slurm.ClosedNoEpilog},
		{name: "just not too many", rec: rec("8", "now", false, otherGPU.PCI), newer: openMost},
	} {
		if got := Closes(tt.rec, now, tt.newer, tt.parts, func(string) bool { return tt.running }); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestAttribute(t *testing.T) {
	t.Parallel()
	records := []*slurm.Record{
		{Job: "8", Whole: true, Looked: []string{"check_gpu_ecc"}},
		{Job: "9", Whole: true, Looked: []string{"check_gpu_ecc"}, Failing: []string{slurm.FailingKey(checks.Finding{Code: "gpu.ecc", Device: ownGPU})}},
	}
	fail := checks.Finding{Severity: checks.Fail, Code: "gpu.ecc", Device: ownGPU, Message: "bad"}
	other, warning, uncoded := fail, fail, fail
	other.Device, warning.Severity, uncoded.Code = otherGPU, checks.Warn, ""
	about := other
	about.Jobs = "9"
	for _, tt := range []struct {
		name  string
		check string
		of    checks.Finding
		jobs  string
	}{
		{"one job has had it at its start", "check_gpu_ecc", fail, "8"},
		{"no job has", "check_gpu_ecc", other, "8 9"},
		{"before the first look", "check_gpu_clocks", fail, ""},
		{"a warning is of no job", "check_gpu_ecc", warning, ""},
		{"a failure without a code", "check_gpu_ecc", uncoded, ""},
	} {
		given := []checks.Finding{tt.of, {Severity: checks.Fail}}
		list, began := Attribute(tt.check, given, func() []*slurm.Record { return records }, func(checks.LogMark) []checks.XidSeen { return nil })
		want := slurm.Attributed("bad", strings.Fields(tt.jobs))
		if got := list[0]; got.Jobs != tt.jobs || got.Message != want || (len(began) > 0) != (tt.jobs != "") {
			t.Errorf("%s: %q of jobs %q, began %v; want %q of %q", tt.name, got.Message, got.Jobs, began, want, tt.jobs)
		}
		if given[0].Message != "bad" {
			t.Errorf("%s: what the check has found is changed", tt.name)
		}
	}
	list, began := Attribute("check_gpu_ecc", []checks.Finding{about}, func() []*slurm.Record { return records }, func(checks.LogMark) []checks.XidSeen { return nil })
	if got := list[0]; got.Jobs != "9" || got.Message != "bad" || len(began) != 1 {
		t.Errorf("a finding about job 9: %q of jobs %q, began %v", got.Message, got.Jobs, began)
	}
}

func TestWaitsForJobs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		step plan.Step
		want bool
	}{
		{"a check", plan.Step{}, false},
		{"an active test", plan.Step{Active: true}, true},
		{"one whose last result is read", plan.Step{Active: true, OnlyOld: true}, false},
	} {
		if got := WaitsForJobs(&plan.Plan{Steps: []plan.Step{{}, tt.step}}); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestAddUnasked(t *testing.T) {
	t.Parallel()
	named := func(names ...string) *plan.Plan {
		p := new(plan.Plan)
		for i, name := range names {
			p.Steps = append(p.Steps, plan.Step{Index: i, Kind: plan.ShellLine, Name: name, Text: name + " -x", Pos: conf.Pos{File: nhcConf, Line: i + 1}})
		}
		return p
	}
	skipped := named("mine")
	skipped.Skipped = []plan.Skipped{{Step: plan.Step{Name: leftoversCheck}}}
	for i, tt := range []struct {
		context string
		of      *plan.Plan
		want    []string
		unasked int
	}{
		{conf.Epilog, named("mine"), []string{leftoversCheck, "mine", jobGPUsCheck}, 2},
		{conf.Prolog, named("mine"), []string{"mine"}, 0},
		{"", named("mine"), []string{"mine"}, 0},
		{conf.Epilog, named(jobGPUsCheck, "mine"), []string{leftoversCheck, jobGPUsCheck, "mine"}, 1},
		{conf.Epilog, skipped, []string{"mine", jobGPUsCheck}, 1},
	} {
		p := AddUnasked(tt.of, plan.Options{Context: tt.context})
		var got []string
		unasked := 0
		for i := range p.Steps {
			got = append(got, p.Steps[i].Name)
			if Unasked(&p.Steps[i]) {
				unasked++
			}
			if p.Steps[i].Index != i {
				t.Errorf("%d: step %d has index %d", i, i, p.Steps[i].Index)
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || unasked != tt.unasked {
			t.Errorf("%s %s: %d unasked, want %d (-want +got)\n%s", tt.context, strconv.Itoa(i), unasked, tt.unasked, diff)
		}
	}
}

// A run of the monitor for other events than running jobs names the check of jobs that it skips.
func TestAddUnaskedToMonitor(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		event          monitor.Kind
		line           string // of the site
		steps, skipped int
	}{
		{monitor.Lost, "mine", 1, 1},
		{monitor.Lost, jobHealthCheck, 1, 0},
	} {
		p := &plan.Plan{Steps: []plan.Step{{Kind: plan.ShellLine, Name: tt.line, Text: tt.line}}}
		p = AddUnasked(p, plan.Options{Context: conf.Monitor, Events: []monitor.Kind{tt.event}})
		if len(p.Steps) != tt.steps || len(p.Skipped) != tt.skipped || tt.skipped > 0 && p.Skipped[0].Text != jobHealthCheck {
			t.Errorf("%s, %s: %d steps, %+v skipped", tt.event, tt.line, len(p.Steps), p.Skipped)
		}
	}
}
