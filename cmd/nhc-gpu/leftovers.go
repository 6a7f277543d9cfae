package main

import (
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// What checks may know of the job that a prolog or an epilog runs for, and what is
// looked at after every job.

// jobForChecks is the job as checks see it; nil in runs of another kind.
func (r *oneRun) jobForChecks() *checks.Job {
	if r.job == nil {
		return nil
	}
	role := r.config.Role(r.context())
	j := &checks.Job{
		ID: r.job.job.ID, UID: r.job.job.UID, User: r.job.job.User, Node: r.set.get("SLURMD_NODENAME"), Shared: r.job.job.Shared,
		Whole: r.job.job.Alone, Part: r.job.job.Part, Het: r.job.job.Het, Restart: r.job.job.Restart,
		Ended: r.node.role == slurm.Epilog, End: role.End, Grace: role.Grace,
	}
	if j.Ended && j.ID != "" {
		var known bool
		if j.Beside, known = r.jobsBeside(); known {
			j.Began = r.jobBegan()
		}
		j.Again = r.job.record != nil && r.job.record.Restart > r.job.job.Restart
	}
	if r.job.scope.Known || r.job.job.Share == slurm.AllGPUs && r.job.job.Strange == "" {
		for _, g := range r.job.scope.Own {
			j.GPUs = append(j.GPUs, checks.JobGPU{Minor: g.Minor, PCI: g.PCI, UUID: g.UUID})
		}
	}
	return j
}

// clockError is how far the clock may have gone wrong in a job for files to tell by
// their times that they were made in it.
const clockError = 5 * time.Second

// jobBegan is when the job began, by its prolog or by slurmctld; zero if nobody has
// said, or if the clock was set since.
func (r *oneRun) jobBegan() time.Time {
	rec := r.job.record
	if rec == nil || rec.Restart != r.job.job.Restart || rec.Outcome != "" {
		return r.job.job.Began
	}
	now := r.moment()
	passed, known := now.Since(rec.Begin)
	if !known || (now.Time.Sub(rec.Begin.Time)-passed).Abs() > clockError {
		return time.Time{}
	}
	return rec.Begin.Time
}

// jobsBeside are the users of the other jobs whose prologs have run here in this
// boot, and of which no epilog has; false if that is not known.
func (r *oneRun) jobsBeside() (uids []int, known bool) {
	if !r.keepsRecords() {
		return nil, true
	}
	boot := slurm.BootID()
	known = r.job.record == nil
	open, _ := r.records(checks.Local, slurm.RecordPrefix)
	for _, rec := range open {
		switch {
		case rec.Job == r.job.job.ID:
			known = true
		case rec.Begin.Boot == boot && rec.Outcome == "":
			uids = append(uids, rec.UID)
		}
	}
	return uids, known
}

// The checks of an epilog that no line needs to ask for. What a job has left is
// looked for before anything else, so that nothing that hangs hides it, and its
// GPUs' memory when the processes have had their time.
const (
	leftoversCheck = "check_job_leftovers"
	jobGPUsCheck   = "check_job_gpus"
)

// everyEpilog stands for the place of what no line asks for.
const everyEpilog = "every epilog"

func unasked(s *plan.Step) bool { return s.Pos == conf.Pos{File: everyEpilog} }

// afterJob adds them to the plan of an epilog, but those that the site names.
func (r *oneRun) afterJob(p *plan.Plan, opts plan.Options) *plan.Plan {
	if opts.Context != conf.Epilog {
		return p
	}
	asked := func(name string) bool {
		names := func(s plan.Step) bool { return s.Name == name || strings.Contains(s.Text, name) }
		return slices.ContainsFunc(p.Steps, names) || slices.ContainsFunc(p.Left, func(l plan.Left) bool { return names(l.Step) })
	}
	step := func(name string) *plan.Plan {
		if asked(name) {
			return new(plan.Plan)
		}
		return plan.BuildTables([]conf.Entry{{Pos: conf.Pos{File: everyEpilog}, Name: name, Hosts: "*", Params: map[string]any{}}}, opts)
	}
	all := step(leftoversCheck)
	gpus := step(jobGPUsCheck)
	all.Add(p)
	all.Add(gpus)
	return all
}
