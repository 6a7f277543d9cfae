// Package process finds, marks and ends processes, for the supervisor and its workers.
package process

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// ProcStat is the content of /proc/PID/stat. Reading it never blocks, even if the process itself is
// stuck. cmdline and environ can block, so this package never reads them.
type ProcStat struct {
	State   string // "R", "S", "D", "Z" ...
	Session int
	Start   uint64 // clock ticks since boot; with the PID it identifies a process uniquely
}

// ReadStat reads /proc/PID/stat.
func ReadStat(pid int) (ProcStat, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat") //nolint:forbidigo // stat of a process never blocks
	if err != nil {
		return ProcStat{}, err
	}
	return ParseStat(data)
}

// ParseStat reads the fields behind the last ")": the command name before it may contain any
// character.
func ParseStat(data []byte) (ProcStat, error) {
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return ProcStat{}, fmt.Errorf("parse stat: no command name in %.40q", data)
	}
	f := strings.Fields(string(data[end+1:]))
	if len(f) < 20 {
		return ProcStat{}, fmt.Errorf("parse stat: %d fields behind the name, want 20", len(f))
	}
	session, err := strconv.Atoi(f[3])
	if err != nil {
		return ProcStat{}, fmt.Errorf("parse stat: session %q", f[3])
	}
	start, err := strconv.ParseUint(f[19], 10, 64)
	if err != nil {
		return ProcStat{}, fmt.Errorf("parse stat: start time %q", f[19])
	}
	return ProcStat{State: f[0], Session: session, Start: start}, nil
}

// Whereabouts returns the state of a process and the kernel function that it sleeps in, "" if the
// kernel does not show it. In a Go program the main thread is seldom the one with the blocked call:
// Whereabouts prefers a thread that sleeps uninterruptibly, else one that is not idle. It passes over
// those of [LockedReads].
func Whereabouts(pid int) (state, wchan string) {
	for _, t := range listThreads(pid) {
		switch {
		case t.state == "D":
			if t.readsMemoryOf() == 0 {
				return t.state, t.wchan
			}
		case state == "" || isIdle(wchan) && !isIdle(t.wchan):
			state, wchan = t.state, t.wchan
		}
	}
	return state, wchan
}

// LockedReads lists the processes that keep the threads of a process from ending, since a user has locked
// their memory. It lists none if another thread sleeps uninterruptibly, too: the process then hangs.
func LockedReads(pid int) (locked []int) {
	for _, t := range listThreads(pid) {
		if of := t.readsMemoryOf(); of != 0 {
			locked = append(locked, of)
		} else if t.state == "D" {
			return nil
		}
	}
	return locked
}

// thread is a thread of a process.
type thread struct {
	dir          string // /proc/PID/task/TID/
	state, wchan string
}

func listThreads(pid int) (threads []thread) {
	dir, err := os.Open(fmt.Sprintf("/proc/%d/task", pid)) //nolint:forbidigo // the same
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, tid := range names {
		t := thread{dir: fmt.Sprintf("/proc/%d/task/%s/", pid, tid)}
		data, err := os.ReadFile(t.dir + "stat") //nolint:forbidigo // the same
		if err != nil {
			continue
		}
		st, err := ParseStat(data)
		if err != nil {
			continue
		}
		w, _ := os.ReadFile(t.dir + "wchan") //nolint:forbidigo // the same
		if t.state, t.wchan = st.State, string(w); t.wchan == "0" {
			t.wchan = ""
		}
		threads = append(threads, t)
	}
	return threads
}

// memoryFile is a file that the kernel reads under the lock of a process's memory.
var memoryFile = checks.Lazily(`/proc/(\d+)/(?:cmdline|environ|maps)$`)

// readsMemoryOf returns the process whose memory the thread waits for, 0 if it waits for something else.
func (t *thread) readsMemoryOf() (pid int) {
	data, _ := os.ReadFile(t.dir + "syscall") //nolint:forbidigo // the same
	var call, fd int
	if n, _ := fmt.Sscanf(string(data), "%d 0x%x", &call, &fd); n < 2 || call != unix.SYS_READ {
		return 0
	}
	name, _ := os.Readlink(fmt.Sprintf("%sfd/%d", t.dir, fd)) //nolint:forbidigo // the link of the kernel alone
	if m := memoryFile().FindStringSubmatch(name); m != nil {
		pid, _ = strconv.Atoi(m[1])
	}
	return pid
}

// Idle reports whether no thread of a Go program waits for anything in the kernel but for work or a CPU.
func Idle(pid int) bool {
	state, wchan := Whereabouts(pid)
	return (state == "R" || state == "S") && isIdle(wchan)
}

// isIdle reports whether idle threads of a Go program sleep in this wait channel.
func isIdle(wchan string) bool {
	for _, w := range []string{"futex", "poll", "nanosleep", "sigtimedwait", "pipe_read"} {
		if strings.Contains(wchan, w) {
			return true
		}
	}
	return wchan == ""
}

// Alive reports whether the process with that PID and start time still exists and is not a zombie.
func Alive(pid int, start uint64) bool {
	st, err := ReadStat(pid)
	return err == nil && st.Start == start && !Ended(pid, st)
}

// Ended reports whether only the entry of a process is left. A killed process whose first thread is
// a zombie may have another thread that hangs.
func Ended(pid int, st ProcStat) bool {
	if st.State != "Z" && st.State != "X" {
		return false
	}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)) //nolint:forbidigo // the same
	return err != nil || len(tasks) <= 1
}

// listPIDs lists all processes in the order of /proc.
func listPIDs() (pids []int) {
	dir, err := os.Open("/proc") //nolint:forbidigo // a directory of the kernel alone
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// InSession lists the living processes of a session in the order of /proc.
func InSession(sid int) (pids []int) {
	for _, pid := range listPIDs() {
		if st, err := ReadStat(pid); err == nil && st.Session == sid && !Ended(pid, st) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// These are the graces of an abandoned worker: from SIGTERM to SIGKILL, and from SIGKILL until the
// supervisor stops waiting. Together they stay well below the second that a run may take beyond its
// deadline.
const (
	TermGrace = 150 * time.Millisecond
	EndGrace  = time.Second // from the end of the descriptors of a worker or a bash to its exit
	KillGrace = 250 * time.Millisecond
)

// dcgmGrace is the grace after SIGTERM for DCGM. Its engine runs a diagnostic in another session
// and would continue it beside the next job. At SIGTERM dcgmi starts another dcgmi that stops the
// diagnostic.
const dcgmGrace = time.Second

// TermGraceOf returns the time that the commands of a lane get after SIGTERM.
func TermGraceOf(lane checks.Lane) time.Duration {
	if lane == checks.DCGM {
		return dcgmGrace
	}
	return TermGrace
}

// busyGrace is the additional time for a killed process that is runnable: on a node with more work
// than processors it may not have run since the signal.
const busyGrace = 350 * time.Millisecond

// EndSession ends every process of a worker's session: SIGTERM, grace, SIGKILL, a short grace. It
// returns the PIDs that are left. The commands, which are in their own process groups, get the
// signal before the worker: the worker reads their output, and without it a command that prints at
// SIGTERM would get SIGPIPE.
func EndSession(sid int, grace time.Duration) []int {
	asked := signalCommands(sid, nil)
	if len(asked) > 0 {
		await(grace, func() []int { return listCommands(sid) })
		grace = TermGrace
	}
	_ = unix.Kill(-sid, unix.SIGTERM)
	if len(asked) > 0 {
		signalCommands(sid, asked) // commands that the worker has started since
	}
	inThere := func() []int { return InSession(sid) }
	if left := await(grace, inThere); len(left) == 0 {
		return nil
	}
	_ = unix.Kill(-sid, unix.SIGKILL)
	for _, pid := range InSession(sid) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	left := await(KillGrace, inThere)
	if slices.ContainsFunc(left, isRunnable) {
		left = await(busyGrace, inThere)
	}
	return left
}

func isRunnable(pid int) bool {
	state, _ := Whereabouts(pid)
	return state == "R"
}

// listCommands lists the processes of a session outside the process group of its leader.
func listCommands(sid int) []int {
	return slices.DeleteFunc(InSession(sid), func(pid int) bool {
		group, err := unix.Getpgid(pid)
		return err != nil || group == sid
	})
}

// signalCommands sends SIGTERM to the commands and returns them. It signals each only once, so that
// a process that is cleaning up is not interrupted.
func signalCommands(sid int, asked []int) []int {
	pids := listCommands(sid)
	for _, pid := range pids {
		if !slices.Contains(asked, pid) {
			_ = unix.Kill(pid, unix.SIGTERM)
		}
	}
	return pids
}

// await waits until no process is left, at most for grace. It returns the processes that are left.
func await(grace time.Duration, list func() []int) []int {
	for end := time.Now().Add(grace); ; time.Sleep(5 * time.Millisecond) {
		left := list()
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
	}
}

// EndOthers ends the processes of a worker whose supervisor died during a request, for example
// because slurmd killed it. The processes that the worker started are in its session, outlive it,
// and would run beside the next job. busy is true while the request is in progress: a command that
// handles SIGTERM, such as a diagnostic of DCGM's engine, gets a moment to end.
func EndOthers(busy *atomic.Bool) {
	signal.Notify(make(chan os.Signal, 1), unix.SIGTERM) // the worker is in the session that it signals
	self := os.Getpid()
	others := func() []int {
		return slices.DeleteFunc(InSession(self), func(pid int) bool { return pid == self })
	}
	_ = unix.Kill(-self, unix.SIGTERM)
	signalCommands(self, nil)
	grace := TermGrace
	if len(os.Args) > 1 {
		grace = TermGraceOf(checks.Lane(os.Args[1]))
	}
	for end := time.Now().Add(grace); time.Now().Before(end) && (busy.Load() || len(others()) > 0); {
		time.Sleep(5 * time.Millisecond)
	}
	for range 3 { // one may have started another in the meantime
		for _, pid := range others() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// EndForked ends the worker of a vendor's library with the processes that the library has forked: they are in its
// process group, and commands are not.
func EndForked() {
	if len(os.Args) > 1 && checks.Lane(os.Args[1]).Vendor() && unix.Getpgrp() == os.Getpid() {
		_ = unix.Kill(0, unix.SIGKILL)
	}
}
