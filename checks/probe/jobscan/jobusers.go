package jobscan

import (
	"errors"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// StepsOf returns the names of the steps of a job that still have a slurmstepd on this node: "0",
// "batch", "extern".
func StepsOf(h *probe.Host, job JobRef) (steps []string, err error) {
	err = eachProcess(h, job, func(s *jobScan, pid int) error {
		args, err := readStep(s.ProcessReader, pid)
		if step, ok := strings.CutPrefix(args, "slurmstepd: ["+job.ID+"."); ok {
			steps = append(steps, strings.TrimSuffix(step, "]"))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return steps, nil
}

// JobUsers returns the users of the jobs on this node, by evidence that no user can choose: they
// have processes in a job's cgroups, or below its slurmstepd. A job without processes on this node,
// or between two steps, has none.
func JobUsers(h *probe.Host) (map[string][]uint32, error) {
	jobs, err := RunningJobs(h)
	if err != nil || len(jobs) == 0 {
		return nil, err
	}
	users := map[string][]uint32{}
	for id := range jobs {
		users[id] = nil
	}
	err = eachProcess(h, JobRef{}, func(s *jobScan, pid int) error {
		uid, err := s.Owner(pid)
		if err != nil || uid == 0 {
			return nil
		}
		job, err := s.jobOf(pid)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if list, ok := users[job]; ok && !slices.Contains(list, uid) {
			users[job] = append(list, uid)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return users, nil
}

// jobOf returns the job of a process by its cgroup, or by the slurmstepd above it.
func (s *jobScan) jobOf(pid int) (string, error) {
	data, err := readCgroup(s.h, pid)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if job, err := findJobGroup(s.h, data); job != "" || err != nil {
		return job, err
	}
	t, err := s.Task(strconv.Itoa(pid))
	if err != nil {
		return "", probe.Gone(err)
	}
	return s.findStepAbove(t.Parent)
}

// RunningJobOf returns the job of a process, if that job has a slurmstepd on this node. It finds
// the job by the cgroup or by the slurmstepd above the process; "" if there is none, or the process
// has ended.
func RunningJobOf(h *probe.Host, pid int) (job string, err error) {
	s, err := scanJobs(h, JobRef{})
	if err != nil {
		return "", err
	}
	defer s.Close()
	if job, err = s.jobOf(pid); err != nil || job == "" {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return "", err
	}
	running, err := RunningJobs(h)
	if err != nil || !running[job] {
		return "", err
	}
	return job, nil
}
