package judge

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/session/outputs"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

var (
	gpu3    = checks.Device{Kind: "gpu", Name: "gpu3", PCI: "0000:66:00.0"}
	native  = plan.Step{Kind: plan.Native, Name: "check_gpu_ecc", Text: "check_gpu_ecc", Lane: checks.NVML}
	failed  = checks.Finding{Code: "gpu.ecc", Severity: checks.Fail, Device: gpu3, Message: "bad memory", Check: "check_gpu_ecc"}
	unknown = checks.Finding{Code: "probe.failed", Severity: checks.Unknown, Message: "no answer"}
)

func TestFoldSettings(t *testing.T) {
	t.Parallel()
	type settings = verdict.Settings
	for _, tt := range []struct {
		name       string
		vars       string
		held, late bool
		want       settings
	}{
		{"nothing is set", "", false, false, settings{Silent: true, Apart: true}},
		{"as LBNL NHC begins", "NAME=nhc SILENT=0 VERBOSE=0 NHC_CHECK_ALL=0 NHC_CHECK_FORKED=0 MARK_OFFLINE=1 NHC_RM=slurm LOGFILE=>>/x", false, false, settings{Name: "nhc", Mark: true, Logged: true}},
		{"-q", "SILENT=1 NHC_CHECK_FORKED=0", false, false, settings{Silent: true}},
		{"-v", "SILENT=0 VERBOSE=1 NHC_CHECK_FORKED=0", false, false, settings{Verbose: true}},
		{"-a", "SILENT=0 NHC_CHECK_ALL=1 NHC_CHECK_FORKED=0", false, true, settings{All: true, Late: true}},
		{"-f", "SILENT=0 NHC_CHECK_FORKED=1", false, false, settings{Apart: true, Forked: true}},
		{"NHC_CHECK_FORKED=2", "SILENT=0 NHC_CHECK_FORKED=2", false, false, settings{Apart: true}},
		{"around a job", "SILENT=0 NHC_CHECK_FORKED=0 MARK_OFFLINE=1 NHC_RM=slurm", true, false, settings{All: true}},
		{"no resource manager", "SILENT=0 NHC_CHECK_FORKED=0 MARK_OFFLINE=1", false, false, settings{}},
		{"standard output is the log", "SILENT=0 NHC_CHECK_FORKED=0 LOGFILE=-", false, false, settings{}},
	} {
		set := &setting.Settings{Vars: map[string]string{}}
		for w := range strings.FieldsSeq(tt.vars) {
			name, value, _ := strings.Cut(w, "=")
			set.Vars[name] = value
		}
		if diff := cmp.Diff(tt.want, foldSettings(set, tt.held, tt.late)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
		}
	}
}

// If slow checks have taken the time of a run, the step that TIMEOUT ends is unknown. A step that had
// more time than they, or that no signal can end, hangs.
func TestSlowTakesTheTime(t *testing.T) {
	t.Parallel()
	slow := checks.Result{Took: 20 * time.Second, Hung: &checks.Hung{Moved: true}, Findings: []checks.Finding{{Code: "probe.scan", Severity: checks.Unknown}}}
	const hangs, lacks = `Script timed out while executing "check_gpu_ecc".`, "Check check_gpu_ecc:  no result: the run timed out, since a check before was slow: check_ps_blacklist x"
	for name, tt := range map[string]struct {
		before checks.Result
		hung   checks.Hung
		want   string
	}{
		"slow":                        {slow, checks.Hung{Cut: true, For: 8 * time.Second}, lacks},
		"no slow check":               {checks.Result{Took: 20 * time.Second}, checks.Hung{Cut: true, For: 8 * time.Second}, hangs},
		"it had its time":             {slow, checks.Hung{For: 10 * time.Second}, hangs},
		"it had more than slow ones":  {slow, checks.Hung{Cut: true, For: 21 * time.Second}, hangs},
		"a process that does not end": {slow, checks.Hung{Cut: true, Stuck: true, For: 8 * time.Second}, hangs},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j, n := newJudge(t, slurm.HealthCheck, scenario{lines: "* || true\n"})
			j.Native(&plan.Step{Kind: plan.Native, Name: "check_ps_blacklist", Text: "check_ps_blacklist x", Lane: checks.Local}, tt.before)
			step := plan.Step{Kind: plan.Native, Name: "check_gpu_ecc", Text: "check_gpu_ecc", Lane: checks.Local}
			j.Begin(&step)
			if more := j.Expired(&step, &tt.hung); more != (tt.want == lacks) {
				t.Errorf("the run goes on: %v", more)
			}
			status, doubt := j.Finish()
			if text := n.Out.String(); !strings.Contains(text, tt.want) || (status == 142) != (tt.want == hangs) {
				t.Errorf("exit %d, %v, %s\nwant %q", status, doubt, text, tt.want)
			}
		})
	}
	t.Run("codes", func(t *testing.T) {
		t.Parallel()
		for want, codes := range map[string][]string{"probe.slow": {"active.time"}, "probe.scan": {"probe.scan", "active.time"}} {
			j, _ := newJudge(t, slurm.HealthCheck, scenario{lines: "* || true\n"})
			for _, code := range codes {
				before := slow
				before.Findings = []checks.Finding{{Code: code, Severity: checks.Unknown}}
				j.Native(&plan.Step{Kind: plan.Native, Name: "check_gpu_gemm", Text: "check_gpu_gemm", Lane: checks.CUDA, Active: true}, before)
			}
			step := plan.Step{Kind: plan.Native, Name: "check_gpu_ecc", Text: "check_gpu_ecc", Lane: checks.NVML}
			j.Begin(&step)
			j.Expired(&step, &checks.Hung{Cut: true})
			if list := j.fold.Findings(); list[len(list)-1].Code != want {
				t.Errorf("%q: %+v, want %s", codes, list, want)
			}
		}
	})
	t.Run("a failure that is there", func(t *testing.T) {
		t.Parallel()
		j, n := newJudge(t, slurm.HealthCheck, scenario{lines: "* || true\n"})
		j.Native(&plan.Step{Kind: plan.Native, Name: "check_ps_blacklist", Text: "check_ps_blacklist x", Lane: checks.Local}, slow)
		step := plan.Step{Kind: plan.Native, Name: "check_file_test", Text: "check_file_test -e /", Lane: checks.Local}
		j.Begin(&step)
		j.Expired(&step, &checks.Hung{Cut: true})
		j.Begin(&native)
		j.Native(&native, checks.Result{Findings: []checks.Finding{failed}})
		if status, _ := j.Finish(); status != 1 || !strings.Contains(n.Read("scontrol"), "State=DRAIN") {
			t.Errorf("exit %d, %s%s, want a drain", status, n.Out.String(), n.Read("scontrol"))
		}
	})
	t.Run("a line of bash", func(t *testing.T) {
		t.Parallel()
		j, n := newJudge(t, slurm.HealthCheck, scenario{words: "TIMEOUT=1", lines: "* || sleep 60\n"})
		j.Native(&plan.Step{Kind: plan.Native, Name: "check_ps_blacklist", Text: "check_ps_blacklist x", Lane: checks.Local}, slow)
		j.RunPlan(nil)
		if status, _ := j.Finish(); status == 142 || !strings.Contains(n.Out.String(), "Check sleep 60:  no result: ") || n.Read("scontrol") != "" {
			t.Errorf("exit %d, %s%s", status, n.Out.String(), n.Read("scontrol"))
		}
	})
}

func newEvent(to verdict.Dest, text string) verdict.Event { return verdict.Event{To: to, Text: text} }

func TestJoinSyslog(t *testing.T) {
	t.Parallel()
	type list = []verdict.Event
	for _, tt := range []struct {
		name        string
		given, want list
	}{
		{"none", nil, nil},
		{"consecutive lines", list{newEvent(verdict.Syslog, "a"), newEvent(verdict.Syslog, "b")}, list{newEvent(verdict.Syslog, "a\nb")}},
		{"a line between them", list{newEvent(verdict.Syslog, "a"), newEvent(verdict.Log, "b"), newEvent(verdict.Syslog, "c")}, list{newEvent(verdict.Syslog, "a"), newEvent(verdict.Log, "b"), newEvent(verdict.Syslog, "c")}},
		{"other lines stay apart", list{newEvent(verdict.Log, "a"), newEvent(verdict.Log, "b")}, list{newEvent(verdict.Log, "a"), newEvent(verdict.Log, "b")}},
		{"what does not print", list{newEvent(verdict.Log, "a\x1b"), newEvent(verdict.Syslog, "\x1bb"), newEvent(verdict.Syslog, "c\x1b")}, list{newEvent(verdict.Log, "a?"), newEvent(verdict.Syslog, "?b\nc?")}},
	} {
		if diff := cmp.Diff(tt.want, joinSyslog(tt.given)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
		}
	}
}

// A helper of the site is called after all lines for syslog, and before all that follows.
func TestHelperKeepsOrder(t *testing.T) {
	t.Parallel()
	j, n := newJudge(t, slurm.HealthCheck, scenario{prepare: withHelper})
	type list = []verdict.Event
	before := list{newEvent(verdict.Syslog, "unknown"), newEvent(verdict.Out, "first"), newEvent(verdict.Syslog, "failed"), newEvent(verdict.Syslog, "advice")}
	after := list{newEvent(verdict.Out, "last")}
	helper, text := j.emitUntilHelper(append(append(before, verdict.Event{To: verdict.Offline, Text: "bad"}), after...))
	if want := "unknown\nfailed\nadvice"; !helper || text != want {
		t.Errorf("calls the helper: %v, after %q for syslog, want %q", helper, text, want)
	}
	if got := n.Out.String(); got != "first\n" {
		t.Errorf("before the helper: %q", got)
	}
	j.died()
	if got := n.Out.String(); got != "first\nlast\n" {
		t.Errorf("after the helper: %q", got)
	}
	if j.died(); len(j.after) > 0 || n.Out.String() != "first\nlast\n" {
		t.Error("the rest comes twice")
	}
}

func TestKindOf(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		role  slurm.Role
		given string
		want  outputs.Run
	}{
		{slurm.HealthCheck, "CONFFILE NAME", outputs.OfNode},
		{slurm.Manual, "", outputs.OfNode},
		{slurm.Manual, "VERBOSE", outputs.OfNode},
		{slurm.Manual, "NAME", outputs.Other},
		{slurm.Manual, "NAME CONFFILE", outputs.Trial},
		{slurm.Manual, "CONFDIR", outputs.Trial},
		{slurm.Monitor, "", outputs.Other},
	} {
		if got := kindOf(tt.role, strings.Fields(tt.given)); got != tt.want {
			t.Errorf("%v, %q: %v, want %v", tt.role, tt.given, got, tt.want)
		}
	}
}

func TestResultText(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		exit  int
		doubt string
		want  string
	}{
		{0, "", "0"},
		{3, "no answer", "unknown no answer"},
		{7, "", "7 The run ended with status 7."},
	} {
		if got := resultText(tt.exit, tt.doubt); got != tt.want {
			t.Errorf("exit %d, %q: %q, want %q", tt.exit, tt.doubt, got, tt.want)
		}
	}
}

func TestFirstUnknown(t *testing.T) {
	t.Parallel()
	other := unknown
	other.Message = "later"
	for want, list := range map[string][]checks.Finding{
		"":          {failed, {Severity: checks.Unknown}},
		"no answer": {failed, {Severity: checks.Unknown}, unknown, other},
	} {
		if got := firstUnknown(list); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestMistakeIn(t *testing.T) {
	t.Parallel()
	lacks := func(name string, newPath bool) (known []string, sure bool) {
		return []string{"check_gpu_count"}, strings.HasPrefix(name, "check_") && !newPath
	}
	for _, tt := range []struct {
		name       string
		step       plan.Step
		status     int
		code, text string
	}{
		{"another failure", plan.Step{Garbled: true, Calls: []string{"check_x"}}, 1, "", ""},
		{"a quote is missing", plan.Step{Garbled: true}, 2, "config.usage", "bash cannot read the line: a quote or a bracket is missing"},
		{"status 2 of a line that bash can read", plan.Step{}, 2, "", ""},
		{"a check that is misspelt", plan.Step{Calls: []string{"ls", "check_gpu_cuont"}}, 127, "config.command", `there is no command "check_gpu_cuont"; did you mean check_gpu_count?`},
		{"a check that nothing resembles", plan.Step{Calls: []string{"check_zzzzzzzz"}}, 127, "config.command", `there is no command "check_zzzzzzzz"`},
		{"the command may exist", plan.Step{Calls: []string{"check_gpu_cuont"}, NewPath: true}, 127, "", ""},
		{"the line calls nothing", plan.Step{}, 127, "", ""},
	} {
		if code, text := mistakeIn(&tt.step, tt.status, lacks); code != tt.code || text != tt.text {
			t.Errorf("%s: %q %q, want %q %q", tt.name, code, text, tt.code, tt.text)
		}
	}
}

func TestHungFinding(t *testing.T) {
	t.Parallel()
	step := func(name string, lane checks.Lane) plan.Step {
		return plan.Step{Kind: plan.Native, Name: name, Lane: lane}
	}
	for _, tt := range []struct {
		name  string
		step  plan.Step
		doing string
		stuck bool
		want  string // the device, "" for no finding
	}{
		{"a vendor's library", step("gpu_ecc", checks.NVML), "nvmlInit", false, "NVML"},
		{"a path that no signal ends", step("check_fs_responds", checks.Local), "stat /home", true, "/home"},
		{"a path that is slow", step("check_fs_responds", checks.Local), "stat /home", false, ""},
		{"no device", step("check_fs_responds", checks.Local), "", true, ""},
		{"a check of LBNL NHC", step("check_fs_mount", checks.Local), "stat /home", true, ""},
		{"a line of bash", plan.Step{Kind: plan.ShellLine, Lane: checks.NVML}, "nvmlInit", true, ""},
	} {
		f, ok := hungFinding(&tt.step, &checks.Hung{Doing: tt.doing, Stuck: tt.stuck}, "it hangs")
		if ok != (tt.want != "") || f.Device.Name != tt.want {
			t.Errorf("%s: %+v %v, want device %q", tt.name, f, ok, tt.want)
		}
		if ok && (f.Code != "probe.hung" || f.Severity != checks.Fail || f.Remedy != run.HungRemedy(f.Device, "") || f.Message != "it hangs" || f.Check != "check_"+strings.TrimPrefix(tt.step.Name, "check_")) {
			t.Errorf("%s: %+v", tt.name, f)
		}
	}
}

// A check that the end of the run has left no time hangs nowhere: that accuses no library.
func TestUnsentHangsNowhere(t *testing.T) {
	t.Parallel()
	hung := &checks.Hung{Cut: true}
	if f, ok := hungFinding(&native, hung, "it hangs"); ok || WhyHung(native.Lane, hung) != "" {
		t.Errorf("%+v, %q", f, WhyHung(native.Lane, hung))
	}
}

func TestWhyHung(t *testing.T) {
	t.Parallel()
	stuck := &checks.Hung{PID: 7, State: "D", Wchan: "nfs_wait", Stuck: true}
	if got, want := WhyHung(checks.Local, stuck), "It hangs "+run.Describe(stuck)+"."; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := WhyHung(checks.NVML, &checks.Hung{PID: 7, Doing: "nvmlDeviceGetUUID(5)"}), "It hangs in nvmlDeviceGetUUID(5): process 7."; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := WhyHung(checks.Local, &checks.Hung{PID: 7}); got != "" {
		t.Errorf("a process that a signal ends: %q", got)
	}
}

func TestResults(t *testing.T) {
	t.Parallel()
	shell := plan.Step{Kind: plan.ShellLine, Text: "mine"}
	other := failed
	other.Check, other.Message = "check_gpu_count", "a GPU is lost"
	row := func(check, code, message string, s checks.Severity) event.Result {
		return event.Result{Check: check, Code: code, Message: message, Severity: s}
	}
	p := &plan.Plan{Steps: []plan.Step{{Kind: plan.Assign}, native, shell}}
	for _, tt := range []struct {
		name    string
		run     func(*results, *verdict.Fold)
		want    []event.Result
		stopped bool
	}{
		{"no step", func(*results, *verdict.Fold) {}, nil, false},
		{"a check passes with a fact", func(r *results, f *verdict.Fold) {
			r.begin(f, &native)(time.Second, "no errors")
		}, []event.Result{row("check_gpu_ecc", "", "no errors", checks.OK)}, false},
		{"a check fails, and a finding belongs to another one", func(r *results, f *verdict.Fold) {
			f.All = true
			end := r.begin(f, &native)
			f.Found([]checks.Finding{failed, other})
			end(time.Second, "not used")
		}, []event.Result{row("check_gpu_ecc", "gpu.ecc", "bad memory", checks.Fail), row("check_gpu_count", "gpu.ecc", "a GPU is lost", checks.Fail)}, false},
		{"a line of bash fails", func(r *results, f *verdict.Fold) {
			end := r.begin(f, &shell)
			f.Begin("mine", 0)
			f.Ended(1)
			end(time.Second, "")
		}, []event.Result{row("shell", "", "Check mine returned 1", checks.Fail)}, true},
		{"a signal between the steps", func(r *results, f *verdict.Fold) {
			r.begin(f, &native)(time.Second, "")
			f.Abort(143, "Terminated by signal SIGTERM.")
		}, []event.Result{row("check_gpu_ecc", "", "", checks.OK), row("nhc-gpu", "", "Terminated by signal SIGTERM.", checks.Fail)}, true},
		{"a finding of no step", func(r *results, f *verdict.Fold) {
			f.All = true
			f.Found([]checks.Finding{unknown, other})
			end := r.begin(f, &native)
			f.Found([]checks.Finding{failed})
			end(time.Second, "")
		}, []event.Result{
			row("check_gpu_ecc", "gpu.ecc", "bad memory", checks.Fail), row("nhc-gpu", "probe.failed", "no answer", checks.Unknown), row("check_gpu_count", "gpu.ecc", "a GPU is lost", checks.Fail),
		}, false},
	} {
		var r results
		f := new(verdict.Fold)
		tt.run(&r, f)
		r.addRest(f)
		var got []event.Result
		for _, x := range r.list {
			if x.Check != event.Whole && x.Line == "" && x.Milliseconds != 1000 && x.Check != "check_gpu_count" {
				t.Errorf("%s: %+v has no line", tt.name, x)
			}
			got = append(got, row(x.Check, x.Code, x.Message, x.Severity))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || r.stopped(f, p) != tt.stopped {
			t.Errorf("%s: stopped %v, want %v (-want +got)\n%s", tt.name, r.stopped(f, p), tt.stopped, diff)
		}
		if r.stopped(f, nil) {
			t.Errorf("%s: a run without a plan has stopped", tt.name)
		}
	}
}

// The event of a run has its context, its results and what it did to the node.
func TestMakeEvent(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		role  slurm.Role
		s     scenario
		want  event.Event
		codes string
	}{
		{"a healthy run", slurm.HealthCheck, scenario{lines: "* || check_file_test -d DIR\n"}, event.Event{Context: "healthcheck", Mode: "enforce", Verdict: checks.OK, Slurm: &event.Action{Action: "none", Why: "in service"}}, "check_file_test="},
		{"a failing run", slurm.HealthCheck, scenario{words: "MODE=observe", lines: badFile + "* || true\n"}, event.Event{Context: "healthcheck", Mode: "observe", Verdict: checks.Fail, Stopped: true, Message: "check_file_test:  -f DIR/none returned 1.", Slurm: &event.Action{
			Action: "drain", Reason: "NHC: check_file_test:  -f DIR/none returned 1.", Why: "in service",
		}}, "check_file_test=file.test"},
		{"an empty plan", slurm.HealthCheck, scenario{words: "MARK_OFFLINE=0"}, event.Event{Context: "healthcheck", Mode: "enforce"}, ""},
		{"a prolog", slurm.Prolog, scenario{lines: "* || check_file_test -f\n"}, event.Event{Context: "prolog", Mode: "enforce", Job: "7", Verdict: checks.Unknown}, "check_file_test=config.usage"},
		{"a run of the monitor", slurm.Monitor, scenario{words: "MARK_OFFLINE=0", lines: "* || check_file_test -f\n* || true\nother || false\n"}, event.Event{Context: "monitor", Mode: "enforce", Part: true, Lines: []event.Result{
			{Check: "check_file_test", Line: "check_file_test -f"}, {Check: event.Shell, Line: "true"}, {Check: "check_job_health", Line: "check_job_health"},
		}}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			j, n := newJudge(t, tt.role, tt.s)
			j.RunPlan(nil)
			if tt.role.AroundJob() {
				j.FinishJob()
			} else {
				j.Finish()
			}
			now := n.Budget.Began.Add(1500 * time.Millisecond)
			got := j.makeEvent("1.2.3", 1, now)
			var codes []string
			for _, r := range got.Results {
				codes = append(codes, r.Check+"="+r.Code)
			}
			if text := strings.Join(codes, " "); text != tt.codes || got.Results == nil {
				t.Errorf("results %v %s, want %s", got.Results == nil, text, tt.codes)
			}
			want := tt.want
			want.Schema, want.Version, want.Node, want.Exit, want.Milliseconds, want.Config = event.Schema, "1.2.3", "node1", 1, 1500, n.Dir+"/nhc.conf"
			want.Boot, want.Time, want.Results = slurm.BootID(), now.UTC().Truncate(time.Millisecond), got.Results
			want.Message = strings.ReplaceAll(want.Message, "DIR", n.Dir)
			if want.Slurm != nil {
				want.Slurm.Reason = strings.ReplaceAll(want.Slurm.Reason, "DIR", n.Dir)
			}
			if diff := cmp.Diff(&want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// Deliver keeps the event of a run that has judged the node, and of no other.
func TestDeliver(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		prepare  func(*Judge)
		unusable string
		want     string // in the stored event; "" for no event
	}{
		{"a run with a plan", func(*Judge) {}, "", `"verdict":"ok"`},
		{"one line of a person", func(j *Judge) { j.files.Eval = "true" }, "", ""},
		{"a script of the site has ended the run", func(j *Judge) { j.files.Plan = nil }, "", ""},
		{"a configuration that cannot be used", func(j *Judge) { j.files.Plan = nil }, "no such file", `"message":"no such file"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			j, n := newJudge(t, slurm.HealthCheck, scenario{lines: "* || check_file_test -d DIR\n"})
			j.RunPlan(nil)
			j.Finish()
			tt.prepare(j)
			j.Deliver("1.2.3", 0, tt.unusable)
			got := n.Read("past/run-healthcheck.json")
			if (got != "") != (tt.want != "") || !strings.Contains(got, tt.want) {
				t.Errorf("stored %q, want %s", got, tt.want)
			}
		})
	}
}

// The cause of a drain is stored with the step that failed.
func TestCause(t *testing.T) {
	t.Parallel()
	j, n := newJudge(t, slurm.HealthCheck, scenario{lines: badFile + "* || check_file_test -f DIR/none2\n", words: "NHC_CHECK_ALL=1"})
	if got, want := j.cause(), (slurm.Cause{File: n.Dir + "/nhc.conf"}); got != want {
		t.Errorf("before the first step: %+v, want %+v", got, want)
	}
	j.RunPlan(nil)
	j.fold.Blame(1)
	want := slurm.Cause{Check: "check_file_test", Line: "check_file_test -f " + n.Dir + "/none2", File: n.Dir + "/nhc.conf"}
	if got := j.cause(); got != want {
		t.Errorf("the second failure: %+v, want %+v", got, want)
	}
	delete(j.steps, 1)
	j.current = &j.files.Plan.Steps[0]
	want.Line = "check_file_test -f " + n.Dir + "/none"
	if got := j.cause(); got != want {
		t.Errorf("a failure during the first step: %+v, want %+v", got, want)
	}
	p, _ := newJudge(t, slurm.Prolog, scenario{lines: badFile})
	p.current = &p.files.Plan.Steps[0]
	if got := p.cause(); got != (slurm.Cause{}) {
		t.Errorf("a failure of no step in a prolog: %+v", got)
	}
}

// A result that cannot be written is reported, and the run goes on.
func TestLeaveResult(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name       string
		path       string // in the node's directory
		background bool
		silent     string
		want       string
		out        string
	}{
		{name: "not in the background", path: "result"},
		{name: "written", path: "result", background: true, want: "unknown no answer\n"},
		{name: "no directory", path: "none/result", background: true, silent: "0", out: "Unable to write to"},
		{name: "no directory, silently", path: "none/result", background: true, silent: "1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			j, n := newJudge(t, slurm.HealthCheck, scenario{})
			n.Background = tt.background
			n.Set.Vars["RESULTFILE"], n.Set.Vars["SILENT"] = n.Dir+"/"+tt.path, tt.silent
			j.LeaveResult(3, "no answer")
			if got := n.Read(tt.path); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
			if got := n.Out.String(); !strings.Contains(got, tt.out) || (got != "") != (tt.out != "") {
				t.Errorf("printed %q, want %q", got, tt.out)
			}
			j.LeaveResult(0, "")
			if got := n.Read(tt.path); got != tt.want {
				t.Errorf("a second result replaces the first: %q", got)
			}
		})
	}
}

// collected is a collector that keeps everything.
type collected struct{ text []string }

func (c *collected) Collect(events []verdict.Event) {
	for _, e := range events {
		c.text = append(c.text, fmt.Sprintf("event %d %s", e.To, e.Text))
	}
}

func (c *collected) CalledBy(list []checks.Finding) {
	for _, f := range list {
		c.text = append(c.text, "called "+f.Message)
	}
}

func (c *collected) Keep(output []byte) bool {
	c.text = append(c.text, "output "+strings.TrimSpace(string(output)))
	return string(output) != "not this\n"
}

// A collector gets everything, and nothing is printed, sent or drained.
func TestCollector(t *testing.T) {
	t.Parallel()
	c := new(collected)
	j, n := newJudge(t, slurm.HealthCheck, scenario{lines: "* || echo this; check_file_test -f DIR/none\n"})
	j.Collector, j.ToJSON = c, true
	j.RunPlan(nil)
	(&hearer{Judge: j}).Output(1, []byte("not this\n"))
	(&hearer{Judge: j}).Output(2, []byte("an error\n"))
	message := "check_file_test:  -f " + n.Dir + "/none returned 1."
	want := []string{"output this", "called " + message, "output ERROR:  nhc-test:  Health check failed:  " + message}
	for _, x := range c.text {
		if strings.HasPrefix(x, "event") && strings.Contains(x, message) {
			want = append(want, x)
		}
	}
	if diff := cmp.Diff(append(want, "output not this"), c.text); diff != "" || len(want) < 4 {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if out, errs := n.Out.String(), n.Err.String(); out != "" || errs != "not this\nan error\n" || n.Read("scontrol") != "" {
		t.Errorf("printed %q and %q, sent %q", out, errs, n.Read("scontrol"))
	}
}

// The scripts of the site are read by bash; one that cannot be trusted makes the result unknown.
func TestLoadScripts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		script string
		mode   func(*Judge)
		out    string
		over   bool
		calls  string // a function that bash has then
	}{
		{name: "a function", script: "check_mine() { :; }", calls: "check_mine"},
		{name: "it ends the run", script: "exit 4", over: true},
		{name: "it hangs", script: "sleep 60", mode: func(j *Judge) { j.n.Budget.End = time.Now().Add(300 * time.Millisecond) }, out: "Script timed out", over: true},
		{name: "it is not trusted", script: "check_mine() { :; }", mode: func(j *Judge) { j.bash.Unloaded = fmt.Errorf("writable by others") }, out: "scripts are not used:  writable by others"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			j, n := newJudge(t, slurm.HealthCheck, scenario{})
			n.Write(t, "scripts/mine.nhc", tt.script+"\n")
			if errs := j.files.Open(nil, nil); len(errs) > 0 {
				t.Fatal(errs)
			}
			if tt.mode != nil {
				tt.mode(j)
			}
			j.LoadScripts()
			if out := n.Out.String(); !strings.Contains(out, tt.out) || (out != "") != (tt.out != "") || j.Over() != tt.over {
				t.Errorf("over %v, want %v; printed %q, want %q", j.Over(), tt.over, out, tt.out)
			}
			if tt.calls == "" {
				return
			}
			j.files.UseLines("x", []byte("* || "+tt.calls+"\n"))
			j.MakePlan()
			if j.RunPlan(nil); j.fold.Failed() {
				t.Errorf("bash does not know %s: %s", tt.calls, n.Out)
			}
		})
	}
}

// Each failure of a run around a job is attributed, and its policy is recorded.
func TestAttribute(t *testing.T) {
	t.Parallel()
	list := []checks.Finding{failed}
	for _, role := range []slurm.Role{slurm.Manual, slurm.Prolog} {
		j, _ := newJudge(t, role, scenario{})
		if got := j.attribute("check_gpu_ecc", list); got[0].Jobs != "" {
			t.Errorf("%s: jobs %q", role, got[0].Jobs)
		}
	}
	rec := slurm.NewRecord(slurm.Job{ID: "9", Alone: true}, slurm.Scope{}, "node1", slurm.Moment{Boot: slurm.BootID()})
	rec.Looked = []string{"check_gpu_ecc"}
	j, n := newJudge(t, slurm.HealthCheck, scenario{})
	n.Write(t, "past/job-9.json", marshal(t, rec))
	if got := j.attribute("check_gpu_ecc", list); got[0].Jobs != "9" || got[0].Message == failed.Message {
		t.Errorf("jobs %q, %q", got[0].Jobs, got[0].Message)
	}
	j, n = newJudge(t, slurm.HealthCheck, scenario{})
	n.Set.Past = ""
	if got := j.attribute("check_gpu_ecc", list); got[0].Jobs != "" {
		t.Errorf("without a memory: jobs %q", got[0].Jobs)
	}
}

// A line that changes TIMEOUT changes the limit of the checks after it.
func TestTimeoutOfLines(t *testing.T) {
	t.Parallel()
	j, _ := newJudge(t, slurm.Manual, scenario{lines: "* || TIMEOUT=7\n* || check_file_test -d /\n* || eval TIMEOUT=5\n", words: "TIMEOUT=30"})
	e := j.Engine(nil)
	if got := e.Timeout(); got != 30*time.Second {
		t.Errorf("before the lines: %s", got)
	}
	j.Assigned(&j.files.Plan.Steps[0])
	if got := e.Timeout(); got != 7*time.Second {
		t.Errorf("after an assignment: %s, want 7s", got)
	}
	if j.RunPlan(nil); e.Timeout() != 5*time.Second {
		t.Errorf("after a line of bash: %s, want 5s", e.Timeout())
	}
}

// A person has no job: each failure concerns every job, and all lines run.
func TestAnyJob(t *testing.T) {
	t.Parallel()
	j, _ := newJudge(t, slurm.Prolog, scenario{})
	j.JudgeAnyJob()
	if s := j.job.Job; s.ID != "" || s.Share != slurm.AllGPUs || j.job.Blame.OfJob([]checks.Finding{failed}) != 0 {
		t.Errorf("job %+v", s)
	}
	if j.fold.Found([]checks.Finding{failed}); !j.Goes() {
		t.Error("a line that can change something does not run")
	}
	j, _ = newJudge(t, slurm.HealthCheck, scenario{})
	if j.JudgeAnyJob(); j.job != nil || j.every {
		t.Error("a health check is around a job")
	}
}
