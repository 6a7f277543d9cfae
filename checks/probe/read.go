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

// ValueSize exceeds the size of all attributes of /sys that the program reads.
const ValueSize = 256

// ReadValue reads a small file of one line with a single read(2) and removes the newline. A broken
// driver may return EAGAIN, after which the standard library would poll forever.
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

// Open opens a file below a directory for reading and repeats a call that a signal interrupts.
func Open(dir int, name string) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// Read calls read(2) and repeats it if a signal interrupts it.
func Read(fd int, buf []byte) (int, error) {
	for {
		n, err := unix.Read(fd, buf)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// Names lists a directory, sorted. The standard library would make four more system calls for each:
// whether it can be polled, and how it was opened.
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

// Word returns the first line of a file, "" if the driver does not have the file.
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

// Reason removes the path from an error, because it is a path of this machine and not of the node.
func Reason(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	if le, ok := errors.AsType[*os.LinkError](err); ok { // has the name of a temporary file, too
		return le.Err
	}
	return err
}

// Lines passes the lines of a file to each, unchanged except for the final newline, until each
// returns false. A last line without a newline counts; the bytes are only valid during the call.
//
// Opening a FIFO or a terminal does not block. Lines gives up with [ErrNoLines] after a second
// without data, and for a FIFO without a writer.
func (h *Host) Lines(p string, each func(line []byte) (more bool)) error {
	err := h.lines(p, each)
	if err != nil {
		return &fs.PathError{Op: "read", Path: p, Err: err}
	}
	return nil
}

// LastLines passes the lines in the last bytes of a regular file, or all of a shorter one; for any
// other file it does the same as [Host.Lines].
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
		if line, err := r.next(); err != nil || line == nil { // the rest of a line
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
