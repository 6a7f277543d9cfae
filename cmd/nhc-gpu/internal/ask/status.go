package ask

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/session/outputs"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/health"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/report"
	"github.com/nhc-gpu/nhc-gpu/conf/spell"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// statusOptions are the options of status.
type statusOptions struct {
	version string // of the program
	format  string
	codes   []string
	maxAge  time.Duration
	context string
	fleet   bool
}

// Status shows the last run on this node.
func Status(version string, exit *int) *cobra.Command {
	o := statusOptions{version: version}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the last run, who holds the node, and why",
		Long: `Prints the last run on this node from its stored event, without a check: the
verdict and since when it stands, each failure with its remedy, who holds the node
at Slurm, stuck processes, outputs that fail, and the next active tests. A plugin
of Nagios or node-problem-detector that prints the last event asks no driver a
second time. Needs root, except --fleet.

Exit status: 0 ok, 1 warn, 2 fail, 3 unknown, no run yet, or the last run is older
than --max-age; with --format npd 0 healthy, 1 fault, 3 unknown. 10 wrong arguments.`,
		Example: `  nhc-gpu status
  nhc-gpu status --format json
  nhc-gpu status --format npd --code gpu.nvlink --max-age 15m`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, words []string) error {
			if !slices.Contains(report.Formats, o.format) {
				return options.Wrong{Err: fmt.Errorf("option --format=%s: want %s", o.format, spell.OneOf(o.format, report.Formats))}
			}
			if o.context != "" && !slices.Contains(contexts, o.context) {
				return options.Wrong{Err: fmt.Errorf("option --context=%s: want %s", o.context, spell.OneOf(o.context, contexts))}
			}
			if o.fleet {
				return fleetStatus(words, o.format == "json")
			}
			return printStatus(&o, words, exit)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.format, "format", "text", "json, jsonl, nagios, npd, junit, ...")
	f.StringSliceVar(&o.codes, "code", nil, "only codes that begin with one of these: gpu.ecc,gpu.remap")
	f.StringVar(&o.context, "context", "", "healthcheck, prolog, epilog, manual or monitor")
	f.DurationVar(&o.maxAge, "max-age", 0, "an older run counts as unknown: 15m")
	f.BoolVar(&o.fleet, "fleet", false, "all nodes of Slurm that are out of service")
	_ = cmd.RegisterFlagCompletionFunc("context", cobra.FixedCompletions(contexts, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(report.Formats, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// contexts are the contexts of an event.
var contexts = []string{slurm.HealthCheck.String(), slurm.Prolog.String(), slurm.Epilog.String(), slurm.Manual.String(), "monitor"}

// openPast opens a run of a person that reads what earlier runs of the node have kept.
func openPast(command string, words []string) (*health.Run, error) {
	r, rest, err := xidRun(words)
	switch {
	case err != nil:
		return nil, err
	case len(rest) > 0:
		err = options.Wrong{Err: fmt.Errorf("surplus argument %q: want options and NAME=value", rest[0])}
	case r.Bad != nil:
		err = r.Bad
	case r.Set.Past == "":
		err = errors.New(command + ": only root can read what earlier runs have stored")
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	r.Pool.SetVars(r.Set.WorkerVars())
	return r, nil
}

func printStatus(o *statusOptions, words []string, exit *int) error {
	r, err := openPast("status", words)
	if err != nil {
		return err
	}
	defer r.Close()
	list, err := outputs.Last(r.Node)
	if err != nil {
		return err
	}
	if o.context != "" {
		list = slices.DeleteFunc(list, func(e *event.Event) bool { return e.Context != o.context })
	}
	now := time.Now()
	limit := current
	if o.maxAge > 0 {
		limit = min(limit, o.maxAge)
	}
	e := lastOf(list, now, limit, o.version, r)
	if age := now.Sub(e.Time); o.maxAge > 0 && age > o.maxAge {
		e.Verdict = checks.Unknown
		e.Results = []event.Result{{Check: event.Whole, Severity: checks.Unknown, Message: fmt.Sprintf("nhc-gpu:  the last run was %s ago", ago(age))}}
	}
	all := e.Results
	if len(o.codes) > 0 {
		e.Only(o.codes)
	}
	switch o.format {
	case "text":
		var b strings.Builder
		describe(&b, e, all, list[min(1, len(list)):], now)
		describeNode(&b, r)
		fmt.Fprint(console.Screen, console.Fit(b.String()))
		err, *exit = console.Screen.Err(), e.Verdict.ExitStatus()
	case "json":
		out := json.NewEncoder(os.Stdout)
		out.SetIndent("", "  ")
		err, *exit = out.Encode(e), e.Verdict.ExitStatus()
	default:
		*exit, err = e.Write(console.Stdout, o.format, event.View{Label: outputs.Label(r.Node)})
	}
	return report.Unwritten(err)
}

// current is the age up to which a health check speaks for the node, whatever was run by hand since.
const current = 24 * time.Hour

// lastOf returns the event of the last health check, if it is younger than limit, or else the newest one that is not about a
// job, or else the newest one, or else an event that says that there is none. A run of another file does not replace a
// current health check. A fault that the monitor has found since takes precedence. It moves the event to the front.
// The list begins with the newest.
func lastOf(list []*event.Event, now time.Time, limit time.Duration, version string, r *health.Run) *event.Event {
	checked := func(limit time.Duration) int {
		return slices.IndexFunc(list, func(e *event.Event) bool {
			return e.Context == slurm.HealthCheck.String() && now.Sub(e.Time) < limit
		})
	}
	at := checked(limit)
	if at < 0 {
		own := checked(current) >= 0
		at = slices.IndexFunc(list, func(e *event.Event) bool { return !e.AroundJob() && !e.Part && (!own || !e.Other) })
	}
	if fault := slices.IndexFunc(list, func(e *event.Event) bool { return e.Part && e.Verdict == checks.Fail }); fault >= 0 && (at < 0 || !list[at].After(list[fault], now)) {
		at = fault
	}
	if at > 0 {
		e := list[at]
		copy(list[1:at+1], list[:at])
		list[0] = e
	}
	if len(list) > 0 {
		return list[0]
	}
	return &event.Event{Schema: event.Schema, Version: version, Node: r.Name, Context: r.Role.String(), Mode: outputs.Mode(r.Node), Verdict: checks.Unknown, Exit: 3, Results: []event.Result{{
		Check: event.Whole, Severity: checks.Unknown, Message: "nhc-gpu:  no run of this node is stored",
	}}}
}

// ago returns a duration in words, rounded.
func ago(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.0f h", d.Hours())
	}
	return fmt.Sprintf("%.0f days", d.Hours()/24)
}

const clock = "2006-01-02 15:04:05"

// describe prints an event, and one line for each other context. all are the results of the run, also those that
// --code excludes from the event.
func describe(w io.Writer, e *event.Event, all []event.Result, others []*event.Event, now time.Time) {
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "  %-10s %s\n", name, fmt.Sprintf(format, args...))
	}
	head := "node " + e.Node + ": " + e.Verdict.String()
	if !e.Since.IsZero() {
		head += fmt.Sprintf(" since %s (%s)", e.Since.Local().Format(clock), ago(now.Sub(e.Since)))
	}
	fmt.Fprintln(w, head)
	if e.Time.IsZero() {
		row("last run", "none is stored")
		return
	}
	row("last run", "%s, %s (%s ago), %.0f ms, exit status %d", e.Context, e.Time.Local().Format(clock), ago(now.Sub(e.Time)), e.Milliseconds, e.Exit)
	if e.Mode == "observe" {
		row("mode", "observe: no decision is carried out")
	}
	for _, f := range e.Findings() {
		if f.Silenced != nil {
			row("silenced", "%s", strings.TrimSpace(f.Code+" "+shortMessage(f)))
			continue
		}
		row(f.Severity.String(), "%s", strings.TrimSpace(f.Code+" "+shortMessage(f)))
		if do := cmp.Or(f.Do, checks.WhatToDo(f.Code)); do != "" {
			row("", "%s", do)
		}
	}
	if s := e.Slurm; s != nil {
		unread := s.Error != "" && s.Action == "none"
		if !unread || s.Owner != "" {
			row("Slurm", "%s", holder(s))
		}
		switch {
		case unread:
			row("Slurm", "state unknown: %s; the next run asks again", strings.TrimPrefix(s.Error, "read node "+e.Node+": run "))
		case s.Held:
			row("", "%s", s.Why)
			row("to clear", "repair the fault, or drain the node in spite of the guard: nhc-gpu clear --guard")
		case s.Error != "":
			row("", "not delivered: %s; the next run tries again", s.Error)
		case s.Owner == event.OwnerNHC:
			row("to clear", "%s", toClear(e, all))
		case s.Owner == event.OwnerOther:
			row("to clear", "nhc-gpu leaves the node to the person who drained it: scontrol show node %s", e.Node)
		}
	}
	for _, failed := range e.Outputs {
		row("output", "%s failed: %s", failed.Output, failed.Error)
	}
	if e.Evidence != "" {
		row("evidence", "%s", e.Evidence)
	}
	for _, other := range others {
		text := other.Verdict.String()
		if other.Job != "" {
			text += " for job " + other.Job
		}
		row(other.Context, "%s, %s (%s ago)", text, other.Time.Local().Format(clock), ago(now.Sub(other.Time)))
	}
}

// toClear returns how a node returns that nhc-gpu drained. all are the results of the run, also those that are not
// shown.
func toClear(e *event.Event, all []event.Result) string {
	fails := func(f event.Result) bool { return f.Severity == checks.Fail && !f.Drill }
	drills := func(f event.Result) bool { return f.Drill }
	switch {
	case slices.ContainsFunc(e.Results, fails):
		return "repair the fault: nhc-gpu resumes the node when the check passes"
	case slices.ContainsFunc(all, fails):
		f := all[slices.IndexFunc(all, fails)]
		return "repair " + cmp.Or(f.Code, f.Check) + ": nhc-gpu status without --code shows it"
	case e.Drill != nil, slices.ContainsFunc(e.Results, drills):
		return "end the drill: nhc-gpu drill --end; nhc-gpu resumes the node at the next health check"
	}
	return "the last run did not resume the node" + checks.Before(" (", e.Slurm.Why, ")") + ": wait for further runs of that check, or scontrol update NodeName=" + e.Node + " State=RESUME"
}

// shortMessage returns the message without the name of the check.
func shortMessage(r event.Result) string {
	if _, text, ok := strings.Cut(r.Message, ":  "); ok {
		return text
	}
	return r.Message
}

// holder describes who holds the node.
func holder(a *event.Action) string {
	switch {
	case a.Held:
		return "in service; the drain is held by guard: " + a.Reason
	case a.Owner == event.OwnerNHC && a.Reason != "":
		return "drained by nhc-gpu: " + a.Reason
	case a.Owner == event.OwnerNHC:
		return "drained by nhc-gpu"
	case a.Owner == event.OwnerOther:
		return "drained, down or in maintenance, not by nhc-gpu"
	case a.Action == "none" || a.Sent:
		return "in service, as far as the last run knows"
	}
	return "would " + a.Action + ": " + a.Reason
}

// describeNode prints the rehearsal, the stuck processes, the monitor and the next active tests.
func describeNode(w io.Writer, r *health.Run) {
	if d := r.Drill(); d != nil {
		fmt.Fprintf(w, "  %-10s %s, no fault, until %s; nhc-gpu drill --end ends it\n", "drill", d, d.Until().Local().Format(clock))
	}
	for _, p := range r.Pool.Ledger().StuckProcesses() {
		fmt.Fprintf(w, "  %-10s %s: %s, since %s\n", "stuck", p.Step, run.Describe(p.Hung()), p.Since.Local().Format(clock))
	}
	if l, err := monitor.ParseLedger(r.Pool.Monitor()); err == nil && l.PID != 0 {
		state := fmt.Sprintf("runs, PID %d", l.PID)
		if l.Stopped {
			state = "stopped"
		}
		state = cmp.Or(l.Doubt(node.ReadMoment().Uptime), state)
		fmt.Fprintf(w, "  %-10s %s; %s since the boot, %d messages not read\n", "monitor", state, console.Counted(l.Runs, "run"), l.Lost)
	}
	ctx, cancel := context.WithTimeout(r.Ctx, 2*time.Second)
	defer cancel()
	out, err := r.Pool.Exec(ctx, []string{"systemctl", "show", "--value", "-p", "NextElapseUSecRealtime", "nhc-gpu-active.timer"}, r.Set.Environ(), nil) // -P is newer than systemd 239
	if next := strings.TrimSpace(string(out.Stdout)); err == nil && out.Status == 0 && next != "" {
		fmt.Fprintf(w, "  %-10s %s\n", "next tests", next)
	}
}
