package probe

import (
	"bytes"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Attribute is a small file of /sys that is read again and again. It stays open, since to open such a file costs more
// than to read it. The kernel ends an open file together with its device (ENODEV): then the next reading opens the
// file of the device that has its name by then. It is not for concurrent use.
type Attribute struct {
	h    *Host
	path string
	fd   int // 0: closed
}

// OpenAttribute opens a file.
func OpenAttribute(h *Host, p string) (*Attribute, error) {
	a := &Attribute{h: h, path: p}
	return a, a.open()
}

func (a *Attribute) open() error {
	fd, err := Open(unix.AT_FDCWD, a.h.Path(a.path))
	if err != nil {
		return &fs.PathError{Op: "read", Path: a.path, Err: err}
	}
	a.fd = fd
	return nil
}

// Read reads the file with a single pread(2) into buf, and removes the newline.
func (a *Attribute) Read(buf []byte) ([]byte, error) {
	if a.fd > 0 {
		if n, err := a.pread(buf); err == nil {
			return bytes.TrimRight(buf[:n], "\n"), nil
		}
		a.Close()
	}
	if err := a.open(); err != nil {
		return nil, err
	}
	n, err := a.pread(buf)
	if err != nil {
		a.Close()
		return nil, &fs.PathError{Op: "read", Path: a.path, Err: err}
	}
	return bytes.TrimRight(buf[:n], "\n"), nil
}

func (a *Attribute) pread(buf []byte) (int, error) {
	return Retry(func() (int, error) { return unix.Pread(a.fd, buf, 0) })
}

// Close closes the file. A later reading opens it again.
func (a *Attribute) Close() {
	if a.fd > 0 {
		unix.Close(a.fd)
		a.fd = 0
	}
}
