package probe

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Alive says whether a process still exists and is no zombie.
func Alive(h *Host, pid int) bool {
	var buf [4 << 10]byte
	n, err := ReadAt(unix.AT_FDCWD, h.Path("/proc/"+strconv.Itoa(pid)+"/status"), buf[:])
	if err != nil {
		return false
	}
	s, ok := parseStatus(buf[:n])
	return ok && !s.dead
}

// Kill sends SIGKILL to a process of [Processes], unless its pid has gone
// to another one meanwhile: another owner, program or, if its [Usage] has been
// read, time of start. Below another root there is nothing to kill. Some are
// never killed, see [Spared].
func Kill(h *Host, p Process) error {
	if why := Spared(h, p.PID); why != "" {
		return errors.New(why)
	}
	return seize(h, p, func(pidfd int) error { return Send(p.PID, pidfd, unix.SIGKILL) })
}

// Spared says why no check ends a process, whatever the site's line asks for; ""
// if there is no such reason: it is init, one of this program's or above it
// (slurmd), a thread of the kernel, or a daemon of Slurm's, with which all jobs
// of the node would end.
func Spared(h *Host, pid int) (why string) {
	if pid <= 1 {
		return SparedSelf
	}
	if h.Recorded() { // another node's: ours has a number of its own there
		return ""
	}
	if pid == os.Getpid() || pid == os.Getppid() {
		return SparedSelf
	}
	r, err := OpenProc(h.Path("/proc"))
	if err != nil {
		return ""
	}
	defer r.Close()
	for at := os.Getppid(); at > 1; {
		t, err := r.Task(strconv.Itoa(at))
		if err != nil {
			break
		}
		if at = t.Parent; at == pid {
			return SparedSelf
		}
	}
	t, err := r.Task(strconv.Itoa(pid))
	if err != nil {
		return "" // it has ended
	}
	uid, err := r.Owner(pid)
	switch {
	case err != nil:
		return ""
	case t.kernel:
		return "threads of the kernel are not killed"
	case uid == 0 && (t.Name == "slurmstepd" || t.Name == "slurmd" || t.Name == "slurmctld" || t.Name == "slurmdbd"):
		return t.Name + " is not killed: jobs depend on it"
	case t.Parent == os.Getppid() && t.Parent > 1 && r.sameProgram(pid):
		return SparedSelf
	}
	return ""
}

// SparedSelf is why neither init nor this program is killed.
const SparedSelf = "init and nhc-gpu itself are not killed"

// sameProgram reports whether a process runs the program that this one is.
func (r *ProcessReader) sameProgram(pid int) bool {
	var own, other unix.Stat_t
	return unix.Stat("/proc/self/exe", &own) == nil && unix.Fstatat(r.Dir, strconv.Itoa(pid)+"/exe", &other, 0) == nil &&
		own.Dev == other.Dev && own.Ino == other.Ino
}

// Send gives a signal to a process that is held.
func Send(pid, pidfd int, sig unix.Signal) error {
	var err error
	if pidfd >= 0 {
		err = unix.PidfdSendSignal(pidfd, sig, nil, 0)
	} else {
		err = unix.Kill(pid, sig)
	}
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// Renice gives a process of [Processes] another nice value, within the
// bounds of the kernel, under the conditions of [Kill]. It returns the
// value before and after.
func Renice(h *Host, p Process, nice int) (before, after int, err error) {
	err = seize(h, p, func(int) error {
		if before, err = niceValue(p.PID); err != nil {
			return err
		}
		if err := unix.Setpriority(unix.PRIO_PROCESS, p.PID, nice); err != nil {
			return err
		}
		after, err = niceValue(p.PID)
		return err
	})
	return before, after, err
}

// niceValue reads the nice value of a process. The system call returns 20 minus
// that, so that it is never negative (getpriority(2), C library/kernel differences).
func niceValue(pid int) (int, error) {
	n, err := unix.Getpriority(unix.PRIO_PROCESS, pid)
	return 20 - n, err
}

// seize calls act if a process is the one it was, with a descriptor of it that
// no other process can inherit, or -1 on kernels that have none (before 5.3).
func seize(h *Host, p Process, act func(pidfd int) error) error {
	return Hold(h, p.PID, func() error { return unchanged(h, p) }, act)
}

// Hold calls act if same finds no fault with the process, while a descriptor
// keeps its pid from going to another one.
func Hold(h *Host, pid int, same func() error, act func(pidfd int) error) error {
	if h.Recorded() {
		return os.ErrProcessDone
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	switch {
	case err == nil:
		defer unix.Close(pidfd)
	case errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL):
		return os.ErrProcessDone
	default:
		pidfd = -1
	}
	if err := same(); err != nil {
		return err
	}
	return act(pidfd)
}

// unchanged is an error if a process is not the one it was.
func unchanged(h *Host, p Process) error {
	dir, err := Open(unix.AT_FDCWD, "/proc")
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	r := ProcessReader{Dir: dir}
	now, err := r.read(p.PID)
	// One that ends loses its command line before it is dead.
	ends := strings.HasPrefix(now.Args, "[") && !strings.HasPrefix(p.Args, "[")
	if err != nil || ends || !Alive(h, p.PID) {
		return os.ErrProcessDone
	}
	if now.UID != p.UID || now.Command() != p.Command() {
		return ErrReplaced
	}
	u, err := readUsage(h, p)
	switch {
	case err != nil && !Alive(h, p.PID): // just now
		return os.ErrProcessDone
	case err != nil:
		return err
	}
	if c, ok := Remembered[Usage](h, usageKey(p)); ok && c.Err == nil && u.Start != c.Value.Start {
		return ErrReplaced
	}
	if listed := *Kept[uint64](h, listedAt); listed > 0 && u.Start > listed {
		return ErrReplaced
	}
	return nil
}

// ErrReplaced says that a PID belongs to another process than the one that was judged.
var ErrReplaced = errors.New("it is another process by now")
