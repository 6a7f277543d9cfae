package probe

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxTrusted bounds a file of settings, bytes.
const maxTrusted = 1 << 20

// ReadTrusted reads a file of settings that only root, or who runs this, could
// have written. Like nhc.conf it may be group-writable.
func (h *Host) ReadTrusted(p string) ([]byte, error) {
	data, err := readTrusted(h.Path(p))
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: p, Err: reason(err)}
	}
	return data, nil
}

func readTrusted(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return nil, errors.New("not a plain file")
	case ok && st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return nil, fmt.Errorf("owned by uid %d, want root", st.Uid)
	case info.Mode().Perm()&0o002 != 0:
		return nil, fmt.Errorf("writable by others (mode %04o), want at most 0775", info.Mode().Perm())
	case info.Size() > maxTrusted:
		return nil, fmt.Errorf("%d bytes, want at most %d", info.Size(), maxTrusted)
	}
	return io.ReadAll(io.LimitReader(f, maxTrusted))
}
