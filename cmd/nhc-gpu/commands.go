package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/genconf"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/topo"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/wrap"
)

// isCommand reports whether the first word behind nhc-gpu names a command: it is neither
// an option nor VAR=value.
func isCommand(word string) bool {
	return word != "" && word[0] != '-' && !strings.Contains(word, "=")
}

// isOurs reports whether the words have one that LBNL NHC does not know. Other runs need
// no tree of commands, and do not pay for it.
func isOurs(words []string) bool {
	return len(words) > 0 && isCommand(words[0]) ||
		slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(w, "--") })
}

// execute runs nhc-gpu as the words ask for.
func execute(argv []string) (exit int) {
	root := rootCommand(argv, &exit)
	if isCommand(argv[1]) { // cobra would find one behind options, too
		root.AddCommand(commands(&exit)...)
	}
	root.CompletionOptions.DisableDefaultCmd = !root.HasSubCommands()
	root.SetArgs(argv[1:])
	err := root.Execute()
	if err == nil {
		return exit
	}
	fmt.Fprintln(console.Alerts, "nhc-gpu:", err)
	if errors.As(err, new(unusableError)) {
		return exitUnknown
	}
	return exitUsage
}

// rootCommand is LBNL NHC's command line with our options: a health check, or what
// --check and --baseline ask for.
func rootCommand(argv []string, exit *int) *cobra.Command {
	var check, printVersion bool
	var baseline string
	opts := reportOptions{runs: true}
	root := &cobra.Command{
		Use:           ownName,
		Short:         "Check whether a GPU node can accept, or keep, a job",
		SilenceErrors: true, SilenceUsage: true, DisableFlagParsing: true,
		Args: cobra.ArbitraryArgs,
	}
	f := root.Flags()
	f.BoolVar(&check, "check", false, "run all checks and print a table")
	f.BoolVar(&opts.act, "act", false, "with --check: carry out the actions of the checks")
	f.BoolVar(&opts.noShell, "no-shell", false, "with --check: skip shell lines")
	f.BoolVar(&opts.json, "json", false, "with --check: print one object of JSON")
	f.BoolVar(&opts.redact, "redact", false, "with --check: remove serial numbers and UUIDs")
	f.StringVar(&baseline, baselineName, "", "learn what this node reaches")
	f.Lookup(baselineName).NoOptDefVal = baselineRuns
	f.BoolVar(&printVersion, "version", false, "print the version")
	addRoles(root)
	root.InitDefaultHelpFlag() // for completion
	perCommand := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, words []string) {
		if cmd == root {
			help(ownName)
		} else {
			perCommand(cmd, words)
		}
	})
	root.RunE = func(cmd *cobra.Command, words []string) error {
		o, err := parseOptions(words, cmd)
		if err == nil && o.help {
			return cmd.Help()
		}
		learn := f.Changed(baselineName)
		for _, name := range []string{"act", "no-shell", "json", "redact"} {
			if err == nil && f.Changed(name) && !check {
				err = fmt.Errorf("--%s is an option of --check", name)
			}
		}
		switch {
		case err == nil && printVersion:
			fmt.Fprintln(console.Screen, "nhc-gpu version", version)
		case err == nil && check && learn:
			return errors.New("--check and --baseline exclude each other")
		case !check && !learn:
			*exit = health(argv, o, err)
		case err != nil:
			return err
		case check:
			return report(o, opts, exit)
		default:
			return learnBaseline(baseline, o, exit)
		}
		return nil
	}
	return root
}

// commands are those of nhc-gpu.
func commands(exit *int) []*cobra.Command {
	plan := &cobra.Command{
		Use:   "plan [LBNL options]",
		Short: "Print the steps that the configuration comes to",
		Long: `Prints, for every check line of this host, where it stands, in which worker it
runs, whether it is a check of this program or a line for the shell (and why),
and its deadline. Runs nothing. Exit status is 1 if a line is wrong.`,
	}
	return append(xidCommands(), selftestCommand(exit), jobCommand(), platformsCommand(), topoCommand(), topo.Cabling(), lintCommand(exit),
		withOptions(plan, func(o *options) error { return printPlan(o, exit) }),
		&cobra.Command{
			Use: "version", Short: "Print the version", Args: cobra.NoArgs,
			Run: func(*cobra.Command, []string) { fmt.Fprintln(console.Screen, "nhc-gpu", version) },
		},
		&cobra.Command{
			Use: genconf.Name + " [options]", Short: "Write a configuration that passes on this node (nhc-genconf)", DisableFlagParsing: true,
			Run: func(_ *cobra.Command, words []string) { *exit = generateConf(getoptsWords(genconf.Name, words)) },
		},
		&cobra.Command{
			Use: wrap.Name + " [options] [words]", Short: "Run it and print or mail what has changed (nhc-wrapper)", DisableFlagParsing: true,
			Run: func(_ *cobra.Command, words []string) {
				*exit = wrap.Run(getoptsWords(wrap.Name, words), setting.FixedPath)
			},
		})
}

func topoCommand() *cobra.Command {
	var asJSON bool
	return withOptions(topo.Command(&asJSON), func(o *options) error {
		r, _, err := forPeople(o, reportOptions{})
		if err != nil {
			return err
		}
		defer r.close()
		r.Pool.SetVars(r.Set.WorkerVars())
		return topo.Print(r.Ctx, r.Pool, session.Reading, asJSON)
	})
}

// withOptions makes a command take LBNL NHC's options, and a role.
func withOptions(cmd *cobra.Command, do func(*options) error) *cobra.Command {
	addRoles(cmd)
	cmd.DisableFlagParsing = true
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		o, err := parseOptions(words, cmd)
		if err == nil && o.help {
			return cmd.Help()
		}
		if err != nil {
			return err
		}
		return do(o)
	}
	return cmd
}

func addRoles(cmd *cobra.Command) {
	for _, role := range jobRoles {
		cmd.Flags().Bool(role.String(), false, "as Slurm's "+role.String())
		cmd.Flags().Lookup(role.String()).Hidden = cmd.Name() != ownName // from the help of the command
	}
}

// unusableError is a configuration by which nothing can be checked.
type unusableError struct{ error }

func (e unusableError) Unwrap() error { return e.error }

// getoptsWords is the command line of a command that knows LBNL NHC's letters alone: as
// every other command it has --help, too.
func getoptsWords(name string, words []string) []string {
	if len(words) > 0 && words[0] == "--help" {
		words = []string{"-h"}
	}
	return append([]string{name}, words...)
}
