package probe

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Alive reports whether a process still exists and is not a zombie.
func Alive(h *Host, pid int) bool {
	var buf [4 << 10]byte
	n, err := ReadAt(unix.AT_FDCWD, h.Path("/proc/"+strconv.Itoa(pid)+"/status"), buf[:])
	if err != nil {
		return false
	}
	s, ok := parseStatus(buf[:n])
	return ok && !s.dead
}

// Kill sends SIGKILL to a process of [Processes], unless its PID was reused: another owner, program
// or, if its [Usage] was read, start time. Below another root there is nothing to kill. Some
// processes are never killed, see [Spared].
func Kill(h *Host, p Process) error {
	if why := Spared(h, p.PID); why != "" {
		return errors.New(why)
	}
	return seize(h, p, func(pidfd int) error { return Send(p.PID, pidfd, unix.SIGKILL) })
}

// Spared returns why no check may end a process, whatever the site's line says; "" if there is no
// such reason. It spares init, this program's processes and their ancestors (slurmd), kernel
// threads, and Slurm's daemons, whose end would end all jobs of the node.
func Spared(h *Host, pid int) (why string) {
	if pid <= 1 {
		return SparedSelf
	}
	if h.Recorded() { // another node, whose PIDs are unrelated to this process
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

// SparedSelf is the reason for init and this program.
const SparedSelf = "init and nhc-gpu itself are not killed"

// sameProgram reports whether a process runs the same program as this process.
func (r *ProcessReader) sameProgram(pid int) bool {
	var own, other unix.Stat_t
	return unix.Stat("/proc/self/exe", &own) == nil && unix.Fstatat(r.Dir, strconv.Itoa(pid)+"/exe", &other, 0) == nil &&
		own.Dev == other.Dev && own.Ino == other.Ino
}

// Send sends a signal to a process that [Hold] holds.
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

// Renice sets the nice value of a process of [Processes], within the bounds of the kernel, under
// the conditions of [Kill]. It returns the value before and after.
func Renice(h *Host, p Process, nice int) (before, after int, err error) {
	err = seize(h, p, func(int) error {
		if before, err = readNice(p.PID); err != nil {
			return err
		}
		if err := unix.Setpriority(unix.PRIO_PROCESS, p.PID, nice); err != nil {
			return err
		}
		after, err = readNice(p.PID)
		return err
	})
	return before, after, err
}

// readNice reads the nice value of a process. The system call returns 20 minus that, so that it is
// never negative (getpriority(2), C library/kernel differences).
func readNice(pid int) (int, error) {
	n, err := unix.Getpriority(unix.PRIO_PROCESS, pid)
	return 20 - n, err
}

// seize calls act if a process is still the same. act gets a descriptor that keeps its PID from
// being reused, or -1 on kernels without them (before 5.3).
func seize(h *Host, p Process, act func(pidfd int) error) error {
	return Hold(h, p.PID, func() error { return checkUnchanged(h, p) }, act)
}

// Hold calls act if same returns nil, while a descriptor keeps the PID from being reused.
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

// checkUnchanged returns an error if a process is not the same any more.
func checkUnchanged(h *Host, p Process) error {
	dir, err := Open(unix.AT_FDCWD, "/proc")
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	r := ProcessReader{Dir: dir}
	now, err := r.read(p.PID)
	// A process that ends loses its command line before it is dead.
	ends := !now.Unread && strings.HasPrefix(now.Args, "[") && !strings.HasPrefix(p.Args, "[")
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

// ErrReplaced means that a PID was reused since the process was judged.
var ErrReplaced = errors.New("the PID was reused")
