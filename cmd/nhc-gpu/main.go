// Command nhc-gpu checks whether this node can accept, or keep, a job, and drains or resumes the
// node. slurmd starts it as HealthCheckProgram, Prolog or Epilog; a person starts it as
// "nhc-gpu --check".
//
// It accepts the command line and the configuration of LBNL Node Health Check. Whatever may
// block for ever runs in worker processes, which are the same executable.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/run/worker"

	_ "github.com/nhc-gpu/nhc-gpu/checks/all"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/genconf"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/health"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/lint"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/wrap"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// version and commit are set by the linker.
var version, commit = "dev", ""

// build returns the version with its commit.
func build() string {
	if commit == "" {
		return version
	}
	return version + " (commit " + commit + ")"
}

func main() {
	if err := enter(); err != nil {
		fmt.Fprintln(console.Alerts, "nhc-gpu:", err)
		os.Exit(exitUnknown)
	}
	os.Exit(guarded(os.Args))
}

// guarded turns a panic into a report and an exit status.
func guarded(argv []string) (exit int) {
	defer func() {
		if p := recover(); p != nil {
			exit = crash(argv, p, debug.Stack())
		}
	}()
	return start(argv)
}

// aroundArgs returns the role that an option names, even after a mistake, or else that of the
// environment. A command, or --check, of a person has none: its exit status reports a mistake.
func aroundArgs(argv []string) slurm.Role {
	if len(argv) > 1 && options.IsOwn(argv[0]) && !options.IsCommand(argv[1]) && !slices.Contains(argv, "--check") {
		for _, role := range options.JobRoles {
			if slices.Contains(argv, "--"+role.String()) {
				return role
			}
		}
	}
	return slurm.RoleOf(os.Getenv)
}

func start(argv []string) int {
	if len(argv) == 0 {
		argv = []string{"nhc-gpu"}
	}
	if argv[0] == wire.WorkerName {
		return work(argv[1:])
	}
	if name, ok := strings.CutSuffix(argv[0], health.DetachedSuffix); ok && name != "" {
		return detachedHealth(append([]string{name}, argv[1:]...))
	}
	name := filepath.Base(argv[0])
	switch {
	case name == "node-mark-offline" || name == "node-mark-online":
		return node.Mark(console.Screen, name, argv)
	case strings.HasSuffix(name, "-genconf"):
		return genconf.Run(argv, version)
	case strings.HasSuffix(name, "-wrapper"):
		return wrap.Run(argv, setting.FixedPath)
	case options.IsOwn(name) && isOurs(argv[1:]):
		return execute(argv)
	}
	opts, err := options.Parse(argv[1:], nil)
	if err == nil && options.IsOwn(name) {
		err = opts.WrongName()
	}
	return checkHealth(argv, opts, err)
}

// work is the other half of this program: "shell PROGRAM" becomes bash,
// "LANE ROOT" answers requests, "states ROOT LIBRARY DIRS" reads the states of the GPUs from the
// driver, "ports ROOT PORTS" asks for their transceivers.
func work(args []string) int {
	if len(args) == 2 && args[0] == "shell" {
		err := run.BecomeShell(args[1])
		fmt.Fprintln(console.Alerts, "nhc-gpu:", err)
		return 127
	}
	if len(args) == 2 {
		return worker.Serve(args[1], node.PlatformsOf)
	}
	if len(args) == 3 && args[0] == worker.PortsName {
		return worker.PrintPorts(args[1], args[2])
	}
	if len(args) == 4 && args[0] == worker.StatesName {
		return worker.PrintStates(args[1], args[2], args[3])
	}
	fmt.Fprintf(console.Alerts, "nhc-gpu: %s is the name of nhc-gpu's own workers; do not start it by hand\n", wire.WorkerName)
	return 2
}

// exitUnknown is the exit status of a run that could not determine the node's health.
const exitUnknown = verdict.ExitUnknown

// checkHealth makes a run as LBNL NHC does, and returns the exit status. err is a mistake in the
// options.
func checkHealth(argv []string, opts *options.Options, err error) int {
	if around := aroundArgs(argv); err != nil && around.AroundJob() {
		fmt.Fprintln(console.Alerts, "nhc-gpu:", err)
		return health.UncheckedJob(around, options.ExitUsage)
	}
	if err != nil && options.IsOwn(argv[0]) && !opts.LikeLBNL() {
		options.Refuse(options.OwnName, err)
		return options.ExitUsage
	}
	if err != nil {
		options.Help(argv[0])
		if !errors.As(err, new(*checks.UsageError)) { // LBNL NHC prints no more about a letter
			fmt.Fprintln(console.Alerts, "nhc-gpu:", err)
		}
		return options.ExitUsage
	}
	if opts.Help {
		options.Help(argv[0])
		return 0
	}
	if options.IsOwn(argv[0]) && !opts.LikeLBNL() {
		warnOfSettings(opts)
	}
	r := health.New(argv, opts)
	r.Version = version
	return r.Check()
}

// warnOfSettings reports wrong values and misspelt names of settings on the command line, as lint
// does for a file. The run uses them nevertheless, as LBNL NHC does.
func warnOfSettings(opts *options.Options) {
	given := slices.Clone(opts.Set)
	for _, w := range opts.Words {
		name, value, _ := strings.Cut(w, "=")
		given = append(given, options.Assignment{Name: name, Value: value})
	}
	for _, a := range given {
		if text := lint.SettingWarning(a.Name, a.Value); text != "" {
			fmt.Fprintln(console.Alerts, "nhc-gpu: warning:", text)
		}
	}
}

// detachedHealth is the background half of a run.
func detachedHealth(argv []string) int {
	opts, err := options.Parse(argv[1:], nil)
	if err != nil || opts.Help {
		return options.ExitUsage // its parent has refused them
	}
	r := health.New(argv, opts)
	r.Background, r.Version = true, version
	return r.Check()
}
