package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks"
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
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/sweep"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/topo"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/wrap"
	"github.com/nhc-gpu/nhc-gpu/conf/spell"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// isOurs reports whether the arguments have one that LBNL NHC does not have. Other runs need no
// tree of commands, and do not pay for it.
func isOurs(words []string) bool {
	return len(words) > 0 && options.IsCommand(words[0]) ||
		slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(w, "--") })
}

// execute runs the command that the arguments name.
func execute(argv []string) (exit int) {
	root := rootCommand(argv, &exit)
	if options.IsCommand(argv[1]) { // cobra would find one behind options, too
		root.AddCommand(commands(&exit)...)
	}
	root.CompletionOptions.DisableDefaultCmd = !root.HasSubCommands()
	root.InitDefaultCompletionCmd(argv[1:]...)
	if c, _, err := root.Find([]string{"completion"}); err == nil && c != root {
		describeCompletion(c)
	}
	root.SetArgs(argv[1:])
	cmd, err := root.ExecuteC()
	switch {
	case err == nil:
		return exit
	case errors.As(err, new(options.Wrong)):
		options.Refuse(cmd.CommandPath(), err)
		return options.ExitUsage
	}
	fmt.Fprintln(console.Alerts, "nhc-gpu:", err)
	if errors.As(err, new(report.Unusable)) {
		return exitUnknown
	}
	return options.ExitUsage
}

// describeCompletion gives cobra's command that writes completions a help of our form, and has it refuse a
// shell that it does not know.
func describeCompletion(c *cobra.Command) {
	c.Use, c.DisableFlagsInUseLine = "completion SHELL", true
	c.Short = "Print a completion script for bash, zsh, fish or powershell"
	c.Long = "Prints a script with which the shell completes commands, options and names.\n\nExit status: 0, 10 if there is no such shell."
	c.Example = "  nhc-gpu completion bash >/etc/bash_completion.d/nhc-gpu"
	for _, shell := range c.Commands() {
		shell.Short = "Print a completion script for " + shell.Name()
	}
	help := c.RunE
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(cmd *cobra.Command, words []string) error {
		if len(words) > 0 {
			return options.Wrong{Err: fmt.Errorf("there is no completion for the shell %q: want bash, zsh, fish or powershell", words[0])}
		}
		if help != nil {
			return help(cmd, words)
		}
		return cmd.Help()
	}
}

// unknownCommand returns the error for an unknown command.
func unknownCommand(root *cobra.Command, word string) error {
	if _, ok := checks.Lookup(word); ok {
		return fmt.Errorf("%s is a check: nhc-gpu check %s runs it, nhc-gpu explain %s describes it", word, word, word)
	}
	var names []string
	for _, c := range root.Commands() {
		names = append(names, c.Name())
	}
	return fmt.Errorf("there is no command %q%s", word, spell.DidYouMean(word, names))
}

// rootOptions are our options of a command line without a command.
type rootOptions struct {
	report.Options

	check, version bool
	learnRuns      string // of --baseline
}

// rootCommand is LBNL NHC's command line with our options: a health check, --check or --baseline.
func rootCommand(argv []string, exit *int) *cobra.Command {
	root := &cobra.Command{
		Use:           options.OwnName,
		Short:         "Check whether a GPU node can accept, or keep, a job",
		SilenceErrors: true, SilenceUsage: true, DisableFlagParsing: true,
		Args: cobra.ArbitraryArgs,
	}
	opts := &rootOptions{Options: report.Options{Runs: true}}
	opts.addTo(root)
	options.AddRoles(root)
	root.InitDefaultHelpFlag() // for completion
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		if cmd == root {
			options.Help(options.OwnName)
		} else {
			fmt.Fprint(console.Screen, options.CommandHelp(cmd))
		}
	})
	root.SetHelpCommand(helpCommand(root))
	root.SetFlagErrorFunc(options.FlagError)
	root.RunE = func(cmd *cobra.Command, words []string) error { return opts.run(cmd, argv, words, exit) }
	return root
}

func (o *rootOptions) addTo(root *cobra.Command) {
	f := root.Flags()
	f.BoolVar(&o.check, "check", false, "run all checks and print a table")
	f.BoolVar(&o.Act, "act", false, "with --check: carry out the actions of the checks")
	f.BoolVar(&o.Failed, "failed", false, "with --check: print only the rows that are not ok")
	f.BoolVar(&o.NoShell, "no-shell", false, "with --check: skip shell lines")
	f.BoolVar(&o.JSON, "json", false, "with --check: print one object of JSON")
	f.StringVar(&o.Format, "format", "", "with --check: "+strings.Join(report.Formats, ", "))
	root.ValidArgsFunction = func(_ *cobra.Command, words []string, word string) ([]string, cobra.ShellCompDirective) {
		switch {
		case len(words) > 0 && words[len(words)-1] == "--format":
			return report.Formats, cobra.ShellCompDirectiveNoFileComp
		case strings.HasPrefix(word, "-"):
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveDefault
	}
	f.BoolVar(&o.Redact, "redact", false, "with --check: remove serial numbers and UUIDs")
	f.StringVar(&o.learnRuns, baseline.Name, "", "record the baseline of this node")
	f.Lookup(baseline.Name).NoOptDefVal = baseline.Runs
	f.BoolVar(&o.version, "version", false, "print the version")
}

// run makes the run that a command line asks for.
func (o *rootOptions) run(cmd *cobra.Command, argv, words []string, exit *int) error {
	given, err := options.Parse(words, cmd)
	if err == nil && given.Help {
		return cmd.Help()
	}
	if len(words) > 0 && options.IsCommand(words[0]) {
		err = unknownCommand(cmd, words[0])
	}
	f := cmd.Flags()
	learn := f.Changed(baseline.Name)
	for _, name := range []string{"act", "failed", "no-shell", "json", "redact", "format"} {
		if err == nil && f.Changed(name) && !o.check {
			err = fmt.Errorf("--%s is an option of --check", name)
		}
	}
	if err == nil && learn && len(given.Words) > 0 && strings.Trim(given.Words[0], "0123456789") == "" {
		err = fmt.Errorf("--baseline %s: write --baseline=%s", given.Words[0], given.Words[0])
	}
	if err == nil && f.Changed("format") {
		err = o.UseFormat()
	}
	switch {
	case err == nil && o.version:
		fmt.Fprintln(console.Screen, "nhc-gpu version", build())
	case err == nil && o.check && learn:
		return options.Wrong{Err: errors.New("--check and --baseline exclude each other")}
	case !o.check && !learn:
		*exit = checkHealth(argv, given, err)
	case err != nil:
		return options.Wrong{Err: err}
	case o.check:
		return report.Print(given, o.Options, version, exit)
	default:
		return baseline.Learn(o.learnRuns, given, exit)
	}
	return nil
}

// commands returns the commands of nhc-gpu.
func commands(exit *int) []*cobra.Command {
	plan := &cobra.Command{
		Use:   "plan [LBNL options]",
		Short: "Show how each line of the configuration is interpreted",
		Long: `Prints for each line of nhc.conf for this host: its place, the worker that runs
it, whether it is a built-in check or a shell line (and why), and its time limit.
!! marks an error, ?? a probable mistake. Runs no check.

With --policy it prints what becomes of failures instead: for each code, check and
class with a policy its action, after how many runs it acts, when the node is
resumed, and why.

Exit status: 0, 1 if a line has an error, 3 if the configuration cannot be used.`,
		Example: `  nhc-gpu plan
  nhc-gpu plan --policy
  nhc-gpu plan -c nhc.conf.new
  nhc-gpu plan --prolog`,
	}
	policies := plan.Flags().Bool("policy", false, "print the policies for failures instead")
	list := append(ask.Commands(), checkCommand(exit), selftest.Command(version, exit, ask.Installed), ask.Drill(exit), ask.Remedy(exit), ask.Monitor(exit), sweep.Command(version, exit), ask.Job(), ask.Status(version, exit), platforms.Command(), topoCommand(), topo.Cabling(),
		lintCommand(exit),
		options.With(plan, func(o *options.Options) error { return planFor(o, *policies, exit) }),
		&cobra.Command{
			Use: "version", Short: "Print the version", Args: options.Takes(0, 0, ""),
			Long: "Prints the version, as --version does.\n\nExit status: 0.", Example: "  nhc-gpu version",
			Run: func(*cobra.Command, []string) { fmt.Fprintln(console.Screen, "nhc-gpu", build()) },
		},
		&cobra.Command{
			Use: genconf.Name + " [options]", Short: "Write a configuration that passes on this node (nhc-genconf)", DisableFlagParsing: true,
			Run: func(_ *cobra.Command, words []string) {
				*exit = genconf.Run(getoptsWords(genconf.Name, words), version)
			},
		},
		&cobra.Command{
			Use: wrap.Name + " [options] [words]", Short: "Run a check and print or mail the changes (nhc-wrapper)", DisableFlagParsing: true,
			Run: func(_ *cobra.Command, words []string) {
				*exit = wrap.Run(getoptsWords(wrap.Name, words), setting.FixedPath)
			},
		})
	for _, cmd := range list {
		cmd.DisableFlagsInUseLine = true
	}
	return list
}

// helpCommand prints the help of the program, or of a command.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Show this help, or that of a command", DisableFlagsInUseLine: true,
		Long: "Prints the help of the program, or of a command.\n\nExit status: 0, 10 if there is no such command.", Example: "  nhc-gpu help plan",
		ValidArgsFunction: func(_ *cobra.Command, words []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			for _, c := range root.Commands() {
				if len(words) == 0 && c.IsAvailableCommand() {
					names = append(names, c.Name()+"\t"+c.Short)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, words []string) error {
			cmd, rest, _ := root.Find(words)
			switch {
			case len(rest) > 0:
				return options.Wrong{Err: unknownCommand(root, rest[0])}
			case cmd.DisableFlagParsing && cmd.Run != nil: // it prints its help itself
				cmd.Run(cmd, []string{"--help"})
				return nil
			}
			return cmd.Help()
		},
	}
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

// getoptsWords returns the command line of a command that has LBNL NHC's letters only, and --help
// like every other command.
func getoptsWords(name string, words []string) []string {
	if len(words) > 0 && words[0] == "--help" {
		words = []string{"-h"}
	}
	return append([]string{name}, words...)
}

func lintCommand(exit *int) *cobra.Command {
	cmd, what := lint.Command()
	options.With(cmd, func(o *options.Options) error {
		if o.Role != slurm.Manual {
			return options.Wrong{Err: fmt.Errorf("lint judges the runs of every context: remove --%s; nhc-gpu plan --%s shows one", o.Role, o.Role)}
		}
		r, err := report.Start(o)
		if err != nil {
			return err
		}
		defer r.Close()
		var unusable error
		if len(what.Files) == 0 {
			unusable = r.Sysconfig()
		}
		report.Quiet(r)
		*exit, err = lint.Run(r.Files, what, unusable, version)
		return err
	})
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, words []string) error { return run(cmd, what.Words(words)) }
	return cmd
}

func planFor(o *options.Options, policies bool, exit *int) error {
	r, from, err := report.Open(o, report.Options{})
	if err != nil {
		return report.Undone(err)
	}
	defer r.Close()
	if policies {
		return lint.PrintPolicies(r.Files)
	}
	*exit, err = lint.PrintPlan(r.Files, from)
	return err
}
