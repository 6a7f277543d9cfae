package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

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

// jobRoles are the roles that a word names.
var jobRoles = []slurm.Role{slurm.Prolog, slurm.Epilog}

// parseOptions reads the command line as LBNL NHC's getopts does, and where a letter or
// VAR=value may stand the options of two dashes that cmd has; without cmd there are none.
// A *checks.UsageError is a mistake in a letter.
func parseOptions(args []string, cmd *cobra.Command) (*options, error) {
	o, spec, wrong := new(options), optionSpec, error(nil)
	if cmd != nil {
		spec += "-:" // "--check" is the option - with the argument check
	}
	put := func(name, value, debug string) {
		o.set = append(o.set, assignment{name, value})
		o.debug = append(o.debug, debug)
	}
	words, err := checks.Getopts(spec, args, func(opt byte, arg string) {
		if wrong != nil {
			return
		}
		switch opt {
		case '-':
			wrong = parseLong(arg, cmd)
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
	for _, w := range words {
		if err != nil || wrong != nil || w == "" { // the first empty word ends them
			break
		}
		if cmd != nil && strings.HasPrefix(w, "--") {
			wrong = parseLong(w[2:], cmd)
		} else {
			o.words = append(o.words, w)
		}
	}
	for _, role := range jobRoles {
		if cmd == nil || !cmd.Flags().Changed(role.String()) {
			continue
		}
		if o.role != slurm.Manual {
			wrong = fmt.Errorf("--%s and --%s exclude each other", o.role, role)
		}
		o.role = role
	}
	if o.help || cmd != nil && cmd.Flags().Changed("help") { // wins over a mistake behind it
		return &options{help: true}, nil
	}
	return o, cmp.Or(wrong, err)
}

// parseLong has cmd take an option of two dashes. --check=false is none: a run that drains
// the node must not look like one that does not.
func parseLong(text string, cmd *cobra.Command) error {
	name, _, valued := strings.Cut(text, "=")
	if f := cmd.Flags().Lookup(name); f == nil || valued && f.Value.Type() == "bool" {
		return fmt.Errorf("there is no option --%s, see %s --help", text, cmd.CommandPath())
	}
	return cmd.Flags().Parse([]string{"--" + text})
}

// exitUsage is LBNL NHC's exit status for a command line it does not understand.
const exitUsage = 10
