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
	output  []byte // of the program; if cleared, of its last failure
	cleared bool   // it passes again
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

// age removes the last output if it was reported too long ago, so that an unchanged one is reported
// again. It is called after the program has
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
		w.state.forget(saveFile)
		return
	}
	w.vecho("Results file found with age %d seconds (+/- %ds).", age, w.fudge)
}

// compare keeps the output and returns whether it must be reported. As in LBNL NHC 1.4.3 only a
// program that failed reports its output. The first run that passes reports that the errors of the
// last failure are cleared.
func (w *wrapper) compare(out []byte, failed bool) (c change, report bool) {
	c = change{output: out, name: w.name, host: w.host}
	saved, known := w.kept(saveFile)
	same := known && bytes.Equal(out, saved)
	switch {
	case same && len(out) == 0:
		w.vecho("Output file matches saved results file (both empty).")
	case same:
		w.vecho("Output file matches saved results file.")
	case known:
		w.vecho("Output file does not match saved results file.")
	case len(out) == 0:
		w.vecho("Output file is empty (no saved results file found).")
	default:
		w.vecho("Output file is non-empty (no saved results file found).")
	}
	failure := w.lastFailure(saved)
	failedBefore := len(failure) > 0
	if failed && len(out) == 0 && failedBefore { // it has crashed: it neither names errors nor clears any
		return c, false
	}
	failed = failed && len(out) > 0
	report = failed != failedBefore || failed && !same
	var errs error
	if !same {
		errs = w.state.save(saveFile, out)
	}
	switch {
	case failed:
		err := w.state.save(failFile, out)
		if err != nil && errs == nil {
			w.state.forget(failFile) // the last output stands for it
		}
		errs = errors.Join(errs, err)
	case len(out) > 0:
		errs = errors.Join(errs, w.state.save(failFile, nil))
	default:
		w.state.forget(failFile)
	}
	c.cleared = failedBefore && !failed
	if c.cleared {
		c.output = failure
	}
	if errs != nil {
		w.warn(errs)
	}
	return c, report
}

// lastFailure returns the output of the last failure, nothing if it was cleared. Without NAME.failed the last output
// is that of a failure.
func (w *wrapper) lastFailure(saved []byte) []byte {
	if failure, known := w.kept(failFile); known {
		return failure
	}
	return saved
}

// kept returns what an earlier run has kept. A file that is not ours holds no output of ours.
func (w *wrapper) kept(suffix string) (data []byte, known bool) {
	data, err := w.state.read(suffix)
	if err != nil && !os.IsNotExist(err) {
		w.warn(err)
		w.state.forget(suffix)
	}
	return data, err == nil
}

func help(program, name string) {
	title := program + " Usage"
	fmt.Fprintf(console.Screen, `
%s
%s

  Syntax:  %s [<options>] [<word> [...]]

 Runs %s. Prints or mails its output if it fails and the output has changed,
 and reports that its errors are cleared when it passes again.

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

 Environment: NW_TIMEOUT=<timespec> is the time limit of %s (default: 10m; 0:
 no limit), NW_DATEFMT the format of times for date(1).
 Exit status: 0, 99 wrong command line, 255 no state directory; 129, 130, 143
 ended by SIGHUP, SIGINT, SIGTERM.

EXAMPLES:
---------
 Mail changes to root, and repeat an unchanged report every 12 hours:
    # %s -M root -X 12h -- -d -t 60

`, title, strings.Repeat("-", len(title)), program, name, name, name, name, name, name, name, program)
}
