package main

import (
	"context"
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
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
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
		r.pool.EndCrashes()
	} else if sig := r.sig.Caught(); sig != 0 && r.job == nil { // before the first check: it says nothing of the node
		exit = 128 + int(sig)
	} else {
		if r.unusable {
			r.deliverPending()
		}
		if exit != 0 && r.job != nil {
			exit = uncheckedJob(r.node.role, exit)
		}
	}
	r.leaveResult(exit)
	for _, err := range r.pool.Warnings() {
		r.warn(err)
	}
	if r.log.Unlogged && exit == 0 {
		return 1
	}
	return exit
}

// oneRun is the state of one run.
type oneRun struct {
	argv []string
	opts *options
	set  *setting.Settings
	node node // what Slurm calls this node, and why it started us

	ctx     context.Context
	pool    *run.Pool
	sig     *console.Signals
	fold    foldState
	log     *sink.Log
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
	budget   session.Budget

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

	background bool   // this is the detached half of a run
	left       bool   // its result has been written
	doubt      string // what could not be told, the first of it
	warned     map[string]bool
	paths      session.Paths // of the files of the configuration
	unusable   bool          // the configuration cannot be used, so there is no verdict

	unnamed    bool  // slurm.conf has no node that is this host
	slurmAsked bool  // Slurm's configuration has been looked for
	slurmDoubt error // why it could not be read

	table *tableObserver // collects what would be printed, for --check
	json  bool           // standard output is for one object of JSON
}

func newRun(argv []string, opts *options) *oneRun {
	r := &oneRun{argv: argv, opts: opts, budget: session.Budget{Began: time.Now()}, unanswered: session.Unanswered{}, paths: session.Paths{}}
	r.node = nodeFromEnviron(os.Getenv, opts.role)
	if r.node.role.AroundJob() {
		r.job = &around{job: slurm.JobFrom(os.Getenv)}
	}
	r.set = setting.New(os.Environ(), r.node.role.AroundJob())
	r.set.Past, r.set.Spare = r.node.past()
	r.set.Periodic = r.node.healthCheck()
	r.sig = console.CatchSignals()
	r.ctx = r.sig.Ctx
	console.Stdout.Until(time.Now().Add(console.AlertsLimit)) // TIMEOUT is not known yet
	r.pool = run.NewPool(run.Options{Root: "/", Env: r.set.Environ()})
	r.log = &sink.Log{Pool: r.pool, Out: console.Stdout, Err: console.Stderr}
	// The worker comes up while the rest of this is read.
	if err := r.pool.Start(checks.Local); err != nil {
		r.warn(err)
	}
	return r
}

// warn is for what went wrong beside the checks: one line on stderr, once.
func (r *oneRun) warn(err error) {
	if r.warned[err.Error()] {
		return
	}
	if r.warned == nil {
		r.warned = map[string]bool{}
	}
	r.warned[err.Error()] = true
	fmt.Fprintln(console.Stderr, "nhc-gpu: warning:", err)
}

func (r *oneRun) close() {
	if r.shell != nil {
		r.shell.Close()
	}
	r.pool.Close()
	r.sig.Stop()
}

// load does everything before the first check. over means that the run ends
// here.
func (r *oneRun) load() (exit int, over bool) {
	for _, a := range r.opts.set {
		r.set.Put(a.name, a.value, false)
	}
	for _, w := range r.opts.words {
		if err := r.set.Word(w); err != nil {
			help(r.argv[0])
			if filepath.Base(r.argv[0]) == ownName { // LBNL NHC says no more
				fmt.Fprintln(console.Stderr, "nhc-gpu:", err)
			}
			return exitUsage, true
		}
	}
	r.set.Preset(r.argv[0])
	for _, d := range r.opts.debug {
		r.debug("%s", d)
	}
	r.setBudget()
	if exit, over := r.sysconfig(); over {
		return exit, true
	}
	r.set.Finalize()
	r.session()
	if line := r.set.Get("EVAL_LINE"); line != "" { // the same as -e
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
	r.fold.begin(r.set, r.opts.eval != "", r.log.On)
	r.fold.f.Detach = r.background
	r.emit(r.fold.f.Start())
	path := r.set.Get("CONFFILE")
	r.loadScripts()
	if r.opts.eval != "" {
		r.vetted = []conf.Line{{Pos: conf.Pos{File: "-e", Line: 1}, Target: "*", Check: r.opts.eval}}
		return 0, false
	}
	r.setBudget() // a script may have set TIMEOUT
	r.debugWatchdog()
	if now := r.set.Get("CONFFILE"); now != path && !r.fold.f.Over() { // or CONFFILE
		path = now
		o := r.pool.Call(r.ctx, checks.Local, &run.Request{Op: run.OpRead, Path: path, Line: "read " + path}, r.budget.Reading(time.Now()))
		if file, exit, over = r.usable(path, o); over {
			return exit, true
		}
	}
	return r.configuration(path, file)
}

// setBudget sets the end of the run.
func (r *oneRun) setBudget() {
	r.budget.Give(r.allowed())
	console.Stdout.Until(r.budget.End)
	console.Stderr.Until(r.budget.End)
	r.pool.SetEnd(r.budget.End)
}

// allowed is how long the run may take, 0 for ever.
func (r *oneRun) allowed() time.Duration {
	asked := session.Asked{
		Timeout: r.set.Timeout(), Role: r.config.Role(r.context()).Budget, Line: r.opts.eval != "",
		Job: r.job != nil, Check: r.node.healthCheck(), Background: r.background,
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
		Vars: r.set.Vars, Timeout: r.timeout(), Functions: r.overrides,
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
	defer r.log.Flush()
	if r.fold.f.Over() { // a script of the site has ended the run
		return &r.fold
	}
	if r.shell != nil && r.dressed { // it has judged targets before all lines were known
		if err := r.shell.Set(r.checksText(), r.budget.End); err != nil {
			r.warn(err)
		}
	}
	r.plan = r.build()
	r.fold.late = slices.ContainsFunc(r.plan.Steps, ownCheck)
	r.fold.update(r.set)
	r.rememberLanes(r.plan.Lanes())
	r.set.Job = r.jobForChecks()
	r.pool.SetVars(r.set.WorkerVars())
	r.prepareChecks(r.plan)
	r.settleRecords()
	e := &run.Engine{Pool: r.pool, Deadline: r.budget.End, Timeout: r.timeout, Doing: r.progress().hook()}
	if err := e.Do(r.ctx, r.plan, &observer{r}); err != nil && !r.fold.f.Over() {
		r.interrupted()
	}
	r.current = nil
	for _, err := range r.pool.Warnings() {
		r.warn(err)
	}
	return &r.fold
}
