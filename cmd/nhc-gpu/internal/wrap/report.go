package wrap

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
)

// change is a report of the wrapper.
type change struct {
	output  []byte // of the program; if cleared, its last output
	cleared bool   // it no longer writes any output
	name    string
	host    string
}

// text returns the report as it is printed.
func (c change) text() []byte {
	out := bytes.TrimRight(c.output, "\n")
	if c.cleared {
		return fmt.Appendf(nil, "The following %s errors on %s have now been CLEARED:\n\n%s\n", c.name, c.host, out)
	}
	return append(out, '\n')
}

// mail returns the report as it is sent.
func (c change) mail() []byte {
	if c.cleared {
		return c.text()
	}
	return c.output
}

// age removes the last output if it was reported too long ago. It is called after the program has
// run, so that the duration of the run does not matter.
func (w *wrapper) age() {
	since, ok := w.state.savedAt()
	if w.expire <= 0 || !ok {
		return
	}
	age := w.now().Unix() - since.Unix()
	// A time in the future means that the clock was set back.
	if age+w.fudge >= w.expire || age < -w.fudge {
		w.vecho("Results file expired after %d seconds (+/- %ds).", age, w.fudge)
		w.state.forget()
		return
	}
	w.vecho("Results file found with age %d seconds (+/- %ds).", age, w.fudge)
}

// compare keeps the output and returns whether it must be reported: as in LBNL NHC
// 1.4.3 only a program that failed reports its output, and one that passes and
// writes nothing reports that the errors of the last output are cleared.
func (w *wrapper) compare(out []byte, failed bool) (c change, report bool) {
	c = change{output: out, name: w.name, host: w.host}
	saved, err := w.state.saved()
	known := err == nil
	switch {
	case err != nil && !os.IsNotExist(err):
		w.warn(err)
		w.state.forget() // a file that is not ours holds no output of ours
	case known && len(out) == 0 && len(saved) == 0:
		w.vecho("Output file matches saved results file (both empty).")
		return c, false
	case known && bytes.Equal(out, saved):
		w.vecho("Output file matches saved results file.")
		return c, false
	case known:
		w.vecho("Output file does not match saved results file.")
		if c.cleared = len(out) == 0 && !w.state.passed(); c.cleared {
			c.output = saved
		}
	}
	if !known {
		what := "non-empty"
		if len(out) == 0 {
			what = "empty"
		}
		w.vecho("Output file is %s (no saved results file found).", what)
	}
	if err := errors.Join(w.state.save(out), w.state.notePassed(!failed && len(out) > 0)); err != nil {
		w.warn(err)
	}
	return c, c.cleared || failed && len(out) > 0
}

func help(program, name string) {
	title := program + " Usage"
	fmt.Fprintf(console.Screen, `
%s
%s

  Syntax:  %s [<options>] [<word> [...]]

 Runs %s. Prints or mails its output if it fails and the output has changed, and
 reports that its errors are cleared if it then passes without output.

 OPTION            DESCRIPTION
-------------------------------------------------------------------------------
 -h                Show this help
 -A <args>         Pass <args>, split at blanks, to %s
 -D <directory>    Keep the last output in <directory>
 -L <timespec>     Run %s in a loop, every <timespec> counted from midnight
 -M <mailto>       Send the output by e-mail to <mailto>
 -P <program>      Run <program> instead of %s
 -S <subject>      Subject of the e-mail
 -V                Print each step
 -X <timespec>     Repeat an unchanged report after <timespec>
 --                Pass all that follows to %s

 The first other argument and all after it are passed to %s.

 A timespec consists of weeks (w), days (d), hours (h), minutes (m) and seconds
 (s, or no letter): 1d12h. -X may end in a tolerance in seconds: 6h10f. -L may
 end in flags: before each run clear the terminal (c), draw a ruler (r), print
 the time (t).

 Environment: NW_TIMEOUT=<timespec> is the time limit of %s (default: 10m; 0: no
 limit), NW_DATEFMT the format of times for date(1).
 Exit status: 0, 99 wrong command line, 255 no state directory; 129, 130, 143
 ended by SIGHUP, SIGINT, SIGTERM.

EXAMPLES:
---------
 Mail changes to root, and repeat an unchanged report every 12 hours:
    # %s -M root -X 12h -- -d -t 60

`, title, strings.Repeat("-", len(title)), program, name, name, name, name, name, name, name, program)
}
