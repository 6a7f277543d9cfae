package main

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/fabric"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/genconf"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// generateConf makes the run of nhc-genconf and returns its exit status.
func generateConf(words []string) int {
	a, err := genconf.Parse(words)
	switch {
	case err != nil:
		return exitUsage
	case a == nil: // the help
		return 0
	}
	r := newRun([]string{ownName}, new(options))
	_ = r.OpenState("")
	r.Set.Hold, r.Set.Past, r.Set.Spare = true, "", "" // a trial of a line changes nothing, and keeps nothing
	defer r.close()
	exit := 0
	if err = r.settleFor(a); err == nil {
		r.Pool.SetVars(r.Set.WorkerVars())
		exit, err = genconf.Generate(a, genconf.Node{
			Pool: r.Pool, Signals: r.sig, Budget: r.Budget, Version: version, Timeout: r.Set.Timeout(), Get: r.Set.Get, Try: r.try,
		})
	}
	if err != nil {
		fmt.Fprintf(console.Stderr, "%s: %v\n", a.Program, err)
		return exitUsage
	}
	return exit
}

// settleFor takes over the settings of the command line, and gives what is still unset its
// default.
func (r *oneRun) settleFor(a *genconf.Arguments) error {
	r.Set.Assign(a.Set)
	for _, w := range a.Words {
		if err := r.Set.Word(w); err != nil {
			return err
		}
	}
	r.Set.Preset(a.For)
	dir := cmp.Or(r.Set.Get("CONFDIR"), "/etc/nhc")
	r.Set.Put("CONFFILE", cmp.Or(r.Set.Get("CONFFILE"), filepath.Join(dir, r.Set.Get("NAME")+".conf.auto")), false)
	if m, ok := r.Set.Lookup("DMI_MATCH"); ok {
		a.DMI = m
	}
	r.Set.Finalize()
	r.Budget.Give(genconf.Limit)
	return nil
}

// try runs lines as a run without a configuration file would have them: it marks nothing,
// and logs nothing.
func (r *oneRun) try(lines []conf.Line) map[int]genconf.Trial {
	for name, value := range map[string]string{"LOGFILE": "-", "MARK_OFFLINE": "0", "NHC_CHECK_ALL": "1", "SILENT": "1", "VERBOSE": "0"} {
		r.Set.Put(name, value, false)
	}
	r.vetted = lines
	r.fold.held = true
	r.fold.begin(r.Set, false, false)
	r.plan = plan.Build(lines, plan.Options{Vars: r.Set.Vars, Timeout: r.Set.Timeout()})
	t := &trial{tableObserver: tableObserver{observer: observer{r}, steps: r.plan.Steps}, of: map[int]genconf.Trial{}}
	r.table = &t.tableObserver
	t.changed() // tells the workers
	r.PrepareChecks(r.plan)
	e := &run.Engine{Pool: r.Pool, Deadline: r.Budget.End, Timeout: r.Set.Timeout}
	_ = e.Do(r.Ctx, r.plan, t) // what ended it is a signal, or shows in the steps
	return t.of
}

// trial notes how each step did.
type trial struct {
	tableObserver

	of map[int]genconf.Trial
}

func (t *trial) Native(s *plan.Step, r checks.Result) bool {
	var is genconf.Trial
	for _, f := range r.Findings {
		if f.Severity >= checks.Skip && f.Code != checks.HeldCode { // a check that does not apply here needs no line
			if f.Severity > is.Worst || is.Why == "" {
				is.Why = f.Message
			}
			is.Worst = max(is.Worst, f.Severity)
			is.Early = is.Early || fabric.PortsNotUp(f.Code)
		}
	}
	t.of[s.Index] = is
	return true
}

func (t *trial) Expired(s *plan.Step, _ *checks.Hung) {
	is := t.of[s.Index]
	is.Why = "no answer in time"
	t.of[s.Index] = is
}

// Line runs a line with a word that only bash can read.
func (t *trial) Line(ctx context.Context, s *plan.Step) bool {
	before := len(t.rows)
	more := t.tableObserver.Line(ctx, s)
	var is genconf.Trial
	for _, row := range t.rows[before:] {
		if row.Severity >= checks.Warn {
			is.Why = row.Message
		}
	}
	t.of[s.Index] = is
	return more
}
