// Package lint finds mistakes in a configuration before a run meets them, and prints how each
// line is interpreted.
package lint

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/session/open"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Options are those of the command, beside the options of a run.
type Options struct {
	Host  string // as if on this host
	Hosts string // a list of hosts, or a file with one
	JSON  bool
	Diff  bool
	Files []string // instead of the configuration of this node
}

// Command returns the command, without what it does, and its options.
func Command() (*cobra.Command, *Options) {
	cmd, o := &cobra.Command{
		Use:   "lint [options] [FILE...]",
		Short: "List errors in the configuration, and conflicts with Slurm",
		Long: `Reads the configuration of this node, or FILE..., and reports every mistake with its
file, line, column, what the program does with it, and what to write. Of FILE... it
needs no node: no GPU, no Slurm, no root. It runs no check and changes nothing.

Exit status: 0, 1 if there is an error or a warning (with --diff: a change).
/usr/share/doc/nhc-gpu/docs/lint.md has the mistakes, and the fields of --json.`,
		Example: `  nhc-gpu lint                            this node, and Slurm's settings
  nhc-gpu lint nhc.conf nhc.toml          files, as in CI
  nhc-gpu lint --hosts 'gpu[01-16]'       which lines match which hosts
  nhc-gpu lint --diff old.conf new.conf   what changes`,
	}, &Options{}
	f := cmd.Flags()
	f.StringVar(&o.Host, "host", "", "judge targets as on this host")
	f.StringVar(&o.Hosts, "hosts", "", "hosts, 'gpu[01-16],login1', or a file with them")
	f.BoolVar(&o.JSON, "json", false, "print one object of JSON")
	f.BoolVar(&o.Diff, "diff", false, "compare two files or two directories: --diff OLD NEW")
	return cmd, o
}

// Words joins the options with their values, so that a value can be a word of its own, and takes
// the files out: a word of a run has an =.
func (o *Options) Words(words []string) (rest []string) {
	for i := 0; i < len(words); i++ {
		switch w := words[i]; {
		case (w == "--host" || w == "--hosts") && i+1 < len(words):
			rest = append(rest, w+"="+words[i+1])
			i++
		case strings.HasPrefix(w, "-") && len(w) == 2 && strings.Contains("Dcelnt", w[1:]) && i+1 < len(words):
			rest = append(rest, w, words[i+1])
			i++
		case strings.HasPrefix(w, "-") || strings.Contains(w, "="):
			rest = append(rest, w)
		default:
			o.Files = append(o.Files, w)
		}
	}
	return rest
}

// Elsewhere reports whether the options are about other hosts than this one, or about files
// alone.
func (o *Options) Elsewhere() bool { return o.Host != "" || o.Hosts != "" || len(o.Files) > 0 }

// linter goes through the configuration of a node.
type linter struct {
	findings

	o       *Options
	f       *open.Files
	version string
	read    []string          // the files that there were
	texts   map[string][]byte // their contents
	pages   []*page
	runs    []contextOf
	unread  string // why slurm.conf was not compared
	refused bool   // every run refuses the configuration, and checks nothing
	onNode  bool   // this machine is a node of Slurm: it has the programs that lines call

	wired map[slurm.Role]bool   // Slurm starts this program as that
	mute  map[slurm.Role]bool   // no line runs in that role
	long  map[string]*longTests // by file
}

// contextOf is how many checks a run has that slurmd starts.
type contextOf struct {
	Role    string  `json:"role"`
	Checks  int     `json:"checks"`
	NotRun  int     `json:"not_run"`
	Seconds float64 `json:"seconds"`

	why string // checks are not run
}

// site returns what lint knows of the site on this node.
func (l *linter) site() *site {
	s := &site{functions: map[string]bool{}, scripts: l.f.Bash.Unloaded == nil, delims: l.f.Set.Array("NHC_MCHECK_DELIM"), vars: l.f.Set.Vars}
	s.limit = l.limit()
	for _, script := range l.f.Bash.Scripts {
		for _, name := range script.Functions {
			s.functions[name] = s.functions[name] || !script.Stock
		}
		s.scripts = s.scripts && !script.Sources
	}
	for name, own := range s.functions {
		if !own {
			delete(s.functions, name)
		}
	}
	return s
}

// limit returns the value of -t, 0 without -t.
func (l *linter) limit() time.Duration {
	if slices.Contains(l.f.Given, "TIMEOUT") {
		return l.f.Set.Timeout()
	}
	return 0
}

// placed finds the place that a message begins with.
var placed = checks.Lazily(`^(?:read |source )?([^\s:"]*[/.][^\s:"]*|cabling)(?::([0-9]+))?: (.*)$`)

var lineOf = checks.Lazily(`^(?:bash: )?(?:\S+: )?line ([0-9]+): (.*)$`)

// say adds a finding; a place at the beginning of the text becomes that of the finding.
func (l *linter) say(g grade, fix, format string, args ...any) {
	f := finding{Severity: g, Text: fmt.Sprintf(format, args...), Fix: fix}
	if m := placed().FindStringSubmatch(strings.ReplaceAll(f.Text, "\n", "; ")); m != nil {
		f.File, f.Text = m[1], m[3]
		f.Line, _ = strconv.Atoi(m[2])
		if m := lineOf().FindStringSubmatch(f.Text); m != nil && f.Line == 0 { // as bash has it
			f.Line, _ = strconv.Atoi(m[1])
			f.Text = m[2]
		}
		l.locate(&f)
	}
	if f.Line > 0 && g > remark && l.texts[f.File] != nil && l.at(f.File, f.Line, warning) {
		return // the text of the line has shown it, with its column
	}
	if strings.HasPrefix(f.Text, "writable by others") {
		f.Now, f.Fix = fileUnused, "chmod o-w "+f.File
	}
	if strings.HasPrefix(f.Text, "owned by uid") {
		f.Now, f.Fix = fileUnused, "chown root "+f.File
	}
	l.add(f)
}

// quotedWord finds the words of a message that stand in the file.
var quotedWord = checks.Lazily(`"([^"]+)"|key ([\w.]+)|^([\w.]+):|^([\w.]+)`)

// candidates returns the words of a finding that can stand in the file, the likeliest first.
func candidates(f *finding) (list []string) {
	if f.Word != "" {
		list = append(list, f.Word)
	}
	var last []string
	text, _, _ := strings.Cut(f.Text, "want ")
	for _, m := range quotedWord().FindAllStringSubmatch(text, -1) {
		if m[1] != "" || m[2] != "" {
			list = append(list, cmp.Or(m[1], m[2]))
		} else {
			word := cmp.Or(m[3], m[4])
			last = append(last, word, strings.TrimPrefix(word, "check_"))
		}
	}
	return append(list, last...)
}

// locate finds the column of a message in its line.
func (l *linter) locate(f *finding) {
	lines := strings.Split(string(l.texts[f.File]), "\n")
	if f.Line == 0 || f.Line > len(lines) || f.Column > 0 {
		return
	}
	line := lines[f.Line-1]
	if strings.HasPrefix(strings.TrimLeft(line, " \t"), "[[") { // of a table: the key is below
		for _, plain := range candidates(f) {
			word := regexp.QuoteMeta(plain)
			key := regexp.MustCompile(`^\s*(` + word + `)\s*=|=.*"(` + word + `)"|=\s*(` + word + `)\s*(?:#|$)`)
			for n := f.Line; n < len(lines) && !strings.HasPrefix(lines[n], "["); n++ {
				at := key.FindStringSubmatchIndex(lines[n])
				if at == nil {
					continue
				}
				from := max(at[2], at[4], at[6])
				f.Line, f.Column, f.Word = n+1, 1+len([]rune(lines[n][:from])), plain
				return
			}
		}
	}
	for _, word := range candidates(f) {
		if !strings.Contains(word, "/") { // the last part of a key
			word = word[strings.LastIndex(word, ".")+1:]
		}
		if at := strings.Index(line, word); at >= 0 && word != "" {
			f.Column, f.Word = 1+len([]rune(line[:at])), word
			return
		}
	}
	f.Column = 1 + len(line) - len(strings.TrimLeft(line, " \t"))
	if text := strings.Fields(line); len(text) > 0 && f.Word == "" {
		f.Word = text[0]
	}
}

// errors adds each error of a list.
func (l *linter) errors(err error) {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range list.Unwrap() {
			l.errors(err)
		}
		return
	}
	if err != nil {
		l.say(mistake, fixOf(err.Error()), "%v", err)
	}
}

// fixOf returns the text behind "want" in an error.
func fixOf(text string) string {
	if _, want, ok := strings.Cut(text, "want "); ok {
		want, _, _ = strings.Cut(want, "; usage")
		want, _, _ = strings.Cut(want, ", got")
		return want
	}
	if _, near, ok := strings.Cut(text, "did you mean "); ok {
		return strings.TrimSuffix(near, "?")
	}
	return ""
}

// doubts adds the doubts that the files have raised.
func (l *linter) doubts() {
	for _, text := range l.f.Doubts {
		l.say(mistake, "", "%s", text)
	}
	l.f.Doubts = nil
}

// Run reports the mistakes of a configuration. unusable is the error of this node's settings.
func Run(f *open.Files, o *Options, unusable error, version string) (exit int, err error) {
	l := &linter{o: o, f: f, version: version, texts: map[string][]byte{}, wired: map[slurm.Role]bool{}, mute: map[slurm.Role]bool{}, long: map[string]*longTests{}}
	f.Eval, f.Set.Vars["DEBUG"] = "", "0" // it looks at files, and logs nothing of its own work
	if o.Host != "" {
		short, _, _ := strings.Cut(o.Host, ".")
		f.Set.Put("HOSTNAME", o.Host, true)
		f.Set.Put("HOSTNAME_S", short, true)
	}
	switch {
	case o.Diff && len(o.Files) != 2:
		return 0, errors.New("--diff wants two files or directories: OLD NEW")
	case o.Diff:
		return diff(l, console.Screen)
	case len(o.Files) > 0:
		l.files()
	default:
		l.settings(unusable)
		l.refused = unusable != nil
		l.node()
	}
	hosts, err := hostsOf(l)
	if err != nil {
		return 0, err
	}
	on := fit(l, hosts)
	if l.count(mistake)+l.count(warning) > 0 {
		exit = 1
	}
	l.sort()
	if o.JSON {
		return exit, l.printJSON(console.Screen, on)
	}
	return exit, l.print(console.Screen, on)
}

// node judges the configuration of this node.
func (l *linter) node() {
	l.in(slurm.Manual)
	l.onNode = !l.o.Elsewhere() && hasScontrol(l.f)
	errs := l.f.Open(nil, nil)
	l.refused = l.refused || len(errs) > 0
	l.tables()
	for _, err := range errs {
		l.errors(err)
	}
	l.scripts()
	l.misnamed(l.f.Set.Get("CONFDIR"))
	l.contexts()
	l.judgeSiteFiles()
	if !l.o.Elsewhere() {
		l.slurm()
		l.idle()
	}
}

// object is the form of --json; docs/lint.md describes it.
type object struct {
	Version  string      `json:"version"`
	Host     string      `json:"host,omitempty"`
	Files    []string    `json:"files"`
	Runs     []contextOf `json:"runs,omitempty"`
	Findings []finding   `json:"findings"`
	Errors   int         `json:"errors"`
	Warnings int         `json:"warnings"`
	Notes    int         `json:"notes"`
	Lines    []fitting   `json:"lines,omitempty"`
	Unfit    []string    `json:"hosts_without_lines,omitempty"`
}

func (l *linter) printJSON(out io.Writer, fit *fits) error {
	o := object{
		Version: l.version, Files: append([]string{}, l.read...), Runs: l.runs, Findings: append([]finding{}, l.list...),
		Errors: l.count(mistake), Warnings: l.count(warning), Notes: l.count(remark), Lines: fit.lines, Unfit: fit.without,
	}
	if l.o.Host != "" || !l.o.Elsewhere() {
		o.Host = l.f.Set.Get("HOSTNAME")
	}
	text, err := json.MarshalIndent(o, "", "  ")
	if err == nil {
		_, err = out.Write(append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

func (l *linter) print(out io.Writer, fit *fits) error {
	var b strings.Builder
	for i := range l.list {
		fmt.Fprintln(&b, &l.list[i])
	}
	if len(l.list) > 0 {
		fmt.Fprintln(&b)
	}
	fit.print(&b)
	var counts []string
	for g := grades - 1; g >= 0; g-- {
		if n := l.count(g); n > 0 {
			counts = append(counts, console.Counted(n, g.String()))
		}
	}
	for _, r := range l.runs {
		if l.refused {
			fmt.Fprintf(&b, "%s: no check runs, see the error above\n", r.Role)
			continue
		}
		fmt.Fprintf(&b, "%s: %s within %.0f s", r.Role, console.Counted(r.Checks, "check"), r.Seconds)
		if r.NotRun > 0 {
			fmt.Fprintf(&b, ", %d not run%s", r.NotRun, r.why)
		}
		fmt.Fprintln(&b)
	}
	b.WriteString(cmp.Or(strings.Join(counts, ", "), "no mistakes"))
	if len(l.read) > 0 {
		b.WriteString(" in " + strings.Join(l.read, ", "))
	}
	if l.unread != "" {
		fmt.Fprintf(&b, "; not compared with slurm.conf: %s", l.unread)
	}
	fmt.Fprintln(&b)
	if _, err := io.WriteString(out, b.String()); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
