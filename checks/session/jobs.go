package session

import (
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// clockError is the clock error that is tolerated when the time of a file shows that a job made
// it.
const clockError = 5 * time.Second

// BeganAt returns when a job began, from the record of its prolog or from slurmctld; zero if that
// is unknown or the clock was set since then.
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

// Runs reports whether the record is of a job whose prolog ran in this boot and whose epilog has
// not run.
func Runs(rec *slurm.Record, boot string) bool { return rec.Begin.Boot == boot && rec.Outcome == "" }

// Beside returns the users of the other jobs that run here, from their records. known is false if
// the job needs a record and has none.
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

// Closes returns the outcome of another job's record when the record now is opened, "" if that job
// can still run. newer is the number of newer open records, including itself.
func Closes(rec, now *slurm.Record, newer int, parts bool, running func(job string) bool) (outcome string) {
	if outcome = rec.EndedBefore(now, parts, running); outcome == "" && newer > openMost {
		return slurm.ClosedNoEpilog
	}
	return outcome
}

// openMost is the maximum number of open records; more belong to jobs without a recorded end.
const openMost = 256

// WaitsForJobs reports whether a plan has an active test. Active tests do not use GPUs with open
// job records.
func WaitsForJobs(p *plan.Plan) bool {
	return slices.ContainsFunc(p.Steps, func(s plan.Step) bool { return s.Active && !s.OnlyOld })
}

// Attribute adds to each failure the jobs that it happened in, from their records, and returns the
// faults that began in a job. xids returns the Xids since a mark.
func Attribute(check string, list []checks.Finding, jobs func() []*slurm.Record, xids func(checks.LogMark) []checks.XidSeen) (told []checks.Finding, began []slurm.Fault) {
	if checks.Worst(list) < checks.Fail {
		return list, nil
	}
	list = slices.Clone(list)
	for i := range list {
		f := &list[i]
		if f.Severity != checks.Fail || f.Code == "" || f.Drill {
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
		if f.Jobs == "" { // else the finding is about a job, which its text names
			f.Message, f.Jobs = slurm.Attributed(f.Message, ids), strings.Join(ids, " ")
		}
	}
	return list, began
}
