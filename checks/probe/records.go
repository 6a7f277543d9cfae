package probe

import (
	"bytes"
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

// Runs leave data for each other besides the memory of single checks: JSON files for each of
// several subjects of a kind, and a journal of lines.

// Record is a JSON file below the memory directory.
type Record struct {
	Name string `json:"name"`           // without .json
	Data []byte `json:"data,omitempty"` // "" if it cannot be read
	Err  string `json:"err,omitempty"`  // why
}

// maxRecords bounds one read: each is a job that has started on this node.
const maxRecords = 1024

// maxRecall bounds their text, bytes, because it must fit into a worker's answer.
const maxRecall = 2 << 20

// forgotten marks, in the spare directory, a file that should be removed but cannot, on a disk that
// has become read-only.
const forgotten = "null"

// Records reads the files whose names begin with prefix, sorted by name. It is not an error if
// there are none. With [ErrSilent] the list has those of the spare directories.
func Records(h *Host, prefix string) (list []Record, err error) {
	if h.past == "" {
		return nil, ErrNoMemory
	}
	return recordsIn(h, prefix, h.MemoryDirs())
}

func recordsIn(h *Host, prefix string, dirs []string) (list []Record, err error) {
	var names []string
	silent := len(dirs) == 0 || dirs[0] != h.past
	for _, dir := range dirs {
		more, err := h.namesIn(dir)
		switch {
		case isSilence(err) && !silent:
			h.noteSilent(h.past, err)
			return Records(h, prefix)
		case errors.Is(err, errNoTime):
			return recordsInTime(h, prefix, dirs)
		case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR):
			return nil, err
		}
		for _, name := range more {
			plain, begun := strings.CutSuffix(name, Interim)
			switch {
			case silent:
				plain = strings.TrimSuffix(plain, ofOrder)
			case begun:
				h.settle(dir, plain, slices.Contains(names, plain))
			}
			names = append(names, plain)
		}
	}
	size := 0
	if silent {
		names, err = append(names, h.histories()...), ErrSilent
	}
	slices.Sort(names)
	for _, file := range slices.Compact(names) {
		name, ok := strings.CutSuffix(file, ".json")
		if !ok || !strings.HasPrefix(name, prefix) || len(list) >= maxRecords {
			continue
		}
		r := Record{Name: name}
		_, data, failed := h.readKept(dirs, name+".json")
		if !silent && h.isSilent(h.past) { // since this file
			return Records(h, prefix)
		}
		switch {
		case errors.Is(failed, errNoTime):
			return recordsInTime(h, prefix, dirs)
		case errors.Is(failed, fs.ErrNotExist): // another run has forgotten it
			continue
		case failed != nil:
			r.Err = failed.Error()
		case string(data) == forgotten:
			continue
		case size+len(data) > maxRecall:
			return list, err // the next run reads the rest
		}
		r.Data = data
		size += len(data)
		list = append(list, r)
	}
	return list, err
}

// recordsInTime reads the records of the spare directories for a request without time for the memory directory. The run
// does not replace the files there, which it does not know.
func recordsInTime(h *Host, prefix string, dirs []string) ([]Record, error) {
	h.addUnanswered(unreadCall + prefix) // also in later workers
	return recordsIn(h, prefix, dirs[1:])
}

// Forget removes the data kept under name. It is not an error if there is none.
func Forget(h *Host, name string) error {
	if h.past == "" {
		return ErrNoMemory
	}
	dirs := h.MemoryDirs()
	if len(dirs) == 0 {
		return ErrNoMemory
	}
	h.noteHistory(name+".json", nil)
	for i, dir := range dirs {
		path := filepath.Join(dir, name+".json")
		_ = os.Remove(h.Path(path + Interim))
		err := os.Remove(h.Path(path))
		if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if i == 0 && len(dirs) > 1 && h.keepIn(dirs[1], name+".json", []byte(forgotten), false) == nil {
			return nil
		}
		return &fs.PathError{Op: "remove", Path: path, Err: Reason(err)}
	}
	return nil
}

// Journal is the name and the maximum size of a file of lines. A full journal becomes NAME.jsonl.1
// and replaces the previous one.
type Journal struct {
	Name string
	Most int64 // bytes
}

// journalWait bounds the wait for another run that writes to the same journal.
const journalWait = time.Second

// AppendLine writes one line, all of it or nothing.
func AppendLine(h *Host, j Journal, line []byte) error {
	if h.past == "" {
		return ErrNoMemory
	}
	dirs := h.MemoryDirs()
	if len(dirs) == 0 {
		return ErrNoMemory
	}
	if len(dirs) > 1 && dirs[0] == h.past && h.writeWaits() {
		dirs = dirs[1:]
	}
	var errs error
	for _, dir := range dirs {
		path := filepath.Join(dir, j.Name+".jsonl")
		err := appendFile(h, path, j.Most, line)
		if err == nil {
			return nil
		}
		errs = errors.Join(errs, &fs.PathError{Op: "append to", Path: path, Err: Reason(err)})
	}
	return errs
}

func appendFile(h *Host, path string, most int64, line []byte) error {
	if err := os.MkdirAll(h.Path(filepath.Dir(path)), 0o700); err != nil {
		return err
	}
	lock, err := openOwn(h, path+".lock", os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	defer lock.Close()
	defer func() { _ = unix.Flock(int(lock.Fd()), unix.LOCK_UN) }() // a process that is being started still has the file
	if err := Flock(lock, unix.LOCK_EX, time.Now().Add(journalWait)); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	f, err := openOwn(h, path, os.O_RDWR|os.O_CREATE|os.O_APPEND)
	if err != nil {
		return err
	}
	defer func() { f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() > 0 && info.Size()+int64(len(line)) > most {
		if err := os.Rename(h.Path(path), h.Path(path+".1")); err != nil {
			return err
		}
		f.Close()
		if f, err = openOwn(h, path, os.O_RDWR|os.O_CREATE|os.O_APPEND); err != nil {
			return err
		}
		info, err = f.Stat()
		if err != nil {
			return err
		}
	}
	line = slices.Concat(bytes.TrimRight(line, "\n"), []byte{'\n'}) // does not change the caller's line
	if last := make([]byte, 1); info.Size() > 0 {
		if _, err := f.ReadAt(last, info.Size()-1); err == nil && last[0] != '\n' { // the node died while writing a line
			line = append([]byte{'\n'}, line...)
		}
	}
	if _, err := f.Write(line); err != nil {
		_ = f.Truncate(info.Size()) // a full disk accepts half a line
		return err
	}
	return f.Close()
}

// openOwn opens a file that only this user can write, without following links.
func openOwn(h *Host, path string, how int) (*os.File, error) {
	f, err := os.OpenFile(h.Path(path), how|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(int(f.Fd()), &st); err == nil {
		switch {
		case st.Mode&unix.S_IFMT != unix.S_IFREG:
			err = errors.New("not a regular file")
		case int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0:
			err = fmt.Errorf("owned by uid %d with mode %04o, must be owned by this user and not be writable by others", st.Uid, st.Mode&0o777)
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// JournalLines reads a journal, the oldest line first. It is not an error if there is none.
func JournalLines(h *Host, j Journal) (lines [][]byte, err error) {
	if h.past == "" {
		return nil, ErrNoMemory
	}
	var paths []string
	for _, dir := range h.MemoryDirs() {
		paths = append(paths, filepath.Join(dir, j.Name+".jsonl.1"), filepath.Join(dir, j.Name+".jsonl"))
	}
	for _, path := range paths {
		data, err := trust{flags: unix.O_NOFOLLOW, owner: os.Geteuid(), others: 0o022, most: j.Most + maxPast}.read(h.Path(path))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: path, Err: Reason(err)}
		}
		for line := range bytes.Lines(data) {
			lines = append(lines, bytes.TrimRight(line, "\n"))
		}
	}
	size := 0
	for i, line := range slices.Backward(lines) {
		if size += len(line); size > maxRecall { // the oldest lines do not fit into a worker's answer
			return lines[i+1:], nil
		}
	}
	return lines, nil
}
