package sweep

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/session/outputs"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/rank"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/health"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/report"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/sweeppage"
)

// rankCommand is what the nodes run.
func rankCommand(version string, exit *int) *cobra.Command {
	return &cobra.Command{
		Use: "rank", Hidden: true, Short: "Test this node as a part of a sweep", Args: options.Takes(0, 0, ""),
		Long:    "The launcher of a sweep starts it on each node by srun. It reads a ticket\nfrom its standard input.\n\nExit status: 0, 1 if it lost its launcher.",
		Example: "  nhc-gpu sweep rank", DisableFlagsInUseLine: true,
		RunE: func(*cobra.Command, []string) error {
			unbound()
			if err := rank.Serve(context.Background(), os.Stdin, rankOptions(version)); err != nil {
				fmt.Fprintln(console.Stderr, "nhc-gpu sweep rank:", err)
				*exit = 1
			}
			return nil
		},
	}
}

// rankOptions returns what a rank needs of the node's files: the settings of its sysconfig file, its platforms, and
// nccl_env of nhc.toml. If that has none, nccl_env of nhc-active.toml is used: NCCL's tests are often there. set
// overrides settings.
func rankOptions(version string, set ...options.Assignment) rank.Options {
	o := rank.Options{Version: version}
	r, err := readFiles(set)
	if r != nil {
		defer r.Close()
		o.Settings, o.Platform = r.Set.Vars, node.PlatformsOf(r.Set.ProfilesFrom, r.Set.Profiles)
		o.NCCL.Env = envOf(r)
	}
	if err == nil && len(o.NCCL.Env) == 0 {
		var active *health.Run
		active, err = readFiles(append(slices.Clip(set), options.Assignment{Name: "NAME", Value: "nhc-active"}))
		if active != nil {
			defer active.Close()
			o.NCCL.Env = envOf(active)
		}
	}
	if err != nil {
		logLine("the settings of this node cannot be read: %v", err)
		if os.Geteuid() == 0 { // others may have no right to read them
			o.NCCL.Err = err
		}
	}
	return o
}

func envOf(r *health.Run) []string {
	if r.Config == nil {
		return nil
	}
	return r.Config.NCCLEnv
}

// readFiles reads the sysconfig file and the configuration of a run. It returns an error beside the part that could
// be read.
func readFiles(set []options.Assignment) (*health.Run, error) {
	r, err := report.Start(&options.Options{Set: set})
	if err != nil {
		return nil, err
	}
	if err := r.Sysconfig(); err != nil {
		return r, err
	}
	report.Quiet(r)
	return r, errors.Join(r.Open(nil, nil)...)
}

// workCommand is what a rank starts for a test of NCCL.
func workCommand(exit *int) *cobra.Command {
	return &cobra.Command{
		Use: "work", Hidden: true, Short: "Carry out a test of a rank with the GPUs of this node", Args: options.Takes(0, 0, ""),
		Long:    "A rank starts it for a test of NCCL, and ends it. It reads the test from its\nstandard input.\n\nExit status: 0, 1 if the test could not begin.",
		Example: "  nhc-gpu sweep work", DisableFlagsInUseLine: true,
		RunE: func(*cobra.Command, []string) error {
			unbound()
			if err := rank.Work(context.Background(), os.Stdin, os.Stdout); err != nil { // JSON for the rank
				fmt.Fprintln(console.Stderr, "nhc-gpu sweep work:", err)
				*exit = 1
			}
			return nil
		},
	}
}

// unbound lifts the limits of the runtime that are for short runs of checks.
func unbound() {
	debug.SetGCPercent(100)
	debug.SetMemoryLimit(math.MaxInt64)
	runtime.GOMAXPROCS(min(8, runtime.NumCPU()))
}

// noteCommand is what a rank starts to write a suspicion into the history of its node.
func noteCommand(exit *int) *cobra.Command {
	return &cobra.Command{
		Use: "note", Hidden: true, Short: "Add an event of a sweep to the history of this node", Args: options.Takes(0, 0, ""),
		Long:    "A rank starts it at the end of a sweep, on a node that is suspect. It reads the\nevent from its standard input. Needs root.\n\nExit status: 0, 1 if the history does not have the event.",
		Example: "  nhc-gpu sweep note", DisableFlagsInUseLine: true,
		RunE: func(*cobra.Command, []string) error {
			if err := addToHistory(os.Stdin); err != nil {
				fmt.Fprintln(console.Stderr, "nhc-gpu sweep note:", err)
				*exit = 1
			}
			return nil
		},
	}
}

// maxEvent bounds an event, bytes: it has at most 400 findings.
const maxEvent = 4 << 20

// addToHistory adds an event of a sweep to the history of this node, with the site's settings.
func addToHistory(in io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(in, maxEvent))
	if err != nil {
		return fmt.Errorf("read the event: %w", err)
	}
	e, err := event.Parse(data)
	if err != nil {
		return fmt.Errorf("read the event: %w", err)
	}
	r, _, err := report.Open(&options.Options{}, report.Options{})
	if err != nil {
		return err
	}
	defer r.Close()
	switch {
	case r.Bad != nil:
		return r.Bad
	case e.Context != sweeppage.Context || e.Schema != event.Schema:
		return fmt.Errorf("want an event of a sweep of schema %d, got one of %q of schema %d", event.Schema, e.Context, e.Schema)
	case e.Node != r.Name:
		return fmt.Errorf("this is node %s, the event is of node %q", r.Name, e.Node)
	}
	r.Pool.SetVars(r.Set.WorkerVars())
	e.Changed = []string{event.NewFinding}
	return outputs.Add(r.Node, r.Config.Outputs(), e)
}
