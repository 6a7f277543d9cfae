package judge

import (
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
			x.Code, x.Severity, x.Device, x.Want, x.Got, x.Remedy, x.Message = f.Code, f.Severity, f.Device, f.Want, f.Got, f.Remedy, f.Message
			j.Results = append(j.Results, x)
		}
	}
}
