package worker

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// One run in detached mode writes the result file, and the next run takes it.

// maxResult bounds the read of a result, bytes. A result is one line.
const maxResult = 64 << 10

// take reads a file and removes it, so that each result is reported once. A file older than the
// boot of the node counts as missing, because it no longer describes the node. take follows no
// link, because the directory may be /tmp.
func take(path string) *wire.Response {
	resp := &wire.Response{File: &wire.FileInfo{}}
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
		resp.File.Missing = true
		return resp
	case err != nil:
		return &wire.Response{Err: formatPathError("stat", path, err)}
	}
	resp.File = describeFile(st)
	if st.Mode().IsRegular() {
		data, err := readResult(path)
		if err != nil {
			return &wire.Response{Err: formatPathError("read", path, err)}
		}
		resp.Data = data
	}
	if boot, ok := bootTime(); ok && st.ModTime().Before(boot) {
		resp.File.Missing = true
	}
	if unix.Unlink(path) != nil {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			resp.File.Stays = true
		}
	}
	return resp
}

// bootTime returns when the node booted, by the current clock. The modification time of /proc is
// unsuitable: it is the time of the mount, which is later in a container, and the clock may have
// been corrected since.
func bootTime() (time.Time, bool) {
	up := probe.SinceBoot()
	return time.Now().Add(-up), up > 0
}

func readResult(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxResult))
}

// put writes a file under another name first, so that a reader finds all of it or nothing. mode are
// its permissions; 0: only its owner can read it.
func put(path string, data []byte, mode uint32, makeDir bool) *wire.Response {
	if makeDir {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return &wire.Response{Err: formatPathError("mkdir", filepath.Dir(path), err)}
		}
	}
	if err := replaceFile(path, data, cmp.Or(mode, 0o600)); err != nil {
		return &wire.Response{Err: formatPathError("write", path, err)}
	}
	return &wire.Response{}
}

// replaceFile creates the file in the directory that the path leads to now, even if another user
// controls a part of the path and changes it meanwhile.
func replaceFile(path string, data []byte, mode uint32) error {
	dir, name, _, err := walk(path)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	fresh := fmt.Sprintf(".%s.%x", name, rand.Uint64()) // a name that no user can take before
	fd, err := unix.Openat(dir, fresh, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), path)
	_, err = f.Write(data)
	if err == nil {
		err = unix.Fchmod(fd, mode)
	}
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = unix.Renameat(dir, fresh, dir, name)
	}
	if err != nil {
		_ = unix.Unlinkat(dir, fresh, 0)
	}
	return err
}
