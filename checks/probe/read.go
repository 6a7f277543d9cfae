package probe

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// ValueSize is more than any attribute of /sys that is read here holds.
const ValueSize = 256

// ReadValue reads a small file of one line with a single read(2) and cuts the
// newline. A broken driver may answer EAGAIN, at which the standard library
// would poll for ever.
func (h *Host) ReadValue(p string) (string, error) {
	buf := make([]byte, ValueSize)
	n, err := ReadAt(unix.AT_FDCWD, h.Path(p), buf)
	if err != nil {
		return "", &fs.PathError{Op: "read", Path: p, Err: err}
	}
	return strings.TrimRight(string(buf[:n]), "\n"), nil
}

// ReadFile reads a whole file.
func (h *Host) ReadFile(p string) ([]byte, error) {
	data, err := readAll(h.Path(p))
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: p, Err: err}
	}
	return data, nil
}

func readAll(path string) ([]byte, error) {
	fd, err := Open(unix.AT_FDCWD, path)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 0, 32<<10)
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := Read(fd, buf[len(buf):cap(buf)])
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return buf, nil
		}
		buf = buf[:len(buf)+n]
	}
}

// ReadAt opens a file below the directory dir and fills buf with one read(2).
func ReadAt(dir int, name string, buf []byte) (int, error) {
	fd, err := Open(dir, name)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return Read(fd, buf)
}

// Open opens a file below a directory for reading; a call that a signal interrupts is repeated.
func Open(dir int, name string) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// Read is read(2), repeated if a signal interrupts it.
func Read(fd int, buf []byte) (int, error) {
	for {
		n, err := unix.Read(fd, buf)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// Names lists a directory, sorted. The standard library would ask the kernel four
// more times of each: whether it can be polled, and how it was opened.
func (h *Host) Names(p string) ([]string, error) {
	fail := func(err error) ([]string, error) { return nil, &fs.PathError{Op: "read", Path: p, Err: err} }
	fd, err := Open(unix.AT_FDCWD, h.Path(p))
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fd)
	var names []string
	for buf := make([]byte, 4096); ; {
		n, err := unix.ReadDirent(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fail(err)
		case n <= 0:
			sort.Strings(names)
			return names, nil
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

// Word is the first line of a file that a driver may do without.
func (h *Host) Word(dir, name string, errs *error) string {
	text, err := h.ReadValue(filepath.Join(dir, name))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			*errs = errors.Join(*errs, err)
		}
		return ""
	}
	text, _, _ = strings.Cut(text, "\n")
	return strings.TrimSpace(text)
}

// Reason strips the path from an error, which is that of this machine and not
// of the node.
func Reason(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	if le, ok := errors.AsType[*os.LinkError](err); ok { // names a temporary file, too
		return le.Err
	}
	return err
}

// Lines gives the lines of a file to each, as they are but without the newline
// at their end, until it returns false. A last line without newline is a line;
// the bytes are only valid during the call.
//
// Opening a FIFO or a terminal waits for nobody. What says nothing for a second
// is given up with [ErrNoLines], and so is a FIFO that nobody writes to.
func (h *Host) Lines(p string, each func(line []byte) (more bool)) error {
	err := h.lines(p, each)
	if err != nil {
		return &fs.PathError{Op: "read", Path: p, Err: err}
	}
	return nil
}

// LastLines gives the lines of the last bytes of a plain file, or all of it where it
// has no more; of anything else it gives what [Host.Lines] gives.
func (h *Host) LastLines(p string, most int64, each func(line []byte) (more bool)) error {
	err := h.linesFrom(p, most, each)
	if err != nil {
		return &fs.PathError{Op: "read", Path: p, Err: err}
	}
	return nil
}

func (h *Host) lines(p string, each func(line []byte) bool) error { return h.linesFrom(p, 0, each) }

func (h *Host) linesFrom(p string, most int64, each func(line []byte) bool) error {
	if p == "" {
		return unix.ENOENT
	}
	var st unix.Stat_t
	if err := unix.Stat(h.Path(p), &st); err != nil {
		return err
	}
	flags := unix.O_RDONLY | unix.O_CLOEXEC
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
		flags |= unix.O_NONBLOCK | unix.O_NOCTTY
	}
	fd, err := Retry(func() (int, error) { return unix.Open(h.Path(p), flags, 0) })
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	r := lineReader{fd: fd, kind: st.Mode & unix.S_IFMT}
	if most > 0 && st.Size > most && r.kind == unix.S_IFREG {
		if _, err := unix.Seek(fd, st.Size-most, unix.SEEK_SET); err != nil {
			return err
		}
		if line, err := r.next(); err != nil || line == nil { // the rest of one
			return err
		}
	}
	for {
		line, err := r.next()
		if err != nil || line == nil || !each(line) {
			return err
		}
	}
}
