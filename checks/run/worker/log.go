package worker

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	systemd "github.com/coreos/go-systemd/v22/journal"
	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// logMode is the mode of a log that a run creates. The log names users, and processes and files of
// their jobs. An existing log keeps its mode.
const logMode = 0o640

// openedLog is a log that is open for appending. shared reports that another user controls a
// directory in its path and can redirect the name at any time.
type openedLog struct {
	*os.File
	shared bool
}

// openLog opens a log for appending. If the log does not exist, openLog creates it with logMode,
// whatever the umask is. On a shared path it follows only links that root owns, and opens only a
// regular file without other names; it empties nothing before it knows that.
func openLog(path string, empty bool) (openedLog, error) {
	dir, name, shared, err := walk(path)
	if err != nil {
		return openedLog{}, err
	}
	defer unix.Close(dir)
	flags := unix.O_WRONLY | unix.O_APPEND | unix.O_NOCTTY | unix.O_CLOEXEC
	if shared {
		flags |= unix.O_NOFOLLOW | unix.O_NONBLOCK
	}
	fd, err := unix.Openat(dir, name, flags, 0)
	if errors.Is(err, unix.ENOENT) {
		if fd, err = unix.Openat(dir, name, flags|unix.O_CREAT|unix.O_EXCL, logMode); err == nil {
			_ = unix.Fchmod(fd, logMode) // fails harmlessly on a file system without modes
		} else if errors.Is(err, unix.EEXIST) { // another run was faster
			fd, err = unix.Openat(dir, name, flags, 0)
		}
	}
	if err != nil {
		return openedLog{}, err
	}
	log := openedLog{os.NewFile(uintptr(fd), path), shared}
	if shared {
		err = checkOnlyName(dir, name, fd)
	}
	if err == nil && empty {
		if err = unix.Ftruncate(fd, 0); errors.Is(err, unix.EINVAL) { // a device
			err = nil
		}
	}
	if err != nil {
		log.Close()
		return openedLog{}, err
	}
	return log, nil
}

// appendBounded appends to a file of at most that many bytes, or twice as many while another program
// has locked it. A full file becomes PATH.1 and replaces the previous one. If only a part fits onto
// the disk, appendBounded removes it.
func appendBounded(path string, data []byte, most int64) error {
	log, err := openBounded(path)
	if err != nil {
		return err
	}
	defer func() { log.Close() }()
	info, err := log.Stat()
	if err != nil {
		return err
	}
	if info.Mode().IsRegular() && info.Size() > 0 && info.Size()+int64(len(data)) > most {
		err := rotate(path, log)
		// A user who may read the log can lock it, but not for ever.
		if locked := errors.Is(err, unix.EWOULDBLOCK); !locked || info.Size() > 2*most {
			if locked {
				err = rename(path, log)
			}
			if err != nil {
				return err
			}
			log.Close()
			if log, err = openBounded(path); err != nil {
				return err
			}
		}
	}
	n, err := log.Write(data)
	if err == nil || n == 0 || !info.Mode().IsRegular() {
		return err
	}
	end, seekErr := log.Seek(0, io.SeekCurrent)
	if info, statErr := log.Stat(); seekErr == nil && statErr == nil && info.Size() == end { // no other run has appended since
		_ = log.Truncate(end - int64(n))
	}
	return err
}

// openBounded opens a log that other runs may rename at the same time.
func openBounded(path string) (log openedLog, err error) {
	for range 10 {
		if log, err = openLog(path, false); !errors.Is(err, errReplaced) {
			break
		}
	}
	return log, err
}

// lockLimit is the longest wait for another run that renames the log, which takes a millisecond.
const lockLimit = 200 * time.Millisecond

// rotate renames a log to PATH.1. Of several runs that find it full only the first renames it, and the
// others wait for that: they would replace PATH.1 by a new and nearly empty log, or write on to the
// full one. The lock ends with the descriptor.
func rotate(path string, log openedLog) error {
	if err := probe.Flock(log, unix.LOCK_EX, time.Now().Add(lockLimit)); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	return rename(path, log)
}

// rename renames a log to PATH.1, if the path still names it.
func rename(path string, log openedLog) error {
	dir, name, _, err := walk(path)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	var opened, named unix.Stat_t
	if err := unix.Fstat(int(log.Fd()), &opened); err != nil {
		return err
	}
	if err := unix.Fstatat(dir, name, &named, unix.AT_SYMLINK_NOFOLLOW); err != nil || opened.Dev != named.Dev || opened.Ino != named.Ino {
		return nil //nolint:nilerr // another run has renamed it
	}
	return unix.Renameat(dir, name, dir, name+".1")
}

// journal writes entries to the journal of systemd.
func journal(entries []wire.Entry) *wire.Response {
	for _, e := range entries {
		if err := systemd.Send(e.Message, systemd.Priority(e.Priority), e.Fields); err != nil {
			if errno := unix.Errno(0); errors.As(err, &errno) { // the rest names a socket of this process
				err = errno
			}
			return &wire.Response{Err: fmt.Sprintf("write to the journal: %v", err)}
		}
	}
	return &wire.Response{}
}

// maxLinks is the kernel's limit of symbolic links in a path.
const maxLinks = 40

// walk follows a path to its last directory and the name in it, through symbolic links, the last
// one included. It refuses a link of another user in a directory that another user controls. The
// directory is open only for openat.
func walk(path string) (dir int, name string, shared bool, err error) {
	dir, err = unix.Open(findStart(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, "", false, err
	}
	fail := func(err error) (int, string, bool, error) {
		unix.Close(dir)
		return -1, "", shared, err
	}
	links, above := 0, false
	for rest := strings.TrimLeft(path, "/"); ; {
		var st unix.Stat_t
		if err := unix.Fstat(dir, &st); err != nil {
			return fail(err)
		}
		// In a sticky directory no other user can move a file that root owns.
		sticky := st.Mode&unix.S_ISVTX != 0 && isTrusted(st.Uid)
		others := st.Mode&0o002 != 0 || st.Mode&0o020 != 0 && st.Gid != 0 || !isTrusted(st.Uid)
		shared, above = above || others, above || others && !sticky
		name, rest, _ = strings.Cut(rest, "/")
		rest = strings.TrimLeft(rest, "/")
		if name == "" {
			return fail(unix.EISDIR)
		}
		next, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) && rest == "" {
			return dir, name, shared, nil
		}
		if err != nil {
			return fail(err)
		}
		if err := unix.Fstat(next, &st); err != nil {
			unix.Close(next)
			return fail(err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			if rest == "" {
				unix.Close(next)
				return dir, name, shared, nil
			}
			unix.Close(dir)
			dir = next
			continue
		}
		target, err := readlinkat(next)
		unix.Close(next)
		links++
		switch {
		case err != nil:
			return fail(err)
		case shared && !isTrusted(st.Uid):
			return fail(fmt.Errorf("%s is a symbolic link of uid %d", name, st.Uid))
		case links > maxLinks:
			return fail(unix.ELOOP)
		case rest == "" && isProc(dir): // /proc/PID/fd/N leads where no name does
			return dir, name, shared, nil
		}
		if strings.HasPrefix(target, "/") {
			root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return fail(err)
			}
			unix.Close(dir)
			dir = root
		}
		if rest != "" {
			target += "/" + rest
		}
		rest = strings.TrimLeft(target, "/")
	}
}

func findStart(path string) string {
	if strings.HasPrefix(path, "/") {
		return "/"
	}
	return "."
}

// isTrusted reports whether a user may decide where root writes.
func isTrusted(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }

func readlinkat(fd int) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func isProc(fd int) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) == nil && st.Type == unix.PROC_SUPER_MAGIC
}

var errReplaced = errors.New("replaced while it was opened, in a directory that other users control")

// checkOnlyName returns an error unless fd is a regular file and this is its only name.
func checkOnlyName(dir int, name string, fd int) error {
	var opened, named unix.Stat_t
	if err := unix.Fstat(fd, &opened); err != nil {
		return err
	}
	if err := unix.Fstatat(dir, name, &named, unix.AT_SYMLINK_NOFOLLOW); errors.Is(err, unix.ENOENT) {
		return errReplaced
	} else if err != nil {
		return err
	}
	switch {
	case opened.Mode&unix.S_IFMT != unix.S_IFREG:
		return errors.New("not a regular file, in a directory that other users control")
	case named.Dev != opened.Dev || named.Ino != opened.Ino:
		return errReplaced
	case named.Nlink != 1:
		return fmt.Errorf("has %d names, in a directory that other users control", named.Nlink)
	}
	return nil
}
