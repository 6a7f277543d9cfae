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

// gpuProcs checks that every user process on a GPU belongs to a running job, that GPU memory is
// not in use without a process, and that no memory belongs to a process that has ended. A process
// belongs to the job of its cgroup, or else of SLURM_JOB_ID in its environment; a job runs if it
// has a slurmstepd. The check ignores processes of root and of system users. It warns, with -f it
// fails, and it never ends a process.
//
//	gpu* || check_gpu_procs -m 1024
type gpuProcs struct {
	Fail   bool `opt:"f" toml:"fail"`   // fail instead of warn
	Memory int  `opt:"m" toml:"memory"` // highest amount of memory in use without a process, MiB
}

const gpuProcsName = "check_gpu_procs"

// LeftMemory is the memory in MiB that can be in use without a process: the limit of gcm is
// 15 MiB, and on some GPUs the driver itself uses memory for ECC and MIG.
const LeftMemory = 1024

func init() {
	checks.Register(checks.Info{
		Name:    gpuProcsName,
		Usage:   "[-f] [-m MIB]",
		Summary: "all processes on GPUs belong to running jobs",
		Lane:    checks.NVML,
		New:     func() checks.Check { return &gpuProcs{Memory: LeftMemory} },
		Vars:    map[string]string{"MAX_SYS_UID": "", "LOGIN_DEFS_SRC": "/etc/login.defs"},
		Do: func() map[string]string {
			return map[string]string{
				"gpu.procs.left":   "Look at the process with ps -fp PID: its job has ended. If it does not belong to a job on this node, end it; if it cannot be ended, reboot.",
				"gpu.procs.ghost":  "The process has ended but the driver has not freed its memory: look for Xid errors in dmesg. Reset the GPU to free it; if that fails, reboot.",
				"gpu.procs.memory": "No process uses the GPU, but its memory is in use: check fuser -v /dev/nvidia*, also in containers. Reset the GPU to free it.",
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
	jobs, err := jobscan.RunningJobs(env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	system, failed := checks.MaxSystemUID(env, gpuProcsName)
	if failed != nil {
		return failed
	}
	ghosts := findGhosts(env, s)
	s.total("processes", func(g *nvml.GPU) (uint64, bool) { return uint64(len(g.Processes.Value)), g.Processes.Known })
	s.Each(func(s *GPUs, g *nvml.GPU) {
		list, known := Value(s, g.Processes)
		judged := s.Judged
		c.judgeGhosts(s, g, ghosts)
		for _, p := range list {
			if u, err := probe.ProcessNow(env.Host, p.PID); err == nil && int64(u.UID) > system {
				c.judge(env, s, g, u, jobs)
			}
		}
		c.judgeMemory(s, g, known && len(list) == 0)
		s.Judged = judged // without the processes the memory says nothing
	})
	return s.Done()
}

// judge reports a process that does not belong to a running job.
func (c *gpuProcs) judge(env *checks.Env, s *GPUs, g *nvml.GPU, p probe.Process, jobs map[string]bool) {
	job, err := jobscan.JobOf(env.Host, p.PID)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, probe.ErrUnread): // it has just ended, or there is a warning of it
		return
	case err != nil:
		s.Err = errors.Join(s.Err, err)
		return
	case job != "" && jobs[job]:
		return
	}
	whose := "belongs to no job"
	if job != "" {
		whose = "belongs to job " + job + ", which does not run here"
	}
	s.Report(g, checks.Finding{Code: "gpu.procs.left", Severity: c.severity()}, "%s's process %d (%.40s) %s", checks.OwnerOrUID(env, p), p.PID, p.Command(), whose)
}

// ghostPause is the time between two readings of a process that NVML lists and that does not
// exist: NVML forgets a process that is just ending within this time.
const ghostPause = time.Second

// findGhosts returns the processes that NVML lists in two readings and that do not exist.
func findGhosts(env *checks.Env, s *GPUs) map[int]bool {
	find := func(among map[int]bool) map[int]bool {
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
	found := find(nil)
	if len(found) == 0 || !probe.SeesAllProcesses(env.Host) {
		return nil
	}
	time.Sleep(ghostPause)
	n, err := nvml.GPUProcesses(env.Host, env.Doing)
	if err != nil {
		return nil
	}
	s.NVML = n
	return find(found)
}

// judgeGhosts reports memory of processes that do not exist.
func (c *gpuProcs) judgeGhosts(s *GPUs, g *nvml.GPU, ghosts map[int]bool) {
	only := g.Processes.Known
	for _, p := range g.Processes.Value {
		only = only && ghosts[p.PID]
	}
	for _, p := range g.Processes.Value {
		used := p.Memory
		if used == 0 && only { // the driver does not report the memory of each process
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

// readKernelMemory returns how many bytes of a GPU's memory the kernel uses: if the memory is a
// NUMA node, as on GH200, the page cache can be there. all: the kernel can use all of it.
func readKernelMemory(s *GPUs, g *nvml.GPU) (bytes uint64, all bool) {
	if !g.NUMA.Known {
		return 0, s.findPlatform(g).MemoryNode > 0 || nvidia.GPUMemoryOnline(s.Env.Host, g.PCI)
	}
	s.Env.At("read /sys/devices/system/node/node%d/meminfo", g.NUMA.Value)
	m, err := cpu.ReadNUMAMemory(s.Env.Host, g.NUMA.Value)
	return m.Named, err != nil
}

// MemoryOver returns how much of a GPU's memory programs use, in MiB, and whether that is more than a
// limit. It is unknown, and not more, if the kernel can use all of it.
func MemoryOver(s *GPUs, g *nvml.GPU, limit int) (used uint64, over bool) {
	most := uint64(max(limit, 0))
	m, known := Value(s, g.Memory)
	if !known || m.Used>>20 <= most {
		return 0, false
	}
	own, all := readKernelMemory(s, g)
	used = (m.Used - min(m.Used, own)) >> 20
	return used, !all && used > most
}

func (c *gpuProcs) judgeMemory(s *GPUs, g *nvml.GPU, idle bool) {
	if used, over := MemoryOver(s, g, c.Memory); over && idle {
		severity := c.severity()
		if s.Env.Host.InContainer() { // NVML lists only processes of this PID namespace
			severity = checks.Warn
		}
		s.Report(g, checks.Finding{Code: "gpu.procs.memory", Severity: severity, Want: fmt.Sprintf("at most %d MiB", c.Memory), Got: fmt.Sprintf("%d MiB", used), Remedy: checks.ResetGPU},
			"memory in use without a process")
	}
}
