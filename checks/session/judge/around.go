package judge

import (
	"fmt"
	"log/syslog"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// BeginJob sets up a run around a job. Such a run records every failure, determines which of them
// concern the job, and decides about the node at its end.
func (j *Judge) BeginJob() {
	if j.Job == nil {
		return
	}
	j.Held = true
	j.Pool.SetVars(j.Set.WorkerVars())
	j.UnderSlurm()
	j.Every = j.Set.Get("NHC_CHECK_ALL") == "1"
	j.Set.Vars["NHC_CHECK_ALL"] = "1"
	j.Job.Find(j.Eval != "")
	if j.Job.Job.Share == slurm.NoGPUs {
		j.NoGPUs = "the job has no GPU"
	}
}

// attribute adds to each failure the jobs that it happened in.
func (j *Judge) attribute(check string, list []checks.Finding) []checks.Finding {
	switch {
	case j.Role == slurm.Prolog || j.Role == slurm.Manual || j.Set.Past == "":
		return list
	case j.Job != nil:
		return j.Job.Attribute(check, list)
	}
	return j.Records.Attribute(check, list)
}

// countAhead reads the counters before the verdict: a GPU that is lost at that time fails the run.
// The fold ignores findings that checks have already reported.
func (j *Judge) countAhead() {
	lost := j.Job.Count()
	if len(lost) == 0 || j.Fold.Over() {
		return
	}
	const check = "check_gpu_recovery" // the site's policy for this check applies to such findings
	from, action := len(j.Fold.Failures()), j.Config.Of(check, "gpu").Action
	j.Emit(j.Fold.Findings(j.attribute(check, session.Soften(lost, action))))
	j.Job.Blame.Judged(from, len(j.Fold.Failures()), action)
}

// judged records the step and the policy of the failures from index from
// on.
func (j *Judge) judged(from int, s *plan.Step) {
	if j.steps == nil {
		j.steps = map[int]*plan.Step{}
	}
	for i := from; i < len(j.Fold.Failures()); i++ {
		j.steps[i] = s
	}
	if j.Job != nil {
		j.Job.Blame.Judged(from, len(j.Fold.Failures()), s.Policy.Action)
	}
}

// FinishJob marks the node for the failures, those of the job first, and returns the exit status: 1
// requeues the job, or reports that the job left the node faulty. A fault of other GPUs drains
// the node and lets the job run.
func (j *Judge) FinishJob() int {
	j.Job.FindMIG()
	j.countAhead()
	failures := j.Fold.Failures()
	if len(failures) == 0 || j.Every { // otherwise it ends as after a first failure
		events, _ := j.Fold.Finish(int(time.Since(j.Budget.Began).Seconds()))
		j.Emit(events)
	}
	j.Emit(j.Fold.Flush())
	j.debugEnd()
	lost := j.Job.Blame.OfJob(failures)
	refuses := lost >= 0 && !j.Set.Observes()
	if lost >= 0 && !refuses {
		of := j.Role.String()
		if id := j.Job.Job.ID; id != "" { // a person has no job
			of += " of job " + id
		}
		j.Would(fmt.Sprintf("end the %s with status 1", of))
	}
	if len(failures) > 0 && j.Set.Marks() && !j.Config.Role(j.Context()).Exit {
		j.Emit(j.Fold.Blame(j.Job.Blame.OfNode(failures)))
	}
	if j.Role == slurm.Epilog {
		j.closeRecord()
	} else {
		j.Job.Open(refuses)
	}
	j.Log.Flush()
	if !refuses {
		return 0 // also if a check could not be evaluated
	}
	return 1
}

// closeRecord closes the record of the job, and writes it to the log and syslog.
func (j *Judge) closeRecord() {
	line, keep := j.Job.Close()
	if line == "" {
		return
	}
	if j.Set.Get("SILENT") == "0" {
		j.Log.Write(j.Stamped(line))
	}
	sink.SyslogAs(syslog.LOG_INFO, j.Set.Get("NAME"), []string{line})
	keep() // last, because the directory of the journal may not answer
}

// Finish finishes the verdict and returns the exit status, and for an unknown result the first
// message.
func (j *Judge) Finish() (exit int, doubt *string) {
	events, exit := j.Fold.Finish(int(time.Since(j.Budget.Began).Seconds()))
	j.Emit(events)
	j.debugEnd()
	if exit == verdict.ExitUnknown && !j.Fold.Failed() {
		doubt = new(string)
		for _, f := range j.Fold.List() {
			if f.Severity == checks.Unknown && *doubt == "" {
				*doubt = f.Message
			}
		}
	}
	j.Log.Flush()
	return exit, doubt
}
