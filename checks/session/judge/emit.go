package judge

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Start begins the verdict of a run that has opened its log.
func (j *Judge) Start() {
	j.update()
	j.fold.Eval, j.fold.Logged, j.fold.Detach = j.files.Eval != "", j.n.Log.On, j.n.Background
	j.emit(j.fold.Start())
}

// HoldMark keeps the run from marking the node, also if a line sets MARK_OFFLINE.
func (j *Judge) HoldMark() {
	j.markHeld = true
	j.update()
	j.fold.Logged = false
}

// Abort ends a run that has not opened its log with a failure that does not come from a check.
func (j *Judge) Abort(status int, text string) {
	j.update()
	j.fold.Logged = j.n.Set.Get("LOGFILE") != "-"
	j.emit(j.fold.Abort(status, text))
}

// Over reports whether the run ended before its plan.
func (j *Judge) Over() bool { return j.fold.Over() }

// Announce begins a line without a report of it.
func (j *Judge) Announce(line string) { j.fold.Begin(line, 0) }

// ExpiredText returns the text of a step that did not end in time; see [WhyHung].
func (j *Judge) ExpiredText(why string) string { return j.fold.ExpiredText(why) }

// update copies the settings that a check line can change.
func (j *Judge) update() {
	eval, detach := j.fold.Eval, j.fold.Detach
	j.fold.Settings = foldSettings(j.n.Set, j.markHeld, j.late)
	j.fold.Eval, j.fold.Detach = eval, detach
}

// foldSettings returns the settings of a fold. markHeld: the judge marks the node itself, or not at all; late: see
// [verdict.Settings].
func foldSettings(set *setting.Settings, markHeld, late bool) verdict.Settings {
	log := set.Get("LOGFILE")
	return verdict.Settings{
		Name: set.Get("NAME"), Silent: set.Get("SILENT") != "0", Verbose: set.Get("VERBOSE") == "1",
		Apart: set.Get("NHC_CHECK_FORKED") != "0", Forked: set.Get("NHC_CHECK_FORKED") == "1",
		All:  set.Get("NHC_CHECK_ALL") == "1" || markHeld, // around a job: a failure of another GPU must not hide one of the job's GPUs
		Mark: set.Marks() && !markHeld, Late: late, Logged: log != "" && log != "-",
	}
}

// emit carries out events of the fold.
func (j *Judge) emit(events []verdict.Event) {
	if helper, text := j.emitUntilHelper(events); helper {
		rest := j.after
		j.after = nil
		j.siteHelper(j.failed(text))
		j.emit(rest)
	}
}

// emitUntilHelper carries out events of the fold up to the call of a site's helper. Only the shell
// can make that call; the rest of the events is kept for later. text is for syslog, before the
// call: the shell gives it to logger(1), as LBNL NHC does, so that a site that watches both sees
// them in order.
func (j *Judge) emitUntilHelper(events []verdict.Event) (helper bool, text string) {
	if j.Collector != nil {
		j.Collector.Collect(events)
		return false, ""
	}
	marks := slices.ContainsFunc(events, func(e verdict.Event) bool { return e.To == verdict.Offline })
	helper = marks && !j.n.Set.Observes() && j.n.CustomHelper("OFFLINE_NODE")
	var forSyslog []string
	events = joinSyslog(events)
	for i, e := range events {
		switch e.To {
		case verdict.Log:
			j.n.Log.Write(j.n.Stamped(e.Text))
		case verdict.Out:
			j.n.Log.Flush()
			fmt.Fprintln(j.n.Out, j.n.Stamped(e.Text))
		case verdict.Syslog:
			if helper {
				forSyslog = append(forSyslog, e.Text)
				continue
			}
			j.sendSyslog(e.Text)
		case verdict.Offline:
			if helper {
				j.noteHelper("OFFLINE_NODE", slurm.Drain, e.Text)
				j.after = events[i+1:]
				return true, strings.Join(forSyslog, "\n")
			}
			j.markOffline(e.Text)
		case verdict.Result:
			j.putResult(e.Text)
		case verdict.Online:
			switch {
			case j.n.Part(), j.staysOut(): // a part has not seen the rest of the node
			case !j.n.CustomHelper("ONLINE_NODE"):
				j.markOnline()
			case !j.n.Set.Observes(): // a healthy run calls it each time: no decision to log
				j.noteHelper("ONLINE_NODE", slurm.Resume, "")
				j.siteHelper(nil)
			}
		}
	}
	return false, ""
}

// joinSyslog makes the texts of events safe to print, and makes one event of consecutive lines for
// syslog.
func joinSyslog(events []verdict.Event) (joined []verdict.Event) {
	for _, e := range events {
		e.Text = verdict.Printable(e.Text)
		if last := len(joined) - 1; last >= 0 && e.To == verdict.Syslog && joined[last].To == verdict.Syslog {
			joined[last].Text += "\n" + e.Text
			continue
		}
		joined = append(joined, e)
	}
	return joined
}

// failed returns the failure that marks the node, for the site's own helper.
func (j *Judge) failed(syslog string) *run.Failed {
	f := &run.Failed{Message: j.fold.LastMessage(), Syslog: syslog}
	if s := cmp.Or(j.steps[j.fold.Blamed()], j.current); s != nil {
		f.Number, f.Line = strconv.Itoa(s.Index), s.Text
	}
	return f
}

// siteHelper lets the shell run the site's own helper.
func (j *Judge) siteHelper(failed *run.Failed) {
	end := j.n.Budget.Marking(time.Now())
	if j.n.Signals.Caught() != 0 { // no further signal would end it
		end = j.n.Budget.Helping(time.Now())
	}
	if err := j.bash.Helper(failed, end); err != nil {
		j.n.Did.Sent, j.n.Did.Owner, j.n.Did.Error = false, "", err.Error()
	}
}

// noteHelper records the call of a site's helper as the decision of the run. Only the helper knows
// what became of the node.
func (j *Judge) noteHelper(setting string, action slurm.Action, message string) {
	a := &event.Action{Action: action.String(), Sent: !j.n.Set.Observes(), Helper: true, Why: setting + "=" + j.n.Set.Get(setting)}
	if action == slurm.Drain {
		a.Reason = slurm.Reason(message)
	}
	if a.Sent && action == slurm.Drain {
		a.Owner = event.OwnerNHC
	}
	j.n.Did = a
}

// interrupted ends the run after a signal.
func (j *Judge) interrupted() {
	sig := j.n.Signals.Caught()
	j.n.Pool.Kill()
	if sig == unix.SIGALRM { // from LBNL NHC's watchdog, or from a replacement of it
		j.emit(j.fold.Expired(""))
		return
	}
	text := "Terminated by signal " + unix.SignalName(sig) + "."
	if j.job != nil { // a user or slurmd ended it: this is not a fault of the node
		if !slices.ContainsFunc(j.fold.Findings(), func(f checks.Finding) bool { return f.Message == text }) {
			j.emit(j.fold.Found([]checks.Finding{{Code: "probe.interrupted", Severity: checks.Unknown, Message: text}}))
		}
		return
	}
	j.emit(j.fold.Abort(128+int(sig), text))
}

// startsCommands reports whether steps of the plan, or scripts before it, start other
// programs.
func (j *Judge) startsCommands() bool {
	if j.files.Plan == nil {
		return j.bash.HasScripts()
	}
	return slices.ContainsFunc(j.files.Plan.Steps, func(s plan.Step) bool { return s.Barrier })
}

// sendSyslog sends lines to syslog.
func (j *Judge) sendSyslog(text string) {
	lines := strings.Split(text, "\n")
	if j.fold.All && j.startsCommands() {
		sink.Logger(j.n.Pool, j.n.Set.Environ(), j.n.Set.Get("NAME"), lines)
	} else {
		sink.Syslog(j.n.Set.Get("NAME"), lines)
	}
}

func (j *Judge) markOffline(message string) {
	if j.n.Set.Observes() && j.n.CustomHelper("OFFLINE_NODE") {
		j.noteHelper("OFFLINE_NODE", slurm.Drain, message)
		_ = j.n.Would(fmt.Sprintf("run %s for node %s: %s", j.n.Set.Get("OFFLINE_NODE"), j.n.Name, message))
		return
	}
	if lost := j.n.Set.LostHelper; lost != "" {
		j.n.Log.Note("HELPERDIR: no such file: %s: nhc-gpu marks the node itself", lost)
	}
	refused := j.job != nil && j.job.Blame.OfJob(j.fold.Failures()) >= 0
	v := slurm.Verdict{Message: message, Refused: refused, Cause: j.cause(), Busy: j.fold.All && !j.late, Part: j.n.Part()}
	if failures := j.fold.Failures(); j.fold.Blamed() < len(failures) {
		x := session.Marked(failures, j.fold.Blamed())
		v.Code, v.Device = x.Code, x.Device.String()
	}
	if j.n.CarryOut(v) && refused && j.n.Role == slurm.Prolog && !j.n.Set.Observes() {
		j.noteRefusal()
	}
}

// noteRefusal writes the node and the cause for the user of the refused job.
func (j *Judge) noteRefusal() {
	ctx, cancel := j.n.Acting()
	defer cancel()
	lost := j.job.Blame.OfJob(j.fold.Failures())
	text := fmt.Sprintf("node %s failed its health check before this job started: %s", j.n.Name, session.CauseForUser(j.steps[lost], j.fold.Failures()[lost]))
	if err := slurm.NoteRefusal(ctx, j.n.Controller(), j.job.Job.ID, text); err != nil {
		j.n.Warn(err)
	}
}

// cause returns the cause of the failure that marks the node.
func (j *Judge) cause() slurm.Cause {
	s := j.steps[j.fold.Blamed()]
	switch {
	case s == nil && j.job != nil:
		return slurm.Cause{}
	case s == nil:
		s = j.current
	}
	if s == nil {
		return slurm.Cause{File: j.files.Paths.Of(j.n.Set.Get("CONFFILE"))}
	}
	return session.CauseOf(s, j.files.Paths, j.job != nil)
}

// staysOut reports, to the log, too, whether a healthy run leaves the node as it is.
func (j *Judge) staysOut() bool {
	if past := j.n.Set.Past; past != "" && j.n.Pool.Silent(past) {
		j.keepOut = past + " does not answer, which has the faults of earlier runs"
	}
	if j.keepOut == "" {
		return false
	}
	j.n.Log.Note("node %s is not resumed: all checks pass, %s", j.n.Name, j.keepOut)
	return true
}

func (j *Judge) markOnline() {
	pass := session.Pass{Plan: j.files.Plan, Files: []string{j.n.Set.Get("CONFFILE"), j.files.TablesFile()}, Paths: j.files.Paths, Unanswered: j.unanswered, Drill: j.drill != nil}
	lacks := func(m slurm.Mark) string {
		if j.results.struck() {
			return "and a fault has a strike in this run"
		}
		if j.results.findsOutside(m) {
			j.results.found = true
			return "which this run has found, too: it acts at another time or in another context"
		}
		if m.Since.After(j.looks) && !m.Since.After(time.Now()) { // a clock may have been ahead
			return "which another run has found since this one began"
		}
		pass.Checking = j.files.Checking()
		return cmp.Or(pass.Lacks(m), j.policies.waits(j.files.Config, j.files.Plan, m))
	}
	j.n.CarryOut(slurm.Verdict{Healthy: true, Lacks: lacks, Early: j.unanswered.Early()})
}

func (j *Judge) debugEnd() {
	if j.files.Eval != "" { // there is no watchdog
		return
	}
	pid := 0
	if j.n.Budget.Limited() {
		pid = os.Getpid()
	}
	j.n.Debug("kill_watchdog:  Watchdog PID is %d.", pid)
}

// UnknownResult is the status in the result of a run without a verdict.
const UnknownResult = "unknown"

// LeaveResult writes the result of a background run, unless its first failure has already written one. doubt is the first unknown result.
func (j *Judge) LeaveResult(exit int, doubt string) {
	if j.n.Background && !j.left {
		j.putResult(resultText(exit, doubt))
	}
}

func resultText(exit int, doubt string) string {
	switch {
	case doubt != "":
		return UnknownResult + " " + doubt
	case exit == 0:
		return "0"
	}
	return fmt.Sprintf("%d The run ended with status %d.", exit, exit)
}

// putResult writes a result for the next run. An error goes to the log and to
// syslog.
func (j *Judge) putResult(text string) {
	j.left = true
	path := j.n.Set.Get("RESULTFILE")
	o := j.n.Pool.Call(j.n.Ctx, "log", &wire.Request{
		Op: wire.OpPut, Path: path, Data: []byte(text + "\n"), Line: "write " + path, MakeDir: filepath.Dir(path) == setting.ResultDir,
	}, TakeLimit)
	if err := o.FailureIn("write " + path); err != nil {
		text := fmt.Sprintf("ERROR:  %s:  Unable to write to %q -- is %s missing/read-only?", j.n.Set.Get("NAME"), path, filepath.Dir(path))
		if j.n.Set.Get("SILENT") == "0" {
			j.n.Log.Write(j.n.Stamped(text))
		}
		sink.Syslog(j.n.Set.Get("NAME"), []string{text})
	}
}

// TakeLimit is the time limit for reading and writing a result.
const TakeLimit = 2 * time.Second
