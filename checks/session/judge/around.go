package judge

import (
	"log/syslog"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// BeginJob sets up a run around a job. Such a run records every failure, determines which of them
// concern the job, and decides about the node at its end.
func (j *Judge) BeginJob() {
	if j.job == nil {
		return
	}
	j.markHeld = true
	j.n.Pool.SetVars(j.n.Set.WorkerVars())
	j.files.UnderSlurm()
	j.every = j.n.Set.Get("NHC_CHECK_ALL") == "1"
	j.n.Set.Vars["NHC_CHECK_ALL"] = "1"
	j.job.Find(j.files.Eval != "")
	if j.job.Job.Share == slurm.NoGPUs {
		j.files.NoGPUs = "the job has no GPU"
	}
}

// attribute adds to each failure the jobs that it happened in.
func (j *Judge) attribute(check string, list []checks.Finding) []checks.Finding {
	switch {
	case j.n.Role == slurm.Prolog || j.n.Role == slurm.Manual || j.n.Set.Past == "":
		return list
	case j.job != nil:
		return j.job.Attribute(check, list)
	}
	return j.Records.Attribute(check, list)
}

// countAhead reads the counters before the verdict: a GPU that is lost at that time fails the run.
// The fold ignores findings that checks have already reported.
func (j *Judge) countAhead() {
	lost := j.job.Count()
	if len(lost) == 0 || j.fold.Over() {
		return
	}
	const check = "check_gpu_recovery" // the site's policy for this check applies to such findings
	from, s := len(j.fold.Failures()), &plan.Step{Name: check, Class: "gpu", Policy: j.files.Config.Of(check, "gpu")}
	j.emit(j.fold.Found(j.attribute(check, j.apply(s, j.Soften(s, lost)))))
	j.blame(from, s)
}

// judged records the step and the policy of the failures that begin at
// index from.
func (j *Judge) judged(from int, s *plan.Step) {
	if j.steps == nil {
		j.steps = map[int]*plan.Step{}
	}
	for i := from; i < len(j.fold.Failures()); i++ {
		j.steps[i] = s
	}
	j.blame(from, s)
}

// blame records the failures from index from on that let the job run.
func (j *Judge) blame(from int, s *plan.Step) {
	if j.job == nil {
		return
	}
	for i, f := range j.fold.Failures()[from:] {
		if ruleOf(j.files.Config, s, f).Action == conf.Drain || slices.Contains(j.spared, f.Message) {
			j.job.Blame.Spare(from + i)
		}
	}
}

// FinishJob marks the node for the failures, those of the job first, and returns the exit status: 1
// requeues the job, or reports that the job left the node faulty. A fault of other GPUs drains
// the node and lets the job run.
func (j *Judge) FinishJob() int {
	j.job.FindMIG()
	j.countAhead()
	failures := j.fold.Failures()
	if len(failures) == 0 || j.every { // otherwise it ends as after a first failure
		events, _ := j.fold.Finish(int(time.Since(j.n.Budget.Began).Seconds()))
		j.emit(events)
	}
	j.emit(j.fold.Flush())
	j.debugEnd()
	end := session.EndJob(&j.job.Blame, failures, j.n.Role, j.job.Job.ID, j.n.Set.Observes())
	if end.Would != "" {
		_ = j.n.Would(end.Would)
	}
	if end.Blamed >= 0 && j.n.Set.Marks() && !j.files.Config.Role(j.files.Context()).Exit {
		j.emit(j.fold.Blame(end.Blamed))
	}
	if j.n.Role == slurm.Epilog {
		j.closeRecord()
	} else {
		j.job.Open(end.Refuses)
	}
	j.n.Log.Flush()
	if !end.Refuses {
		return 0 // also if a check could not be evaluated
	}
	return 1
}

// closeRecord closes the record of the job, and writes it to the log and syslog.
func (j *Judge) closeRecord() {
	line, keep := j.job.Close()
	if line == "" {
		return
	}
	if j.n.Set.Get("SILENT") == "0" {
		j.n.Log.Write(j.n.Stamped(line))
	}
	_ = sink.SyslogAs(syslog.LOG_INFO, j.n.Set.Get("NAME"), []string{line})
	keep() // last, because the directory of the journal may not answer
}

// Finish finishes the verdict and returns the exit status, and for an unknown result the first
// message.
func (j *Judge) Finish() (exit int, doubt *string) {
	events, exit := j.fold.Finish(int(time.Since(j.n.Budget.Began).Seconds()))
	j.emit(events)
	j.debugEnd()
	if exit == verdict.ExitUnknown && !j.fold.Failed() {
		doubt = new(firstUnknown(j.fold.Findings()))
	}
	j.n.Log.Flush()
	return exit, doubt
}

// firstUnknown returns the first message of a check that could not be evaluated.
func firstUnknown(list []checks.Finding) string {
	for _, f := range list {
		if f.Severity == checks.Unknown && f.Message != "" {
			return f.Message
		}
	}
	return ""
}
