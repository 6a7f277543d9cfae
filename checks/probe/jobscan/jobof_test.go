package jobscan

import (
	"errors"
	"io/fs"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestJobOf(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(probetest.Tree(t, map[string]string{
		"proc/10/cgroup":  "0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0\n",
		"proc/11/cgroup":  "12:devices:/slurm/uid_5001/job_77\n1:name=systemd:/\n",
		"proc/12/cgroup":  "0::/user.slice/user-5001.slice/my_job_9x/job_\n",
		"proc/12/environ": "HOME=/home/alice\x00SLURM_JOB_ID=55\x00",
		"proc/15/cgroup":  "0::/user.slice/user-5001.slice/user@5001.service/app.slice/slurmstepd.scope/job_77/x\n", "proc/15/environ": "A=1\x00",
		"proc/13/cgroup": "0::/\n", "proc/13/environ": "SLURM_JOB_ID=5;rm\x00XSLURM_JOB_ID=4",
		"proc/14/cgroup": "0::/\n", "proc/14/environ/": "",
		"proc/20/status": "Name:\tx\nState:\tS\nUid:\t0\t0\t0\t0\nVmSize:\t1 kB\n", "proc/20/cmdline": "slurmstepd: [123.batch]\x00",
		"proc/21/status": "Name:\tx\nState:\tS\nUid:\t0\t0\t0\t0\nVmSize:\t1 kB\n", "proc/21/cmdline": "slurmstepd: [124.0]\x00",
		"proc/22/status": "Name:\tx\nState:\tS\nUid:\t0\t0\t0\t0\nVmSize:\t1 kB\n", "proc/22/cmdline": "slurmstepd infinity\x00",
		"proc/23/status": "Name:\tx\nState:\tS\nUid:\t5001\t5001\t5001\t5001\nVmSize:\t1 kB\n", "proc/23/cmdline": "slurmstepd: [125.0]\x00",
		"proc/24/status": "Name:\tsu\nState:\tS\nUid:\t5001\t0\t0\t0\nVmSize:\t1 kB\n", "proc/24/cmdline": "slurmstepd: [126.0]\x00",
		// 26.05 names a job's cgroup by its SLUID
		"proc/30/cgroup": "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0\n",
		"sys/fs/cgroup/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/slurm/cgroup.procs": "1\n22\n23\n21\n",
		"proc/31/cgroup": "0::/system.slice/gpu01_slurmstepd.scope/sEKNKTV3WPV501/step_batch\n", // its slurmstepd has ended
		"proc/32/cgroup": "0::/system.slice/x.service/slurmstepd.scopes/sEKNKTV3WPV500/x\n", "proc/32/environ": "A=1\x00",
		"proc/33/cgroup": "0::/user.slice/user-5001.slice/slurmstepd.scope/sEKNKTV3WPV500/x\n", "proc/33/environ": "A=1\x00",
	}))
	for pid, want := range map[int]string{10: "123", 11: "77", 12: "55", 13: "", 15: "", 30: "124", 31: "sEKNKTV3WPV501", 32: "", 33: ""} {
		if got, err := JobOf(h, pid); got != want || err != nil {
			t.Errorf("%d: %q, %v, want %q", pid, got, err, want)
		}
	}
	if _, err := JobOf(h, 99); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a process that has ended: %v", err)
	}
	if _, err := JobOf(h, 14); probetest.Message(err) != "read /proc/14/environ: is a directory" {
		t.Errorf("unreadable: %v", err)
	}
	jobs, err := RunningJobs(h)
	if got := slices.Sorted(maps.Keys(jobs)); err != nil || !slices.Equal(got, []string{"123", "124"}) {
		t.Errorf("%v, %v", got, err)
	}
}

// A job is a number or a SLUID, whatever the files contain.
func FuzzJobOf(f *testing.F) {
	h := probe.NewHost(f.TempDir())
	f.Add([]byte("0::/slurm/uid_1/job_123/step_0\n"))
	f.Add([]byte("A=1\x00SLURM_JOB_ID=123\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		group, err := findJobGroup(h, data)
		if err != nil {
			t.Error(err)
		}
		for _, got := range []string{group, parseJobEnviron(data)} {
			if got != "" && probe.NotNumber(got) && (len(got) != 14 || got[0] != 's') {
				t.Errorf("%q: %q", data, got)
			}
		}
	})
}

// A process that is executing a program is still its job's.
func TestJobOfExecuting(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "again")
	if err := probetest.WriteProgram(script, []byte("#!/bin/sh\nsleep 0.01\nexec "+script+"\n")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(script)
	cmd.Env = []string{"PATH=/bin:/usr/bin", "SLURM_JOB_ID=77"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	h, missed := probe.NewHost("/"), 0
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
		if job, err := JobOf(h, cmd.Process.Pid); err != nil || job != "77" {
			missed++
		}
	}
	if missed > 0 {
		t.Errorf("%d times it belonged to no job", missed)
	}
}
