package session

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

const nhcConf = "/etc/nhc/nhc.conf"

// line is a step of nhc.conf.
func line(kind plan.Kind, text, name string) plan.Step {
	return plan.Step{Kind: kind, Text: text, Name: name, Pos: conf.Pos{File: nhcConf, Line: 7}, Active: name == "check_gpu_gemm"}
}

func TestCauseOf(t *testing.T) {
	t.Parallel()
	paths := Paths{"/etc/nhc/link.conf": "/srv/nhc.conf"}
	table := plan.Step{Name: "gpu_count", Table: map[string]any{}, Pos: conf.Pos{File: "/etc/nhc/nhc.toml"}}
	linked := line(plan.Native, "check_gpu_count 8", "check_gpu_count")
	linked.Pos.File = "/etc/nhc/link.conf"
	shell := line(plan.ShellLine, "mine 8", "")
	unasked := plan.Step{Name: leftoversCheck, Table: map[string]any{}, Pos: conf.Pos{File: everyEpilog}}
	for _, tt := range []struct {
		name string
		step plan.Step
		job  bool
		want slurm.Cause
	}{
		{"a line", line(plan.Native, "check_gpu_count 8", "check_gpu_count"), false, slurm.Cause{Check: "check_gpu_count", Line: "check_gpu_count 8", File: nhcConf}},
		{"of a file that is a link", linked, false, slurm.Cause{Check: "check_gpu_count", Line: "check_gpu_count 8", File: "/srv/nhc.conf"}},
		{"of bash", shell, false, slurm.Cause{Check: "mine 8", File: nhcConf}},
		{"a table has no words", table, false, slurm.Cause{Check: "gpu_count", File: "/etc/nhc/nhc.toml"}},
		{"of an epilog, which no line asks for", unasked, true, slurm.Cause{Check: leftoversCheck, Job: true}},
	} {
		if diff := cmp.Diff(tt.want, CauseOf(&tt.step, paths, tt.job)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
		}
	}
}

func TestUnanswered(t *testing.T) {
	t.Parallel()
	native, active := line(plan.Native, "check_ps_job", "check_ps_job"), line(plan.Native, "check_gpu_gemm", "check_gpu_gemm")
	shell := line(plan.ShellLine, "mine", "")
	type list = []checks.Finding
	skip, unknown := checks.Finding{Severity: checks.Skip}, checks.Finding{Severity: checks.Unknown}
	of := func(severity checks.Severity, code, gpu string) checks.Finding {
		return checks.Finding{Severity: severity, Code: code, Device: checks.Device{Kind: "gpu", Name: gpu}}
	}
	skips := func(code, gpu string) checks.Finding { return of(checks.Skip, code, gpu) }
	ok := func(code string) checks.Finding { return of(checks.OK, code, "") }
	const fault = "gpu.gemm.wrong gpu3"
	for _, tt := range []struct {
		name string
		step *plan.Step
		list list
		want bool
	}{
		{"an active test that was skipped", &active, list{skip}, true},
		{"that has passed", &active, nil, false},
		{"with its rates", &active, list{ok("gpu.gemm.library"), ok("gpu.gemm.rates")}, false},
		{"that has failed, too", &active, list{skip, {Severity: checks.Fail}}, false},
		{"that warned of the baseline, and measured nothing", &active, list{skips("nccl.groups", ""), {Severity: checks.Warn, Code: "active.baseline.driver"}}, true},
		{"that could not tell", &active, list{unknown}, true},
		{"stopped after it had reported its settings", &active, list{ok("nccl.settings"), skips("active.stopped", "")}, true},
		{"stopped after a warning", &active, list{{Severity: checks.Warn, Code: "gpu.gemm.floor"}, skips("active.stopped", "")}, true},
		{"out of time", &active, list{ok("gpu.memtest.rates"), of(checks.Unknown, "active.time", "")}, true},
		{"that skipped the GPU", &active, list{ok("gpu.gemm.rates"), skips("active.left", "gpu3")}, true},
		{"that skipped another GPU, which can have a second fault", &active, list{ok("gpu.gemm.rates"), skips("active.left", "gpu5")}, true},
		{"that had nothing to measure", &active, list{ok("nccl.settings"), skips("nccl.groups", "")}, true},
		{"that skipped a part on every such node", &active, list{ok("ib.bw.rates"), skips("ib.bw.alone", "")}, false},
		{"without a result for the device", &active, list{ok("dcgm.diag.rates"), skips("dcgm.diag.none", "gpu3")}, true},
		{"without a result for another device", &active, list{ok("dcgm.diag.rates"), skips("dcgm.diag.none", "gpu5")}, false},
		{"a line of bash whose check was skipped", &shell, list{skip}, true},
		{"a line of bash whose check was stopped", &shell, list{ok("nccl.settings"), skips("active.stopped", "")}, true},
		{"a check that does not apply", &native, list{skip}, false},
		{"a check that has not looked", &native, list{skips("job.none", "")}, true},
		{"a check that has not looked at a part", &native, list{skips("job.none", ""), {Severity: checks.Warn}}, false},
		{"a check that has looked for another fault", &native, list{skips("job.left.none", "")}, true},
		{"a check just after a boot", &native, list{skips("gpu.nvlink.boot", "")}, true},
		{"a check just after a boot, with another fault", &native, list{{Severity: checks.Warn, Code: "gpu.nvlink.errors"}, skips("ib.ports.boot", "ports")}, true},
		{"an active test just after a boot", &active, list{ok("ib.bw.rates"), skips("ib.ports.boot", "ports")}, true},
		{"no step", nil, list{skip}, false},
	} {
		u := Unanswered{}
		u.Note(tt.step, tt.list)
		if got := u.skips(&active, slurm.Mark{Fault: fault}); got != tt.want {
			t.Errorf("%s: unanswered %v, want %v", tt.name, got, tt.want)
		}
	}
	u := Unanswered{}
	u.Note(&active, list{ok("dcgm.diag.rates"), skips("dcgm.diag.none", "gpu5")})
	if !u.skips(&active, slurm.Mark{}) {
		t.Error("a fault of an unknown device can be of the skipped one")
	}
}

// A node that an epilog has drained for a stuck process is resumed when a health check finds the process gone.
func TestStuckProcessHasEnded(t *testing.T) {
	t.Parallel()
	epilog := plan.Step{Kind: plan.Native, Name: leftoversCheck, Text: leftoversCheck, Pos: conf.Pos{File: everyEpilog}}
	health := line(plan.Native, leftoversCheck, leftoversCheck)
	const skipped = "which this run skipped or did not finish"
	for _, tt := range []struct{ fault, code, want string }{
		{"job.left.stuck train.py", "job.left.none", ""},
		{"job.left.stuck train.py", "job.none", skipped},
		{"job.left.process train.py", "job.left.none", skipped},
		{"", "job.left.none", skipped},
	} {
		pass := Pass{Plan: &plan.Plan{Steps: []plan.Step{health}}, Files: []string{nhcConf}, Unanswered: Unanswered{}}
		pass.Unanswered.Note(&health, []checks.Finding{{Code: tt.code, Severity: checks.Skip}})
		if got := pass.Lacks(slurm.Mark{Cause: CauseOf(&epilog, nil, true), Fault: tt.fault}); got != tt.want {
			t.Errorf("%q after %s: %q, want %q", tt.fault, tt.code, got, tt.want)
		}
	}
}

func TestMarked(t *testing.T) {
	t.Parallel()
	stuck, process := checks.Finding{Check: leftoversCheck, Code: "job.left.stuck"}, checks.Finding{Check: leftoversCheck, Code: "job.left.process"}
	gpu := checks.Finding{Check: "check_gpu_count", Code: "gpu.count"}
	for _, tt := range []struct {
		failures []checks.Finding
		draining int
		want     string
	}{
		{[]checks.Finding{stuck, gpu}, 0, "job.left.stuck"},
		{[]checks.Finding{stuck, gpu}, 1, "gpu.count"},
		{[]checks.Finding{gpu, stuck, stuck, process}, 1, "job.left.process"},
		{[]checks.Finding{process, stuck}, 0, "job.left.process"},
	} {
		if got := Marked(tt.failures, tt.draining).Code; got != tt.want {
			t.Errorf("%+v, %d: %s, want %s", tt.failures, tt.draining, got, tt.want)
		}
	}
}

func TestLacks(t *testing.T) {
	t.Parallel()
	const unread, skipped, lacking = "whose file this run does not read", "which this run skipped or did not finish", "which this run does not have"
	const empty = "whose file now has no check for any node"
	count := line(plan.Native, "check_gpu_count 8", "check_gpu_count")
	gemm := line(plan.Native, "check_gpu_gemm", "check_gpu_gemm")
	shell := line(plan.ShellLine, "mine", "")
	inTable := count
	inTable.Pos.File = "/etc/nhc/nhc.toml"
	cause := func(s plan.Step, job bool) slurm.Cause { return CauseOf(&s, nil, job) }
	elsewhere := cause(count, false)
	elsewhere.File = "/etc/nhc/other.conf"
	corrected := cause(count, false)
	corrected.Line = "check_gpu_count 7"
	for _, tt := range []struct {
		name       string
		steps      []plan.Step
		skipped    []plan.Step
		unanswered []int // by index
		bare       bool  // the file has no check for any host
		of         slurm.Cause
		want       string
	}{
		{name: "the line has passed", steps: []plan.Step{count}, of: cause(count, false)},
		{name: "the line is gone", of: cause(count, false)},
		{name: "all lines of the file are gone", bare: true, of: cause(count, false), want: empty},
		{name: "all lines of the file are gone, but another file has the check", bare: true, steps: []plan.Step{inTable}, of: cause(count, false), want: empty},
		{name: "all lines of the file are gone, and another file has the check of a prolog", bare: true, steps: []plan.Step{inTable}, of: cause(count, true)},
		{name: "of a script, beside a file without lines", bare: true, of: slurm.Cause{File: nhcConf}},
		{name: "its words were corrected", steps: []plan.Step{count}, of: corrected},
		{name: "of another file", steps: []plan.Step{count}, of: elsewhere, want: unread},
		{name: "of no file", steps: []plan.Step{count}, of: slurm.Cause{Check: "check_gpu_count"}, want: unread},
		{name: "of a prolog's file, by a run with the same check", steps: []plan.Step{count}, of: slurm.Cause{Check: "check_gpu_count", File: "/etc/nhc/nhc-prolog.conf", Job: true}},
		{name: "of a prolog's file, by a run without it", steps: []plan.Step{gemm}, of: slurm.Cause{Check: "check_gpu_count", File: "/etc/nhc/nhc-prolog.conf", Job: true}, want: lacking},
		{name: "not run in this context", skipped: []plan.Step{count}, of: cause(count, false), want: lacking},
		{name: "a check that does not apply any more", steps: []plan.Step{count}, unanswered: []int{0}, of: cause(count, false)},
		{name: "a check of a prolog that does not apply here", steps: []plan.Step{count}, unanswered: []int{0}, of: cause(count, true), want: skipped},
		{name: "an active test that was skipped", steps: []plan.Step{gemm}, unanswered: []int{0}, of: cause(gemm, false), want: skipped},
		{name: "one of two alike that was skipped", steps: []plan.Step{gemm, gemm}, unanswered: []int{0}, of: cause(gemm, false)},
		{name: "a line of bash that was skipped", steps: []plan.Step{shell}, unanswered: []int{0}, of: cause(shell, false), want: skipped},
	} {
		p := &plan.Plan{Steps: tt.steps}
		for i := range p.Steps {
			p.Steps[i].Index = i
		}
		for _, s := range tt.skipped {
			p.Skipped = append(p.Skipped, plan.Skipped{Step: s})
		}
		pass := Pass{Plan: p, Files: []string{nhcConf, "/etc/nhc/nhc.toml"}, Checking: []string{nhcConf, "/etc/nhc/nhc.toml"}, Unanswered: Unanswered{}}
		if tt.bare {
			pass.Checking = pass.Checking[1:]
		}
		for _, i := range tt.unanswered {
			pass.Unanswered[i] = []string{""}
		}
		if got := pass.Lacks(slurm.Mark{Cause: tt.of}); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	early := Pass{Plan: &plan.Plan{Steps: []plan.Step{count}}, Files: []string{nhcConf}, Unanswered: Unanswered{}}
	early.Unanswered.Note(&early.Plan.Steps[0], []checks.Finding{{Code: "gpu.fabric.boot", Severity: checks.Skip}})
	if !early.Unanswered.Early() || (Unanswered{0: {"", "gpu3"}}).Early() {
		t.Error("only a check that waits for the end of the boot is early")
	}
	if got := early.Lacks(slurm.Mark{Cause: cause(count, false), Fault: "gpu.fabric.state gpu3"}); got != skipped {
		t.Errorf("just after a boot: %q, want %q", got, skipped)
	}
	if got := (Pass{Files: []string{nhcConf}}).Lacks(slurm.Mark{Cause: cause(count, false)}); got != unread {
		t.Errorf("without a plan: %q, want %q", got, unread)
	}
	linked := Pass{Plan: &plan.Plan{}, Files: []string{"/etc/nhc/nhc.conf"}, Checking: []string{"/etc/nhc/nhc.conf"}, Paths: Paths{"/etc/nhc/nhc.conf": "/srv/nhc.conf"}}
	if got := linked.Lacks(slurm.Mark{Cause: slurm.Cause{Check: "x", File: "/srv/nhc.conf"}}); got != "" {
		t.Errorf("by the file that a link leads to: %q", got)
	}
}
