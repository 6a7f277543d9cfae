package ask

import (
	"bufio"
	"errors"
	"fmt"
	"log/syslog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/session/outputs"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/health"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// memory is a part of the memory of root's runs. An operator can clear it.
type memory struct {
	flag string // its option of the command: "--ib "
	kind string // its name in a request to the worker; "": the record of remedies
	all  string // everything in it, in words
	want string // an argument that names a part of it
}

// memories are the parts, by the option that names them.
var memories = map[string]memory{
	"":         {"", wire.ClearXid, "all GPU errors", "a GPU or a code"},
	"ib":       {"--ib ", wire.ClearPorts, "the errors of all ports and disks", "a port or a disk"},
	"baseline": {"--baseline ", wire.ClearBaseline, "the baseline of this node", "a test"},
	"active":   {"--active ", wire.ClearActive, "the last results of all active tests", "a check"},
	"remedy":   {"--remedy ", "", "all tries of remedies, and the hold after them", "a device or a code"},
}

// clearCommand acknowledges errors.
func clearCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "clear [--all | DEVICE CODE] | --ib|--baseline|--active|--remedy [--all|NAME] | --guard",
		Short: "Acknowledge GPU or port errors so that the node can return",
		Long: `Acknowledges errors that were logged or counted until now; later ones count again.
The next run resumes the node if no other check fails.
  clear DEVICE CODE     Xids of a GPU (gpu3, 0000:c1:00.0, GPU-...), of a code (79,
                        sxid:12028), or of both, in check_gpu_xid
  clear --ib NAME       errors of a port (mlx5_3, mlx5_3:1, 'mlx5_*') or a disk (nvme3)
                        in check_ib_errors, check_ib_link_flapping and check_kernel_log
  clear --baseline TEST the baselines of active tests on this node
  clear --active CHECK  the last result of an active test. A node that was drained for
                        it stays drained until the test passes or a person resumes it
  clear --remedy NAME   the tries of remedies for a device or a code, and the hold of a
                        node that they did not repair
  clear --guard         the hold of the guard: the drain of this node is sent now
Without DEVICE, CODE or NAME it clears all of them, but asks first; --all does not
ask. Syslog records who cleared what. Needs root.

Exit status: 0 also if there was nothing to clear, 10 wrong arguments or not root.`,
		Example: `  nhc-gpu clear gpu6 79
  nhc-gpu clear --ib mlx5_3
  nhc-gpu clear --active check_gpu_gemm
  nhc-gpu clear --remedy gpu3
  nhc-gpu clear --guard
  nhc-gpu clear --all`,
		Args: cobra.ArbitraryArgs,
		ValidArgsFunction: func(cmd *cobra.Command, words []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(words) == 0 && cmd.Flags().Changed("active") {
				return activeChecks(), cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
	}
	f := cmd.Flags()
	f.BoolVar(&all, "all", false, "clear everything of that kind without a question")
	f.Bool("ib", false, "errors and flaps of InfiniBand and RoCE ports, and of disks")
	f.Bool("baseline", false, "the baselines of active tests on this node")
	f.Bool("active", false, "the last results of active tests")
	f.Bool("remedy", false, "the tries of remedies, and the hold after them")
	f.Bool("guard", false, "send the drain that the guard holds")
	cmd.RunE = func(_ *cobra.Command, words []string) error {
		chosen := slices.DeleteFunc([]string{"ib", "baseline", "active", "remedy", "guard"}, func(name string) bool { return !f.Changed(name) })
		if len(chosen) > 1 {
			return options.Wrong{Err: fmt.Errorf("--%s and --%s exclude each other: clear one after the other", chosen[0], chosen[1])}
		}
		if slices.Contains(chosen, "guard") {
			return releaseHeld(words, all)
		}
		return memories[strings.Join(chosen, "")].clearWords(words, all)
	}
	return cmd
}

func activeChecks() (names []string) {
	for _, name := range checks.Names() {
		if info, _ := checks.Lookup(name); info.Active {
			names = append(names, name)
		}
	}
	return names
}

func (m memory) clearWords(words []string, all bool) error {
	r, rest, err := xidRun(words)
	if err != nil {
		return err
	}
	defer r.Close()
	switch {
	case r.Bad != nil:
		return r.Bad
	case r.Set.Past == "":
		return errors.New("clear: only root can clear the memory of checks")
	case all && len(rest) > 0:
		return options.Wrong{Err: fmt.Errorf("--all clears everything: surplus argument %q", rest[0])}
	case !all && len(rest) == 0:
		if goOn, err := confirm("Clear " + m.all + "?"); err != nil {
			return options.Wrong{Err: fmt.Errorf("clear %swithout %s clears %s: add --all to do that", m.flag, m.want, m.all)}
		} else if !goOn {
			fmt.Fprintln(console.Screen, "cleared nothing")
			return nil
		}
	}
	who := whoAsks()
	var cleared []string
	if m.kind == "" {
		cleared, err = clearRemedies(r, rest)
	} else {
		cleared, err = m.everywhere(r, rest, who)
	}
	if err != nil {
		return err
	}
	what := strings.Join(cleared, ", ")
	if what == "" {
		what = "nothing: no such error is remembered"
	}
	if len(cleared) > 0 {
		outputs.Note(r.Node, event.Cleared, fmt.Sprintf("cleared %s, by %s", what, who))
	}
	_ = sink.SyslogAs(syslog.LOG_NOTICE, "nhc", []string{fmt.Sprintf("nhc-gpu clear %s%s: by %s: cleared %s", m.flag, strings.Join(rest, " "), who, what)})
	fmt.Fprintln(console.Screen, "cleared", what)
	return nil
}

// releaseHeld sends the drain that the guard holds.
func releaseHeld(words []string, all bool) error {
	if all {
		return options.Wrong{Err: errors.New("--guard and --all exclude each other: the guard holds one drain of a node")}
	}
	r, err := openPast("clear", words)
	if err != nil {
		return err
	}
	defer r.Close()
	out, err := r.Release()
	doubt := ""
	switch {
	case out.Warning != nil && out.Spared:
		return fmt.Errorf("clear --guard: it is not known whether the guard holds a drain of node %s: %w", r.Name, out.Warning)
	case out.Warning != nil && out.Pending:
		doubt = ", which may not be stored"
		if err == nil {
			err = out.Warning
		} else {
			err = fmt.Errorf("%w; %w", err, out.Warning)
		}
		err = fmt.Errorf("%w; the release may not be stored: the guard can still hold the drain", err)
	case err != nil && out.Reason != "":
		err = fmt.Errorf("%w; the next run drains the node without the guard", err)
	case err != nil:
		return err
	case out.Spared:
		fmt.Fprintf(console.Screen, "cleared nothing: node %s: %s\n", r.Name, out.Why)
		return nil
	case out.Pending:
		fmt.Fprintf(console.Screen, "cleared the hold: node %s is in state %s, the next run after that drains it without the guard\n", r.Name, out.Node.State.Text)
	case out.Action == slurm.None:
		fmt.Fprintf(console.Screen, "cleared the hold, and sent nothing: node %s is %s\n", r.Name, out.Why)
	default:
		fmt.Fprintf(console.Screen, "drained node %s: %s\n", r.Name, out.Reason)
	}
	if out.Warning != nil && err == nil {
		fmt.Fprintln(console.Alerts, "nhc-gpu: warning:", out.Warning)
	}
	text := fmt.Sprintf("released the drain of node %s from the guard%s, by %s", r.Name, doubt, whoAsks())
	outputs.Note(r.Node, event.Cleared, text)
	_ = sink.SyslogAs(syslog.LOG_NOTICE, "nhc", []string{"nhc-gpu clear --guard: " + text})
	return err
}

// clearWait is how long clear waits for a remedy: the one that begins a hold takes seconds.
const clearWait = 15 * time.Second

// clearRemedies forgets the tries of remedies, and ends the hold after them.
func clearRemedies(r *health.Run, words []string) ([]string, error) {
	switch {
	case len(words) > 1:
		return nil, options.Wrong{Err: fmt.Errorf("surplus argument %q: want a device or a code", words[1])}
	case slices.Contains(words, ""):
		return nil, options.Wrong{Err: errors.New("the argument is empty: want a device or a code, or --all")}
	}
	r.Pool.SetVars(r.Set.WorkerVars())
	if err := node.BeginRepair(r.Node, clearWait); err != nil {
		return nil, fmt.Errorf("clear --remedy: %w: try again when it has ended", err)
	}
	record, err := node.Remedies(r.Node)
	if err != nil {
		return nil, err
	}
	cleared := record.Clear(strings.Join(words, ""))
	if len(cleared) > 0 {
		err = node.KeepRemedies(r.Node, record, false)
	}
	return cleared, err
}

// everywhere clears the memory of the node under each of its names: slurmd may use another one
// than the host name, and gives it only to its own children.
func (m memory) everywhere(r *health.Run, words []string, who string) (cleared []string, err error) {
	found, err := r.AskAbout(&wire.Request{Op: wire.OpAsk, Name: wire.AskNames, Places: []wire.Place{{Past: node.PastRoot}, {Past: node.StateRoot}}, Line: "find the names of the node"})
	if err != nil {
		return nil, err
	}
	q := &wire.Request{Op: wire.OpAsk, Name: wire.AskClear, Path: m.kind, Args: words, Who: who, Line: "clear"}
	slices.Sort(found.Names)
	for _, name := range append([]string{r.Name}, slices.Compact(found.Names)...) {
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
	return resp.Names, nil
}

// confirm asks a person at a terminal; without a terminal it returns an error.
func confirm(question string) (yes bool, err error) {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return false, errors.New("no terminal")
	}
	fmt.Fprintf(console.Screen, "%s [y/N] ", question)
	answer, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil { // control-D
		fmt.Fprintln(console.Screen)
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes", nil
}
