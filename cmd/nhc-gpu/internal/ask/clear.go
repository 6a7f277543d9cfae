package ask

import (
	"errors"
	"fmt"
	"log/syslog"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/health"
)

// memory is a part of what runs of root remember, which an operator may clear.
type memory struct {
	flag string // its option of the command: "--ib "
	kind string // as the worker calls it
}

// clearCommand is an operator's word that something is over.
func clearCommand() *cobra.Command {
	var ports, baseline, active bool
	cmd := &cobra.Command{
		Use:   "clear [DEVICE] [CODE] | clear --ib [DEVICE] | clear --baseline [TEST] | clear --active [CHECK]",
		Short: "Take errors of a GPU or a port off the node: an operator's word",
		Long: `Tells check_gpu_xid that errors are over: those of one GPU (gpu3, 0000:c1:00.0,
GPU-...), of one code (79, sxid:12028), of both, or all. With --ib it tells
check_ib_errors, check_ib_link_flapping and check_kernel_log the same of a port
(mlx5_3, mlx5_3:1, 'mlx5_*') or disk (nvme3), or of all. It holds for what has
been logged and counted until now; what comes later counts again. The next run
resumes the node if nothing else is wrong. With --baseline what active tests have learned of this
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
				return memory{"--active ", wire.ClearActive}.clearWords(words)
			case baseline:
				return memory{"--baseline ", wire.ClearBaseline}.clearWords(words)
			case ports:
				return memory{"--ib ", wire.ClearPorts}.clearWords(words)
			}
			return memory{"", wire.ClearXid}.clearWords(words)
		},
	}
	cmd.Flags().BoolVar(&ports, "ib", false, "errors and flaps of InfiniBand and RoCE ports")
	cmd.Flags().BoolVar(&baseline, "baseline", false, "what active tests have learned of this node")
	cmd.Flags().BoolVar(&active, "active", false, "what active tests have found on this node")
	return cmd
}

func (m memory) clearWords(words []string) error {
	r, rest, err := xidRun(words)
	if err != nil {
		return err
	}
	defer r.Close()
	switch {
	case r.Bad != nil:
		return r.Bad
	case r.Set.Past == "":
		return errors.New("clear: only root can clear what runs of root remember")
	}
	who := whoAsks()
	cleared, err := m.everywhere(r, rest, who)
	if err != nil {
		return err
	}
	what := strings.Join(cleared, ", ")
	if what == "" {
		what = "nothing that is known"
	}
	sink.SyslogAs(syslog.LOG_NOTICE, "nhc", []string{fmt.Sprintf("nhc-gpu clear %s%s: by %s: cleared %s", m.flag, strings.Join(rest, " "), who, what)})
	fmt.Fprintln(console.Screen, "cleared", what)
	return nil
}

// everywhere clears in what the node remembers, by every name that it has: slurmd
// may call it otherwise than its host name, and tells only its own children.
func (m memory) everywhere(r *health.Run, words []string, who string) (cleared []string, err error) {
	names, err := r.AskAbout(&wire.Request{Op: wire.OpAsk, Name: wire.AskNames, Places: []wire.Place{{Past: node.PastRoot}, {Past: node.StateRoot}}, Line: "find the names of the node"})
	if err != nil {
		return nil, err
	}
	q := &wire.Request{Op: wire.OpAsk, Name: wire.AskClear, Path: m.kind, Args: words, Who: who, Line: "clear"}
	slices.Sort(names.Jobs)
	for _, name := range append([]string{r.Name}, slices.Compact(names.Jobs)...) {
		dir, spare := node.PastOf(name)
		q.Places = append(q.Places, wire.Place{Past: dir, Spare: spare, Always: name == r.Name})
	}
	resp, err := r.AskAbout(q)
	if err != nil {
		return nil, err
	}
	for _, d := range resp.Doubts {
		fmt.Fprintln(console.Alerts, "nhc-gpu: warning:", d)
	}
	return resp.Jobs, nil
}
