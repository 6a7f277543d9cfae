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

// jobGPUs checks, in the epilog of a job, that the memory of the job's GPUs is free again. It
// waits up to -g SECONDS first, since drivers free memory late. More than -m MIB in use warns,
// with -f fails; the finding names the processes that NVML lists. It ends no process, see
// check_job_leftovers. The check skips GPUs split by MIG, GPUs that a running job also uses
// (gres/shard, gres/mps), and GPUs used only by system processes: that memory cannot be
// attributed to the job. On GH200 and GB200 the kernel can use the memory of a GPU, as for files: that
// does not count.
//
// In the epilog of a job with GPUs it runs even if no line names it, unless [policy.job] of
// nhc.toml has contexts = [].
//
//	node* || check_job_gpus -m 512
type jobGPUs struct {
	Grace  time.Duration `opt:"g" toml:"grace"`  // time for memory to be freed, seconds; 0: the grace of [epilog] in nhc.toml
	Fail   bool          `opt:"f" toml:"fail"`   // fail instead of warn
	Memory int           `opt:"m" toml:"memory"` // memory that may be in use, MiB
}

const jobGPUsName = "check_job_gpus"

func init() {
	checks.Register(checks.Info{
		Name:    jobGPUsName,
		Usage:   "[-f] [-g SECONDS] [-m MIB]",
		Summary: "GPU memory is free again after a job",
		Lane:    checks.NVML,
		New:     func() checks.Check { return &jobGPUs{Memory: gpu.LeftMemory} },
		Vars:    map[string]string{"MAX_SYS_UID": "", "LOGIN_DEFS_SRC": "/etc/login.defs"},
		Do: func() map[string]string {
			return map[string]string{
				"job.gpus.unknown": "See SLURM_JOB_GPUS in the environment of the epilog, and whether /proc/driver/nvidia/gpus has these numbers.",
				"job.gpu.memory":   "End the named processes. If none is named see fuser -v /dev/nvidia*, also inside containers; a reset of the GPU frees its memory.",
			}
		},
	})
}

func (c *jobGPUs) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	job := env.Job
	switch {
	case job == nil || !job.Ended || job.ID == "":
		return reportNoJob(jobGPUsName)
	case len(job.GPUs) == 0:
		return []checks.Finding{checks.Finding{Code: "job.gpus.unknown", Severity: checks.Skip}.Describe(jobGPUsName, "the GPUs of job %s are unknown", job.ID)}
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
	env.At("read /proc")
	var err error
	if r.running, err = jobscan.RunningJobs(env.Host); err != nil {
		return checks.Unreadable(err)
	}
	until := time.Now().Add(min(cmp.Or(c.Grace, job.Grace), checks.Room(ctx)))
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		s.Findings, s.Judged = nil, false
		s.Each(r.judge)
		s.Judged = s.Judged || !r.found
		left := time.Until(until)
		if !r.held || left <= 0 {
			return s.Done()
		}
		time.Sleep(min(pause, left))
		if _, err := nvml.GPUProcesses(env.Host, env.Doing); err != nil {
			return []checks.Finding{gpu.CannotAsk(jobGPUsName, err)}
		}
		env.At("read /proc")
		jobscan.ForgetRunningJobs(env.Host) // another one can have started
		if r.running, err = jobscan.RunningJobs(env.Host); err != nil {
			return checks.Unreadable(err)
		}
		r.held = false
	}
}

// gpuRun is one run of the check.
type gpuRun struct {
	*jobGPUs
	*gpu.GPUs

	job     *checks.Job
	system  int64           // highest uid of system users
	running map[string]bool // jobs
	held    bool            // memory of the job is in use
	found   bool            // NVML has a GPU of the job
}

func (r *gpuRun) judge(s *gpu.GPUs, g *nvml.GPU) {
	own := slices.ContainsFunc(r.job.GPUs, func(j checks.JobGPU) bool {
		return j.PCI != "" && j.PCI == g.PCI || j.UUID != "" && j.UUID == g.UUID.Value
	})
	if !own {
		s.Err = nil // a GPU of another job or of none
		return
	}
	r.found = true
	judged := s.Judged
	used, over := gpu.MemoryOver(s, g, r.Memory)
	list, listed := gpu.Value(s, g.Processes)
	if over && s.Err == nil {
		s.Err = g.Modes.MIG.Err
	}
	mig := g.Modes.MIG.Value || g.Modes.MIG.Err != nil
	s.Judged = judged || g.Memory.Known && listed || mig || r.job.Shared // some drivers report only one of the two
	if !over || !listed || mig || r.job.Shared {
		return
	}
	holders, whose := r.nameHolders(list)
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

// nameHolders names the processes on a GPU. whose is false if the memory in use is not the job's, or
// if that is unknown.
func (r *gpuRun) nameHolders(list []nvml.GPUProcess) (text string, whose bool) {
	var names []string
	for _, p := range list {
		job, err := jobscan.JobOf(r.Env.Host, p.PID)
		u, unseen := probe.ProcessNow(r.Env.Host, p.PID)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			names = append(names, fmt.Sprintf("by process %d, which is not visible on the node", p.PID))
			continue
		case errors.Is(err, probe.ErrUnread): // there is a warning of it
			return "", false
		case err != nil:
			r.Err = errors.Join(r.Err, err)
			return "", false
		case job != r.job.ID && r.running[job]:
			return "", false
		case unseen != nil:
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
