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

// ProcStat is what /proc/PID/stat says of a process. Reading it never blocks,
// also when the process itself is stuck; cmdline and environ could, and are
// never read here.
type ProcStat struct {
	State   string // "R", "S", "D", "Z" ...
	Session int
	Start   uint64 // clock ticks since boot: with the pid it names a process for good
}

// ReadStat reads /proc/PID/stat.
func ReadStat(pid int) (ProcStat, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat") //nolint:forbidigo // stat of a process never blocks
	if err != nil {
		return ProcStat{}, err
	}
	return ParseStat(data)
}

// ParseStat reads the fields behind the last ")": the command name before it
// may hold anything.
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

// Whereabouts tells the state of a process and the kernel function it sleeps
// in, "" if the kernel does not say. In a Go program the main thread is seldom
// the one that made the call that hangs: of all threads the one counts that
// sleeps uninterruptibly, else one that is not merely idle.
func Whereabouts(pid int) (state, wchan string) {
	dir, err := os.Open(fmt.Sprintf("/proc/%d/task", pid)) //nolint:forbidigo // the same
	if err != nil {
		return "", ""
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, tid := range names {
		task := fmt.Sprintf("/proc/%d/task/%s/", pid, tid)
		data, err := os.ReadFile(task + "stat") //nolint:forbidigo // the same
		if err != nil {
			continue
		}
		st, err := ParseStat(data)
		if err != nil {
			continue
		}
		w, _ := os.ReadFile(task + "wchan") //nolint:forbidigo // the same
		name := string(w)
		if name == "0" {
			name = ""
		}
		switch {
		case st.State == "D":
			return st.State, name
		case state == "" || idle(wchan) && !idle(name):
			state, wchan = st.State, name
		}
	}
	return state, wchan
}

// idle says whether a wait channel is one where threads of a Go program sleep
// that have nothing to do.
func idle(wchan string) bool {
	for _, w := range []string{"futex", "poll", "nanosleep", "sigtimedwait", "pipe_read"} {
		if strings.Contains(wchan, w) {
			return true
		}
	}
	return wchan == ""
}

// Alive says whether the process with that pid and start time still exists and
// is no zombie.
func Alive(pid int, start uint64) bool {
	st, err := ReadStat(pid)
	return err == nil && st.Start == start && !Ended(pid, st)
}

// Ended says whether nothing but the entry of a process is left. A killed
// process whose first thread is a zombie may have another that hangs.
func Ended(pid int, st ProcStat) bool {
	if st.State != "Z" && st.State != "X" {
		return false
	}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)) //nolint:forbidigo // the same
	return err != nil || len(tasks) <= 1
}

// allPids lists the processes there are, in the order of /proc.
func allPids() (pids []int) {
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

// InSession lists the living processes of a session, in the order of /proc.
func InSession(sid int) (pids []int) {
	for _, pid := range allPids() {
		if st, err := ReadStat(pid); err == nil && st.Session == sid && !Ended(pid, st) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Graces of an abandoned worker: from SIGTERM to SIGKILL, and from SIGKILL to
// walking away. Together they stay well below the second that a run may take
// beyond its deadline.
const (
	TermGrace = 150 * time.Millisecond
	EndGrace  = time.Second // from the end of the descriptors of a worker or a bash to its own
	KillGrace = 250 * time.Millisecond
)

// dcgmGrace is the first of them for DCGM, whose engine carries a diagnostic out in
// another session and goes on with it beside the next job unless it is told not to:
// dcgmi starts another dcgmi for that when it has SIGTERM.
const dcgmGrace = time.Second

// TermGraceOf is how long the commands of a lane have after SIGTERM.
func TermGraceOf(lane checks.Lane) time.Duration {
	if lane == checks.DCGM {
		return dcgmGrace
	}
	return TermGrace
}

// busyGrace is what a killed process gets beyond that if it is runnable: on a
// node with more work than processors it has not yet come to its own death.
const busyGrace = 350 * time.Millisecond

// EndSession ends every process of a worker's session: SIGTERM, grace, SIGKILL, a short
// grace; it returns the pids that are left. The commands, which are in process groups of
// their own, come before the worker: it reads their output, and one that heeds SIGTERM
// and says so would have SIGPIPE instead.
func EndSession(sid int, grace time.Duration) []int {
	asked := signalCommands(sid, nil)
	if len(asked) > 0 {
		await(grace, func() []int { return commandsOf(sid) })
		grace = TermGrace
	}
	_ = unix.Kill(-sid, unix.SIGTERM)
	if len(asked) > 0 {
		signalCommands(sid, asked) // what it has started since
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
	if slices.ContainsFunc(left, runnable) {
		left = await(busyGrace, inThere)
	}
	return left
}

func runnable(pid int) bool {
	state, _ := Whereabouts(pid)
	return state == "R"
}

// commandsOf lists what a session has outside the process group of its leader.
func commandsOf(sid int) []int {
	return slices.DeleteFunc(InSession(sid), func(pid int) bool {
		group, err := unix.Getpgid(pid)
		return err != nil || group == sid
	})
}

// signalCommands asks them to end, and returns them. Each is asked once: one that heeds
// the signal is not to be disturbed at that.
func signalCommands(sid int, asked []int) []int {
	pids := commandsOf(sid)
	for _, pid := range pids {
		if !slices.Contains(asked, pid) {
			_ = unix.Kill(pid, unix.SIGTERM)
		}
	}
	return pids
}

// await waits until no process is left, or for grace; it returns those that are.
func await(grace time.Duration, list func() []int) []int {
	for end := time.Now().Add(grace); ; time.Sleep(5 * time.Millisecond) {
		left := list()
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
	}
}

// EndOthers is the end of a worker whose supervisor is gone in the middle of a request,
// as when slurmd kills it: what the worker has started is in its session, outlives it,
// and would go on beside the next job. busy says that the request is still under way:
// one that heeds SIGTERM, as a diagnostic of DCGM's engine, has a moment for that.
func EndOthers(busy *atomic.Bool) {
	signal.Notify(make(chan os.Signal, 1), unix.SIGTERM) // it is of its own session
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
	for range 3 { // one may have started another meanwhile
		for _, pid := range others() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}
