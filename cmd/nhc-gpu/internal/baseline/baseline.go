// Package baseline records what a healthy node reaches in active tests.
package baseline

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/active"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/health"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/report"
)

// A baseline is recorded only when an operator asks for it: a slowly degrading node would
// otherwise become its own baseline. nhc-gpu --baseline runs the active tests of the
// configuration several times. It drains no node, and its only request to slurmctld is that of
// Records.Settle.

// Name is the option.
const Name = "baseline"

// The number of runs of --baseline.
const (
	Runs             = "5"
	mostBaselineRuns = 31 // the number of samples that are kept
)

// Learn runs the active tests of the configuration text times, and prints the baseline.
func Learn(text string, o *options.Options, exit *int) error {
	runs, err := strconv.Atoi(text)
	if err != nil || runs < 0 || runs > mostBaselineRuns {
		return fmt.Errorf("--%s=%s: want the number of runs, 0 to %d; 0 only shows the baseline", Name, text, mostBaselineRuns)
	}
	r, from, err := report.Open(o, report.Options{})
	if err != nil {
		return err
	}
	defer r.Close()
	if r.Set.Past == "" {
		return fmt.Errorf("--%s: only root can record a baseline: it is kept below %s", Name, node.PastRoot)
	}
	if runs > 0 {
		if onlyActive(r.Plan); !slices.ContainsFunc(r.Plan.Steps, func(s plan.Step) bool { return s.Active }) {
			return report.Unusable{Err: fmt.Errorf("no line of %s for this host is an active test: it has no baseline (/usr/share/doc/nhc-gpu/docs/active.md has examples)", from)}
		}
		if *exit = learn(r, runs); r.Signals.Caught() != 0 {
			return nil
		}
	}
	resp, err := r.Ask(wire.AskBaselines, nil)
	if err != nil {
		return err
	}
	return printBaselines(console.Screen, resp.Baselines)
}

// onlyActive removes all steps but active tests, which run whatever their last result is, and
// assignments.
func onlyActive(p *plan.Plan) {
	p.Steps = slices.DeleteFunc(p.Steps, func(s plan.Step) bool { return !s.Active && s.Kind != plan.Assign })
	for i := range p.Steps {
		p.Steps[i].Index, p.Steps[i].MaxAge, p.Steps[i].OnlyOld = i, 0, false
	}
}

// learn makes the runs. Each test has its own time limit; the run has one only with -t.
func learn(r *health.Run, runs int) (exit int) {
	r.Set.Learn = true
	timed := slices.ContainsFunc(r.Opts.Set, func(a options.Assignment) bool { return a.Name == "TIMEOUT" })
	if !timed {
		r.Set.Put("TIMEOUT", "0", true)
	}
	r.SetBudget()
	r.Pool.SetVars(r.Set.WorkerVars())
	r.Judge.Records.Settle(r.Plan)
	line := r.Progress()
	said := map[string]bool{}
	for i := range runs {
		if line != nil {
			line.Lead = fmt.Sprintf("run %d of %d", i+1, runs)
		}
		t := report.NewTable(r.Judge, r.Plan)
		began := time.Now()
		err := r.Judge.Engine(line.Hook()).Do(r.Ctx, r.Plan, t)
		if sig := r.Signals.Caught(); err != nil && sig != 0 {
			return 128 + int(sig)
		}
		out := verdict.Report{Rows: t.Rows}
		exit = max(exit, out.Exit())
		fmt.Fprintf(console.Stdout, "run %d of %d: %s, %.1fs\n", i+1, runs, worstOf(t.Rows), time.Since(began).Seconds())
		for _, row := range t.Rows {
			if row.Severity != checks.OK && !said[row.Message] {
				said[row.Message] = true
				fmt.Fprintf(console.Stdout, "  %s: %s: %s\n", row.Severity, row.Name, row.Message)
			}
		}
	}
	fmt.Fprintln(console.Stdout)
	return exit
}

func worstOf(rows []verdict.Row) checks.Severity {
	worst := checks.OK
	for _, row := range rows {
		worst = max(worst, row.Severity)
	}
	return worst
}

// printBaselines prints a row for each measured value.
func printBaselines(out io.Writer, rows []active.BaselineRow) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintln(out, "this node has no baseline")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "TEST\tALGORITHM\tSIZE\tRANKS\tDEVICE\tWHAT\tRUNS\tMEDIAN\tMAD\tLIMIT\tUNIT\tDRIVER")
	for i := range rows {
		r := &rows[i]
		size, limit := "-", "-"
		if r.Size > 0 {
			size = sizeText(r.Size)
		}
		switch {
		case r.Uneven:
			limit = "none (too uneven)"
		case r.Samples >= 1 && r.Limit != 0:
			limit = number(r.Limit)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", r.Test, cmp.Or(r.Algorithm, "-"), size, max(r.Ranks, 1), cmp.Or(r.Device.String(), "node"),
			r.What, r.Samples, number(r.Median), number(r.MAD), limit, r.Unit, cmp.Or(r.Driver, "-"))
	}
	if err := w.Flush(); err != nil && !errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("print the baseline: %w", err)
	}
	return nil
}

// number formats a value with about four digits: more do not repeat from run to run.
func number(v float64) string {
	switch {
	case v >= 1000:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 3, 64)
}

// sizeText formats a number of bytes with a unit if it is round; another number is the n of matrices.
func sizeText(n int64) string {
	unit := ""
	for _, next := range []string{"K", "M", "G", "T"} {
		if n < 1<<20 && unit == "" || n%1024 != 0 {
			break
		}
		n, unit = n/1024, next
	}
	return strconv.FormatInt(n, 10) + unit
}
