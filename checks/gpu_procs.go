package checks

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// gpuProcs looks for processes of users on GPUs that no running job owns (by its
// cgroup, else by SLURM_JOB_ID in its environment; a job runs if it has a
// slurmstepd), and for GPU memory in use though no process is there. It ends none
// of them. What belongs to root and the system's users is left alone. It warns;
// with -f it fails.
//
//	gpu* || check_gpu_procs -m 1024
type gpuProcs struct {
	Fail   bool `opt:"f" toml:"fail"`   // fail, in place of a warning
	Memory int  `opt:"m" toml:"memory"` // memory in MiB that may be in use without a process
}

const gpuProcsName = "check_gpu_procs"

// leftMemory is what may be in use without a process: gcm's limit is 15 MiB, to
// which is added what the driver takes for ECC and MIG on some GPUs.
const leftMemory = 1024

func init() {
	Register(Info{
		Name:    gpuProcsName,
		Usage:   "[-f] [-m MIB]",
		Summary: "no process is left on a GPU that no job owns",
		Lane:    NVML,
		New:     func() Check { return &gpuProcs{Memory: leftMemory} },
		Vars:    map[string]string{"MAX_SYS_UID": "", "LOGIN_DEFS_SRC": "/etc/login.defs"},
		Do: map[string]string{
			"gpu.procs.left":   "See ps -fp with its number and whose it is: the job that has started it is over. If it belongs to no job here end it; if it cannot be ended reboot.",
			"gpu.procs.memory": "Nothing has the GPU open, but its memory is in use: see fuser -v /dev/nvidia*, also inside containers. A reset of the GPU frees it.",
		},
	})
}

func (c *gpuProcs) Run(_ context.Context, env *Env) []Finding {
	s, findings := env.askNVML(gpuProcsName, probe.GroupProcesses)
	if s == nil {
		return findings
	}
	env.At("read /proc")
	procs, err := env.Host.Processes()
	if err != nil {
		return unreadable(err)
	}
	jobs, err := env.Host.RunningJobs()
	if err != nil {
		return unreadable(err)
	}
	system, failed := env.maxSystemUID(gpuProcsName)
	if failed != nil {
		return failed
	}
	users := map[int]probe.Process{}
	for _, p := range procs {
		if int64(p.UID) > system {
			users[p.PID] = p
		}
	}
	s.each(func(s *gpus, g *probe.GPU) {
		list, known := value(s, g.Processes)
		for _, p := range list {
			if u, ok := users[p.PID]; ok {
				c.judge(env, s, g, u, jobs)
			}
		}
		c.judgeMemory(s, g, known && len(list) == 0)
	})
	return s.done()
}

// judge reports a process that belongs to no job that runs.
func (c *gpuProcs) judge(env *Env, s *gpus, g *probe.GPU, p probe.Process, jobs map[string]bool) {
	job, err := env.Host.JobOf(p.PID)
	switch {
	case errors.Is(err, fs.ErrNotExist): // it has ended meanwhile
		return
	case err != nil:
		s.err = errors.Join(s.err, err)
		return
	case job != "" && jobs[job]:
		return
	}
	whose := "of no job"
	if job != "" {
		whose = "of job " + job + ", which does not run here"
	}
	s.report(g, Finding{Code: "gpu.procs.left", Severity: c.severity()}, "%s's process %d (%.40s) %s", env.ownerOrUID(p), p.PID, p.Command(), whose)
}

func (c *gpuProcs) severity() Severity {
	if c.Fail {
		return Fail
	}
	return Warn
}

func (c *gpuProcs) judgeMemory(s *gpus, g *probe.GPU, idle bool) {
	m, known := value(s, g.Memory)
	if used := m.Used >> 20; known && idle && used > uint64(max(c.Memory, 0)) {
		s.report(g, Finding{Code: "gpu.procs.memory", Severity: c.severity(), Want: fmt.Sprintf("at most %d MiB", c.Memory), Got: fmt.Sprintf("%d MiB", used), Remedy: ResetGPU},
			"memory in use without a process")
	}
}
