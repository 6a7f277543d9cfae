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

// jobGroup matches the part of a cgroup's path that names a Slurm job:
// /slurm/uid_5001/job_123/step_0, /system.slice/slurmstepd.scope/job_123/...
var jobGroup = probe.Lazily(`/job_([0-9]+)(/|$)`)

// JobOf returns the Slurm job of a process, by its cgroup or else by its environment; "" if neither
// names one. The error for a process that has ended is [fs.ErrNotExist].
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

// readFileOf reads a whole file of a process. The error is [fs.ErrNotExist] if the process has
// ended.
func readFileOf(h *probe.Host, pid int, name string) ([]byte, error) {
	path := fmt.Sprintf("/proc/%d/%s", pid, name)
	data, err := h.ReadFile(path)
	if errors.Is(err, unix.ESRCH) { // between open and read
		err = &fs.PathError{Op: "read", Path: path, Err: fs.ErrNotExist}
	}
	return data, err
}

// parseJobGroup returns the job in a /proc/PID/cgroup. It ignores cgroups below user@UID.service,
// which users name themselves.
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

// RunningJobs returns the jobs that have a slurmstepd on this node: a process owned by root with
// the command line "slurmstepd: [123.batch]".
func RunningJobs(h *probe.Host) (map[string]bool, error) {
	procs, err := probe.Processes(h)
	if err != nil {
		return nil, err
	}
	jobs := map[string]bool{}
	for _, p := range procs {
		if id := parseStepJob(p.Args); id != "" && p.UID == 0 && probe.RootsOwn(h, p.PID) {
			jobs[id] = true
		}
	}
	return jobs, nil
}

// parseStepJob returns the job of a slurmstepd by its command line, "" for any other. Any user can have
// such a command line: see stepOf.
func parseStepJob(args string) string {
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

// findStep returns the job of a slurmstepd that root owns, "" for any other process.
func findStep(r *probe.ProcessReader, pid int) string {
	r.Name = strconv.AppendInt(r.Name[:0], int64(pid), 10)
	if job := parseStepJob(r.Command()); job != "" && r.RootsOwn(pid) {
		return job
	}
	return ""
}
