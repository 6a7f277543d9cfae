package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/syslog"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// The record of a job: opened by its prolog, closed by its epilog, read by health
// checks that have found a fault, to say which job it happened in.

// jobJournal is where closed records are kept, and how much of it: some ten
// thousand jobs.
const (
	jobJournal  = "jobs"
	journalMost = 4 << 20
)

// asideLane is the worker that looks into records while checks are running: those
// of the local lane have its worker to themselves.
const asideLane checks.Lane = "jobs"

func (r *oneRun) recordCall(lane checks.Lane, q *run.Request) run.Outcome {
	return r.Pool.Call(r.Ctx, lane, q, r.Budget.Within(session.Record, time.Now()))
}

// keepsRecords says whether there is a place for records, and a job to keep one of.
func (r *oneRun) keepsRecords() bool {
	return r.job != nil && r.job.job.ID != "" && r.Set.Past != "" && r.opts.eval == ""
}

// moment is now.
func (r *oneRun) moment() slurm.Moment {
	var up unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) // without it nobody knows how long a job took
	return slurm.Moment{Time: time.Now().UTC().Truncate(time.Second), Boot: slurm.BootID(), Uptime: float64(up.Nano()) / 1e9}
}

// counts is what devices count now, in the order of the lanes.
type counts struct {
	counters []checks.Counters
	xids     []checks.XidSeen
	end      checks.LogMark
	doubts   []string
	lost     []checks.Finding // GPUs that the question has found to be lost
}

// count asks NVML, if there are GPUs to look at, and the kernel, side by side.
func (r *oneRun) count(since checks.LogMark) (c counts) {
	lanes := []checks.Lane{checks.Local}
	if r.job.job.Share != slurm.NoGPUs {
		lanes = append(lanes, checks.NVML)
	}
	out := make([]run.Outcome, len(lanes))
	var wg sync.WaitGroup
	for i, lane := range lanes {
		wg.Go(func() {
			out[i] = r.recordCall(lane, &run.Request{Op: run.OpCount, Name: string(lane), Mark: &since, Line: "count for the record of the job"})
		})
	}
	wg.Wait()
	for i, o := range out {
		resp, err := o.Answer()
		if err != nil {
			c.doubts = append(c.doubts, fmt.Sprintf("counters of lane %s: %v", lanes[i], err))
			continue
		}
		c.counters = append(c.counters, resp.Counters...)
		c.doubts = append(c.doubts, resp.Doubts...)
		c.lost = append(c.lost, resp.Findings...)
		if lanes[i] == checks.Local {
			c.xids = resp.Xids
			if resp.Mark != nil {
				c.end = *resp.Mark
			}
		}
	}
	return c
}

// countAhead counts before the verdict: a GPU that is lost by then fails the run, whether
// a check has looked at it or not. The fold knows what checks have reported already.
func (r *oneRun) countAhead() {
	if !r.keepsRecords() {
		return
	}
	since := checks.LogMark{}
	if r.Role == slurm.Epilog && r.job.record != nil {
		since = r.job.record.Log
	}
	c := r.count(since)
	r.job.counts = &c
	if len(c.lost) == 0 || r.fold.f.Over() {
		return
	}
	const check = "check_gpu_recovery" // whose policy the site has made for such findings
	from, action := len(r.fold.f.Failures()), r.config.Of(check, "gpu").Action
	r.emit(r.fold.f.Findings(r.attribute(check, session.Soften(c.lost, action))))
	r.job.blame.Judged(from, len(r.fold.f.Failures()), action)
}

// openRecord notes how the node is as the job begins; refused, if it does not.
func (r *oneRun) openRecord(refused bool) {
	if !r.keepsRecords() {
		return
	}
	rec := slurm.NewRecord(r.job.job, r.job.blame.Scope, r.Name, r.moment())
	r.tidyRecords(rec)
	c := r.job.counts
	rec.Counted, rec.Log, rec.Doubts = rec.OwnCounters(c.counters), c.end, c.doubts
	rec.Failing, rec.Looked = r.job.failing, r.job.looked
	if refused {
		rec.Outcome = slurm.ClosedRefused
	}
	data, err := json.Marshal(rec)
	if err == nil {
		err = r.recordCall(checks.Local, &run.Request{Op: run.OpKeep, Name: rec.Name(), Data: data, Line: "write the record of the job"}).Failure()
	}
	if err != nil {
		r.Warn(fmt.Errorf("keep the record of job %s: %w", rec.Job, err))
	}
}

// records reads the open records, the oldest first, and the names of what cannot be
// understood.
func (r *oneRun) records(lane checks.Lane, prefix string) (list []*slurm.Record, damaged []string) {
	resp, err := r.recordCall(lane, &run.Request{Op: run.OpRecall, Name: prefix, Line: "read the records of jobs"}).Answer()
	if err != nil {
		r.Warn(fmt.Errorf("read the records of jobs: %w", err))
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
			r.Warn(fmt.Errorf("%s: %w", raw.Name, err))
			continue
		}
		list = append(list, rec)
	}
	slices.SortFunc(list, func(a, b *slurm.Record) int { return a.Begin.Time.Compare(b.Begin.Time) })
	return list, damaged
}

// tidyRecords closes the records that no epilog will: of jobs that ended with the
// boot, of this job before it was requeued, of jobs that had what is this one's
// now, and the oldest of too many. What is damaged, or of another version, goes.
func (r *oneRun) tidyRecords(now *slurm.Record) {
	open, damaged := r.records(checks.Local, slurm.RecordPrefix)
	for _, name := range damaged {
		r.forget(name)
	}
	for i, rec := range open {
		if outcome := session.Closes(rec, now, len(open)-i, r.Set.Slurm != nil && r.Set.Slurm.Parts, r.runsHere); outcome != "" {
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
func (r *oneRun) runsHere(job string) bool {
	if r.withSteps == nil {
		resp, err := r.recordCall(checks.Local, &run.Request{Op: run.OpJobs, Line: "look for running jobs"}).Answer()
		if err != nil {
			r.Warn(fmt.Errorf("look for running jobs: %w", err))
			return true
		}
		r.withSteps = append([]string{""}, resp.Jobs...)
	}
	return slices.Contains(r.withSteps, job)
}

// journal files a closed record.
func (r *oneRun) journal(rec *slurm.Record) {
	data, err := json.Marshal(rec)
	if err == nil {
		err = r.recordCall(checks.Local, &run.Request{Op: run.OpNote, Name: jobJournal, Data: data, Most: journalMost, Line: "write the journal of jobs"}).Failure()
	}
	if err != nil {
		r.Warn(fmt.Errorf("keep the record of job %s: %w", rec.Job, err))
		return
	}
	r.forget(rec.Name())
}

func (r *oneRun) forget(name string) {
	err := r.recordCall(checks.Local, &run.Request{Op: run.OpForget, Name: name, Line: "remove the record of a job"}).Failure()
	if err != nil {
		r.Warn(err)
	}
}

// recallRecord finds the record that the job's prolog has opened, before the
// checks of the epilog are judged by it.
func (r *oneRun) recallRecord() {
	if !r.keepsRecords() || r.Role != slurm.Epilog {
		return
	}
	list, _ := r.records(checks.Local, slurm.RecordPrefix+r.job.job.ID)
	for _, rec := range list {
		if rec.Job == r.job.job.ID {
			r.job.record = rec
		}
	}
}

// closeRecord notes what has happened since the job began, for syslog and the
// journal.
func (r *oneRun) closeRecord() {
	if !r.keepsRecords() {
		return
	}
	rec := r.job.record
	if rec == nil && r.wasClosed() {
		return
	}
	if rec == nil {
		rec = slurm.NewRecord(r.job.job, r.job.blame.Scope, r.Name, slurm.Moment{})
		rec.Outcome = slurm.ClosedNoProlog
	}
	c := r.job.counts
	rec.Doubts = append(rec.Doubts, c.doubts...)
	rec.Faults = r.job.faults
	if code := os.Getenv("SLURM_JOB_EXIT_CODE2"); exitCode().MatchString(code) {
		rec.Exit = code
	}
	rec.Close(r.moment(), c.counters, c.xids)
	line := "nhc-gpu: " + rec.Line()
	if r.Set.Get("SILENT") == "0" {
		r.Log.Write(r.stamped(line))
	}
	sink.SyslogAs(syslog.LOG_INFO, r.Set.Get("NAME"), []string{line})
	r.journal(rec)
}

// wasClosed says whether the record of the job was closed in this boot: slurmd may
// run two epilogs for one job, after a prolog that failed or a restart of slurmctld
// (22.05 and 24.11 run).
func (r *oneRun) wasClosed() bool {
	resp, err := r.recordCall(checks.Local, &run.Request{Op: run.OpNotes, Name: jobJournal, Most: journalMost, Line: "read the journal of jobs"}).Answer()
	boot := slurm.BootID()
	if err != nil {
		return false
	}
	for _, line := range slices.Backward(resp.Lines) {
		if rec, err := slurm.ParseRecord(line); err == nil && rec.Job == r.job.job.ID {
			return rec.End.Boot == boot
		}
	}
	return false
}

var exitCode = checks.Lazily(`^[0-9]{1,3}:[0-9]{1,3}$`)

// looked takes note of what a check has found, whatever the site makes of it, and
// that it has looked at all.
func (r *oneRun) looked(check string, list []checks.Finding) {
	if r.job == nil {
		return
	}
	for _, f := range list {
		if f.Severity == checks.Fail {
			r.job.failing = append(r.job.failing, slurm.FailingKey(f))
		}
	}
	if !slices.ContainsFunc(list, func(f checks.Finding) bool { return f.Severity == checks.Unknown }) {
		r.job.looked = append(r.job.looked, check)
	}
}

// attribute adds to failures the jobs that they happened in.
func (r *oneRun) attribute(check string, list []checks.Finding) []checks.Finding {
	if r.Role == slurm.Prolog || r.Role == slurm.Manual || r.Set.Past == "" {
		return list
	}
	list, began := session.Attribute(check, list, r.jobsHere, r.xidsSince)
	if r.job != nil {
		r.job.faults = append(r.job.faults, began...)
	}
	return list
}

// jobsHere are the records that a fault may belong to: in an epilog that of its
// job, else those of the jobs that run.
func (r *oneRun) jobsHere() []*slurm.Record {
	if r.job != nil {
		if rec := r.job.record; rec == nil || !session.Runs(rec, slurm.BootID()) {
			return nil // it has not run here, or not in this boot
		}
		return []*slurm.Record{r.job.record}
	}
	return r.openRecords(asideLane)
}

// openRecords are those of the jobs that run. They are looked for once, by the worker of
// a lane that has nothing else to do then.
func (r *oneRun) openRecords(lane checks.Lane) []*slurm.Record {
	if !r.knowsJobs {
		r.knowsJobs = true
		boot := slurm.BootID()
		open, _ := r.records(lane, slurm.RecordPrefix)
		r.running = slices.DeleteFunc(open, func(rec *slurm.Record) bool {
			return !session.Runs(rec, boot)
		})
	}
	return r.running
}

// xidsSince are the Xids since a job began.
func (r *oneRun) xidsSince(mark checks.LogMark) []checks.XidSeen {
	if seen, ok := r.xids[mark]; ok {
		return seen
	}
	resp, err := r.recordCall(asideLane, &run.Request{Op: run.OpCount, Name: "xids", Mark: &mark, Line: "look for Xids of the job"}).Answer()
	if err != nil {
		r.Warn(fmt.Errorf("look for Xids: %w", err))
		return nil
	}
	if r.xids == nil {
		r.xids = map[checks.LogMark][]checks.XidSeen{}
	}
	r.xids[mark] = resp.Xids
	return resp.Xids
}
