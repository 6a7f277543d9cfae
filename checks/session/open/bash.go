package open

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// Bash is the one shell of a run: the settings that it gets, and the settings that its lines change.
type Bash struct {
	n       *node.Node
	program string // the program name of the run
	trace   bool   // -x
	wake    int    // readable when a signal ends the run, -1 for none
	hears   Hearer

	Vetted    []conf.Line     // the lines of this host
	Scripts   []wire.Script   // the files of INCDIR, including LBNL NHC's own
	Unloaded  error           // why the scripts were not read
	overrides map[string]bool // checks that the scripts redefine, or that the shell must run because of them

	shell    *run.Shell
	dressed  bool              // the shell has the settings and lines
	exported map[string]string // the shell's exported variables, as last reported
}

// Hearer receives the messages of the shell. Bash itself handles those about settings.
type Hearer interface {
	run.ShellHandler
	Quit(status int) // a script of the site ended the run
	Changed()        // a line has changed a setting
}

// NewBash returns the bash of a run of program. wake is readable when a signal ends the run; -1
// for none.
func NewBash(n *node.Node, program string, trace bool, wake int, hears Hearer) *Bash {
	return &Bash{n: n, program: program, trace: trace, wake: wake, hears: hears}
}

// HasScripts reports whether the site has scripts besides LBNL NHC's own; checks of this program
// replace those.
func (b *Bash) HasScripts() bool {
	return slices.ContainsFunc(b.Scripts, func(s wire.Script) bool { return !s.Stock })
}

// runs reports whether there is a shell with the settings and lines.
func (b *Bash) runs() bool { return b.shell != nil && b.dressed }

// Need starts the one bash of the run, if it does not run yet. It passes the settings and lines to
// it, and lets it read the site's scripts. A script that dies or exits ends the run.
func (b *Bash) Need(deadline time.Time) error {
	if b.Unloaded != nil {
		return b.Unloaded
	}
	if b.shell == nil {
		if err := b.start(); err != nil {
			return err
		}
	}
	if b.dressed {
		return nil
	}
	if err := b.shell.Set(b.n.Set.ShellText()+b.setupText(), deadline); err != nil {
		return err
	}
	b.dressed = true
	if !b.HasScripts() {
		return nil
	}
	status, exited, err := b.shell.Load(b.Scripts, deadline)
	if err != nil {
		return fmt.Errorf("load scripts of %s: %w", b.n.Set.Get("INCDIR"), err)
	}
	if exited {
		b.hears.Quit(status)
	}
	return nil
}

// start starts bash with the present settings.
func (b *Bash) start() error {
	sh, err := run.StartShell(run.ShellSetup{
		Program: b.program, Init: b.n.Set.ShellText() + "NHC_FD_OUT=1 NHC_FD_ERR=2\n", Env: b.n.Set.Environ(), Trace: b.trace,
	}, b.hears, b.wake)
	if err != nil {
		return err
	}
	b.n.Pool.Guard(sh.Guarded())
	b.shell, b.dressed = sh, false
	return nil
}

// setupText returns the code for bash after the settings are read: LBNL NHC's state variables, all
// check lines, and the redirections of LOGFILE.
func (b *Bash) setupText() string {
	text := b.checksText() + "export NHC_PID=$$ NHC_SID=-$$ NHC_START_TS=0 WATCHDOG_PID=0 LOGGER_TEXT= NHC_FD_OUT NHC_FD_ERR\n"
	if b.n.Budget.Limited() {
		text += "WATCHDOG_PID=$PPID\n"
	}
	text += b.modeText()
	if b.n.Set.Stamps() {
		text += "SECONDS=$TS NHC_START_TS=$TS\n"
	}
	return text + b.n.Log.ShellText()
}

// modeText returns the code for bash that passes the mode of the run to helpers.
func (b *Bash) modeText() string {
	if b.n.Set.Observes() {
		return "export " + node.EnvMode + "=" + conf.Observe + "\n"
	}
	return "unset -v " + node.EnvMode + "\n"
}

// PassMode passes the mode of the run to the shell after a line has set it.
func (b *Bash) PassMode() { b.Assign(b.modeText()) }

func (b *Bash) checksText() string {
	words := make([]string, len(b.Vetted))
	for i, l := range b.Vetted {
		words[i] = setting.Quote(l.Check)
	}
	return "CHECKS=( " + strings.Join(words, " ") + " )\n"
}

// Assign lets the shell run code that sets variables. A shell that does not run yet gets the
// settings when it starts.
func (b *Bash) Assign(text string) {
	if b.shell == nil {
		return
	}
	if err := b.shell.Set(text, b.n.Budget.End); err != nil {
		b.n.Warn(err)
	}
}

// PassLines passes the lines again: targets may have been judged before all lines were known.
func (b *Bash) PassLines() {
	if b.runs() {
		b.Assign(b.checksText())
	}
}

// source lets bash read a sysconfig file that contains more than assignments, and copies every
// variable that bash has afterwards.
func (b *Bash) source(path string, deadline time.Time) error {
	if err := b.start(); err != nil {
		return err
	}
	status, exited, err := b.shell.Source(path, deadline)
	if err != nil {
		b.End()
		return fmt.Errorf("source %s: %w", path, err)
	}
	if exited { // "exit" or a die in the file ends the run with its status
		return &Ended{status}
	}
	return nil
}

// load lets bash read the scripts of the site.
func (b *Bash) load() error {
	if b.Unloaded == nil && !b.HasScripts() {
		return nil
	}
	return b.Need(b.n.Budget.End)
}

// test reports whether a command succeeds.
func (b *Bash) test(command string) bool {
	if err := b.Need(b.n.Budget.End); err != nil {
		b.End()
		b.n.Warn(err)
		return false
	}
	status, err := b.shell.Test(command, b.n.Budget.End)
	if err != nil {
		b.n.Warn(fmt.Errorf("run external matcher %q: %w", command, err))
	}
	return err == nil && status == 0
}

// Helper lets the shell run the site's own helper, see [run.Shell.Helper]. A helper that fails has
// reported that itself. After a signal a new shell runs it, which the signal does not end.
func (b *Bash) Helper(failed *run.Failed, deadline time.Time) error {
	if b.wake >= 0 && b.n.Signals.Caught() != 0 {
		b.End()
		b.wake = -1
	}
	status, err := 0, b.Need(deadline)
	if err == nil {
		b.n.Log.Flush()
		status, err = b.shell.Helper(failed, deadline)
	}
	if err != nil {
		b.End()
		err = fmt.Errorf("run the site's helper: %w", err)
		b.n.Warn(err)
	} else if status != 0 {
		err = fmt.Errorf("run the site's helper: exit status %d", status)
	}
	return err
}

// End kills the shell. The next use starts another one.
func (b *Bash) End() (left []int) {
	if b.shell == nil {
		return nil
	}
	left = b.shell.Kill()
	b.shell = nil
	return left
}

// KillLine kills a line that does not end. If no signal can end it, it returns where the line hangs.
func (b *Bash) KillLine(line string) (why string) {
	left := b.End()
	if len(left) == 0 {
		return ""
	}
	return "It hangs: " + run.Describe(b.n.Pool.AddStuck(left, checks.Shell, line)) + "."
}

// Line runs a line. exited reports that the line ended the shell; the caller must close it.
func (b *Bash) Line(apart bool, index int, text string, deadline time.Time) (status int, exited bool, err error) {
	return b.shell.Line(apart, index, text, deadline)
}

// Pid returns the process ID of the shell.
func (b *Bash) Pid() int { return b.shell.Pid() }

// Close ends an idle shell. The site's trap on EXIT has the time limit of a helper.
func (b *Bash) Close() {
	began := time.Now()
	if b.shell != nil {
		if overdue := b.shell.Close(b.n.Budget.Helping(began)); overdue != "" {
			b.n.Log.Note("%s did not end in %.0f s, and was killed", overdue, time.Since(began).Seconds())
		}
	}
	b.shell = nil
}

// Settings copies the settings after a line.
func (b *Bash) Settings(values map[string]string) {
	changed := false
	for name, v := range values {
		if b.n.Set.Get(name) != v && !notSetting(name, v) {
			b.n.Set.Put(name, v, false)
			changed = true
		}
	}
	if changed {
		b.hears.Changed()
	}
}

// notSetting reports whether a variable of a script only has the name of a setting, such as a local MODE with the
// permissions of a file: it changes no setting.
func notSetting(name, value string) bool {
	return slices.Contains(conf.Chosen, name) && (value == "" || conf.WrongChoice(name, value) != nil)
}

// Environ copies the exported variables of bash. A setting that is exported only when it has a value
// can be unknown to bash; bash reports the variables that it no longer exports.
func (b *Bash) Environ(values map[string]string) {
	set, changed := b.n.Set, false
	for name, v := range values {
		old, ok := set.Lookup(name)
		if !setting.ReadonlyInBash[name] && !notSetting(name, v) && (!ok || old != v || !set.Export[name]) {
			set.Put(name, v, true)
			changed = true
		}
	}
	for name := range b.exported {
		if _, ok := values[name]; !ok && set.Export[name] {
			delete(set.Export, name)
			changed = true
		}
	}
	b.exported = values
	if changed {
		b.hears.Changed()
	}
}

// Variables copies the variables that files of the site set in bash.
func (b *Bash) Variables(vars []run.ShellVar) {
	set, seen := b.n.Set, map[string]bool{}
	for _, v := range vars {
		seen[v.Name] = true
		if b.dressed && notSetting(v.Name, v.Value) { // in sysconfig it is an error
			continue
		}
		if old, ok := set.Lookup(v.Name); !ok || old != v.Value || v.Export && !set.Export[v.Name] {
			set.Put(v.Name, v.Value, v.Export)
		}
	}
	for name := range set.Vars {
		if b.dressed && slices.Contains(conf.Chosen, name) { // a script's own MODE can be unset, or an array
			continue
		}
		if !seen[name] {
			delete(set.Vars, name)
		}
	}
	b.hears.Changed()
}

// Functions records the checks that scripts of the site define.
func (b *Bash) Functions(names []string) {
	b.overrides = map[string]bool{}
	for _, name := range names {
		b.overrides[name] = true
	}
}

// Array copies an array that files of the site set in bash, or one of mcheck's arrays after a
// line.
func (b *Bash) Array(name string, values []string) {
	if slices.Equal(b.n.Set.Arrays[name], values) {
		return
	}
	b.n.Set.Arrays[name] = values
	b.n.Pool.SetVars(b.n.Set.WorkerVars())
}
