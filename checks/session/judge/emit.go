package judge

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// SetUp sets up the fold. eval: the run has one line (-e); logged: the run has a log.
func (j *Judge) SetUp(eval, logged bool) {
	j.update()
	j.Fold.Eval, j.Fold.Logged = eval, logged
}

// update copies the settings that a check line can change.
func (j *Judge) update() {
	set, f := j.Set, &j.Fold
	f.Name = set.Get("NAME")
	f.Silent = set.Get("SILENT") != "0"
	f.Verbose = set.Get("VERBOSE") == "1"
	f.Stamp = set.Stamps()
	f.Apart = set.Get("NHC_CHECK_FORKED") != "0"
	f.All = set.Get("NHC_CHECK_ALL") == "1" || j.Held // around a job: a failure of another GPU must not hide one of the job's GPUs
	f.Forked = set.Get("NHC_CHECK_FORKED") == "1"
	f.Mark = set.Marks() && !j.Held
	f.Late = j.late
	f.Logged = set.Get("LOGFILE") != "" && set.Get("LOGFILE") != "-"
}

// Emit carries out events of the fold.
func (j *Judge) Emit(events []verdict.Event) {
	if helper, text := j.emitUntilHelper(events); helper {
		rest := j.after
		j.after = nil
		j.siteHelper(false, j.Fold.LastMessage(), text)
		j.Emit(rest)
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
	helper = !j.Set.Observes() && j.Set.CustomHelper("OFFLINE_NODE") && slices.ContainsFunc(events, func(e verdict.Event) bool { return e.To == verdict.Offline })
	for i := 0; i < len(events); i++ {
		e := events[i]
		e.Text = verdict.Printable(e.Text)
		switch e.To {
		case verdict.Log:
			j.Log.Write(j.Stamped(e.Text))
		case verdict.Out:
			j.Log.Flush()
			fmt.Fprintln(j.Out, j.Stamped(e.Text))
		case verdict.Syslog:
			lines := []string{e.Text}
			for ; i+1 < len(events) && events[i+1].To == verdict.Syslog; i++ {
				lines = append(lines, verdict.Printable(events[i+1].Text))
			}
			if helper {
				text = strings.Join(lines, "\n")
				continue
			}
			j.tellSyslog(lines)
		case verdict.Offline:
			if helper {
				j.after = events[i+1:]
				return true, text
			}
			j.markOffline(e.Text)
		case verdict.Result:
			j.PutResult(e.Text)
		case verdict.Online:
			switch {
			case !j.Set.CustomHelper("ONLINE_NODE"):
				j.markOnline()
			case !j.Set.Observes(): // a healthy run calls it each time: no decision to log
				j.siteHelper(true, "", "")
			}
		}
	}
	return false, ""
}

// Stamped returns a line of the log, with the time if the site requests it.
func (j *Judge) Stamped(text string) string {
	if j.Fold.Stamp {
		return fmt.Sprintf("[%d] - %s", time.Now().Unix(), text)
	}
	return text
}

// siteHelper lets the shell run the site's own helper.
func (j *Judge) siteHelper(online bool, message, text string) {
	j.Helper(online, message, text, j.Budget.Helping(time.Now()))
}

// interrupted ends the run after a signal.
func (j *Judge) interrupted() {
	sig := j.Signals.Caught()
	j.Pool.Kill()
	if sig == unix.SIGALRM { // from LBNL NHC's watchdog, or from a replacement of it
		j.Emit(j.Fold.Expired(""))
		return
	}
	text := "Terminated by signal " + unix.SignalName(sig) + "."
	if j.Job != nil { // a user or slurmd ended it: this is not a fault of the node
		if !slices.ContainsFunc(j.Fold.List(), func(f checks.Finding) bool { return f.Message == text }) {
			j.Emit(j.Fold.Findings([]checks.Finding{{Code: "probe.interrupted", Severity: checks.Unknown, Message: text}}))
		}
		return
	}
	j.Emit(j.Fold.Abort(128+int(sig), text))
}

// startsCommands reports whether steps of the plan, or scripts before it, start other
// programs.
func (j *Judge) startsCommands() bool {
	if j.Plan == nil {
		return j.HasScripts()
	}
	return slices.ContainsFunc(j.Plan.Steps, func(s plan.Step) bool { return s.Barrier })
}

// tellSyslog sends lines to syslog.
func (j *Judge) tellSyslog(lines []string) {
	if j.Fold.All && j.startsCommands() {
		sink.Logger(j.Pool, j.Set.Environ(), j.Set.Get("NAME"), lines)
	} else {
		sink.Syslog(j.Set.Get("NAME"), lines)
	}
}

func (j *Judge) markOffline(message string) {
	if j.Set.Observes() && j.Set.CustomHelper("OFFLINE_NODE") {
		j.Would(fmt.Sprintf("run %s for node %s: %s", j.Set.Get("OFFLINE_NODE"), j.Name, message))
		return
	}
	refused := j.Job != nil && j.Job.Blame.OfJob(j.Fold.Failures()) >= 0
	v := slurm.Verdict{Message: message, Refused: refused, Cause: j.cause()}
	if failures := j.Fold.Failures(); j.Fold.Blamed() < len(failures) {
		x := failures[j.Fold.Blamed()]
		v.Code, v.Device = x.Code, x.Device.String()
	}
	if j.CarryOut(v) && refused && j.Role == slurm.Prolog && !j.Set.Observes() {
		j.tellJob()
	}
}

// tellJob writes the node and the cause for the user of the refused job.
func (j *Judge) tellJob() {
	ctx, cancel := j.Acting()
	defer cancel()
	lost := j.Job.Blame.OfJob(j.Fold.Failures())
	text := fmt.Sprintf("node %s failed its health check before this job started: %s", j.Name, session.CauseForUser(j.steps[lost], j.Fold.Failures()[lost]))
	if err := slurm.TellJob(ctx, j.Controller(), j.Job.Job.ID, text); err != nil {
		j.Warn(err)
	}
}

// cause returns the cause of the failure that marks the node.
func (j *Judge) cause() slurm.Cause {
	s := j.steps[j.Fold.Blamed()]
	switch {
	case s == nil && j.Job != nil:
		return slurm.Cause{}
	case s == nil:
		s = j.current
	}
	if s == nil {
		return slurm.Cause{File: j.Paths.Of(j.Set.Get("CONFFILE"))}
	}
	return session.CauseOf(s, j.Paths, j.Job != nil)
}

func (j *Judge) markOnline() {
	pass := session.Pass{Plan: j.Plan, Files: []string{j.Set.Get("CONFFILE"), j.TablesFile()}, Paths: j.Paths, Unanswered: j.unanswered}
	j.CarryOut(slurm.Verdict{Healthy: true, Lacks: pass.Lacks})
}

func (j *Judge) debugEnd() {
	if j.Eval != "" { // there is no watchdog
		return
	}
	pid := 0
	if j.Budget.Limited() {
		pid = os.Getpid()
	}
	j.Debug("kill_watchdog:  Watchdog PID is %d.", pid)
}

// PutResult writes a result for the next run. An error goes to the log and to
// syslog.
func (j *Judge) PutResult(text string) {
	j.Left = true
	path := j.Set.Get("RESULTFILE")
	o := j.Pool.Call(j.Ctx, "log", &wire.Request{
		Op: wire.OpPut, Path: path, Data: []byte(text + "\n"), Line: "write " + path, MakeDir: filepath.Dir(path) == setting.ResultDir,
	}, TakeLimit)
	if err := o.FailureIn("write " + path); err != nil {
		text := fmt.Sprintf("ERROR:  %s:  Unable to write to %q -- is %s missing/read-only?", j.Set.Get("NAME"), path, filepath.Dir(path))
		if j.Set.Get("SILENT") == "0" {
			j.Log.Write(j.Stamped(text))
		}
		sink.Syslog(j.Set.Get("NAME"), []string{text})
	}
}

// TakeLimit is the time limit for reading and writing a result.
const TakeLimit = 2 * time.Second
