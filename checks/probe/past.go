package probe

import (
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

// What one run keeps for the next, so that a counter can be judged by how fast
// it grows: a file of JSON for each subject in a directory of root's.

// ErrNoMemory says that nothing can be kept between runs: there is no directory
// for it, as in a run of somebody else than root.
var ErrNoMemory = errors.New("nothing is kept between runs")

// SetPast names the directory of what runs keep; "" is none. Where it cannot be
// written, as on a node without a disk, the first of the spare ones that can is
// used in its place. All are below the root of the node.
func (h *Host) SetPast(dir string, spare ...string) { h.past, h.spare = dir, spare }

// pasts returns the memory directories that answer, the preferred one first. Without
// any the run has no memory: a file system that does not answer there is not the fault
// that a check looks for.
func (h *Host) pasts() (dirs []string) {
	for _, dir := range append([]string{h.past}, h.spare...) {
		if dir != "" && h.answers(dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// answerLimit bounds the probe of a memory directory.
const answerLimit = time.Second

// answers asks a file system something in the background. Where there is no answer this
// process is of no further use, since it can never end.
func (h *Host) answers(dir string) bool {
	call := "read " + dir
	if slices.Contains(h.Unanswered(), call) || h.StuckAt(dir) != nil {
		return false
	}
	if runInTime(answerLimit, func() { _, _ = os.Lstat(h.Path(dir)) }) {
		return true
	}
	h.addUnanswered(call)
	return false
}

// SpareError says that something is kept, but not where it should be. It is
// told once in the life of the other place, which a reboot may end.
type SpareError struct {
	Dir   string // where it is
	Cause error  // why it is not where it should be
}

func (e *SpareError) Error() string {
	return fmt.Sprintf("%v; until that is mended it is kept in %s, which a reboot may empty", e.Cause, e.Dir)
}

func (e *SpareError) Unwrap() error { return e.Cause }

// maxPast bounds one file, bytes. Ours are a few KiB.
const maxPast = 4 << 20

// Recall reads what an earlier run has kept under name. The error is
// [fs.ErrNotExist] if there is nothing, [ErrNoMemory] if there cannot be.
func (h *Host) Recall(name string, v any) error {
	if h.past == "" {
		return ErrNoMemory
	}
	path, data, err := h.keptFile(name + ".json")
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// keptFile reads a file below the directory of what runs keep. What lies in a
// spare one is newer.
func (h *Host) keptFile(name string) (path string, data []byte, err error) {
	dirs := h.pasts()
	if len(dirs) == 0 {
		return "", nil, ErrNoMemory
	}
	for _, dir := range slices.Backward(dirs) {
		path = filepath.Join(dir, name)
		own := trust{flags: unix.O_NOFOLLOW, owner: os.Geteuid(), others: 0o022, most: maxPast}
		data, err = own.read(h.Path(path))
		switch {
		case err == nil:
			return path, data, nil
		case errors.Is(err, unix.ENOTDIR):
			err = fs.ErrNotExist
		case !errors.Is(err, fs.ErrNotExist):
			return path, nil, &fs.PathError{Op: "read", Path: path, Err: Reason(err)}
		}
	}
	return path, nil, &fs.PathError{Op: "read", Path: path, Err: Reason(err)}
}

// Keep writes v for later runs, all of it or nothing, readable by root alone. A
// [SpareError] is no failure: it says once that it lies in another place.
func (h *Host) Keep(name string, v any) error {
	if h.past == "" {
		return ErrNoMemory
	}
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	dirs := h.pasts()
	if len(dirs) == 0 {
		return ErrNoMemory
	}
	spares, cause := dirs, error(&fs.PathError{Op: "write", Path: h.past, Err: errNoAnswer})
	if dirs[0] == h.past {
		spares, cause = dirs[1:], h.keepIn(h.past, name+".json", data)
	}
	if cause == nil {
		for _, spare := range spares {
			_ = os.Remove(h.Path(filepath.Join(spare, name+".json"))) // it is out of date
		}
		return nil
	}
	for _, spare := range spares {
		if err := h.keepIn(spare, name+".json", data); err != nil {
			cause = errors.Join(cause, err)
			continue
		}
		return h.spareError(spare, cause)
	}
	return cause
}

// spareError is nil when it has been told.
func (h *Host) spareError(dir string, cause error) error {
	if _, err := os.Lstat(h.Path(filepath.Join(dir, "told"))); err == nil || h.keepIn(dir, "told", nil) != nil {
		return nil
	}
	return &SpareError{Dir: dir, Cause: cause}
}

func (h *Host) keepIn(past, name string, data []byte) error {
	dir := h.Path(past)
	path := filepath.Join(past, name)
	fail := func(err error) error { return &fs.PathError{Op: "write", Path: path, Err: Reason(err)} }
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fail(err)
	}
	f, err := os.CreateTemp(dir, strings.TrimSuffix(name, ".json")+".*.new") // 0600, new, no link
	if err != nil {
		return fail(err)
	}
	_, err = f.Write(data)
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
	return nil
}

// PastNames are the directories in one that holds one for each name of a node.
func (h *Host) PastNames(dir string) (names []string) {
	entries, _ := os.ReadDir(h.Path(dir)) // without it there is none
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}
