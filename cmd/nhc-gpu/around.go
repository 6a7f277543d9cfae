package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// around is what a prolog or an epilog knows beside a run of any other kind.
type around struct {
	job   slurm.Job
	node  []slurm.GPU   // all GPUs of the node
	limit time.Duration // what Slurm leaves for the run; 0: for ever
	own   bool          // the lines are those of nhc-prolog.conf or nhc-epilog.conf
	every bool          // -a: go on after a failure also with what may change something

	record *slurm.Record // of an epilog's job; nil if it has none
	faults []slurm.Fault // that began in the job
	counts *counts       // what devices count at the end of the run; nil without a record

	looked, failing []string // the checks that have answered, and what they have found

	blame session.Blame
}

// aroundJob sets up a run around a job: it sees every failure, to find out which
// concern the job, and says at its end what becomes of the node.
func (r *oneRun) aroundJob() {
	if r.job == nil {
		return
	}
	r.fold.held = true
	r.Pool.SetVars(r.Set.WorkerVars())
	r.underSlurm()
	if r.Role == slurm.Epilog {
		r.recallRecord()
		r.job.job.Recall(r.job.record)
	}
	r.job.every = r.Set.Get("NHC_CHECK_ALL") == "1"
	r.Set.Vars["NHC_CHECK_ALL"] = "1"
	if r.job.job.Share == slurm.NoGPUs {
		r.job.blame.Scope.Known = true
		return
	}
	o := r.Pool.Call(r.Ctx, checks.Local, &run.Request{Op: run.OpGPUs, Line: "read /proc/driver/nvidia"}, r.Budget.Reading(time.Now()))
	resp, err := o.Answer()
	if err != nil {
		r.Warn(fmt.Errorf("find the GPUs of job %s: %w; each failure counts as the job's", r.job.job.ID, err))
		return
	}
	for i, g := range resp.GPUs {
		r.job.node = append(r.job.node, slurm.GPU{Index: i, Minor: g.Minor, PCI: g.Address, UUID: g.UUID})
	}
	if len(r.job.job.MIG) == 0 {
		r.findScope()
	}
}

// underSlurm keeps the run below the time that slurm.conf gives it.
func (r *oneRun) underSlurm() {
	r.AskSlurm()
	if r.Set.Slurm == nil {
		return
	}
	limit := r.Set.Slurm.Prolog
	if r.Role == slurm.Epilog {
		limit = r.Set.Slurm.Epilog
	}
	if limit > 0 {
		r.job.limit = limit
		r.setBudget()
	}
}

// findMIG finds out which GPUs the MIG devices of the job are on. NVML is asked
// behind the checks: if it hangs one of them is to say so.
func (r *oneRun) findMIG() {
	if len(r.job.job.MIG) == 0 {
		return
	}
	o := r.recordCall(checks.NVML, &run.Request{Op: run.OpGPUs, Name: string(checks.NVML), Line: "find the MIG devices of the job"})
	if resp, err := o.Answer(); err == nil {
		for i := range r.job.node {
			r.job.node[i].MIG = resp.MIG[r.job.node[i].PCI]
		}
	}
	r.findScope()
}

// findScope finds the GPUs of the job among those of the node.
func (r *oneRun) findScope() {
	scope, why := slurm.ScopeOf(r.job.job, r.job.node)
	r.job.blame.Scope = scope
	if why != "" {
		r.Warn(fmt.Errorf("find the GPUs of job %s: %s; each failure counts as the job's", r.job.job.ID, why))
	}
}

// ownRequest reads nhc-prolog.conf or nhc-epilog.conf, if that is not the file in
// use anyway.
func (r *oneRun) ownRequest() *run.Request {
	if r.job == nil {
		return nil
	}
	base, suffix := strings.TrimSuffix(r.Set.Get("CONFFILE"), ".conf"), "-"+r.context()
	named := slices.ContainsFunc(r.opts.set, func(a assignment) bool { return a.name == "CONFFILE" })
	if r.job.own = named || strings.HasSuffix(base, suffix); r.job.own {
		return nil
	}
	path := base + suffix + ".conf"
	return &run.Request{Op: run.OpRead, Path: path, Line: "read " + path}
}

// uncheckedJob is the exit status of a prolog or an epilog that cannot be used as
// it is set up, and would leave with another: slurmd would drain the node for it, and
// after a bad push each node.
func uncheckedJob(role slurm.Role, exit int) int {
	sink.Syslog(ownName, []string{fmt.Sprintf("Health check unknown:  %s: nothing was checked (exit status %d; 0 for Slurm): see nhc-gpu lint", role, exit)})
	return 0
}

// judged takes note of the failures from the one numbered from on, which are of
// that step.
func (r *oneRun) judged(from int, s *plan.Step) {
	if r.steps == nil {
		r.steps = map[int]*plan.Step{}
	}
	for i := from; i < len(r.fold.f.Failures()); i++ {
		r.steps[i] = s
	}
	if r.job != nil {
		r.job.blame.Judged(from, len(r.fold.f.Failures()), s.Policy.Action)
	}
}

// actAroundJob marks the node for what was found, the job's own first, and gives
// the exit status: 1 requeues the job, or says that it has left the node ill. A
// fault of other GPUs drains the node and lets the job run.
func (r *oneRun) actAroundJob(s *foldState) int {
	r.findMIG()
	r.countAhead()
	failures := s.f.Failures()
	if len(failures) == 0 || r.job.every { // else it ends as after a first failure
		events, _ := s.f.Finish(int(time.Since(r.Budget.Began).Seconds()))
		r.emit(events)
	}
	r.emit(s.f.Flush())
	r.debugEnd()
	lost := r.job.blame.OfJob(failures)
	if len(failures) > 0 && r.Set.Marks() && !r.config.Role(r.context()).Exit {
		r.emit(s.f.Blame(r.job.blame.OfNode(failures)))
	}
	if r.Role == slurm.Epilog {
		r.closeRecord()
	} else {
		r.openRecord(lost >= 0)
	}
	r.Log.Flush()
	if lost < 0 {
		return 0 // also where something could not be told, see unknown
	}
	return 1
}
