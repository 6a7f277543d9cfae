package lint

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/open"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// PrintPlan prints the bound plan: position, lane, kind, deadline, line. Below a line stand its
// errors, behind !!, and its warnings, behind ??. An error makes the exit status 1.
func PrintPlan(f *open.Files, from string) (exit int, err error) {
	printHead(f, from)
	f.Pool.SetVars(f.Set.WorkerVars())
	f.PrepareChecks(f.Plan)
	for _, row := range append(f.PlatformRows(), f.SlurmRows()...) {
		fmt.Fprint(console.Screen, console.Fit(fmt.Sprintf("# %s: %s\n", row.Name, row.Message)))
	}
	l := textOf(f)
	wrong, err := l.printSteps(f)
	if errors.Is(err, syscall.EPIPE) { // the reader, such as head, has ended
		return 0, nil
	} else if err != nil {
		return 0, fmt.Errorf("print plan: %w", err)
	}
	if idle := idleHere(f); idle != nil && !l.at(f.Path, 0, warning) && hasScontrol(f) {
		l.add(*idle)
	}
	doubts := l.unmarked(f.Doubts)
	l.printRest(f, doubts)
	wrong += l.count(mistake) + len(doubts)
	if f.Bash.Unloaded != nil {
		wrong++
	}
	if wrong > 0 {
		fmt.Fprintf(console.Alerts, "nhc-gpu: %s, marked with !! above\n", console.Counted(wrong, "error"))
		return 1, nil
	}
	return 0, nil
}

// printHead prints from which files the plan is made, and for which node.
func printHead(f *open.Files, from string) {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s, for %s; TIMEOUT %s\n", from, f.Set.Get("HOSTNAME"), f.Set.Get("TIMEOUT"))
	if context := f.Context(); context != "" {
		fmt.Fprintf(&b, "# as %s, within %s\n", context, f.Timeout().Round(100*time.Millisecond))
	}
	if f.SetFile != "" {
		fmt.Fprintln(&b, "# settings of", f.SetFile, "override the command line")
	}
	if f.Set.Get("SHELL") == setting.NoAction {
		fmt.Fprintln(&b, "# SHELL=:, so no check carries out an action")
	}
	if f.Others > 0 {
		fmt.Fprintf(&b, "# %d of %d lines are for other hosts\n", f.Others, f.Others+len(f.Bash.Vetted))
	}
	for _, line := range scriptLines(f) {
		fmt.Fprintln(&b, "#", line)
	}
	fmt.Fprint(console.Screen, console.Fit(b.String()))
}

// printSteps prints the table of the steps, each with the mistakes of its line. wrong is the number of errors that
// the text of the lines does not show.
func (t *planText) printSteps(f *open.Files) (wrong int, err error) {
	w := tabwriter.NewWriter(console.Screen, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "POSITION\tLANE\tKIND\tDEADLINE\tSTEP")
	for i := range f.Plan.Steps {
		s := &f.Plan.Steps[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", s.Pos, lane(s), kind(s), deadline(s), stepText(s))
		told := t.lines(s.Pos.File, s.Pos.Line, func(text string) { fmt.Fprintf(w, "\t\t\t\t%s\n", text) })
		switch text, sure := wrongWith(f, s); {
		case text == "" || told:
		case sure:
			wrong++
			fmt.Fprintf(w, "\t\t\t\t!! %s\n", text)
		default:
			fmt.Fprintf(w, "\t\t\t\t?? %s\n", text)
		}
		if text := neverRun(f, s); text != "" {
			fmt.Fprintf(w, "\t\t\t\t?? %s\n", text)
		}
	}
	return wrong, w.Flush()
}

// printRest prints the lines without a step, and the mistakes without a line.
func (t *planText) printRest(f *open.Files, doubts []string) {
	for _, s := range f.Plan.Skipped {
		fmt.Fprintf(console.Screen, "# not run here: %s %s: %s\n", s.Pos, s.Text, s.Because)
	}
	if f.Plan.NeedsShell() {
		fmt.Fprintln(console.Screen, "# lines of kind shell run in order in one bash; every other line waits for those before it")
	}
	for _, text := range doubts {
		fmt.Fprintln(console.Screen, "!!", text)
	}
	for i := range t.list {
		if text := &t.list[i]; text.Severity > remark && !t.shown[i] {
			fmt.Fprintf(console.Screen, "%s %s: %s\n", marks[text.Severity], text.place(), text.message())
			if text.Fix != "" {
				fmt.Fprintln(console.Screen, "   fix: "+text.Fix)
			}
		}
	}
}

// marks begin the rows of mistakes in a plan.
var marks = map[grade]string{mistake: "!!", warning: "??"}

// planText has the mistakes in the text of the lines of a plan.
type planText struct {
	findings

	shown map[int]bool // by index: findings printed below their line
}

func textOf(f *open.Files) *planText {
	l := &linter{f: f, o: &Options{}}
	t := &planText{shown: map[int]bool{}}
	if f.Eval != "" {
		lintLines(&t.findings, l.site(), "-e", []byte(strings.ReplaceAll("*||"+f.Eval, `\`, `\\`)))
	} else if file, err := f.MainFile(); err == nil && file.Mode.IsRegular() {
		lintLines(&t.findings, l.site(), f.Path, file.Data)
	}
	t.sort()
	return t
}

// marked reports whether lint has found a mistake in a line.
func (t *planText) marked(file, line string) bool {
	n, _ := strconv.Atoi(line)
	return t.at(file, n, warning)
}

// unmarked returns the doubts about lines in which lint has found no mistake.
func (t *planText) unmarked(doubts []string) []string {
	return slices.DeleteFunc(slices.Clone(doubts), func(text string) bool {
		m := placed().FindStringSubmatch(text)
		return m != nil && t.marked(m[1], m[2])
	})
}

// lines prints the mistakes of one line.
func (t *planText) lines(file string, line int, show func(text string)) (told bool) {
	for i := range t.list {
		f := &t.list[i]
		if f.File != file || f.Line != line || f.Severity == remark {
			continue
		}
		t.shown[i], told = true, true
		show(marks[f.Severity] + " " + f.message())
		if f.Fix != "" {
			show("   fix: " + f.Fix)
		}
	}
	return told
}

// scriptLines returns a row for each script of the site: whether bash reads it.
func scriptLines(f *open.Files) (lines []string) {
	var stock []string
	for _, s := range f.Bash.Scripts {
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
		lines = append(lines, "skips LBNL NHC's own "+strings.Join(stock, ", ")+" in "+f.Set.Get("INCDIR")+": these checks are built in")
	}
	if f.Bash.Unloaded != nil {
		return append(lines, "!! scripts are not used: "+f.Bash.Unloaded.Error())
	}
	for _, d := range run.DroppedFunctions(f.Bash.Scripts) {
		lines = append(lines, fmt.Sprintf("drops %s of %s: %s", d.Function, d.From, droppedWhy(d)))
	}
	for _, s := range f.Bash.Scripts {
		if s.Altered {
			lines = append(lines, alteredText(s))
		}
	}
	return append(lines, lackedCalls(f)...)
}

// droppedWhy returns why a function of a script is not used.
func droppedWhy(d run.Dropped) string {
	if d.By.Stock {
		return "LBNL NHC's own " + filepath.Base(d.By.Path) + ", which bash reads later, defines it too; the built-in check is used"
	}
	return d.By.Path + ", which bash reads later, defines it too"
}

// alteredText reports a file that has the name of one of LBNL NHC's, and other content.
func alteredText(s wire.Script) string {
	return s.Path + " differs from LBNL NHC's file of each known version: its checks are used, not the built-in ones"
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
	return s.Timeout.Round(100 * time.Millisecond).String()
}

func stepText(s *plan.Step) string {
	switch {
	case s.Kind == plan.ShellLine:
		return s.Text + "   # " + s.Why
	case len(s.Table) > 0:
		return s.Name + " " + session.TableText(s)
	case s.Kind == plan.Native:
		words := []string{s.Name}
		for _, a := range s.Args {
			words = append(words, conf.Quote(a))
		}
		return strings.Join(words, " ")
	}
	return s.Text
}
