package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/ask"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/baseline"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/genconf"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/lint"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/platforms"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/report"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/selftest"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/topo"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/wrap"
)

// isOurs reports whether the words have one that LBNL NHC does not know. Other runs need
// no tree of commands, and do not pay for it.
func isOurs(words []string) bool {
	return len(words) > 0 && options.IsCommand(words[0]) ||
		slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(w, "--") })
}

// execute runs nhc-gpu as the words ask for.
func execute(argv []string) (exit int) {
	root := rootCommand(argv, &exit)
	if options.IsCommand(argv[1]) { // cobra would find one behind options, too
		root.AddCommand(commands(&exit)...)
	}
	root.CompletionOptions.DisableDefaultCmd = !root.HasSubCommands()
	root.SetArgs(argv[1:])
	err := root.Execute()
	if err == nil {
		return exit
	}
	fmt.Fprintln(console.Alerts, "nhc-gpu:", err)
	if errors.As(err, new(report.Unusable)) {
		return exitUnknown
	}
	return options.ExitUsage
}

// rootCommand is LBNL NHC's command line with our options: a health check, or what
// --check and --baseline ask for.
func rootCommand(argv []string, exit *int) *cobra.Command {
	var check, printVersion bool
	var runs string
	opts := report.Options{Runs: true}
	root := &cobra.Command{
		Use:           options.OwnName,
		Short:         "Check whether a GPU node can accept, or keep, a job",
		SilenceErrors: true, SilenceUsage: true, DisableFlagParsing: true,
		Args: cobra.ArbitraryArgs,
	}
	f := root.Flags()
	f.BoolVar(&check, "check", false, "run all checks and print a table")
	f.BoolVar(&opts.Act, "act", false, "with --check: carry out the actions of the checks")
	f.BoolVar(&opts.NoShell, "no-shell", false, "with --check: skip shell lines")
	f.BoolVar(&opts.JSON, "json", false, "with --check: print one object of JSON")
	f.BoolVar(&opts.Redact, "redact", false, "with --check: remove serial numbers and UUIDs")
	f.StringVar(&runs, baseline.Name, "", "learn what this node reaches")
	f.Lookup(baseline.Name).NoOptDefVal = baseline.Runs
	f.BoolVar(&printVersion, "version", false, "print the version")
	options.AddRoles(root)
	root.InitDefaultHelpFlag() // for completion
	perCommand := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, words []string) {
		if cmd == root {
			options.Help(options.OwnName)
		} else {
			perCommand(cmd, words)
		}
	})
	root.RunE = func(cmd *cobra.Command, words []string) error {
		o, err := options.Parse(words, cmd)
		if err == nil && o.Help {
			return cmd.Help()
		}
		learn := f.Changed(baseline.Name)
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
			*exit = checkHealth(argv, o, err)
		case err != nil:
			return err
		case check:
			return report.Print(o, opts, version, exit)
		default:
			return baseline.Learn(runs, o, exit)
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
	return append(ask.Commands(), selftest.Command(version, exit), ask.Job(), platforms.Command(), topoCommand(), topo.Cabling(),
		options.With(lint.Command(), func(o *options.Options) error { return lintFor(o, exit) }),
		options.With(plan, func(o *options.Options) error { return planFor(o, exit) }),
		&cobra.Command{
			Use: "version", Short: "Print the version", Args: cobra.NoArgs,
			Run: func(*cobra.Command, []string) { fmt.Fprintln(console.Screen, "nhc-gpu", version) },
		},
		&cobra.Command{
			Use: genconf.Name + " [options]", Short: "Write a configuration that passes on this node (nhc-genconf)", DisableFlagParsing: true,
			Run: func(_ *cobra.Command, words []string) {
				*exit = genconf.Run(getoptsWords(genconf.Name, words), version)
			},
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
	return options.With(topo.Command(&asJSON), func(o *options.Options) error {
		r, _, err := report.Open(o, report.Options{})
		if err != nil {
			return err
		}
		defer r.Close()
		r.Pool.SetVars(r.Set.WorkerVars())
		return topo.Print(r.Ctx, r.Pool, session.Reading, asJSON)
	})
}

// getoptsWords is the command line of a command that knows LBNL NHC's letters alone: as
// every other command it has --help, too.
func getoptsWords(name string, words []string) []string {
	if len(words) > 0 && words[0] == "--help" {
		words = []string{"-h"}
	}
	return append([]string{name}, words...)
}

func lintFor(o *options.Options, exit *int) error {
	r, err := report.Start(o)
	if err != nil {
		return err
	}
	defer r.Close()
	unusable := r.Sysconfig()
	report.Quiet(r)
	*exit, err = lint.Run(r.Files, unusable, version)
	return err
}

func planFor(o *options.Options, exit *int) error {
	r, from, err := report.Open(o, report.Options{})
	if err != nil {
		return err
	}
	defer r.Close()
	*exit, err = lint.PrintPlan(r.Files, from)
	return err
}
