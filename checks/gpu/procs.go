package gpu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cpu"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuProcs looks for processes of users on GPUs that no running job owns (by its
// cgroup, else by SLURM_JOB_ID in its environment; a job runs if it has a
// slurmstepd), for GPU memory in use though no process is there, and for memory of
// processes that do not exist any more. It ends none
// of them. What belongs to root and the system's users is left alone. It warns;
// with -f it fails.
//
//	gpu* || check_gpu_procs -m 1024
type gpuProcs struct {
	Fail   bool `opt:"f" toml:"fail"`   // fail, in place of a warning
	Memory int  `opt:"m" toml:"memory"` // memory in MiB that may be in use without a process
}

const gpuProcsName = "check_gpu_procs"

// LeftMemory is what may be in use without a process: gcm's limit is 15 MiB, to
// which is added what the driver takes for ECC and MIG on some GPUs.
const LeftMemory = 1024

func init() {
	checks.Register(checks.Info{
		Name:    gpuProcsName,
		Usage:   "[-f] [-m MIB]",
		Summary: "no process is left on a GPU that no job owns",
		Lane:    checks.NVML,
		New:     func() checks.Check { return &gpuProcs{Memory: LeftMemory} },
		Vars:    map[string]string{"MAX_SYS_UID": "", "LOGIN_DEFS_SRC": "/etc/login.defs"},
		Do: func() map[string]string {
			return map[string]string{
				"gpu.procs.left":   "See ps -fp with its number and whose it is: the job that has started it is over. If it belongs to no job here end it; if it cannot be ended reboot.",
				"gpu.procs.ghost":  "The process has ended and the driver has not freed its memory: see dmesg for Xid errors. A reset of the GPU frees it; if that fails reboot.",
				"gpu.procs.memory": "Nothing has the GPU open, but its memory is in use: see fuser -v /dev/nvidia*, also inside containers. A reset of the GPU frees it.",
			}
		},
	})
}

func (c *gpuProcs) Run(_ context.Context, env *checks.Env) []checks.Finding {
	s, findings := AskNVML(env, gpuProcsName, nvml.GroupProcesses)
	if s == nil {
		return findings
	}
	env.At("read /proc")
	procs, err := probe.Processes(env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	jobs, err := jobscan.RunningJobs(env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	system, failed := checks.MaxSystemUID(env, gpuProcsName)
	if failed != nil {
		return failed
	}
	users := map[int]probe.Process{}
	for _, p := range procs {
		if int64(p.UID) > system {
			users[p.PID] = p
		}
	}
	ghosts := ghostProcesses(env, s)
	s.total("processes", func(g *nvml.GPU) (uint64, bool) { return uint64(len(g.Processes.Value)), g.Processes.Known })
	s.Each(func(s *GPUs, g *nvml.GPU) {
		list, known := Value(s, g.Processes)
		c.judgeGhosts(s, g, ghosts)
		for _, p := range list {
			if u, ok := users[p.PID]; ok {
				c.judge(env, s, g, u, jobs)
			}
		}
		c.judgeMemory(s, g, known && len(list) == 0)
	})
	return s.Done()
}

// judge reports a process that belongs to no job that runs.
func (c *gpuProcs) judge(env *checks.Env, s *GPUs, g *nvml.GPU, p probe.Process, jobs map[string]bool) {
	job, err := jobscan.JobOf(env.Host, p.PID)
	switch {
	case errors.Is(err, fs.ErrNotExist): // it has ended meanwhile
		return
	case err != nil:
		s.Err = errors.Join(s.Err, err)
		return
	case job != "" && jobs[job]:
		return
	}
	whose := "of no job"
	if job != "" {
		whose = "of job " + job + ", which does not run here"
	}
	s.Report(g, checks.Finding{Code: "gpu.procs.left", Severity: c.severity()}, "%s's process %d (%.40s) %s", checks.OwnerOrUID(env, p), p.PID, p.Command(), whose)
}

// ghostPause is the time between two looks at a process that NVML has and the kernel has
// not: one that ends is gone from NVML by then.
const ghostPause = time.Second

// ghostProcesses returns the processes that NVML lists, twice, and that do not exist.
func ghostProcesses(env *checks.Env, s *GPUs) map[int]bool {
	look := func(among map[int]bool) map[int]bool {
		found := map[int]bool{}
		for i := range s.NVML.GPUs {
			for _, p := range s.NVML.GPUs[i].Processes.Value {
				if p.PID > 0 && (among == nil || among[p.PID]) && probe.NoProcess(env.Host, p.PID) {
					found[p.PID] = true
				}
			}
		}
		return found
	}
	found := look(nil)
	if len(found) == 0 || !probe.SeesAllProcesses(env.Host) {
		return nil
	}
	time.Sleep(ghostPause)
	n, err := nvml.GPUProcesses(env.Host, env.Doing)
	if err != nil {
		return nil
	}
	s.NVML = n
	return look(found)
}

// judgeGhosts reports memory that nothing will ever free.
func (c *gpuProcs) judgeGhosts(s *GPUs, g *nvml.GPU, ghosts map[int]bool) {
	only := true
	for _, p := range g.Processes.Value {
		only = only && ghosts[p.PID]
	}
	for _, p := range g.Processes.Value {
		used := p.Memory
		if used == 0 && only { // the driver does not tell of each process
			used = g.Memory.Value.Used
		}
		if ghosts[p.PID] && used > 0 {
			s.Report(g, checks.Finding{Code: "gpu.procs.ghost", Severity: c.severity(), Got: fmt.Sprintf("%d MiB", used>>20), Remedy: checks.ResetGPU},
				"memory in use by process %d, which does not exist", p.PID)
		}
	}
}

func (c *gpuProcs) severity() checks.Severity {
	if c.Fail {
		return checks.Fail
	}
	return checks.Warn
}

// kernelsOn returns how much of a GPU's memory is the kernel's: where it is a NUMA node,
// as on GH200, the page cache of any program lies there. all says that the kernel may
// have all of it.
func kernelsOn(s *GPUs, g *nvml.GPU) (bytes uint64, all bool) {
	if !g.NUMA.Known {
		return 0, s.platform(g).MemoryNode > 0 || nvidia.GPUMemoryOnline(s.Env.Host, g.PCI)
	}
	s.Env.At("read /sys/devices/system/node/node%d/meminfo", g.NUMA.Value)
	m, err := cpu.ReadNUMAMemory(s.Env.Host, g.NUMA.Value)
	return m.Named, err != nil
}

func (c *gpuProcs) judgeMemory(s *GPUs, g *nvml.GPU, idle bool) {
	m, known := Value(s, g.Memory)
	if !known || !idle || m.Used>>20 <= uint64(max(c.Memory, 0)) {
		return
	}
	own, all := kernelsOn(s, g)
	if used := (m.Used - min(m.Used, own)) >> 20; !all && used > uint64(max(c.Memory, 0)) {
		severity := c.severity()
		if s.Env.Host.InContainer() { // NVML lists the processes of this PID namespace alone
			severity = checks.Warn
		}
		s.Report(g, checks.Finding{Code: "gpu.procs.memory", Severity: severity, Want: fmt.Sprintf("at most %d MiB", c.Memory), Got: fmt.Sprintf("%d MiB", used), Remedy: checks.ResetGPU},
			"memory in use without a process")
	}
}
