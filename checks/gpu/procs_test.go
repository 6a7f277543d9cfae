package gpu

import (
	"fmt"
	"maps"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

func TestGPUProcs(t *testing.T) { checktest.Run(t, "check_gpu_procs") }

var _ = checktest.Table("check_gpu_procs", func(name string) []checktest.Scenario {
	// procs returns a scenario with some processes on gpu3.
	procs := func(scenarioName string, words []string, pids []int, want ...checks.Finding) checktest.Scenario {
		s := checktest.OnGPUs(scenarioName, words, checktest.Gpu3(func(g *nvml.GPU) {
			var list []nvml.GPUProcess
			for _, pid := range pids {
				list = append(list, nvml.GPUProcess{PID: pid, Memory: 1 << 30})
			}
			g.Processes, g.Memory = nvml.Known(list), nvml.Known(nvml.GPUMemory{Total: 80 << 30, Free: 70 << 30, Used: 10 << 30})
		}), want...)
		maps.Copy(s.Files, checktest.UseNode(
			checktest.UseProc{PID: 1, Args: "/sbin/init"}, checktest.UseProc{PID: 50, Args: "slurmstepd: [123.batch]"},
			checktest.UseProc{PID: 100, UID: 5001, Args: "train.py --all"}, checktest.UseProc{PID: 101, UID: 5001, Args: "left.exe"}, checktest.UseProc{PID: 102, UID: 5002, Args: "ssh.exe"},
			checktest.UseProc{PID: 103, UID: 5001, Args: "vim"}, checktest.UseProc{PID: 104, UID: 0, Args: "nv-hostengine"}))
		maps.Copy(s.Files, map[string]string{
			"proc/100/cgroup": "0::/system.slice/slurmstepd.scope/job_123/step_0\n",
			"proc/101/cgroup": "0::/system.slice/slurmstepd.scope/job_99/step_0\n",
			"proc/102/cgroup": "0::/user.slice\n", "proc/102/environ": "A=1\x00",
			"proc/103/cgroup": "0::/user.slice\n", "proc/103/environ": "SLURM_JOB_ID=123\x00",
		})
		return s
	}
	says := func(severity checks.Severity, text string) checks.Finding {
		return checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.procs.left", Severity: severity}, text)
	}
	const left, alien = "alice's process 101 (left.exe) belongs to job 99, which does not run here", "bob's process 102 (ssh.exe) belongs to no job"
	memory := func(MiB uint64) func(*nvml.Snapshot) {
		return checktest.Gpu3(func(g *nvml.GPU) { g.Memory = nvml.Known(nvml.GPUMemory{Total: 80 << 30, Used: MiB << 20}) })
	}
	numa := func(MiB uint64) func(*nvml.Snapshot) {
		return checktest.Gpu3(func(g *nvml.GPU) {
			g.NUMA, g.Memory = nvml.Known(4), nvml.Known(nvml.GPUMemory{Total: 96 << 30, Used: MiB << 20})
		})
	}
	meminfo := func(file, anon int) string {
		return fmt.Sprintf("Node 4 MemTotal: 100663296 kB\nNode 4 MemFree: 80000000 kB\nNode 4 FilePages: %d kB\nNode 4 AnonPages: %d kB\n", file, anon)
	}
	used := func(severity checks.Severity, want, got string) checks.Finding {
		return checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.procs.memory", Severity: severity, Want: want, Got: got, Remedy: checks.ResetGPU}, "memory in use without a process")
	}
	odd := procs("one process cannot be read", nil, []int{102}, checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.error.value", Severity: checks.Unknown},
		"cannot be read: read /proc/102/environ: is a directory"))
	delete(odd.Files, "proc/102/environ")
	odd.Files["proc/102/environ/"], odd.Broken = "", true
	noProc := checktest.OnGPUs("no /proc", nil, nil, checktest.Unknown("read /proc/driver/nvidia/gpus: not a directory"))
	noProc.Broken = true
	for f := range noProc.Files {
		if len(f) > 5 && f[:5] == "proc/" {
			delete(noProc.Files, f)
		}
	}
	noProc.Files["proc"] = ""
	badUID := checktest.OnGPUs("a bad number", nil, nil, checktest.ValueFinding(name, "MAX_SYS_UID", "many", "a uid"))
	badUID.Vars = map[string]string{"MAX_SYS_UID": "many"}
	inContainer := procs("another PID namespace", nil, []int{7777})
	inContainer = inContainer.Contained()
	gone := checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.procs.ghost", Severity: checks.Warn, Got: "1024 MiB", Remedy: checks.ResetGPU}, "memory in use by process 7777, which does not exist")
	gone.Message = name + ":  gpu3 0000:13:00.0: memory in use by process 7777, which does not exist, got 1024 MiB"
	return append(checktest.GPUCommon(name),
		procs("no process", nil, nil, used(checks.Warn, "at most 1024 MiB", "10240 MiB")),
		checktest.OnGPUs("healthy", nil, nil), checktest.OnV100s("an old GPU", nil, nil),
		procs("a process of a running job", nil, []int{100, 103}), procs("a system process", nil, []int{104, 1}), procs("a process that does not exist", nil, []int{7777, 1}, gone),
		inContainer,
		procs("a process of an ended job", nil, []int{100, 101}, says(checks.Warn, left)),
		procs("a process of no job", nil, []int{102}, says(checks.Warn, alien)),
		procs("both, and -f", checktest.Of("-f"), []int{101, 102}, says(checks.Fail, left), says(checks.Fail, alien)).OrTable(map[string]any{"fail": true}),
		procs("one, and -f", checktest.Of("-f"), []int{101}, says(checks.Fail, left)),
		checktest.OnGPUs("a driver whose list of processes is not read", nil, allGPUs(func(g *nvml.GPU) {
			g.Processes, g.Memory = nvml.Reading[[]nvml.GPUProcess]{}, nvml.Known(nvml.GPUMemory{Total: 80 << 30, Used: 10 << 30})
		}), checks.Finding{Code: "gpu.unsupported", Severity: checks.Skip, Message: name + ":  not supported by these GPUs or their driver"}),
		checktest.OnGPUs("a driver that does not report the memory in use", nil, allGPUs(func(g *nvml.GPU) { g.Memory = nvml.Reading[nvml.GPUMemory]{} })),
		checktest.OnGPUs("a little memory", nil, memory(1024)),
		checktest.OnGPUs("allowed memory", checktest.Of("-m", "5000"), memory(5000)).OrTable(map[string]any{"memory": int64(5000)}),
		checktest.OnGPUs("memory", checktest.Of("-f", "-m", "15"), memory(16), used(checks.Fail, "at most 15 MiB", "16 MiB")),
		checktest.OnGPUs("memory of processes outside of the container", checktest.Of("-f", "-m", "15"), memory(16), used(checks.Warn, "at most 15 MiB", "16 MiB")).Contained(),
		checktest.OnGPUs("the kernel's memory, as on GH200", nil, numa(8000)).Holding("sys/devices/system/node/node4/meminfo", meminfo(7400000, 0)),
		checktest.OnGPUs("more than the kernel's memory", nil, numa(9000), used(checks.Warn, "at most 1024 MiB", "2164 MiB")).
			Holding("sys/devices/system/node/node4/meminfo", meminfo(5000000, 2000000)),
		checktest.OnGPUs("the kernel's memory, without meminfo", nil, numa(9000)),
		checktest.OnGPUs("the kernel's memory, old driver", nil, memory(9000)).
			Holding("proc/driver/nvidia/gpus/"+fakenvml.Address(3)+"/numa_status", "Node:\t4\nStatus:\tonline\n"),
		checktest.OnGPUs("memory that is not a NUMA node, old driver", nil, memory(9000), used(checks.Warn, "at most 1024 MiB", "9000 MiB")).
			Holding("proc/driver/nvidia/gpus/"+fakenvml.Address(3)+"/numa_status", "Status:\toffline\n"),
		checktest.OnGPUs("memory of a platform with GPU memory as a NUMA node", nil, memory(9000)).On(&checks.Platform{Name: "GH200", MemoryNode: 1}),
		odd, noProc, badUID, checktest.GPUDumb(name),
	)
})
