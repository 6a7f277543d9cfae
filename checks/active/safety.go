package active

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// When an active test may run: never while a job runs, since each would disturb the other, and
// never in a prolog of a node that jobs share.

// jobRecords is the prefix of the names of job records, see slurm.RecordPrefix.
const jobRecords = "job-"

// findRefusal returns why no active test may run now, nil if it may.
func findRefusal(ctx context.Context, r *activeRun) *checks.Finding {
	env := r.env
	end, ends := ctx.Deadline()
	if left := time.Until(end); ends && left < r.Bound {
		got := max(left.Round(100*time.Millisecond), 0)
		if got >= r.Bound {
			got = left.Truncate(100 * time.Millisecond)
		}
		f := checks.Finding{Code: "active.time", Severity: checks.Unknown, Want: r.Bound.String(), Got: got.String()}.Describe(r.Check, "not run: too little time left in this run")
		switch {
		case env.Timeout > 0 && r.Bound >= checks.Usable(env.Timeout): // no run of this length ever has the time
			f.Severity = checks.Skip
			f = f.Phrase(r.Check, "not run: needs up to %s, too long for a run of %s; nhc-gpu-active.timer runs such tests", r.Bound, env.Timeout)
		case env.Periodic: // earlier lines use the time in every run
			f.Severity = checks.Skip
		}
		return &f
	}
	running := maps.Clone(r.jobs.Running)
	maps.DeleteFunc(running, func(id string, _ bool) bool { return isOwn(r, id) })
	if len(running) > 0 {
		return new(checks.Finding{Code: "active.busy", Severity: checks.Skip}.Describe(r.Check, "not run: %s", formatRunning(slices.Sorted(maps.Keys(running)))))
	}
	begun, err := listBegunJobs(r)
	if err != nil {
		return new(checks.Finding{Code: "active.busy", Severity: checks.Unknown}.Describe(r.Check, "not run: it is unknown whether a job has started: %v", err))
	}
	if len(begun) > 0 {
		return new(checks.Finding{Code: "active.busy", Severity: checks.Skip}.Describe(r.Check, "not run: %s", formatBegun(begun)))
	}
	if why := describeSharing(r); why != "" {
		return new(checks.Finding{Code: "active.shared", Severity: checks.Skip}.Describe(r.Check, "not run in this prolog: %s", why))
	}
	return nil
}

// endGrace is the part of the run that a test leaves for cleaning up: freeing memory, destroying
// contexts. A worker that is not done when the run ends is killed.
const endGrace = 5 * time.Second

// shorten makes a test end that much before the run, if at least half of its time is left.
func shorten(ctx context.Context, r *activeRun) {
	if end, ends := ctx.Deadline(); ends {
		r.Bound = min(r.Bound, max(time.Until(end)-endGrace, r.Bound/2))
	}
}

func formatRunning(jobs []string) string {
	if len(jobs) == 1 {
		return "job " + jobs[0] + " runs on the node"
	}
	return formatJobs(jobs) + " run on the node"
}

func formatBegun(jobs []string) string {
	if len(jobs) == 1 {
		return "job " + jobs[0] + " started on the node, and its epilog has not run"
	}
	return formatJobs(jobs) + " started on the node, and their epilogs have not run"
}

func formatJobs(jobs []string) string {
	return "jobs " + strings.Join(jobs[:min(len(jobs), 4)], ", ") + checks.Before("", strings.Repeat("...", min(len(jobs)/5, 1)), "")
}

// jobRecord has the fields needed of a job's record, see slurm.Record.
type jobRecord struct {
	Job   string
	Begin struct {
		Boot string
	}
	Outcome string
}

// listBegunJobs returns the jobs that their prologs have recorded in this boot and that no epilog has
// ended: a job without a step on the node has no process yet. In the prolog of a job with the
// whole node such records are of ended jobs, and the run closes them. An unreadable record is
// ignored; the error is [probe.ErrSilent].
func listBegunJobs(r *activeRun) (jobs []string, err error) {
	if inProlog(r.env) && r.env.Job.Whole {
		return nil, nil
	}
	if r.jobs.Blind {
		return nil, probe.ErrSilent
	}
	boot, err := probe.BootID(r.env.Host)
	if err != nil {
		return nil, nil
	}
	records, err := probe.Records(r.env.Host, jobRecords)
	if errors.Is(err, probe.ErrSilent) {
		return nil, err
	}
	for _, raw := range records {
		var rec jobRecord
		if json.Unmarshal(raw.Data, &rec) != nil || rec.Job == "" || rec.Begin.Boot != boot || rec.Outcome != "" {
			continue
		}
		if !isOwn(r, rec.Job) {
			jobs = append(jobs, rec.Job)
		}
	}
	return jobs, nil
}

// isOwn reports whether a job is that of the prolog or epilog, or the one in which this program runs.
func isOwn(r *activeRun, id string) bool {
	return r.env.Job != nil && id == r.env.Job.ID || id == r.within
}

// inProlog reports whether the run is the prolog of a job.
func inProlog(env *checks.Env) bool { return env.Job != nil && !env.Job.Ended }

// describeSharing returns why the node of a prolog does not belong to the job alone, "" if it does.
func describeSharing(r *activeRun) string {
	job := r.env.Job
	switch {
	case !inProlog(r.env):
		return ""
	case job.Shared:
		return "other jobs may share its GPUs"
	case len(job.Beside) > 0:
		return "another job has started on the node"
	}
	views, err := nvidia.ReadGPUViews(r.env.Host)
	have := len(views.Used())
	switch {
	case err != nil:
		return err.Error()
	case len(job.GPUs) < have:
		return fmt.Sprintf("the job has %d of %s", len(job.GPUs), checks.Plural(have, "GPU"))
	case job.Part:
		return "the job does not have the whole node"
	case !job.Whole && (have == 0 || !r.ofGPUs):
		return "it is unknown whether the job has the whole node"
	}
	return ""
}

// gpusOfJob reports whether a GPU is in the scope of the run: in a prolog the GPUs of its job.
func gpusOfJob(r *activeRun, g *nvml.GPU) bool {
	if !inProlog(r.env) {
		return true
	}
	return slices.ContainsFunc(r.env.Job.GPUs, func(j checks.JobGPU) bool {
		return j.PCI != "" && j.PCI == g.PCI || j.UUID != "" && j.UUID == g.UUID.Value || j.PCI == "" && j.UUID == "" && g.Minor.Known && j.Minor == g.Minor.Value
	})
}

// ours reports whether a process is this one, or was started by it: a worker leads a session of
// its own, and everything that it starts stays there. The session of a process that leads none is
// no evidence: in a container it is init's, too.
func ours(pid int) bool {
	own := os.Getpid()
	session, err := unix.Getsid(pid)
	return pid == own || err == nil && session == own
}
