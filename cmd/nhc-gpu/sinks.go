package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
)

// exitUnknown is the exit status where something could not be told.
const exitUnknown = verdict.ExitUnknown

// foldState is the fold of a run and what stands between it and the shell.
type foldState struct {
	f       verdict.Fold
	held    bool            // the node is marked at the end of the run alone
	late    bool            // so it is with -a
	waiting string          // a forked line whose process is not known yet
	after   []verdict.Event // what follows when the shell has run the site's helper
}

func (s *foldState) begin(set *setting.Settings, eval, logged bool) {
	s.update(set)
	s.f.Eval, s.f.Logged = eval, logged
}

// update takes over the settings that a check line may have changed.
func (s *foldState) update(set *setting.Settings) {
	s.f.Name = set.Get("NAME")
	s.f.Silent = set.Get("SILENT") != "0"
	s.f.Verbose = set.Get("VERBOSE") == "1"
	s.f.Stamp = set.Stamps()
	s.f.Apart = set.Get("NHC_CHECK_FORKED") != "0"
	s.f.All = set.Get("NHC_CHECK_ALL") == "1" || s.held // around a job: a failure of any GPU must not hide one of the job's
	s.f.Forked = set.Get("NHC_CHECK_FORKED") == "1"
	s.f.Mark = set.Marks() && !s.held
	s.f.Late = s.late
	s.f.Logged = set.Get("LOGFILE") != "" && set.Get("LOGFILE") != "-"
}

// emit does what the fold says.
func (r *oneRun) emit(events []verdict.Event) {
	if helper, text := r.emitUntilHelper(events); helper {
		rest := r.fold.after
		r.fold.after = nil
		r.siteHelper(false, r.fold.f.LastMessage(), text)
		r.emit(rest)
	}
}

// emitUntilHelper does what the fold says, up to the call of a helper of the
// site's own, which only the shell can make; the rest is kept for later. text is
// what syslog is to hear before: the shell gives it to logger(1), as LBNL NHC
// does, so that a site that watches both sees them in order.
func (r *oneRun) emitUntilHelper(events []verdict.Event) (helper bool, text string) {
	if r.table != nil {
		r.table.collect(events)
		return false, ""
	}
	helper = r.Set.CustomHelper("OFFLINE_NODE") && slices.ContainsFunc(events, func(e verdict.Event) bool { return e.To == verdict.Offline })
	for i := 0; i < len(events); i++ {
		e := events[i]
		e.Text = verdict.Printable(e.Text)
		switch e.To {
		case verdict.Log:
			r.Log.Write(r.stamped(e.Text))
		case verdict.Out:
			r.Log.Flush()
			fmt.Fprintln(console.Stdout, r.stamped(e.Text))
		case verdict.Syslog:
			lines := []string{e.Text}
			for ; i+1 < len(events) && events[i+1].To == verdict.Syslog; i++ {
				lines = append(lines, verdict.Printable(events[i+1].Text))
			}
			if helper {
				text = strings.Join(lines, "\n")
				continue
			}
			r.tellSyslog(lines)
		case verdict.Offline:
			if helper {
				r.fold.after = events[i+1:]
				return true, text
			}
			r.markOffline(e.Text)
		case verdict.Result:
			r.putResult(e.Text)
		case verdict.Online:
			if r.Set.CustomHelper("ONLINE_NODE") {
				r.siteHelper(true, "", "")
			} else {
				r.markOnline()
			}
		}
	}
	return false, ""
}

func (r *oneRun) stamped(text string) string {
	if r.fold.f.Stamp {
		return fmt.Sprintf("[%d] - %s", time.Now().Unix(), text)
	}
	return text
}

// siteHelper has the shell run the site's own helper.
func (r *oneRun) siteHelper(online bool, message, text string) {
	deadline := r.Budget.Helping(time.Now())
	o := &observer{r}
	err := o.needShell(deadline)
	if err == nil {
		r.Log.Flush()
		_, err = r.shell.Helper(online, message, text, deadline)
	}
	if err != nil {
		r.endShell()
		r.Warn(fmt.Errorf("run the site's helper: %w", err))
	}
}

// interrupted ends the run after a signal.
func (r *oneRun) interrupted() {
	sig := r.Signals.Caught()
	r.Pool.Kill()
	if sig == unix.SIGALRM { // LBNL NHC's watchdog, or somebody in its place
		r.emit(r.fold.f.Expired(""))
		return
	}
	text := "Terminated by signal " + unix.SignalName(sig) + "."
	if r.job != nil { // somebody wanted it to end: that says nothing of the node
		if !slices.ContainsFunc(r.fold.f.List(), func(f checks.Finding) bool { return f.Message == text }) {
			r.emit(r.fold.f.Findings([]checks.Finding{{Code: "probe.interrupted", Severity: checks.Unknown, Message: text}}))
		}
		return
	}
	r.emit(r.fold.f.Abort(128+int(sig), text))
}

// startsCommands says whether steps of the plan, or scripts before it, start other
// programs.
func (r *oneRun) startsCommands() bool {
	if r.plan == nil {
		return r.hasScripts()
	}
	return slices.ContainsFunc(r.plan.Steps, func(s plan.Step) bool { return s.Barrier })
}

// withoutLog says whether the run goes on without its LOGFILE: around a job it does,
// for the job is not to pay for it, and is not to start unchecked.
func (r *oneRun) withoutLog(spec string, err error) bool {
	if r.job != nil {
		r.Warn(r.Log.Drop(r.Set, spec, err))
	}
	return r.job != nil
}

// tellSyslog hands lines to syslog.
func (r *oneRun) tellSyslog(lines []string) {
	if r.fold.f.All && r.startsCommands() {
		sink.Logger(r.Pool, r.Set.Environ(), r.Set.Get("NAME"), lines)
	} else {
		sink.Syslog(r.Set.Get("NAME"), lines)
	}
}
