package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"mvdan.cc/sh/v3/syntax"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/ask"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/report"
	"github.com/nhc-gpu/nhc-gpu/conf/spell"
)

// checkCommand runs one check for a person.
func checkCommand(exit *int) *cobra.Command {
	opts := report.Options{Runs: true, One: true}
	cmd := &cobra.Command{
		Use:   "check [options] NAME [ARGUMENT...]",
		Short: "Run one check and print its findings",
		Long: `Runs a built-in check, or a check of the site's scripts, with its arguments as in
nhc.conf. Does not drain or resume the node, and carries out no action of the
check (kill, mount, restart) without --act. LBNL NHC's options and settings
(-D, -v, HOSTROOT=DIR) come before NAME. nhc-gpu checks lists the checks, and
nhc-gpu explain NAME describes one.

Exit status: 0 ok, 1 warn, 2 fail, 3 unknown, 10 wrong arguments.`,
		Example: `  nhc-gpu check check_gpu_ecc
  nhc-gpu check gpu_count 8
  nhc-gpu check --json check_fs_mount_rw -f /scratch`,
		DisableFlagParsing: true,
		ValidArgsFunction: func(_ *cobra.Command, words []string, _ string) ([]string, cobra.ShellCompDirective) {
			if _, rest := options.Split(words); len(rest) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return ask.NamesOfChecks(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	f := cmd.Flags()
	f.BoolVar(&opts.Act, "act", false, "carry out the actions of the check")
	f.BoolVar(&opts.NoShell, "no-shell", false, "do not run a check of the site's scripts")
	f.BoolVar(&opts.JSON, "json", false, "print one object of JSON")
	f.BoolVar(&opts.Redact, "redact", false, "remove serial numbers and UUIDs")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		own, rest := ownOptions(cmd, words)
		o, err := options.Parse(own, cmd)
		switch {
		case err == nil && o.Help:
			return cmd.Help()
		case err == nil && len(rest) == 0:
			err = errors.New("missing argument: want the name of a check; nhc-gpu checks lists them")
		case err == nil:
			o.Eval, err = checkLine(o, rest)
		}
		if err != nil {
			return options.Wrong{Err: err}
		}
		return report.Print(o, opts, version, exit)
	}
	return cmd
}

// ownOptions divides the arguments of the command. Its long options may also follow those of the
// check: no check has options of these names.
func ownOptions(cmd *cobra.Command, words []string) (own, rest []string) {
	own, rest = options.Split(words)
	rest = slices.DeleteFunc(slices.Clone(rest), func(w string) bool {
		name, long := strings.CutPrefix(w, "--")
		ours := long && (name == "help" || cmd.Flags().Lookup(name) != nil)
		if ours {
			own = append(slices.Clip(own), w)
		}
		return ours
	})
	return own, rest
}

// checkLine returns the line of nhc.conf that runs a check.
func checkLine(o *options.Options, words []string) (string, error) {
	name := words[0]
	if _, ok := checks.Lookup("check_" + name); ok {
		name = "check_" + name
	}
	info, native := checks.Lookup(name)
	var wrong error
	if native {
		wrong = checks.Bind(info.New(), words[1:])
	}
	if !native || wrong != nil {
		r, _, err := report.Open(&options.Options{Set: o.Set, Words: o.Words, Eval: ":"}, report.Options{})
		if err != nil {
			return "", err
		}
		defer r.Close()
		var own []string
		for _, script := range r.Bash.Scripts {
			if !script.Stock {
				own = append(own, script.Functions...)
			}
		}
		known := append(checks.Names(), own...)
		switch {
		case wrong != nil && !slices.Contains(own, name):
			return "", fmt.Errorf("%s: %w; usage: %s %s%s", name, wrong, name, info.Usage, misplaced(words))
		case !slices.Contains(known, name):
			return "", fmt.Errorf("there is no check %q%s", name, cmp.Or(spell.DidYouMean(name, known), "; nhc-gpu checks lists them"))
		}
	}
	line := []string{name}
	for _, w := range words[1:] {
		quoted, err := syntax.Quote(w, syntax.LangBash)
		if err != nil {
			return "", fmt.Errorf("argument %q: %w", w, err)
		}
		line = append(line, quoted)
	}
	return strings.Join(line, " "), nil
}

// misplaced returns a hint if an option of LBNL NHC, or a setting, follows the name of the check.
func misplaced(words []string) string {
	for _, w := range words[1:] {
		name, _, set := strings.Cut(w, "=")
		if len(w) == 2 && w[0] == '-' && strings.Contains(options.Spec, w[1:]) || set && name == strings.ToUpper(name) {
			return "; options of nhc-gpu and settings come before NAME: nhc-gpu check " + w + " " + words[0]
		}
	}
	return ""
}
