package probe

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"sync"
)

// jobGroup is the part of a cgroup's path that names a job of Slurm's:
// /slurm/uid_5001/job_123/step_0, /system.slice/slurmstepd.scope/job_123/...
var jobGroup = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`/job_([0-9]+)(/|$)`) })

// JobOf is the Slurm job that a process belongs to, by its cgroup, or that it was
// started in, by its environment; "" if by neither. A process that has ended
// belongs to none, which is no error but an [fs.ErrNotExist].
func (h *Host) JobOf(pid int) (job string, err error) {
	data, err := h.readFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", err
	}
	if job := parseJobGroup(data); job != "" {
		return job, nil
	}
	data, err = h.readFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return "", err
	}
	return parseJobEnviron(data), nil
}

func parseJobGroup(data []byte) string {
	for line := range bytes.Lines(data) {
		if m := jobGroup().FindSubmatch(bytes.TrimRight(line, "\n")); m != nil {
			return string(m[1])
		}
	}
	return ""
}

func parseJobEnviron(data []byte) string {
	for entry := range bytes.SplitSeq(data, []byte{0}) {
		if v, ok := strings.CutPrefix(string(entry), "SLURM_JOB_ID="); ok && !notNumber(v) {
			return v
		}
	}
	return ""
}

// RunningJobs are the jobs that have a slurmstepd on this node, whose command
// line reads "slurmstepd: [123.batch]".
func (h *Host) RunningJobs() (map[string]bool, error) {
	procs, err := h.Processes()
	if err != nil {
		return nil, err
	}
	jobs := map[string]bool{}
	for _, p := range procs {
		rest, ok := strings.CutPrefix(p.Args, "slurmstepd: [")
		if !ok {
			continue
		}
		if id, _, ok := strings.Cut(rest, "."); ok && !notNumber(id) {
			jobs[id] = true
		}
	}
	return jobs, nil
}
