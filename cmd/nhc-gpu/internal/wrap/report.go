package wrap

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
)

// change is what the wrapper has to tell.
type change struct {
	output  []byte // what the program wrote, or had written before it wrote nothing
	cleared bool   // it writes nothing any more
	name    string
	host    string
}

// text is the change as it is printed.
func (c change) text() []byte {
	out := bytes.TrimRight(c.output, "\n")
	if c.cleared {
		return fmt.Appendf(nil, "The following %s errors on %s have now been CLEARED:\n\n%s\n", c.name, c.host, out)
	}
	return append(out, '\n')
}

// mail is the change as it is sent: the output as it is.
func (c change) mail() []byte {
	if c.cleared {
		return c.text()
	}
	return c.output
}

// age forgets the last output if it has been told too long ago. It is done
// after the program has run, so that the time it took does not matter.
func (w *wrapper) age() {
	since, ok := w.state.savedAt()
	if w.expire <= 0 || !ok {
		return
	}
	age := w.now().Unix() - since.Unix()
	// A time in the future comes from a clock that has been set back since.
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
		w.state.forget() // what is not ours is no output of ours
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

 Runs %s and prints, or mails, what it writes if it fails and that has changed,
 and that its errors are cleared if it then writes nothing.

 OPTION            DESCRIPTION
-------------------------------------------------------------------------------
 -h                Show this help
 -A <args>         Pass <args>, split at blanks, to %s
 -D <directory>    Keep the last output in <directory>
 -L <timespec>     Run %s in a loop, every <timespec> counted from midnight
 -M <mailto>       Send the output by e-mail to <mailto>
 -P <program>      Run <program> in place of %s
 -S <subject>      Subject of the e-mail
 -V                Tell what is done
 -X <timespec>     Tell what has not changed again after <timespec>
 --                All that follows is for %s

 The first other word and all behind it are passed to %s.

 A timespec is made of weeks (w), days (d), hours (h), minutes (m) and seconds
 (s, or no letter): 1d12h. -X may end in an allowance in seconds: 6h10f. -L may
 end in flags: clear the terminal (c), a ruler (r), the time (t) before each run.

 NW_TIMEOUT=<timespec> in the environment is how long %s may take (10m; 0: for
 ever), NW_DATEFMT the form of times in date(1)'s words.
 Exit status: 0, 99 wrong command line, 255 no state directory; 129, 130, 143
 ended by SIGHUP, SIGINT, SIGTERM.

EXAMPLES:
---------
 To mail to root what changes, and every 12 hours what has not:
    # %s -M root -X 12h -- -d -t 60

`, title, strings.Repeat("-", len(title)), program, name, name, name, name, name, name, name, program)
}
