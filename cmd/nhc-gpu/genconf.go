package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
)

const (
	genconfSpec = ":H:b:c:D:dhn:vx"
	dmiDefault  = "/([Ss]peed|[Vv]ersion)/"

	// genconfLimit bounds the whole of genconf: scanning, trying, writing.
	genconfLimit = 2 * time.Minute
)

// generator is one run of genconf.
type generator struct {
	*oneRun
	program string // what it is called in its texts
	verbose bool
	mask    string // target of the lines
	dmi     string // match string for the DMI section
	sheet   sheet
}

// genconf looks at this node and writes an nhc.conf by which it is healthy.
// words[0] is the name that the program was called by.
func genconf(words []string) int {
	program := filepath.Base(words[0])
	if program == genconfName {
		program = "nhc-gpu " + genconfName
	}
	g := &generator{program: program, dmi: dmiDefault}
	o := &options{}
	showHelp := false
	rest, err := checks.Getopts(genconfSpec, words[1:], func(opt byte, arg string) {
		switch opt {
		case 'H':
			o.set = append(o.set, assignment{"HOSTNAME", arg})
		case 'b':
			g.dmi = arg
		case 'c':
			o.set = append(o.set, assignment{"CONFFILE", arg})
		case 'D':
			o.set = append(o.set, assignment{"CONFDIR", arg})
		case 'd':
			o.set = append(o.set, assignment{"DEBUG", "1"})
		case 'n':
			o.set = append(o.set, assignment{"NAME", arg})
		case 'v':
			o.set = append(o.set, assignment{"VERBOSE", "1"})
		case 'h':
			showHelp = true
		} // x traces bash, of which there is none
	})
	if showHelp {
		genconfHelp(program)
		return 0
	}
	if err != nil {
		genconfHelp(program)
		fmt.Fprintf(console.Stderr, "%s:  ERROR:  %s\n", program, strings.TrimPrefix(console.OptionError(err), ":  "))
		return exitUsage
	}
	g.oneRun = newRun([]string{"nhc-gpu"}, o)
	_ = g.openState("")
	g.set.hold, g.set.past, g.set.spare = true, "", "" // a trial of a line changes nothing, and keeps nothing
	defer g.close()
	if err := g.settle(rest); err != nil {
		fmt.Fprintf(console.Stderr, "%s: %v\n", program, err)
		return exitUsage
	}
	return g.generate()
}

// settle reads the VAR=value words and gives what is still unset its default.
func (g *generator) settle(words []string) error {
	for _, a := range g.opts.set {
		g.set.put(a.name, a.value, false)
	}
	for _, w := range words {
		if w == "" { // the first empty word ends them
			break
		}
		if err := g.set.word(w); err != nil {
			return err
		}
	}
	g.verbose = g.set.get("VERBOSE") == "1"
	g.set.preset(genconfFor(g.program))
	g.set.put("CONFFILE", g.confFile(), false)
	if m, ok := g.set.lookup("DMI_MATCH"); ok {
		g.dmi = m
	}
	g.mask = g.set.get("HOSTNAME")
	g.set.finalize()
	g.budget.Give(genconfLimit)
	return usableMask(g.mask)
}

func (g *generator) confFile() string {
	if file := g.set.get("CONFFILE"); file != "" {
		return file
	}
	dir := g.set.get("CONFDIR")
	if dir == "" {
		dir = "/etc/nhc"
	}
	return filepath.Join(dir, g.set.get("NAME")+".conf.auto")
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

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// generate scans, tries what it would write, and writes it.
func (g *generator) generate() int {
	path := g.set.get("CONFFILE")
	g.vecho("Scanning system...")
	g.pool.SetVars(g.set.workerVars())
	g.heading()
	g.scan()
	g.vecho("trying the lines...")
	g.try()
	g.vecho("done.\n")
	if sig := g.sig.Caught(); sig != 0 {
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
	o := g.pool.Call(g.ctx, checks.Local, &run.Request{Op: run.OpCreate, Path: path, Data: []byte(text), Line: "write " + path}, session.Reading)
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
	if g.set.get("DEBUG") == "1" {
		fmt.Fprintf(console.Stderr, "DEBUG:  "+format+"\n", args...)
	}
}

// genconfFor is the name of the program whose configuration is written.
func genconfFor(program string) string {
	if name, ok := strings.CutSuffix(program, "-genconf"); ok && name != "" {
		return name
	}
	return "nhc"
}

func genconfHelp(program string) {
	title := program + " Usage"
	name := genconfFor(program)
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

`, title, strings.Repeat("-", len(title)), program, dmiDefault, name, name, program)
}
