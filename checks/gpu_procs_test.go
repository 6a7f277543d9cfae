package checks

import (
	"fmt"
	"maps"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

func TestGPUProcs(t *testing.T) { testCheck(t, "check_gpu_procs") }

var _ = table("check_gpu_procs", func(name string) []scenario {
	// procs is a line on a node where gpu3 has the processes of these numbers.
	procs := func(scenarioName string, words []string, pids []int, want ...Finding) scenario {
		s := onGPUs(scenarioName, words, gpu3(func(g *probe.GPU) {
			var list []probe.GPUProcess
			for _, pid := range pids {
				list = append(list, probe.GPUProcess{PID: pid, Memory: 1 << 30})
			}
			g.Processes, g.Memory = probe.Known(list), probe.Known(probe.GPUMemory{Total: 80 << 30, Free: 70 << 30, Used: 10 << 30})
		}), want...)
		maps.Copy(s.files, useNode(
			useProc{pid: 1, args: "/sbin/init"}, useProc{pid: 50, args: "slurmstepd: [123.batch]"},
			useProc{pid: 100, uid: 5001, args: "train.py --all"}, useProc{pid: 101, uid: 5001, args: "left.exe"}, useProc{pid: 102, uid: 5002, args: "ssh.exe"},
			useProc{pid: 103, uid: 5001, args: "vim"}, useProc{pid: 104, uid: 0, args: "nv-hostengine"}))
		maps.Copy(s.files, map[string]string{
			"proc/100/cgroup": "0::/system.slice/slurmstepd.scope/job_123/step_0\n",
			"proc/101/cgroup": "0::/system.slice/slurmstepd.scope/job_99/step_0\n",
			"proc/102/cgroup": "0::/user.slice\n", "proc/102/environ": "A=1\x00",
			"proc/103/cgroup": "0::/user.slice\n", "proc/103/environ": "SLURM_JOB_ID=123\x00",
		})
		return s
	}
	says := func(severity Severity, text string) Finding {
		return gpuFinding(name, 3, Finding{Code: "gpu.procs.left", Severity: severity}, text)
	}
	const left, alien = "alice's process 101 (left.exe) of job 99, which does not run here", "bob's process 102 (ssh.exe) of no job"
	memory := func(MiB uint64) func(*probe.NVML) {
		return gpu3(func(g *probe.GPU) { g.Memory = probe.Known(probe.GPUMemory{Total: 80 << 30, Used: MiB << 20}) })
	}
	numa := func(MiB uint64) func(*probe.NVML) {
		return gpu3(func(g *probe.GPU) {
			g.NUMA, g.Memory = probe.Known(4), probe.Known(probe.GPUMemory{Total: 96 << 30, Used: MiB << 20})
		})
	}
	meminfo := func(file, anon int) string {
		return fmt.Sprintf("Node 4 MemTotal: 100663296 kB\nNode 4 MemFree: 80000000 kB\nNode 4 FilePages: %d kB\nNode 4 AnonPages: %d kB\n", file, anon)
	}
	used := func(severity Severity, want, got string) Finding {
		return gpuFinding(name, 3, Finding{Code: "gpu.procs.memory", Severity: severity, Want: want, Got: got, Remedy: ResetGPU}, "memory in use without a process")
	}
	odd := procs("one process cannot be read", nil, []int{102}, gpuFinding(name, 3, Finding{Code: "gpu.error", Severity: Unknown},
		"could not tell: read /proc/102/environ: is a directory"))
	delete(odd.files, "proc/102/environ")
	odd.files["proc/102/environ/"], odd.broken = "", true
	noProc := onGPUs("no /proc", nil, nil, unknown("read /proc/driver/nvidia/gpus: not a directory"))
	noProc.broken = true
	for f := range noProc.files {
		if len(f) > 5 && f[:5] == "proc/" {
			delete(noProc.files, f)
		}
	}
	noProc.files["proc"] = ""
	badUID := onGPUs("a bad number", nil, nil, valueFinding(name, "MAX_SYS_UID", "many", "a uid"))
	badUID.vars = map[string]string{"MAX_SYS_UID": "many"}
	inContainer := procs("another PID namespace", nil, []int{7777})
	inContainer = inContainer.contained()
	gone := gpuFinding(name, 3, Finding{Code: "gpu.procs.ghost", Severity: Warn, Got: "1024 MiB", Remedy: ResetGPU}, "memory in use by process 7777, which does not exist")
	gone.Message = name + ":  gpu3 0000:13:00.0: memory in use by process 7777, which does not exist, got 1024 MiB"
	return append(gpuCommon(name),
		procs("nothing runs", nil, nil, used(Warn, "at most 1024 MiB", "10240 MiB")),
		onGPUs("healthy", nil, nil), onV100s("an old GPU", nil, nil),
		procs("a job's own", nil, []int{100, 103}), procs("the system's own", nil, []int{104, 1}), procs("one that does not exist", nil, []int{7777, 1}, gone),
		inContainer,
		procs("left by a job", nil, []int{100, 101}, says(Warn, left)),
		procs("of no job", nil, []int{102}, says(Warn, alien)),
		procs("both, and that fails", of("-f"), []int{101, 102}, says(Fail, left), says(Fail, alien)).orTable(map[string]any{"fail": true}),
		procs("one, and that fails", of("-f"), []int{101}, says(Fail, left)),
		onGPUs("a little memory", nil, memory(1024)),
		onGPUs("memory that is allowed", of("-m", "5000"), memory(5000)).orTable(map[string]any{"memory": int64(5000)}),
		onGPUs("memory", of("-f", "-m", "15"), memory(16), used(Fail, "at most 15 MiB", "16 MiB")),
		onGPUs("memory of processes that may be outside of the container", of("-f", "-m", "15"), memory(16), used(Warn, "at most 15 MiB", "16 MiB")).contained(),
		onGPUs("the kernel's memory, as on GH200", nil, numa(8000)).holding("sys/devices/system/node/node4/meminfo", meminfo(7400000, 0)),
		onGPUs("more than the kernel has of its own node", nil, numa(9000), used(Warn, "at most 1024 MiB", "2164 MiB")).
			holding("sys/devices/system/node/node4/meminfo", meminfo(5000000, 2000000)),
		onGPUs("the kernel's memory, which it does not tell", nil, numa(9000)),
		onGPUs("the kernel's memory, by an old driver", nil, memory(9000)).
			holding("proc/driver/nvidia/gpus/"+fakenvml.Address(3)+"/numa_status", "Node:\t4\nStatus:\tonline\n"),
		onGPUs("memory of an old driver's that is no node", nil, memory(9000), used(Warn, "at most 1024 MiB", "9000 MiB")).
			holding("proc/driver/nvidia/gpus/"+fakenvml.Address(3)+"/numa_status", "Status:\toffline\n"),
		onGPUs("memory of a platform that may have it as a node", nil, memory(9000)).on(&Platform{Name: "GH200", MemoryNode: 1}),
		odd, noProc, badUID, gpuDumb(name),
	)
})
