package jobscan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// shmDir has POSIX shared memory and semaphores, and other files of programs.
const shmDir = "/dev/shm"

// ShmFile is a regular file in /dev/shm.
type ShmFile struct {
	Name   string // below /dev/shm; chosen by a user
	UID    uint32
	Mode   uint32 // permission bits
	Bytes  uint64 // of memory that it uses
	Made   time.Time
	Opened bool // a process has it open or mapped

	inode inode
}

// Path returns the name of the file in printable form.
func (f *ShmFile) Path() string { return shmDir + "/" + probe.Printable([]byte(f.Name)) }

// inode identifies a file by its inode.
type inode struct {
	dev, ino uint64
}

// These bound the search of /dev/shm.
const (
	maxShmFiles = 10000  // of the user
	maxShmNames = 200000 // of all users
	maxShmDepth = 16
)

// ShmFiles lists the regular files and directories of a user in /dev/shm that were created since a
// time, and which of them a process has open. It follows no link. If the file system has no
// creation time, it uses the time of the last change. more means that there are others, too many
// for one call.
func ShmFiles(h *probe.Host, uid uint32, since time.Time) (files []ShmFile, more bool, err error) {
	dir, err := openShm(h, "")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, &fs.PathError{Op: "read", Path: shmDir, Err: probe.Reason(err)}
	}
	defer dir.Close()
	s := shmScan{uid: uid, since: since}
	if err := s.walk(dir, "", 0); err != nil {
		return nil, false, &fs.PathError{Op: "read", Path: shmDir, Err: probe.Reason(err)}
	}
	if len(s.files) > 0 {
		err = findOpened(h, s.files)
	}
	return s.files, s.more, err
}

// openShm opens a directory below /dev/shm, name by name and without following links.
func openShm(h *probe.Host, name string) (*os.File, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC
	fd, err := unix.Open(h.Path(shmDir), flags, 0)
	if err != nil {
		return nil, err
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" {
			continue
		}
		next, err := unix.Openat(fd, part, flags|unix.O_NOFOLLOW, 0)
		unix.Close(fd)
		if err != nil {
			return nil, err
		}
		fd = next
	}
	return os.NewFile(uintptr(fd), shmDir+"/"+name), nil
}

type shmScan struct {
	uid   uint32
	since time.Time
	seen  int
	files []ShmFile
	more  bool
}

// shmNames is how many names of a directory are read at once.
const shmNames = 1024

// walk reads a directory of the file system dev.
func (s *shmScan) walk(dir *os.File, below string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return err
	}
	for !s.more {
		names, err := dir.Readdirnames(shmNames)
		for _, name := range names {
			if s.seen++; s.seen > maxShmNames || len(s.files) >= maxShmFiles {
				s.more = true
				return nil
			}
			s.entry(dir, uint64(st.Dev), name, path.Join(below, name), depth) //nolint:unconvert // another type on other machines
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// entry records a file, or descends into a directory. It ignores a name that has disappeared or
// changed its type, and anything mounted there.
func (s *shmScan) entry(dir *os.File, dev uint64, name, full string, depth int) {
	var st unix.Statx_t
	err := unix.Statx(int(dir.Fd()), name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st)
	if err != nil || unix.Mkdev(st.Dev_major, st.Dev_minor) != dev {
		return
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		if st.Uid != s.uid {
			return
		}
		f := ShmFile{Name: full, UID: st.Uid, Mode: uint32(st.Mode) & 0o777, Bytes: st.Blocks * 512, Made: convertTime(st.Ctime), inode: inode{dev, st.Ino}}
		if st.Mask&unix.STATX_BTIME != 0 {
			f.Made = convertTime(st.Btime)
		}
		if f.Made.Before(s.since) {
			return
		}
		s.files = append(s.files, f)
	case unix.S_IFDIR:
		fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil || depth >= maxShmDepth {
			return
		}
		sub := os.NewFile(uintptr(fd), full)
		defer sub.Close()
		_ = s.walk(sub, full, depth+1)
	}
}

func convertTime(t unix.StatxTimestamp) time.Time { return time.Unix(t.Sec, int64(t.Nsec)) }

// findOpened marks the files that a process has open or mapped. A lease detects every process, even
// those not visible here; if leases are not available, it searches /proc.
func findOpened(h *probe.Host, files []ShmFile) error {
	f := openedFinder{h: h, files: map[inode]*ShmFile{}, bases: map[string]bool{}}
	for i := range files {
		file := &files[i]
		err := probe.ErrRecorded
		if !h.Recorded() && leasesReliable() {
			err = holding(h, file, func(int, string) error { return nil })
		}
		switch {
		case err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, errChanged) || errors.Is(err, unix.ELOOP): // another file is there now
		case errors.Is(err, errOpened):
			file.Opened = true
		default:
			f.files[file.inode], f.bases[path.Base(file.Name)] = file, true
		}
	}
	if len(f.files) == 0 {
		return nil
	}
	return f.look()
}

// RemoveShm removes a file that has not changed and that no process has open. The error for a
// missing file is [fs.ErrNotExist].
func RemoveShm(h *probe.Host, f ShmFile) error {
	if h.Recorded() {
		return probe.ErrRecorded
	}
	for try := 1; ; try++ {
		err := holding(h, &f, func(dir int, name string) error {
			var st unix.Stat_t
			if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return err
			}
			if !f.matches(&st) {
				return errChanged
			}
			return unix.Unlinkat(dir, name, 0)
		})
		if !errors.Is(err, errOpened) || try == removeTries {
			return probe.Reason(err)
		}
		time.Sleep(removePause)
	}
}

// A program that lists /proc/PID/fd, as we do, holds each file for a moment.
const (
	removeTries = 5
	removePause = 10 * time.Millisecond
)

var errOpened = errors.New("a process has it open")

// holding calls do with the directory of a file and its name there. No process has the file open,
// and none can open it until do returns; before Linux 5.3 that is only known for the time of the
// listing. It runs with the rights of the file's owner: a user who replaces the file can reach no
// more than that user's own files.
func holding(h *probe.Host, f *ShmFile, do func(dir int, name string) error) error {
	return runAsUser(int(f.UID), func() error {
		dir, err := openShm(h, path.Dir(f.Name))
		if err != nil {
			return err
		}
		defer dir.Close()
		name := path.Base(f.Name)
		fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EAGAIN) { // another process has a lease
			return errOpened
		}
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if !f.matches(&st) {
			return errChanged
		}
		switch _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK); {
		case !leasesReliable():
		case errors.Is(err, unix.EAGAIN):
			return errOpened
		case err != nil:
			return os.NewSyscallError("lease", err)
		}
		return do(int(dir.Fd()), name)
	})
}

// matches reports whether st is this file.
func (f *ShmFile) matches(st *unix.Stat_t) bool {
	return f.inode == inode{uint64(st.Dev), st.Ino} && st.Uid == f.UID && st.Mode&unix.S_IFMT == unix.S_IFREG //nolint:unconvert // another type on other machines
}

// leasesReliable reports whether only an open file makes the kernel refuse a lease on tmpfs: since
// Linux 5.3, commit 387e3746d01c.
var leasesReliable = sync.OnceValue(func() bool {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return true
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); err != nil {
		return true
	}
	return major > 5 || major == 5 && minor >= 3
})

// runAsUser calls do with the file rights of a user. The kernel stores them for each thread: a thread
// that does not regain root's ends with its goroutine.
func runAsUser(uid int, do func() error) error {
	if os.Geteuid() != 0 {
		return do()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if !takeRights(uid) {
			done <- fmt.Errorf("cannot take the rights of uid %d", uid)
			return
		}
		err := do()
		if takeRights(0) { // first: else the caller would find this thread as a process of the user
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// takeRights sets the user whose file rights this thread has. The call itself does not report a
// failure; the next one returns the value.
func takeRights(uid int) bool {
	_, _ = unix.SetfsuidRetUid(uid)
	now, _ := unix.SetfsuidRetUid(-1)
	return now == uid
}

// openedFinder marks the files that processes have open, by whatever name, or mapped.
type openedFinder struct {
	h     *probe.Host
	files map[inode]*ShmFile
	bases map[string]bool // their names without directories
}

func (f *openedFinder) look() error {
	names, err := f.h.Names("/proc")
	if err != nil {
		return err
	}
	pace := f.h.Pace()
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		if err := f.process(pid, pace); errors.Is(err, probe.ErrUnread) { // it may have them open
			p, err := probe.ProcessNow(f.h, pid)
			for _, file := range f.files { // other users must not keep them
				file.Opened = file.Opened || err != nil || p.UID == file.UID || p.UID == 0
			}
		} else if err != nil && !errors.Is(probe.Gone(err), fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (f *openedFinder) process(pid int, pace func()) error {
	dir := fmt.Sprintf("/proc/%d", pid)
	names, err := f.h.Names(dir + "/fd")
	if err != nil {
		return err
	}
	for _, n := range names {
		pace()
		fd := f.h.Path(dir + "/fd/" + n)
		target, err := os.Readlink(fd)
		if err != nil || !f.bases[path.Base(target)] {
			continue
		}
		var st unix.Statx_t // does not query a dead server
		if unix.Statx(unix.AT_FDCWD, fd, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_INO, &st) == nil {
			f.mark(inode{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino})
		}
	}
	return probe.ReadMemoryFile(f.h, pid, "maps", func(data []byte) {
		for line := range bytes.Lines(data) {
			if i, ok := parseMapping(string(line)); ok {
				f.mark(i)
			}
		}
	})
}

func (f *openedFinder) mark(i inode) {
	if file := f.files[i]; file != nil {
		file.Opened = true
	}
}

// parseMapping parses the file of a line of /proc/PID/maps: "7f0-7f1 rw-s 0 00:1a 4711 /dev/shm/x".
func parseMapping(line string) (i inode, ok bool) {
	f := strings.Fields(line)
	if len(f) < 5 {
		return i, false
	}
	var major, minor uint32
	if _, err := fmt.Sscanf(f[3], "%x:%x", &major, &minor); err != nil {
		return i, false
	}
	n, err := strconv.ParseUint(f[4], 10, 64)
	return inode{unix.Mkdev(major, minor), n}, err == nil && n != 0
}
