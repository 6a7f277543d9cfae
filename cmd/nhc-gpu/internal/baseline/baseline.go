// Package baseline learns what a node reaches in active tests.
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

// What a node reaches when it is well is learned when an operator says so, and at no
// other time: nhc-gpu --baseline runs the active tests of the configuration several
// times over. It drains nobody, and asks slurmctld nothing but what settle does.

// Name is the option that asks for it.
const Name = "baseline"

// The runs that --baseline makes.
const (
	Runs             = "5"
	mostBaselineRuns = 31 // as many samples as are kept
)

// Learn runs the active tests of the configuration as often as text says, and prints
// what is known of the node then.
func Learn(text string, o *options.Options, exit *int) error {
	runs, err := strconv.Atoi(text)
	if err != nil || runs < 0 || runs > mostBaselineRuns {
		return fmt.Errorf("--%s=%s: want the number of runs, up to %d; 0 only shows what was learned", Name, text, mostBaselineRuns)
	}
	r, from, err := report.Open(o, report.Options{})
	if err != nil {
		return err
	}
	defer r.Close()
	if r.Set.Past == "" {
		return fmt.Errorf("--%s: only root can learn what a node reaches: it is kept below %s", Name, node.PastRoot)
	}
	if runs > 0 {
		if onlyActive(r.Plan); !slices.ContainsFunc(r.Plan.Steps, func(s plan.Step) bool { return s.Active }) {
			return report.Unusable{Err: fmt.Errorf("no line of %s for this host is an active test: there is nothing to learn (docs/active.md has examples)", from)}
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

// onlyActive leaves of a plan the active tests, each to be run whatever its last
// result is, and the assignments between them.
func onlyActive(p *plan.Plan) {
	p.Steps = slices.DeleteFunc(p.Steps, func(s plan.Step) bool { return !s.Active && s.Kind != plan.Assign })
	for i := range p.Steps {
		p.Steps[i].Index, p.Steps[i].MaxAge, p.Steps[i].OnlyOld = i, 0, false
	}
}

// learn makes the runs. Each test has its own bound; the run has one only where -t
// gives it.
func learn(r *health.Run, runs int) (exit int) {
	r.Set.Learn = true
	timed := slices.ContainsFunc(r.Opts.Set, func(a options.Assignment) bool { return a.Name == "TIMEOUT" })
	if !timed {
		r.Set.Put("TIMEOUT", "0", true)
	}
	r.SetBudget()
	r.Pool.SetVars(r.Set.WorkerVars())
	r.Records.Settle(r.Plan)
	line := r.Progress()
	said := map[string]bool{}
	for i := range runs {
		if line != nil {
			line.Lead = fmt.Sprintf("run %d of %d", i+1, runs)
		}
		t := report.NewTable(r.Judge)
		began := time.Now()
		err := r.Engine(line.Hook()).Do(r.Ctx, r.Plan, t)
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

// printBaselines prints what was learned: a row for each number.
func printBaselines(out io.Writer, rows []active.BaselineRow) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintln(out, "nothing was learned of this node")
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
		return fmt.Errorf("print what was learned: %w", err)
	}
	return nil
}

// number has about four digits, which is more than any run repeats.
func number(v float64) string {
	switch {
	case v >= 1000:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 3, 64)
}

// sizeText is a number of bytes where it is a round one, and n of matrices else.
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
