package main

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/term"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// forPeople makes a run that marks nothing, logs nowhere and goes on after
// failures. Its plan is the node's configuration, or the embedded default plan.
func forPeople(o *options, opts reportOptions) (*oneRun, string, error) {
	r, err := peopleRun(o)
	if err != nil {
		return nil, "", err
	}
	r.Set.Hold, r.json = !opts.act, opts.json
	if _, over := r.sysconfig(); over {
		r.close()
		return nil, "", unusableError{fmt.Errorf("the settings of %s cannot be used, see above", r.Set.Get("NAME"))}
	}
	given := r.Set.Get("CONFFILE") != "" || r.Set.Get("CONFDIR") != ""
	r.quiet()
	if r.job != nil {
		r.Pool.SetVars(r.Set.WorkerVars())
		r.underSlurm()
	}
	r.peopleScripts(opts.runs && !opts.noShell)
	r.doubtScripts()
	from, err := r.peoplePlan(given)
	if err == nil {
		err = r.useProfiles(r.Pool.Call(r.Ctx, checks.Local, r.profilesRequest(), session.Reading))
	}
	if err != nil {
		r.close()
		return nil, "", unusableError{err}
	}
	return r, from, nil
}

// peopleScripts has bash read the scripts of the site, or, if nothing is to be
// run, only looks which checks they define.
func (r *oneRun) peopleScripts(runs bool) {
	dir := r.Set.Get("INCDIR")
	r.noteScripts(r.Pool.Call(r.Ctx, checks.Local, &run.Request{Op: run.OpList, Path: dir, Line: "list " + dir}, session.Reading))
	if !runs {
		r.overrides = run.Overrides(r.scripts)
		return
	}
	r.table = &tableObserver{observer: observer{r}} // hears what a script dies of
	r.loadScripts()
	for _, f := range r.table.fails {
		r.doubts = append(r.doubts, f.Message)
	}
	if r.fold.f.Over() {
		r.doubts = append(r.doubts, "a script of "+dir+" ends the run before its first check")
	}
	r.table = nil
}

// peoplePlan reads the configuration strictly: for a person a file that is
// missing, or no file at all, is a mistake, where they have named it.
func (r *oneRun) peoplePlan(named bool) (from string, err error) {
	path := r.Set.Get("CONFFILE")
	if r.opts.eval != "" {
		r.vetted = []conf.Line{{Pos: conf.Pos{File: "-e", Line: 1}, Target: "*", Check: r.opts.eval}}
		r.plan = r.build()
		return "-e", nil
	}
	if err := r.useTables(r.Pool.Call(r.Ctx, checks.Local, r.tablesRequest(), session.Reading)); err != nil {
		return "", err
	}
	if own := r.ownRequest(); own != nil {
		o := r.Pool.Call(r.Ctx, checks.Local, own, session.Reading)
		if r.job.own = !missing(o); r.job.own {
			path = own.Path
		}
	}
	file, err := r.opened(path, r.Pool.Call(r.Ctx, checks.Local, &run.Request{Op: run.OpRead, Path: path, Line: "read " + path}, session.Reading))
	switch {
	case err != nil:
		return path, err
	case file.Missing && len(r.tables) > 0:
		r.plan = r.build()
		return r.tablesFile(), nil
	case file.Missing && r.aroundJobs():
		r.plan = r.build()
		return "no check: there is no " + path, nil
	case file.Missing && !named:
		entries, err := conf.Default()
		if err == nil {
			r.tables, err = r.forThisHost(entries)
		}
		r.plan = r.build()
		return "the embedded default plan of --check (there is no " + path + ": as HealthCheckProgram it checks nothing)", err
	case file.Missing:
		return path, fmt.Errorf("read %s: no such file", path)
	case !file.Mode.IsRegular():
		return path, fmt.Errorf("read %s: not a regular file (%s), nothing is checked", path, file.Mode.Type())
	}
	if _, over := r.configuration(path, file); over {
		return path, fmt.Errorf("%s cannot be used, see above", path)
	}
	r.presetHardware(file.Data)
	r.plan = r.build()
	if len(r.tables) > 0 {
		path += " and " + r.tablesFile()
	}
	return path, nil
}

// aroundJobs reports whether the run is that of a prolog or an epilog, which have no
// embedded plan.
func (r *oneRun) aroundJobs() bool {
	return r.context() == conf.Prolog || r.context() == conf.Epilog
}

// reportOptions are the options of --check itself.
type reportOptions struct {
	runs    bool // the plan is run, not only shown
	json    bool
	redact  bool
	act     bool // the checks carry out their actions
	noShell bool // the site's shell lines and scripts are not run
}

// report runs everything and prints a table, or one object of JSON.
func report(o *options, opts reportOptions, exit *int) error {
	r, from, err := forPeople(o, opts)
	if err != nil {
		return err
	}
	defer r.close()
	r.Pool.SetVars(r.Set.WorkerVars())
	r.PrepareChecks(r.plan)
	r.settleRecords()
	t := &tableObserver{observer: observer{r}, steps: r.plan.Steps, noShell: opts.noShell}
	r.table = t
	e := &run.Engine{Pool: r.Pool, Deadline: r.Budget.End, Timeout: r.timeout}
	if !opts.json {
		e.Doing = r.progress().hook()
	}
	err = e.Do(r.Ctx, r.plan, t)
	if sig := r.Signals.Caught(); err != nil && sig != 0 {
		*exit = 128 + int(sig)
		return nil
	}
	for _, text := range r.doubts {
		t.rows = append(t.rows, verdict.Row{Severity: checks.Warn, Name: "configuration", Message: text})
	}
	if len(t.rows) == 0 {
		t.rows = append(t.rows, verdict.Row{Severity: checks.Warn, Name: "configuration", Message: "no line of " + from + " is for this host: nothing was checked"})
	}
	out := verdict.Report{Version: version, Node: r.Set.Get("HOSTNAME"), From: from, Rows: t.rows, ShellLines: t.lines, NoShell: opts.noShell}
	out.Facts = slices.Concat(r.Facts(), r.PlatformRows(), r.SlurmRows())
	*exit = out.Exit()
	if opts.redact {
		out.Redact()
	}
	if opts.json {
		return out.JSON(os.Stdout)
	}
	width, coloured := 0, false
	if fd := int(os.Stdout.Fd()); term.IsTerminal(fd) {
		width, _, _ = term.GetSize(fd) // 0 if it does not say
		coloured = os.Getenv("NO_COLOR") == ""
	}
	out.Table(os.Stdout, width, coloured)
	return nil
}
