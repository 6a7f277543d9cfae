// Package sweep has the command that tests the nodes of a cluster against each other.
package sweep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"os/user"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/launch"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/report"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/sweeppage"
	"github.com/nhc-gpu/nhc-gpu/conf/spell"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Exit statuses.
const (
	exitSuspects = 1
	exitPartly   = 3
)

// defaultLines are the active tests of stage node.
var defaultLines = []string{"check_gpu_bandwidth", "check_gpu_membw", "check_gpu_gemm", "check_gpu_launch", "check_nccl all_reduce"}

// resumeMatchings are the rounds of pairs with --resume: a node needs three partners that were in service.
const resumeMatchings = 4

// flags are the options of the command.
type flags struct {
	nodes, partition, state, reservation, feature, qos, account string
	idle, maintenance, drain, resume                            bool
	dryRun, json, status, repair, noP2P                         bool
	stages, skip, planes, rails, checks                         []string
	batch, flows, repeats, size, ramp                           int
	seed                                                        uint64
	time, queue                                                 time.Duration
	eas, html, report, compare, events, goOn                    string
}

// Command returns the command; it sets the exit status.
func Command(version string, exit *int) *cobra.Command {
	f := new(flags)
	cmd := &cobra.Command{
		Use:   "sweep [options]",
		Short: "Find the slow or faulty node, port or cable of a cluster",
		Long: `Tests nodes alone, in pairs and in groups, and names those that are slow, do not answer
or return wrong data. Slurm allocates the nodes and starts the tests. There is no daemon,
no SSH and no MPI; nhc-gpu must be at the same path on all nodes. In a batch job, or
inside salloc, the sweep tests the nodes of that job. It names a suspect only after tests
with other partners. A node that hangs or dies is reported, and the sweep continues with
the others.

The stages, in their order: node (active tests of each node), reach (loss, connections,
names, MTU on each plane), tcp (bandwidth, all-reduce over TCP), rdma (each rail, each
direction), pairs (NCCL between two nodes), groups (NCCL in growing groups). A node that
a stage has found faulty is not part of the next ones.

A sweep of root also adds each finding to the history of the suspect node: nhc-gpu
history. Nothing is drained unless --drain is given. --maintenance tests drained nodes,
too, in a reservation of its own, and drains them again with the same reason. After a
crash nhc-gpu sweep --repair, or the next sweep, drains them.

Exit status: 0 no suspects, 1 suspects, 3 interrupted, or not everything could be tested,
or most nodes fail the same test, 10 wrong arguments or the sweep could not begin.`,
		Example: `  nhc-gpu sweep --partition gpu --dry-run
  nhc-gpu sweep --nodes gpu[001-128] --stages reach,tcp
  nhc-gpu sweep --idle --html sweep.html
  nhc-gpu sweep --nodes gpu[001-128] --check check_gpu_pcie --batch 32 --json
  nhc-gpu sweep --eas checks.json
  sbatch -N 16 --exclusive --wrap 'nhc-gpu sweep --report sweep.json'
  nhc-gpu sweep --status
  nhc-gpu sweep --continue 20261122-020000-3f2a
  nhc-gpu sweep --idle --stages reach,tcp --compare last`,
		Args:              options.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			*exit, err = f.run(cmd, version)
			return err
		},
	}
	f.add(cmd)
	cmd.AddCommand(rankCommand(version, exit), workCommand(exit), noteCommand(exit))
	return cmd
}

func (f *flags) add(cmd *cobra.Command) {
	s := cmd.Flags()
	s.SortFlags = false
	s.StringVar(&f.nodes, "nodes", "", "test these nodes: gpu[001-128],gpu200")
	s.StringVar(&f.partition, "partition", "", "test the nodes of this partition")
	s.StringVar(&f.state, "state", "", "test the nodes that sinfo lists in this state: idle, drain")
	s.StringVar(&f.reservation, "reservation", "", "test the nodes of this reservation")
	s.StringVar(&f.feature, "feature", "", "test the nodes with this feature")
	s.BoolVar(&f.idle, "idle", false, "test only nodes that are idle now, and give way to jobs")
	s.StringVar(&f.qos, "qos", "", "QOS of the job, such as one that others preempt")
	s.StringVar(&f.account, "account", "", "account of the job")
	s.BoolVar(&f.maintenance, "maintenance", false, "reserve the nodes, and test drained ones, too; needs root")
	s.BoolVar(&f.dryRun, "dry-run", false, "print nodes, stages, rounds and time, and test nothing")
	s.StringSliceVar(&f.stages, "stages", nil, "run only these stages: "+stageNames())
	s.StringSliceVar(&f.skip, "skip", nil, "skip these stages")
	s.StringArrayVar(&f.checks, "check", nil, "run this line of nhc.conf on each node; can be repeated")
	s.IntVar(&f.batch, "batch", 0, "run checks on this number of nodes at a time; 0: on all")
	s.StringVar(&f.eas, "eas", "", "run the check items of this EAS file (sanity_check), JSON")
	s.StringSliceVar(&f.planes, "planes", nil, "test only these network interfaces")
	s.StringSliceVar(&f.rails, "rails", nil, "test only these RDMA ports, NCCL, too: mlx5_0:1, or mlx5_0")
	s.BoolVar(&f.noP2P, "no-p2p", false, "repeat the NCCL pairs without NVLink and shared memory")
	s.IntVar(&f.flows, "flows", 0, "TCP connections or queue pairs of a pair; 0: 8")
	s.IntVar(&f.repeats, "repeats", 0, "measurements of each test; 0: 4")
	s.IntVar(&f.size, "size", 0, "MiB of data in NCCL tests; 0: 256")
	s.DurationVar(&f.time, "time", 2*time.Hour, "time limit of the job")
	s.DurationVar(&f.queue, "queue", 10*time.Minute, "how long the job may wait for nodes")
	s.IntVar(&f.ramp, "ramp", 32, "nodes that begin GPU work per second; 0: all")
	s.Uint64Var(&f.seed, "seed", 0, "seed of the random choices; 0: a new one")
	s.BoolVar(&f.json, "json", false, "print the report as JSON; with --check one line a node")
	s.StringVar(&f.html, "html", "", "write the report to this file as HTML")
	s.StringVar(&f.report, "report", "", "write the report to this file as JSON")
	s.StringVar(&f.compare, "compare", "", "compare with an earlier sweep: its ID, a file, or last")
	s.StringVar(&f.goOn, "continue", "", "continue the sweep with this ID, with the same options")
	s.BoolVar(&f.status, "status", false, "list the sweeps of this host and user, with the time left")
	s.BoolVar(&f.drain, "drain", false, "drain the suspects, as far as the guard permits; needs root")
	s.BoolVar(&f.resume, "resume", false, "with --maintenance: end drains of sweeps on nodes that pass")
	s.BoolVar(&f.repair, "repair", false, "drain again what a killed --maintenance has left in service")
	s.StringVar(&f.events, "events", "", "append a JSON line for each suspect node to this file")
}

func stageNames() string {
	names := make([]string, 0, len(sweep.Stages))
	for _, s := range sweep.Stages {
		names = append(names, string(s))
	}
	return strings.Join(names, ",")
}

// run is the command.
func (f *flags) run(cmd *cobra.Command, version string) (exit int, err error) {
	root := os.Geteuid() == 0
	state := launch.StateDir(root, os.Getenv)
	switch {
	case f.status:
		return 0, f.printStatus(state)
	case f.repair:
		return 0, launch.Repair(launch.Options{State: state, Settings: slurm.SettingsFrom(os.Getenv), Log: logLine})
	}
	words := os.Args[2:]
	if f.goOn != "" {
		if words, err = f.recall(cmd, state); err != nil {
			return 0, options.Wrong{Err: err}
		}
	}
	o, file, err := f.options(version, root)
	if err != nil {
		return 0, options.Wrong{Err: err}
	}
	o.State, o.Command = state, append([]string{"sweep"}, words...)
	if f.dryRun {
		return 0, f.printPlan(cmd.Context(), o)
	}
	old, err := f.earlier(state, o.Stages)
	if err != nil {
		return 0, options.Wrong{Err: err}
	}
	unbound()
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	show := newWatcher(console.NewProgress())
	o.Log, o.Progress = show.log, show.progress
	o.Events = func(r *sweep.Report) map[string][]byte {
		lines := map[string][]byte{}
		for _, e := range sweeppage.Events(r) {
			lines[e.Node] = e.Line()
		}
		return lines
	}
	var acts []*event.Event
	o.Act = func(ctx context.Context, r *sweep.Report) {
		if file != nil {
			r.EAS = file.Results(r.Stages)
		}
		if old != nil {
			r.Comparison = sweep.Compare(old, r)
		}
		acts = f.act(ctx, r)
	}
	r, err := launch.Run(ctx, o)
	show.line.Clear()
	if r == nil {
		return 0, err
	}
	if err != nil {
		logLine("%v", err)
	}
	return f.end(r, acts, err), nil
}

// end writes a report, and returns the exit status. What the sweep has found counts, too, if it cannot be written.
func (f *flags) end(r *sweep.Report, acts []*event.Event, err error) int {
	if bad := f.write(r, acts); bad != nil {
		logLine("%v", bad)
		err = errors.Join(err, bad)
	}
	exit := exitOf(r, err)
	if exit == 0 && len(f.checks) > 0 && slices.ContainsFunc(hosts(r), isUnknown) {
		exit = exitPartly
	}
	return exit
}

// logLine prints a line about the sweep.
func logLine(format string, args ...any) {
	fmt.Fprintf(console.Stderr, "nhc-gpu sweep: "+format+"\n", args...)
}

// recall sets the options of an earlier sweep, except those that are given now, and returns its command.
func (f *flags) recall(cmd *cobra.Command, state string) (words []string, err error) {
	m, err := launch.LoadMeta(state, f.goOn)
	if errors.Is(err, launch.ErrRunning) {
		return nil, fmt.Errorf("sweep %s is under way", f.goOn)
	}
	if err != nil {
		return nil, err
	}
	now := *f
	again := &cobra.Command{Use: "sweep"}
	before := new(flags)
	before.add(again)
	if err := again.ParseFlags(m.Command[min(1, len(m.Command)):]); err != nil {
		return nil, fmt.Errorf("read the options of sweep %s: %w", f.goOn, err)
	}
	given := map[string]func(){
		"continue": func() { f.goOn = now.goOn },
		"json":     func() { f.json = now.json }, "html": func() { f.html = now.html }, "report": func() { f.report = now.report },
		"compare": func() { f.compare = now.compare }, "events": func() { f.events = now.events }, "time": func() { f.time = now.time },
		"queue": func() { f.queue = now.queue }, "ramp": func() { f.ramp = now.ramp }, "drain": func() { f.drain = now.drain },
	}
	cmd.Flags().Visit(func(x *pflag.Flag) {
		old := again.Flags().Lookup(x.Name)
		if given[x.Name] == nil && old != nil && old.Value.String() != x.Value.String() {
			err = errors.Join(err, fmt.Errorf("--continue has the options of sweep %s: --%s cannot be added", f.goOn, x.Name))
		}
	})
	if err != nil {
		return nil, err
	}
	*f = *before
	cmd.Flags().Visit(func(x *pflag.Flag) {
		if set := given[x.Name]; set != nil {
			set()
		}
	})
	return m.Command[min(1, len(m.Command)):], nil
}

// options returns the sweep that the options describe, and the EAS file if there is one.
func (f *flags) options(version string, root bool) (o launch.Options, file *sweep.EAS, err error) {
	settings := slurm.SettingsFrom(os.Getenv)
	o = launch.Options{
		Version: version, Root: root, Settings: settings, Partition: f.partition, NodeState: f.state, Reservation: f.reservation,
		Feature: f.feature, Idle: f.idle, QOS: f.qos, Account: f.account, Maintenance: f.maintenance, Resume: f.resume,
		Ramp: f.ramp, Seed: f.seed, Time: f.time, Queue: f.queue, Continue: f.goOn, Job: os.Getenv("SLURM_JOB_ID"),
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	program, err := os.Executable()
	if err != nil {
		return o, nil, fmt.Errorf("find the path of this program: %w", err)
	}
	o.Program = []string{strings.TrimSuffix(program, " (deleted)"), "sweep", "rank"}
	if u, err := user.Current(); err == nil { //nolint:forbidigo // a person waits for it
		o.User = u.Username
	}
	for _, e := range os.Environ() {
		if strings.HasPrefix(e, "NHC_GPU_") {
			o.Env = append(o.Env, e)
		}
	}
	if f.nodes != "" {
		if o.Nodes, err = slurm.ExpandHostlist(f.nodes); err != nil {
			return o, nil, fmt.Errorf("--nodes: %w", err)
		}
	}
	if f.eas != "" {
		data, err := os.ReadFile(f.eas) //nolint:forbidigo // a person names it, and waits for it
		if err != nil {
			return o, nil, fmt.Errorf("--eas: %w", err)
		}
		if file, err = sweep.ParseEAS(data); err != nil {
			return o, nil, fmt.Errorf("--eas %s: %w", f.eas, err)
		}
		if action := file.Sanity.FailAction; action != "" {
			logLine("%s: fail_action %q is not carried out: --drain drains the suspects", f.eas, action)
		}
		o.Time = cmp.Or(file.Sanity.Timeout, o.Time)
	}
	if err := f.conflicts(&o, file != nil); err != nil {
		return o, nil, err
	}
	if o.Stages, err = f.chosenStages(file); err != nil {
		return o, nil, err
	}
	o.Asked = file != nil || len(f.stages) > 0 || len(f.checks) > 0
	o.Plan, o.OnGPUs = f.planner(file), f.onGPUs(file)
	return o, file, nil
}

// conflicts returns an error for options that exclude each other.
func (f *flags) conflicts(o *launch.Options, isEAS bool) error {
	for _, c := range []struct {
		bad  bool
		text string
	}{
		{f.maintenance && !o.Root, "--maintenance needs root"},
		{f.drain && !o.Root, "--drain needs root"},
		{f.resume && !f.maintenance, "--resume is an option of --maintenance: a drained node is tested only there"},
		{f.maintenance && f.idle, "--maintenance and --idle exclude each other"},
		{f.maintenance && f.reservation != "", "--maintenance and --reservation exclude each other"},
		{f.maintenance && o.Job != "", "--maintenance does not work inside of a job: run it outside"},
		{o.Job != "" && (f.idle || f.qos != "" || f.account != ""), "inside of a job --idle, --qos and --account have no effect: remove them"},
		{isEAS && (len(f.stages) > 0 || len(f.checks) > 0), "--eas excludes --stages and --check"},
		{f.time <= 0 || f.queue < 0, "--time and --queue: want a positive time, as 30m"},
		{min(f.batch, f.flows, f.repeats, f.size, f.ramp) < 0, "--batch, --flows, --repeats, --size and --ramp: want a number that is not negative"},
	} {
		if c.bad {
			return errors.New(c.text)
		}
	}
	return nil
}

func (f *flags) chosenStages(file *sweep.EAS) (list []sweep.Stage, err error) {
	for _, name := range slices.Concat(f.stages, f.skip) {
		if !slices.Contains(sweep.Stages, sweep.Stage(name)) {
			return nil, fmt.Errorf("there is no stage %q%s", name, cmp.Or(spell.DidYouMean(name, strings.Split(stageNames(), ",")), "; the stages are "+stageNames()))
		}
	}
	for _, s := range sweep.Stages {
		wanted := len(f.stages) == 0 || slices.Contains(f.stages, string(s))
		switch {
		case file != nil:
			wanted = slices.Contains(file.Stages(), s)
		case len(f.checks) > 0 && len(f.stages) == 0:
			wanted = s == sweep.StageNode
		}
		if wanted && !slices.Contains(f.skip, string(s)) {
			list = append(list, s)
		}
	}
	if len(list) == 0 {
		return nil, errors.New("all stages are skipped")
	}
	return list, nil
}

// planner returns what makes the plans.
func (f *flags) planner(file *sweep.EAS) launch.Planner {
	return func(stage sweep.Stage, nodes []sweep.Node, seed uint64, first int) (sweep.Plan, error) {
		o := sweep.PlanOptions{Seed: seed, FirstID: first, Repeats: f.repeats, Flows: f.flows, Batch: f.batch, NoP2P: f.noP2P}
		if f.resume {
			o.Matchings = resumeMatchings
		}
		if f.size > 0 {
			o.Sizes = map[sweep.Kind]int64{sweep.KindNCCL: int64(f.size) << 20}
		}
		switch stage {
		case sweep.StageReach, sweep.StageTCP:
			o.Planes = f.planes
		case sweep.StageRDMA, sweep.StagePairs, sweep.StageGroups:
			o.Planes = f.rails
		}
		if file != nil {
			o = file.Options(stage, o)
		}
		if stage == sweep.StageNode {
			o.Lines = f.lines(file)
		}
		return sweep.NewPlan(stage, nodes, o)
	}
}

// lines returns the lines of stage node.
func (f *flags) lines(file *sweep.EAS) []string {
	lines := f.checks
	if file != nil {
		lines = file.Options(sweep.StageNode, sweep.PlanOptions{}).Lines
	}
	if len(lines) == 0 {
		return defaultLines
	}
	return lines
}

// onGPUs returns the stages that need all GPUs of a node.
func (f *flags) onGPUs(file *sweep.EAS) []sweep.Stage {
	needs := func(line string) bool {
		name, _, _ := strings.Cut(line, " ")
		info, _ := checks.Lookup(name)
		return slices.Contains([]string{"GPU", "active"}, info.Group())
	}
	stages := []sweep.Stage{sweep.StagePairs, sweep.StageGroups}
	if slices.ContainsFunc(f.lines(file), needs) {
		stages = append(stages, sweep.StageNode)
	}
	return stages
}

// untilSignal returns a context that a signal ends, with its name.
func untilSignal(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	got := make(chan os.Signal, 4)
	for _, sig := range []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGTERM} {
		if !signal.Ignored(sig) {
			signal.Notify(got, sig)
		}
	}
	signal.Notify(got, unix.SIGPIPE) // a closed terminal does not end the sweep without its clean-up
	run.Go(func() {
		for sig := range got {
			if n, ok := sig.(syscall.Signal); ok && n != unix.SIGPIPE {
				cancel(errors.New(console.SignalName(n)))
			}
		}
	})
	return ctx, func() { signal.Stop(got); cancel(nil) }
}

// act drains the suspects of a sweep that has run to its end, and returns the events of the suspects.
func (f *flags) act(ctx context.Context, r *sweep.Report) []*event.Event {
	list := sweeppage.Events(r)
	if !f.drain || r.Interrupted != "" || len(list) == 0 {
		return list
	}
	session, _, err := report.Open(&options.Options{}, report.Options{})
	if err != nil {
		logLine("no suspect is drained: %v", err)
		r.Interrupted = cmp.Or(r.Interrupted, "the suspects could not be drained: "+err.Error())
		return list
	}
	defer session.Close()
	for _, e := range list {
		reason := sweeppage.Drain(e)
		at := slices.IndexFunc(r.Nodes, func(n sweep.NodeReport) bool { return n.Name == e.Node })
		if reason == "" || at < 0 {
			continue
		}
		out, err := session.ControllerOf(e.Node).Act(ctx, slurm.SweepVerdict(reason), slurm.Manual)
		noteAction(&r.Nodes[at], e, &out, err, session.Set.Observes())
	}
	return list
}

// noteAction notes in the report and in the event of a suspect what became of its drain.
func noteAction(n *sweep.NodeReport, e *event.Event, out *slurm.Outcome, err error, observes bool) {
	e.Slurm = &event.Action{Action: out.Action.String(), Reason: out.Reason, Why: out.Why, Held: out.Guarded != ""}
	switch {
	case err != nil:
		n.After, e.Slurm.Error = "not drained: "+err.Error(), err.Error()
	case out.Guarded != "":
		n.After = "not drained: held by guard: " + out.Guarded
	case out.Action == slurm.None && n.After != "": // it was drained before the sweep, and After says what became of that
	case out.Action == slurm.None:
		n.After = "not drained: " + out.Why
	case observes:
		n.After = "would be drained (MODE=observe)"
	default:
		n.After, e.Mode, e.Slurm.Sent, e.Slurm.Owner = "drained: "+out.Reason, "enforce", true, event.OwnerNHC
	}
}

// exitOf returns the exit status for a report, and for an error of the sweep.
func exitOf(r *sweep.Report, err error) int {
	switch {
	case len(r.Suspects) > 0:
		return exitSuspects
	case err != nil && len(r.Stages) == 0 && r.Interrupted == "":
		return options.ExitUsage
	case err != nil || r.Interrupted != "":
		return exitPartly
	case slices.ContainsFunc(r.Stages, func(s sweep.StageReport) bool { return s.Unproven != "" }):
		return exitPartly
	case slices.ContainsFunc(r.Nodes, func(n sweep.NodeReport) bool { return n.State != "tested" }):
		return exitPartly
	case slices.ContainsFunc(r.EAS, func(e sweep.EASResult) bool { return e.Result == sweep.EASFailed }):
		return exitPartly
	}
	return 0
}
