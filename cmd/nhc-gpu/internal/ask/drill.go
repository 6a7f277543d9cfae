package ask

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/syslog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/selftest"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/session/outputs"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/checks/topology"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/health"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/conf/spell"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// drillOptions are the options of drill.
type drillOptions struct {
	length             time.Duration
	end, force, remedy bool
}

// The limits of --for: a run must see the drill, and a forgotten drill must end.
const (
	shortestDrill = time.Minute
	longestDrill  = 24 * time.Hour
)

// exitRefused is the exit status of a drill that was refused.
const exitRefused = 1

// Drill starts and ends rehearsals.
func Drill(exit *int) *cobra.Command {
	var o drillOptions
	cmd := &cobra.Command{
		Use:   "drill CODE [DEVICE] [--for 10m] | drill --end",
		Short: "Rehearse a fault: the next runs see it, and drain the node",
		Long: `The next runs report the finding CODE about DEVICE, with the text of the self-test's
scenario, as if the check had found it: by the policies of this node they drain it,
refuse a job or only warn. [drill] marks reason, log, events and history. Without
DEVICE it takes the first one. The kernel's log is not touched, and no remedy is
carried out without --remedy; with it, the GPU is reset or the node reboots. The
drill ends after --for, at a boot, after a remedy, or by --end; the next health check
then resumes the node. A real failure takes precedence at any time.
nhc-gpu refuses a drill if the node has jobs, is out of service, or failed its last
run. --force overrides this: a job on the node can then fail. Needs root.

Exit status: 0, 1 refused, 3 the configuration cannot be used, 10 wrong arguments.`,
		Example: `  nhc-gpu drill gpu.xid.79 gpu3
  nhc-gpu drill ib.ports.down mlx5_0:1 --for 30m
  nhc-gpu drill gpu.recovery.reset gpu3 --remedy
  nhc-gpu drill --end`,
		Args: cobra.ArbitraryArgs,
		ValidArgsFunction: func(_ *cobra.Command, words []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(words) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			list, _ := selftest.All()
			return slices.Sorted(maps.Keys(faultsOf(list))), cobra.ShellCompDirectiveNoFileComp
		},
	}
	f := cmd.Flags()
	f.DurationVar(&o.length, "for", 10*time.Minute, "how long, from 1m to 24h")
	f.BoolVar(&o.end, "end", false, "end the drill of this node")
	f.BoolVar(&o.remedy, "remedy", false, "also carry out the remedy that nhc.toml permits")
	f.BoolVar(&o.force, "force", false, "also beside jobs, a drain or a real failure")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		given := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return !isSetting(w) })
		rest := slices.DeleteFunc(slices.Clone(words), isSetting)
		switch {
		case o.end && (len(rest) > 0 || o.force || o.remedy || cmd.Flags().Changed("for")):
			return options.Wrong{Err: errors.New("--end takes no other argument")}
		case o.end:
			return endDrill(given)
		case len(rest) == 0:
			return options.Wrong{Err: errors.New("missing argument: want the code of a finding (gpu.xid.79), or --end")}
		case len(rest) > 2:
			return options.Wrong{Err: fmt.Errorf("surplus argument %q: want CODE and DEVICE", rest[2])}
		case o.length < shortestDrill || o.length > longestDrill:
			return options.Wrong{Err: fmt.Errorf("option --for=%s: want 1m to 24h", o.length)}
		}
		err := startDrill(&o, given, rest[0], strings.Join(rest[1:], ""))
		if errors.As(err, new(refusal)) {
			fmt.Fprintln(console.Alerts, "nhc-gpu:", err)
			*exit = exitRefused
			return nil
		}
		return err
	}
	return cmd
}

// refusal is why a drill is not started.
type refusal string

func (r refusal) Error() string { return string(r) }

// faultsOf returns the scenarios that end in a finding of each code which is more than a skipped check.
func faultsOf(list []selftest.Scenario) map[string][]*selftest.Scenario {
	faults := map[string][]*selftest.Scenario{}
	for i := range list {
		for _, w := range list[i].Want {
			if w.Severity != checks.Skip.String() && w.Severity != checks.OK.String() {
				faults[w.Code] = append(faults[w.Code], &list[i])
			}
		}
	}
	return faults
}

// findScenarios returns the scenarios of a code.
func findScenarios(code string) ([]*selftest.Scenario, error) {
	list, err := selftest.With(code)
	if found := faultsOf(list)[code]; err != nil || len(found) > 0 {
		return found, err
	}
	if list, err = selftest.All(); err != nil {
		return nil, err
	}
	return nil, options.Wrong{Err: fmt.Errorf("the self-test has no scenario of %q%s", code, spell.DidYouMean(code, slices.Sorted(maps.Keys(faultsOf(list)))))}
}

func startDrill(o *drillOptions, given []string, code, device string) error {
	if os.Geteuid() != 0 {
		return errors.New("drill: only root can start a drill")
	}
	scenarios, err := findScenarios(code)
	if err != nil {
		return err
	}
	r, plans, err := openSite(given)
	if err != nil {
		return err
	}
	defer r.Close()
	if r.Bad != nil {
		return r.Bad
	}
	r.Pool.SetVars(r.Set.WorkerVars())
	if d := r.Drill(); d != nil {
		return refusal(fmt.Sprintf("a drill of %s lasts until %s: nhc-gpu drill --end ends it", d, d.Until().Local().Format(clock)))
	}
	covered := func(check string, severity checks.Severity) (list []session.Covered) {
		for i := range plans {
			list = append(list, session.Cover([]session.KnownFault{{Code: code, Check: check, Severity: severity}}, plans[i:i+1], r.Config)...)
		}
		return list
	}
	s := chooseScenario(scenarios, code, func(check string) int {
		list := covered(check, checks.Fail)
		if i := slices.IndexFunc(list, reports); i >= 0 {
			return len(list) - i // the health check comes first
		}
		return 0
	})
	found, err := tryScenario(r.Ctx, s, code)
	if err != nil {
		return err
	}
	d, err := findDevice(r, found.Device, code, device)
	if err != nil {
		return err
	}
	if !o.force {
		if err := mayDrill(r); err != nil {
			return err
		}
	}
	drill := session.NewDrill(s.Check, found, d)
	drill.Begin, drill.For, drill.By, drill.Remedy = node.ReadMoment(), o.length, whoAsks(), o.remedy
	list := covered(s.Check, found.Severity)
	drill.Alone = !slices.ContainsFunc(list, reports)
	if err := r.KeepDrill(drill); err != nil {
		return err
	}
	tellDrill(r, fmt.Sprintf("drill of %s for %s", drill, checks.Length(o.length)), drill.By)
	printDrill(drill, s.Check, list)
	return nil
}

// printDrill prints the finding of a drill, and what becomes of it in each context. list has the lines of the check.
func printDrill(drill *session.Drill, check string, list []session.Covered) {
	fmt.Fprintf(console.Screen, "drill of %s until %s (%s)\n", drill, drill.Until().Local().Format(clock), checks.Length(drill.For))
	row := func(name, format string, args ...any) {
		fmt.Fprintf(console.Screen, "  %-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	row("finding", "%s", drill.Finding.Message)
	for i := range list {
		if c := &list[i]; reports(*c) {
			row(c.Context, "%s, by %s (%s)", c.Action, c.By, c.Line)
		}
	}
	if drill.Alone {
		row("healthcheck", "warning: no line runs %s: no run would find a real fault. The drill is reported all the same", check)
	}
	row("to end", "nhc-gpu drill --end")
}

// reports reports whether a run has a line that is the check itself.
func reports(c session.Covered) bool {
	return c.Action != session.NotChecked && c.Action != session.ByShell
}

// tellDrill records who has started or ended a drill.
func tellDrill(r *health.Run, what, who string) {
	outputs.Note(r.Node, event.Rehearsed, what+", by "+who)
	_ = sink.SyslogAs(syslog.LOG_NOTICE, "nhc", []string{"nhc-gpu drill: by " + who + ": " + what})
}

func endDrill(given []string) error {
	r, err := openPast("drill", given)
	if err != nil {
		return err
	}
	defer r.Close()
	d := r.Drill()
	if d == nil {
		fmt.Fprintln(console.Screen, "no drill is under way")
		return nil
	}
	if err := r.KeepDrill(nil); err != nil {
		return err
	}
	tellDrill(r, fmt.Sprintf("end of the drill of %s", d), whoAsks())
	fmt.Fprintf(console.Screen, "ended the drill of %s: the next health check resumes the node if no check fails\n", d)
	return nil
}

// severities orders the findings of a code: a failure shows more than a warning.
var severities = map[string]int{checks.Fail.String(): 3, checks.Warn.String(): 2, checks.Unknown.String(): 1}

// chooseScenario returns the scenario for a code: of a check that the node runs, as severe as possible,
// about one device, and with the shortest text, which is the plainest case. runs ranks a check by the
// runs that have it.
func chooseScenario(list []*selftest.Scenario, code string, runs func(check string) int) *selftest.Scenario {
	rank := func(s *selftest.Scenario) (n, length int) {
		for _, w := range s.Want {
			if w.Code == code {
				n, length = max(n, 2*severities[w.Severity]+min(len(w.Device), 1)), len(w.Message)
			}
		}
		return 10*runs(s.Check) + n, length
	}
	return slices.MaxFunc(list, func(a, b *selftest.Scenario) int {
		rankA, lengthA := rank(a)
		rankB, lengthB := rank(b)
		return cmp.Or(rankA-rankB, lengthB-lengthA)
	})
}

// tryScenario returns the finding of a scenario.
func tryScenario(ctx context.Context, s *selftest.Scenario, code string) (worst checks.Finding, err error) {
	bench, err := selftest.NewBench(s.Node)
	if err != nil {
		return worst, err
	}
	list, wrong, err := bench.Try(ctx, s)
	if err = errors.Join(err, bench.Close()); err != nil {
		return worst, err
	}
	if len(wrong) > 0 {
		return worst, fmt.Errorf("drill: the self-test of %s fails in %q: nhc-gpu selftest %[1]s", s.Check, s.Name)
	}
	for _, f := range list {
		if f.Code == code && severities[f.Severity.String()] > severities[worst.Severity.String()] {
			worst = f
		}
	}
	return worst, nil
}

// findDevice returns the device of the drill: the named one, or the first of its kind. like is the
// device of the scenario.
func findDevice(r *health.Run, like checks.Device, code, name string) (checks.Device, error) {
	if like == (checks.Device{}) {
		if name != "" {
			return like, options.Wrong{Err: fmt.Errorf("%s is about the whole node: surplus argument %q", code, name)}
		}
		return like, nil
	}
	resp, err := r.Pool.Call(r.Ctx, checks.Local, &wire.Request{Op: wire.OpTopo, Line: "read the topology"}, session.Reading).AnswerTo("read the topology")
	var have []checks.Device
	known := false
	if err == nil && resp.Topo != nil {
		have, known = devicesOf(resp.Topo, like.Kind)
	}
	i := slices.IndexFunc(have, func(d checks.Device) bool { return name == "" || name == d.Name || name == d.PCI })
	switch {
	case i >= 0:
		return shapedAs(have[i], like), nil
	case name == "":
		fmt.Fprintf(console.Alerts, "nhc-gpu: warning: this node shows no %s: the drill uses the invented device %s\n", cmp.Or(like.Kind, "device"), like)
		return like, nil
	case !known:
		return checks.Device{Kind: like.Kind, Name: name}, nil
	}
	if len(have) == 0 {
		return like, options.Wrong{Err: fmt.Errorf("this node has no %s", strings.Replace(like.Kind, "gpu", "GPU", 1))}
	}
	names := make([]string, len(have))
	for i, d := range have {
		names[i] = d.String()
	}
	return like, options.Wrong{Err: fmt.Errorf("this node has no %s %q: want %s", like.Kind, name, strings.Join(names, ", "))}
}

// shapedAs returns a device with the fields that the device of the scenario has.
func shapedAs(d, like checks.Device) checks.Device {
	if like.Name == "" {
		d.Name = ""
	}
	if like.PCI == "" && d.Name != "" {
		d.PCI = ""
	}
	return d
}

// devicesOf returns the devices of a kind; known is false if the inventory does not have this kind, or
// could not be read.
func devicesOf(t *topology.Topology, kind string) (list []checks.Device, known bool) {
	add := func(name, pci string) { list = append(list, checks.Device{Kind: kind, Name: name, PCI: pci}) }
	switch kind {
	case "gpu":
		for i := range t.GPUs {
			add(t.GPUs[i].Name, t.GPUs[i].PCI)
		}
	case "nvme":
		for i := range t.Disks {
			add(t.Disks[i].Name, t.Disks[i].PCI)
		}
	case "hca":
		for i := range t.NICs {
			add(t.NICs[i].Name, t.NICs[i].PCI)
		}
	case "port":
		for i := range t.NICs {
			for _, p := range t.NICs[i].Ports {
				add(p.Name, t.NICs[i].PCI)
			}
		}
	default:
		return nil, false
	}
	return list, len(list) > 0 || len(t.Doubts) == 0
}

// mayDrill returns why a drill must not start on this node, nil if it may.
func mayDrill(r *health.Run) error {
	const forced = "; --force starts it nevertheless"
	last, err := outputs.Last(r.Node)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(last, func(e *event.Event) bool { return !e.AroundJob() && e.Boot == slurm.BootID() }); i >= 0 {
		for _, f := range last[i].Findings() {
			if f.Severity == checks.Fail && !f.Drill {
				return refusal(fmt.Sprintf("the last run (%s ago) found a real failure: %s%s", ago(time.Since(last[i].Time)), strings.TrimSpace(f.Code+" "+shortMessage(f)), forced))
			}
		}
	}
	if r.Set.Get("NHC_RM") == "" {
		find := r.ManagerRequest()
		r.UseManager(find, r.Pool.Call(r.Ctx, checks.Local, find, session.Reading))
	}
	if r.Set.Get("NHC_RM") != "slurm" {
		return nil
	}
	ctx, cancel := context.WithTimeout(r.Ctx, 2*slurm.DefaultDeadline)
	defer cancel()
	n, err := r.Controller().Read(ctx)
	switch {
	case err != nil:
		return refusal(fmt.Sprintf("%v%s", err, forced))
	case n.State.Class != slurm.InService || n.State.DrainFlag:
		return refusal(fmt.Sprintf("node %s is out of service (%s): a drill could not drain it%s", r.Name, strings.TrimSpace(n.State.Text+" "+n.Reason), forced))
	case !n.State.Empty():
		return refusal(fmt.Sprintf("node %s has jobs, or is about to get one (%s)%s", r.Name, n.State.Text, forced))
	}
	return nil
}
