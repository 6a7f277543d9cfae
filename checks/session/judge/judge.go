// Package judge turns the results of a run into a verdict, and carries it out: the log, syslog, a
// drain, the end of a job.
package judge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/job"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/session/open"
	"github.com/nhc-gpu/nhc-gpu/checks/session/outputs"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/conf/spell"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Judge passes the results of a run to its fold, and carries out the fold's events. It is a
// [run.Observer], and handles the messages of a shell.
type Judge struct {
	*open.Files

	Fold    verdict.Fold
	Held    bool            // the node is marked only at the end of the run
	late    bool            // the same because of -a
	waiting string          // a forked line with a still unknown process ID
	after   []verdict.Event // events for the time after the shell has run the site's helper

	current    *plan.Step // the present step, or the last one
	unanswered session.Unanswered
	steps      map[int]*plan.Step // the steps of failures, by index
	Results    []event.Result     // of the steps so far
	covered    []span             // the steps in Results

	Records *job.Records
	Job     *job.Around // the job of a prolog or an epilog
	Every   bool        // -a: after a failure, also run steps that can change something

	Collector collector // collects the output for a user; nil: it is printed
	ToJSON    bool      // standard output is one JSON object
	Left      bool      // the result of a detached run has been written
}

// collector takes the output of a run.
type collector interface {
	Collect(events []verdict.Event)
	CalledBy(list []checks.Finding)  // takes the findings of a check that a line of bash called
	Keep(output []byte) (taken bool) // takes the output of the present line
}

// New returns the judge of a run; see [open.NewBash] for program and wake.
func New(n *node.Node, program string, trace bool, wake int) *Judge {
	j := &Judge{unanswered: session.Unanswered{}, Records: job.NewRecords(n)}
	j.Files = open.New(n, open.NewBash(n, program, trace, wake, j))
	if n.Role.AroundJob() {
		j.Job = job.NewAround(j.Records)
	}
	return j
}

// Begin records the step that begins.
func (j *Judge) Begin(s *plan.Step, pid int) {
	j.current = s
	if s.Kind == plan.ShellLine && j.Fold.Forks(s.Text) {
		j.waiting = s.Text // its process ID is still unknown
		return
	}
	if pid == 0 {
		pid = j.Pool.Pid(s.Lane)
	}
	j.Emit(j.Fold.Begin(s.Text, pid))
}

// Forked records the process of a line that runs in the background (-f).
func (j *Judge) Forked(pid int) {
	if j.waiting != "" {
		j.Emit(j.Fold.Begin(j.waiting, pid))
		j.waiting = ""
		j.Log.Flush() // the process writes to the log itself
	}
}

// Native judges the findings of a check.
func (j *Judge) Native(s *plan.Step, res checks.Result) (more bool) {
	defer record(j, s, res.Took, res.Fact)()
	from := len(j.Fold.Failures())
	res.Findings = j.excuse(res.Findings, s.Lacks)
	if j.Job != nil {
		j.Job.Look(s.Name, res.Findings)
	}
	j.unanswered.Note(j.current, res.Findings, res.Earlier)
	j.Emit(j.Fold.Findings(j.attribute(s.Name, session.Soften(res.Findings, s.Policy.Action))))
	j.judged(from, s)
	return !j.Fold.Over()
}

// Assigned copies the assignments of a line.
func (j *Judge) Assigned(s *plan.Step) {
	for _, v := range s.Sets {
		if err := conf.WrongChoice(v.Name, v.Value); err != nil {
			j.Emit(j.Fold.Findings([]checks.Finding{{Code: "config.value", Severity: checks.Unknown, Message: fmt.Sprintf("%s: %v", s.Pos, err)}}))
			continue
		}
		j.Set.Put(v.Name, v.Value, v.Export)
		text := v.Name + "=" + setting.Quote(v.Value)
		if v.Export {
			text = "export " + text
		}
		j.Assign(text)
	}
	j.Changed()
}

// Expired judges a step that did not end in time.
func (j *Judge) Expired(s *plan.Step, hung *checks.Hung) {
	defer record(j, s, hung.For, "")()
	from := len(j.Fold.Failures())
	why := WhyStuck(hung)
	if d := run.HungDevice(s.Lane, hung.Doing); d != (checks.Device{}) && session.OwnCheck(*s) && (s.Lane.Vendor() || hung.Stuck) {
		j.Fold.Called([]checks.Finding{{
			Code: "probe.hung", Severity: checks.Fail, Remedy: checks.RebootNode, Device: d, Check: session.CheckName(s.Name),
			Message: j.Fold.ExpiredText(why),
		}})
	}
	j.Emit(j.Fold.Expired(why))
	j.judged(from, s)
}

// WhyStuck returns where a process hangs that no signal can end, "" for any other.
func WhyStuck(hung *checks.Hung) string {
	if !hung.Stuck {
		return ""
	}
	return "It hangs " + run.Describe(hung) + "."
}

// Line runs a step in bash.
func (j *Judge) Line(_ context.Context, s *plan.Step) (more bool) {
	from, began, add := len(j.Fold.Failures()), time.Now(), record(j, s, 0, "")
	defer func() {
		at := len(j.Results)
		add()
		for i := range j.Results[at:] {
			j.Results[at+i].Milliseconds = event.Milliseconds(time.Since(began))
		}
	}()
	more = j.line(s)
	j.judged(from, s)
	return more
}

// Goes reports whether steps that can change something still run: not after a failure, unless -a
// requests it. Around a job every check that only reads still runs.
func (j *Judge) Goes() bool {
	return j.Job == nil || j.Every || j.Job.Blame.OfJob(j.Fold.Failures()) < 0
}

func (j *Judge) line(s *plan.Step) (more bool) {
	f := &j.Fold
	if c, ok := j.Pool.Ledger().Find(checks.Shell, s.Text); ok {
		j.Forked(c.PID)
		j.Emit(f.Expired("It hangs since an earlier run: " + run.Describe(c.Hung()) + "."))
		return false
	}
	if err := j.Need(j.Budget.End); err != nil {
		j.Forked(0)
		return j.broken(s.Text, err)
	}
	if f.Over() {
		return false
	}
	j.Log.Flush()
	j.Pool.KeepGuard()
	status, exited, err := j.Bash.Line(f.Forks(s.Text), s.Index, s.Text, j.Budget.End)
	if err == nil && j.Signals.Caught() != 0 {
		err = run.ErrInterrupted
	}
	if err != nil {
		j.Forked(j.Pid()) // it hung before it reported its process ID
		return j.broken(s.Text, err)
	}
	if exited {
		j.Died() // the remaining events of a shell that was about to exit
		j.Close()
		j.Emit(f.Exited(status))
	} else if code, mistake := j.mistake(s, status); mistake != "" {
		j.Emit(f.Mistaken(status, code, mistake))
	} else {
		j.Emit(f.Ended(status))
	}
	return !f.Over()
}

// excuse returns the findings, changed so that an error of the configuration drains no node,
// unless the site wants that.
func (j *Judge) excuse(list []checks.Finding, lacks string) []checks.Finding {
	if j.Set.ConfigErrorsDrain() {
		return list
	}
	return session.Excuse(list, lacks)
}

// mistake returns the code and the text of the error in a line that has failed because bash cannot
// read it or cannot find its command. They are empty if the line has failed otherwise, or if such
// an error drains the node.
func (j *Judge) mistake(s *plan.Step, status int) (code, text string) {
	const notFound, unreadable = 127, 2 // of a shell
	switch {
	case j.Set.ConfigErrorsDrain():
		return "", ""
	case s.Garbled && status == unreadable:
		return "config.usage", "bash cannot read the line: a quote or a bracket is missing"
	case status != notFound:
		return "", ""
	}
	for _, name := range s.Calls {
		if known, sure := j.LacksCommand(name, s.NewPath); sure {
			return "config.command", fmt.Sprintf("there is no command %q%s", name, spell.DidYouMean(name, known))
		}
	}
	return "", ""
}

// broken ends a shell that did not reach the end of a line.
func (j *Judge) broken(line string, err error) (more bool) {
	f := &j.Fold
	switch {
	case errors.Is(err, run.ErrDeadline):
		j.Emit(f.Expired(j.KillLine(line)))
	case errors.Is(err, run.ErrInterrupted):
		j.End()
		j.interrupted()
	default:
		j.End()
		code := "shell.broken"
		if errors.Is(err, run.ErrForged) {
			code = "shell.forged"
		}
		j.Died() // the remaining events of a failure whose helper did not return
		j.Emit(f.Broken(checks.Finding{Code: code, Severity: checks.Unknown, Message: fmt.Sprintf("Check %s:  %v", line, err)}))
	}
	return !f.Over()
}

// MakePlan plans the run.
func (j *Judge) MakePlan() {
	j.TellLines()
	j.Plan = j.Build()
	j.late = slices.ContainsFunc(j.Plan.Steps, session.OwnCheck)
	j.update()
	if j.Job != nil {
		j.Set.Job = j.Job.ForChecks(j.Config.Role(j.Context()))
	}
}

// Prepare sets the data that checks cannot read from their own lines.
func (j *Judge) Prepare() {
	j.Pool.SetVars(j.Set.WorkerVars())
	j.PrepareChecks(j.Plan)
	j.Records.Settle(j.Plan)
}

// RunPlan runs the plan; watch receives the progress of the workers.
func (j *Judge) RunPlan(watch func(*plan.Step, string, time.Duration, time.Duration)) {
	if err := j.Engine(watch).Do(j.Ctx, j.Plan, j); err != nil && !j.Fold.Over() {
		j.interrupted()
	}
	j.current = nil
}

// Engine returns the engine that runs plans in this run.
func (j *Judge) Engine(watch func(*plan.Step, string, time.Duration, time.Duration)) *run.Engine {
	return &run.Engine{Pool: j.Pool, Deadline: j.Budget.End, Timeout: j.Timeout, Doing: watch}
}

// Deliver makes the event of the run and passes it to the history and the outputs. unusable is the
// error of a configuration that the run could not use.
func (j *Judge) Deliver(version string, exit int, unusable string) {
	switch {
	case j.Eval != "": // one line of a person
		return
	case unusable != "":
		j.Pool.SetVars(j.Set.WorkerVars()) // no check has needed them
		j.Results = []event.Result{{Check: event.Whole, Severity: checks.Unknown, Remedy: checks.FixConfig, Message: unusable}}
	case j.Plan == nil && len(j.Fold.Failures()) == 0: // a script of the site has ended the run
		return
	default:
		recordRest(j)
	}
	e := &event.Event{
		Schema: event.Schema, Version: version, Node: j.Name, Time: time.Now().UTC().Truncate(time.Millisecond), Boot: slurm.BootID(),
		Context: j.Role.String(), Mode: outputs.Mode(j.Node), Config: j.Set.Get("CONFFILE"), Exit: exit, Milliseconds: event.Milliseconds(time.Since(j.Budget.Began)),
		Results: j.Results, Slurm: j.Did,
	}
	if e.Results == nil {
		e.Results = []event.Result{}
	}
	if j.Job != nil {
		e.Job = j.Job.Job.ID
	}
	e.Message, e.Stopped = j.Fold.LastMessage(), stopped(j)
	e.Judge()
	given := func(names ...string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return slices.Contains(j.Given, name) })
	}
	run := outputs.OfNode
	switch {
	case j.HealthCheck():
	case given("CONFFILE", "CONFDIR"):
		run = outputs.Trial
	case given("NAME"):
		run = outputs.Other
	}
	outputs.Deliver(j.Node, j.Config.Outputs(), run, e)
}
