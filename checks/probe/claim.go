package probe

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrClaimed means that another process holds a claim.
var ErrClaimed = errors.New("held by another process")

// Claim takes the lock of that name, for example "active", until release is called or this process
// ends. The lock is an empty file in the parent of the memory directory, which all nodes of a
// machine share (slurmd -N). Without a memory directory, as in a run of another user than root,
// there is no lock. The error is [ErrClaimed] if another process holds the lock.
func Claim(h *Host, name string) (release func(), err error) {
	if h.past == "" {
		return func() {}, nil
	}
	var errs error
	for _, dir := range h.MemoryDirs() {
		path := filepath.Join(findMachineDir(dir), name+".lock")
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

// machineDirs have a directory for each node of this machine.
var machineDirs = []string{"/var/lib/nhc-gpu", "/run/nhc-gpu"}

// findMachineDir returns the machine directory that contains dir, or dir itself.
func findMachineDir(dir string) string {
	for _, all := range machineDirs {
		if strings.HasPrefix(dir, all+"/") {
			return all
		}
	}
	return dir
}

// Flock locks a file by flock(2). It waits for other processes until end, then it returns EWOULDBLOCK.
func Flock(f interface{ Fd() uintptr }, how int, end time.Time) error {
	for ; ; time.Sleep(2 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || !time.Now().Before(end) {
			return err
		}
	}
}

// lockFile returns a descriptor, not a file: the garbage collector closes an unreferenced file and
// so releases its lock.
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
