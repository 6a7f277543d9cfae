package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/conf"
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

func (s *foldState) begin(set *settings, eval, logged bool) {
	s.update(set)
	s.f.Eval, s.f.Logged = eval, logged
}

// update takes over the settings that a check line may have changed.
func (s *foldState) update(set *settings) {
	s.f.Name = set.get("NAME")
	s.f.Silent = set.get("SILENT") != "0"
	s.f.Verbose = set.get("VERBOSE") == "1"
	s.f.Stamp = set.stamps()
	s.f.Apart = set.get("NHC_CHECK_FORKED") != "0"
	s.f.All = set.get("NHC_CHECK_ALL") == "1" || s.held // around a job: a failure of any GPU must not hide one of the job's
	s.f.Forked = set.get("NHC_CHECK_FORKED") == "1"
	s.f.Mark = set.marks() && !s.held
	s.f.Late = s.late
	s.f.Logged = set.get("LOGFILE") != "" && set.get("LOGFILE") != "-"
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
	helper = r.set.customHelper("OFFLINE_NODE") && slices.ContainsFunc(events, func(e verdict.Event) bool { return e.To == verdict.Offline })
	for i := 0; i < len(events); i++ {
		e := events[i]
		e.Text = verdict.Printable(e.Text)
		switch e.To {
		case verdict.Log:
			r.log.write(r.stamped(e.Text))
		case verdict.Out:
			r.log.flush()
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
			if r.set.customHelper("ONLINE_NODE") {
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
	deadline := r.budget.Helping(time.Now())
	o := &observer{r}
	err := o.needShell(deadline)
	if err == nil {
		r.log.flush()
		_, err = r.shell.Helper(online, message, text, deadline)
	}
	if err != nil {
		r.endShell()
		r.warn(fmt.Errorf("run the site's helper: %w", err))
	}
}

// logSink is LBNL's standard output after LOGFILE has been applied to it. A log
// file is written by a worker: it may lie on a file system that hangs.
type logSink struct {
	pool *run.Pool
	spec conf.LogSpec
	set  bool   // there is a LOGFILE
	path string // where standard output goes; "" means it stays
	lost bool   // the log file does not answer
	buf  strings.Builder

	// shared has the logs in directories that another user controls.
	shared map[string]bool
}

// logLimit bounds a write to the log file.
const logLimit = 300 * time.Millisecond

func (l *logSink) parse(set *settings) (spec string, err error) {
	spec = set.get("LOGFILE")
	if strings.HasPrefix(spec, "/") {
		spec = ">>" + spec + " 2>&1"
		set.put("LOGFILE", spec, true)
	}
	if spec == "-" || spec == "" {
		delete(set.vars, "LOGFILE")
		return spec, nil
	}
	for _, own := range []string{"/dev/stdout", "/dev/stderr", "/dev/fd/1", "/dev/fd/2"} {
		if strings.HasPrefix(spec, ">>"+own+" ") { // LBNL NHC has closed them by then
			return spec, fmt.Errorf("open %s: the log cannot be this program's own output, want - for that", own)
		}
	}
	l.spec, err = conf.ParseLog(spec, set.get)
	if err != nil {
		return spec, err
	}
	l.set = true
	if out := l.spec.Stdout(); out.Path != "" {
		l.path = out.Path
	}
	return spec, nil
}

// openRequests create the log files, as LBNL NHC does in every run.
func (l *logSink) openRequests() (reqs []*run.Request) {
	if !l.set {
		return nil
	}
	seen := map[string]bool{}
	for _, t := range []conf.LogTarget{l.spec.Stdout(), l.spec.Stderr()} {
		if t.Path != "" && !seen[t.Path] {
			seen[t.Path] = true
			reqs = append(reqs, &run.Request{Op: run.OpAppend, Path: t.Path, Trunc: !t.Append, Line: "open " + t.Path})
		}
	}
	return reqs
}

// opened notes how a log was opened.
func (l *logSink) opened(q *run.Request, o run.Outcome) {
	if _, err := o.File(q.Line); err == nil {
		if l.shared == nil {
			l.shared = map[string]bool{}
		}
		l.shared[q.Path] = true
	}
}

// shellPath is the path at which bash opens a log. What a worker has found safe another
// user may have replaced by now: bash gets the file that a worker has open.
func (l *logSink) shellPath(path string) string {
	if !l.shared[path] {
		return path
	}
	q := &run.Request{Op: run.OpAppend, Path: path, Line: "open " + path}
	file, err := l.pool.Call(context.Background(), "log", q, logLimit).File(q.Line)
	if err != nil {
		return "/dev/null"
	}
	return file.Path
}

// shellText redirects bash as LOGFILE says.
func (l *logSink) shellText() string {
	if !l.set {
		return ""
	}
	var b strings.Builder
	b.WriteString("exec 3>&1 4>&2\n__nhc_private 3 4\nNHC_FD_OUT=3 NHC_FD_ERR=4\n")
	for fd, t := range []conf.LogTarget{l.spec.Stdout(), l.spec.Stderr()} {
		switch {
		case t.Path != "":
			fmt.Fprintf(&b, "exec %d>>%s\n", fd+1, quote(l.shellPath(t.Path)))
		case t.Fd != fd+1:
			fmt.Fprintf(&b, "exec %d>&%d\n", fd+1, t.Fd+2)
		}
	}
	return b.String()
}

// write takes one line.
func (l *logSink) write(text string) {
	if l.path == "" {
		fmt.Fprintln(console.Stdout, text)
		return
	}
	if l.lost {
		return
	}
	l.buf.WriteString(verdict.Printable(text) + "\n")
}

// flush hands what has been written to the log file.
func (l *logSink) flush() {
	if l.buf.Len() == 0 || l.lost {
		return
	}
	data := []byte(l.buf.String())
	l.buf.Reset()
	o := l.pool.Call(context.Background(), "log", &run.Request{Op: run.OpAppend, Path: l.path, Data: data, Line: "write " + l.path}, logLimit)
	if err := o.FailureIn("write " + l.path); err != nil {
		l.lost = true
		fmt.Fprintf(console.Stderr, "nhc-gpu: warning: %v\n", err)
	}
}

// fatal reports a LOGFILE that cannot be opened, with LBNL's text. Unlike LBNL NHC the
// run continues without a log: a root file system that became read-only is the fault to
// find. Its exit status is 1 if no check fails. A LOGFILE that is no
// redirection ends the run.
func (l *logSink) fatal(r *oneRun, spec string, err error) (exit int, over bool) {
	if errors.Is(err, conf.ErrNotRedirection) {
		fmt.Fprintf(console.Stderr, "nhc-gpu: LOGFILE: %v\n", err)
		return 127, true
	}
	text := fmt.Sprintf("NHC:  FATAL:  Can't write %s as %s (uid %d) -- Read-only filesystem/device failure?", spec, r.set.get("USER"), os.Geteuid())
	fmt.Fprintln(console.Stdout, "ERROR "+text)
	fmt.Fprintf(console.Stderr, "nhc-gpu: %v\n", err)
	sendSyslog(r.set.get("NAME"), []string{text})
	const nowhere = ">>/dev/null 2>&1"
	l.spec, _ = conf.ParseLog(nowhere, r.set.get)
	l.set, l.lost, l.path = true, true, "/dev/null"
	r.unlogged = true
	return 1, false
}

// withoutLog says whether the run goes on without its LOGFILE: around a job it does,
// for the job is not to pay for it, and is not to start unchecked.
func (r *oneRun) withoutLog(spec string, err error) bool {
	if r.job == nil {
		return false
	}
	r.log.set, r.log.path, r.log.spec = false, "", conf.LogSpec{}
	delete(r.set.vars, "LOGFILE")
	r.warn(fmt.Errorf("LOGFILE %s is not used: %w", spec, err))
	sendSyslog(r.set.get("NAME"), []string{fmt.Sprintf("LOGFILE %s is not used: %v", spec, err)})
	return true
}

// interrupted ends the run after a signal.
func (r *oneRun) interrupted() {
	sig := r.sig.Caught()
	r.pool.Kill()
	if sig == unix.SIGALRM { // LBNL NHC's watchdog, or somebody in its place
		r.emit(r.fold.f.Expired(""))
		return
	}
	text := "Terminated by signal " + console.SignalName(sig) + "."
	if r.job != nil { // somebody wanted it to end: that says nothing of the node
		if !slices.ContainsFunc(r.fold.f.List(), func(f checks.Finding) bool { return f.Message == text }) {
			r.emit(r.fold.f.Findings([]checks.Finding{{Code: "probe.interrupted", Severity: checks.Unknown, Message: text}}))
		}
		return
	}
	r.emit(r.fold.f.Abort(128+int(sig), text))
}
