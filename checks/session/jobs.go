package session

import (
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// clockError is how far the clock may have gone wrong in a job for files to tell by
// their times that they were made in it.
const clockError = 5 * time.Second

// BeganAt returns when a job began, by the record of its prolog or by slurmctld; zero if
// nobody has said, or if the clock was set since.
func BeganAt(j slurm.Job, rec *slurm.Record, now slurm.Moment) time.Time {
	if rec == nil || rec.Restart != j.Restart || rec.Outcome != "" {
		return j.Began
	}
	passed, known := now.Since(rec.Begin)
	if !known || (now.Time.Sub(rec.Begin.Time)-passed).Abs() > clockError {
		return time.Time{}
	}
	return rec.Begin.Time
}

// Runs reports whether the record is of a job whose prolog has run in this boot, and of
// which no epilog has.
func Runs(rec *slurm.Record, boot string) bool { return rec.Begin.Boot == boot && rec.Outcome == "" }

// Beside returns the users of the other jobs that run here, by their records; false if the
// job has no record, unless it needs none.
func Beside(job string, own *slurm.Record, open []*slurm.Record, boot string) (uids []int, known bool) {
	known = own == nil
	for _, rec := range open {
		switch {
		case rec.Job == job:
			known = true
		case Runs(rec, boot):
			uids = append(uids, rec.UID)
		}
	}
	return uids, known
}

// Closes returns how the record of another job ends when the record now is opened, "" if
// that job may still run. newer is how many open records come behind it, itself among them.
func Closes(rec, now *slurm.Record, newer int, parts bool, running func(job string) bool) (outcome string) {
	if outcome = rec.EndedBefore(now, parts, running); outcome == "" && newer > openMost {
		return slurm.ClosedNoEpilog
	}
	return outcome
}

// openMost is how many records may be open; more are of jobs that nobody has seen the end of.
const openMost = 256

// WaitsForJobs reports whether a plan has an active test, which open records of jobs keep
// from its GPUs.
func WaitsForJobs(p *plan.Plan) bool {
	return slices.ContainsFunc(p.Steps, func(s plan.Step) bool { return s.Active && !s.OnlyOld })
}

// Attribute adds to failures the jobs, of the records, that they happened in, and returns
// the failures that began in one. xids are those since a job began.
func Attribute(check string, list []checks.Finding, jobs func() []*slurm.Record, xids func(checks.LogMark) []checks.XidSeen) (told []checks.Finding, began []slurm.Fault) {
	if checks.Worst(list) < checks.Fail {
		return list, nil
	}
	list = slices.Clone(list)
	for i := range list {
		f := &list[i]
		if f.Severity != checks.Fail || f.Code == "" {
			continue
		}
		var ids []string
		for _, rec := range jobs() {
			if rec.Began(check, *f, xids(rec.Log)) {
				ids = append(ids, rec.Job)
			}
		}
		if len(ids) > 0 {
			began = append(began, slurm.Fault{Code: f.Code, Device: f.Device, Message: f.Message})
		}
		f.Message, f.Jobs = slurm.Attributed(f.Message, ids), strings.Join(ids, " ")
	}
	return list, began
}
