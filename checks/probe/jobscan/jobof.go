package jobscan

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// jobGroup is the part of a cgroup's path that names a job of Slurm's:
// /slurm/uid_5001/job_123/step_0, /system.slice/slurmstepd.scope/job_123/...
var jobGroup = probe.Lazily(`/job_([0-9]+)(/|$)`)

// JobOf is the Slurm job that a process belongs to, by its cgroup, or that it was
// started in, by its environment; "" if by neither. A process that has ended
// belongs to none, which is no error but an [fs.ErrNotExist].
func JobOf(h *probe.Host, pid int) (job string, err error) {
	data, err := readFileOf(h, pid, "cgroup")
	if err != nil {
		return "", err
	}
	if job := parseJobGroup(data); job != "" {
		return job, nil
	}
	data, err = readFileOf(h, pid, "environ")
	if err != nil {
		return "", err
	}
	return parseJobEnviron(data), nil
}

// readFileOf reads a whole file of a process. One that has ended has none.
func readFileOf(h *probe.Host, pid int, name string) ([]byte, error) {
	path := fmt.Sprintf("/proc/%d/%s", pid, name)
	data, err := h.ReadFile(path)
	if errors.Is(err, unix.ESRCH) { // between open and read
		err = &fs.PathError{Op: "read", Path: path, Err: fs.ErrNotExist}
	}
	return data, err
}

// parseJobGroup is the job that a /proc/PID/cgroup names. Below user@UID.service users
// name their cgroups as they like.
func parseJobGroup(data []byte) string {
	for line := range bytes.Lines(data) {
		if bytes.Contains(line, []byte("/user@")) || bytes.Contains(line, []byte("/user.slice/")) {
			continue
		}
		if m := jobGroup().FindSubmatch(bytes.TrimRight(line, "\n")); m != nil {
			return string(m[1])
		}
	}
	return ""
}

func parseJobEnviron(data []byte) string {
	for entry := range bytes.SplitSeq(data, []byte{0}) {
		if v, ok := bytes.CutPrefix(entry, []byte("SLURM_JOB_ID=")); ok && !probe.NotNumber(string(v)) {
			return string(v)
		}
	}
	return ""
}

// RunningJobs are the jobs that have a slurmstepd on this node: a process of root's own
// whose command line reads "slurmstepd: [123.batch]".
func RunningJobs(h *probe.Host) (map[string]bool, error) {
	procs, err := probe.Processes(h)
	if err != nil {
		return nil, err
	}
	jobs := map[string]bool{}
	for _, p := range procs {
		if id := stepJob(p.Args); id != "" && p.UID == 0 && probe.RootsOwn(h, p.PID) {
			jobs[id] = true
		}
	}
	return jobs, nil
}

// stepJob is the job of a slurmstepd by its command line, "" of anything else. Anyone
// can have such a command line: see stepOf.
func stepJob(args string) string {
	rest, ok := strings.CutPrefix(args, "slurmstepd: [")
	if !ok {
		return ""
	}
	id, _, ok := strings.Cut(rest, ".")
	if !ok || probe.NotNumber(id) {
		return ""
	}
	return id
}

// stepOf is the job of a slurmstepd that is root's own, "" of any other process.
func stepOf(r *probe.ProcessReader, pid int) string {
	r.Name = strconv.AppendInt(r.Name[:0], int64(pid), 10)
	if job := stepJob(r.Command()); job != "" && r.RootsOwn(pid) {
		return job
	}
	return ""
}
