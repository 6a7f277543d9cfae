package judge

import (
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/session/outputs"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Deliver makes the event of the run and passes it to the history and the outputs. unusable is the
// error of a configuration that the run could not use.
func (j *Judge) Deliver(version string, exit int, unusable string) {
	switch {
	case j.files.Eval != "": // one line of a person
		return
	case unusable != "":
		j.n.Pool.SetVars(j.n.Set.WorkerVars()) // no check has needed them
		j.results.list = []event.Result{{Check: event.Whole, Severity: checks.Unknown, Remedy: checks.FixConfig, Message: unusable}}
	case j.files.Plan == nil && len(j.fold.Failures()) == 0: // a script of the site has ended the run
		return
	default:
		j.results.addRest(&j.fold)
	}
	outputs.Deliver(j.n, j.files.Config.Outputs(), kindOf(j.n.Role, j.files.Given), j.makeEvent(version, exit, time.Now()))
}

// makeEvent returns the event of the run.
func (j *Judge) makeEvent(version string, exit int, now time.Time) *event.Event {
	e := &event.Event{
		Schema: event.Schema, Version: version, Node: j.n.Name, Time: now.UTC().Truncate(time.Millisecond), Boot: slurm.BootID(),
		Context: j.n.Role.String(), Mode: outputs.Mode(j.n), Config: j.n.Set.Get("CONFFILE"), Exit: exit, Milliseconds: event.Milliseconds(now.Sub(j.n.Budget.Began)),
		Results: j.results.list, Slurm: j.n.Did,
		Message: j.fold.LastMessage(), Stopped: j.results.stopped(&j.fold, j.files.Plan), Drill: j.Drill(), Part: j.n.Part(),
		Drained: j.policies.drained, Found: j.results.found,
	}
	if e.Results == nil {
		e.Results = []event.Result{}
	}
	if j.job != nil {
		e.Job = j.job.Job.ID
	}
	if e.Part && j.files.Plan != nil {
		e.Lines = linesOf(j.files.Plan)
	}
	e.Judge()
	return e
}

// linesOf returns the check and the text of each line of a plan, made or not, as results have them.
func linesOf(p *plan.Plan) []event.Result {
	list := []event.Result{}
	add := func(s *plan.Step) {
		check := event.Shell
		if s.Kind == plan.Native {
			check = checks.FullName(s.Name)
		}
		list = append(list, event.Result{Check: check, Line: s.Text})
	}
	for i := range p.Steps {
		add(&p.Steps[i])
	}
	for i := range p.Skipped {
		add(&p.Skipped[i].Step)
	}
	return list
}

// kindOf returns the kind of a run, by its role and the settings that its command line has given.
func kindOf(role slurm.Role, given []string) outputs.Run {
	switch {
	case role == slurm.HealthCheck:
		return outputs.OfNode
	case role == slurm.Monitor:
		return outputs.Other
	case slices.Contains(given, "CONFFILE") || slices.Contains(given, "CONFDIR"):
		return outputs.Trial
	case slices.Contains(given, "NAME"):
		return outputs.Other
	}
	return outputs.OfNode
}
