package jobs

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
)

// How check_job_leftovers reports a process, and what it stores about one that no signal can end.

// describeFate describes the state of a process.
func (r *leftRun) describeFate(p *leftProcess) string {
	switch {
	case p.gone && p.killed:
		return "had to be killed" + r.describeOpened(p)
	case p.gone:
		return "had to be ended" + r.describeOpened(p)
	}
	text := "remains" + r.describeOpened(p)
	if p.Asleep {
		text += " in state D" + checks.Before(", wait channel ", p.Wchan, "")
	}
	switch {
	case !r.end:
		return text + checks.Before("; ", p.Claim, "")
	case p.killed:
		return text + "; killed, but not ended yet"
	case r.runs != "":
		return text + "; not ended: " + r.runs
	case p.err != nil:
		return text + fmt.Sprintf("; cannot end it: %v", p.err)
	}
	return text + checks.Before("; not ended: ", r.keepReason(p), "")
}

// describeHang describes a process that no signal can end. The text stays the same from run to run.
func (r *leftRun) describeHang(p *leftProcess) string {
	return "cannot be ended" + r.describeOpened(p) + ": killed, and in state D" + checks.Before(", wait channel ", p.Wchan, "")
}

// describeOpened names the GPUs that a process has open.
func (r *leftRun) describeOpened(p *leftProcess) string {
	var names []string
	for _, minor := range p.gpus {
		name := fmt.Sprintf("/dev/nvidia%d", minor)
		if i := slices.IndexFunc(r.job.GPUs, func(g checks.JobGPU) bool { return g.Minor == minor && g.PCI != "" }); i >= 0 {
			name = "GPU " + r.job.GPUs[i].PCI
		}
		names = append(names, name)
	}
	return checks.Before(" with ", strings.Join(names, ", "), " open")
}

// stuckRecord has the processes of a job that no signal can end.
type stuckRecord struct {
	Processes []stuckProcess `json:"processes"`
}

type stuckProcess struct {
	PID     int    `json:"pid"`
	Start   uint64 `json:"start"`
	Message string `json:"message"`
}

const stuckRecords = "leftover-"

// remember stores stuck processes for later runs: the next health check would find nothing wrong.
func (r *leftRun) remember(stuck []*leftProcess) []checks.Finding {
	if len(stuck) == 0 {
		return nil
	}
	var record stuckRecord
	for _, p := range stuck {
		record.Processes = append(record.Processes, stuckProcess{p.PID, p.Start, r.finding(p, checks.Finding{}, r.describeHang(p)).Message})
	}
	return checks.KeepForLater(r.env, jobLeftoversName, stuckRecords+r.job.ID, record)
}

// stillStuck checks the processes that epilogs have stored: one that still sleeps fails. One that is awake
// in this moment has SIGKILL pending and has not ended, so its record stays.
func stillStuck(env *checks.Env) (findings []checks.Finding) {
	records, err := probe.Records(env.Host, stuckRecords)
	switch {
	case errors.Is(err, probe.ErrNoMemory):
		return reportNoJob(jobLeftoversName)
	case err != nil && !errors.Is(err, probe.ErrSilent): // a run without the records resumes no node
		return checks.Unreadable(err)
	}
	for _, r := range records {
		var record stuckRecord
		if r.Err != "" {
			findings = append(findings, checks.Unreadable(errors.New(r.Err))...)
			continue
		}
		if json.Unmarshal(r.Data, &record) != nil {
			_ = probe.Forget(env.Host, r.Name) // no later run could read it either
			findings = append(findings, checks.Unreadable(fmt.Errorf("%s.json is damaged: the stuck processes of that job are unknown", r.Name))...)
			continue
		}
		there := false
		for _, p := range record.Processes {
			env.At("look at process %d", p.PID)
			now, alive := jobscan.JobProcessNow(env.Host, jobscan.JobRef{}, jobscan.JobProcess{Process: probe.Process{PID: p.PID}, Start: p.Start})
			f := checks.Finding{Code: checks.JobStuck, Severity: checks.Fail, Remedy: checks.RebootNode, Device: checks.Device{Kind: "process"}, Message: p.Message}
			switch {
			case !alive:
				continue
			case !now.Asleep:
				f.Severity, f.Remedy, f.Message = checks.Unknown, checks.NoRemedy, p.Message+"; now it is in another state, or cannot be read"
			}
			there = true
			findings = append(findings, f)
		}
		if !there {
			_ = probe.Forget(env.Host, r.Name) // the next run tries again
		}
	}
	switch {
	case len(findings) > 0:
		return findings
	case err != nil: // it can have records
		return reportNoJob(jobLeftoversName)
	}
	return []checks.Finding{checks.Finding{Code: checks.NoneStuck, Severity: checks.Skip}.
		Describe(jobLeftoversName, "not in the epilog of a job, and no stuck process of an earlier job remains")}
}

// reportNoJob returns the finding of a check of the class "job" if no job has ended.
func reportNoJob(check string) []checks.Finding {
	return []checks.Finding{checks.Finding{Code: "job.none", Severity: checks.Skip}.Describe(check, "not in the epilog of a job")}
}

func init() {
	checks.RegisterAdvice(func() map[string]string {
		return map[string]string{"job.none": "Nothing to repair: the check only works in the epilog of a job."}
	})
}
