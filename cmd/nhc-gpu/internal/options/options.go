// Package options reads the command line: LBNL NHC's letters, VAR=value and our own long options.
// It has the help.
package options

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/conf/spell"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Options are the letters of LBNL NHC's command line, and the arguments that follow them.
type Options struct {
	Set   []Assignment // in the order given
	Debug []string     // what -d prints of them
	Help  bool
	Trace bool // -x
	Eval  string
	Words []string
	Role  slurm.Role // --prolog or --epilog
}

// Quiet reports whether -q is among the options.
func (o *Options) Quiet() bool { return slices.Contains(o.Set, Assignment{"SILENT", "1"}) }

// LikeLBNL reports whether -n nhc is among the options: scripts that were written for LBNL NHC give
// it, and expect what LBNL NHC prints.
func (o *Options) LikeLBNL() bool { return slices.Contains(o.Set, Assignment{"NAME", "nhc"}) }

// WrongName returns an error if the value of -n cannot be a part of the names of files.
func (o *Options) WrongName() error {
	for _, a := range o.Set {
		if a.Name == "NAME" && strings.ContainsAny(a.Value, " \t\n/") {
			return Wrong{fmt.Errorf("-n %q: want a name without blanks and slashes", a.Value)}
		}
	}
	return nil
}

// Assignment is a setting that an option has made.
type Assignment struct{ Name, Value string }

// Spec are the letters, as getopts has them.
const Spec = ":D:ac:de:fhl:n:qt:vx"

// JobRoles are the roles that have an option: --prolog, --epilog.
var JobRoles = []slurm.Role{slurm.Prolog, slurm.Epilog}

// Parse reads the command line as LBNL NHC's getopts does. The long options of cmd may stand
// wherever a letter or VAR=value may; without cmd there are none. A wrong letter is a
// *checks.UsageError.
func Parse(args []string, cmd *cobra.Command) (*Options, error) {
	o, spec, wrong := new(Options), Spec, error(nil)
	if cmd != nil {
		spec += "-:" // "--check" is the option - with the argument check
	}
	put := func(name, value, debug string) {
		o.Set = append(o.Set, Assignment{name, value})
		o.Debug = append(o.Debug, debug)
	}
	words, err := checks.Getopts(spec, joinValues(args, cmd), func(opt byte, arg string) {
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
			o.Eval = arg
			o.Debug = append(o.Debug, "Evaluating single check line:  "+arg)
		case 'f':
			put("NHC_CHECK_FORKED", "1", "Checks will be run in forked subprocesses.")
		case 'h':
			o.Help = true
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
			o.Trace = true
			o.Debug = append(o.Debug, "BASH tracing active.")
		}
	})
	for _, w := range words {
		if err != nil || wrong != nil || w == "" { // the first empty word ends them
			break
		}
		if cmd != nil && strings.HasPrefix(w, "--") {
			wrong = parseLong(w[2:], cmd)
		} else {
			o.Words = append(o.Words, w)
		}
	}
	for _, role := range JobRoles {
		if cmd == nil || !cmd.Flags().Changed(role.String()) {
			continue
		}
		if o.Role != slurm.Manual {
			wrong = fmt.Errorf("--%s and --%s exclude each other", o.Role, role)
		}
		o.Role = role
	}
	if o.Help || cmd != nil && cmd.Flags().Changed("help") { // even if a mistake follows
		return &Options{Help: true}, nil
	}
	if err = cmp.Or(wrong, err); err == nil && cmd != nil {
		err = o.WrongName()
	}
	return o, err
}

// joinValues joins each long option that has a value with its value: "--format json" becomes
// "--format=json".
func joinValues(args []string, cmd *cobra.Command) (joined []string) {
	for i := 0; i < len(args); i++ {
		word := args[i]
		name, long := strings.CutPrefix(word, "--")
		if long && cmd != nil && i+1 < len(args) {
			if f := cmd.Flags().Lookup(name); f != nil && f.NoOptDefVal == "" {
				i++
				word += "=" + args[i]
			}
		}
		joined = append(joined, word)
	}
	return joined
}

// parseLong sets a long option of cmd. It refuses --check=false: a run that drains the node
// must not look like one that does not.
func parseLong(text string, cmd *cobra.Command) error {
	name, _, valued := strings.Cut(text, "=")
	if f := cmd.Flags().Lookup(name); f == nil || valued && f.Value.Type() == "bool" {
		return unknownOption(cmd, text)
	}
	return FlagError(cmd, cmd.Flags().Parse([]string{"--" + text}))
}

func unknownOption(cmd *cobra.Command, text string) error {
	name, _, _ := strings.Cut(text, "=")
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, "--"+f.Name)
		}
	})
	near := spell.DidYouMean("--"+name, known)
	if as := strings.ToUpper(strings.ReplaceAll(name, "-", "_")); slices.Contains(setting.OwnVars, as) || as == "MARK_OFFLINE" {
		_, value, _ := strings.Cut(text, "=")
		near = "; it is a setting: write " + as + "=" + cmp.Or(value, "VALUE") + ", without --"
	}
	return Wrong{fmt.Errorf("there is no option --%s%s", text, near)}
}

// FlagError returns the error of a command's long option without the terms of Go.
func FlagError(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok && e.GetSpecifiedShortnames() == "" {
		return unknownOption(cmd, e.GetSpecifiedName())
	} else if ok {
		return Wrong{fmt.Errorf("there is no option -%s", e.GetSpecifiedShortnames())}
	}
	if e, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return Wrong{fmt.Errorf("option --%s requires an argument", e.GetFlag().Name)}
	}
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return Wrong{fmt.Errorf("option --%s=%s: want %s", e.GetFlag().Name, e.GetValue(), wantOf(e.GetFlag()))}
	}
	return Wrong{err}
}

// wantOf returns the values that an option accepts.
func wantOf(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "bool":
		return "no value"
	case "int":
		return "a whole number"
	case "uint64":
		return "a whole number, not negative"
	case "duration":
		return "a time with its unit, as 30m or 2h"
	}
	return "another value"
}

// ExitUsage is LBNL NHC's exit status for a command line it does not understand.
const ExitUsage = 10

// IsCommand reports whether the first argument of nhc-gpu names a command: it is neither an
// option nor VAR=value.
func IsCommand(word string) bool {
	return word != "" && word[0] != '-' && !strings.Contains(word, "=")
}

// Split divides arguments before the first that is neither an option nor a setting.
func Split(args []string) (own, rest []string) {
	words, err := checks.Getopts(Spec+"-:", args, func(byte, string) {})
	if err != nil {
		return args, nil
	}
	for i, w := range words {
		if IsCommand(w) {
			n := len(args) - len(words) + i
			return args[:n], args[n:]
		}
	}
	return args, nil
}

// With gives a command LBNL NHC's options, and those of a role.
func With(cmd *cobra.Command, do func(*Options) error) *cobra.Command {
	AddRoles(cmd)
	cmd.DisableFlagParsing = true
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		o, err := Parse(words, cmd)
		if err == nil && o.Help {
			return cmd.Help()
		}
		if err != nil {
			return Wrong{err}
		}
		return do(o)
	}
	return cmd
}

// AddRoles gives a command the options --prolog and --epilog.
func AddRoles(cmd *cobra.Command) {
	for _, role := range JobRoles {
		cmd.Flags().Bool(role.String(), false, "as Slurm's "+role.String())
		cmd.Flags().Lookup(role.String()).Hidden = cmd.Name() != OwnName // from the help of the command
	}
}

// OwnName is the name of the program.
const OwnName = "nhc-gpu"

// IsOwn reports whether the program was started as nhc-gpu, and not by a name of LBNL NHC:
// then it has commands. A copy for a trial may have a longer name: nhc-gpu.new.
func IsOwn(argv0 string) bool { return strings.HasPrefix(filepath.Base(argv0), OwnName) }

// Wrong is a command line that a command does not accept.
type Wrong struct{ Err error }

func (w Wrong) Error() string { return w.Err.Error() }

// Unwrap returns the error.
func (w Wrong) Unwrap() error { return w.Err }

// Takes accepts from least to most arguments; what names them in an error.
func Takes(least, most int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return Wrong{fmt.Errorf("missing argument: want %s", what)}
		case len(args) > most && most == 0:
			return Wrong{fmt.Errorf("surplus argument %q: want none", args[0])}
		case len(args) > most:
			return Wrong{fmt.Errorf("surplus argument %q: want %s", args[most], what)}
		}
		return nil
	}
}
