package probe

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A run keeps data for the next run, to judge a counter by its growth: a JSON file for each subject
// in a directory of root.

// ErrNoMemory means that no data can be kept between runs because there is no directory for it, for
// example in a run of another user than root.
var ErrNoMemory = errors.New("no data is kept between runs")

// ErrSilent means that the memory directory does not answer: only the records of the spare directories are
// known.
var ErrSilent = errors.New("the directory of the records does not answer")

// SetPast sets the memory directory; "" is none. If it cannot be written, for example on a diskless
// node, the first writable spare directory replaces it. All are below the root of the node.
func (h *Host) SetPast(dir string, spare ...string) { h.past, h.spare = dir, spare }

// SetUntil sets the deadline of a request to the memory directory; zero leaves only the limit of each call. After it
// a caller needs time for the spare directory.
func (h *Host) SetUntil(end time.Time) { h.until = end }

// MemoryDirs returns the memory directories that answer, the preferred one first. Without any the run
// has no memory; a check does not report a file system that does not answer there.
func (h *Host) MemoryDirs() (dirs []string) {
	for _, dir := range append([]string{h.past}, h.spare...) {
		if dir != "" && h.answers(dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// Silence returns why this process does not use the memory directory any more, nil if it has answered.
func (h *Host) Silence() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.silent[h.past]; err != nil {
		return &fs.PathError{Op: "read", Path: h.past, Err: Reason(err)}
	}
	return nil
}

// SilentCalls returns the reads of directories that this process does not use any more, in the form of
// [Host.SetStuck].
func (h *Host) SilentCalls() (calls []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for dir := range h.silent {
		calls = append(calls, "read "+dir)
	}
	return calls
}

// noteSilent notes that a directory has given no answer, or an error that is none.
func (h *Host) noteSilent(dir string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.silent == nil {
		h.silent = map[string]error{}
	}
	h.silent[dir] = cmp.Or(h.silent[dir], err)
}

// PastAnswers reports whether the memory directory answers.
func (h *Host) PastAnswers() bool { return h.answers(h.past) }

const (
	answerLimit = time.Second     // of the test of a memory directory, and of a read there
	keepLimit   = 3 * time.Second // of a write there, which a busy disk delays
)

// StateAnswers reports whether there is a state directory, and it answers.
func (h *Host) StateAnswers() bool { return h.state != "" && h.answers(h.state) }

// answers tests a file system in the background. It asks the server: an NFS client answers Lstat from its cache for
// a minute after the server's end, and the next call hangs.
func (h *Host) answers(dir string) bool {
	if h.isSilent(dir) || h.StuckAt(dir) != nil {
		return false
	}
	_, err := reach(h, dir, answerLimit, errNoAnswer, func() (int, error) {
		return Retry(func() (int, error) {
			const how = unix.AT_SYMLINK_NOFOLLOW | unix.AT_STATX_FORCE_SYNC
			return 0, unix.Statx(unix.AT_FDCWD, h.Path(dir), how, unix.STATX_BASIC_STATS, new(unix.Statx_t))
		})
	})
	return !isSilence(err)
}

// isSilent reports whether a directory has not answered this process.
func (h *Host) isSilent(dir string) bool {
	return slices.Contains(slices.Concat(h.Unanswered(), h.SilentCalls()), "read "+dir)
}

// errUnused means that another process of this run has had no answer. The run reports why.
var errUnused = errors.New("not used in this run")

// lateCall begins the calls of Unanswered that are late writes in a directory that answers: no later worker writes there.
const lateCall = "wait for a write in "

// errNoTime means that the time of a request is over, which says nothing about the directory.
var errNoTime = errors.New("no time left for this request")

// errLate means that a write did not end in time, for example on a busy disk.
var errLate = errors.New("no answer")

// reach calls f, which uses a directory, in the background, and returns the error late if it does not end within limit.
// Without an answer, or with an error that says nothing about the directory, this run does not use it any more.
func reach[T any](h *Host, dir string, limit time.Duration, late error, f func() (T, error)) (v T, err error) {
	isWrite := errors.Is(late, errLate)
	if left := time.Until(h.until); dir == h.past && !h.until.IsZero() && left < limit {
		limit, late = left, errNoTime
	}
	if limit <= 0 {
		return v, late
	}
	call := "use " + dir // ends this worker, but no later one avoids the directory
	switch {
	case isWrite && (errors.Is(late, errLate) || limit >= answerLimit/2): // each later write would wait as long
		call = lateCall + dir
	case isSilence(late):
		call = "read " + dir
	}
	answer := make(chan Cached[T], 1)
	a := Cached[T]{Err: late}
	if h.InTime(call, limit, func() { v, err := f(); answer <- Cached[T]{v, err} }) {
		a = <-answer
	}
	if isSilence(a.Err) {
		h.noteSilent(dir, a.Err)
	}
	return a.Value, a.Err
}

// SpareError means that data was kept, but in a spare directory. It is reported once in the life of
// that directory, which a reboot may end.
type SpareError struct {
	Dir   string // the spare directory
	Cause error  // why the preferred directory was not used
}

func (e *SpareError) Error() string {
	return fmt.Sprintf("%v; until this is repaired the data is kept in %s, which a reboot may empty", e.Cause, e.Dir)
}

func (e *SpareError) Unwrap() error { return e.Cause }

// maxPast bounds one file, bytes. The program's own files have a few KiB.
const maxPast = 4 << 20

// Recall reads the data that an earlier run kept under name. The error is [fs.ErrNotExist] if there
// is none, [ErrNoMemory] if there is no memory directory.
func (h *Host) Recall(name string, v any) error {
	if h.past == "" {
		return ErrNoMemory
	}
	path, data, err := h.readKept(h.MemoryDirs(), name+".json")
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s is damaged", path) // the error of encoding/json has only names of Go
	}
	return nil
}

// passing are errors that say nothing about a file or a directory: the next run may read it. EIO also comes from
// a local disk that fails, so it is no such error.
var passing = []error{
	unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EINTR, unix.ESTALE, unix.ETIMEDOUT, unix.EHOSTDOWN, unix.EHOSTUNREACH,
	unix.ENETUNREACH, unix.ECONNREFUSED, unix.ECONNRESET, unix.ENOTCONN, unix.ESHUTDOWN,
}

// isSilence reports whether there was no answer, or an error that says nothing.
func isSilence(err error) bool {
	return errors.Is(err, errNoAnswer) || slices.ContainsFunc(passing, func(e error) bool { return errors.Is(err, e) })
}

// orders are the records of what operators have ordered (silence, clear, a GPU reset). A copy in the spare directories is read while the memory
// directory does not answer.
var orders = []string{"silence", "xid-clear", "xid-reset", "ib-clear"}

// ofOrder ends the name of such a copy.
const ofOrder = ".copy"

// Interim ends the name of a file that was begun in a spare directory while the memory directory, or the
// file in it, could not be read. It counts only as long as there is no other: that one has the whole history.
const Interim = ".interim"

// readKept reads a file of the memory directories that answer. A file in a spare directory is newer.
func (h *Host) readKept(dirs []string, name string) (path string, data []byte, err error) {
	if len(dirs) == 0 {
		if old := h.historyOf(name); old != nil {
			return filepath.Join(h.past, name), old, nil
		}
		return "", nil, ErrNoMemory
	}
	var paths, interims, copies []string
	for _, dir := range slices.Backward(dirs) {
		paths = append(paths, filepath.Join(dir, name))
		if dir != h.past {
			interims = append(interims, filepath.Join(dir, name+Interim))
			copies = append(copies, filepath.Join(dir, name+ofOrder))
		}
	}
	if dirs[0] == h.past {
		copies = nil
	}
	again := paths[:len(interims)] // where another run has put an interim file since, see settle
	for _, path = range slices.Concat(paths, interims, again, copies) {
		data, err = h.readIn(path)
		h.noteUnread(name, isSilence(err))
		switch {
		case err == nil:
			if filepath.Dir(path) == h.past {
				h.noteHistory(name, data)
			}
			if slices.Contains(paths, path) {
				h.removeAll(interims)
				h.copyOrder(dirs, path, data)
			}
			return path, data, nil
		case isSilence(err) && dirs[0] == h.past:
			h.noteSilent(h.past, err) // the run resumes no node, also if the file is in a spare directory
			return h.readKept(h.MemoryDirs(), name)
		case errors.Is(err, unix.ENOTDIR):
			err = fs.ErrNotExist
		case !errors.Is(err, fs.ErrNotExist):
			return path, nil, &fs.PathError{Op: "read", Path: path, Err: Reason(err)}
		}
	}
	if dirs[0] == h.past {
		h.noteHistory(name, nil)
	} else if old := h.historyOf(name); old != nil {
		return filepath.Join(h.past, name), old, nil
	}
	h.copyOrder(dirs, filepath.Join(h.past, name), nil)
	return path, nil, &fs.PathError{Op: "read", Path: path, Err: Reason(err)}
}

// copyOrder makes the copies of an order the same as the order in path, which is nil if there is none.
func (h *Host) copyOrder(dirs []string, path string, order []byte) {
	name := filepath.Base(path)
	if dirs[0] != h.past || !slices.Contains(orders, strings.TrimSuffix(name, ".json")) {
		return
	}
	for _, spare := range dirs[1:] {
		made := filepath.Join(spare, name+ofOrder)
		old, err := h.readIn(made)
		if err == nil && bytes.Equal(old, order) || err != nil && order == nil {
			continue
		}
		kept := order != nil && h.keepIn(spare, name+ofOrder, order, false) == nil
		now, err := h.readIn(path)
		replaced := err == nil && !bytes.Equal(now, order) || errors.Is(err, fs.ErrNotExist)
		if !kept || replaced { // by another process meanwhile: no copy is better than an old one
			h.removeAll([]string{made})
		}
	}
}

// readIn reads a file of a memory directory.
func (h *Host) readIn(path string) ([]byte, error) {
	read := func() ([]byte, error) { return readOwn(h.Path(path)) }
	if filepath.Dir(path) != h.past {
		return read()
	}
	return reach(h, h.past, answerLimit, errNoAnswer, read)
}

// readOwn reads a file of this user's that no one else can write.
func readOwn(path string) ([]byte, error) {
	return trust{flags: unix.O_NOFOLLOW, owner: os.Geteuid(), others: 0o022, most: maxPast}.read(path)
}

// namesIn lists a memory directory.
func (h *Host) namesIn(dir string) ([]string, error) {
	if dir != h.past {
		return h.Names(dir)
	}
	return reach(h, dir, answerLimit, errNoAnswer, func() ([]string, error) { return h.Names(dir) })
}

// settle removes or renames an interim file once the memory directory answers: the next silence would use it. known
// reports that the directory has a file of this name, which then counts. The rename is one call, because another run
// can remove the interim file, or write a newer plain one, at the same time. Interim strikes are removed: the numbers of
// their runs began at the silence.
func (h *Host) settle(spare, name string, known bool) {
	made := filepath.Join(spare, name+Interim)
	if known || strings.HasPrefix(name, "strikes-") {
		h.removeAll([]string{made})
		return
	}
	from, to := h.Path(made), h.Path(filepath.Join(spare, name))
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, fs.ErrExist) {
		h.removeAll([]string{made})
	}
}

// noteHistory notes the content of a file of the memory directory, nil if there is none. If a silence begins later in
// the run, the data that is kept then has the whole history.
func (h *Host) noteHistory(name string, data []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.history == nil {
		h.history = map[string][]byte{}
	}
	h.history[name] = data
}

func (h *Host) historyOf(name string) []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.history[name]
}

// histories returns the files of the memory directory whose content this process knows.
func (h *Host) histories() (names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, data := range h.history {
		if data != nil {
			names = append(names, name)
		}
	}
	return names
}

// noteUnread notes whether a file of the memory directory could not be read now: it must not be replaced.
func (h *Host) noteUnread(name string, unread bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.unread = slices.DeleteFunc(h.unread, func(n string) bool { return n == name }); unread {
		h.unread = append(h.unread, name)
	}
}

// unreadCall begins the calls of Unanswered for files that were not read in time, before the beginning of their names.
const unreadCall = "unread "

func (h *Host) isUnread(name string) bool {
	calls, known := append(h.Unanswered(), h.stuck...), h.historyOf(name) != nil
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Contains(h.unread, name) || !known && slices.ContainsFunc(calls, func(call string) bool {
		prefix, unread := strings.CutPrefix(call, unreadCall)
		return unread && strings.HasPrefix(name, prefix)
	})
}

func (h *Host) removeAll(paths []string) {
	for _, path := range paths {
		_ = os.Remove(h.Path(path))
	}
}

// Keep writes v for later runs, atomically and readable only by root. A [SpareError] is not a
// failure: it reports once that the data is in another directory.
func (h *Host) Keep(name string, v any) error { return h.keep(name, v, false, false) }

// KeepWhole writes v as Keep does. v has the whole history, so that it also counts if the memory directory answers again.
func (h *Host) KeepWhole(name string, v any) error { return h.keep(name, v, false, true) }

// KeepOnDisk writes v as Keep does, but to no spare directory, and when it returns the data survives
// a power cut, with that of earlier calls of Keep.
func (h *Host) KeepOnDisk(name string, v any) error { return h.keep(name, v, true, true) }

func (h *Host) keep(name string, v any, onDisk, whole bool) error {
	if h.past == "" {
		return ErrNoMemory
	}
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	dirs := h.MemoryDirs()
	if len(dirs) == 0 {
		return ErrNoMemory
	}
	file := name + ".json"
	spares, cause := dirs, error(&fs.PathError{Op: "write", Path: h.past, Err: Reason(cmp.Or(h.Silence(), errUnused))})
	silent, unread := dirs[0] != h.past, h.isUnread(file)
	if slices.Contains(orders, name) && (silent || unread) { // an interim file would end with the silence
		return cause
	}
	if !silent {
		spares = dirs[1:]
		if !unread {
			cause = h.keepInPast(file, data, onDisk)
		}
	}
	if cause == nil {
		for _, spare := range spares { // outdated; in this order, see settle
			h.removeAll([]string{filepath.Join(spare, file+Interim), filepath.Join(spare, file)})
		}
		h.noteHistory(file, data)
		h.copyOrder(dirs, filepath.Join(h.past, file), data)
		return nil
	}
	if onDisk {
		return cause
	}
	for _, spare := range spares {
		file := file
		if _, err := os.Lstat(h.Path(filepath.Join(spare, file))); !whole && (unread || silent && err != nil && h.historyOf(file) == nil) {
			file += Interim
		}
		if err := h.keepIn(spare, file, data, false); err != nil {
			cause = errors.Join(cause, err)
			continue
		}
		h.removeAll([]string{filepath.Join(spare, file+Interim)}) // older
		return h.spareError(spare, cause)
	}
	return cause
}

// writeWaits reports whether a write in the memory directory has not ended: another one would wait, too.
func (h *Host) writeWaits() bool {
	return slices.Contains(slices.Concat(h.Unanswered(), h.stuck), lateCall+h.past)
}

// keepInPast writes a file of the memory directory.
func (h *Host) keepInPast(name string, data []byte, onDisk bool) error {
	if h.writeWaits() {
		return &fs.PathError{Op: "write", Path: h.past, Err: errLate}
	}
	_, err := reach(h, h.past, keepLimit, errLate, func() (int, error) { return 0, h.keepIn(h.past, name, data, onDisk) })
	if errors.Is(err, errLate) || errors.Is(err, errNoTime) {
		return &fs.PathError{Op: "write", Path: h.past, Err: err}
	}
	return err
}

// spareError returns nil if the error was reported before.
func (h *Host) spareError(dir string, cause error) error {
	if _, err := os.Lstat(h.Path(filepath.Join(dir, "told"))); err == nil || h.keepIn(dir, "told", nil, false) != nil {
		return nil
	}
	return &SpareError{Dir: dir, Cause: cause}
}

func (h *Host) keepIn(past, name string, data []byte, onDisk bool) error {
	dir := h.Path(past)
	path := filepath.Join(past, name)
	fail := func(err error) error { return &fs.PathError{Op: "write", Path: path, Err: Reason(err)} }
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fail(err)
	}
	f, err := os.CreateTemp(dir, name+".*.new") // 0600, new, no link
	if err != nil {
		return fail(err)
	}
	_, err = f.Write(data)
	if err == nil && onDisk {
		err = f.Sync()
		syncFiles(dir)
	}
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Rename(f.Name(), h.Path(path))
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fail(err)
	}
	if onDisk {
		if err := syncDir(dir); err != nil {
			return fail(err)
		}
	}
	return nil
}

// syncFiles writes the files of a directory to the disk. XFS can write the new name of a file before
// its data, and a power cut then leaves it empty.
func syncFiles(dir string) {
	names, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	for _, name := range names {
		if f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err == nil {
			_ = f.Sync()
			f.Close()
		}
	}
}

// syncDir writes the names of a directory to the disk.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// PastNames returns the memory directories in dir, one for each node name.
func (h *Host) PastNames(dir string) (names []string) {
	entries, _ := os.ReadDir(h.Path(dir)) // none without a directory
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}
