package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/gpu"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// jobGPUs looks, in the epilog of a job, whether the memory of the job's GPUs is
// free again. It first waits a moment: drivers free it late. What is still in use is
// a warning, with -f a failure, and the processes that NVML names are named; it ends
// none of them, see check_job_leftovers. A GPU that is split up by MIG, that a
// running job uses too (gres/shard, gres/mps) or that only the system's own
// processes use is passed over: what is in use there cannot be laid to the job.
//
// In an epilog of a job that had GPUs it is run though no line asks for it, unless
// one names it, or [policy.job] of nhc.toml has contexts = [].
//
//   - || check_job_gpus -m 512
type jobGPUs struct {
	Grace  time.Duration `opt:"g" toml:"grace"`  // seconds that memory has to be freed; without it the grace of [epilog] in nhc.toml
	Fail   bool          `opt:"f" toml:"fail"`   // fail, in place of a warning
	Memory int           `opt:"m" toml:"memory"` // memory in MiB that may be in use
}

const jobGPUsName = "check_job_gpus"

func init() {
	checks.Register(checks.Info{
		Name:    jobGPUsName,
		Usage:   "[-f] [-g SECONDS] [-m MIB]",
		Summary: "the memory of an ended job's GPUs is free again",
		Lane:    checks.NVML,
		New:     func() checks.Check { return &jobGPUs{Memory: gpu.LeftMemory} },
		Waits:   true,
		Vars:    map[string]string{"MAX_SYS_UID": "", "LOGIN_DEFS_SRC": "/etc/login.defs"},
		Do: func() map[string]string {
			return map[string]string{
				"job.gpus.unknown": "See what slurmd gives the epilog, SLURM_JOB_GPUS, and whether /proc/driver/nvidia/gpus has these numbers.",
				"job.gpu.memory":   "End the processes that are named. Without one see fuser -v /dev/nvidia*, also inside containers; a reset of the GPU frees its memory.",
			}
		},
	})
}

func (c *jobGPUs) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	job := env.Job
	switch {
	case job == nil || !job.Ended || job.ID == "":
		return noJob(jobGPUsName)
	case len(job.GPUs) == 0:
		return []checks.Finding{checks.Finding{Code: "job.gpus.unknown", Severity: checks.Skip}.Describe(jobGPUsName, "which GPUs job %s had is not known", job.ID)}
	}
	system, failed := checks.MaxSystemUID(env, jobGPUsName)
	if failed != nil {
		return failed
	}
	s, findings := gpu.AskNVML(env, jobGPUsName, nvml.GroupProcesses|nvml.GroupModes)
	if s == nil {
		return findings
	}
	r := &gpuRun{jobGPUs: c, GPUs: s, job: job, system: system}
	if err := r.read(); err != nil {
		return checks.Unreadable(err)
	}
	until := time.Now().Add(min(cmp.Or(c.Grace, job.Grace), checks.Room(ctx)))
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		s.Findings, s.Judged = nil, false
		s.Each(r.judge)
		left := time.Until(until)
		if !r.held || left <= 0 {
			return s.Done()
		}
		time.Sleep(min(pause, left))
		if _, err := nvml.GPUProcesses(env.Host, env.Doing); err != nil {
			return []checks.Finding{gpu.CannotAsk(jobGPUsName, err)}
		}
		r.held = false
	}
}

// gpuRun is one run of the check.
type gpuRun struct {
	*jobGPUs
	*gpu.GPUs

	job     *checks.Job
	system  int64 // the last uid of the system
	procs   map[int]probe.Process
	running map[string]bool // jobs
	held    bool            // memory that is the job's is in use
}

func (r *gpuRun) read() error {
	r.Env.At("read /proc")
	procs, err := probe.Processes(r.Env.Host)
	if err != nil {
		return err
	}
	r.procs = map[int]probe.Process{}
	for _, p := range procs {
		r.procs[p.PID] = p
	}
	r.running, err = jobscan.RunningJobs(r.Env.Host)
	return err
}

func (r *gpuRun) judge(s *gpu.GPUs, g *nvml.GPU) {
	own := slices.ContainsFunc(r.job.GPUs, func(j checks.JobGPU) bool {
		return j.PCI != "" && j.PCI == g.PCI || j.UUID != "" && j.UUID == g.UUID.Value
	})
	if !own {
		s.Judged, s.Err = true, nil // whatever it is, it is not the job's
		return
	}
	m, known := gpu.Value(s, g.Memory)
	list, listed := gpu.Value(s, g.Processes)
	mig := g.Modes.MIG.Known && g.Modes.MIG.Value
	used := m.Used >> 20
	if !known || !listed || mig || r.job.Shared || used <= uint64(max(r.Memory, 0)) {
		return
	}
	holders, whose := r.holders(list)
	if !whose {
		return
	}
	r.held = true
	f := checks.Finding{Code: "job.gpu.memory", Severity: checks.Warn, Want: fmt.Sprintf("at most %d MiB", r.Memory), Got: fmt.Sprintf("%d MiB", used)}
	if r.Fail {
		f.Severity = checks.Fail
	}
	if holders == "" {
		holders, f.Remedy = "without a process", checks.ResetGPU
	}
	s.Report(g, f, "memory in use after job %s %s", r.job.ID, holders)
}

// holders names the processes on a GPU. false: what is in use there is not the job's,
// or nobody can tell.
func (r *gpuRun) holders(list []nvml.GPUProcess) (text string, whose bool) {
	var names []string
	for _, p := range list {
		job, err := jobscan.JobOf(r.Env.Host, p.PID)
		u, seen := r.procs[p.PID]
		switch {
		case errors.Is(err, fs.ErrNotExist):
			names = append(names, fmt.Sprintf("by process %d, which is not to be seen here", p.PID))
			continue
		case err != nil:
			r.Err = errors.Join(r.Err, err)
			return "", false
		case job != r.job.ID && r.running[job]:
			return "", false
		case !seen:
			names = append(names, fmt.Sprintf("by process %d", p.PID))
			continue
		case job == "" && int64(u.UID) <= r.system:
			continue
		}
		of := " of no job"
		if job != "" {
			of = " of job " + job
		}
		names = append(names, fmt.Sprintf("by %s's process %d (%.40s)%s", checks.OwnerOrUID(r.Env, u), p.PID, u.Command(), of))
	}
	if len(names) > mostNamed {
		names = append(names[:mostNamed], fmt.Sprintf("and %d more", len(names)-mostNamed))
	}
	return strings.Join(names, ", "), len(names) > 0 || len(list) == 0
}
