package jobscan

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// Slurmds returns a descriptor of each slurmd of root that runs on this host, by its PID; poll(2) shows
// its end. The descriptor is -1 where the kernel has none (before Linux 5.3), or a filter of system calls
// refuses it: systemd 239 does not know pidfd_open. A recorded node has no slurmd.
func Slurmds(h *probe.Host) (map[int]int, error) {
	if h.Recorded() { // its processes are not those of this machine
		return nil, nil
	}
	names, err := h.Names("/proc")
	if err != nil {
		return nil, err
	}
	parents := map[int]int{}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if comm, err := h.ReadValue("/proc/" + name + "/comm"); err != nil || comm != "slurmd" || unix.Stat(h.Path("/proc/"+name), &st) != nil || st.Uid != 0 {
			continue
		}
		line, err := h.ReadValue("/proc/" + name + "/stat")
		if t, ok := probe.ParseTask([]byte(line)); err == nil && ok && t.State != 'Z' { // it has ended already
			parents[pid] = t.Parent
		}
	}
	found := map[int]int{}
	for pid, parent := range parents {
		if _, forked := parents[parent]; forked { // it becomes another program, and ends with that
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		switch {
		case err == nil:
			found[pid] = fd
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
			found[pid] = -1
		case !errors.Is(err, unix.ESRCH):
			return found, fmt.Errorf("open slurmd with PID %d: %w", pid, err)
		}
	}
	return found, nil
}

// AwaitEnd waits until one of some processes ends, at most for limit, and returns its PID, 0 for none. It
// does not see the end of a process whose descriptor is -1.
func AwaitEnd(fds map[int]int, limit time.Duration) (pid int, err error) {
	var list []unix.PollFd
	for _, fd := range fds {
		list = append(list, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	if _, err := unix.Poll(list, int(limit.Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
		return 0, fmt.Errorf("wait for the end of slurmd: %w", err)
	}
	for pid, fd := range fds {
		for _, p := range list {
			if int(p.Fd) == fd && p.Revents != 0 {
				return pid, nil
			}
		}
	}
	return 0, nil
}
