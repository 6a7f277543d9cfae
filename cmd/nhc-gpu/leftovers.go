package main

import (
	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// jobForChecks is the job as checks see it; nil in runs of another kind.
func (r *oneRun) jobForChecks() *checks.Job {
	if r.job == nil {
		return nil
	}
	role := r.config.Role(r.context())
	j := &checks.Job{
		ID: r.job.job.ID, UID: r.job.job.UID, User: r.job.job.User, Node: r.Set.Get("SLURMD_NODENAME"), Shared: r.job.job.Shared,
		Whole: r.job.job.Alone, Part: r.job.job.Part, Het: r.job.job.Het, Restart: r.job.job.Restart,
		Ended: r.Role == slurm.Epilog, End: role.End, Grace: role.Grace,
	}
	if j.Ended && j.ID != "" {
		var known bool
		if j.Beside, known = r.jobsBeside(); known {
			j.Began = session.BeganAt(r.job.job, r.job.record, r.moment())
		}
		j.Again = r.job.record != nil && r.job.record.Restart > r.job.job.Restart
	}
	if r.job.blame.Scope.Known || r.job.job.Share == slurm.AllGPUs && r.job.job.Strange == "" {
		for _, g := range r.job.blame.Scope.Own {
			j.GPUs = append(j.GPUs, checks.JobGPU{Minor: g.Minor, PCI: g.PCI, UUID: g.UUID})
		}
	}
	return j
}

// jobsBeside returns the users of the other jobs that run here; false if they are not known.
func (r *oneRun) jobsBeside() (uids []int, known bool) {
	if !r.keepsRecords() {
		return nil, true
	}
	open, _ := r.records(checks.Local, slurm.RecordPrefix)
	return session.Beside(r.job.job.ID, r.job.record, open, slurm.BootID())
}
