// Package report makes the runs that a person starts, and prints their results as a table or as an
// object of JSON.
package report

import (
	"os"
	"slices"
	"strings"

	"golang.org/x/term"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/session/outputs"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
)

// Options are the options of --check itself.
type Options struct {
	Runs    bool // run the plan; else only show it
	JSON    bool
	Format  string // one of [event.Formats]; "" for a table or JSON
	Redact  bool
	Act     bool // carry out the actions of checks
	NoShell bool // do not run the site's shell lines and scripts
	One     bool // one check is run: the facts about the node are not printed
	Failed  bool // print only results that are not ok
}

// Print runs the plan and prints a table, or one object of JSON.
func Print(o *options.Options, opts Options, version string, exit *int) error {
	r, from, err := Open(o, opts)
	if err != nil {
		return Undone(err)
	}
	defer r.Close()
	r.Judge.Rehearse()
	r.Judge.Prepare()
	t := NewTable(r.Judge, r.Plan)
	t.noShell = opts.NoShell
	if !opts.JSON && opts.Format == "" {
		t.watch = r.Progress()
	}
	err = r.Judge.Engine(t.watch.Hook()).Do(r.Ctx, r.Plan, t)
	defer t.watch.Clear()
	if sig := r.Signals.Caught(); err != nil && sig != 0 {
		*exit = 128 + int(sig)
		return nil
	}
	for _, text := range r.Doubts {
		t.Rows = append(t.Rows, verdict.Row{Severity: checks.Warn, Name: "configuration", Message: text})
	}
	text := "no line of " + from + " is for this host: no check ran"
	if why, none := strings.CutPrefix(from, noCheck); none {
		text, from = "no check ran: "+why, "nothing: "+why
	}
	if len(t.Rows) == 0 {
		t.Rows = append(t.Rows, verdict.Row{Severity: checks.Warn, Name: "configuration", Message: text})
	}
	if opts.One && !opts.JSON && opts.Format == "" {
		from = o.Eval
	}
	out := verdict.Report{Version: version, Node: r.Name, From: from, Rows: t.Rows, ShellLines: t.lines, NoShell: opts.NoShell, Failed: opts.Failed}
	view := verdict.View{Quiet: o.Quiet()}
	if !opts.One && opts.Format == "" && (opts.JSON || !opts.Failed && !view.Quiet) {
		t.watch.Say("reading the facts about this node")
		out.Facts = slices.Concat(r.Facts(), r.PlatformRows(), r.SlurmRows())
	}
	*exit = out.Exit()
	if opts.Redact {
		out.Redact()
	}
	if opts.Format != "" {
		*exit, err = asEvent(r, &out).Write(console.Stdout, opts.Format, event.View{Label: outputs.Label(r.Node), Failed: opts.Failed})
		return Unwritten(err)
	}
	if opts.JSON {
		return Unwritten(out.JSON(os.Stdout))
	}
	if fd := int(os.Stdout.Fd()); term.IsTerminal(fd) {
		view.Width, _, _ = term.GetSize(fd) // 0 if unknown
		view.Coloured = os.Getenv("NO_COLOR") == ""
	}
	t.watch.Clear()
	return Unwritten(out.Table(os.Stdout, view))
}
