// Package judge turns the results of a run into a verdict, and carries it out: the log, syslog, a
// drain, the end of a job.
package judge

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/policy"
	"github.com/nhc-gpu/nhc-gpu/checks/remedy"
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
// [run.Observer].
type Judge struct {
	n     *node.Node
	files *open.Files
	bash  *open.Bash

	timeout atomic.Int64 // [open.Files.Timeout] for the lanes, which read it while lines change settings

	fold      verdict.Fold
	markHeld  bool            // the node is marked only at the end of the run, or not at all
	late      bool            // with -a the node is marked only at the end: the plan has a check of our own
	waiting   string          // a forked line with a still unknown process ID
	after     []verdict.Event // events for the time after the shell has run the site's helper
	drill     *session.Drill  // nil: no rehearsal is under way
	uncounted int             // failures that FAIL_CNT of the shell does not count yet

	remedies *remedy.Record // nil: the site permits none, or its record cannot be used
	keepOut  string         // why a healthy run does not resume the node, "" if it does
	looks    time.Time      // since when the run looks for faults

	slow               time.Duration // of the checks that were slow, which later steps lack
	slowLine, slowCode string        // the last of them, and the code of later steps

	current    *plan.Step // the present step, or the last one
	unanswered session.Unanswered
	steps      map[int]*plan.Step // the steps of failures, by index
	spared     []string           // failures of checks that bash called, by message: their policy lets the job run
	results    results            // of the steps so far
	policies   policies

	Records *job.Records
	job     *job.Around // the job of a prolog or an epilog
	every   bool        // -a: after a failure, also run steps that can change something

	Collector collector // collects the output for a user; nil: it is printed
	ToJSON    bool      // standard output is one JSON object
	left      bool      // the result of a detached run has been written
}

// collector takes the output of a run.
type collector interface {
	Collect(events []verdict.Event)
	CalledBy(list []checks.Finding)  // takes the findings of a check that a line of bash called
	Keep(output []byte) (taken bool) // takes the output of the present line
}

// New returns the judge of a run and its files; see [open.NewBash] for program and wake.
func New(n *node.Node, program string, trace bool, wake int) (*Judge, *open.Files) {
	j := &Judge{n: n, unanswered: session.Unanswered{}, Records: job.NewRecords(n), policies: policies{memory: nodeMemory{n}, context: n.Role.String()}}
	h := &hearer{Judge: j}
	h.Bash = open.NewBash(n, program, trace, wake, h)
	j.bash, j.files = h.Bash, open.New(n, h.Bash)
	if n.Role.AroundJob() {
		j.job = job.NewAround(j.Records)
	}
	return j, j.files
}

// JudgeAnyJob lets a run around a job treat every GPU as one of the job's: a person has no job.
func (j *Judge) JudgeAnyJob() {
	if j.job != nil {
		j.job, j.every = job.AnyJob(j.Records), true
	}
}

// Begin records the step that begins.
func (j *Judge) Begin(s *plan.Step) {
	j.current = s
	if s.Kind == plan.ShellLine && j.fold.Forks(s.Text) {
		j.waiting = s.Text // its process ID is still unknown
		return
	}
	j.emit(j.fold.Begin(s.Text, j.n.Pool.Pid(s.Lane)))
}

// forked records the process of a line that runs in the background (-f).
func (j *Judge) forked(pid int) {
	if j.waiting != "" {
		j.emit(j.fold.Begin(j.waiting, pid))
		j.waiting = ""
		j.n.Log.Flush() // the process writes to the log itself
	}
}

// died emits the remaining events after the site's helper has ended.
func (j *Judge) died() {
	rest := j.after
	j.after = nil
	j.emit(rest)
}

// Native judges the findings of a check.
func (j *Judge) Native(s *plan.Step, res checks.Result) (more bool) {
	end := j.results.begin(&j.fold, s)
	defer func() { end(res.Took, res.Fact) }()
	from := len(j.fold.Failures())
	if res.Hung != nil && res.Hung.Moved {
		j.slow, j.slowLine = j.slow+res.Took, s.Text
		if code := res.Findings[0].Code; code == "probe.slow" || code == "probe.scan" {
			j.slowCode = code
		}
		j.slowCode = cmp.Or(j.slowCode, "probe.slow") // active.time is about a test
	}
	res.Findings = j.Soften(s, res.Findings)
	if j.job != nil && (s.Usage == nil || !s.Usage.Drill) {
		j.job.Look(s.Name, res.Findings)
	}
	j.unanswered.Note(j.current, res.Findings)
	j.emit(j.fold.Found(j.attribute(s.Name, j.apply(s, res.Findings))))
	j.judged(from, s)
	j.uncounted += len(j.fold.Failures()) - from
	return !j.fold.Over()
}

// Assigned copies the assignments of a line.
func (j *Judge) Assigned(s *plan.Step) {
	for _, v := range s.Sets {
		if err := conf.WrongChoice(v.Name, v.Value); err != nil {
			j.emit(j.fold.Found([]checks.Finding{{Code: "config.value", Severity: checks.Unknown, Message: fmt.Sprintf("%s: %v", s.Pos, err)}}))
			continue
		}
		j.n.Set.Put(v.Name, v.Value, v.Export)
		text := v.Name + "=" + setting.Quote(v.Value)
		if v.Export {
			text = "export " + text
		}
		j.bash.Assign(text)
		if v.Name == conf.SettingMode {
			j.bash.PassMode()
		}
	}
	j.changed()
}

// changed copies the settings after a line has changed one.
func (j *Judge) changed() {
	j.n.DoubtHost()
	j.update()
	j.timeout.Store(int64(j.files.Timeout()))
	j.n.Pool.SetVars(j.n.Set.WorkerVars())
}

// Expired judges a step that did not end in time. If it lacked the time, later results count.
func (j *Judge) Expired(s *plan.Step, hung *checks.Hung) (more bool) {
	end := j.results.begin(&j.fold, s)
	defer func() { end(hung.For, "") }()
	if hung.Cut && !hung.Stuck && j.lacksTime(s.Text, hung.For) {
		return !j.fold.Over()
	}
	from := len(j.fold.Failures())
	why := WhyHung(s.Lane, hung)
	if f, ok := hungFinding(s, hung, j.fold.ExpiredText(why)); ok {
		j.fold.Called([]checks.Finding{f})
	}
	j.emit(j.fold.Expired(why))
	j.judged(from, s)
	return false
}

// lacksTime reports whether a step that TIMEOUT ended had less time than the slow checks before it. The
// step is then unknown.
func (j *Judge) lacksTime(line string, took time.Duration) bool {
	if took >= j.slow {
		return false
	}
	j.died() // the remaining events of a failure whose helper did not return
	j.emit(j.fold.Broken(checks.Finding{Code: j.slowCode, Severity: checks.Unknown, Message: fmt.Sprintf("Check %s:  no result: the run timed out, since a check before was slow: %s", line, j.slowLine)}))
	return true
}

// hungFinding returns the finding of a step that did not end in time with this text; ok is false if
// no check of ours hangs, or in no device.
func hungFinding(s *plan.Step, hung *checks.Hung, text string) (f checks.Finding, ok bool) {
	d := run.HungDevice(s.Lane, hung.Doing)
	if hung.Unsent() || d == (checks.Device{}) || !session.OwnCheck(*s) || !s.Lane.Vendor() && !hung.Stuck {
		return checks.Finding{}, false
	}
	return checks.Finding{Code: "probe.hung", Severity: checks.Fail, Remedy: run.HungRemedy(d, hung.Doing), Device: d, Check: checks.FullName(s.Name), Message: text}, true
}

// WhyHung returns where a step hangs: in a call of a vendor's library, or in a process that no signal
// can end. It returns "" for any other.
func WhyHung(lane checks.Lane, hung *checks.Hung) string {
	if hung.Unsent() || !hung.Stuck && !lane.Vendor() {
		return ""
	}
	return "It hangs " + run.Describe(hung) + "."
}

// Line runs a step in bash.
func (j *Judge) Line(s *plan.Step) (more bool) {
	from, began, end := len(j.fold.Failures()), time.Now(), j.results.begin(&j.fold, s)
	defer func() { end(time.Since(began), "") }()
	more = j.line(s)
	j.judged(from, s)
	return more
}

// Goes reports whether steps that can change something still run: around a job, only while no failure
// concerns the job, or with -a.
func (j *Judge) Goes() bool {
	if j.job == nil || j.every {
		return true
	}
	failures := j.fold.Failures()
	if j.job.Blame.OfJob(failures) < 0 {
		return true
	}
	j.job.FindMIG() // the failures may be of other GPUs
	return j.job.Blame.OfJob(failures) < 0
}

func (j *Judge) line(s *plan.Step) (more bool) {
	f, began := &j.fold, time.Now()
	if c, ok := j.n.Pool.Ledger().Find(checks.Shell, s.Text); ok {
		j.forked(c.PID)
		j.emit(f.Expired("It hangs since an earlier run: " + run.Describe(c.Hung()) + "."))
		return false
	}
	if err := j.bash.Need(j.n.Budget.End); err != nil {
		j.forked(0)
		return j.broken(s.Text, err, time.Since(began))
	}
	if f.Over() {
		return false
	}
	if j.uncounted > 0 {
		j.bash.Assign(fmt.Sprintf("((FAIL_CNT += %d)) || :\n", j.uncounted))
		j.uncounted = 0
	}
	j.n.Log.Flush()
	j.n.Pool.KeepGuard()
	status, exited, err := j.bash.Line(f.Forks(s.Text), s.Index, s.Text, j.n.Budget.End)
	if err == nil && j.n.Signals.Caught() != 0 {
		err = run.ErrInterrupted
	}
	if err != nil {
		j.forked(j.bash.Pid()) // it hung before it reported its process ID
		return j.broken(s.Text, err, time.Since(began))
	}
	if exited {
		j.died() // the remaining events of a shell that was about to exit
		j.bash.Close()
		j.emit(f.Exited(status))
	} else if code, mistake := j.mistake(s, status); mistake != "" {
		j.emit(f.Mistaken(status, code, mistake))
	} else {
		j.emit(f.Ended(status))
	}
	return !f.Over()
}

// Soften changes errors of the configuration to Unknown, unless the site wants that they drain the node,
// and failures that an operator has accepted to warnings.
func (j *Judge) Soften(s *plan.Step, list []checks.Finding) []checks.Finding {
	if !j.n.Set.ConfigErrorsDrain() {
		list = session.Excuse(list, s.Lacks)
	}
	return j.n.Silence(list, s.Text)
}

// mistakeIn returns the code and the text of the error in a line that has failed because bash cannot
// read it or cannot find its command; see [open.Files.LacksCommand] for lacks. They are empty if the
// line has failed otherwise.
func mistakeIn(s *plan.Step, status int, lacks func(name string, newPath bool) (known []string, sure bool)) (code, text string) {
	const notFound, unreadable = 127, 2 // of a shell
	switch {
	case s.Garbled && status == unreadable:
		return "config.usage", "bash cannot read the line: a quote or a bracket is missing"
	case status != notFound:
		return "", ""
	}
	for _, name := range s.Calls {
		if known, sure := lacks(name, s.NewPath); sure {
			return "config.command", fmt.Sprintf("there is no command %q%s", name, spell.DidYouMean(name, known))
		}
	}
	return "", ""
}

// mistake is [mistakeIn]; it finds no mistake if the site wants such an error to drain the node.
func (j *Judge) mistake(s *plan.Step, status int) (code, text string) {
	if j.n.Set.ConfigErrorsDrain() {
		return "", ""
	}
	return mistakeIn(s, status, j.files.LacksCommand)
}

// broken ends a shell that did not reach the end of a line.
func (j *Judge) broken(line string, err error, took time.Duration) (more bool) {
	f := &j.fold
	switch {
	case errors.Is(err, run.ErrDeadline):
		why := j.bash.KillLine(line)
		if why == "" && j.lacksTime(line, took) {
			return false
		}
		j.emit(f.Expired(why))
	case errors.Is(err, run.ErrInterrupted):
		j.bash.End()
		j.interrupted()
	default:
		j.bash.End()
		code := "shell.broken"
		if errors.Is(err, run.ErrForged) {
			code = "shell.forged"
		}
		j.died() // the remaining events of a failure whose helper did not return
		j.emit(f.Broken(checks.Finding{Code: code, Severity: checks.Unknown, Message: fmt.Sprintf("Check %s:  %v", line, err)}))
	}
	return !f.Over()
}

// LoadScripts lets bash read the scripts of the site; if one cannot be read, the result is unknown.
func (j *Judge) LoadScripts() {
	err := j.files.LoadScripts()
	switch {
	case err == nil:
	case errors.Is(err, run.ErrDeadline):
		j.emit(j.fold.Expired(j.bash.KillLine("load scripts of " + j.n.Set.Get("INCDIR"))))
	case errors.Is(err, run.ErrInterrupted):
		j.bash.End()
		j.interrupted()
	default:
		j.bash.End()
		j.bash.Unloaded = err
		j.emit(j.fold.Found([]checks.Finding{{
			Code: "scripts.unusable", Severity: checks.Unknown, Message: fmt.Sprintf("scripts are not used:  %v", err),
		}}))
	}
}

// MakePlan plans the run.
func (j *Judge) MakePlan() {
	j.looks = time.Now()
	j.bash.PassLines()
	j.files.Plan = j.files.Build()
	j.late = slices.ContainsFunc(j.files.Plan.Steps, session.OwnCheck)
	j.update()
	if j.job != nil {
		j.n.Set.Job = j.job.ForChecks(j.files.Config.Role(j.files.Context()))
	}
	j.Rehearse()
}

// addHolds adds the findings of faults that no remedy has repaired to the plan of a health check. Only
// a site that permits remedies has them.
func (j *Judge) addHolds() {
	if j.files.Config == nil || len(j.files.Config.Remedies) == 0 || j.files.Eval != "" || j.job != nil || j.n.Part() || j.n.Set.Past == "" {
		return
	}
	record, err := node.Remedies(j.n)
	if err == nil && record.Boot == "" { // so that a later boot shows whether the record outlives it
		record.Boot = slurm.BootID()
		err = node.KeepRemedies(j.n, record, false)
	}
	if err != nil {
		j.n.Warn(err)
		j.keepOut = "and the record of its remedies cannot be used"
		return
	}
	j.remedies = &record
	if open := record.Open(); len(open) > 0 {
		j.keepOut = "and the checks after " + open[0].Do + " have not run"
	}
	for i := range record.Holds {
		h := &record.Holds[i]
		f := h.Finding()
		s := session.StepLike(j.files.Plan, h.Check, &f)
		if s == nil {
			s = &plan.Step{Pos: conf.Pos{File: j.n.Set.Get("CONFFILE")}, Text: h.Check, Name: h.Check, Lane: checks.Local, Usage: &f}
		}
		s.Policy = conf.Policy{}
		j.files.Plan.Add(&plan.Plan{Steps: []plan.Step{*s}})
	}
}

// addMonitor adds a warning to the plan of a health check if the monitor of the node does not run, or one
// of its sources of events does not answer.
func (j *Judge) addMonitor() {
	if kindOf(j.n.Role, j.files.Given) != outputs.OfNode || j.files.Eval != "" || j.job != nil {
		return
	}
	why := ""
	ledger, err := monitor.ParseLedger(j.n.Pool.Monitor())
	if err != nil {
		why = err.Error()
	} else {
		why = ledger.Doubt(node.ReadMoment().Uptime)
	}
	if why == "" {
		return
	}
	f := checks.Finding{Code: "monitor.silent", Severity: checks.Warn, Remedy: checks.NoRemedy, Check: event.Whole}.
		Phrase(event.Whole, "%s: faults are found by health checks alone: systemctl restart nhc-gpu-monitor", why)
	j.files.Plan.Add(&plan.Plan{Steps: []plan.Step{{Pos: conf.Pos{File: j.n.Set.Get("CONFFILE")}, Text: event.Whole, Name: event.Whole, Lane: checks.Local, Usage: &f}}})
}

// RemedyDue reports whether a remedy can be due after this run: the node is drained by us for a failure,
// a remedy is under way, or the reason of the drain does not say that the remedies are over.
func (j *Judge) RemedyDue() bool {
	if j.remedies == nil || kindOf(j.n.Role, j.files.Given) != outputs.OfNode {
		return false
	}
	held := j.n.Did != nil && j.n.Did.Owner == event.OwnerNHC && j.n.Did.Error == ""
	return len(j.remedies.Open()) > 0 || j.remedies.Restore != nil || held && j.fold.Failed() && (len(j.remedies.Holds) == 0 || !slurm.IsHeldForRMA(j.n.Did.Reason))
}

// Rehearse adds the finding of a drill, if one is under way, to the end of the plan: every check has
// looked by then, so that a real failure takes precedence.
func (j *Judge) Rehearse() {
	if j.drill = j.n.Drill(); j.drill == nil || j.files.Eval != "" || j.n.Part() {
		return
	}
	whole := j.job == nil && kindOf(j.n.Role, j.files.Given) == outputs.OfNode
	of := func(check, class string) conf.Policy { return j.files.Config.Of(check, class) }
	if s := j.drill.Step(j.files.Plan, whole, j.n.Set.Get("CONFFILE"), of); s != nil {
		j.files.Plan.Add(&plan.Plan{Steps: []plan.Step{*s}})
	}
}

// Drill returns the rehearsal for the event of the run, nil if none is under way.
func (j *Judge) Drill() *event.Drill {
	d := cmp.Or(j.drill, j.n.Drill()) // a run without a plan has not read it
	if d == nil {
		return nil
	}
	return &event.Drill{Code: d.Finding.Code, Device: d.Finding.Device, Until: d.Until()}
}

// Prepare sets the data that checks cannot read from their own lines.
func (j *Judge) Prepare() {
	j.n.Pool.SetVars(j.n.Set.WorkerVars())
	j.addHolds()
	j.addMonitor()
	j.n.PrepareChecks(j.files.Plan)
	j.Records.Settle(j.files.Plan)
}

// RunPlan runs the plan; watch receives the progress of the workers.
func (j *Judge) RunPlan(watch func(*plan.Step, string, time.Duration, time.Duration)) {
	if err := j.Engine(watch).Do(j.n.Ctx, j.files.Plan, j); err != nil && !j.fold.Over() {
		j.interrupted()
	}
	j.current = nil
}

// Engine returns the engine that runs plans in this run.
func (j *Judge) Engine(watch func(*plan.Step, string, time.Duration, time.Duration)) *run.Engine {
	j.timeout.Store(int64(j.files.Timeout()))
	return &run.Engine{Pool: j.n.Pool, Deadline: j.n.Budget.End, Timeout: func() time.Duration { return time.Duration(j.timeout.Load()) }, Doing: watch}
}

// apply returns the findings of a step with the effects of their policies. One line or a report for a
// person counts no strikes.
func (j *Judge) apply(s *plan.Step, list []checks.Finding) []checks.Finding {
	if j.files.Eval != "" || j.Collector != nil {
		return j.Applied(s, list)
	}
	return j.policies.apply(j.files.Config, s, list)
}

// Applied returns the findings of a step with the effects of their policies in a run that counts no
// strikes.
func (j *Judge) Applied(s *plan.Step, list []checks.Finding) []checks.Finding {
	r := policy.Run{Context: j.n.Role.String(), Now: time.Now()}
	done := make([]checks.Finding, len(list))
	for i, f := range list {
		done[i] = policy.Apply(f, ruleOf(j.files.Config, s, f), r)
	}
	return done
}
