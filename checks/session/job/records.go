// Package job has what a run knows of jobs: the records of those that run on the node, and the
// job that a prolog or an epilog runs for.
package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Records are those of the jobs of the node: opened by a prolog, closed by its epilog, read by
// health checks that have found a fault, to say which job it happened in.
type Records struct {
	n *node.Node

	running   []*slurm.Record                     // of the jobs that run here, once
	knowsJobs bool                                // they have been looked for
	withSteps []string                            // the jobs that have processes here; nil: nobody has looked
	xids      map[checks.LogMark][]checks.XidSeen // since some marks
}

// jobJournal is where closed records are kept, and how much of it: some ten
// thousand jobs.
const (
	jobJournal  = "jobs"
	journalMost = 4 << 20
)

// NewRecords are those of a node.
func NewRecords(n *node.Node) *Records { return &Records{n: n} }

// asideLane is the worker that looks into records while checks are running: those
// of the local lane have its worker to themselves.
const asideLane checks.Lane = "jobs"

func (r *Records) call(lane checks.Lane, q *wire.Request) run.Outcome {
	return r.n.Pool.Call(r.n.Ctx, lane, q, r.n.Budget.Within(session.Record, time.Now()))
}

// moment returns this moment.
func moment() slurm.Moment {
	var up unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) // without it nobody knows how long a job took
	return slurm.Moment{Time: time.Now().UTC().Truncate(time.Second), Boot: slurm.BootID(), Uptime: float64(up.Nano()) / 1e9}
}

// read reads the open records, the oldest first, and the names of what cannot be
// understood.
func (r *Records) read(lane checks.Lane, prefix string) (list []*slurm.Record, damaged []string) {
	resp, err := r.call(lane, &wire.Request{Op: wire.OpRecall, Name: prefix, Line: "read the records of jobs"}).Answer()
	if err != nil {
		r.n.Warn(fmt.Errorf("read the records of jobs: %w", err))
		return nil, nil
	}
	for _, raw := range resp.Records {
		rec, err := slurm.ParseRecord(raw.Data)
		switch {
		case raw.Err != "":
			err = errors.New(raw.Err)
		case err != nil:
			damaged = append(damaged, raw.Name)
		}
		if err != nil {
			r.n.Warn(fmt.Errorf("%s: %w", raw.Name, err))
			continue
		}
		list = append(list, rec)
	}
	slices.SortFunc(list, func(a, b *slurm.Record) int { return a.Begin.Time.Compare(b.Begin.Time) })
	return list, damaged
}

// tidy closes the records that no epilog will: of jobs that ended with the
// boot, of this job before it was requeued, of jobs that had what is this one's
// now, and the oldest of too many. What is damaged, or of another version, goes.
func (r *Records) tidy(now *slurm.Record) {
	open, damaged := r.read(checks.Local, slurm.RecordPrefix)
	for _, name := range damaged {
		r.forget(name)
	}
	for i, rec := range open {
		if outcome := session.Closes(rec, now, len(open)-i, r.n.Set.Slurm != nil && r.n.Set.Slurm.Parts, r.runsHere); outcome != "" {
			var xids []checks.XidSeen
			if outcome == slurm.ClosedReboot { // later ones may be of other jobs
				xids = r.xidsSince(rec.Log)
			}
			rec.Abandon(outcome, now.Begin, xids)
			r.journal(rec)
		}
	}
}

// runsHere says whether a job has processes on the node. Where that cannot be told
// it has.
func (r *Records) runsHere(job string) bool {
	if r.withSteps == nil {
		resp, err := r.call(checks.Local, &wire.Request{Op: wire.OpJobs, Line: "look for running jobs"}).Answer()
		if err != nil {
			r.n.Warn(fmt.Errorf("look for running jobs: %w", err))
			return true
		}
		r.withSteps = append([]string{""}, resp.Jobs...)
	}
	return slices.Contains(r.withSteps, job)
}

// journal files a closed record.
func (r *Records) journal(rec *slurm.Record) {
	data, err := json.Marshal(rec)
	if err == nil {
		err = r.call(checks.Local, &wire.Request{Op: wire.OpNote, Name: jobJournal, Data: data, Most: journalMost, Line: "write the journal of jobs"}).Failure()
	}
	if err != nil {
		r.n.Warn(fmt.Errorf("keep the record of job %s: %w", rec.Job, err))
		return
	}
	r.forget(rec.Name())
}

func (r *Records) forget(name string) {
	err := r.call(checks.Local, &wire.Request{Op: wire.OpForget, Name: name, Line: "remove the record of a job"}).Failure()
	if err != nil {
		r.n.Warn(err)
	}
}

// ofRunning are those of the jobs that run. They are looked for once, by the worker of
// a lane that has nothing else to do then.
func (r *Records) ofRunning(lane checks.Lane) []*slurm.Record {
	if !r.knowsJobs {
		r.knowsJobs = true
		boot := slurm.BootID()
		open, _ := r.read(lane, slurm.RecordPrefix)
		r.running = slices.DeleteFunc(open, func(rec *slurm.Record) bool {
			return !session.Runs(rec, boot)
		})
	}
	return r.running
}

// xidsSince are the Xids since a job began.
func (r *Records) xidsSince(mark checks.LogMark) []checks.XidSeen {
	if seen, ok := r.xids[mark]; ok {
		return seen
	}
	resp, err := r.call(asideLane, &wire.Request{Op: wire.OpCount, Name: "xids", Mark: &mark, Line: "look for Xids of the job"}).Answer()
	if err != nil {
		r.n.Warn(fmt.Errorf("look for Xids: %w", err))
		return nil
	}
	if r.xids == nil {
		r.xids = map[checks.LogMark][]checks.XidSeen{}
	}
	r.xids[mark] = resp.Xids
	return resp.Xids
}

// All are those of the journal, then the open ones. A line that is none
// was half written when the disk was full.
func (r *Records) All() (list []*slurm.Record, err error) {
	resp, err := r.call(checks.Local, &wire.Request{Op: wire.OpNotes, Name: jobJournal, Most: journalMost, Line: "read the journal of jobs"}).AnswerTo("read the journal of jobs")
	if err != nil {
		return nil, err
	}
	for _, line := range resp.Lines {
		if rec, err := slurm.ParseRecord(line); err == nil {
			list = append(list, rec)
		}
	}
	if resp, err = r.call(checks.Local, &wire.Request{Op: wire.OpRecall, Name: slurm.RecordPrefix, Line: "read the records of jobs"}).AnswerTo("read the records of jobs"); err != nil {
		return list, err
	}
	for _, o := range resp.Records {
		if rec, err := slurm.ParseRecord(o.Data); err == nil {
			list = append(list, rec)
		}
	}
	return list, nil
}

// Attribute adds to failures the running jobs that they happened in.
func (r *Records) Attribute(check string, list []checks.Finding) []checks.Finding {
	list, _ = session.Attribute(check, list, func() []*slurm.Record { return r.ofRunning(asideLane) }, r.xidsSince)
	return list
}

// Settle closes the records of jobs whose epilog did not run, for which active
// tests would wait until the next boot. Only slurmctld knows that such a job has ended:
// it is asked for the state of the node, once, where an active test may be run and no
// job of an open record has a process here. A prolog and an epilog ask nothing.
func (r *Records) Settle(p *plan.Plan) {
	rm := r.n.Set.Get("NHC_RM") // "" where nobody has looked
	if !session.WaitsForJobs(p) || r.n.Role.AroundJob() || r.n.Set.Past == "" || r.n.Bad != nil || rm != "" && rm != "slurm" {
		return
	}
	open := r.ofRunning(checks.Local) // which no check has yet
	if len(open) == 0 || slices.ContainsFunc(open, func(rec *slurm.Record) bool { return r.runsHere(rec.Job) }) {
		return
	}
	ctx, cancel := r.n.Ctx, context.CancelFunc(func() {})
	if r.n.Budget.Limited() {
		ctx, cancel = context.WithDeadline(ctx, r.n.Budget.End)
	}
	defer cancel()
	node, err := r.n.Controller().Read(ctx)
	if err != nil {
		r.n.Warn(fmt.Errorf("find out whether job %s still runs: %w", open[0].Job, err))
		return
	}
	if !node.State.Empty() {
		return
	}
	now := moment()
	for _, rec := range open {
		rec.Abandon(slurm.ClosedNoEpilog, now, nil)
		r.journal(rec)
	}
	r.running = nil
}
