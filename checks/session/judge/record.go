package judge

import (
	"cmp"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
)

// record returns a function that adds the findings which the step has passed to the fold since then to
// the results of the run, or its fact if there are none.
func record(j *Judge, s *plan.Step, took time.Duration, fact string) func() {
	from, failed := len(j.Fold.List()), len(j.Fold.Failures())
	return func() {
		list := slices.Clone(j.Fold.List()[from:])
		for _, f := range j.Fold.Failures()[failed:] { // those of shell lines are not in the list
			if !slices.ContainsFunc(list, func(g checks.Finding) bool { return g.Message == f.Message }) {
				list = append(list, f)
			}
		}
		j.covered = append(j.covered, span{from, len(j.Fold.List()), failed, len(j.Fold.Failures())})
		r := event.Result{Check: event.Shell, Line: s.Text, Milliseconds: event.Milliseconds(took)}
		if s.Kind == plan.Native {
			r.Check = s.Name
		}
		if len(list) == 0 {
			r.Message = fact
			j.Results = append(j.Results, r)
		}
		for _, f := range list {
			x := r
			if f.Check != "" && r.Check != event.Shell {
				x.Check = f.Check
			}
			j.Results = append(j.Results, resultOf(x, f))
		}
	}
}

// span are the findings and failures of the fold that a step has added.
type span struct{ from, to, failed, failedTo int }

func resultOf(r event.Result, f checks.Finding) event.Result {
	r.Code, r.Severity, r.Device, r.Want, r.Got, r.Remedy, r.Message = f.Code, f.Severity, f.Device, f.Want, f.Got, f.Remedy, f.Message
	return r
}

// stopped reports whether the run ended before its last check.
func stopped(j *Judge) bool {
	checks := 0
	if j.Plan != nil {
		for i := range j.Plan.Steps {
			if j.Plan.Steps[i].Kind != plan.Assign {
				checks++
			}
		}
	}
	return j.Fold.Over() && len(j.covered) < checks
}

// recordRest adds the findings of no step: of a signal, of a script of the site, of the counters around a
// job.
func recordRest(j *Judge) {
	add := func(f checks.Finding) {
		if !slices.ContainsFunc(j.Results, func(r event.Result) bool { return r.Message == f.Message && r.Severity == f.Severity }) {
			j.Results = append(j.Results, resultOf(event.Result{Check: cmp.Or(f.Check, event.Whole)}, f))
		}
	}
	for i, f := range j.Fold.List() {
		if !slices.ContainsFunc(j.covered, func(s span) bool { return i >= s.from && i < s.to }) {
			add(f)
		}
	}
	for i, f := range j.Fold.Failures() {
		if !slices.ContainsFunc(j.covered, func(s span) bool { return i >= s.failed && i < s.failedTo }) {
			add(f)
		}
	}
}
