package jobscan

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

// A slurmstepd whose command line cannot be read is no sign that no job runs: nothing may be ended or removed
// then.
func TestUnreadStep(t *testing.T) {
	const step, child = 1 << 29, 1<<29 + 1
	files := map[string]string{
		fmt.Sprintf("proc/%d/cmdline", step):                                                   "slurmstepd: [77.0]\x00",
		fmt.Sprintf("proc/%d/cgroup", child):                                                   "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0\n",
		"sys/fs/cgroup/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/slurm/cgroup.procs": fmt.Sprintln(step),
	}
	jobTask(files, fmt.Sprintf("proc/%d", step), "slurmstepd", "S", 1, step, 0, 0, noSignal)
	jobTask(files, fmt.Sprintf("proc/%d", child), "x", "S", step, child, 5001, 0, noSignal)
	h := probe.NewHost(probetest.Tree(t, files))
	s, err := scanJobs(h, JobRef{ID: "77", UID: 5001})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	task, err := s.Task(fmt.Sprint(step))
	if err != nil {
		t.Fatal(err)
	}
	h.SetStuck([]string{fmt.Sprintf("read the memory of process %d, started at %d, of uid 0", step, task.Start)})
	unknown := func(what string, got any, err error) {
		t.Helper()
		if err == nil || errors.Is(err, probe.ErrUnread) {
			t.Errorf("%s: %v, %v; want an error that no user can cause", what, got, err)
		}
	}
	steps, err := StepsOf(h, JobRef{ID: "77"})
	unknown("StepsOf", steps, err)
	running, err := RunningJobs(h)
	unknown("RunningJobs", running, err)
	running, err = listStepJobs(h)
	unknown("listStepJobs", running, err)
	users, err := JobUsers(h)
	unknown("JobUsers", users, err)
	job, err := RunningJobOf(h, child)
	unknown("RunningJobOf", job, err)
	job, err = JobOf(h, child)
	unknown("JobOf", job, err)
	job, err = s.findStepAbove(child)
	unknown("findStepAbove", job, err)
	list, err := JobProcesses(h, JobRef{ID: "77", UID: 5001})
	unknown("JobProcesses", list, err)
}

// A user who keeps the mappings of a process from being read keeps the user's own files, and no others.
func TestUnreadMappings(t *testing.T) {
	const pid = 1<<29 + 5
	files := map[string]string{fmt.Sprintf("proc/%d/maps", pid): "", fmt.Sprintf("proc/%d/fd/", pid): ""}
	jobTask(files, fmt.Sprintf("proc/%d", pid), "x", "S", 1, pid, 5001, 0, noSignal)
	h := probe.NewHost(probetest.Tree(t, files))
	r, err := probe.OpenProc(h.Path("/proc"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	task, err := r.Task(fmt.Sprint(pid))
	if err != nil {
		t.Fatal(err)
	}
	h.SetStuck([]string{fmt.Sprintf("read the memory of process %d, started at %d, of uid 5001", pid, task.Start)})
	own, other := &ShmFile{UID: 5001}, &ShmFile{UID: 5002}
	f := openedFinder{h: h, files: map[inode]*ShmFile{{1, 1}: own, {1, 2}: other}}
	if err := f.look(); err != nil || !own.Opened || other.Opened {
		t.Errorf("%v, own %v, other %v; want the own one only", err, own.Opened, other.Opened)
	}
}
