package jobs

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// ended returns a line after job 123 of alice, which had all GPUs.
func ended(s checktest.Scenario) checktest.Scenario {
	s.Job = aliceJob()
	s.Job.GPUs = []int{0, 1, 2, 3, 4, 5, 6, 7}
	return s
}

// jobGPUScenario returns a node with memory of gpu3 in use, MiB, by the given processes.
func jobGPUScenario(name string, words []string, used uint64, pids []int, want ...checks.Finding) checktest.Scenario {
	s := ended(checktest.OnGPUs(name, words, checktest.Gpu3(func(g *nvml.GPU) {
		var list []nvml.GPUProcess
		for _, pid := range pids {
			list = append(list, nvml.GPUProcess{PID: pid, Memory: used << 20})
		}
		g.Processes, g.Memory = nvml.Known(list), nvml.Known(nvml.GPUMemory{Total: 80 << 30, Used: used << 20})
	}), want...))
	maps.Copy(s.Files, checktest.UseNode(
		checktest.UseProc{PID: 1, Args: "/sbin/init"}, checktest.UseProc{PID: 50, Args: "slurmstepd: [77.batch]"}, checktest.UseProc{PID: 100, UID: 5001, Args: "train.py --all"},
		checktest.UseProc{PID: 101, UID: 5002, Args: "ssh.exe"}, checktest.UseProc{PID: 102, Args: "nv-hostengine"}, checktest.UseProc{PID: 103, UID: 5002, Args: "bobs.exe"}))
	maps.Copy(s.Files, map[string]string{
		"proc/100/cgroup": "0::/slurmstepd.scope/job_123/step_0\n", "proc/103/cgroup": "0::/slurmstepd.scope/job_77/step_0\n",
		"proc/101/cgroup": "0::/user.slice\n", "proc/101/environ": "A=1\x00", "proc/102/cgroup": "0::/system.slice\n", "proc/102/environ": "A=1\x00",
		"proc/104/cgroup": "0::/user.slice\n", "proc/104/environ": "A=1\x00",
	})
	return s
}

func TestJobGpus(t *testing.T) { checktest.Run(t, "check_job_gpus") }

var _ = checktest.Table("check_job_gpus", func(name string) []checktest.Scenario {
	used := func(severity checks.Severity, want, got, text string, remedy checks.Remedy) checks.Finding {
		return checktest.GPUFinding(name, 3, checks.Finding{Code: "job.gpu.memory", Severity: severity, Want: want, Got: got, Remedy: remedy}, "memory in use after job 123 "+text)
	}
	held := func(text string) checks.Finding {
		return used(checks.Warn, "at most 1024 MiB", "9000 MiB", text, checks.NoRemedy)
	}
	without := used(checks.Warn, "at most 1024 MiB", "9000 MiB", "without a process", checks.ResetGPU)
	mig := jobGPUScenario("split up by MIG", nil, 9000, nil)
	mig.NVML.GPUs[3].Modes.MIG = nvml.Known(true)
	maybe := jobGPUScenario("its MIG mode cannot be read", nil, 9000, nil, checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.error.value", Severity: checks.Unknown}, "cannot be read: "+checktest.OddText))
	maybe.NVML.GPUs[3].Modes.MIG, maybe.Broken = nvml.Failed[bool](checktest.ErrOdd), true
	shared := jobGPUScenario("other jobs have parts of it", nil, 9000, nil)
	shared.Job.Shared = true
	another := jobGPUScenario("another job's GPU", nil, 9000, nil)
	another.Job.GPUs = []int{0, 1, 2}
	own := jobGPUScenario("the job's one GPU", nil, 9000, nil, without)
	own.Job.GPUs = []int{3}
	// numa returns a node where the memory of gpu3 is the kernel's NUMA node 4, which has pages of files, MiB.
	numa := func(title string, files int, want ...checks.Finding) checktest.Scenario {
		s := jobGPUScenario(title, nil, 9000, nil, want...).Holding("sys/devices/system/node/node4/meminfo",
			fmt.Sprintf("Node 4 MemTotal: 100663296 kB\nNode 4 MemFree: 80000000 kB\nNode 4 FilePages: %d kB\n", files<<10))
		s.NVML.GPUs[3].NUMA = nvml.Known(4)
		return s
	}
	gh200 := &checks.Platform{Name: "GH200", MemoryNode: 1}
	nobodyKnows := jobGPUScenario("its GPUs are unknown", nil, 9000, nil, checks.Finding{Code: "job.gpus.unknown", Severity: checks.Skip, Message: name + ":  the GPUs of job 123 are unknown"})
	nobodyKnows.Job.GPUs = nil
	noJob := checks.Finding{Code: "job.none", Severity: checks.Skip, Message: name + ":  not in the epilog of a job"}
	odd := jobGPUScenario("a process that cannot be looked into", nil, 9000, []int{101}, checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.error.value", Severity: checks.Unknown},
		"cannot be read: read /proc/101/environ: is a directory"))
	delete(odd.Files, "proc/101/environ")
	odd.Files["proc/101/environ/"], odd.Broken = "", true
	badUID := ended(checktest.OnGPUs("a bad number", nil, nil, checktest.ValueFinding(name, "MAX_SYS_UID", "many", "a uid")))
	badUID.Vars = map[string]string{"MAX_SYS_UID": "many"}
	noProc := ended(checktest.OnGPUs("no /proc", nil, nil, checktest.Unknown("read /proc/driver/nvidia/gpus: not a directory")))
	maps.DeleteFunc(noProc.Files, func(f, _ string) bool { return strings.HasPrefix(f, "proc/") })
	noProc.Files["proc"], noProc.Broken = "", true

	unsupported := checks.Finding{Code: "gpu.unsupported", Severity: checks.Skip, Message: name + ":  not supported by these GPUs or their driver"}
	unlisted := jobGPUScenario("a driver whose list of processes is not read", nil, 9000, nil, unsupported)
	unmeasured := jobGPUScenario("a driver that does not report the memory in use", nil, 9000, nil, unsupported)
	for i := range 8 {
		unlisted.NVML.GPUs[i].Processes, unmeasured.NVML.GPUs[i].Memory = nvml.Reading[[]nvml.GPUProcess]{}, nvml.Reading[nvml.GPUMemory]{}
	}
	unlistedOne := jobGPUScenario("the job's one GPU, and a driver whose list of processes is not read", nil, 9000, nil, unsupported)
	unlistedOne.NVML.GPUs[3].Processes, unlistedOne.Job.GPUs = nvml.Reading[[]nvml.GPUProcess]{}, []int{3}
	common := append(checktest.GPUCommon(name), checktest.GPUDumb(name), noProc)
	for i := range common {
		common[i] = ended(common[i])
	}
	return append(common,
		checktest.OnGPUs("no job", nil, nil, noJob), ended(checktest.OnGPUs("healthy", nil, nil)), ended(checktest.OnV100s("an old GPU", nil, nil)),
		ended(checktest.OnGPUs("a little memory", checktest.Of("-g", "5"), checktest.Gpu3(func(g *nvml.GPU) { g.Memory = nvml.Known(nvml.GPUMemory{Used: 1024 << 20}) }))).OrTable(map[string]any{"grace": int64(5)}),
		jobGPUScenario("without a process", nil, 9000, nil, without),
		jobGPUScenario("without a process, and that fails", checktest.Of("-f", "-m", "15"), 16, nil, used(checks.Fail, "at most 15 MiB", "16 MiB", "without a process", checks.ResetGPU)).
			OrTable(map[string]any{"fail": true, "memory": int64(15)}),
		jobGPUScenario("of the job", checktest.Of("-g", "0.01"), 9000, []int{100}, held("by alice's process 100 (train.py) of job 123")),
		jobGPUScenario("of no job", nil, 9000, []int{101}, held("by bob's process 101 (ssh.exe) of no job")),
		jobGPUScenario("of both", nil, 9000, []int{102, 100, 101}, held("by alice's process 100 (train.py) of job 123, by bob's process 101 (ssh.exe) of no job")),
		jobGPUScenario("the system's own", nil, 9000, []int{102}), jobGPUScenario("of a job that runs", nil, 9000, []int{100, 103}),
		jobGPUScenario("of processes that cannot be seen", nil, 9000, []int{7777, 104}, held("by process 7777, which is not visible on the node, by process 104")),
		numa("the kernel's memory, as on GH200", 8500),
		numa("more than the kernel's memory", 7000, used(checks.Warn, "at most 1024 MiB", "2000 MiB", "without a process", checks.ResetGPU)),
		jobGPUScenario("memory of a platform with GPU memory as a NUMA node", nil, 9000, nil).On(gh200),
		unlisted, unmeasured, unlistedOne, mig, maybe, shared, another, own, nobodyKnows, odd, badUID,
	)
})

// A job that starts while the check waits is one that runs.
func TestJobStartsMeanwhile(t *testing.T) {
	t.Parallel()
	s := jobGPUScenario("a job starts", nil, 9000, []int{103})
	root, reads := s.Build(t), 0
	move := func(from, to string) {
		for _, pid := range []string{"50", "103"} {
			if err := os.Rename(root+"/proc/"+from+pid, root+"/proc/"+to+pid); err != nil {
				t.Error(err)
			}
		}
	}
	move("", "later")
	env := &checks.Env{Host: probe.NewHost(root), Job: s.Job.On(s.NVML), Doing: func(what string) {
		if what != "read /proc" {
			return
		}
		if reads++; reads == 2 {
			move("later", "")
		}
	}}
	nvml.Set(env.Host, s.NVML, nil)
	c := &jobGPUs{Memory: 1024, Fail: true, Grace: time.Minute}
	if got := c.Run(checks.WithDeadline(t.Context(), time.Now().Add(time.Hour)), env); len(got) > 0 || reads < 2 {
		t.Errorf("after %d reads: %+v", reads, got)
	}
}
