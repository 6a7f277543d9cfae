package probe

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// The name of a process proves nothing: any user can give a process any command line (exec -a) and,
// through a symbolic link, any name in /proc/PID/stat. Even a uid of 0 proves little: su and sudo
// wait for a password as root, under any name that their user chooses.

// RootsOwn reports whether root controls a process: its effective and its real user are root, and
// its program is not setuid.
func RootsOwn(h *Host, pid int) bool {
	r, err := OpenProc(h.Path("/proc"))
	if err != nil {
		return false
	}
	defer r.Close()
	return r.RootsOwn(pid)
}

// RootsOwn is the same for an open /proc.
func (r *ProcessReader) RootsOwn(pid int) bool {
	r.Name = strconv.AppendInt(r.Name[:0], int64(pid), 10)
	s, err := r.readState()
	return err == nil && s.uid == 0 && s.real == 0 && !r.setuid()
}

// OwnAccord reports whether the user of a process has started it: its real user is its effective
// one, and its program is not setuid.
func OwnAccord(h *Host, pid int) bool {
	r, err := OpenProc(h.Path("/proc"))
	if err != nil {
		return false
	}
	defer r.Close()
	r.Name = strconv.AppendInt(r.Name[:0], int64(pid), 10)
	s, err := r.readState()
	return err == nil && s.uid == s.real && !r.setuid()
}

// setuid reports whether the program of the process is setuid. It returns false for a recorded node
// and for a kernel thread. It does not query a dead file server.
func (r *ProcessReader) setuid() bool {
	var st unix.Statx_t
	err := unix.Statx(r.Dir, string(r.Name)+"/exe", unix.AT_STATX_DONT_SYNC, unix.STATX_MODE, &st)
	return err == nil && st.Mode&unix.S_ISUID != 0
}

// answerer returns the user who answers for a process: its real one, since a process can hide its effective one;
// for a person the creator of its user namespace, in which a user can have 65,536 uids.
func (r *ProcessReader) answerer() (uint32, error) {
	s, err := r.readState()
	if err != nil || s.real < FirstUser {
		return s.real, err
	}
	if uid, ok := r.NamespaceOwner(string(r.Name)); ok && uid >= FirstUser {
		return uid, nil
	}
	return s.real, nil
}

// NamespaceOwner returns the creator of a process's user namespace, or of the outermost of several below that of
// this program; false if the process is in the same one.
func (r *ProcessReader) NamespaceOwner(dir string) (uid uint32, ok bool) {
	var own, st unix.Stat_t
	if unix.Stat("/proc/self/ns/user", &own) != nil {
		return 0, false
	}
	fd, err := unix.Openat(r.Dir, dir+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, false
	}
	defer func() { unix.Close(fd) }()
	for range maxNamespaces {
		if unix.Fstat(fd, &st) != nil || st.Ino == own.Ino {
			return uid, ok
		}
		n, err := unix.IoctlGetUint32(fd, unix.NS_GET_OWNER_UID)
		if err != nil {
			return 0, false
		}
		uid, ok = n, true
		parent, err := unix.IoctlRetInt(fd, unix.NS_GET_PARENT)
		if err != nil {
			return 0, false // outside of this program's
		}
		unix.Close(fd)
		fd = parent
	}
	return 0, false
}

// maxNamespaces is the kernel's maximum nesting of user namespaces.
const maxNamespaces = 33
