package checks

import (
	"maps"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// ended is a line after job 123 of alice, which had all GPUs.
func (s scenario) ended() scenario {
	s.job = aliceJob()
	s.job.GPUs = []int{0, 1, 2, 3, 4, 5, 6, 7}
	return s
}

// jobGPUScenario is a node where gpu3 has memory in use, MiB, by some processes.
func jobGPUScenario(name string, words []string, used uint64, pids []int, want ...Finding) scenario {
	s := onGPUs(name, words, gpu3(func(g *probe.GPU) {
		var list []probe.GPUProcess
		for _, pid := range pids {
			list = append(list, probe.GPUProcess{PID: pid, Memory: used << 20})
		}
		g.Processes, g.Memory = probe.Known(list), probe.Known(probe.GPUMemory{Total: 80 << 30, Used: used << 20})
	}), want...).ended()
	maps.Copy(s.files, useNode(
		useProc{pid: 1, args: "/sbin/init"}, useProc{pid: 50, args: "slurmstepd: [77.batch]"}, useProc{pid: 100, uid: 5001, args: "train.py --all"},
		useProc{pid: 101, uid: 5002, args: "ssh.exe"}, useProc{pid: 102, args: "nv-hostengine"}, useProc{pid: 103, uid: 5002, args: "bobs.exe"}))
	maps.Copy(s.files, map[string]string{
		"proc/100/cgroup": "0::/slurmstepd.scope/job_123/step_0\n", "proc/103/cgroup": "0::/slurmstepd.scope/job_77/step_0\n",
		"proc/101/cgroup": "0::/user.slice\n", "proc/101/environ": "A=1\x00", "proc/102/cgroup": "0::/system.slice\n", "proc/102/environ": "A=1\x00",
		"proc/104/cgroup": "0::/user.slice\n", "proc/104/environ": "A=1\x00",
	})
	return s
}

func TestJobGpus(t *testing.T) { testCheck(t, "check_job_gpus") }

var _ = table("check_job_gpus", func(name string) []scenario {
	used := func(severity Severity, want, got, text string, remedy Remedy) Finding {
		return gpuFinding(name, 3, Finding{Code: "job.gpu.memory", Severity: severity, Want: want, Got: got, Remedy: remedy}, "memory in use after job 123 "+text)
	}
	held := func(text string) Finding { return used(Warn, "at most 1024 MiB", "9000 MiB", text, NoRemedy) }
	without := used(Warn, "at most 1024 MiB", "9000 MiB", "without a process", ResetGPU)
	mig := jobGPUScenario("split up by MIG", nil, 9000, nil)
	mig.nvml.GPUs[3].Modes.MIG = probe.Known(true)
	shared := jobGPUScenario("other jobs have parts of it", nil, 9000, nil)
	shared.job.Shared = true
	another := jobGPUScenario("another job's GPU", nil, 9000, nil)
	another.job.GPUs = []int{0, 1, 2}
	own := jobGPUScenario("the job's one GPU", nil, 9000, nil, without)
	own.job.GPUs = []int{3}
	nobodyKnows := jobGPUScenario("nobody knows which GPUs it had", nil, 9000, nil, Finding{Code: "job.gpus.unknown", Severity: Skip, Message: name + ":  which GPUs job 123 had is not known"})
	nobodyKnows.job.GPUs = nil
	noJob := Finding{Code: "job.none", Severity: Skip, Message: name + ":  not in the epilog of a job"}
	odd := jobGPUScenario("a process that cannot be looked into", nil, 9000, []int{101}, gpuFinding(name, 3, Finding{Code: "gpu.error", Severity: Unknown},
		"could not tell: read /proc/101/environ: is a directory"))
	delete(odd.files, "proc/101/environ")
	odd.files["proc/101/environ/"], odd.broken = "", true
	badUID := onGPUs("a bad number", nil, nil, valueFinding(name, "MAX_SYS_UID", "many", "a uid")).ended()
	badUID.vars = map[string]string{"MAX_SYS_UID": "many"}
	noProc := onGPUs("no /proc", nil, nil, unknown("read /proc/driver/nvidia/gpus: not a directory")).ended()
	maps.DeleteFunc(noProc.files, func(f, _ string) bool { return strings.HasPrefix(f, "proc/") })
	noProc.files["proc"], noProc.broken = "", true

	common := append(gpuCommon(name), gpuDumb(name), noProc)
	for i := range common {
		common[i] = common[i].ended()
	}
	return append(common,
		onGPUs("no job", nil, nil, noJob), onGPUs("healthy", nil, nil).ended(), onV100s("an old GPU", nil, nil).ended(),
		onGPUs("a little memory", of("-g", "5"), gpu3(func(g *probe.GPU) { g.Memory = probe.Known(probe.GPUMemory{Used: 1024 << 20}) })).ended().orTable(map[string]any{"grace": int64(5)}),
		jobGPUScenario("without a process", nil, 9000, nil, without),
		jobGPUScenario("without a process, and that fails", of("-f", "-m", "15"), 16, nil, used(Fail, "at most 15 MiB", "16 MiB", "without a process", ResetGPU)).
			orTable(map[string]any{"fail": true, "memory": int64(15)}),
		jobGPUScenario("of the job", of("-g", "0.01"), 9000, []int{100}, held("by alice's process 100 (train.py) of job 123")),
		jobGPUScenario("of no job", nil, 9000, []int{101}, held("by bob's process 101 (ssh.exe) of no job")),
		jobGPUScenario("of both", nil, 9000, []int{102, 100, 101}, held("by alice's process 100 (train.py) of job 123, by bob's process 101 (ssh.exe) of no job")),
		jobGPUScenario("the system's own", nil, 9000, []int{102}), jobGPUScenario("of a job that runs", nil, 9000, []int{100, 103}),
		jobGPUScenario("of processes that cannot be seen", nil, 9000, []int{7777, 104}, held("by process 7777, which is not to be seen here, by process 104")),
		mig, shared, another, own, nobodyKnows, odd, badUID,
	)
})
