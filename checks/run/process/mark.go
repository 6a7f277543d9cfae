package process

import (
	"crypto/rand"
	"encoding/binary"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Guarded is a shell that its guard ends if the supervisor dies.
type Guarded struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // with PID it identifies one process
	Marks Marks  `json:"marks"`
}

// Marks number the commands of a shell. Each process of a line carries the line's number. setsid(1)
// and a double fork escape from the session and the parents, but the mark is a resource limit,
// which every child inherits: the soft limit on file locks. Linux has not enforced it since 2.4.25.
//
// The upper bits identify the shell, the lower bits are a counter.
type Marks uint64

const markBits = 20 // of the counter

// NewMarks starts the marks of a run at a random number.
func NewMarks() Marks {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return Marks(binary.NativeEndian.Uint64(b[:])) >> 2 &^ (1<<markBits - 1)
}

// Set marks a process. Its children inherit the mark.
func (m Marks) Set(pid, number int) {
	var now unix.Rlimit
	if unix.Prlimit(pid, unix.RLIMIT_LOCKS, nil, &now) == nil {
		now.Cur = uint64(m) + uint64(number)
		_ = unix.Prlimit(pid, unix.RLIMIT_LOCKS, &now, nil) // without a mark its session identifies the process
	}
}

// Of returns the number that a process carries. ok is false if another program set its limit.
func (m Marks) Of(pid int) (number int, ok bool) {
	var now unix.Rlimit
	if m == 0 || unix.Prlimit(pid, unix.RLIMIT_LOCKS, nil, &now) != nil {
		return 0, false
	}
	return int(now.Cur & (1<<markBits - 1)), now.Cur&^(1<<markBits-1) == uint64(m)
}

// OwnedBy lists the processes of a shell's current line: the shell, the processes with the line's
// number, and the processes of the shell's session without a number. Background processes of
// earlier lines are services and continue to run.
func (g Guarded) OwnedBy(number int) (pids []int) {
	for _, pid := range listPIDs() {
		its, marked := g.Marks.Of(pid)
		if marked && its != number && pid != g.PID {
			continue
		}
		st, err := ReadStat(pid)
		if err == nil && (marked || st.Session == g.PID) && !Ended(pid, st) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// End ends the current line of a shell, and the shell: SIGTERM, a short grace, SIGKILL, a short
// grace. bash itself gets no grace, because its traps would write more events. End returns the PIDs
// that still exist.
func (g Guarded) End(number int) (left []int) {
	signalled := map[int]bool{g.PID: true}
	_ = unix.Kill(g.PID, unix.SIGKILL)
	for stop := time.Now().Add(TermGrace); time.Now().Before(stop); time.Sleep(5 * time.Millisecond) {
		if left = g.OwnedBy(number); len(left) == 0 {
			return nil
		}
		for _, pid := range left { // only once: a process that is cleaning up must not be interrupted
			if !signalled[pid] {
				signalled[pid] = true
				_ = unix.Kill(pid, unix.SIGTERM)
			}
		}
	}
	grace := KillGrace
	for stop := time.Now().Add(grace); ; time.Sleep(5 * time.Millisecond) {
		left = g.OwnedBy(number)
		for _, pid := range left { // one may have started another in the meantime
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		switch {
		case len(left) == 0:
			return nil
		case time.Now().Before(stop):
		case grace == KillGrace && slices.ContainsFunc(left, isRunnable):
			grace += busyGrace
			stop = stop.Add(busyGrace)
		default:
			return left
		}
	}
}

// EndOrphaned ends a shell whose supervisor has died, and its current line.
func (g *Guarded) EndOrphaned() {
	if g == nil || !Alive(g.PID, g.Start) {
		return
	}
	number, _ := g.Marks.Of(g.PID)
	g.End(number)
}
