// Package lint says what is wrong with the configuration of a node, and how each line of it is
// interpreted.
package lint

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks/session/open"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Command is the command, without what it does.
func Command() *cobra.Command {
	return &cobra.Command{
		Use:   "lint [LBNL options]",
		Short: "List errors in the configuration, and conflicts with Slurm",
		Long: `Reads the settings, nhc.conf, nhc-prolog.conf, nhc-epilog.conf, nhc.toml, the profiles
of platforms, the policy for Xids, the scripts, and slurm.conf as slurmctld has it.
Prints each error with its place and the correction. A warning is a probable mistake,
or a setting by which Slurm ends or prevents a run; a remark is information
(docs/jobs.md). Runs no check and changes nothing.

Exit status: 0, 1 if there is an error or a warning.`,
		Example: `  nhc-gpu lint
  nhc-gpu lint -D /root/nhc.new`,
	}
}

// grade is how bad something is.
type grade int

const (
	remark grade = iota
	warning
	mistake
	grades
)

func (g grade) String() string { return [...]string{"remark", "warning", "error"}[g] }

// linter goes through the configuration of a node.
type linter struct {
	f     *open.Files
	read  []string // what there was to read
	found [grades][]linted
	known map[linted]bool

	wired map[slurm.Role]bool   // Slurm starts this program as that
	mute  map[slurm.Role]bool   // it has nothing to check as that: all is left out
	long  map[string]*longTests // by file
}

// linted is something to be said.
type linted struct{ text, fix string }

// say takes note of something, once.
func (l *linter) say(g grade, fix, format string, args ...any) {
	text := strings.TrimSpace(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "))
	if said := (linted{text, fix}); !l.known[said] {
		l.known[said] = true
		l.found[g] = append(l.found[g], said)
	}
}

// errors takes note of errors, each by itself.
func (l *linter) errors(err error) {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range list.Unwrap() {
			l.errors(err)
		}
		return
	}
	if err != nil {
		l.say(mistake, "", "%v", err)
	}
}

// doubts takes note of what the run has doubts about.
func (l *linter) doubts() {
	for _, text := range l.f.Doubts {
		l.say(mistake, "", "%s", text)
	}
	l.f.Doubts = nil
}

// Run says what is wrong with everything. unusable is what is wrong with the settings.
func Run(f *open.Files, unusable error, version string) (exit int, err error) {
	l := &linter{f: f, known: map[linted]bool{}, wired: map[slurm.Role]bool{}, mute: map[slurm.Role]bool{}, long: map[string]*longTests{}}
	l.settings(unusable)
	f.Eval, f.Set.Vars["DEBUG"] = "", "0" // it looks at files, and says nothing of its own work
	l.in(slurm.Manual)
	for _, err := range f.Open(nil, nil) {
		l.errors(err)
	}
	l.scripts()
	l.tables()
	contexts := l.contexts()
	l.xidPolicy()
	l.ibCounters()
	l.cabling()
	l.slurm()
	l.idle()
	if len(l.found[mistake])+len(l.found[warning]) > 0 {
		exit = 1
	}
	return exit, l.print(console.Screen, version, contexts)
}

// byPlace sorts what is said: files as they were read, each by its lines.
func byPlace(said []linted) {
	order := map[string]int{}
	for _, s := range said {
		if file, _ := placeOf(s.text); order[file] == 0 {
			order[file] = 1 + len(order)
		}
	}
	slices.SortStableFunc(said, func(a, b linted) int {
		file, line := placeOf(a.text)
		other, otherLine := placeOf(b.text)
		return cmp.Or(cmp.Compare(order[file], order[other]), cmp.Compare(line, otherLine))
	})
}

// placeOf is the file and the line that a text begins with, as conf.Pos has them.
func placeOf(text string) (file string, line int) {
	place, _, _ := strings.Cut(text, ": ")
	file, number, _ := strings.Cut(place, ":")
	line, err := strconv.Atoi(number)
	if err != nil {
		return text, 0
	}
	return file, line
}

func (l *linter) print(out io.Writer, version string, contexts []string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "nhc-gpu %s on %s has read %s\n", version, l.f.Set.Get("HOSTNAME"), cmp.Or(strings.Join(l.read, ", "), "nothing"))
	for _, text := range contexts {
		fmt.Fprintln(&b, text)
	}
	fmt.Fprintln(&b)
	var counts []string
	for g := grades - 1; g >= 0; g-- {
		byPlace(l.found[g])
		for _, f := range l.found[g] {
			fmt.Fprintf(&b, "%-8s %s\n", g, f.text)
			if f.fix != "" {
				fmt.Fprintf(&b, "         fix: %s\n", f.fix)
			}
		}
		if n := len(l.found[g]); n > 0 {
			counts = append(counts, console.Counted(n, g.String()))
		}
	}
	if counts == nil {
		fmt.Fprintln(&b, "nothing is wrong")
	} else {
		fmt.Fprintf(&b, "\n%s\n", strings.Join(counts, ", "))
	}
	if _, err := io.WriteString(out, b.String()); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
