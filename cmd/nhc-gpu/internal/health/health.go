// Package health makes a run as LBNL NHC does: it reads, plans, runs, judges and acts.
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
	*open.Files
	Judge *judge.Judge

	Version string // of the program, for the event

	doubt    string // the first unknown result
	unusable bool   // the configuration cannot be used: there is no verdict
}

// New starts a run. argv[0] is the name of the program.
func New(argv []string, opts *options.Options) *Run {
	sig := console.CatchSignals()
	console.Stdout.Until(time.Now().Add(console.AlertsLimit)) // TIMEOUT is not known yet
	n := node.New(sig.Ctx, opts.Role, sig, console.Stdout, console.Stderr)
	r := &Run{argv: argv, Opts: opts, Sig: sig}
	r.Judge, r.Files = judge.New(n, argv[0], opts.Trace, sig.Wake)
	r.Eval = opts.Eval
	for _, a := range opts.Set {
		r.Given = append(r.Given, a.Name)
	}
	return r
}

// Close ends the workers and bash of the run.
func (r *Run) Close() {
	r.Bash.Close()
	r.Log.Close()
	r.Pool.Close()
	r.Sig.Stop()
}

// Busy is the exit status of a run of the monitor that has checked nothing, since another run of the node
// is under way (EX_TEMPFAIL of sysexits.h).
const Busy = 75

// Owes is the exit status of a run of the monitor whose drain could not be delivered (EX_IOERR).
const Owes = 74

// Check makes the whole run and returns the exit status.
func (r *Run) Check() int {
	defer r.Close()
	if !r.takeTurn() {
		if r.Part() {
			return Busy
		}
		return 0
	}
	r.startAhead()
	exit, over := r.load()
	deliver := !over
	if !over {
		r.do()
		exit = r.act()
		run.EndCrashes(r.Pool)
	} else if sig := r.Signals.Caught(); sig != 0 && !r.Role.AroundJob() { // before the first check: there is no verdict
		exit = 128 + int(sig)
	} else {
		if r.unusable {
			r.leavePending()
			deliver = true
		}
		if exit != 0 && r.Role.AroundJob() {
			exit = UncheckedJob(r.Role, exit)
		}
	}
	r.Judge.LeaveResult(exit, r.doubt)
	if deliver {
		r.Judge.Deliver(r.Version, exit, r.unusableText())
	}
	if deliver && r.Role == slurm.HealthCheck && r.Judge.RemedyDue() {
		r.startRemedy()
	}
	for _, err := range r.Pool.Warnings() {
		r.Warn(err)
	}
	switch {
	case r.Part() && r.Owes:
		return Owes
	case r.Log.Unlogged && exit == 0:
		return 1
	}
	return exit
}

// startRemedy starts the program that carries out a remedy, which can take longer than a health check.
// It is no run of slurmd's, and so it waits for none.
func (r *Run) startRemedy() {
	argv := []string{options.OwnName, "remedy"}
	if name := r.Set.Get("NAME"); name != "nhc" || r.Set.ConfigErrorsDrain() { // NAME=nhc asks for LBNL NHC's ways
		argv = append(argv, "NAME="+name)
	}
	argv = append(argv, r.Opts.Words...)
	for _, name := range r.Given { // set by options: -c, -n, ...
		argv = append(argv, name+"="+r.Set.Get(name))
	}
	if err := run.Detach(argv, append(r.Set.Environ(), "SLURM_SCRIPT_CONTEXT="+options.OwnName)); err != nil {
		r.Warn(fmt.Errorf("start the remedy: %w", err))
	}
}

// unusableText returns the error of a configuration that the run could not use, "" for a usable one.
func (r *Run) unusableText() string {
	if r.unusable {
		return r.doubt
	}
	return ""
}

// load does everything before the first check. over means that the run ends
// here.
func (r *Run) load() (exit int, over bool) {
	for _, a := range r.Opts.Set {
		r.Set.Put(a.Name, a.Value, false)
	}
	for _, w := range r.Opts.Words {
		if err := r.Set.Word(w); err != nil {
			if options.IsOwn(r.argv[0]) && !r.Opts.LikeLBNL() {
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
	} else if !r.Role.AroundJob() && !r.Part() { // around a job and after an event the node is to be looked at now
		if exit, over := r.detach(); over {
			return exit, true
		}
	}
	r.Judge.BeginJob()
	if exit, over := r.openAll(); over {
		return exit, true
	}
	r.Judge.Start()
	r.Judge.LoadScripts()
	if r.Eval != "" {
		r.UseEval()
		return 0, false
	}
	r.SetBudget() // a script may have set TIMEOUT
	r.debugWatchdog()
	if !r.Judge.Over() && r.Reopen() {
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
	if r.Judge.Over() { // a script of the site has ended the run
		return
	}
	r.Judge.MakePlan()
	r.rememberLanes(r.Plan.Lanes())
	r.Judge.Prepare()
	r.Judge.RunPlan(r.Progress().Hook())
	for _, err := range r.Pool.Warnings() {
		r.Warn(err)
	}
}

// Progress returns the line of progress of this run; nil with -q, for a run of Slurm or in the
// background, and without a terminal.
func (r *Run) Progress() *console.Progress {
	if slices.Contains(r.Given, "SILENT") || r.Background || r.Role != slurm.Manual {
		return nil
	}
	return console.NewProgress()
}

// act finishes the verdict and returns the exit status. A run without a verdict still delivers a
// drain that an earlier run could not deliver.
func (r *Run) act() int {
	if r.Role.AroundJob() {
		return r.Judge.FinishJob()
	}
	exit, doubt := r.Judge.Finish()
	if doubt == nil {
		return exit
	}
	r.leavePending()
	r.doubt = cmp.Or(r.doubt, *doubt)
	return r.unknown()
}

// takeTurn opens the stored state. Runs of slurmd and of the monitor take the lock of runs: takeTurn returns false if
// another run holds it, and this one must end at once.
func (r *Run) takeTurn() bool {
	lock := ""
	if r.Unattended() {
		lock = node.RunLock
	}
	err := r.OpenState(lock)
	if err != nil && !r.Part() { // the monitor starts that run again
		fmt.Fprintf(console.Stdout, "nhc-gpu: %v; leaving without a verdict\n", err)
	}
	return err == nil
}

// leavePending has a run without a verdict deliver the drain that an earlier run could not
// deliver.
func (r *Run) leavePending() {
	if !r.Role.AroundJob() && r.Eval == "" {
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

// refuse reports a configuration that cannot be used. It drains no node: one wrong file must not
// empty a cluster.
func (r *Run) refuse(err error) int {
	text := "Health check unknown:  " + err.Error()
	fmt.Fprintf(console.Stdout, "ERROR:  %s:  %s\n", r.Set.Get("NAME"), text)
	sink.Syslog(r.Set.Get("NAME"), []string{text})
	r.doubt, r.unusable = err.Error(), true
	return r.unknown()
}

// unknown returns the exit status of a run without a verdict. slurmd drains a node for every
// status of a prolog or an epilog except 0.
func (r *Run) unknown() int {
	if r.Role.AroundJob() {
		return 0
	}
	return verdict.ExitUnknown
}

// withoutLog reports whether the run goes on without its LOGFILE: a prolog or an epilog does, since
// a missing log must neither fail the job nor leave it unchecked.
func (r *Run) withoutLog(spec string, err error) bool {
	if r.Role.AroundJob() {
		r.Warn(r.Log.Drop(r.Set, spec, err))
	}
	return r.Role.AroundJob()
}

// UncheckedJob returns the exit status of a prolog or an epilog that cannot check because of a
// configuration error. For any other status slurmd would drain the node: after a wrong file was
// distributed, every node.
func UncheckedJob(role slurm.Role, exit int) int {
	sink.Syslog(options.OwnName, []string{fmt.Sprintf("Health check unknown:  %s: nothing was checked (exit status %d; 0 for Slurm): see nhc-gpu lint", role, exit)})
	return 0
}

// startAhead starts the workers that the last run with this command line needed.
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
