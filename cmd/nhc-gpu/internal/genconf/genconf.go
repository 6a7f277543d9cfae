// Package genconf is nhc-genconf: it looks at a node, writes an nhc.conf for it, and tries
// every line of it.
package genconf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// Name is the command of nhc-gpu.
const Name = "genconf"

const (
	optionSpec = ":H:b:c:D:dhn:vx"
	dmiDefault = "/([Ss]peed|[Vv]ersion)/"
	// Limit bounds the whole of genconf: scanning, trying, writing.
	Limit = 2 * time.Minute
)

// Arguments are what the command line asks for.
type Arguments struct {
	Program string        // what it is called in its texts
	For     string        // the program whose configuration is written
	Set     []conf.Assign // by options, in the order given
	Words   []string      // VAR=value
	DMI     string        // match string for the DMI section
}

// Parse reads the command line. words[0] is the name that the program was called by. It
// prints what is wrong, and the help, for which it returns nil.
func Parse(words []string) (*Arguments, error) {
	a := &Arguments{Program: filepath.Base(words[0]), For: "nhc", DMI: dmiDefault}
	if name, ok := strings.CutSuffix(a.Program, "-genconf"); ok && name != "" {
		a.For = name
	}
	if a.Program == Name {
		a.Program = "nhc-gpu " + Name
	}
	set := func(name, value string) { a.Set = append(a.Set, conf.Assign{Name: name, Value: value}) }
	showHelp := false
	rest, err := checks.Getopts(optionSpec, words[1:], func(opt byte, arg string) {
		switch opt {
		case 'H':
			set("HOSTNAME", arg)
		case 'b':
			a.DMI = arg
		case 'c':
			set("CONFFILE", arg)
		case 'D':
			set("CONFDIR", arg)
		case 'd':
			set("DEBUG", "1")
		case 'n':
			set("NAME", arg)
		case 'v':
			set("VERBOSE", "1")
		case 'h':
			showHelp = true
		} // x traces bash, of which there is none
	})
	if showHelp {
		a.help()
		return nil, nil
	}
	if err != nil {
		a.help()
		fmt.Fprintf(console.Stderr, "%s:  ERROR:  %s\n", a.Program, strings.TrimPrefix(console.OptionError(err), ":  "))
		return nil, err
	}
	if a.Words = rest; slices.Contains(rest, "") { // the first empty word ends them
		a.Words = rest[:slices.Index(rest, "")]
	}
	return a, nil
}

// Node is what the generator needs of the run that it is part of.
type Node struct {
	Pool    *run.Pool
	Signals *console.Signals
	Budget  session.Budget
	Version string
	Timeout time.Duration                   // TIMEOUT
	Get     func(setting string) string     // the settings of nhc-gpu, with their defaults
	Try     func([]conf.Line) map[int]Trial // runs lines, by their place; one that was not reached has none
}

// generator is one run of genconf.
type generator struct {
	Node
	program string
	verbose bool
	mask    string // target of the lines
	dmi     string
	sheet   sheet
}

// Generate looks at this node and writes an nhc.conf by which it is healthy. It returns the
// exit status. An error is a target that cannot be written.
func Generate(a *Arguments, n Node) (exit int, err error) {
	g := &generator{
		Node: n, program: a.Program, verbose: n.Get("VERBOSE") == "1", mask: n.Get("HOSTNAME"), dmi: a.DMI,
	}
	if err := usableMask(g.mask); err != nil {
		return 0, err
	}
	return g.generate(), nil
}

// usableMask refuses what cannot stand before the "||" of a line.
func usableMask(mask string) error {
	switch {
	case strings.Trim(mask, " \t") == "":
		return errors.New("host mask is empty, want a glob, /regular expression/ or {node range}: use -H")
	case strings.HasPrefix(mask, "#"), strings.Contains(mask, "||"), strings.ContainsFunc(mask, isControl):
		return fmt.Errorf("host mask %q: want none with a leading #, with || or control characters", mask)
	}
	return nil
}

// generate scans, tries what it would write, and writes it.
func (g *generator) generate() int {
	path := g.Get("CONFFILE")
	g.vecho("Scanning system...")
	g.heading()
	g.scan()
	g.vecho("trying the lines...")
	g.try()
	g.vecho("done.\n")
	if sig := g.Signals.Caught(); sig != 0 {
		fmt.Fprintf(console.Stderr, "Terminated by signal %s.\n", console.SignalName(sig))
		return 128 + int(sig)
	}
	for _, w := range g.sheet.warnings {
		fmt.Fprintf(console.Stderr, "%s: warning: %s\n", g.program, w)
	}
	text := g.sheet.render(g.mask)
	if path == "-" {
		if _, err := console.Stdout.Write([]byte(text)); err != nil {
			fmt.Fprintf(console.Stderr, "%s: write standard output: %v\n", g.program, err)
			return 1
		}
		return 0
	}
	g.vecho("Writing configuration file " + path + "...")
	if err := g.write(path, text); err != nil {
		g.vecho("failed.\n")
		fmt.Fprintf(console.Stderr, "%s: %v\n", g.program, err)
		return 1
	}
	g.vecho("done.\n")
	return 0
}

// write makes the file. One that exists is a site's, with changes perhaps.
func (g *generator) write(path, text string) error {
	o := g.Pool.Call(g.Signals.Ctx, checks.Local, &wire.Request{Op: wire.OpCreate, Path: path, Data: []byte(text), Line: "write " + path}, session.Reading)
	err := o.FailureIn("write " + path)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%w; move it away, or write another with -c FILE (-c - prints)", err)
	case os.Geteuid() != 0:
		return fmt.Errorf("%w; write another with -c FILE (-c - prints)", err)
	}
	return err
}

// vecho tells on stderr what is being done, with -v.
func (g *generator) vecho(text string) {
	if g.verbose {
		fmt.Fprint(console.Stderr, text)
	}
}

func (g *generator) dbg(format string, args ...any) {
	if g.Get("DEBUG") == "1" {
		fmt.Fprintf(console.Stderr, "DEBUG:  "+format+"\n", args...)
	}
}

func (a *Arguments) help() {
	title := a.Program + " Usage"
	fmt.Fprintf(console.Screen, `
%s
%s

  Syntax:  %s [<options>] [<var>=<value> [...]]

 Looks at this node and writes a configuration by which it is healthy: every
 line in it has been tried and passes. Overwrites no file.

 OPTION            DESCRIPTION
-------------------------------------------------------------------------------
 -h                Show this help
 -H <hostmask>     Write lines for the hosts <hostmask> (default: this host)
 -D <confdir>      Use config directory <confdir> (default: /etc/nhc)
 -b <matchstr>     Only these lines of the BIOS/DMI section (default: %s)
 -c <conffile>     Write to <conffile>, - for standard output (default: <confdir>/%s.conf.auto)
 -d                Debugging output (DEBUG=1)
 -n <name>         Use name <name> (default: %s); see -c above
 -v                Run verbosely (VERBOSE=1)
 -x                Accepted for LBNL NHC's sake

 All other arguments must be settings of the form VARNAME=value.
 Exit status: 0 written, 1 could not, 10 wrong command line.

EXAMPLE:
--------
 To write lines for all nodes like this one, and put them to use:
    # %s -H 'gpu*' -c /etc/nhc/nhc.conf

`, title, strings.Repeat("-", len(title)), a.Program, dmiDefault, a.For, a.For, a.Program)
}

// try reads the sheet back as the file that it will be, and runs it. A line
// that does not pass here and now becomes a comment with the reason.
func (g *generator) try() {
	var which []int // the sheet's line behind each line of the file
	for i, l := range g.sheet.lines {
		if l.check != "" && l.why == "" {
			which = append(which, i)
		}
	}
	lines, doubts, err := conf.Parse("generated", []byte(g.sheet.render(g.mask)))
	if err != nil || len(lines) != len(which) || len(doubts) > 0 {
		for _, i := range which {
			g.sheet.lines[i].why = "could not be read back"
		}
		g.sheet.warnings = append(g.sheet.warnings, "internal error: the lines cannot be read back, all are comments")
		return
	}
	trials := g.Try(lines)
	for step, i := range which {
		t, done := trials[step]
		why := t.Why
		if !done {
			why = "not tried: out of time"
		}
		if why == "" {
			continue
		}
		l := &g.sheet.lines[i]
		switch {
		case l.stays != 0 && (t.Worst >= l.stays && t.Worst != checks.Unknown || t.Early):
			l.found = visible(why)
			g.sheet.warnings = append(g.sheet.warnings, visible("a fault now, the line is written: "+lines[step].Check+" ("+why+")"))
			continue
		case l.stays != 0 && t.Worst == checks.Skip: // no such device here
			l.why = visible(why)
			continue
		}
		l.why = visible(why)
		g.sheet.warnings = append(g.sheet.warnings, visible("left out: "+lines[step].Check+" ("+why+")"))
	}
}
