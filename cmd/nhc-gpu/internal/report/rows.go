package report

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/judge"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
)

// timeoutCode is the code of the row in which TIMEOUT ended the run.
const timeoutCode = "run.timeout"

// maxLineOutput is the largest kept output of a shell line, bytes.
const maxLineOutput = 64 << 10

// Table collects a row a check in place of LBNL's text.
type Table struct {
	*judge.Judge
	steps []plan.Step
	Rows  []verdict.Row
	began time.Time
	fails []checks.Finding

	wholes  verdict.Wholes
	called  []checks.Finding // of the checks that the current shell line calls
	lines   int              // shell lines, run or not
	noShell bool             // shell lines are not run
	written []byte           // by the current line, where the report is JSON
	fact    string           // what the current check has found, if it passes
	watch   *console.Progress
}

// Begin notes when a step begins.
func (t *Table) Begin(s *plan.Step, _ int) {
	t.began = time.Now()
	t.Fold.Begin(s.Text, 0)
	t.watch.Say("check %d of %d: %s", s.Index+1, len(t.steps), stepName(s))
}

// Native makes the rows of a check.
func (t *Table) Native(s *plan.Step, r checks.Result) bool {
	t.fact = r.Fact
	t.row(s, t.once(session.Soften(r.Findings, s.Policy.Action)), r.Took)
	return true
}

// NewTable is that of a run; from now on it hears what the run would print. steps are those of its
// plan, none before there is one.
func NewTable(j *judge.Judge) *Table {
	t := &Table{Judge: j}
	if j.Plan != nil {
		t.steps = j.Plan.Steps
	}
	j.Collector = t
	return t
}

// once returns the findings of a check. Those about a device that another check has found
// to be in a state as a whole only name that check: they are no faults of their own.
func (t *Table) once(list []checks.Finding) []checks.Finding {
	list = slices.Clone(list)
	for i := range list {
		if of, ok := t.wholes.About(list[i]); ok {
			check, _, _ := strings.Cut(of.Message, ":")
			list[i].Severity, list[i].Code, list[i].Remedy = checks.Skip, of.Code, checks.NoRemedy
			list[i].Message = fmt.Sprintf("%s, see %s", of.Got, check)
		}
	}
	t.wholes.Take(list)
	return list
}

// Expired makes the rows of a step that did not end in its time, and of those behind it.
func (t *Table) Expired(s *plan.Step, hung *checks.Hung) {
	text := t.Fold.ExpiredText(judge.WhyStuck(hung))
	t.row(s, []checks.Finding{{Code: timeoutCode, Severity: checks.Fail, Message: text}}, hung.For)
	for _, rest := range t.steps[s.Index+1:] {
		t.row(&rest, []checks.Finding{{Code: timeoutCode, Severity: checks.Unknown, Message: "not run: TIMEOUT"}}, 0)
	}
}

// Line runs a shell line; its failures are what it died of, or its status.
func (t *Table) Line(ctx context.Context, s *plan.Step) bool {
	t.lines++
	if t.noShell {
		t.row(s, []checks.Finding{{Code: "shell.not-run", Severity: checks.Unknown, Message: "not run (--no-shell): " + s.Text}}, 0)
		return true
	}
	more := t.Judge.Line(ctx, s)
	list := t.detailed()
	t.row(s, list, time.Since(t.began))
	if !more {
		for _, rest := range t.steps[s.Index+1:] {
			t.row(&rest, []checks.Finding{{Severity: checks.Unknown, Message: "not run: the run ended"}}, 0)
		}
	}
	return more
}

// CalledBy notes what checks have found that a shell line calls.
func (t *Table) CalledBy(list []checks.Finding) { t.called = append(t.called, list...) }

// Keep keeps what a shell line writes for its row.
func (t *Table) Keep(data []byte) (taken bool) {
	if t.steps == nil {
		return false
	}
	t.written = append(t.written, data[:min(len(data), maxLineOutput-len(t.written))]...)
	return true
}

// Collect takes from the events of a shell line what failed.
func (t *Table) Collect(events []verdict.Event) {
	for _, e := range events {
		if e.To != verdict.Syslog {
			continue
		}
		if m, ok := strings.CutPrefix(e.Text, "Health check failed:  "); ok {
			f := checks.Finding{Severity: checks.Fail, Message: m}
			if strings.HasPrefix(m, t.Fold.ExpiredText("")) {
				f.Code = timeoutCode
			}
			t.fails = append(t.fails, f)
		} else if m, ok := strings.CutPrefix(e.Text, "Health check unknown:  "); ok {
			t.fails = append(t.fails, checks.Finding{Severity: checks.Unknown, Message: m})
		}
	}
}

// detailed returns the failures of the current shell line, with code, device and
// remedy where a check that the line has called reported them, and the actions that
// these checks did not carry out.
func (t *Table) detailed() (list []checks.Finding) {
	for _, f := range t.fails {
		i := slices.IndexFunc(t.called, func(c checks.Finding) bool { return c.Message == f.Message && c.Severity == f.Severity })
		if i >= 0 {
			f = t.called[i]
		}
		list = append(list, f)
	}
	for _, f := range t.called {
		if f.Code == checks.HeldCode {
			list = append(list, f)
		}
	}
	t.fails, t.called = nil, nil
	return list
}

// stepName returns the name of a step's check, of a shell line its first word.
func stepName(s *plan.Step) string {
	name := s.Name
	if name == "" {
		name, _, _ = strings.Cut(s.Text, " ")
	}
	if s.Kind == plan.Native {
		name = session.CheckName(name)
	}
	return name
}

// row makes the rows of a step: one, or one for each finding.
func (t *Table) row(s *plan.Step, list []checks.Finding, took time.Duration) {
	name, line := stepName(s), s.Text
	if s.Table != nil {
		line = session.TableText(s)
	}
	list = withStderr(list)
	if !slices.ContainsFunc(list, func(f checks.Finding) bool { return f.Code != checks.HeldCode }) {
		list = append([]checks.Finding{{}}, list...) // the check has passed
	}
	output, fact := string(t.written), t.fact
	t.written, t.fact = nil, ""
	for i, f := range list {
		if i > 0 {
			took, output = 0, ""
		}
		if i > 0 || f.Severity != checks.OK {
			fact = ""
		}
		detail := strings.TrimPrefix(f.Message, name+":  ")
		message := verdict.Plain(detail)
		if message == detail {
			detail = ""
		}
		t.Rows = append(t.Rows, verdict.Row{
			Severity: f.Severity, Name: name, Line: line, Code: f.Code, Device: f.Device, Message: message, Fact: fact, Detail: detail,
			Want: f.Want, Got: f.Got, Took: took, Remedy: f.Remedy, Do: checks.WhatToDo(f.Code), Place: f.Place, Output: output,
		})
	}
}

// withStderr puts the last line of a command's standard error behind its failure.
func withStderr(list []checks.Finding) []checks.Finding {
	worst := checks.Worst(list)
	var said []string
	list = slices.DeleteFunc(slices.Clone(list), func(f checks.Finding) bool {
		if f.Code == checks.StderrCode {
			said = append(said, f.Message)
		}
		return f.Code == checks.StderrCode
	})
	if i := slices.IndexFunc(list, func(f checks.Finding) bool { return f.Severity == worst && f.Message != "" }); i >= 0 {
		list[i].Message = strings.Join(append([]string{list[i].Message}, said...), "; ")
	}
	return list
}
