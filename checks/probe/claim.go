package probe

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrClaimed says that another process holds a claim.
var ErrClaimed = errors.New("held by another process")

// Claim takes a lock by the name of what it is for, "active", until release is
// called or this process ends. The file is empty, in the directory above that of what runs
// keep, which all nodes of a machine share (slurmd -N); without one, as in a run of somebody
// else than root, there is no lock. The error is [ErrClaimed] if another process has it.
func Claim(h *Host, name string) (release func(), err error) {
	if h.past == "" {
		return func() {}, nil
	}
	var errs error
	for _, dir := range h.pasts() {
		path := filepath.Join(machineDir(dir), name+".lock")
		fd, err := lockFile(h, path)
		switch {
		case err == nil:
			return func() {
				_ = unix.Flock(fd, unix.LOCK_UN) // a process that is being started still has the file
				unix.Close(fd)
			}, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return nil, ErrClaimed
		}
		errs = errors.Join(errs, &fs.PathError{Op: "lock", Path: path, Err: Reason(err)})
	}
	return nil, errs
}

// machineDirs hold a directory for each node of this machine.
var machineDirs = []string{"/var/lib/nhc-gpu", "/run/nhc-gpu"}

// machineDir is the one that a directory is in, or itself.
func machineDir(dir string) string {
	for _, all := range machineDirs {
		if strings.HasPrefix(dir, all+"/") {
			return all
		}
	}
	return dir
}

// lockFile returns a descriptor, not a file: the garbage collector closes a file, and with
// it releases its lock, when nobody refers to it any more.
func lockFile(h *Host, path string) (fd int, err error) {
	if err := os.MkdirAll(filepath.Dir(h.Path(path)), 0o700); err != nil {
		return -1, err
	}
	fd, err = unix.Open(h.Path(path), unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, err
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
