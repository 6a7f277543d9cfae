package jobscan

import (
	"errors"
	"io/fs"
	"maps"
	"slices"
	"testing"

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
	}))
	for pid, want := range map[int]string{10: "123", 11: "77", 12: "55", 13: "", 15: ""} {
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

// A job is a number, whatever the files contain.
func FuzzJobOf(f *testing.F) {
	f.Add([]byte("0::/slurm/uid_1/job_123/step_0\n"))
	f.Add([]byte("A=1\x00SLURM_JOB_ID=123\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, got := range []string{parseJobGroup(data), parseJobEnviron(data)} {
			if got != "" && probe.NotNumber(got) {
				t.Errorf("%q: %q", data, got)
			}
		}
	})
}
