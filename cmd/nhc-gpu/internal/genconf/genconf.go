// Package genconf is nhc-genconf: it writes a configuration for this node, and tries every line
// on it, or for the nodes of a platform.
package genconf

import (
	"cmp"
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
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/lint"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// Name is the command of nhc-gpu.
const Name = "genconf"

const (
	optionSpec = ":H:b:c:D:dhn:vx-:" // "--dir" is the option - with the argument dir
	dmiDefault = "/([Ss]peed|[Vv]ersion)/"
	// Limit is the time limit of scanning, trying and writing together.
	Limit = 2 * time.Minute
)

// Arguments are the options and settings of the command line.
type Arguments struct {
	Program string        // its name in messages
	For     string        // NAME of the configuration: nhc
	Set     []conf.Assign // settings made by options, in their order
	Words   []string      // VAR=value
	DMI     string        // match string for lines of the DMI section

	Platform string // write the configuration of this platform; "": of this node
	Dir      string // write all files into this directory; "": write one file
}

// Parse reads the command line; words[0] is argv[0]. It prints errors and the help. After the
// help it returns nil.
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
	var wrong error
	rest, err := checks.Getopts(optionSpec, joinLong(words[1:]), func(opt byte, arg string) {
		switch opt {
		case '-':
			wrong = cmp.Or(wrong, a.long(arg))
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
		} // x traces bash, and genconf runs none
	})
	if showHelp {
		a.help()
		return nil, nil
	}
	if err = cmp.Or(err, wrong); err != nil {
		a.help()
		fmt.Fprintf(console.Stderr, "%s:  ERROR:  %s\n", a.Program, strings.TrimPrefix(console.OptionError(err), ":  "))
		return nil, err
	}
	if a.Words = rest; slices.Contains(rest, "") { // the first empty word ends them
		a.Words = rest[:slices.Index(rest, "")]
	}
	return a, nil
}

// joinLong writes "--dir DIR" as "--dir=DIR".
func joinLong(words []string) (list []string) {
	for i := 0; i < len(words); i++ {
		w := words[i]
		if (w == "--platform" || w == "--dir") && i+1 < len(words) {
			i++
			w += "=" + words[i]
		}
		list = append(list, w)
	}
	return list
}

// long takes an option of two dashes.
func (a *Arguments) long(text string) error {
	name, value, _ := strings.Cut(text, "=")
	for _, o := range []struct {
		name string
		to   *string
	}{{"platform", &a.Platform}, {"dir", &a.Dir}} {
		if o.name == name && value != "" {
			*o.to = value
			return nil
		} else if o.name == name {
			return lbnlError(fmt.Sprintf("Option --%s requires an argument.", name))
		}
	}
	return lbnlError("Invalid option:  --" + text)
}

// lbnlError is an error in the style of LBNL NHC's texts.
type lbnlError string

func (e lbnlError) Error() string { return string(e) }

// Node has the parts of a run that the generator uses.
type Node struct {
	Pool    *run.Pool
	Signals *console.Signals
	Budget  session.Budget
	Version string
	Timeout time.Duration                   // TIMEOUT
	Get     func(setting string) string     // returns a setting or its default
	Try     func([]conf.Line) map[int]Trial // runs lines and returns the trials by index; a line that did not run has none
	Here    func() []checks.PlatformGroup   // returns the GPUs of this node
}

// generator is one run of genconf.
type generator struct {
	Node
	program string
	verbose bool
	mask    string // TARGET of all lines
	dmi     string
	dir     string
	foreign bool // the configuration is for the nodes of a platform, not for this node
	sheet   sheet
	target  target
}

// Generate writes the configuration of this node, or of a platform that is not nil. It returns
// the exit status, or an error about the command line.
func Generate(a *Arguments, n Node, platform *checks.Platform) (exit int, err error) {
	g := &generator{
		Node: n, program: a.Program, verbose: n.Get("VERBOSE") == "1", mask: n.Get("HOSTNAME"), dmi: a.DMI, dir: a.Dir, foreign: platform != nil,
	}
	if platform != nil {
		g.target = targetOf(platform)
		if !a.sets("HOSTNAME") {
			g.mask = "*"
		}
	}
	if err := usableMask(g.mask); err != nil {
		return 0, err
	}
	if text := lint.TargetWarning(g.mask); text != "" {
		g.sheet.warnings = append(g.sheet.warnings, "-H "+text)
	}
	return g.generate(), nil
}

// sets reports whether the command line sets a variable.
func (a *Arguments) sets(name string) bool {
	return slices.ContainsFunc(a.Set, func(s conf.Assign) bool { return s.Name == name }) ||
		slices.ContainsFunc(a.Words, func(w string) bool { return strings.HasPrefix(w, name+"=") })
}

// usableMask refuses a TARGET that nhc.conf cannot have.
func usableMask(mask string) error {
	switch {
	case strings.Trim(mask, " \t") == "":
		return errors.New("host mask is empty, want a glob, /regular expression/ or {node range}: use -H")
	case strings.HasPrefix(mask, "#"), strings.Contains(mask, "||"), strings.ContainsFunc(mask, isControl):
		return fmt.Errorf("host mask %q: want none with a leading #, with || or control characters", mask)
	}
	return nil
}

// generate makes the lines, tries those of this node, and writes the files.
func (g *generator) generate() int {
	if g.target.platform != nil {
		warnings := g.sheet.warnings
		g.sheet = *g.target.expect()
		g.sheet.warnings = append(warnings, g.sheet.warnings...)
	} else {
		g.vecho("Scanning system...")
		g.scan()
		g.vecho("trying the lines...")
		g.try()
		g.vecho("done.\n")
	}
	if sig := g.Signals.Caught(); sig != 0 {
		fmt.Fprintf(console.Stderr, "Terminated by signal %s.\n", console.SignalName(sig))
		return 128 + int(sig)
	}
	for _, w := range g.sheet.warnings {
		fmt.Fprintf(console.Stderr, "%s: warning: %s\n", g.program, w)
	}
	path := g.Get("CONFFILE")
	if g.dir != "" {
		return g.writeAll()
	}
	if path == "-" {
		if _, err := console.Stdout.Write([]byte(g.sheet.render(g.mask))); err != nil {
			fmt.Fprintf(console.Stderr, "%s: write standard output: %v\n", g.program, err)
			return 1
		}
		return 0
	}
	if g.writeOne(path, &g.sheet) != nil {
		return 1
	}
	return 0
}

// writeOne writes a file and reports why it could not.
func (g *generator) writeOne(path string, s *sheet) error {
	g.vecho("Writing configuration file " + path + "...")
	if err := g.write(path, s.render(g.mask)); err != nil {
		g.vecho("failed.\n")
		fmt.Fprintf(console.Stderr, "%s: %v\n", g.program, err)
		return err
	}
	g.vecho("done.\n")
	return nil
}

// writeAll writes the files of a node into a directory, and prints their names.
func (g *generator) writeAll() (exit int) {
	name := g.Get("NAME")
	for _, f := range g.target.files(&g.sheet) {
		path := filepath.Join(g.dir, name+f.suffix+".conf")
		switch err := g.writeOne(path, f.sheet); {
		case errors.Is(err, fs.ErrNotExist):
			return 1 // no other file can be written either
		case err != nil:
			exit = 1
		default:
			fmt.Fprintf(console.Screen, "wrote %s: %s\n", path, f.what)
		}
	}
	try := "nhc-gpu --check -c"
	if g.foreign {
		try = "on a node of the platform, nhc-gpu --check -c"
	}
	if exit == 0 {
		fmt.Fprintf(console.Screen, "try it: %s %s\n", try, filepath.Join(g.dir, name+".conf"))
	}
	return exit
}

// write creates the file. It does not overwrite a file, which can have a site's changes.
func (g *generator) write(path, text string) error {
	o := g.Pool.Call(g.Signals.Ctx, checks.Local, &wire.Request{Op: wire.OpCreate, Path: path, Data: []byte(text), Line: "write " + path}, session.Reading)
	err := o.FailureIn("write " + path)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w; make it first: mkdir %s", err, filepath.Dir(path))
	case errors.Is(err, fs.ErrExist) && g.dir != "":
		return fmt.Errorf("%w; move it away, or name another directory with --dir", err)
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%w; move it away, or write another with -c FILE (-c - prints)", err)
	case os.Geteuid() != 0:
		return fmt.Errorf("%w; write another with -c FILE (-c - prints)", err)
	}
	return err
}

// vecho prints progress on stderr, with -v.
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

 Writes a configuration for this node, and tries every line. A line that does
 not pass becomes a comment; a line that finds a fault stays, with the fault in
 the comment above it. With --platform it writes the configuration of a
 platform on any machine, without a trial. It overwrites no file.

 OPTION            DESCRIPTION
-------------------------------------------------------------------------------
 -h                Show this help
 -H <hostmask>     Write lines for the hosts <hostmask> (default: this host;
                   with --platform: *)
 --platform <name> Write the configuration of this platform: nhc-gpu platforms
 --dir <dir>       Write all files into <dir>: <name>.conf, and on a node with
                   GPUs <name>-prolog.conf, -epilog.conf and -active.conf
 -D <confdir>      Use config directory <confdir> (default: /etc/nhc)
 -b <matchstr>     Only these lines of the BIOS/DMI section
                   (default: %s)
 -c <conffile>     Write to <conffile>, - for standard output
                   (default: <confdir>/%s.conf.auto)
 -d                Debugging output (DEBUG=1)
 -n <name>         Use name <name> (default: %s); see -c above
 -v                Run verbosely (VERBOSE=1)
 -x                Accepted for LBNL NHC's sake

 All other arguments must be settings of the form VARNAME=value.
 Exit status: 0 written, 1 could not, 10 wrong command line.

EXAMPLES:
---------
 To write the whole configuration of all nodes like this one:
    # %s -H 'gpu*' --dir /etc/nhc
 To print the lines for a node that is not here:
    # %s --platform 'HGX H100' -c -

`, title, strings.Repeat("-", len(title)), a.Program, dmiDefault, a.For, a.For, a.Program, a.Program)
}

// try parses the file that it will write, and runs its lines. A line that does not pass becomes
// a comment with the reason.
func (g *generator) try() {
	var which []int // the index in the sheet of each line of the file
	for i, l := range g.sheet.lines {
		if l.check != "" && l.why == "" {
			which = append(which, i)
		}
	}
	lines, doubts, err := conf.Parse("generated", []byte(g.sheet.render(g.mask)))
	if err != nil || len(lines) != len(which) || len(doubts) > 0 {
		for _, i := range which {
			g.sheet.lines[i].why = "genconf could not read the line back"
		}
		g.sheet.warnings = append(g.sheet.warnings, "internal error: genconf cannot read its own lines back, all became comments")
		return
	}
	trials := g.Try(lines)
	for step, i := range which {
		t, done := trials[step]
		why := t.Why
		if !done {
			why = "not tried: the time limit was over"
		}
		if why == "" {
			continue
		}
		l := &g.sheet.lines[i]
		switch {
		case l.stays != 0 && (t.Worst >= l.stays && t.Worst != checks.Unknown || t.Early):
			l.found = visible(why)
			g.sheet.warnings = append(g.sheet.warnings, visible("this node has a fault, the line is written: "+lines[step].Check+" ("+why+")"))
			continue
		case l.stays != 0 && t.Worst == checks.Skip: // no such device here
			l.why = visible(why)
			continue
		}
		l.why = visible(why)
		g.sheet.warnings = append(g.sheet.warnings, visible("not written: "+lines[step].Check+" ("+why+")"))
	}
}
