package jobscan

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// jobGroup matches the part of a cgroup's path that names a Slurm job:
// /slurm/uid_5001/job_123/step_0, /system.slice/slurmstepd.scope/job_123/...
var jobGroup = probe.Lazily(`/job_([0-9]+)(/|$)`)

// sluidGroup matches the same of Slurm 26.05 with cgroup/v2, which names the job by its SLUID:
// /system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0. An "s" and 13 digits of Crockford's base 32
// (print_sluid in Slurm's sluid.c).
var sluidGroup = probe.Lazily(`/(?:[^/]+_)?slurmstepd\.scope/(s[0-9A-HJKMNP-TV-Z]{13})(?:/|$)`)

// JobOf returns the Slurm job of a process, by its cgroup or else by its environment; "" if neither
// names one. The error for a process that has ended is [fs.ErrNotExist].
func JobOf(h *probe.Host, pid int) (job string, err error) {
	data, err := readCgroup(h, pid)
	if err != nil {
		return "", err
	}
	if job, err := findJobGroup(h, data); job != "" || err != nil {
		return job, err
	}
	err = readEnviron(h, pid, func(data []byte) { job = parseJobEnviron(data) })
	return job, err
}

// readCgroup reads the cgroup of a process. The error is [fs.ErrNotExist] if the process has ended.
func readCgroup(h *probe.Host, pid int) ([]byte, error) {
	path := fmt.Sprintf("/proc/%d/cgroup", pid)
	data, err := h.ReadFile(path)   // the kernel bounds the paths in it
	if errors.Is(err, unix.ESRCH) { // between open and read
		err = &fs.PathError{Op: "read", Path: path, Err: fs.ErrNotExist}
	}
	return data, err
}

// readEnviron parses the environment of a process. One that is executing a program has none for a moment, so an empty
// one is read again.
func readEnviron(h *probe.Host, pid int, parse func([]byte)) error {
	for try := range 3 {
		if try > 0 {
			time.Sleep(2 * time.Millisecond)
		}
		empty := false
		err := probe.ReadMemoryFile(h, pid, "environ", func(data []byte) {
			empty = len(data) == 0
			parse(data)
		})
		if err != nil || !empty {
			return err
		}
	}
	return nil
}

// findJobGroup returns the job in a /proc/PID/cgroup, "" if it names none. It ignores cgroups below
// user@UID.service, which users name themselves. The job is a SLUID if no slurmstepd of the job is
// left to say its number.
func findJobGroup(h *probe.Host, data []byte) (job string, err error) {
	for line := range bytes.Lines(data) {
		if bytes.Contains(line, []byte("/user@")) || bytes.Contains(line, []byte("/user.slice/")) {
			continue
		}
		line = bytes.TrimRight(line, "\n")
		if m := jobGroup().FindSubmatch(line); m != nil {
			return string(m[1]), nil
		}
		if m := sluidGroup().FindSubmatchIndex(line); m != nil {
			sluid := string(line[m[2]:m[3]])
			job, err = jobOfSLUID(h, cgroups+string(line[bytes.IndexByte(line, '/'):m[3]]), sluid)
			return cmp.Or(job, sluid), err
		}
	}
	return "", nil
}

// jobOfSLUID returns the number of the job with this cgroup: that of the slurmstepd in it, "" if there
// is none.
func jobOfSLUID(h *probe.Host, dir, sluid string) (job string, err error) {
	known := probe.Kept[sync.Map](h, "jobs by SLUID")
	if job, ok := known.Load(sluid); ok {
		return job.(string), nil
	}
	r, err := probe.OpenProc(h.Path("/proc"))
	if err != nil {
		return "", nil
	}
	defer r.Close()
	steps, _ := h.Names(dir)
	for _, step := range steps {
		pids, _ := h.ReadFile(dir + "/" + step + "/slurm/cgroup.procs")
		for pid := range strings.FieldsSeq(string(pids)) {
			n, bad := strconv.Atoi(pid)
			if bad != nil || n <= 1 {
				continue
			}
			job, stepErr := findStep(r, n)
			if job != "" {
				known.Store(sluid, job)
				return job, nil
			}
			err = errors.Join(err, stepErr)
		}
	}
	return "", err
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
	return probe.Once(h, runningKey, func() (map[string]bool, error) {
		jobs := map[string]bool{}
		err := eachProcess(h, JobRef{}, func(s *jobScan, pid int) error {
			job, err := findStep(s.ProcessReader, pid)
			if job != "" && err == nil {
				jobs[job] = true
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		return jobs, nil
	})
}

const runningKey = "running jobs"

// ForgetRunningJobs makes the next [RunningJobs] read /proc again.
func ForgetRunningJobs(h *probe.Host) { probe.Uncache(h, runningKey) }

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
func findStep(r *probe.ProcessReader, pid int) (job string, err error) {
	args, err := readStep(r, pid)
	return parseStepJob(args), err
}

// readStep returns the command line of a slurmstepd that root owns, "" of any other process. It reads no
// command line of a user's process. The error is not [probe.ErrUnread]: no user causes it, and the jobs of the
// node are unknown.
func readStep(r *probe.ProcessReader, pid int) (string, error) {
	if uid, err := r.Owner(pid); err != nil || uid != 0 {
		return "", nil
	}
	if t, err := r.Task(strconv.Itoa(pid)); err == nil && t.Name != "slurmstepd" || !r.RootsOwn(pid) {
		return "", nil
	}
	args, unread := r.Command()
	if unread {
		return "", fmt.Errorf("read the command line of slurmstepd %d: no answer", pid)
	}
	return args, nil
}

// stepLooks has what a process that lives long knows about the processes of the node.
type stepLooks struct {
	looks map[int]int // by PID: how often it was read without a job in a row
	count int         // of all looks
}

const (
	// stepLooksEach is how often a process without a job is read: the command line of a slurmstepd shows the number of its
	// job only a moment after its start.
	stepLooksEach = 2
	// stepLooksAll is the number of looks after which all processes are read again: a PID may have been reused.
	stepLooksAll = 10
)

// listStepJobs is [RunningJobs] for a process that lives long. It lists /proc at each call, and reads new processes
// and those of jobs: to read all costs ten times as much.
func listStepJobs(h *probe.Host) (map[string]bool, error) {
	names, err := h.Names("/proc")
	if err != nil {
		return nil, err
	}
	r, err := probe.OpenProc(h.Path("/proc"))
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: "/proc", Err: err}
	}
	defer r.Close()
	kept := probe.Kept[stepLooks](h, "looks for slurmstepd")
	if kept.count++; kept.count%stepLooksAll == 0 {
		kept.looks = nil
	}
	jobs, looks := map[string]bool{}, make(map[int]int, len(names))
	for _, name := range names {
		pid, bad := strconv.Atoi(name)
		if bad != nil {
			continue
		}
		if looks[pid] = kept.looks[pid]; looks[pid] >= stepLooksEach {
			continue
		}
		switch job, unread := findStep(r, pid); {
		case unread != nil:
			err = unread
		case job != "":
			jobs[job] = true
		default:
			looks[pid]++
		}
	}
	kept.looks = looks
	return jobs, err
}
