package worker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// Modes of files that a worker creates: of OpCreate, the same as of nhc.conf, and of evidence.
const (
	createdMode = 0o644
	privateMode = 0o600
)

// create writes a file that must not exist, not even as a dangling link. It writes the file
// completely under another name before it renames it.
func create(path string, data []byte) *wire.Response { return createMode(path, data, createdMode) }

func createMode(path string, data []byte, mode os.FileMode) *wire.Response {
	if info, err := os.Lstat(path); err == nil && info.IsDir() {
		return &wire.Response{Err: fmt.Sprintf("write %s: is a directory; name a file", path)}
	} else if err == nil {
		return &wire.Response{Kind: wire.Exists, Err: fmt.Sprintf("write %s: the file exists", path)}
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if errors.Is(err, fs.ErrNotExist) {
		return &wire.Response{Kind: wire.NoDirectory, Err: formatPathError("write", path, err)}
	}
	if err != nil {
		return &wire.Response{Err: formatPathError("write", path, err)}
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if errClose := f.Close(); err == nil {
		err = errClose
	}
	if err == nil {
		err = renameNew(f.Name(), path)
	}
	switch {
	case errors.Is(err, unix.EEXIST): // made while we wrote
		return &wire.Response{Kind: wire.Exists, Err: fmt.Sprintf("write %s: the file exists", path)}
	case err != nil:
		return &wire.Response{Err: formatPathError("write", path, err)}
	}
	return &wire.Response{}
}

// renameNew renames a file unless the new name exists. If the file system cannot do that atomically
// (NFS), a second link does.
func renameNew(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENOTSUP) {
		return unix.Link(from, to)
	}
	return err
}
