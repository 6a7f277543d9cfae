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
	for _, tt := range []struct {
		name    string
		step    *plan.Step
		list    list
		earlier bool
		want    bool
	}{
		{"an active test that was skipped", &active, list{skip}, false, true},
		{"whose last result counts", &active, list{skip}, true, false},
		{"that has passed", &active, nil, false, false},
		{"that has warned, too", &active, list{skip, {Severity: checks.Warn}}, false, false},
		{"that could not tell", &active, list{unknown}, false, true},
		{"a line of bash whose check was skipped", &shell, list{skip}, false, true},
		{"a check that does not apply", &native, list{skip}, false, false},
		{"a check that has not looked", &native, list{{Severity: checks.Skip, Code: "job.none"}}, false, true},
		{"nobody's turn", nil, list{skip}, false, false},
	} {
		u := Unanswered{}
		if u.Note(tt.step, tt.list, tt.earlier); (len(u) > 0) != tt.want {
			t.Errorf("%s: unanswered %v, want %v", tt.name, len(u) > 0, tt.want)
		}
	}
}

func TestLacks(t *testing.T) {
	t.Parallel()
	const unread, skipped, lacking = "whose file this run does not read", "which was skipped in this run", "which this run does not have"
	count := line(plan.Native, "check_gpu_count 8", "check_gpu_count")
	gemm := line(plan.Native, "check_gpu_gemm", "check_gpu_gemm")
	shell := line(plan.ShellLine, "mine", "")
	cause := func(s plan.Step, job bool) slurm.Cause { return CauseOf(&s, nil, job) }
	elsewhere := cause(count, false)
	elsewhere.File = "/etc/nhc/other.conf"
	corrected := cause(count, false)
	corrected.Line = "check_gpu_count 7"
	for _, tt := range []struct {
		name       string
		steps      []plan.Step
		left       []plan.Step
		unanswered []int // by index
		of         slurm.Cause
		want       string
	}{
		{name: "the line has passed", steps: []plan.Step{count}, of: cause(count, false)},
		{name: "the line is gone", of: cause(count, false)},
		{name: "its words were corrected", steps: []plan.Step{count}, of: corrected},
		{name: "of another file", steps: []plan.Step{count}, of: elsewhere, want: unread},
		{name: "of no file", steps: []plan.Step{count}, of: slurm.Cause{Check: "check_gpu_count"}, want: unread},
		{name: "of a prolog's file, by a run with the same check", steps: []plan.Step{count}, of: slurm.Cause{Check: "check_gpu_count", File: "/etc/nhc/nhc-prolog.conf", Job: true}},
		{name: "of a prolog's file, by a run without it", steps: []plan.Step{gemm}, of: slurm.Cause{Check: "check_gpu_count", File: "/etc/nhc/nhc-prolog.conf", Job: true}, want: lacking},
		{name: "not run in this context", left: []plan.Step{count}, of: cause(count, false), want: lacking},
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
		for _, s := range tt.left {
			p.Left = append(p.Left, plan.Left{Step: s})
		}
		pass := Pass{Plan: p, Files: []string{nhcConf, "/etc/nhc/nhc.toml"}, Unanswered: Unanswered{}}
		for _, i := range tt.unanswered {
			pass.Unanswered[i] = true
		}
		if got := pass.Lacks(tt.of); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	if got := (Pass{Files: []string{nhcConf}}).Lacks(cause(count, false)); got != unread {
		t.Errorf("without a plan: %q, want %q", got, unread)
	}
	linked := Pass{Plan: &plan.Plan{}, Files: []string{"/etc/nhc/nhc.conf"}, Paths: Paths{"/etc/nhc/nhc.conf": "/srv/nhc.conf"}}
	if got := linked.Lacks(slurm.Cause{Check: "x", File: "/srv/nhc.conf"}); got != "" {
		t.Errorf("by the file that a link leads to: %q", got)
	}
}
