package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// printPlan prints the bound plan: position, lane, kind, deadline, line. What
// is wrong stands below its line behind !!, every error at once, and makes the
// exit status 1; what is hardly meant stands there behind ??.
func printPlan(o *options, exit *int) error {
	r, from, err := forPeople(o, reportOptions{})
	if err != nil {
		return err
	}
	defer r.close()
	fmt.Fprintf(console.Screen, "# %s, for %s; TIMEOUT %s\n", from, r.Set.Get("HOSTNAME"), r.Set.Get("TIMEOUT"))
	if context := r.context(); context != "" {
		fmt.Fprintf(console.Screen, "# as %s, within %s\n", context, r.timeout())
	}
	if r.settings != "" {
		fmt.Fprintln(console.Screen, "# settings of", r.settings, "win over the command line")
	}
	if r.Set.Get("SHELL") == setting.NoAction {
		fmt.Fprintln(console.Screen, "# SHELL=:, so no check carries out an action")
	}
	if r.others > 0 {
		fmt.Fprintf(console.Screen, "# %d of %d lines are for other hosts\n", r.others, r.others+len(r.vetted))
	}
	for _, line := range r.scriptLines() {
		fmt.Fprintln(console.Screen, "#", line)
	}
	r.Pool.SetVars(r.Set.WorkerVars())
	r.PrepareChecks(r.plan)
	for _, row := range append(r.PlatformRows(), r.SlurmRows()...) {
		fmt.Fprintf(console.Screen, "# %s: %s\n", row.Name, row.Message)
	}
	w := tabwriter.NewWriter(console.Screen, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "POSITION\tLANE\tKIND\tDEADLINE\tSTEP")
	wrong := len(r.doubts)
	for i := range r.plan.Steps {
		s := &r.plan.Steps[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", s.Pos, lane(s), kind(s), deadline(s), stepText(s))
		switch text, sure := r.mistake(s); {
		case text == "":
		case sure:
			wrong++
			fmt.Fprintf(w, "\t\t\t\t!! %s\n", text)
		default:
			fmt.Fprintf(w, "\t\t\t\t?? %s\n", text)
		}
		if text := r.neverRun(s); text != "" {
			fmt.Fprintf(w, "\t\t\t\t?? %s\n", text)
		}
	}
	if err := w.Flush(); errors.Is(err, syscall.EPIPE) { // whoever reads it has seen enough
		return nil
	} else if err != nil {
		return fmt.Errorf("print plan: %w", err)
	}
	for _, left := range r.plan.Left {
		fmt.Fprintf(console.Screen, "# not run here: %s %s: %s\n", left.Pos, left.Text, left.Because)
	}
	if r.plan.NeedsShell() {
		fmt.Fprintln(console.Screen, "# lines of kind shell run in order in one bash; a native step waits for the shell steps before it")
	}
	for _, text := range r.doubts {
		fmt.Fprintln(console.Screen, "!!", text)
	}
	if r.unloaded != nil {
		wrong++
	}
	if wrong > 0 {
		fmt.Fprintf(console.Alerts, "nhc-gpu: %s, marked with !! above\n", counted(wrong, "error"))
		*exit = 1
	}
	return nil
}

// scriptLines says which scripts of the site are read, and which are not.
func (r *oneRun) scriptLines() (lines []string) {
	var stock []string
	for _, s := range r.scripts {
		switch {
		case s.Stock:
			stock = append(stock, filepath.Base(s.Path))
		case len(s.Functions) > 0:
			lines = append(lines, "reads "+s.Path+", which defines "+strings.Join(s.Functions, ", "))
		default:
			lines = append(lines, "reads "+s.Path)
		}
	}
	if len(stock) > 0 {
		lines = append(lines, "skips LBNL NHC's own "+strings.Join(stock, ", ")+" in "+r.Set.Get("INCDIR")+": these checks are built in")
	}
	if r.unloaded != nil {
		return append(lines, "!! scripts are not used: "+r.unloaded.Error())
	}
	for _, d := range run.DroppedFunctions(r.scripts) {
		lines = append(lines, fmt.Sprintf("drops %s of %s: %s", d.Function, d.From, droppedWhy(d)))
	}
	for _, s := range r.scripts {
		if s.Altered {
			lines = append(lines, alteredText(s))
		}
	}
	return append(lines, r.lackedCalls()...)
}

// droppedWhy says why a function of a script is not used.
func droppedWhy(d run.Dropped) string {
	if d.By.Stock {
		return "LBNL NHC's own " + filepath.Base(d.By.Path) + ", which bash reads later, defines it, too; the built-in check is used"
	}
	return d.By.Path + ", which bash reads later, defines it, too"
}

// alteredText says that a file has only the name of one of LBNL NHC's.
func alteredText(s run.Script) string {
	return s.Path + " differs from LBNL NHC's file of each known version: its functions are used, not the built-in ones"
}

func lane(s *plan.Step) string {
	if s.Kind == plan.Assign {
		return "-"
	}
	return string(s.Lane)
}

func kind(s *plan.Step) string {
	k := s.Kind.String()
	if s.Barrier && s.Kind == plan.Native {
		k += ", alone"
	}
	return k
}

func deadline(s *plan.Step) string {
	switch {
	case s.Kind == plan.Assign:
		return "-"
	case s.Timeout == 0:
		return "the run's"
	}
	return s.Timeout.String()
}

func stepText(s *plan.Step) string {
	switch {
	case s.Kind == plan.ShellLine:
		return s.Text + "   # " + s.Why
	case len(s.Table) > 0:
		return s.Name + " " + tableText(s)
	case s.Kind == plan.Native:
		words := []string{s.Name}
		for _, a := range s.Args {
			words = append(words, conf.Quote(a))
		}
		return strings.Join(words, " ")
	}
	return s.Text
}
