package main

import (
	"fmt"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

func (r *oneRun) markOffline(message string) {
	refused := r.job != nil && r.job.blame.OfJob(r.fold.f.Failures()) >= 0
	v := slurm.Verdict{Message: message, Refused: refused, Cause: r.cause()}
	if failures := r.fold.f.Failures(); r.fold.f.Blamed() < len(failures) {
		x := failures[r.fold.f.Blamed()]
		v.Code, v.Device = x.Code, x.Device.String()
	}
	if r.Tell(v) && refused && r.Role == slurm.Prolog {
		r.tellJob()
	}
}

// tellJob lets the user of the job that is refused know the node and the cause.
func (r *oneRun) tellJob() {
	ctx, cancel := r.Acting()
	defer cancel()
	lost := r.job.blame.OfJob(r.fold.f.Failures())
	text := fmt.Sprintf("node %s failed its health check before this job started: %s", r.Name, session.CauseForUser(r.steps[lost], r.fold.f.Failures()[lost]))
	if err := r.Controller().TellJob(ctx, r.job.job.ID, text); err != nil {
		r.Warn(err)
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
		return slurm.Cause{File: r.paths.Of(r.Set.Get("CONFFILE"))}
	}
	return session.CauseOf(s, r.paths, r.job != nil)
}

func (r *oneRun) markOnline() {
	pass := session.Pass{Plan: r.plan, Files: []string{r.Set.Get("CONFFILE"), r.tablesFile()}, Paths: r.paths, Unanswered: r.unanswered}
	r.Tell(slurm.Verdict{Healthy: true, Lacks: pass.Lacks})
}

// act finishes the verdict and gives the exit status. A run that came to no
// verdict still delivers what an earlier one had to leave pending.
func (r *oneRun) act(s *foldState) int {
	if r.job != nil {
		return r.actAroundJob(s)
	}
	events, exit := s.f.Finish(int(time.Since(r.Budget.Began).Seconds()))
	r.emit(events)
	r.debugEnd()
	unknown := exit == exitUnknown && !s.f.Failed()
	if unknown {
		r.leavePending()
	}
	r.Log.Flush()
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

// busy tells whether this run has to give way: a second health check of slurmd
// on a node where the first is still at work. Nothing else ever gives way, so only a
// health check takes the lock.
func (r *oneRun) busy() bool {
	lock := ""
	if r.HealthCheck() {
		lock = node.RunLock
	}
	if err := r.OpenState(lock); err != nil {
		fmt.Fprintf(console.Stdout, "nhc-gpu: %v; leaving without a verdict\n", err)
		return true
	}
	return false
}

// leavePending has a run that has no verdict of its own deliver the drain that an earlier
// one could not.
func (r *oneRun) leavePending() {
	if r.job == nil && r.opts.eval == "" {
		r.DeliverPending()
	}
}
