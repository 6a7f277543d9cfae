package launch

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
)

// The files of a sweep, in a directory with its ID.
const (
	metaFile    = "sweep.json"
	resultsFile = "results.jsonl"
	journalFile = "journal.jsonl"
	reportFile  = "report.json"
	digestFile  = "digest.json"
	lockFile    = "lock"
)

// These bound the sweeps that are kept: one of 10,000 nodes with 9 planes has some 300 MB. The last one is always kept.
const (
	kept      = 30
	keptBytes = 2 << 30
)

// ErrRunning means that a sweep is under way.
var ErrRunning = errors.New("the sweep is under way")

// Meta describes a sweep from its beginning.
type Meta struct {
	ID        string      `json:"id"`
	Version   string      `json:"version"`
	Began     time.Time   `json:"began"`
	Command   []string    `json:"command"`
	Seed      uint64      `json:"seed"`
	Job       string      `json:"job,omitempty"`
	Own       bool        `json:"own,omitempty"` // the job was allocated for the sweep, and has not been ended; without Job it is being allocated
	Nodes     []string    `json:"nodes,omitempty"`
	Continued []time.Time `json:"continued,omitempty"`
}

// line is a line of results.jsonl.
type line struct {
	Stage   sweep.Stage    `json:"stage"`
	Began   time.Time      `json:"began,omitzero"`  // the stage begins
	Nodes   []sweep.Node   `json:"nodes,omitempty"` // of the stage
	Round   int            `json:"round,omitempty"` // from 1
	Tasks   int            `json:"tasks,omitempty"` // of the round
	Results []sweep.Result `json:"results,omitempty"`
	At      time.Time      `json:"at,omitzero"`     // when the line was written
	About   time.Duration  `json:"about,omitempty"` // that the sweep still takes then, an estimate
}

// record is the directory of a sweep. Its lock is that of the process.
type record struct {
	dir  string
	lock *os.File
	Meta Meta
}

// StateDir returns the directory of all sweeps of a user.
func StateDir(root bool, env func(string) string) string {
	if root {
		return "/var/lib/nhc-gpu/sweep"
	}
	base := env("XDG_STATE_HOME")
	if !filepath.IsAbs(base) {
		base = filepath.Join(env("HOME"), ".local/state")
	}
	return filepath.Join(base, "nhc-gpu/sweep")
}

// prepare makes the directory of all sweeps. Others must not be able to write there.
func prepare(base string) error {
	if !filepath.IsAbs(base) {
		return fmt.Errorf("the state directory %q is not an absolute path: set HOME or XDG_STATE_HOME", base)
	}
	if err := os.MkdirAll(base, 0o700); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	return private(base)
}

// private returns an error unless a directory belongs to this user and only the user can write there.
func private(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &fs.PathError{Op: "read", Path: dir, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is not a directory", dir)
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to the user %d, want %d", dir, st.Uid, os.Geteuid())
	case st.Mode&0o022 != 0:
		return fmt.Errorf("%s is writable by others: chmod go-w %s", dir, dir)
	}
	return nil
}

// isID reports whether a word can be the name of a sweep.
func isID(id string) bool {
	return id != "" && len(id) <= 64 && strings.Trim(id, "0123456789abcdefghijklmnopqrstuvwxyz-") == ""
}

// create makes the directory of a new sweep.
func create(base string, m Meta) (*record, error) {
	if err := prepare(base); err != nil {
		return nil, err
	}
	r := &record{dir: filepath.Join(base, m.ID), Meta: m}
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the sweep: %w", err)
	}
	if err := r.take(false); err != nil {
		return nil, err
	}
	return r, r.saveMeta()
}

// reopen opens the directory of an earlier sweep.
func reopen(base, id string) (*record, error) {
	if !isID(id) {
		return nil, fmt.Errorf("%q is not the ID of a sweep: nhc-gpu sweep --status lists them", id)
	}
	r := &record{dir: filepath.Join(base, id)}
	if err := private(r.dir); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no sweep %s: nhc-gpu sweep --status lists them", id)
	} else if err != nil {
		return nil, err
	}
	if err := r.take(false); err != nil {
		return nil, err
	}
	data, err := r.read(metaFile)
	if err == nil {
		err = json.Unmarshal(data, &r.Meta)
	}
	if err != nil {
		r.close()
		return nil, fmt.Errorf("read sweep %s: %w", id, err)
	}
	return r, nil
}

// lockWait is how long a list of the sweeps can have the lock of each, at most.
const lockWait = time.Second

// take takes the lock, or returns ErrRunning. Only a sweep has it for itself, lists of the sweeps share it.
func (r *record) take(share bool) error {
	f, err := r.open(lockFile, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	how, end := unix.LOCK_EX, time.Now().Add(lockWait)
	if share {
		how, end = unix.LOCK_SH, time.Now()
	}
	if err := probe.Flock(f, how, end); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return ErrRunning
		}
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	r.lock = f
	return nil
}

func (r *record) close() {
	if r.lock != nil {
		_ = unix.Flock(int(r.lock.Fd()), unix.LOCK_UN) // a process that is being started still has the file
		_ = r.lock.Close()
	}
}

func (r *record) open(name string, flag int) (*os.File, error) {
	return os.OpenFile(filepath.Join(r.dir, name), flag|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
}

// read reads a file; one that does not exist is empty.
func (r *record) read(name string) ([]byte, error) {
	f, err := r.open(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// appendLine appends an object of JSON as one line, and returns when it is on the disk. What a crash has
// left of a line before is ended first.
func (r *record) appendLine(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := r.open(name, os.O_RDWR|os.O_CREATE|os.O_APPEND)
	if err != nil {
		return err
	}
	defer f.Close()
	last := make([]byte, 1)
	if size, err := f.Seek(0, io.SeekEnd); err == nil && size > 0 {
		if _, err := f.ReadAt(last, size-1); err == nil && last[0] != '\n' {
			data = append([]byte{'\n'}, data...)
		}
	}
	if _, err := f.Write(append(data, '\n')); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return syncDir(r.dir)
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// save replaces a file.
func (r *record) save(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := r.open(name+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(filepath.Join(r.dir, name+".new"), filepath.Join(r.dir, name))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Join(r.dir, name), err)
	}
	return syncDir(r.dir)
}

func (r *record) saveMeta() error { return r.save(metaFile, r.Meta) }

// lines returns the lines of results.jsonl. Lines that a crash has left incomplete are ignored.
func (r *record) lines() (list []line, err error) {
	data, err := r.read(resultsFile)
	for text := range bytes.Lines(data) {
		var l line
		if json.Unmarshal(text, &l) == nil && l.Stage != "" {
			list = append(list, l)
		}
	}
	return list, err
}

// lastTail is how much of the end of results.jsonl is read first: the line of a large round has some MB.
const lastTail = 64 << 10

// lastLine returns the last whole line of results.jsonl.
func (r *record) lastLine() (l line) {
	f, err := r.open(resultsFile, os.O_RDONLY)
	if err != nil {
		return l
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	for n := int64(lastTail); err == nil; n *= 4 {
		n = min(n, size)
		tail := make([]byte, n)
		if _, err = f.ReadAt(tail, size-n); err != nil {
			break
		}
		lines := bytes.Split(tail, []byte{'\n'})
		if n < size {
			lines = lines[1:] // its begin may be missing
		}
		for _, text := range slices.Backward(lines) {
			if json.Unmarshal(text, &l) == nil && l.Stage != "" {
				return l
			}
			l = line{}
		}
		if n == size {
			break
		}
	}
	return l
}

// digest is what a list of the sweeps needs of a report, which can have hundreds of MB.
type digest struct {
	Size        int64           `json:"size"`    // of the report
	Changed     time.Time       `json:"changed"` // the report: this is no digest of another one
	Ended       time.Time       `json:"ended,omitzero"`
	Interrupted string          `json:"interrupted,omitempty"`
	Suspects    int             `json:"suspects"`
	Proven      []sweep.Stage   `json:"proven,omitempty"` // they say something about their nodes
	Accused     []sweep.Accusal `json:"accused"`
}

func digestOf(rep *sweep.Report, file fs.FileInfo) digest {
	d := digest{Size: file.Size(), Changed: file.ModTime(), Ended: rep.Ended, Interrupted: rep.Interrupted, Suspects: len(rep.Suspects), Accused: rep.Accusals()}
	for i := range rep.Stages {
		if x := &rep.Stages[i]; x.Says() {
			d.Proven = append(d.Proven, x.Stage)
		}
	}
	return d
}

// stored is the content of report.json. Earlier versions had all results there.
type stored struct {
	*sweep.Report

	Apart bool `json:"results_apart,omitempty"` // the results of finished rounds are in results.jsonl
}

// saveReport saves the report and its digest. Of the results it saves only those of unfinished rounds, by stage: the
// others are in results.jsonl. Without a digest a list reads the report.
func (r *record) saveReport(rep *sweep.Report, unfinished map[sweep.Stage][]sweep.Result) error {
	short := *rep
	short.Stages = slices.Clone(rep.Stages)
	for i := range short.Stages {
		short.Stages[i].Results = unfinished[short.Stages[i].Stage]
	}
	if err := r.save(reportFile, stored{&short, true}); err != nil {
		return err
	}
	if file, err := os.Lstat(filepath.Join(r.dir, reportFile)); err == nil {
		_ = r.save(digestFile, digestOf(rep, file))
	}
	return nil
}

// digest returns the digest of the report, and whether there is a report. It makes a digest that is missing.
func (r *record) digest() (d digest, ok bool) {
	file, err := os.Lstat(filepath.Join(r.dir, reportFile))
	if err != nil {
		return d, false
	}
	data, err := r.read(digestFile)
	if err == nil && json.Unmarshal(data, &d) == nil && d.Size == file.Size() && d.Changed.Equal(file.ModTime()) {
		return d, true
	}
	rep, err := r.report()
	if err != nil {
		return digest{}, false
	}
	d = digestOf(rep, file)
	_ = r.save(digestFile, d)
	return d, true
}

// debts returns what a maintenance of the sweep has left to undo.
func (r *record) debts() (debts, error) {
	data, err := r.read(journalFile)
	if err != nil {
		return debts{}, err
	}
	return readJournal(data)
}

// Summary is a sweep in the list of sweeps.
type Summary struct {
	Meta
	digest
	Running   bool
	Stage     sweep.Stage   // of a running sweep
	About     time.Duration // that a running sweep still takes, an estimate; 0 is unknown
	File      string        // its report; "" if there is none
	Unsettled bool          // its maintenance or its job has to be ended: see [Repair]
}

// List lists the sweeps of a state directory, the newest first.
func List(base string) (list []Summary, err error) {
	entries, err := os.ReadDir(base)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if !isID(e.Name()) || !e.IsDir() {
			continue
		}
		r := &record{dir: filepath.Join(base, e.Name())}
		data, bad := r.read(metaFile)
		if bad != nil || json.Unmarshal(data, &r.Meta) != nil {
			continue
		}
		s := Summary{Meta: r.Meta}
		bad = r.take(true)
		s.Running = errors.Is(bad, ErrRunning)
		r.close()
		if s.Running {
			last := r.lastLine()
			s.Stage, s.About = last.Stage, max(last.About-time.Since(last.At), 0)
		}
		if d, ok := r.digest(); ok {
			s.digest, s.File = d, filepath.Join(r.dir, reportFile)
		} else if !s.Running {
			s.Interrupted = "its launcher was killed"
		}
		d, bad := r.debts()
		s.Unsettled = (bad != nil || !d.settled() || s.Own) && !s.Running
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Summary) int { return cmp.Or(b.Began.Compare(a.Began), cmp.Compare(a.ID, b.ID)) })
	return list, err
}

// LoadReport reads the report of a sweep.
func LoadReport(base, id string) (*sweep.Report, error) {
	if !isID(id) {
		return nil, fmt.Errorf("%q is not the ID of a sweep: nhc-gpu sweep --status lists them", id)
	}
	rep, err := (&record{dir: filepath.Join(base, id)}).report()
	if err != nil {
		return nil, fmt.Errorf("read the report of sweep %s: %w", id, err)
	}
	return rep, nil
}

// ReadReport reads a report from a file: report.json of a sweep, or one that --report has written.
func ReadReport(path string) (*sweep.Report, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return (&record{dir: filepath.Dir(path)}).parse(data)
}

// report reads the report of the sweep.
func (r *record) report() (*sweep.Report, error) {
	data, err := r.read(reportFile)
	if err != nil {
		return nil, err
	}
	if data == nil {
		return nil, &fs.PathError{Op: "open", Path: filepath.Join(r.dir, reportFile), Err: fs.ErrNotExist}
	}
	return r.parse(data)
}

// parse parses a report, and adds the results of its finished rounds if they are in results.jsonl.
func (r *record) parse(data []byte) (*sweep.Report, error) {
	rep := new(sweep.Report)
	s := stored{Report: rep}
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, err
	}
	if !s.Apart || !slices.ContainsFunc(rep.Stages, func(x sweep.StageReport) bool { return x.Rounds > 0 }) {
		return rep, nil
	}
	lines, err := r.lines()
	if err != nil {
		return nil, err
	}
	for i := range rep.Stages {
		x := &rep.Stages[i]
		var results []sweep.Result
		for round := range x.Rounds {
			list, found := resume(lines, x.Stage, round+1)
			if !found {
				return nil, fmt.Errorf("%s has no results of round %d of stage %s", filepath.Join(r.dir, resultsFile), round+1, x.Stage)
			}
			results = append(results, list...)
		}
		x.Results = append(results, x.Results...)
	}
	return rep, nil
}

// LastReport reads the report of the last sweep that has run to its end, and says something about one of some
// stages; nil if there is none. It ignores the sweep without.
func LastReport(base string, stages []sweep.Stage, without string) (*sweep.Report, error) {
	list, err := List(base)
	for _, s := range list {
		if s.ID == without || s.File == "" || s.Interrupted != "" || s.Running {
			continue
		}
		if slices.ContainsFunc(s.Proven, func(x sweep.Stage) bool { return slices.Contains(stages, x) }) {
			return LoadReport(base, s.ID)
		}
	}
	return nil, err
}

// LoadMeta reads the beginning of a sweep.
func LoadMeta(base, id string) (m Meta, err error) {
	r, err := reopen(base, id)
	if err != nil {
		return m, err
	}
	defer r.close()
	return r.Meta, nil
}

// prune removes the oldest sweeps beyond a number and a size. It keeps the last one, those that are under way, and
// those to repair.
func prune(base string, keep int, most int64) {
	list, _ := List(base)
	total := int64(0)
	for i, s := range list {
		dir := filepath.Join(base, s.ID)
		total += sizeOf(dir)
		if i > 0 && (i >= keep || total > most) && !s.Running && !s.Unsettled {
			_ = os.RemoveAll(dir)
		}
	}
}

// sizeOf returns the size of the files in a directory, bytes.
func sizeOf(dir string) (total int64) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if file, err := e.Info(); err == nil {
			total += file.Size()
		}
	}
	return total
}

// leastRoom and roomPerNode are what the results, the journal and the report of a maintenance may take, bytes. With 9
// planes a node has some 30 KB.
const (
	leastRoom   = 16 << 20
	roomPerNode = 64 << 10
)

// checkRoom returns an error if the state directory has too little free space for a sweep of a number of nodes: in a
// maintenance the journal must be written before each step. With an unknown space it begins.
func checkRoom(base string, nodes int, perNode int64) error {
	var st unix.Statfs_t
	if unix.Statfs(base, &st) != nil {
		return nil
	}
	free, known := freeOf(&st)
	need := leastRoom + int64(nodes)*perNode
	if !known || free >= need {
		return nil
	}
	return fmt.Errorf("%s has %d MB free, a maintenance of %d nodes needs %d MB: free some space; old sweeps are the directories there", base, free/1e6, nodes, need/1e6)
}

// freeOf returns the free space of a file system, bytes, and whether it is known: ramfs, and tmpfs without a limit,
// report no size.
func freeOf(st *unix.Statfs_t) (free int64, known bool) {
	unit := st.Frsize
	if unit == 0 {
		unit = st.Bsize
	}
	return int64(st.Bavail) * unit, st.Blocks > 0
}
