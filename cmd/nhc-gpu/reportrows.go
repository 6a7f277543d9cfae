package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
)

// timeoutCode is the code of the row in which TIMEOUT ended the run.
const timeoutCode = "run.timeout"

// maxLineOutput is the largest kept output of a shell line, bytes.
const maxLineOutput = 64 << 10

// tableObserver collects a row a check in place of LBNL's text.
type tableObserver struct {
	observer
	steps []plan.Step
	rows  []verdict.Row
	began time.Time
	fails []checks.Finding

	wholes  verdict.Wholes
	called  []checks.Finding // of the checks that the current shell line calls
	lines   int              // shell lines, run or not
	noShell bool             // shell lines are not run
	output  []byte           // of the current line, where the report is JSON
}

func (t *tableObserver) Begin(s *plan.Step, _ int) {
	t.began = time.Now()
	t.fold.f.Begin(s.Text, 0)
}

func (t *tableObserver) Native(s *plan.Step, r checks.Result) bool {
	t.row(s, t.once(session.Soften(r.Findings, s.Policy.Action)), r.Took)
	return true
}

// once returns the findings of a check. Those about a device that another check has found
// to be in a state as a whole only name that check: they are no faults of their own.
func (t *tableObserver) once(list []checks.Finding) []checks.Finding {
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

func (t *tableObserver) Assigned(s *plan.Step) { t.observer.Assigned(s) }

func (t *tableObserver) Expired(s *plan.Step, hung *checks.Hung) {
	text := t.fold.f.ExpiredText(whyStuck(hung))
	t.row(s, []checks.Finding{{Code: timeoutCode, Severity: checks.Fail, Message: text}}, hung.For)
	for _, rest := range t.steps[s.Index+1:] {
		t.row(&rest, []checks.Finding{{Code: timeoutCode, Severity: checks.Unknown, Message: "not run: TIMEOUT"}}, 0)
	}
}

// Line runs a shell line; its failures are what it died of, or its status.
func (t *tableObserver) Line(ctx context.Context, s *plan.Step) bool {
	t.lines++
	if t.noShell {
		t.row(s, []checks.Finding{{Code: "shell.not-run", Severity: checks.Unknown, Message: "not run (--no-shell): " + s.Text}}, 0)
		return true
	}
	more := t.observer.Line(ctx, s)
	list := t.detailed()
	t.row(s, list, time.Since(t.began))
	if !more {
		for _, rest := range t.steps[s.Index+1:] {
			t.row(&rest, []checks.Finding{{Severity: checks.Unknown, Message: "not run: the run ended"}}, 0)
		}
	}
	return more
}

// collect takes from the events of a shell line what failed.
func (t *tableObserver) collect(events []verdict.Event) {
	for _, e := range events {
		if e.To != verdict.Syslog {
			continue
		}
		if m, ok := strings.CutPrefix(e.Text, "Health check failed:  "); ok {
			f := checks.Finding{Severity: checks.Fail, Message: m}
			if strings.HasPrefix(m, t.fold.f.ExpiredText("")) {
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
func (t *tableObserver) detailed() (list []checks.Finding) {
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

// row makes the rows of a step: one, or one for each finding.
func (t *tableObserver) row(s *plan.Step, list []checks.Finding, took time.Duration) {
	name := s.Name
	if name == "" {
		name, _, _ = strings.Cut(s.Text, " ")
	}
	if s.Kind == plan.Native {
		name = checkName(name)
	}
	line := s.Text
	if s.Table != nil {
		line = tableText(s)
	}
	list = withStderr(list)
	if !slices.ContainsFunc(list, func(f checks.Finding) bool { return f.Code != checks.HeldCode }) {
		list = append([]checks.Finding{{}}, list...) // the check has passed
	}
	output := string(t.output)
	t.output = nil
	for i, f := range list {
		if i > 0 {
			took, output = 0, ""
		}
		detail := strings.TrimPrefix(f.Message, name+":  ")
		message := verdict.Plain(detail)
		if message == detail {
			detail = ""
		}
		t.rows = append(t.rows, verdict.Row{
			Severity: f.Severity, Name: name, Line: line, Code: f.Code, Device: f.Device, Message: message, Detail: detail,
			Want: f.Want, Got: f.Got, Took: took, Remedy: f.Remedy, Do: checks.WhatToDo(f.Code), Place: f.Place, Output: output,
		})
	}
}

// checkName is the name of a check with its prefix, which a table of nhc.toml may omit.
func checkName(name string) string {
	return "check_" + strings.TrimPrefix(name, "check_")
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

func tableText(s *plan.Step) string {
	var words []string
	for _, k := range slices.Sorted(maps.Keys(s.Table)) {
		words = append(words, fmt.Sprintf("%s=%v", k, s.Table[k]))
	}
	return strings.Join(words, " ")
}
