package jobscan

import (
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// JobWatch notices a job that starts on the node. It is cheap enough for ten calls a second: it
// lists /proc, and reads the command lines of new processes only. It does not use the cache of the Host.
type JobWatch struct {
	Running map[string]bool // jobs that had a slurmstepd at the start of the watch
	Blind   bool            // a memory directory gave no answer at the start: its new records are not noticed

	proc    string
	records []*listing  // memory directories
	looks   map[int]int // how often each process was read
	prefix  string
	opened  map[string]bool
}

// listing lists a directory of a file server that can die.
type listing struct {
	path  string
	names chan []string // of the look that has begun, nil if there is none
	slow  bool          // a look was late
}

// A look for records delays the look for processes by lookLimit, once, and after that by slowLimit.
const (
	lookLimit = time.Second
	slowLimit = time.Millisecond
)

// youngLooks is how often a new process is read: the command line of a slurmstepd shows the number
// of its job only a moment after its start.
const youngLooks = 20

// fewLooks is the same for a process that existed at the start of the watch.
const fewLooks = 4

// WatchJobs starts a watch. It ignores existing jobs, and existing records: files with that prefix
// in the memory directories that answer. A prolog of this program writes such a file at the start of a
// job. The error means that /proc cannot be read.
func WatchJobs(h *probe.Host, prefix string) (*JobWatch, error) {
	w := &JobWatch{Running: map[string]bool{}, proc: h.Path("/proc"), looks: map[int]int{}, prefix: prefix, opened: map[string]bool{}}
	r, err := probe.OpenProc(w.proc)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: "/proc", Err: err}
	}
	defer r.Close()
	for _, pid := range w.pids() {
		w.looks[pid] = youngLooks - fewLooks // most processes are old
		if id, _ := findStep(r, pid); id != "" {
			w.Running[id] = true
			w.looks[pid] = youngLooks
		}
	}
	if h.Past() != "" && prefix != "" {
		for _, dir := range h.MemoryDirs() {
			w.records = append(w.records, &listing{path: h.Path(dir)})
		}
	}
	w.newRecord()
	all := len(w.records)
	w.records = slices.DeleteFunc(w.records, func(l *listing) bool { return l.slow }) // all would be new
	w.Blind = len(w.records) < all
	return w, nil
}

// New returns a job that has started since the last call, "" if there is none.
func (w *JobWatch) New() string {
	seen := make(map[int]int, len(w.looks))
	job := ""
	r, err := probe.OpenProc(w.proc)
	if err != nil {
		return w.newRecord()
	}
	defer r.Close()
	for _, pid := range w.pids() {
		looks := w.looks[pid]
		if looks < youngLooks {
			id, err := findStep(r, pid)
			switch {
			case id != "":
				job, looks = id, youngLooks
			case err == nil:
				looks++
			}
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
	for _, name := range listNames(w.proc) {
		if pid, err := strconv.Atoi(name); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// newRecord returns the job of a new record, the last of several.
func (w *JobWatch) newRecord() (job string) {
	for _, l := range w.records {
		for _, name := range l.list() {
			plain, ofRecord := strings.CutSuffix(strings.TrimSuffix(name, probe.Interim), ".json")
			id, ok := strings.CutPrefix(plain, w.prefix)
			if ofRecord && ok && !w.opened[id] {
				w.opened[id] = true
				job = id
			}
		}
	}
	return job
}

// list returns the names in a directory, none if it does not answer. A look that does not end is not repeated. It
// does not judge the directory: a slow answer must not keep the result of the test from its place.
func (l *listing) list() []string {
	if l.names == nil {
		names := make(chan []string, 1)
		l.names = names
		go func() { names <- listNames(l.path) }()
	}
	limit := lookLimit
	if l.slow {
		limit = slowLimit
	}
	select {
	case names := <-l.names:
		l.names = nil
		return names
	case <-time.After(limit):
		l.slow = true
		return nil
	}
}

// listNames returns the names in a directory, none if it cannot be read.
func listNames(dir string) []string {
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1) // after an error, the names read so far
	return names
}
