// Package health is a run as LBNL NHC: it reads, plans, runs, judges and acts.
package health

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/session/judge"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/session/open"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Run is one run.
type Run struct {
	argv []string
	Opts *options.Options
	Sig  *console.Signals
	*judge.Judge

	doubt    string // what could not be told, the first of it
	unusable bool   // the configuration cannot be used, so there is no verdict
}

// New starts a run of a program that is called argv[0].
func New(argv []string, opts *options.Options) *Run {
	sig := console.CatchSignals()
	console.Stdout.Until(time.Now().Add(console.AlertsLimit)) // TIMEOUT is not known yet
	n := node.New(sig.Ctx, opts.Role, sig, console.Stdout, console.Stderr)
	r := &Run{argv: argv, Opts: opts, Sig: sig, Judge: judge.New(n, argv[0], opts.Trace, sig.Wake)}
	r.Eval = opts.Eval
	for _, a := range opts.Set {
		r.Given = append(r.Given, a.Name)
	}
	return r
}

// Close ends what the run has started.
func (r *Run) Close() {
	r.Bash.Close()
	r.Pool.Close()
	r.Sig.Stop()
}

// Check is all of it: load, plan, run, fold, act. Its result is the exit status.
func (r *Run) Check() int {
	defer r.Close()
	if r.busy() {
		return 0
	}
	r.startAhead()
	exit, over := r.load()
	if !over {
		r.do()
		exit = r.act()
		run.EndCrashes(r.Pool)
	} else if sig := r.Signals.Caught(); sig != 0 && r.Job == nil { // before the first check: it says nothing of the node
		exit = 128 + int(sig)
	} else {
		if r.unusable {
			r.leavePending()
		}
		if exit != 0 && r.Job != nil {
			exit = UncheckedJob(r.Role, exit)
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

// load does everything before the first check. over means that the run ends
// here.
func (r *Run) load() (exit int, over bool) {
	for _, a := range r.Opts.Set {
		r.Set.Put(a.Name, a.Value, false)
	}
	for _, w := range r.Opts.Words {
		if err := r.Set.Word(w); err != nil {
			if options.IsOwn(r.argv[0]) {
				options.Refuse(options.OwnName, err)
			} else { // LBNL NHC prints no more than that
				options.Help(r.argv[0])
			}
			return options.ExitUsage, true
		}
	}
	r.Set.Preset(r.argv[0])
	for _, d := range r.Opts.Debug {
		r.Debug("%s", d)
	}
	r.SetBudget()
	if err := r.Sysconfig(); err != nil {
		return r.Stop(err), true
	}
	r.Set.Finalize()
	r.leadSession()
	if line := r.Set.Get("EVAL_LINE"); line != "" { // the same as -e
		r.Eval = line
	}
	r.SetBudget()
	if r.Eval != "" { // one line: no log, no marking, no watchdog
		r.Set.Vars["LOGFILE"] = "-"
		r.Set.MarkNothing()
	} else if r.Job == nil { // around a job the node is to be looked at now
		if exit, over := r.detach(); over {
			return exit, true
		}
	}
	r.BeginJob()
	if exit, over := r.openAll(); over {
		return exit, true
	}
	r.SetUp(r.Eval != "", r.Log.On)
	r.Fold.Detach = r.Background
	r.Emit(r.Fold.Start())
	r.LoadScripts()
	if r.Eval != "" {
		r.UseEval()
		return 0, false
	}
	r.SetBudget() // a script may have set TIMEOUT
	r.debugWatchdog()
	if !r.Fold.Over() && r.Reopen() {
		if exit, over := r.usable(); over {
			return exit, true
		}
	}
	if errs := r.ReadLines(); len(errs) > 0 {
		return r.Stop(errs[0]), true
	}
	return 0, false
}

// do plans and runs.
func (r *Run) do() {
	defer r.Log.Flush()
	if r.Fold.Over() { // a script of the site has ended the run
		return
	}
	r.MakePlan()
	r.rememberLanes(r.Plan.Lanes())
	r.Prepare()
	r.RunPlan(r.Progress().Hook())
	for _, err := range r.Pool.Warnings() {
		r.Warn(err)
	}
}

// Progress is for the engine of this run; nil where nobody watches: -q, or a run that Slurm has
// started or that is detached, and no terminal.
func (r *Run) Progress() *console.Progress {
	if slices.Contains(r.Given, "SILENT") || r.Background || r.Role != slurm.Manual {
		return nil
	}
	return console.NewProgress()
}

// act finishes the verdict and gives the exit status. A run that came to no
// verdict still delivers what an earlier one had to leave pending.
func (r *Run) act() int {
	if r.Job != nil {
		return r.FinishJob()
	}
	exit, doubt := r.Finish()
	if doubt == nil {
		return exit
	}
	r.leavePending()
	r.doubt = cmp.Or(r.doubt, *doubt)
	return r.unknown()
}

// busy tells whether this run has to give way: a second health check of slurmd
// on a node where the first is still at work. Nothing else ever gives way, so only a
// health check takes the lock.
func (r *Run) busy() bool {
	lock := ""
	if r.HealthCheck() {
		lock = node.RunLock
	}
	if err := r.OpenState(lock); err != nil {
		fmt.Fprintf(console.Stdout, "nhc-gpu: %v; leaving without a verdict\n", err)
		return true
	}
	return false
}

// leavePending has a run that has no verdict of its own deliver the drain that an earlier
// one could not.
func (r *Run) leavePending() {
	if r.Job == nil && r.Eval == "" {
		r.DeliverPending()
		r.Log.Flush()
	}
}

// Stop returns the exit status of a run whose files cannot be used.
func (r *Run) Stop(err error) int {
	var end *open.Ended
	switch {
	case errors.As(err, &end):
		return end.Status
	case errors.Is(err, match.ErrExpansion): // where bash gives up, too
		fmt.Fprintln(console.Stderr, "nhc-gpu:", err)
		return 1
	}
	return r.refuse(err)
}

// refuse reports a configuration that cannot be used. It drains nobody: one bad
// push must not empty a cluster.
func (r *Run) refuse(err error) int {
	text := "Health check unknown:  " + err.Error()
	fmt.Fprintf(console.Stdout, "ERROR:  %s:  %s\n", r.Set.Get("NAME"), text)
	sink.Syslog(r.Set.Get("NAME"), []string{text})
	r.doubt, r.unusable = err.Error(), true
	return r.unknown()
}

// unknown is the exit status of a run that could not tell. slurmd drains a node
// for whatever else than 0 a prolog or an epilog leaves with.
func (r *Run) unknown() int {
	if r.Role.AroundJob() {
		return 0
	}
	return verdict.ExitUnknown
}

// withoutLog says whether the run goes on without its LOGFILE: around a job it does,
// for the job is not to pay for it, and is not to start unchecked.
func (r *Run) withoutLog(spec string, err error) bool {
	if r.Job != nil {
		r.Warn(r.Log.Drop(r.Set, spec, err))
	}
	return r.Job != nil
}

// UncheckedJob is the exit status of a prolog or an epilog that cannot be used as
// it is set up, and would leave with another: slurmd would drain the node for it, and
// after a bad push each node.
func UncheckedJob(role slurm.Role, exit int) int {
	sink.Syslog(options.OwnName, []string{fmt.Sprintf("Health check unknown:  %s: nothing was checked (exit status %d; 0 for Slurm): see nhc-gpu lint", role, exit)})
	return 0
}

// startAhead starts the workers that the run before this one has needed, with the same
// command line.
func (r *Run) startAhead() {
	if r.Eval == "" {
		r.Pool.StartAsBefore(r.argv)
	}
}

func (r *Run) rememberLanes(lanes []checks.Lane) {
	if r.Eval == "" {
		r.Pool.RememberLanes(r.Kind(), r.argv, lanes)
	}
}
