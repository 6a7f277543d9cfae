package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// stateRoot holds a directory for each node that runs here; several slurmd may
// share a host.
const stateRoot = "/run/nhc-gpu"

// pastRoot holds a directory for each node, too: what checks keep of earlier
// runs outlives a reboot.
const pastRoot = "/var/lib/nhc-gpu"

// node is what Slurm calls this node, why it started us, and what earlier runs
// left behind.
type node struct {
	name string
	told bool  // slurmd has given the name
	bad  error // why the node has no name
	role slurm.Role
	dir  slurm.StateDir // what it remembers between runs; nil if it cannot
}

// nodeFromEnviron takes the role from the environment, unless a word has named it:
// before 20.11 slurmd does not tell a prolog that it is one.
func nodeFromEnviron(env func(string) string, role slurm.Role) node {
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	n := node{role: role}
	if role == slurm.Manual {
		n.role = slurm.RoleOf(env)
	}
	n.name, n.bad = slurm.NodeName(env, host)
	n.told = n.bad == nil && n.name == env("SLURMD_NODENAME")
	return n
}

func (n *node) healthCheck() bool { return n.role == slurm.HealthCheck }

// past is where checks keep what they need to know of earlier runs, and where if
// that cannot be written, as on a node without a disk: only root has such a
// place, and no job's environment names it.
func (n *node) past() (dir, spare string) {
	if os.Geteuid() != 0 || n.bad != nil {
		return "", ""
	}
	return pastOf(n.name)
}

func pastOf(node string) (dir, spare string) {
	return filepath.Join(pastRoot, node), filepath.Join(stateRoot, node, "past")
}

// runner starts Slurm's commands in a worker.
type runner struct{ pool *run.Pool }

func (r runner) Run(ctx context.Context, argv, env []string) (slurm.Output, error) {
	o, err := r.pool.Exec(ctx, argv, env, nil)
	return slurm.Output{Stdout: o.Stdout, Stderr: o.Stderr, Status: o.Status, TimedOut: o.TimedOut}, err
}

func (r *oneRun) controller() *slurm.Controller {
	c := slurm.NewController(r.node.name, runner{r.pool}, func(name string) string {
		if v, ok := r.set.Lookup(name); ok {
			return v
		}
		return ""
	})
	c.BootID, c.Dir = slurm.BootID(), r.node.dir
	return c
}

// tell acts on a verdict. Past the deadline of the run only a moment is left:
// a drain that cannot be delivered in it stays in the state directory. It reports whether
// Slurm answered.
func (r *oneRun) tell(v slurm.Verdict) (delivered bool) {
	if r.set.Get("NHC_RM") != "slurm" {
		r.warn(fmt.Errorf("mark node %s: resource manager %q: only slurm is acted on without a helper of the site's own (OFFLINE_NODE, ONLINE_NODE)", r.node.name, r.set.Get("NHC_RM")))
		return false
	}
	if r.node.bad != nil {
		r.warn(r.node.bad)
		return false
	}
	ctx, cancel := r.actContext()
	defer cancel()
	out, err := r.controller().Act(ctx, v, r.node.role)
	switch {
	case out.Warning != nil && !errors.Is(out.Warning, run.ErrNoState):
		r.warn(out.Warning)
	case err != nil && out.Repeats: // reported before
	case err != nil && out.Refused:
		r.warn(fmt.Errorf("%w; this is reported once a day, and tried again every 10 minutes", err))
		sink.Syslog(r.set.Get("NAME"), []string{fmt.Sprintf("Node %s cannot be marked:  %v", r.node.name, err)})
	case err != nil && out.Pending:
		r.warn(fmt.Errorf("drain of node %s could not be delivered, the next run will: %w", r.node.name, err))
	case err != nil:
		r.warn(err)
	}
	if err == nil && out.Kept {
		r.log.Write(fmt.Sprintf("nhc-gpu:  node %s is not resumed: %s", r.node.name, out.Why))
	}
	if err == nil && out.Action != slurm.None {
		r.log.Write(fmt.Sprintf("nhc-gpu:  %s node %s: %s", out.Action, r.node.name, out.Why))
	}
	return err == nil
}

func (r *oneRun) actContext() (context.Context, context.CancelFunc) {
	if end := r.budget.Acting(time.Now()); !end.IsZero() {
		return context.WithDeadline(context.Background(), end)
	}
	return context.WithCancel(context.Background())
}

func (r *oneRun) markOffline(message string) {
	refused := r.job != nil && r.job.blame.OfJob(r.fold.f.Failures()) >= 0
	v := slurm.Verdict{Message: message, Refused: refused, Cause: r.cause()}
	if failures := r.fold.f.Failures(); r.fold.f.Blamed() < len(failures) {
		x := failures[r.fold.f.Blamed()]
		v.Code, v.Device = x.Code, x.Device.String()
	}
	if r.tell(v) && refused && r.node.role == slurm.Prolog {
		r.tellJob()
	}
}

// tellJob lets the user of the job that is refused know the node and the cause.
func (r *oneRun) tellJob() {
	ctx, cancel := r.actContext()
	defer cancel()
	lost := r.job.blame.OfJob(r.fold.f.Failures())
	text := fmt.Sprintf("node %s failed its health check before this job started: %s", r.node.name, session.CauseForUser(r.steps[lost], r.fold.f.Failures()[lost]))
	if err := r.controller().TellJob(ctx, r.job.job.ID, text); err != nil {
		r.warn(err)
	}
}

// cause is what the failure that marks the node is about.
func (r *oneRun) cause() slurm.Cause {
	s := r.steps[r.fold.f.Blamed()]
	switch {
	case s == nil && r.job != nil:
		return slurm.Cause{}
	case s == nil:
		s = r.current
	}
	if s == nil {
		return slurm.Cause{File: r.paths.Of(r.set.Get("CONFFILE"))}
	}
	return session.CauseOf(s, r.paths, r.job != nil)
}

func (r *oneRun) markOnline() {
	pass := session.Pass{Plan: r.plan, Files: []string{r.set.Get("CONFFILE"), r.tablesFile()}, Paths: r.paths, Unanswered: r.unanswered}
	r.tell(slurm.Verdict{Healthy: true, Lacks: pass.Lacks})
}

// act finishes the verdict and gives the exit status. A run that came to no
// verdict still delivers what an earlier one had to leave pending.
func (r *oneRun) act(s *foldState) int {
	if r.job != nil {
		return r.actAroundJob(s)
	}
	events, exit := s.f.Finish(int(time.Since(r.budget.Began).Seconds()))
	r.emit(events)
	r.debugEnd()
	unknown := exit == exitUnknown && !s.f.Failed()
	if unknown {
		r.deliverPending()
	}
	r.log.Flush()
	if unknown {
		for _, f := range s.f.List() {
			if f.Severity == checks.Unknown && r.doubt == "" {
				r.doubt = f.Message
			}
		}
		return r.unknown()
	}
	return exit
}

// deliverPending delivers the drain that an earlier run could not, for a run that has no
// verdict of its own.
func (r *oneRun) deliverPending() {
	if r.job != nil || r.opts.eval != "" || r.node.bad != nil {
		return
	}
	r.set.Finalize() // a run whose sysconfig file cannot be read has not come to that
	if r.set.Get("NHC_RM") == "" {
		find := r.findManager()
		r.manager(find, r.pool.Call(r.ctx, checks.Local, find, r.budget.Reading(time.Now())))
	}
	if !r.set.Marks() || r.set.Get("NHC_RM") != "slurm" || r.set.CustomHelper("OFFLINE_NODE") {
		return
	}
	ctx, cancel := r.actContext()
	defer cancel()
	if out, err := r.controller().Deliver(ctx); err != nil && !out.Repeats {
		r.warn(err)
	}
}

// busy tells whether this run has to give way: a second health check of slurmd
// on a node where the first is still at work. Nothing else ever gives way, so only a
// health check takes the lock.
func (r *oneRun) busy() bool {
	lock := ""
	if r.node.healthCheck() {
		lock = runLock
	}
	if err := r.openState(lock); err != nil {
		fmt.Fprintf(console.Stdout, "nhc-gpu: %v; leaving without a verdict\n", err)
		return true
	}
	return false
}

// letNextRun lets the next health check begin: the work goes on in the background.
func (r *oneRun) letNextRun() {
	if r.node.healthCheck() && r.node.dir != nil {
		r.pool.Unlock(runLock)
	}
}

// markNode is LBNL NHC's helper of that name, for sites that call it.
func markNode(name string, argv []string) int {
	pool := run.NewPool(run.Options{Root: "/", Env: os.Environ()})
	defer pool.Close()
	host, _ := os.Hostname()
	node, err := slurm.NodeName(os.Getenv, host)
	if err != nil {
		node = host
	}
	c := slurm.NewController(node, runner{pool}, os.Getenv)
	c.Stderr = os.Stderr
	if name == "node-mark-online" {
		return slurm.MarkOnline(console.Screen, argv[0], argv[1:], os.Getenv, c, time.Now())
	}
	return slurm.MarkOffline(console.Screen, argv[0], argv[1:], os.Getenv, c, time.Now())
}
