package judge

import (
	"cmp"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// results collects the results of a run for its event.
type results struct {
	list    []event.Result
	found   bool   // the run has found the fault of a drain which its policy does not let act now
	covered []span // the steps in list
}

// span are the findings and failures of the fold that a step has added.
type span struct{ from, to, failed, failedTo int }

// begin begins a step. end adds the findings which the step has passed to the fold since then, or its
// fact if there are none.
func (r *results) begin(f *verdict.Fold, s *plan.Step) (end func(took time.Duration, fact string)) {
	from, failed := len(f.Findings()), len(f.Failures())
	return func(took time.Duration, fact string) {
		list := slices.Clone(f.Findings()[from:])
		for _, x := range f.Failures()[failed:] { // those of shell lines are not in the list
			if !slices.ContainsFunc(list, func(g checks.Finding) bool { return g.Message == x.Message }) {
				list = append(list, x)
			}
		}
		r.covered = append(r.covered, span{from, len(f.Findings()), failed, len(f.Failures())})
		whole := event.Result{Check: event.Shell, Line: s.Text, Milliseconds: event.Milliseconds(took)}
		if s.Kind == plan.Native {
			whole.Check = s.Name
		}
		if len(list) == 0 {
			whole.Message = fact
			r.list = append(r.list, whole)
		}
		for _, x := range list {
			part := whole
			if x.Check != "" && part.Check != event.Shell {
				part.Check = x.Check
			}
			r.list = append(r.list, resultOf(part, x))
		}
	}
}

func resultOf(r event.Result, f checks.Finding) event.Result {
	r.Code, r.Severity, r.Device, r.Want, r.Got, r.Remedy, r.Message = f.Code, f.Severity, f.Device, f.Want, f.Got, f.Remedy, f.Message
	r.Do = f.Do
	r.Jobs = f.Jobs
	r.Silenced, r.Would, r.Held = f.Silenced, f.Would, f.Held
	r.Drill = f.Drill
	return r
}

// struck reports whether a fault waits for further strikes.
func (r *results) struck() bool {
	return slices.ContainsFunc(r.list, func(x event.Result) bool { return x.Struck() })
}

// findsOutside reports whether the run has found the fault of a drain, which the policy does not let act
// at this time, or in this context.
func (r *results) findsOutside(m slurm.Mark) bool {
	return slices.ContainsFunc(r.list, func(x event.Result) bool {
		return x.Outside() && (m.Is(x.Check, x.Code, x.Device.String()) || m.Is(x.Line, x.Code, x.Device.String()))
	})
}

// stopped reports whether the run ended before the last check of its plan, which is nil if there is
// none.
func (r *results) stopped(f *verdict.Fold, p *plan.Plan) bool {
	steps := 0
	if p != nil {
		for i := range p.Steps {
			if p.Steps[i].Kind != plan.Assign {
				steps++
			}
		}
	}
	return f.Over() && len(r.covered) < steps
}

// addRest adds the findings of no step: of a signal, of a script of the site, of the counters around
// a job.
func (r *results) addRest(f *verdict.Fold) {
	add := func(x checks.Finding) {
		if !slices.ContainsFunc(r.list, func(r event.Result) bool { return r.Message == x.Message && r.Severity == x.Severity }) {
			r.list = append(r.list, resultOf(event.Result{Check: cmp.Or(x.Check, event.Whole)}, x))
		}
	}
	for i, x := range f.Findings() {
		if !slices.ContainsFunc(r.covered, func(s span) bool { return i >= s.from && i < s.to }) {
			add(x)
		}
	}
	for i, x := range f.Failures() {
		if !slices.ContainsFunc(r.covered, func(s span) bool { return i >= s.failed && i < s.failedTo }) {
			add(x)
		}
	}
}
