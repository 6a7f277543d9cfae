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
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
)

// tableObserver collects a row a check in place of LBNL's text.
type tableObserver struct {
	observer
	steps []plan.Step
	rows  []verdict.Row
	began time.Time
	fails []checks.Finding
	held  []checks.Finding // actions of the checks that the current shell line calls
}

func (t *tableObserver) Begin(s *plan.Step, _ int) {
	t.began = time.Now()
	t.fold.f.Begin(s.Text, 0)
}

func (t *tableObserver) Native(s *plan.Step, r checks.Result) bool {
	t.row(s, r.Findings, r.Took)
	return true
}

func (t *tableObserver) Assigned(s *plan.Step) { t.observer.Assigned(s) }

func (t *tableObserver) Expired(s *plan.Step, hung *checks.Hung) {
	t.row(s, []checks.Finding{{Code: "run.timeout", Severity: checks.Fail, Message: fmt.Sprintf("TIMEOUT of the run while in it: %s", run.Describe(hung))}}, hung.For)
	for _, rest := range t.steps[s.Index+1:] {
		t.row(&rest, []checks.Finding{{Code: "run.timeout", Severity: checks.Unknown, Message: "not run: TIMEOUT"}}, 0)
	}
}

// Line runs a shell line; its failures are what it died of, or its status.
func (t *tableObserver) Line(ctx context.Context, s *plan.Step) bool {
	more := t.observer.Line(ctx, s)
	list := append(t.fails, t.held...)
	t.fails, t.held = nil, nil
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
			t.fails = append(t.fails, checks.Finding{Severity: checks.Fail, Message: m})
		} else if m, ok := strings.CutPrefix(e.Text, "Health check unknown:  "); ok {
			t.fails = append(t.fails, checks.Finding{Severity: checks.Unknown, Message: m})
		}
	}
}

// hold takes from the findings of a check that a shell line calls the actions that
// were not carried out.
func (t *tableObserver) hold(list []checks.Finding) {
	for _, f := range list {
		if f.Code == checks.HeldCode {
			t.held = append(t.held, f)
		}
	}
}

// row makes the rows of a step: one, or one for each finding.
func (t *tableObserver) row(s *plan.Step, list []checks.Finding, took time.Duration) {
	name := s.Name
	if name == "" {
		name, _, _ = strings.Cut(s.Text, " ")
	}
	if !strings.HasPrefix(name, "check_") && s.Kind == plan.Native {
		name = "check_" + name
	}
	line := s.Text
	if s.Table != nil {
		line = tableText(s)
	}
	if !slices.ContainsFunc(list, func(f checks.Finding) bool { return f.Code != checks.HeldCode }) {
		list = append([]checks.Finding{{}}, list...) // the check has passed
	}
	for i, f := range list {
		if i > 0 {
			took = 0
		}
		t.rows = append(t.rows, verdict.Row{
			Severity: f.Severity, Name: name, Line: line, Code: f.Code, Device: f.Device, Message: strings.TrimPrefix(f.Message, name+":  "),
			Want: f.Want, Got: f.Got, Took: took, Remedy: f.Remedy, Do: checks.WhatToDo(f.Code),
		})
	}
}

func tableText(s *plan.Step) string {
	var words []string
	for _, k := range slices.Sorted(maps.Keys(s.Table)) {
		words = append(words, fmt.Sprintf("%s=%v", k, s.Table[k]))
	}
	return strings.Join(words, " ")
}
