package main

import (
	"errors"
	"fmt"
	"log/syslog"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// memory is a part of what runs of root remember, which an operator may clear.
type memory struct {
	flag     string // what the command is given for it: "--ib "
	clear    func(env *checks.Env, words []string, who string) (cleared []string, err error)
	thisBoot func(env *checks.Env) bool
}

// clearCommand is an operator's word that something is over.
func clearCommand() *cobra.Command {
	var ports, baseline, active bool
	cmd := &cobra.Command{
		Use:   "clear [DEVICE] [CODE] | clear --ib [DEVICE] | clear --baseline [TEST] | clear --active [CHECK]",
		Short: "Take errors of a GPU or a port off the node: an operator's word",
		Long: `Tells check_gpu_xid that errors are over: those of one GPU (gpu3, 0000:c1:00.0,
GPU-...), of one code (79, sxid:12028), of both, or all. With --ib it tells
check_ib_errors and check_ib_link_flapping the same of a port (mlx5_3,
mlx5_3:1, 'mlx5_*'), or of all. It holds for what has been logged and counted
until now; what comes later counts again. The next run resumes the node if
nothing else is wrong. With --baseline what active tests have learned of this
node is forgotten, of one test or all; with --active what they have found: the
last result of one check or all; a node that was drained for it stays so until
the test has run and passed, or a person resumes it. Who did it is written to
syslog. Needs root.`,
		Example: `  nhc-gpu clear gpu6 79
  nhc-gpu clear --ib mlx5_3
  nhc-gpu clear --baseline
  nhc-gpu clear --active check_gpu_gemm
  nhc-gpu clear`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, words []string) error {
			switch {
			case ports && baseline, ports && active, baseline && active:
				return errors.New("clear: --ib, --baseline and --active are things apart: say one after the other")
			case active:
				return memory{"--active ", checks.ClearActive, checks.ActiveOfThisNode}.clearWords(words)
			case baseline:
				return memory{"--baseline ", checks.ClearBaseline, checks.BaselineOfThisNode}.clearWords(words)
			case ports:
				return memory{"--ib ", checks.ClearIB, checks.PortsOfThisBoot}.clearWords(words)
			}
			return memory{"", checks.ClearXids, checks.XidsOfThisBoot}.clearWords(words)
		},
	}
	cmd.Flags().BoolVar(&ports, "ib", false, "errors and flaps of InfiniBand and RoCE ports")
	cmd.Flags().BoolVar(&baseline, "baseline", false, "what active tests have learned of this node")
	cmd.Flags().BoolVar(&active, "active", false, "what active tests have found on this node")
	return cmd
}

func (m memory) clearWords(words []string) error {
	env, rest := xidEnv(words)
	node := nodeFromEnviron(os.Getenv, slurm.Manual)
	if node.bad != nil {
		return node.bad
	}
	if dir, _ := node.past(); dir == "" {
		return errors.New("clear: only root can clear what runs of root remember")
	}
	who := whoAsks()
	cleared, err := m.everywhere(env, node.name, rest, who)
	if err != nil {
		return err
	}
	what := strings.Join(cleared, ", ")
	if what == "" {
		what = "nothing that is known"
	}
	sendSyslogAs(syslog.LOG_NOTICE, "nhc", []string{fmt.Sprintf("nhc-gpu clear %s%s: by %s: cleared %s", m.flag, strings.Join(rest, " "), who, what)})
	fmt.Println("cleared", what)
	return nil
}

// everywhere clears in what the node remembers, by every name that it has: slurmd
// may call it otherwise than its host name, and tells only its own children.
func (m memory) everywhere(env *checks.Env, node string, words []string, who string) (cleared []string, err error) {
	names := append(env.Host.PastNames(pastRoot), env.Host.PastNames(stateRoot)...)
	slices.Sort(names)
	for _, name := range append([]string{node}, slices.Compact(names)...) {
		dir, spare := pastOf(name)
		env.Host.SetPast(dir, spare)
		if name != node && !m.thisBoot(env) {
			continue // a node that has the same disk, or none
		}
		more, err := m.clear(env, words, who)
		if _, elsewhere := errors.AsType[*probe.SpareError](err); elsewhere {
			fmt.Fprintln(os.Stderr, "nhc-gpu: warning:", err)
		} else if err != nil {
			return nil, err
		}
		cleared = append(cleared, more...)
	}
	slices.Sort(cleared)
	return slices.Compact(cleared), nil
}
