// Package job handles jobs in a run: the records of the jobs that run on the node, and the job
// of a prolog or an epilog.
package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/evidence"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Records holds the records of the node's jobs. A prolog opens a record, its epilog closes it, and
// a health check that finds a fault reads them to name the job that it happened in.
type Records struct {
	n *node.Node

	running   []*slurm.Record                     // the records of the running jobs, read once
	knowsJobs bool                                // running has been read
	withSteps []string                            // the jobs with processes on this node; nil: not read yet
	xids      map[checks.LogMark][]checks.XidSeen // Xids since a mark
}

// jobJournal is the file of closed records, and journalMost its maximum size: about ten thousand
// jobs.
const (
	jobJournal  = "jobs"
	journalMost = 4 << 20
)

// NewRecords returns the records of a node.
func NewRecords(n *node.Node) *Records { return &Records{n: n} }

func (r *Records) call(lane checks.Lane, q *wire.Request) run.Outcome {
	return r.n.Pool.Call(r.n.Ctx, lane, q, r.n.Budget.Within(session.Record, time.Now()))
}

// read reads the open records, the oldest first, and returns the names of records that cannot be
// parsed.
func (r *Records) read(lane checks.Lane, prefix string) (list []*slurm.Record, damaged []string) {
	resp, err := r.call(lane, &wire.Request{Op: wire.OpRecall, Name: prefix, Line: "read the records of jobs"}).Answer()
	if err != nil {
		r.n.Warn(fmt.Errorf("read the records of jobs: %w", err))
		return nil, nil
	}
	list, damaged, errs := parseOpen(resp.Records)
	for _, err := range errs {
		r.n.Warn(err)
	}
	return list, damaged
}

// parseOpen parses open records. It returns them, the oldest first, the names of those that cannot be
// parsed, and the errors of these and of unreadable ones.
func parseOpen(stored []probe.Record) (list []*slurm.Record, damaged []string, errs []error) {
	for _, raw := range stored {
		rec, err := slurm.ParseRecord(raw.Data)
		switch {
		case raw.Err != "":
			err = errors.New(raw.Err)
		case err != nil:
			damaged = append(damaged, raw.Name)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", raw.Name, err))
			continue
		}
		list = append(list, rec)
	}
	slices.SortFunc(list, func(a, b *slurm.Record) int { return a.Begin.Time.Compare(b.Begin.Time) })
	return list, damaged, errs
}

// tidy closes the records that no epilog will close: of jobs that ended with the boot, of this job
// before its requeue, of jobs that had this job's resources, and the oldest if there are too many.
// It removes records that are damaged or have another version.
func (r *Records) tidy(now *slurm.Record) {
	open, damaged := r.read(checks.Local, slurm.RecordPrefix)
	for _, name := range damaged {
		r.forget(name)
	}
	for i, rec := range open {
		if outcome := session.Closes(rec, now, len(open)-i, r.n.Set.Slurm != nil && r.n.Set.Slurm.Parts, r.runsHere); outcome != "" {
			var xids []checks.XidSeen
			if outcome == slurm.ClosedReboot { // later jobs can have the same ID
				xids = r.readXids(rec.Log)
			}
			rec.Abandon(outcome, now.Begin, xids)
			r.addToJournal(rec)
		}
	}
}

// runsHere reports whether a job has processes on the node. If that cannot be determined, it
// returns true.
func (r *Records) runsHere(job string) bool {
	if r.withSteps == nil {
		resp, err := r.call(checks.Local, &wire.Request{Op: wire.OpJobs, Line: "look for running jobs"}).Answer()
		if err != nil {
			r.n.Warn(fmt.Errorf("look for running jobs: %w", err))
			return true
		}
		r.withSteps = append([]string{""}, resp.Names...)
	}
	return slices.Contains(r.withSteps, job)
}

// addToJournal appends a closed record to the journal.
func (r *Records) addToJournal(rec *slurm.Record) {
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

// keepSamples writes the samples of a job that has failed into an archive of its own, if nhc-gpu monitor has taken
// some.
func (r *Records) keepSamples(rec *slurm.Record) {
	data, err := json.Marshal(rec)
	var resp *wire.Response
	if err == nil {
		const line = "keep the samples of the job"
		resp, err = r.call(checks.Local, &wire.Request{
			Op: wire.OpEvidence, Name: evidence.Name(rec.End.Time, evidence.FailedJob+rec.Job), Args: []string{rec.Job},
			Files: []wire.Named{{Name: "job.json", Data: append(data, '\n')}}, Line: line,
		}).AnswerTo(line)
	}
	if err != nil {
		r.n.Warn(fmt.Errorf("keep the samples of job %s: %w", rec.Job, err))
		return
	}
	rec.Samples = resp.Text
}

func (r *Records) forget(name string) {
	err := r.call(checks.Local, &wire.Request{Op: wire.OpForget, Name: name, Line: "remove the record of a job"}).Failure()
	if err != nil {
		r.n.Warn(err)
	}
}

// readRunning returns the records of the running jobs. It reads them once, by the worker of a lane
// that is idle at that time.
func (r *Records) readRunning(lane checks.Lane) []*slurm.Record {
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

// readXids returns the Xids since a job began.
func (r *Records) readXids(mark checks.LogMark) []checks.XidSeen {
	if seen, ok := r.xids[mark]; ok {
		return seen
	}
	resp, err := r.call(node.AsideLane, &wire.Request{Op: wire.OpCount, Name: "xids", Mark: &mark, Line: "look for Xids of the job"}).Answer()
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

// All returns the records of the journal, then the open ones. It skips a line that was cut off
// when the disk was full.
func (r *Records) All() (list []*slurm.Record, err error) {
	q := &wire.Request{Op: wire.OpNotes, Name: jobJournal, Most: journalMost, Line: "read the journal of jobs"}
	resp, err := r.call(checks.Local, q).AnswerTo(q.Line)
	if err != nil {
		return nil, err
	}
	for _, line := range resp.Lines {
		if rec, err := slurm.ParseRecord(line); err == nil {
			list = append(list, rec)
		}
	}
	q = &wire.Request{Op: wire.OpRecall, Name: slurm.RecordPrefix, Line: "read the records of jobs"}
	if resp, err = r.call(checks.Local, q).AnswerTo(q.Line); err != nil {
		return list, err
	}
	for _, o := range resp.Records {
		if rec, err := slurm.ParseRecord(o.Data); err == nil {
			list = append(list, rec)
		}
	}
	return list, nil
}

// Attribute adds to each failure the running jobs that it happened in.
func (r *Records) Attribute(check string, list []checks.Finding) []checks.Finding {
	list, _ = session.Attribute(check, list, func() []*slurm.Record { return r.readRunning(node.AsideLane) }, r.readXids)
	return list
}

// Settle closes the records of jobs without an epilog; otherwise active tests would wait for them
// until the next boot. Only slurmctld knows that such a job has ended. Settle asks it for the
// state of the node, once, if an active test can run and no job of an open record has a process
// here. A prolog and an epilog do not ask.
func (r *Records) Settle(p *plan.Plan) {
	rm := r.n.Set.Get("NHC_RM") // "" if it has not been detected
	if !session.WaitsForJobs(p) || r.n.Role.AroundJob() || r.n.Set.Past == "" || r.n.Bad != nil || rm != "" && rm != "slurm" {
		return
	}
	open := r.readRunning(checks.Local) // no check uses the local worker yet
	if len(open) == 0 || slices.ContainsFunc(open, func(rec *slurm.Record) bool { return r.runsHere(rec.Job) }) {
		return
	}
	ctx, cancel := r.n.Ctx, context.CancelFunc(func() {})
	if r.n.Budget.Limited() {
		ctx, cancel = context.WithDeadline(ctx, r.n.Budget.End)
	}
	defer cancel()
	info, err := r.n.Controller().Read(ctx)
	if err != nil {
		r.n.Warn(fmt.Errorf("find out whether job %s still runs: %w", open[0].Job, err))
		return
	}
	if !info.State.Empty() {
		return
	}
	now := node.ReadMoment()
	for _, rec := range open {
		rec.Abandon(slurm.ClosedNoEpilog, now, nil)
		r.addToJournal(rec)
	}
	r.running = nil
}
