package jobscan

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
		"proc/12/stat":                             "12 (gdb) t 1 12 12 0 -1",
		v2 + "100/step_0/slurm/cgroup.procs":       "13\n14\n",
		"proc/13/stat":                             "13 (slurmstepd) S 1 13 13 0 -1",
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
	j.Read(h)
	if j.Resident != 1<<30 || j.Killed != 2 || j.IO != 4711 || !math.IsNaN(j.CPU) || !math.IsNaN(j.Memory) {
		t.Errorf("%+v", j)
	}
	if s := j.States(h); s != (States{Processes: 3, Blocked: 1, Stopped: 1}) {
		t.Errorf("%+v", s)
	}
	h = probe.NewHost(probetest.Tree(t, map[string]string{
		v1 + "7/memory.usage_in_bytes": "4096\n", v1 + "7/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
		"proc/pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
	}))
	if list, err = Jobs(h, false); err != nil || len(list) != 1 {
		t.Fatalf("version 1: %+v, %v", list, err)
	}
	list[0].Read(h)
	if j := list[0]; j.ID != "7" || j.Resident != 4096 || j.Killed != 1 || !math.IsNaN(j.IO) { // others than the job wait, too
		t.Errorf("version 1: %+v", j)
	}
	h = probe.NewHost(probetest.Tree(t, map[string]string{"proc/1/stat": "1 (init) S 0 1 1 0 -1"}))
	if list, err := Jobs(h, false); err != nil || len(list) != 0 {
		t.Errorf("no cgroups: %+v, %v", list, err)
	}
	const scope = "sys/fs/cgroup/system.slice/slurmstepd.scope/"
	h = probe.NewHost(probetest.Tree(t, map[string]string{
		scope + "sEKNKTV3WPV500/step_0/slurm/cgroup.procs": "20\n", scope + "sEKNKTV3WPV500/memory.current": "4096\n",
		scope + "sEKNKTV3WPV501/step_0/slurm/cgroup.procs": "", scope + "system/cgroup.procs": "20\n",
		"proc/20/status": "Name:\tx\nState:\tS\nUid:\t0\t0\t0\t0\nVmSize:\t1 kB\n", "proc/20/cmdline": "slurmstepd: [8.0 stepmgr]\x00",
	}))
	if list, err = Jobs(h, false); err != nil || len(list) != 1 || list[0].ID != "8" {
		t.Fatalf("of 26.05: %+v, %v", list, err)
	}
	if list[0].Read(h); list[0].Resident != 4096 {
		t.Errorf("of 26.05: %+v", list[0])
	}
	if s := (&JobLoad{ID: "1"}).States(h); !math.IsNaN(s.Blocked) || !math.IsNaN(s.Stopped) || !math.IsNaN(s.Processes) {
		t.Errorf("no cgroup: %+v", s)
	}
}

// A cgroup without a process, which a killed slurmstepd has left behind, is no job. A slurmstepd alone is one.
func TestStaleJobs(t *testing.T) {
	t.Parallel()
	const v2 = "sys/fs/cgroup/system.slice/slurmstepd.scope/"
	const v1 = "sys/fs/cgroup/memory/slurm/uid_5001/job_"
	for name, files := range map[string]map[string]string{
		"version 2": {
			v2 + "job_7/cgroup.events": "populated 1\nfrozen 0\n", v2 + "job_8/cgroup.events": "populated 0\nfrozen 0\n",
			v2 + "job_7/step_0/slurm/cgroup.procs": "20\n", v2 + "job_8/step_0/slurm/cgroup.procs": "",
		},
		"version 1": {
			v1 + "7/cgroup.procs": "", v1 + "7/step_0/cgroup.procs": "20\n", v1 + "7/step_0/task_0/cgroup.procs": "",
			v1 + "8/cgroup.procs": "", v1 + "8/step_0/cgroup.procs": "", v1 + "8/step_0/task_0/cgroup.procs": "",
		},
	} {
		h := probe.NewHost(probetest.Tree(t, files))
		if list, err := Jobs(h, true); err != nil || len(list) != 1 || list[0].ID != "7" {
			t.Errorf("%s: %+v, %v, want job 7 alone", name, list, err)
		}
	}
}

// A job of version 1 with many steps is one, wherever its processes are.
func TestManySteps(t *testing.T) {
	t.Parallel()
	const job = "sys/fs/cgroup/memory/slurm/uid_5001/job_7/"
	for _, busy := range []int{0, 150, 299} {
		files := map[string]string{job + "cgroup.procs": ""}
		for i := range 300 {
			files[fmt.Sprintf("%sstep_%d/cgroup.procs", job, i)] = ""
			files[fmt.Sprintf("%sstep_%d/task_0/cgroup.procs", job, i)] = ""
		}
		files[fmt.Sprintf("%sstep_%d/task_0/cgroup.procs", job, busy)], files["proc/10/stat"] = "10\n", "10 (a) D 1 10 10 0 -1"
		h := probe.NewHost(probetest.Tree(t, files))
		list, err := Jobs(h, false)
		if err != nil || len(list) != 1 {
			t.Errorf("step %d: %+v, %v", busy, list, err)
			continue
		}
		if s := list[0].States(h); s.Blocked != 1 {
			t.Errorf("step %d: %+v", busy, s)
		}
	}
}

// A walk that is cut short proves nothing: the job stays.
func TestTooManySteps(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for i := range maxGroups {
		probetest.Mkdir(t, filepath.Join(root, fmt.Sprintf("sys/fs/cgroup/memory/slurm/uid_5001/job_7/step_%d", i)))
	}
	if err := os.WriteFile(filepath.Join(root, "sys/fs/cgroup/memory/slurm/uid_5001/job_7/cgroup.procs"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if list, err := Jobs(probe.NewHost(root), false); err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
}

// A suspended job is frozen: its processes, whatever their states, are stopped, and not blocked.
func TestFrozenJobs(t *testing.T) {
	t.Parallel()
	const v2 = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/"
	const v1 = "slurm/uid_5001/job_7/"
	for name, test := range map[string]struct {
		files map[string]string
		want  float64
	}{
		"version 2": {map[string]string{v2 + "step_0/user/cgroup.events": "populated 1\nfrozen 1\n", v2 + "step_0/user/task_0/cgroup.events": "populated 1\nfrozen 1\n"}, 2},
		"version 1": {map[string]string{
			"sys/fs/cgroup/memory/" + v1 + "step_0/task_0/cgroup.procs": "10\n11\n", "sys/fs/cgroup/freezer/" + v1 + "step_0/freezer.state": "FROZEN\n",
		}, 2},
		"version 1, it runs": {map[string]string{
			"sys/fs/cgroup/memory/" + v1 + "step_0/task_0/cgroup.procs": "11\n", "sys/fs/cgroup/freezer/" + v1 + "step_0/freezer.state": "THAWED\n",
		}, 0},
	} {
		test.files["proc/10/stat"], test.files["proc/11/stat"] = "10 (a) D 1 10 10 0 -1", "11 (a) S 1 11 11 0 -1"
		if strings.HasPrefix(name, "version 2") {
			test.files[v2+"step_0/user/task_0/cgroup.procs"] = "10\n11\n"
		}
		h := probe.NewHost(probetest.Tree(t, test.files))
		list, err := Jobs(h, false)
		if err != nil || len(list) != 1 {
			t.Fatalf("%s: %+v, %v", name, list, err)
		}
		if s := list[0].States(h); s.Blocked != 0 || s.Stopped != test.want {
			t.Errorf("%s: %+v, want %v stopped", name, s, test.want)
		}
	}
}

// A worker that lives long sees jobs begin and end on a node without Slurm's cgroups.
func TestJobsWithoutCgroups(t *testing.T) {
	t.Parallel()
	root := probetest.Tree(t, map[string]string{"proc/1/stat": "1 (init) S 0 1 1 0 -1"})
	h := probe.NewHost(root)
	look := func(want ...string) {
		t.Helper()
		list, err := Jobs(h, true)
		ids := []string{}
		for i := range list {
			ids = append(ids, list[i].ID)
		}
		if err != nil || !slices.Equal(ids, append([]string{}, want...)) {
			t.Errorf("%v, %v, want %v", ids, err, want)
		}
	}
	look()
	const owner = "Name:\tslurmstepd\nState:\tS\nUid:\t0\t0\t0\t0\nVmSize:\t1 kB\n"
	add := func(pid, line string) {
		dir := filepath.Join(root, "proc", pid)
		probetest.Mkdir(t, dir)
		for name, text := range map[string]string{"status": owner, "cmdline": line + "\x00"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	add("20", "slurmstepd: [123.batch]")
	add("21", "slurmstepd")
	look("123")
	add("21", "slurmstepd: [9.0]") // which it shows a moment after its start
	look("9", "123")
	look("9", "123")
	if err := os.RemoveAll(filepath.Join(root, "proc/20")); err != nil {
		t.Fatal(err)
	}
	look("9")
	add("21", "bash") // another process
	look()
	add("1", "slurmstepd: [10.0]") // a PID that was reused
	for range stepLooksAll {
		_, _ = Jobs(h, true)
	}
	look("10")
	if list, err := Jobs(h, false); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v: a quick look lists no processes", list, err)
	}
}

func BenchmarkJobsWithoutCgroups(b *testing.B) {
	h := probe.NewHost("/")
	for b.Loop() {
		if _, err := listStepJobs(h); err != nil {
			b.Fatal(err)
		}
	}
}
