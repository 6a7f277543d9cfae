package jobscan

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// JobLoad has values of a job on this node. NaN is unknown.
type JobLoad struct {
	ID       string
	Resident float64 // memory, bytes
	Killed   float64 // processes that the kernel has ended for want of memory, since the job began
	// These are the microseconds since some moment in which at least one task of the job waited for a CPU,
	// for memory, for a disk or file system (Linux, Documentation/accounting/psi.rst). A cgroup of version 1
	// has none: the pressure on the node is not that of its only job.
	CPU, Memory, IO float64

	dir string // of its cgroup, "" if it has none
	v2  bool
}

// Grouped reports whether the job has a cgroup of Slurm.
func (j *JobLoad) Grouped() bool { return j.dir != "" }

// These bound the walk through the cgroups of a job: its own, those of steps and tasks, and their processes.
const (
	maxGroups    = 4096
	maxProcesses = 8192
)

const cgroups = "/sys/fs/cgroup"

// Jobs lists the jobs that have a cgroup of Slurm with a process, and the others that have a slurmstepd if
// all is set, which lists every process. They are in the order of their numbers. Each call looks again.
func Jobs(h *probe.Host, all bool) (list []JobLoad, err error) {
	add := func(dir string, v2 bool) {
		names, nameErr := h.Names(dir)
		if nameErr != nil && !errors.Is(nameErr, fs.ErrNotExist) {
			err = nameErr
		}
		for _, name := range names {
			id, ok := strings.CutPrefix(name, "job_")
			if !ok && v2 && sluidGroup().MatchString(dir+"/"+name) {
				var stepErr error
				if id, stepErr = jobOfSLUID(h, dir+"/"+name, name); stepErr != nil {
					err = stepErr
				}
			}
			j := JobLoad{ID: id, dir: dir + "/" + name, v2: v2}
			if id != "" && !probe.NotNumber(id) && !slices.ContainsFunc(list, func(j JobLoad) bool { return j.ID == id }) && !j.stale(h) {
				list = append(list, j)
			}
		}
	}
	scopes, _ := h.Names(cgroups + "/system.slice")
	for _, name := range scopes { // slurmstepd.scope, with several slurmd NODE_slurmstepd.scope
		if strings.HasSuffix(name, "slurmstepd.scope") {
			add(cgroups+"/system.slice/"+name, true)
		}
	}
	roots, _ := h.Names(cgroups + "/memory")
	for _, root := range roots { // slurm, with several slurmd slurm_NODE
		if !strings.HasPrefix(root, "slurm") {
			continue
		}
		users, _ := h.Names(cgroups + "/memory/" + root)
		for _, user := range users {
			if strings.HasPrefix(user, "uid_") {
				add(cgroups+"/memory/"+root+"/"+user, false)
			}
		}
	}
	if len(list) == 0 && all {
		running, runErr := listStepJobs(h)
		err = runErr
		for id := range running {
			list = append(list, JobLoad{ID: id})
		}
	}
	slices.SortFunc(list, func(a, b JobLoad) int {
		if len(a.ID) != len(b.ID) {
			return len(a.ID) - len(b.ID)
		}
		return strings.Compare(a.ID, b.ID)
	})
	return list, err
}

// stale reports whether the cgroup of a job has no process: a slurmstepd that was killed leaves it behind.
func (j *JobLoad) stale(h *probe.Host) bool {
	if j.v2 {
		text, err := h.ReadValue(j.dir + "/cgroup.events")
		return err == nil && valueAfter(text, "populated ") == 0
	}
	_, err := h.ReadFile(j.dir + "/cgroup.procs")
	return err == nil && j.groups(h, func(_ string, pids []string) bool { return len(pids) == 0 })
}

// Read reads the values of a job.
func (j *JobLoad) Read(h *probe.Host) {
	j.Resident, j.Killed, j.CPU, j.Memory, j.IO = math.NaN(), math.NaN(), math.NaN(), math.NaN(), math.NaN()
	memory, killed := "/memory.usage_in_bytes", "/memory.oom_control"
	if j.v2 {
		memory, killed = "/memory.current", "/memory.events"
	}
	if j.dir != "" {
		if v, err := h.ReadValue(j.dir + memory); err == nil {
			if n, err := strconv.ParseUint(v, 10, 64); err == nil {
				j.Resident = float64(n)
			}
		}
		if text, err := h.ReadValue(j.dir + killed); err == nil { // a short one
			j.Killed = valueAfter(text, "oom_kill ")
		}
	}
	if j.v2 {
		for name, of := range map[string]*float64{"cpu": &j.CPU, "memory": &j.Memory, "io": &j.IO} {
			*of = readPressure(h, j.dir+"/"+name+".pressure")
		}
	}
}

// readPressure returns the total of the line "some" of a pressure file.
func readPressure(h *probe.Host, path string) float64 {
	text, err := h.ReadValue(path)
	if err != nil {
		return math.NaN()
	}
	line, _, _ := strings.Cut(text, "\n")
	if !strings.HasPrefix(line, "some ") {
		return math.NaN()
	}
	_, total, _ := strings.Cut(line, " total=")
	n, err := strconv.ParseUint(total, 10, 64)
	if err != nil {
		return math.NaN()
	}
	return float64(n)
}

// valueAfter returns the number behind a word at the beginning of a line.
func valueAfter(text, word string) float64 {
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, word); ok {
			if n, err := strconv.ParseUint(strings.TrimSpace(v), 10, 64); err == nil {
				return float64(n)
			}
		}
	}
	return math.NaN()
}

// States are numbers of processes of a job, without those of Slurm. NaN is unknown.
type States struct {
	Processes float64
	Blocked   float64 // in uninterruptible sleep (state D)
	Stopped   float64 // by a signal, by a debugger, or with their cgroup, as while the job is suspended
}

// States counts the processes of a job.
func (j *JobLoad) States(h *probe.Host) (s States) {
	if j.dir == "" {
		return States{math.NaN(), math.NaN(), math.NaN()}
	}
	buf := make([]byte, probe.ValueSize)
	j.groups(h, func(dir string, pids []string) bool {
		frozen := len(pids) > 0 && j.frozen(h, dir)
		for _, pid := range pids {
			n, err := probe.ReadAt(unix.AT_FDCWD, h.Path("/proc/"+pid+"/stat"), buf)
			if err != nil || bytes.Contains(buf[:n], []byte(" (slurmstepd) ")) {
				continue // it has ended, or is Slurm's
			}
			s.Processes++
			switch state := bytes.TrimSpace(buf[bytes.LastIndexByte(buf[:n], ')')+1 : n]); {
			case frozen: // in a freezer of version 1 it shows the state D
				s.Stopped++
			case bytes.HasPrefix(state, []byte("D ")):
				s.Blocked++
			case bytes.HasPrefix(state, []byte("T ")), bytes.HasPrefix(state, []byte("t ")):
				s.Stopped++
			}
		}
		return true
	})
	return s
}

// frozen reports whether the processes of a cgroup of the job are frozen.
func (j *JobLoad) frozen(h *probe.Host, dir string) bool {
	if j.v2 {
		text, err := h.ReadValue(dir + "/cgroup.events")
		return err == nil && valueAfter(text, "frozen ") == 1
	}
	step, _, _ := strings.Cut(dir, "/task_") // tasks have no freezer of their own
	state, err := h.ReadValue(strings.Replace(step, cgroups+"/memory/", cgroups+"/freezer/", 1) + "/freezer.state")
	return err == nil && state != "THAWED"
}

// PIDs lists the processes in the cgroup of a job, none without a cgroup.
func (j *JobLoad) PIDs(h *probe.Host) (list []string) {
	j.groups(h, func(_ string, pids []string) bool { list = append(list, pids...); return true })
	return list
}

// groups calls a function for the cgroup of a job and those of its steps and tasks, with their processes, until it
// returns false. It reports whether it has visited all.
func (j *JobLoad) groups(h *probe.Host, each func(dir string, pids []string) bool) (all bool) {
	if j.dir == "" {
		return false
	}
	visited, count := 0, 0
	for dirs := []string{j.dir}; len(dirs) > 0; visited++ { // a step with its tasks before the next one
		if visited >= maxGroups || count >= maxProcesses {
			return false
		}
		dir := dirs[len(dirs)-1]
		dirs = dirs[:len(dirs)-1]
		text, _ := h.ReadFile(dir + "/cgroup.procs")
		pids := slices.DeleteFunc(strings.Fields(string(text)), probe.NotNumber)
		if count += len(pids); !each(dir, pids) {
			return false
		}
		names, _ := h.Names(dir)
		for _, name := range names {
			if strings.HasPrefix(name, "step_") || strings.HasPrefix(name, "task_") || name == "user" || name == "slurm" {
				dirs = append(dirs, dir+"/"+name)
			}
		}
	}
	return true
}
