package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/syslog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// runner starts Slurm's commands in a worker.
type runner struct{ pool *run.Pool }

func (r runner) Run(ctx context.Context, argv, env []string) (slurm.Output, error) {
	o, err := r.pool.Exec(ctx, argv, env, nil)
	return slurm.Output{Stdout: o.Stdout, Stderr: o.Stderr, Status: o.Status, TimedOut: o.TimedOut, Cut: o.Cut}, err
}

// Controller returns the connection to slurmctld for this node.
func (n *Node) Controller() *slurm.Controller {
	c := slurm.NewController(n.Name, runner{n.Pool}, func(name string) string {
		if v, ok := n.Set.Lookup(name); ok {
			return v
		}
		return ""
	})
	c.Settings.Exports = n.Set.SiteExports()
	c.BootID, c.Dir, c.Observe = slurm.BootID(), n.dir, n.Set.Observes()
	if g := n.Guard; g.Enabled {
		c.Guard = &slurm.Guard{
			Percent: g.Percent, Nodes: g.Nodes, RepairPartition: g.RepairPartition, RepairCluster: g.RepairCluster,
			Jitter: g.Jitter, Exempt: g.Exempt, HoldUncounted: g.Uncounted == conf.GuardHolds,
		}
		if n.HealthCheck() { // an event of the monitor is of one node
			c.Guard.Short = g.Jitter / 30
		}
	}
	c.MaxWait, c.Wait = n.longestWait(time.Now()), n.wait
	return c
}

// ControllerOf returns the connection to slurmctld for another node, which a sweep drains or resumes.
func (n *Node) ControllerOf(name string) *slurm.Controller {
	c := n.Controller()
	c.Node, c.Remote, c.Dir, c.NodeIsHealthy, c.MaxWait = name, true, nil, "", 0
	return c
}

// longestWait returns how long a run may wait before the guard counts: only runs that slurmd or the
// monitor starts wait, since those of all nodes can start in the same moment, and only within their budget. It
// leaves time for three calls: the read of the node, the count, and a write.
func (n *Node) longestWait(now time.Time) time.Duration {
	if !n.Unattended() || !n.Budget.Limited() {
		return 0
	}
	return max(0, n.Budget.End.Sub(now)-3*slurm.DefaultDeadline)
}

// wait waits, until a signal ends the run.
func (n *Node) wait(d time.Duration) {
	n.Log.Flush()
	select {
	case <-time.After(d):
	case <-n.Ctx.Done():
	}
}

// CarryOut carries out a verdict. After the run's deadline only a short time remains; a drain that
// cannot be delivered in that time stays in the state directory. delivered reports whether Slurm
// answered.
func (n *Node) CarryOut(v slurm.Verdict) (delivered bool) {
	if n.Set.Get("NHC_RM") != "slurm" {
		n.Warn(fmt.Errorf("mark node %s: resource manager %q: nhc-gpu itself supports only slurm; set OFFLINE_NODE and ONLINE_NODE to helpers for it", n.Name, n.Set.Get("NHC_RM")))
		return false
	}
	if n.Bad != nil {
		n.Warn(n.Bad)
		return false
	}
	ctx, cancel := n.Acting()
	defer cancel()
	c := n.Controller()
	out, err := c.Act(ctx, v, n.Role)
	n.reportOutcome(ctx, c, out, err)
	return err == nil
}

// reportOutcome reports what became of a verdict, or of an earlier run's drain.
func (n *Node) reportOutcome(ctx context.Context, c *slurm.Controller, out slurm.Outcome, err error) {
	n.Did = actionOf(out, err, n.Set.Observes())
	n.warnOfMemory(out.Warning)
	switch {
	case err != nil && out.Repeats: // already reported
	case err != nil && out.Refused:
		n.Warn(fmt.Errorf("%w; this is reported once a day, and retried every 10 minutes", err))
		sink.Syslog(n.Set.Get("NAME"), []string{fmt.Sprintf("Node %s cannot be marked:  %v", n.Name, err)})
	case err != nil && out.Pending && !n.Set.Observes():
		n.Owes = true
		n.Warn(fmt.Errorf("cannot drain node %s, the next run will retry: %w", n.Name, err))
	case err != nil:
		n.Warn(err)
	}
	if err == nil && out.Kept {
		n.Log.Note("node %s is not resumed: %s", n.Name, out.Why)
	}
	switch {
	case err != nil:
	case out.Guarded != "":
		n.reportHold(ctx, c, out)
	case out.Action != slurm.None:
		if n.Set.Observes() {
			_ = n.Would(fmt.Sprintf("%s node %s: %s", out.Action, n.Name, cmp.Or(out.Reason, out.Why)))
		} else {
			n.Log.Note("%s", describeChange(n.Name, &out))
		}
	}
}

// describeChange describes a change of the node for the log. The Why of a healthy run that keeps the node
// drained is not the state before.
func describeChange(name string, o *slurm.Outcome) string {
	did := map[slurm.Action]string{slurm.Drain: "drained: " + o.Reason, slurm.Renew: "has a new reason: " + o.Reason, slurm.Resume: "resumed"}[o.Action]
	if o.Kept {
		return fmt.Sprintf("node %s %s", name, did)
	}
	return fmt.Sprintf("node %s %s (before: %s)", name, did, o.Why)
}

// reportHold reports that the guard holds a drain: a person must look. Only a report that the log or syslog
// has taken is not repeated.
func (n *Node) reportHold(ctx context.Context, c *slurm.Controller, out slurm.Outcome) {
	if out.Repeats {
		return
	}
	var alerted error
	if n.Set.Observes() {
		alerted = n.Would(fmt.Sprintf("hold the drain of node %s: %s: %s", n.Name, out.Guarded, out.Reason))
	} else {
		text := fmt.Sprintf("the drain of node %s is held by guard: %s: %s", n.Name, out.Guarded, out.Reason)
		n.Log.Note("%s", text)
		alerted = sink.SyslogAs(syslog.LOG_ALERT, n.Set.Get("NAME"), []string{text + "; to drain it now: nhc-gpu clear --guard"})
	}
	logged := n.Log.Flush()
	if logged || alerted == nil {
		whole := logged && (alerted == nil || errors.Is(alerted, fs.ErrNotExist)) // a node without syslog
		n.warnOfMemory(c.NoteReported(ctx, out, whole))
	}
}

// warnOfMemory prints an error of the state directory. That there is none has been reported.
func (n *Node) warnOfMemory(err error) {
	if err != nil && !errors.Is(err, run.ErrNoState) {
		n.Warn(err)
	}
}

// actionOf describes what a decision did.
func actionOf(out slurm.Outcome, err error, observes bool) *event.Action {
	held := out.Guarded != ""
	a := &event.Action{Action: out.Action.String(), Sent: err == nil && out.Action != slurm.None && !observes && !held, Held: held, Reason: out.Reason, Why: out.Why}
	switch {
	case out.Reported == slurm.ReportedDrained && !observes: // with MODE=observe the memory has drains that were not sent
		a.Owner, a.Reason = event.OwnerNHC, cmp.Or(out.Reason, out.OurReason)
	case out.Reported == slurm.ReportedLeftAlone:
		a.Owner = event.OwnerOther
	}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

// Would logs a decision that is not carried out, in the log and in syslog. The error is that of syslog.
func (n *Node) Would(decision string) error {
	text := fmt.Sprintf("would %s (MODE=%s: nothing is sent)", decision, conf.Observe)
	n.Log.Note("%s", text)
	return sink.SyslogAs(syslog.LOG_WARNING, n.Set.Get("NAME"), []string{text})
}

// Acting returns a context that ends when the run gives up draining or resuming.
func (n *Node) Acting() (context.Context, context.CancelFunc) {
	if end := n.Budget.Acting(time.Now()); !end.IsZero() {
		return context.WithDeadline(context.Background(), end)
	}
	return context.WithCancel(context.Background())
}

// DeliverPending delivers the drain that an earlier run could not deliver. It is for a run without
// a verdict.
func (n *Node) DeliverPending() {
	if n.Bad != nil || n.Set.Observes() {
		return
	}
	n.Set.Finalize() // a run with an unreadable sysconfig file has not done this
	if n.Set.Get("NHC_RM") == "" {
		find := n.ManagerRequest()
		n.UseManager(find, n.Pool.Call(n.Ctx, checks.Local, find, n.Budget.Reading(time.Now())))
	}
	if !n.Set.Marks() || n.Set.Get("NHC_RM") != "slurm" || n.CustomHelper("OFFLINE_NODE") {
		return
	}
	ctx, cancel := n.Acting()
	defer cancel()
	c := n.Controller()
	if out, err := c.Deliver(ctx); err != nil || out.Action != slurm.None || out.Calls > 0 { // one was pending
		n.reportOutcome(ctx, c, out, err)
	}
}

// The look at a helper has a worker of its own, since the file server can be dead, and a time limit.
const (
	helperLane  checks.Lane = "helper"
	helperLimit             = 2 * time.Second
)

// CustomHelper reports whether the site has a helper of its own that marks the node. It looks at the site's helpers only
// now, when one is to be called. On Slurm a helper that is this program, as in nhc-gpu-compat, is not the site's own: it
// would act as LBNL NHC's, which knows nothing of other files, of orders and of the guard.
func (n *Node) CustomHelper(name string) bool {
	helper, _, _ := strings.Cut(strings.TrimSpace(n.Set.Get(name)), " ")
	if !n.Set.CustomHelper(name) || !filepath.IsAbs(helper) { // a function of bash
		return n.Set.CustomHelper(name)
	}
	paths := n.Set.HelpersToFind()
	q := &wire.Request{Op: wire.OpPrograms, Args: append([]string{helper}, paths...), Line: "read " + helper}
	resp, err := n.Pool.Call(context.Background(), helperLane, q, helperLimit).AnswerTo(q.Line)
	if err != nil || len(resp.Programs) == 0 {
		return true
	}
	if resp.Programs[0].Self && n.Set.Get("NHC_RM") == "slurm" {
		return false
	}
	found := slices.ContainsFunc(resp.Programs[1:], func(p wire.Program) bool { return !p.Gone })
	if len(paths) > 0 && !found {
		n.Set.LoseHelpers(paths[0])
	}
	return n.Set.CustomHelper(name)
}

// Release sends the drain that the guard holds. Without one it makes no call.
func (n *Node) Release() (slurm.Outcome, error) {
	if n.Set.Observes() {
		return slurm.Outcome{}, fmt.Errorf("MODE=%s: nothing is sent", conf.Observe)
	}
	ctx, cancel := n.Acting()
	defer cancel()
	return n.Controller().Release(ctx)
}

// LetNextRun lets the next health check begin while this run continues in the background.
func (n *Node) LetNextRun() {
	if n.HealthCheck() && n.dir != nil {
		n.Pool.Unlock(RunLock)
	}
}

// EnvMode is the mode of the run for helpers that a script of the site calls. The script may have a MODE of its own.
const EnvMode = "NHC_MODE"

// markLimit is the time limit of each command of a helper. No later run delivers its drain.
const markLimit = 25 * time.Second

// Mark implements LBNL NHC's helper with that name, for sites that call it.
func Mark(out io.Writer, name string, argv []string) int {
	pool := run.NewPool(run.Options{Root: "/", Env: os.Environ()})
	defer pool.Close()
	host, _ := os.Hostname()
	node, err := slurm.NodeName(os.Getenv, host)
	if err != nil {
		node = host
	}
	if slices.Contains([]string{os.Getenv(conf.SettingMode), os.Getenv(EnvMode)}, conf.Observe) {
		fmt.Fprintf(out, "%s: node %s is left as it is (MODE=%s)\n", name, node, conf.Observe)
		return 0
	}
	c := slurm.NewController(node, runner{pool}, os.Getenv)
	c.Stderr, c.Deadline, c.Settings.Exports = os.Stderr, markLimit, os.Environ()
	if os.Geteuid() == 0 {
		if _, _, err := pool.OpenState(filepath.Join(StateRoot, node), "", ""); err == nil {
			c.BootID, c.Dir = slurm.BootID(), nodeState{pool} // for [slurm.Controller]: the next run must ask Slurm
		}
	}
	if name == "node-mark-online" {
		return slurm.MarkOnline(out, argv[0], argv[1:], os.Getenv, c, time.Now())
	}
	return slurm.MarkOffline(out, argv[0], argv[1:], os.Getenv, c, time.Now())
}

// managers are the signs of a resource manager, in LBNL NHC's order: a directory, then commands
// in PATH.
var managers = []struct{ name, dir, command string }{
	{"pbs", "/var/spool/torque/", ""},
	{"slurm", "", "scontrol"},
	{"pbs", "", "pbsnodes"},
	{"sge", "", "qselect"},
	{"lsf", "", "badmin"},
	{"lsf", "", "sbatchd"},
}

// managerPaths returns the paths that identify a resource manager.
func managerPaths(path string) (paths []string) {
	for _, m := range managers {
		if m.dir != "" {
			paths = append(paths, m.dir)
			continue
		}
		for dir := range strings.SplitSeq(path, ":") {
			if strings.HasPrefix(dir, "/") {
				paths = append(paths, dir+"/"+m.command)
			}
		}
	}
	return paths
}

// managerOf returns the resource manager that one of these paths identifies.
func managerOf(path string) string {
	for _, m := range managers {
		if m.dir == path || m.command != "" && strings.HasSuffix(path, "/"+m.command) {
			return m.name
		}
	}
	return ""
}

// ManagerRequest returns a request that looks for a resource manager.
func (n *Node) ManagerRequest() *wire.Request {
	return &wire.Request{Op: wire.OpFind, Args: managerPaths(n.Set.Get("PATH")), Line: "find the resource manager"}
}

// UseManager sets NHC_RM, if the site did not, and applies its consequences. It rejects SGE's load
// sensor loop: this program ends after every run.
func (n *Node) UseManager(find *wire.Request, o run.Outcome) (exit int, over bool) {
	if find != nil {
		if resp, err := o.AnswerTo(find.Line); err != nil {
			n.Warn(err)
		} else if resp.Status > 0 && resp.Status <= len(find.Args) {
			n.Set.Put("NHC_RM", managerOf(find.Args[resp.Status-1]), true)
		}
	}
	switch n.Set.Get("NHC_RM") {
	case "":
		n.Set.MarkNothing()
		n.Debug("Unable to detect resource manager.")
	case "sge":
		fmt.Fprintln(n.Errs, "nhc-gpu: NHC_RM=sge: the load sensor of SGE is not supported; unset NHC_RM, or set it to another resource manager")
		return 2, true
	}
	return 0, false
}
