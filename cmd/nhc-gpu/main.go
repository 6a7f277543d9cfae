// Command nhc-gpu answers whether this node may take, or keep, a job, and acts
// on the answer. slurmd starts it as HealthCheckProgram, Prolog or Epilog; a
// person starts it as "nhc-gpu --check".
//
// It takes the command line and the configuration of LBNL Node Health Check.
// All that may block for ever happens in worker processes, which are this same
// program started once more.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	_ "github.com/nhc-gpu/nhc-gpu/checks/all"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/wrap"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// version is set by the linker.
var version = "dev"

// ownName is what the program is called where it is more than LBNL NHC.
const ownName = "nhc-gpu"

func main() {
	if err := enter(); err != nil {
		fmt.Fprintln(console.Alerts, "nhc-gpu:", err)
		os.Exit(exitUnknown)
	}
	os.Exit(guarded(os.Args))
}

// guarded keeps a panic of ours from the user.
func guarded(argv []string) (exit int) {
	defer func() {
		if p := recover(); p != nil {
			exit = crash(argv, p, debug.Stack())
		}
	}()
	return start(argv)
}

// aroundArgs is the role by a word, behind a mistake, too, else by the environment. A
// person who asks as if in a role is told by the exit status what went wrong.
func aroundArgs(argv []string) slurm.Role {
	if len(argv) > 1 && filepath.Base(argv[0]) == ownName && !isCommand(argv[1]) && !slices.Contains(argv, "--check") {
		for _, role := range jobRoles {
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
	if argv[0] == run.WorkerName {
		return worker(argv[1:])
	}
	if name, ok := strings.CutSuffix(argv[0], detachedSuffix); ok && name != "" {
		return detachedHealth(append([]string{name}, argv[1:]...))
	}
	name := filepath.Base(argv[0])
	switch name {
	case "node-mark-offline", "node-mark-online":
		return node.Mark(console.Screen, name, argv)
	case ownName:
		if isOurs(argv[1:]) {
			return execute(argv)
		}
	}
	switch {
	case strings.HasSuffix(name, "-genconf"):
		return generateConf(argv)
	case strings.HasSuffix(name, "-wrapper"):
		return wrap.Run(argv, setting.FixedPath)
	}
	opts, err := parseOptions(argv[1:], nil)
	return health(argv, opts, err)
}

// worker is the other half of this program: "shell PROGRAM" becomes bash,
// "LANE ROOT" answers requests, "states ROOT LIBRARY" asks the driver of GPUs,
// "ports ROOT PORTS" asks for their transceivers.
func worker(args []string) int {
	if len(args) == 2 && args[0] == "shell" {
		err := run.BecomeShell(args[1])
		fmt.Fprintln(console.Alerts, "nhc-gpu:", err)
		return 127
	}
	if len(args) == 2 {
		return run.Worker(args[1], node.PlatformsOf)
	}
	if len(args) == 3 && args[0] == run.PortsName {
		return run.PrintPorts(args[1], args[2])
	}
	if len(args) == 4 && args[0] == run.StatesName {
		return run.PrintStates(args[1], args[2], args[3])
	}
	fmt.Fprintf(console.Alerts, "nhc-gpu: %s is the name of nhc-gpu's own workers; do not start it by hand\n", run.WorkerName)
	return 2
}
