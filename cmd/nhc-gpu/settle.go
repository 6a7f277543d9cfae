package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// settleRecords closes the records of jobs whose epilog did not run, for which active
// tests would wait until the next boot. Only slurmctld knows that such a job has ended:
// it is asked for the state of the node, once, where an active test may be run and no
// job of an open record has a process here. A prolog and an epilog ask nothing.
func (r *oneRun) settleRecords() {
	rm := r.Set.Get("NHC_RM") // "" where nobody has looked
	if !session.WaitsForJobs(r.plan) || r.job != nil || r.Set.Past == "" || r.Bad != nil || rm != "" && rm != "slurm" {
		return
	}
	open := r.openRecords(checks.Local) // which no check has yet
	if len(open) == 0 || slices.ContainsFunc(open, func(rec *slurm.Record) bool { return r.runsHere(rec.Job) }) {
		return
	}
	ctx, cancel := r.Ctx, context.CancelFunc(func() {})
	if r.Budget.Limited() {
		ctx, cancel = context.WithDeadline(ctx, r.Budget.End)
	}
	defer cancel()
	node, err := r.Controller().Read(ctx)
	if err != nil {
		r.Warn(fmt.Errorf("find out whether job %s still runs: %w", open[0].Job, err))
		return
	}
	if !node.State.Empty() {
		return
	}
	now := r.moment()
	for _, rec := range open {
		rec.Abandon(slurm.ClosedNoEpilog, now, nil)
		r.journal(rec)
	}
	r.running = nil
}
