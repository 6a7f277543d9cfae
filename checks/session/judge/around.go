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

// BeginJob sets up a run around a job: it sees every failure, to find out which
// concern the job, and says at its end what becomes of the node.
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

// attribute adds to failures the jobs that they happened in.
func (j *Judge) attribute(check string, list []checks.Finding) []checks.Finding {
	switch {
	case j.Role == slurm.Prolog || j.Role == slurm.Manual || j.Set.Past == "":
		return list
	case j.Job != nil:
		return j.Job.Attribute(check, list)
	}
	return j.Records.Attribute(check, list)
}

// countAhead counts before the verdict: a GPU that is lost by then fails the run. The fold
// knows what checks have reported already.
func (j *Judge) countAhead() {
	lost := j.Job.Count()
	if len(lost) == 0 || j.Fold.Over() {
		return
	}
	const check = "check_gpu_recovery" // whose policy the site has made for such findings
	from, action := len(j.Fold.Failures()), j.Config.Of(check, "gpu").Action
	j.Emit(j.Fold.Findings(j.attribute(check, session.Soften(lost, action))))
	j.Job.Blame.Judged(from, len(j.Fold.Failures()), action)
}

// judged takes note of the failures from the one numbered from on, which are of
// that step.
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

// FinishJob marks the node for what was found, the job's own first, and gives
// the exit status: 1 requeues the job, or says that it has left the node ill. A
// fault of other GPUs drains the node and lets the job run.
func (j *Judge) FinishJob() int {
	j.Job.FindMIG()
	j.countAhead()
	failures := j.Fold.Failures()
	if len(failures) == 0 || j.Every { // else it ends as after a first failure
		events, _ := j.Fold.Finish(int(time.Since(j.Budget.Began).Seconds()))
		j.Emit(events)
	}
	j.Emit(j.Fold.Flush())
	j.debugEnd()
	lost := j.Job.Blame.OfJob(failures)
	refuses := lost >= 0 && !j.Set.Observes()
	if lost >= 0 && !refuses {
		j.Would(fmt.Sprintf("end the %s of job %s with status 1", j.Role, j.Job.Job.ID))
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
		return 0 // also where something could not be told, see unknown
	}
	return 1
}

// closeRecord closes the record of the job, and tells the log and syslog.
func (j *Judge) closeRecord() {
	line, keep := j.Job.Close()
	if line == "" {
		return
	}
	if j.Set.Get("SILENT") == "0" {
		j.Log.Write(j.Stamped(line))
	}
	sink.SyslogAs(syslog.LOG_INFO, j.Set.Get("NAME"), []string{line})
	keep() // last: the directory of the journal may not answer
}

// Finish finishes the verdict and gives the exit status, and where that is unknown the first
// doubt.
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
