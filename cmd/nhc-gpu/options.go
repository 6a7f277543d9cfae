package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// options are the letters of LBNL NHC's command line, and the words behind them.
type options struct {
	set   []assignment // in the order given
	debug []string     // what -d prints of them
	help  bool
	trace bool // -x
	eval  string
	words []string
	role  slurm.Role // that a word has named
}

type assignment struct{ name, value string }

const optionSpec = ":D:ac:de:fhl:n:qt:vx"

// roleWord is the role that the first word names.
func roleWord(args []string) (slurm.Role, bool) {
	if len(args) > 0 {
		switch args[0] {
		case "--prolog":
			return slurm.Prolog, true
		case "--epilog":
			return slurm.Epilog, true
		}
	}
	return slurm.Manual, false
}

// longOption is a word with two dashes where LBNL NHC's options are expected,
// which have one letter each.
type longOption string

func (o longOption) Error() string {
	if slices.Contains([]longOption{"--json", "--redact", "--act", "--no-shell"}, o) {
		return fmt.Sprintf("%s must stand right behind --check, LBNL NHC's options follow it", string(o))
	}
	if _, ok := roleWord([]string{string(o)}); ok || subcommand([]string{string(o)}) != nil {
		return fmt.Sprintf("%s must be the first word, LBNL NHC's options follow it", string(o))
	}
	return fmt.Sprintf("there is no option %s, see nhc-gpu --help", string(o))
}

// parseOptions reads the command line as LBNL NHC's getopts does. The error is
// a *checks.UsageError or a longOption.
func parseOptions(args []string) (*options, error) {
	o := new(options)
	put := func(name, value, debug string) {
		o.set = append(o.set, assignment{name, value})
		o.debug = append(o.debug, debug)
	}
	words, err := checks.Getopts(optionSpec, args, func(opt byte, arg string) {
		switch opt {
		case 'D':
			put("CONFDIR", arg, "$CONFDIR set to "+arg+".")
		case 'a':
			put("NHC_CHECK_ALL", "1", "Force running of all checks.")
		case 'c':
			put("CONFFILE", arg, "$CONFFILE set to "+arg+".")
		case 'd':
			put("DEBUG", "1", "Debugging activated via -d option.")
		case 'e':
			o.eval = arg
			o.debug = append(o.debug, "Evaluating single check line:  "+arg)
		case 'f':
			put("NHC_CHECK_FORKED", "1", "Checks will be run in forked subprocesses.")
		case 'h':
			o.help = true
		case 'l':
			put("LOGFILE", arg, "$LOGFILE set to "+arg+".")
		case 'n':
			put("NAME", arg, "$NAME set to "+arg+".")
		case 'q':
			put("SILENT", "1", "Silent mode activated via -q option.")
		case 't':
			put("TIMEOUT", arg, "Timeout set to "+arg+".")
		case 'v':
			put("VERBOSE", "1", "Verbose mode activated via -v option.")
		case 'x':
			o.trace = true
			o.debug = append(o.debug, "BASH tracing active.")
		}
	})
	if usage, ok := errors.AsType[*checks.UsageError](err); ok && usage.Kind == checks.BadOption {
		if w := args[len(args)-len(words)-1]; strings.HasPrefix(w, "--") {
			err = longOption(w)
		}
	}
	if o.help { // wins over a mistake behind it, as it is read first
		return o, nil
	}
	for i, w := range words { // the first empty word ends them
		if w == "" {
			words = words[:i]
			break
		}
	}
	o.words = words
	return o, err
}

// exitUsage is LBNL NHC's exit status for a command line it does not understand.
const exitUsage = 10
