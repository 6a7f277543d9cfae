package probe

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// A name proves nothing: any user can give a process any command line (exec -a) and,
// through a symbolic link, any name in /proc/PID/stat. A uid of 0 alone proves little
// more: su and sudo wait for a password as root, called whatever their user likes.

// RootsOwn reports whether root controls a process: its effective and its real user
// are root, and its program is not setuid.
func RootsOwn(h *Host, pid int) bool {
	r, err := OpenProc(h.Path("/proc"))
	if err != nil {
		return false
	}
	defer r.Close()
	return r.RootsOwn(pid)
}

// RootsOwn says whether a process is root's own program.
func (r *ProcessReader) RootsOwn(pid int) bool {
	r.Name = strconv.AppendInt(r.Name[:0], int64(pid), 10)
	s, err := r.state()
	return err == nil && s.uid == 0 && s.real == 0 && !r.setuid()
}

// OwnAccord reports whether the user of a process has started it: its real user is its
// effective one, and its program is not setuid.
func OwnAccord(h *Host, pid int) bool {
	r, err := OpenProc(h.Path("/proc"))
	if err != nil {
		return false
	}
	defer r.Close()
	r.Name = strconv.AppendInt(r.Name[:0], int64(pid), 10)
	s, err := r.state()
	return err == nil && s.uid == s.real && !r.setuid()
}

// setuid reports whether the program of the process is setuid. A recorded node does not
// have it, nor has a thread of the kernel. A dead file server is not asked.
func (r *ProcessReader) setuid() bool {
	var st unix.Statx_t
	err := unix.Statx(r.Dir, string(r.Name)+"/exe", unix.AT_STATX_DONT_SYNC, unix.STATX_MODE, &st)
	return err == nil && st.Mode&unix.S_ISUID != 0
}
