package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// health is a run as LBNL NHC: load, plan, run, fold, act. err is what is wrong with
// the options. Its result is the exit status.
func health(argv []string, opts *options, err error) int {
	if around := aroundArgs(argv); err != nil && around.AroundJob() {
		fmt.Fprintln(console.Alerts, "nhc-gpu:", err)
		return uncheckedJob(around, exitUsage)
	}
	if err != nil {
		help(argv[0])
		if !errors.As(err, new(*checks.UsageError)) { // on a letter LBNL NHC says no more
			fmt.Fprintln(console.Alerts, "nhc-gpu:", err)
		}
		return exitUsage
	}
	if opts.help {
		help(argv[0])
		return 0
	}
	return newRun(argv, opts).run()
}

// run is all of it, from its start to its exit status.
func (r *oneRun) run() int {
	defer r.close()
	if r.busy() {
		return 0
	}
	r.startAhead()
	exit, over := r.load()
	if !over {
		exit = r.act(r.do())
		r.Pool.EndCrashes()
	} else if sig := r.Signals.Caught(); sig != 0 && r.job == nil { // before the first check: it says nothing of the node
		exit = 128 + int(sig)
	} else {
		if r.unusable {
			r.leavePending()
		}
		if exit != 0 && r.job != nil {
			exit = uncheckedJob(r.Role, exit)
		}
	}
	r.leaveResult(exit)
	for _, err := range r.Pool.Warnings() {
		r.Warn(err)
	}
	if r.Log.Unlogged && exit == 0 {
		return 1
	}
	return exit
}

// oneRun is the state of one run.
type oneRun struct {
	argv []string
	opts *options
	*node.Node

	sig     *console.Signals
	fold    foldState
	shell   *run.Shell
	dressed bool // the shell has been told what was read
	plan    *plan.Plan

	current    *plan.Step // whose turn it is, or was last
	unanswered session.Unanswered
	steps      map[int]*plan.Step // of failures, by their place among all

	exported map[string]string // what the shell exported when it last told

	vetted   []conf.Line // the lines of this host
	others   int         // how many lines are for other hosts
	whole    bool        // every check is planned, whatever its contexts
	strict   bool        // a person has asked: say also what LBNL NHC is silent about
	refused  func(error) // hears in place of the log what cannot be used
	doubts   []string    // lines that are no check, each with its place
	settings string      // the sysconfig file that was read
	sourced  string      // a sysconfig file that only bash can read

	scripts   []run.Script    // the files of INCDIR, LBNL NHC's own among them
	unloaded  error           // why they were not read
	overrides map[string]bool // checks of this program that they define anew

	config *conf.Config // nhc.toml; nil if there is none
	tables []conf.Entry // its checks for this host
	job    *around      // of a prolog or an epilog

	running   []*slurm.Record                     // of the jobs that run here, once
	withSteps []string                            // the jobs that have processes here; nil: nobody has looked
	knowsJobs bool                                // they have been looked for
	xids      map[checks.LogMark][]checks.XidSeen // since some marks

	left     bool          // its result has been written
	doubt    string        // what could not be told, the first of it
	paths    session.Paths // of the files of the configuration
	unusable bool          // the configuration cannot be used, so there is no verdict

	table *tableObserver // collects what would be printed, for --check
	json  bool           // standard output is for one object of JSON
}

func newRun(argv []string, opts *options) *oneRun {
	sig := console.CatchSignals()
	console.Stdout.Until(time.Now().Add(console.AlertsLimit)) // TIMEOUT is not known yet
	r := &oneRun{
		argv: argv, opts: opts, sig: sig, unanswered: session.Unanswered{}, paths: session.Paths{},
		Node: node.New(sig.Ctx, opts.role, sig, console.Stdout, console.Stderr),
	}
	if r.Role.AroundJob() {
		r.job = &around{job: slurm.JobFrom(os.Getenv)}
	}
	return r
}

func (r *oneRun) close() {
	if r.shell != nil {
		r.shell.Close()
	}
	r.Pool.Close()
	r.sig.Stop()
}

// load does everything before the first check. over means that the run ends
// here.
func (r *oneRun) load() (exit int, over bool) {
	for _, a := range r.opts.set {
		r.Set.Put(a.name, a.value, false)
	}
	for _, w := range r.opts.words {
		if err := r.Set.Word(w); err != nil {
			help(r.argv[0])
			if filepath.Base(r.argv[0]) == ownName { // LBNL NHC says no more
				fmt.Fprintln(console.Stderr, "nhc-gpu:", err)
			}
			return exitUsage, true
		}
	}
	r.Set.Preset(r.argv[0])
	for _, d := range r.opts.debug {
		r.Debug("%s", d)
	}
	r.setBudget()
	if exit, over := r.sysconfig(); over {
		return exit, true
	}
	r.Set.Finalize()
	r.session()
	if line := r.Set.Get("EVAL_LINE"); line != "" { // the same as -e
		r.opts.eval = line
	}
	r.setBudget()
	if r.opts.eval != "" {
		r.evalOnly()
	} else if r.job == nil { // around a job the node is to be looked at now
		if exit, over := r.detach(); over {
			return exit, true
		}
	}
	r.aroundJob()
	file, exit, over := r.open()
	if over {
		return exit, true
	}
	r.fold.begin(r.Set, r.opts.eval != "", r.Log.On)
	r.fold.f.Detach = r.Background
	r.emit(r.fold.f.Start())
	path := r.Set.Get("CONFFILE")
	r.loadScripts()
	if r.opts.eval != "" {
		r.vetted = []conf.Line{{Pos: conf.Pos{File: "-e", Line: 1}, Target: "*", Check: r.opts.eval}}
		return 0, false
	}
	r.setBudget() // a script may have set TIMEOUT
	r.debugWatchdog()
	if now := r.Set.Get("CONFFILE"); now != path && !r.fold.f.Over() { // or CONFFILE
		path = now
		o := r.Pool.Call(r.Ctx, checks.Local, &run.Request{Op: run.OpRead, Path: path, Line: "read " + path}, r.Budget.Reading(time.Now()))
		if file, exit, over = r.usable(path, o); over {
			return exit, true
		}
	}
	return r.configuration(path, file)
}

// setBudget sets the end of the run.
func (r *oneRun) setBudget() {
	r.Budget.Give(r.allowed())
	console.Stdout.Until(r.Budget.End)
	console.Stderr.Until(r.Budget.End)
	r.Pool.SetEnd(r.Budget.End)
}

// allowed is how long the run may take, 0 for ever.
func (r *oneRun) allowed() time.Duration {
	asked := session.Asked{
		Timeout: r.Set.Timeout(), Role: r.config.Role(r.context()).Budget, Line: r.opts.eval != "",
		Job: r.job != nil, Check: r.HealthCheck(), Background: r.Background,
	}
	if r.job != nil {
		asked.Slurm = r.job.limit
	}
	return asked.Allowed()
}

// build plans the lines of nhc.conf and the tables of nhc.toml, as far as they are
// for the context of the run.
func (r *oneRun) build() *plan.Plan {
	opts := plan.Options{
		Vars: r.Set.Vars, Timeout: r.timeout(), Functions: r.overrides,
		Sourced: r.sourced != "" || r.hasScripts(), Trace: r.opts.trace, InPlace: verdict.InPlace,
		Context: r.context(), Policies: r.config,
	}
	if r.job != nil {
		opts.Own = r.job.own
		if r.job.job.Share == slurm.NoGPUs {
			opts.NoGPUs = "the job has no GPU"
		}
	}
	p := plan.Build(r.vetted, opts)
	p.Add(plan.BuildTables(r.tables, opts))
	return session.AfterJob(p, opts)
}

// ownCheck reports whether a step is a check that LBNL NHC does not have. With -a the node
// is then marked at the end of the run, for the worst failure; LBNL NHC marks it for the
// first, at once.
func ownCheck(s plan.Step) bool { return s.Kind == plan.Native && !checks.OfLBNL(checkName(s.Name)) }

// do plans and runs.
func (r *oneRun) do() *foldState {
	defer r.Log.Flush()
	if r.fold.f.Over() { // a script of the site has ended the run
		return &r.fold
	}
	if r.shell != nil && r.dressed { // it has judged targets before all lines were known
		if err := r.shell.Set(r.checksText(), r.Budget.End); err != nil {
			r.Warn(err)
		}
	}
	r.plan = r.build()
	r.fold.late = slices.ContainsFunc(r.plan.Steps, ownCheck)
	r.fold.update(r.Set)
	r.rememberLanes(r.plan.Lanes())
	r.Set.Job = r.jobForChecks()
	r.Pool.SetVars(r.Set.WorkerVars())
	r.PrepareChecks(r.plan)
	r.settleRecords()
	e := &run.Engine{Pool: r.Pool, Deadline: r.Budget.End, Timeout: r.timeout, Doing: r.progress().hook()}
	if err := e.Do(r.Ctx, r.plan, &observer{r}); err != nil && !r.fold.f.Over() {
		r.interrupted()
	}
	r.current = nil
	for _, err := range r.Pool.Warnings() {
		r.Warn(err)
	}
	return &r.fold
}
