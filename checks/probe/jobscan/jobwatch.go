package jobscan

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// JobWatch notices a job that begins on the node, cheaply enough to be asked ten
// times a second: it lists /proc, and reads the command line of what is new there
// alone. It is a reader of its own: a Host is not for two goroutines.
type JobWatch struct {
	Running map[string]bool // jobs that had a slurmstepd when the watch began

	proc    string
	records string
	looks   map[int]int // how often a process has been looked at
	prefix  string
	opened  map[string]bool
}

// youngLooks is how often a new process is looked at: a slurmstepd bears its job's
// number only a moment after its start.
const youngLooks = 20

// fewLooks is the same of one that was there when the watch began.
const fewLooks = 4

// WatchJobs begins to watch. Jobs that are there are no news; nor are the records,
// files of a name with that prefix among what runs keep, by which a prolog of this
// program tells that a job begins. The error says that /proc cannot be read.
func WatchJobs(h *probe.Host, prefix string) (*JobWatch, error) {
	w := &JobWatch{Running: map[string]bool{}, proc: h.Path("/proc"), looks: map[int]int{}, prefix: prefix, opened: map[string]bool{}}
	if h.Past() != "" {
		w.records = h.Path(h.Past())
	}
	if _, err := h.Names("/proc"); err != nil {
		return nil, err
	}
	for _, pid := range w.pids() {
		w.looks[pid] = youngLooks - fewLooks // most are old
		if id := w.jobOf(pid); id != "" {
			w.Running[id] = true
			w.looks[pid] = youngLooks
		}
	}
	w.newRecord()
	return w, nil
}

// New is a job that has begun since the last look, "" if none has.
func (w *JobWatch) New() string {
	seen := make(map[int]int, len(w.looks))
	job := ""
	for _, pid := range w.pids() {
		looks := w.looks[pid]
		if looks < youngLooks {
			if id := w.jobOf(pid); id != "" {
				job, looks = id, youngLooks
			}
			looks++
		}
		seen[pid] = looks
	}
	w.looks = seen
	if id := w.newRecord(); id != "" && job == "" {
		job = id
	}
	return job
}

func (w *JobWatch) pids() (pids []int) {
	for _, name := range listed(w.proc) {
		if pid, err := strconv.Atoi(name); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// newRecord is the job of a record that was not there before, the last of several.
func (w *JobWatch) newRecord() (job string) {
	if w.records == "" || w.prefix == "" {
		return ""
	}
	for _, name := range listed(w.records) {
		id, ok := strings.CutPrefix(strings.TrimSuffix(name, ".json"), w.prefix)
		if ok && strings.HasSuffix(name, ".json") && !w.opened[id] {
			w.opened[id] = true
			job = id
		}
	}
	return job
}

// listed are the names in a directory; none if it cannot be read.
func listed(dir string) []string {
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1) // what was read counts
	return names
}

func (w *JobWatch) jobOf(pid int) string {
	data, err := os.ReadFile(filepath.Join(w.proc, strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return "" // it has ended
	}
	if stepJob(probe.CommandLine(data)) == "" {
		return ""
	}
	r, err := probe.OpenProc(w.proc)
	if err != nil {
		return ""
	}
	defer r.Close()
	return stepOf(r, pid)
}
