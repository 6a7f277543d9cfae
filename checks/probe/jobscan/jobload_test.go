package jobscan

import (
	"math"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

// The jobs of a node, and their values, come from cgroups of both versions.
func TestJobs(t *testing.T) {
	t.Parallel()
	const v2 = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_"
	const v1 = "sys/fs/cgroup/memory/slurm/uid_5001/job_"
	h := probe.NewHost(probetest.Tree(t, map[string]string{
		v2 + "100/memory.current":                  "1073741824\n",
		v2 + "100/memory.events":                   "low 0\noom 3\noom_kill 2\noom_group_kill 0\n",
		v2 + "100/io.pressure":                     "some avg10=1.00 avg60=0.00 avg300=0.00 total=4711\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n",
		v2 + "100/cpu.pressure":                    "garbage\n",
		v2 + "100/step_0/user/task_0/cgroup.procs": "10\n11\n12\n",
		"proc/10/stat":                             "10 (a) D) D 1 10 10 0 -1",
		"proc/11/stat":                             "11 (D ) S 1 11 11 0 -1",
		v2 + "99/cgroup.procs":                     "",
		v2 + "x/cgroup.procs":                      "",
		"sys/fs/cgroup/user.slice/slurmstepd.scope/job_5/cgroup.procs": "",
		"proc/pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
	}))
	list, err := Jobs(h, false)
	if err != nil || len(list) != 2 || list[0].ID != "99" || list[1].ID != "100" {
		t.Fatalf("%+v, %v", list, err)
	}
	j := &list[1]
	j.Read(h, false)
	if j.Resident != 1<<30 || j.Killed != 2 || j.IO != 4711 || !math.IsNaN(j.CPU) || !math.IsNaN(j.Memory) || j.Blocked(h) != 1 {
		t.Errorf("%+v, %v blocked", j, j.Blocked(h))
	}
	h = probe.NewHost(probetest.Tree(t, map[string]string{
		v1 + "7/memory.usage_in_bytes": "4096\n", v1 + "7/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
		"proc/pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
	}))
	if list, err = Jobs(h, false); err != nil || len(list) != 1 {
		t.Fatalf("version 1: %+v, %v", list, err)
	}
	list[0].Read(h, true)
	if j := list[0]; j.ID != "7" || j.Resident != 4096 || j.Killed != 1 || j.IO != 5 {
		t.Errorf("version 1: %+v", j)
	}
	if list[0].Read(h, false); !math.IsNaN(list[0].IO) {
		t.Error("the pressure on the node is not that of one of two jobs")
	}
	h = probe.NewHost(probetest.Tree(t, map[string]string{"proc/1/stat": "1 (init) S 0 1 1 0 -1"}))
	if list, err := Jobs(h, false); err != nil || len(list) != 0 {
		t.Errorf("no cgroups: %+v, %v", list, err)
	}
	if v := (&JobLoad{ID: "1"}).Blocked(h); !math.IsNaN(v) {
		t.Errorf("no cgroup: %v blocked", v)
	}
}
