package checks

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// When an active test may run: never beside a job, whose work it would disturb and
// which would make its numbers a lie, and never in a prolog of a node that jobs share.

// jobRecords is what the names of job records begin with, see slurm.RecordPrefix.
const jobRecords = "job-"

// refused says why no active test may run now, nil if it may.
func (r *activeRun) refused() *Finding {
	env := r.env
	if left := time.Until(env.Deadline); !env.Deadline.IsZero() && left < r.Bound {
		got := left.Round(100 * time.Millisecond)
		if got >= r.Bound {
			got = left.Truncate(100 * time.Millisecond)
		}
		f := Finding{Code: "active.time", Severity: Unknown, Want: r.Bound.String(), Got: got.String()}
		if env.Periodic && r.Of != nil && r.Of.Freshness() > 0 { // another run has the time for it, and a prolog looks at its result
			f.Severity = Skip
		}
		f.Message = fmt.Sprintf("%s:  not run: too little time is left of the run", r.Check) + wantGot(f)
		return &f
	}
	running := maps.Clone(r.jobs.Running)
	if env.Job != nil {
		delete(running, env.Job.ID)
	}
	if len(running) > 0 {
		f := Finding{Code: "active.busy", Severity: Skip}
		f.Message = fmt.Sprintf("%s:  not run: %s", r.Check, jobsRun(slices.Sorted(maps.Keys(running))))
		return &f
	}
	if why := r.sharedBy(); why != "" {
		return &Finding{Code: "active.shared", Severity: Skip, Message: fmt.Sprintf("%s:  not run in this prolog: %s", r.Check, why)}
	}
	return nil
}

func jobsRun(jobs []string) string {
	if len(jobs) == 1 {
		return "job " + jobs[0] + " runs here"
	}
	return "jobs " + strings.Join(jobs[:min(len(jobs), 4)], ", ") + before("", strings.Repeat("...", min(len(jobs)/5, 1)), "") + " run here"
}

// inProlog says whether the run is that of a job that is about to begin.
func (e *Env) inProlog() bool { return e.Job != nil && !e.Job.Ended }

// sharedBy says why the node of a prolog is not the job's alone, "" if it is.
func (r *activeRun) sharedBy() string {
	job := r.env.Job
	switch {
	case !r.env.inProlog():
		return ""
	case job.Shared:
		return "other jobs may have parts of its GPUs"
	case len(job.Beside) > 0:
		return "another job has begun here"
	}
	views, err := r.env.Host.GPUViews()
	if err != nil {
		return err.Error()
	}
	if have := len(job.GPUs); have < len(views.Driver) {
		return fmt.Sprintf("the job has %d of %s", have, plural(len(views.Driver), "GPU"))
	}
	return ""
}

// ofJob says whether a GPU is in the scope of the run: in a prolog those of its job.
func (r *activeRun) ofJob(g *probe.GPU) bool {
	if !r.env.inProlog() {
		return true
	}
	return slices.ContainsFunc(r.env.Job.GPUs, func(j JobGPU) bool {
		return j.PCI != "" && j.PCI == g.PCI || j.UUID != "" && j.UUID == g.UUID.Value || j.PCI == "" && j.UUID == "" && g.Minor.Known && j.Minor == g.Minor.Value
	})
}

// ours says whether a process is this one, or was started by it: a worker leads a session
// of its own, in which all that it starts stays. The session of a process that leads
// none tells nothing: in a container it is init's, too.
func ours(pid int) bool {
	own := os.Getpid()
	session, err := unix.Getsid(pid)
	return pid == own || err == nil && session == own
}

// How often a test looks for a job, and for processes on its GPUs.
const (
	jobLook     = 50 * time.Millisecond
	processLook = time.Second
)

// overdue is how long a test that is to stop may take until its process ends, whatever
// it is doing: a job must not wait for a driver.
const overdue = 3 * time.Second

// endProcess ends this process, and with it all that it has on the GPUs. A test of the
// tests puts another in its place.
var endProcess = func(why string) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(1)
}

// stop ends the test for a reason.
func (r *activeRun) stop(why error) {
	r.cancel(why)
	name := r.Check
	end := endProcess
	r.overdue = time.AfterFunc(overdue, func() {
		end(fmt.Sprintf("%s did not stop within %v: %v", name, overdue, why))
	})
}

// watch ends the test when a job comes or somebody comes onto its GPUs.
func (r *activeRun) watch() {
	tick := time.NewTicker(jobLook)
	defer tick.Stop()
	asked := time.Now()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-tick.C:
		}
		if id := r.jobs.New(); id != "" && (r.env.Job == nil || id != r.env.Job.ID) {
			r.stop(fmt.Errorf("%w: %s", errJobCame, id))
			return
		}
		if r.Daemon || time.Since(asked) < processLook || len(r.gpus) == 0 {
			continue
		}
		asked = time.Now()
		if pid := r.visitor(); pid != 0 {
			r.stop(fmt.Errorf("%w: %d", errUserCame, pid))
			return
		}
	}
}

// visitor is a process of somebody else on a GPU of the test, 0 if there is none. One
// that is not to be seen here is in another PID namespace, as this one may be: it
// tells nothing.
func (r *activeRun) visitor() int {
	n, err := r.again(probe.GroupProcesses)
	if err != nil {
		return 0
	}
	for _, g := range r.gpus {
		if g.Index >= len(n.GPUs) {
			continue
		}
		for _, p := range n.GPUs[g.Index].Processes.Value {
			if _, err := unix.Getsid(p.PID); err == nil && !ours(p.PID) {
				return p.PID
			}
		}
	}
	return 0
}
