package jobscan

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// JobLoad has values of a job on this node. NaN is unknown.
type JobLoad struct {
	ID       string
	Resident float64 // memory, bytes
	Killed   float64 // processes that the kernel has ended for want of memory, since the job began
	// These are the microseconds since some moment in which at least one task of the job waited for a CPU,
	// for memory, for a disk or file system (Linux, Documentation/accounting/psi.rst).
	CPU, Memory, IO float64

	dir string // of its cgroup, "" if it has none
	v2  bool
}

// Grouped reports whether the job has a cgroup of Slurm.
func (j *JobLoad) Grouped() bool { return j.dir != "" }

// These bound the walk through the cgroups of a job: steps, tasks and their processes.
const (
	maxGroups    = 256
	maxProcesses = 8192
)

const cgroups = "/sys/fs/cgroup"

// Jobs lists the jobs that have a cgroup of Slurm, and the others that have a slurmstepd if all is set,
// which reads every process. They are in the order of their numbers.
func Jobs(h *probe.Host, all bool) (list []JobLoad, err error) {
	add := func(dir string, v2 bool) {
		names, nameErr := h.Names(dir)
		if nameErr != nil && !errors.Is(nameErr, fs.ErrNotExist) {
			err = nameErr
		}
		for _, name := range names {
			id, ok := strings.CutPrefix(name, "job_")
			if ok && !probe.NotNumber(id) && !slices.ContainsFunc(list, func(j JobLoad) bool { return j.ID == id }) {
				list = append(list, JobLoad{ID: id, dir: dir + "/" + name, v2: v2})
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
		running, runErr := RunningJobs(h)
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

// Read reads the values of a job. alone is set if it is the only one: then the pressure on the node is
// its own, on kernels that do not know that of a cgroup.
func (j *JobLoad) Read(h *probe.Host, alone bool) {
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
		if text, err := h.ReadFile(j.dir + killed); err == nil {
			j.Killed = valueAfter(text, "oom_kill ")
		}
	}
	for _, p := range []struct {
		name string
		of   *float64
	}{{"cpu", &j.CPU}, {"memory", &j.Memory}, {"io", &j.IO}} {
		switch {
		case j.dir != "" && j.v2:
			*p.of = readPressure(h, j.dir+"/"+p.name+".pressure")
		case alone:
			*p.of = readPressure(h, "/proc/pressure/"+p.name)
		}
	}
}

// readPressure returns the total of the line "some" of a pressure file.
func readPressure(h *probe.Host, path string) float64 {
	text, err := h.ReadFile(path)
	if err != nil {
		return math.NaN()
	}
	line, _, _ := bytes.Cut(text, []byte{'\n'})
	if !bytes.HasPrefix(line, []byte("some ")) {
		return math.NaN()
	}
	_, total, _ := bytes.Cut(line, []byte(" total="))
	n, err := strconv.ParseUint(string(total), 10, 64)
	if err != nil {
		return math.NaN()
	}
	return float64(n)
}

// valueAfter returns the number behind a word at the beginning of a line.
func valueAfter(text []byte, word string) float64 {
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, word); ok {
			if n, err := strconv.ParseUint(strings.TrimSpace(v), 10, 64); err == nil {
				return float64(n)
			}
		}
	}
	return math.NaN()
}

// Blocked counts the processes of a job in uninterruptible sleep (state D); NaN if they are unknown.
func (j *JobLoad) Blocked(h *probe.Host) float64 {
	if j.dir == "" {
		return math.NaN()
	}
	count := 0
	for _, pid := range j.PIDs(h) {
		stat, err := h.ReadValue("/proc/" + pid + "/stat")
		if at := strings.LastIndexByte(stat, ')'); err == nil && strings.HasPrefix(stat[at+1:], " D ") {
			count++
		}
	}
	return float64(count)
}

// PIDs lists the processes in the cgroup of a job, none without a cgroup.
func (j *JobLoad) PIDs(h *probe.Host) (list []string) {
	if j.dir == "" {
		return nil
	}
	for dirs := []string{j.dir}; len(dirs) > 0 && len(dirs) < maxGroups && len(list) < maxProcesses; dirs = dirs[1:] {
		pids, _ := h.ReadFile(dirs[0] + "/cgroup.procs")
		for pid := range strings.FieldsSeq(string(pids)) {
			if !probe.NotNumber(pid) {
				list = append(list, pid)
			}
		}
		names, _ := h.Names(dirs[0])
		for _, name := range names {
			if strings.HasPrefix(name, "step_") || strings.HasPrefix(name, "task_") || name == "user" || name == "slurm" {
				dirs = append(dirs, dirs[0]+"/"+name)
			}
		}
	}
	return list
}
