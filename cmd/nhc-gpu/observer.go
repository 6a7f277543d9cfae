package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
)

// observer carries the results of a run to its fold, and what the fold says to
// the world. It is a [run.Observer] and a [run.ShellHandler].
type observer struct{ *oneRun }

func (o *observer) Begin(s *plan.Step, pid int) {
	o.current = s
	if s.Kind == plan.ShellLine && o.fold.f.Forks(s.Text) {
		o.fold.waiting = s.Text // its process is not known yet
		return
	}
	if pid == 0 {
		pid = o.Pool.Pid(s.Lane)
	}
	o.emit(o.fold.f.Begin(s.Text, pid))
}

func (o *observer) Forked(pid int) {
	if o.fold.waiting != "" {
		o.emit(o.fold.f.Begin(o.fold.waiting, pid))
		o.fold.waiting = ""
		o.Log.Flush() // the process writes to the log itself
	}
}

func (o *observer) Native(s *plan.Step, r checks.Result) (more bool) {
	from := len(o.fold.f.Failures())
	o.looked(s.Name, r.Findings)
	o.unanswered.Note(o.current, r.Findings, r.Earlier)
	o.emit(o.fold.f.Findings(o.attribute(s.Name, session.Soften(r.Findings, s.Policy.Action))))
	o.judged(from, s)
	return !o.fold.f.Over()
}

func (o *observer) Assigned(s *plan.Step) {
	for _, v := range s.Sets {
		o.Set.Put(v.Name, v.Value, v.Export)
		if o.shell == nil {
			continue // it will be told when it starts
		}
		text := v.Name + "=" + setting.Quote(v.Value)
		if v.Export {
			text = "export " + text
		}
		if err := o.shell.Set(text, o.Budget.End); err != nil {
			o.Warn(err)
		}
	}
	o.changed()
}

func (o *observer) Expired(s *plan.Step, hung *checks.Hung) {
	from := len(o.fold.f.Failures())
	why := whyStuck(hung)
	if d := run.HungDevice(s.Lane, hung.Doing); d != (checks.Device{}) && ownCheck(*s) && (s.Lane.Vendor() || hung.Stuck) {
		o.fold.f.Called([]checks.Finding{{
			Code: "probe.hung", Severity: checks.Fail, Remedy: checks.RebootNode, Device: d, Check: checkName(s.Name),
			Message: o.fold.f.ExpiredText(why),
		}})
	}
	o.emit(o.fold.f.Expired(why))
	o.judged(from, s)
}

// whyStuck says where a process hangs that no signal can end, "" for any other.
func whyStuck(hung *checks.Hung) string {
	if !hung.Stuck {
		return ""
	}
	return "It hangs " + run.Describe(hung) + "."
}

// Line runs a step in bash.
func (o *observer) Line(_ context.Context, s *plan.Step) (more bool) {
	from := len(o.fold.f.Failures())
	more = o.line(s)
	o.judged(from, s)
	return more
}

// Goes says whether steps that may change something are still run: not after a
// failure, unless -a asks for it. Around a job every check that merely reads is.
func (o *observer) Goes() bool {
	return o.job == nil || o.job.every || o.job.blame.OfJob(o.fold.f.Failures()) < 0
}

func (o *observer) line(s *plan.Step) (more bool) {
	f := &o.fold.f
	if c, ok := o.Pool.Ledger().Find(checks.Shell, s.Text); ok {
		o.Forked(c.PID)
		o.emit(f.Expired("It hangs since an earlier run: " + run.Describe(c.Hung()) + "."))
		return false
	}
	if err := o.needShell(o.Budget.End); err != nil {
		o.Forked(0)
		return o.broken(s.Text, err)
	}
	if f.Over() {
		return false
	}
	o.Log.Flush()
	o.Pool.KeepGuard()
	status, exited, err := o.shell.Line(f.Forks(s.Text), s.Index, s.Text, o.Budget.End)
	if err == nil && o.Signals.Caught() != 0 {
		err = run.ErrInterrupted
	}
	if err != nil {
		o.Forked(o.shell.Pid()) // one that hung before it could tell its process
		return o.broken(s.Text, err)
	}
	if exited {
		o.Died() // what was left to say when the shell was about to leave
		o.shell.Close()
		o.shell = nil // whoever needs one now gets another
		o.emit(f.Exited(status))
	} else {
		o.emit(f.Ended(status))
	}
	return !f.Over()
}

// broken ends a shell that did not come to the end of a line.
func (o *observer) broken(line string, err error) (more bool) {
	f := &o.fold.f
	switch {
	case errors.Is(err, run.ErrDeadline):
		o.emit(f.Expired(o.killLine(line)))
	case errors.Is(err, run.ErrInterrupted):
		o.endShell()
		o.interrupted()
	default:
		o.endShell()
		code := "shell.broken"
		if errors.Is(err, run.ErrForged) {
			code = "shell.forged"
		}
		o.Died() // the rest of a failure whose helper has not come back
		o.emit(f.Broken(checks.Finding{Code: code, Severity: checks.Unknown, Message: fmt.Sprintf("Check %s:  %v", line, err)}))
	}
	return !f.Over()
}

// endShell kills the shell; whoever needs one after that gets another.
func (r *oneRun) endShell() (left []int) {
	if r.shell == nil {
		return nil
	}
	left = r.shell.Kill()
	r.shell = nil
	return left
}

// killLine ends a line that does not. It says what hangs if no signal can end it.
func (o *observer) killLine(line string) (why string) {
	left := o.endShell()
	if len(left) == 0 {
		return ""
	}
	return "It hangs: " + run.Describe(o.Pool.Bury(left, checks.Shell, line)) + "."
}

// needShell starts the one bash of the run, if it is not there yet, tells it
// what has been read, and has it read the site's scripts; one of them that dies
// or exits ends the run.
func (o *observer) needShell(deadline time.Time) error {
	if o.unloaded != nil {
		return o.unloaded
	}
	if o.shell == nil {
		if err := o.startShell(); err != nil {
			return err
		}
	}
	if o.dressed {
		return nil
	}
	if err := o.shell.Set(o.Set.ShellText()+o.shellSetup(), deadline); err != nil {
		return err
	}
	o.dressed = true
	if !o.hasScripts() {
		return nil
	}
	status, exited, err := o.shell.Load(o.scripts, deadline)
	if err != nil {
		return fmt.Errorf("load scripts of %s: %w", o.Set.Get("INCDIR"), err)
	}
	if exited && !o.fold.f.Over() {
		o.fold.f.Quit(status)
	}
	return nil
}

// startShell starts bash with what is known so far.
func (o *observer) startShell() error {
	wake := o.sig.Wake
	if o.Signals.Caught() != 0 { // it is for what remains to be done after the signal
		wake = -1
	}
	sh, err := run.StartShell(run.ShellSetup{
		Program: o.argv[0], Init: o.Set.ShellText() + "NHC_FD_OUT=1 NHC_FD_ERR=2\n", Env: o.Set.Environ(), Trace: o.opts.trace,
	}, o, wake)
	if err != nil {
		return err
	}
	o.Pool.Guard(sh.Guarded())
	o.shell, o.dressed = sh, false
	return nil
}

// shellSetup is what bash is told once the settings are read: LBNL NHC's state
// variables, all check lines, and the redirections of LOGFILE.
func (r *oneRun) shellSetup() string {
	text := r.checksText() + "export NHC_PID=$$ NHC_SID=-$$ NHC_START_TS=0 WATCHDOG_PID=0 LOGGER_TEXT= NHC_FD_OUT NHC_FD_ERR\n"
	if r.Budget.Limited() {
		text += "WATCHDOG_PID=$PPID\n"
	}
	if r.Set.Stamps() {
		text += "SECONDS=$TS NHC_START_TS=$TS\n"
	}
	return text + r.Log.ShellText()
}

func (r *oneRun) checksText() string {
	words := make([]string, len(r.vetted))
	for i, l := range r.vetted {
		words[i] = setting.Quote(l.Check)
	}
	return "CHECKS=( " + strings.Join(words, " ") + " )\n"
}

func (o *observer) Output(fd int, data []byte) {
	w := console.Stdout
	switch {
	case fd == 1 && o.json && o.table != nil && o.table.steps != nil:
		o.table.output = append(o.table.output, data[:min(len(data), maxLineOutput-len(o.table.output))]...)
		return
	case fd == 2 || o.json:
		w = console.Stderr
	}
	_, _ = w.Write(data)
}

func (o *observer) Leaving(status int) (helper bool, text, message string) {
	helper, text = o.emitUntilHelper(o.fold.f.Exited(status))
	o.Log.Flush()
	return helper, text, o.fold.f.LastMessage()
}

func (o *observer) Die(status, message string, subshell, heard bool) (helper bool, text string) {
	return o.emitUntilHelper(o.fold.f.Died(status, message, subshell, heard))
}

func (o *observer) Died() {
	rest := o.fold.after
	o.fold.after = nil
	o.emit(rest)
}

func (o *observer) Syslog(text string) { o.fold.f.Queue(text) }

func (o *observer) Flush() { o.emit(o.fold.f.Flush()) }

func (o *observer) Settings(values map[string]string) {
	changed := false
	for name, v := range values {
		if o.Set.Get(name) != v {
			o.Set.Put(name, v, false)
			changed = true
		}
	}
	if changed {
		o.changed()
	}
}

// Environ takes over what bash exports. Settings that are exported once they have
// a value may not be known to it; those that it exports no more are its to tell.
func (o *observer) Environ(values map[string]string) {
	changed := false
	for name, v := range values {
		old, ok := o.Set.Lookup(name)
		if !setting.ReadonlyInBash[name] && (!ok || old != v || !o.Set.Export[name]) {
			o.Set.Put(name, v, true)
			changed = true
		}
	}
	for name := range o.exported {
		if _, ok := values[name]; !ok && o.Set.Export[name] {
			delete(o.Set.Export, name)
			changed = true
		}
	}
	o.exported = values
	if changed {
		o.changed()
	}
}

// changed takes note that a check line has changed a setting.
func (o *observer) changed() {
	o.fold.update(o.Set)
	o.Pool.SetVars(o.Set.WorkerVars())
}

// Variables takes over what files of the site left in bash.
func (o *observer) Variables(vars []run.ShellVar) {
	seen := map[string]bool{}
	for _, v := range vars {
		seen[v.Name] = true
		if old, ok := o.Set.Lookup(v.Name); !ok || old != v.Value || v.Export && !o.Set.Export[v.Name] {
			o.Set.Put(v.Name, v.Value, v.Export)
		}
	}
	for name := range o.Set.Vars {
		if !seen[name] {
			delete(o.Set.Vars, name)
		}
	}
	o.changed()
}

// Functions takes note of the checks that scripts of the site define themselves.
func (o *observer) Functions(names []string) {
	o.overrides = map[string]bool{}
	for _, name := range names {
		o.overrides[name] = true
	}
}

// Array takes over an array that files of the site left in bash, or one of
// mcheck's after a line.
func (o *observer) Array(name string, values []string) {
	if slices.Equal(o.Set.Arrays[name], values) {
		return
	}
	o.Set.Arrays[name] = values
	o.Pool.SetVars(o.Set.WorkerVars())
}
