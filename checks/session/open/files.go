// Package open turns the files of a configuration into a plan, for the runs that slurmd starts
// and for a user's commands.
package open

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Files holds the configuration of a run, from the settings of the site to the plan. slurmd's
// runs and a user's commands both use it.
type Files struct {
	*node.Node
	Bash *Bash

	Given  []string // the settings that command line options set
	Eval   string   // the line of -e, which replaces the file
	Strict bool     // a user runs it: also report errors that LBNL NHC ignores
	Whole  bool     // plan every check, regardless of its contexts

	limit  time.Duration  // Slurm's time limit of a prolog or an epilog; 0: none
	Events []monitor.Kind // that have woken the run
	NoGPUs string         // why checks of GPUs are skipped; "": they are not
	Own    bool           // the lines are those of nhc-prolog.conf or nhc-epilog.conf

	Paths   session.Paths // resolved paths of the files
	Path    string        // path of nhc.conf, or of the file that replaces it
	Main    run.Outcome   // the content that the worker read there
	Found   []string      // the files that exist
	Doubts  []string      // lines that are not checks, with their positions
	SetPath string        // path of the sysconfig file, if it exists
	SetFile string        // the sysconfig file, if it was read
	Sourced string        // a sysconfig file that only bash can read
	setText []byte        // the content of that file
	lines   []conf.Line   // of nhc.conf, for all hosts
	Others  int           // number of lines for other hosts
	Config  *conf.Config  // nhc.toml; nil if there is none
	Tables  []conf.Entry  // the checks in nhc.toml for this host
	Plan    *plan.Plan
}

// New returns the files of a run; none is read yet.
func New(n *node.Node, b *Bash) *Files {
	events := os.Getenv(monitor.Events)
	if n.Role == slurm.Monitor { // for checks: the settings contain no variable with this prefix
		n.Set.Put(monitor.Events, events, false)
	}
	return &Files{Node: n, Bash: b, Paths: session.Paths{}, Events: monitor.Split(events)}
}

// Ended is the error of a file of the site that ends the run.
type Ended struct{ Status int }

// Error implements error.
func (e *Ended) Error() string { return fmt.Sprintf("the run ends with exit status %d", e.Status) }

// Context returns the context of the run, as named in nhc.toml; "" if it does not
// matter.
func (f *Files) Context() string {
	if f.Whole {
		return ""
	}
	return map[slurm.Role]string{slurm.HealthCheck: conf.HealthCheck, slurm.Prolog: conf.Prolog, slurm.Epilog: conf.Epilog, slurm.Manual: conf.Manual, slurm.Monitor: conf.Monitor}[f.Role]
}

// Allowed returns how long the run may take, 0 for no limit.
func (f *Files) Allowed() time.Duration {
	return session.Asked{
		Timeout: f.Set.Timeout(), Role: f.Config.Role(f.Context()).Budget, Slurm: f.limit, Line: f.Eval != "",
		Job: f.Role.AroundJob(), Check: f.Unattended(), Background: f.Background,
	}.Allowed()
}

// SetBudget sets the end of the run.
func (f *Files) SetBudget() {
	f.Budget.Give(f.Allowed())
	f.Out.Until(f.Budget.End)
	f.Errs.Until(f.Budget.End)
	f.Pool.SetEnd(f.Budget.End)
}

// Timeout returns TIMEOUT, or the timeout of the context, which takes precedence.
func (f *Files) Timeout() time.Duration {
	d := f.Allowed()
	if f.Config.Role(f.Context()).Budget > 0 {
		return d
	}
	t := f.Set.Timeout()
	if d > 0 && t > d { // slurmd would end the run earlier
		return d
	}
	return t
}

// UnderSlurm keeps the run below the time limit in slurm.conf.
func (f *Files) UnderSlurm() {
	f.AskSlurm()
	if f.Set.Slurm == nil {
		return
	}
	limit := f.Set.Slurm.Prolog
	if f.Role == slurm.Epilog {
		limit = f.Set.Slurm.Epilog
	}
	if limit > 0 {
		f.limit = limit
		f.SetBudget()
	}
}

// Build plans the lines of nhc.conf and the tables of nhc.toml for the context of the
// run.
func (f *Files) Build() *plan.Plan {
	functions := f.Bash.overrides
	names := func(l conf.Line) bool { return strings.Contains(l.Check, "JOBUSERS") }
	if len(f.Set.Arrays["JOBUSERS"]) > 0 || slices.ContainsFunc(f.Bash.Vetted, names) {
		functions = maps.Clone(functions)
		if functions == nil {
			functions = map[string]bool{}
		}
		functions[run.UnauthUsers] = true
	}
	opts := plan.Options{
		Vars: f.Set.Vars, Arrays: f.Set.Arrays, Timeout: f.Timeout(), Functions: functions,
		Sourced: f.Sourced != "" || f.Bash.HasScripts(), Trace: f.Bash.trace, InPlace: verdict.InPlace,
		Context: f.Context(), Policies: f.Config, Own: f.Own, NoGPUs: f.NoGPUs, Events: f.Events,
	}
	p := plan.Build(f.Bash.Vetted, opts)
	p.Add(plan.BuildTables(f.Tables, opts))
	return session.AddUnasked(p, opts)
}

// Quiet prevents a user's run from marking the node and from logging.
func (f *Files) Quiet() {
	f.Set.Finalize()
	maps.Copy(f.Set.Vars, map[string]string{"LOGFILE": "-", "MARK_OFFLINE": "0", "NHC_CHECK_ALL": "1", "SILENT": "1", "VERBOSE": "0"})
	f.SetBudget()
}

// Sysconfig reads $SYSCONFIGDIR/$NAME, which takes precedence over the command line.
func (f *Files) Sysconfig() error {
	if f.Distribution != nil && f.Set.Get("SYSCONFIGDIR") == "" { // the command line does not name it
		return f.Distribution
	}
	err := f.readSysconfig()
	f.NameFromSettings()
	if err == nil {
		err = f.readMode()
	}
	if err == nil {
		err = f.Set.WrongChoices()
	}
	return err
}

// usualName is the NAME of the health check. Its MODE applies to every run of the node that sets none
// itself.
const usualName = "nhc"

// takesMode reports whether the run takes MODE from the files of nhc.conf's runs.
func (f *Files) takesMode() bool {
	return f.Set.Get("NAME") != usualName && f.Set.Get(conf.SettingMode) == ""
}

// readMode takes MODE from the sysconfig file of the health check.
func (f *Files) readMode() error {
	if !f.takesMode() {
		return nil
	}
	path := filepath.Join(f.Set.Get("SYSCONFIGDIR"), usualName)
	file, err := f.read(path).File("read " + path)
	if err != nil || file.Missing || !file.Mode.IsRegular() {
		return err
	}
	if err := sound(path, &file); err != nil {
		return err
	}
	mode, err := conf.ModeIn(path, file.Data, f.Set.Lookup)
	if mode != "" {
		f.Set.Put(conf.SettingMode, mode, true)
	}
	return err
}

func (f *Files) readSysconfig() error {
	path := filepath.Join(f.Set.Get("SYSCONFIGDIR"), f.Set.Get("NAME"))
	f.SetPath = path
	file, err := f.read(path).File("read " + path)
	if err != nil {
		return err
	}
	if file.Missing || !file.Mode.IsRegular() {
		return nil
	}
	if err := sound(path, &file); err != nil {
		return err
	}
	f.SetFile = path
	assigns, needShell, err := conf.ParseSysconfig(path, file.Data, f.Set.Lookup)
	switch {
	case err != nil:
		return err
	case needShell:
		f.Sourced, f.setText = path, file.Data
		return f.Bash.source(path, f.Budget.Began.Add(session.Reading))
	}
	f.Set.Assign(assigns)
	return nil
}

// read reads a file by a worker.
func (f *Files) read(path string) run.Outcome {
	return f.Pool.Call(f.Ctx, checks.Local, readRequest(path), f.readingLimit())
}

// readingLimit returns how long reading a file may take. A user's run waits regardless of TIMEOUT.
func (f *Files) readingLimit() time.Duration {
	if f.Strict || f.Whole {
		return session.Reading
	}
	return f.Budget.Reading(time.Now())
}

func readRequest(path string) *wire.Request {
	return &wire.Request{Op: wire.OpRead, Path: path, Line: "read " + path}
}

// Open reads all files except the settings at once, and uses those that are valid. took receives the
// answers to the requests in beside, and returns whether to continue.
func (f *Files) Open(beside []*wire.Request, took func(map[*wire.Request]run.Outcome) (goOn bool)) (errs []error) {
	dir, path := f.Set.Get("INCDIR"), f.Set.Get("CONFFILE")
	list := &wire.Request{Op: wire.OpList, Path: dir, Line: "list " + dir}
	profiles, tables := readRequest(f.Set.ProfilesFile()), readRequest(f.TablesFile())
	reqs := append(slices.Clip(beside), list, profiles)
	main, own, usual := readRequest(path), (*wire.Request)(nil), (*wire.Request)(nil)
	if f.Eval == "" {
		reqs = append(reqs, main, tables)
		if f.takesMode() {
			usual = readRequest(f.Set.Get("CONFDIR") + "/" + usualName + ".toml")
			reqs = append(reqs, usual)
		}
		if own = f.OwnRequest(); own != nil {
			reqs = append(reqs, own)
		}
	}
	out := map[*wire.Request]run.Outcome{}
	f.Pool.Do(f.Ctx, checks.Local, reqs, func(*wire.Request) time.Duration { return f.readingLimit() },
		func(q *wire.Request, o run.Outcome) { out[q] = o })
	if took != nil && !took(out) {
		return nil
	}
	f.noteScripts(out[list])
	if f.Eval == "" {
		errs = appendError(errs, f.useTables(out[tables]))
		if usual != nil {
			errs = appendError(errs, f.useMode(usual.Path, out[usual]))
		}
	}
	errs = appendError(errs, f.useProfiles(out[profiles]))
	if f.Eval != "" {
		return errs
	}
	if own != nil && !Missing(out[own]) {
		path, main, f.Own = own.Path, own, true
		f.Set.Put("CONFFILE", path, f.Set.Export["CONFFILE"])
	}
	f.Path, f.Main = path, out[main]
	for _, q := range []*wire.Request{tables, profiles, main} {
		if file, err := out[q].File(q.Line); err == nil && !file.Missing {
			f.Found = append(f.Found, q.Path)
		}
	}
	return errs
}

// UseEval makes the line of -e the only line. Scripts of the site, read before, do not see it.
func (f *Files) UseEval() {
	f.Bash.Vetted = []conf.Line{{Pos: conf.Pos{File: "-e", Line: 1}, Target: "*", Check: f.Eval}}
}

func appendError(errs []error, err error) []error {
	if err == nil {
		return errs
	}
	return append(errs, err)
}

// Reopen reads another configuration file if a script of the site has set CONFFILE.
func (f *Files) Reopen() (other bool) {
	now := f.Set.Get("CONFFILE")
	if f.Eval != "" || now == f.Path {
		return false
	}
	f.Path, f.Main = now, f.read(now)
	return true
}

// OwnRequest returns a request for nhc-prolog.conf or nhc-epilog.conf, unless the run already uses
// that file.
func (f *Files) OwnRequest() *wire.Request {
	if !f.Role.AroundJob() {
		return nil
	}
	path := session.OwnFile(f.Set.Get("CONFFILE"), f.Context())
	if f.Own = path == "" || slices.Contains(f.Given, "CONFFILE"); f.Own {
		return nil
	}
	return readRequest(path)
}

// TablesFile returns the path of nhc.toml, next to nhc.conf.
func (f *Files) TablesFile() string {
	if named := f.Set.Get("TOMLFILE"); named != "" {
		return named
	}
	return f.Set.Get("CONFDIR") + "/" + f.Set.Get("NAME") + ".toml"
}

// useTables uses nhc.toml. If a setting names the file, it must exist. A file with an error ends
// the run: without its policies a warning would drain nodes.
func (f *Files) useTables(o run.Outcome) error {
	path := f.TablesFile()
	data, there, err := f.ContentOf(path, o, f.Set.Get("TOMLFILE") != "")
	if !there {
		return err
	}
	c, err := conf.ParseTOML(path, data)
	if c != nil {
		err = errors.Join(err, plan.UnknownPolicy(c))
		var unfit error
		f.Tables, unfit = f.ForThisHost(c.Checks)
		err = errors.Join(err, unfit)
	}
	f.Config, f.Guard = c, c.Guards()
	f.Set.Choose(c)
	f.SetBudget()
	return err
}

// useMode takes MODE from nhc.toml for a run of another name whose own files set none.
func (f *Files) useMode(path string, o run.Outcome) error {
	data, there, err := f.ContentOf(path, o, false)
	if !there || !f.takesMode() {
		return err
	}
	c, err := conf.ParseTOML(path, data)
	if c != nil && c.Chosen[conf.SettingMode] != "" {
		f.Set.Put(conf.SettingMode, c.Chosen[conf.SettingMode], true)
	}
	return err
}

// useProfiles uses the site's platform profiles. If a setting names the file, it must
// exist.
func (f *Files) useProfiles(o run.Outcome) error {
	path := f.Set.ProfilesFile()
	data, there, err := f.ContentOf(path, o, f.Set.Get("PLATFORM_PROFILES") != "")
	if !there {
		return err
	}
	if _, err := conf.ParsePlatforms(path, data); err != nil {
		return err
	}
	f.Set.Profiles, f.Set.ProfilesFrom = data, path
	return nil
}

// noteScripts records the scripts in INCDIR.
func (f *Files) noteScripts(o run.Outcome) {
	dir := f.Set.Get("INCDIR")
	resp, err := o.AnswerTo("list " + dir)
	if f.Bash.Unloaded = err; err == nil {
		f.Bash.Scripts, f.Bash.Unloaded = resp.Scripts, trustScripts(dir, resp.File, resp.Scripts)
	}
}

// trustScripts returns why bash must not read the scripts of a directory, nil if it can. Bash runs
// them as root. If another user could have written one of them, or put one there (a link is enough),
// none is used: one script can define a function that another one calls.
func trustScripts(dir string, info *wire.FileInfo, scripts []wire.Script) error {
	own := func(s wire.Script) bool { return !s.Stock }
	if info != nil && slices.ContainsFunc(scripts, own) {
		if err := Trusted(dir, info); err != nil {
			return err
		}
	}
	for _, s := range scripts {
		if !own(s) || !s.Mode.IsRegular() {
			continue
		}
		if err := Trusted(s.Path, &s.FileInfo); err != nil {
			return err
		}
	}
	return nil
}

// LoadScripts lets bash read the scripts of the site, if there are any. They can set variables,
// redefine checks, or end the run. Around a job they are used only for the lines of
// nhc-prolog.conf and nhc-epilog.conf.
func (f *Files) LoadScripts() error {
	if f.Role.AroundJob() && !f.Own {
		f.SkipScripts()
		return nil
	}
	return f.Bash.load()
}

// SkipScripts only determines which checks the scripts of the site define.
func (f *Files) SkipScripts() { f.Bash.overrides = run.Overrides(f.Bash.Scripts) }

// Missing reports whether the file does not exist.
func Missing(o run.Outcome) bool {
	f, err := o.File("")
	return err == nil && f.Missing
}

// MainFile returns the configuration file.
func (f *Files) MainFile() (run.File, error) { return f.takeFile(f.Path, f.Main) }

// takeFile returns a configuration file that a worker has read.
func (f *Files) takeFile(path string, o run.Outcome) (run.File, error) {
	file, err := o.File("read " + path)
	if err == nil && file.Path != "" {
		f.Paths[path] = file.Path
	}
	return file, err
}

// ContentOf returns the text of a configuration file. The file can be missing unless a setting
// names it.
func (f *Files) ContentOf(path string, o run.Outcome, named bool) (data []byte, there bool, err error) {
	file, err := f.takeFile(path, o)
	switch {
	case err != nil:
		return nil, false, err
	case file.Missing && !named:
		return nil, false, nil
	case file.Missing:
		return nil, false, fmt.Errorf("read %s: no such file", path)
	case !file.Mode.IsRegular():
		return nil, false, fmt.Errorf("read %s: not a regular file (%s)", path, file.Mode.Type())
	}
	err = sound(path, &file)
	return file.Data, err == nil, err
}

// sound rejects the text of a file that was not read whole, or that another user could have written.
func sound(path string, file *run.File) error {
	if file.Size > int64(len(file.Data)) {
		return fmt.Errorf("read %s: %d bytes, want at most %d", path, file.Size, conf.MaxSize)
	}
	return Trusted(path, &file.FileInfo)
}

// Trusted rejects a configuration that another user could have written: the owner must be root or
// the user of this run.
func Trusted(path string, info *wire.FileInfo) error {
	switch {
	case info.Mode.Perm()&0o002 != 0:
		return fmt.Errorf("read %s: writable by others (mode %04o), want at most 0775", path, info.Mode.Perm())
	case info.UID != 0 && int(info.UID) != os.Geteuid():
		return fmt.Errorf("read %s: owned by uid %d, want root", path, info.UID)
	}
	return nil
}
