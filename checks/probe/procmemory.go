package probe

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel reads cmdline, environ and maps of /proc/PID under the lock of the process's memory. A user
// can hold that lock for ever: one process reads, through /proc/PID/mem, a page of another that lies on
// a FUSE mount whose server does not answer. So a thread of its own reads these files. A process that
// does not answer is left, with that thread, and is not asked again until the thread has its answer.

const (
	// maxMemoryFile bounds environ: prctl(PR_SET_MM_MAP) makes an environment of any size. The list of mappings is
	// read in parts of this size.
	maxMemoryFile = 1 << 20

	// memoryLook is the time between two looks at a thread that reads. A process does not answer if the
	// thread sleeps in the kernel for longer than its user may be awaited: see allowance.
	memoryLook = 25 * time.Millisecond
	longWait   = time.Second
	shortWait  = 125 * time.Millisecond
	// mostWaits is the time for all persons, or for all others, after which shortWait applies. It counts again
	// after renewal: the monitor's worker lives long.
	mostWaits = 2 * time.Second
	renewal   = time.Minute

	// FirstUser is the first uid of persons.
	FirstUser = 1000

	// At most so many processes of a user other than root, and of all persons, may leave a thread behind.
	// Others of them are not asked until one answers.
	mostOfUser  = 2
	mostOfUsers = 8
)

// ErrUnread means that a user keeps the memory of a process from being read. Nothing is known of the
// process then; the node is not faulty.
var ErrUnread = errors.New("the memory of the process is locked, or too large")

// Locked is a process whose memory could not be read.
type Locked struct {
	PID   int
	Start uint64 // clock ticks after the machine's start
	UID   uint32 // real: a process can hide its effective one
	Name  string
}

// lockedCall is the form of a call that does not return, see [Host.SetStuck].
const lockedCall = "read the memory of process %d, started at %d, of uid %d"

// LockedCall returns this call for a process.
func LockedCall(pid int) string {
	l := describeLocked(unix.AT_FDCWD, fmt.Sprintf("/proc/%d", pid))
	return l.call()
}

func (l *Locked) call() string { return fmt.Sprintf(lockedCall, l.PID, l.Start, l.UID) }

// lockedProcess is a Locked that did not answer.
type lockedProcess struct {
	Locked

	done chan struct{} // closed when its read has returned; nil: a thread of another worker waits
	own  bool          // LockedCalls has not returned it yet
}

// waits reports whether a thread still waits for the process.
func (l *lockedProcess) waits() bool {
	select {
	case <-l.done:
		return false
	default:
		return true
	}
}

// unreadUser has the first process of a user that could not be read.
type unreadUser struct {
	*lockedProcess      // its done is closed unless a thread was left to wait for it
	kept, reported bool // kept: it counts though no thread waits
}

// memory has the processes that did not answer this worker, and how long it has waited. It is no part of a
// [Host], since the threads that wait belong to the worker.
var memory struct {
	some   atomic.Bool // it has waited long, or others have
	mu     sync.Mutex
	locked []*lockedProcess
	unread map[uint32]*unreadUser
	waited map[uint32]time.Duration // by real uid
	since  time.Time                // of waited
	buf    []byte
}

// setLocked adds processes that did not answer other workers, by their calls. Those of this worker are among
// them, so their entries stay after the answer.
func setLocked(calls []string) {
	for _, call := range calls {
		var l Locked
		if n, _ := fmt.Sscanf(call, lockedCall, &l.PID, &l.Start, &l.UID); n == 3 {
			addLocked(lockedProcess{Locked: l})
		}
	}
}

func addLocked(l lockedProcess) {
	memory.mu.Lock()
	defer memory.mu.Unlock()
	memory.some.Store(true)
	for i, o := range memory.locked {
		if o.PID == l.PID && o.Start == l.Start {
			if l.done != nil { // it is locked again
				memory.locked[i] = &l
			}
			return
		}
	}
	memory.locked = append(memory.locked, &l)
}

// LockedCalls returns the calls that wait since the last time, in the form of [Host.SetStuck].
func LockedCalls() (calls []string) {
	memory.mu.Lock()
	defer memory.mu.Unlock()
	for _, l := range memory.locked {
		if l.own && l.waits() {
			calls, l.own = append(calls, l.call()), false
		}
	}
	return calls
}

// NewLocked returns a process of each user that some read has needed and that does not answer now, or that was
// not read because of others, or is too large. It returns each user once.
func NewLocked() (list []Locked) {
	memory.mu.Lock()
	defer memory.mu.Unlock()
	for uid, u := range memory.unread {
		switch {
		case u.reported:
		case u.kept || u.waits():
			list, u.reported = append(list, u.Locked), true
		default:
			delete(memory.unread, uid)
		}
	}
	slices.SortFunc(list, func(a, b Locked) int { return a.PID - b.PID })
	return list
}

// noteUnread records a process for NewLocked. The caller holds the lock.
func noteUnread(l *lockedProcess, kept bool) {
	if u := memory.unread[l.UID]; u != nil && (u.reported || u.kept || u.waits()) {
		return
	}
	if memory.unread == nil {
		memory.unread = map[uint32]*unreadUser{}
	}
	memory.unread[l.UID] = &unreadUser{lockedProcess: l, kept: kept}
}

// allowance returns how long the reads of a user may sleep from now on. Persons have one for all their
// processes, as they can lock them; others have it for each. The caller holds the lock.
func allowance(uid uint32) time.Duration {
	if time.Since(memory.since) > renewal {
		memory.waited, memory.since = map[uint32]time.Duration{}, time.Now()
	}
	all := time.Duration(0)
	for u, d := range memory.waited {
		if (u >= FirstUser) == (uid >= FirstUser) {
			all += d
		}
	}
	limit := longWait
	if all >= mostWaits {
		limit = shortWait
	}
	if uid >= FirstUser {
		limit -= memory.waited[uid]
	}
	return limit
}

// addWait records how long a read has slept.
func addWait(uid uint32, d time.Duration) {
	memory.mu.Lock()
	defer memory.mu.Unlock()
	allowance(uid)
	if memory.waited[uid] += d; memory.waited[uid] >= shortWait {
		memory.some.Store(true)
	}
}

// refuses reports whether a process below dir must not be asked.
func refuses(dir int, process string) bool {
	r := ProcessReader{Dir: dir, Name: []byte(process)}
	t, err := r.Task(process)
	if err != nil {
		return false
	}
	pid, _ := strconv.Atoi(path.Base(process))
	memory.mu.Lock()
	defer memory.mu.Unlock()
	memory.locked = slices.DeleteFunc(memory.locked, func(l *lockedProcess) bool { return l.PID == pid && l.Start != t.Start })
	for _, l := range memory.locked {
		if l.PID == pid && l.waits() {
			l.Name = t.Name
			noteUnread(l, false)
			return true
		}
	}
	s, err := r.readState()
	if err != nil || s.real == 0 {
		return false
	}
	user, users := 0, 0
	for _, l := range memory.locked {
		if l.UID >= FirstUser && l.waits() {
			users++
		}
		if l.UID == s.real && l.waits() {
			user++
		}
	}
	if user < mostOfUser && (s.real < FirstUser || users < mostOfUsers && allowance(s.real) > 0) {
		return false
	}
	noteUnread(&lockedProcess{Locked: Locked{pid, t.Start, s.real, t.Name}}, true)
	return true
}

// memoryRead is the read of a file of a process, or of its next part. The thread that makes it has it alone
// until done is closed.
type memoryRead struct {
	dir   int
	name  string
	most  int
	fd    int // -1: not open
	end   bool
	data  []byte
	err   error
	slept time.Duration
	tid   atomic.Int32
	done  chan struct{}
	over  atomic.Bool // the first of thread and waiter to set it continues with the file
}

func (m *memoryRead) run() {
	defer close(m.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	m.tid.Store(int32(unix.Gettid()))
	var before, after unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &before)
	began := time.Now()
	m.read()
	if _ = unix.Getrusage(unix.RUSAGE_THREAD, &after); after.Nvcsw > before.Nvcsw {
		m.slept = time.Since(began)
	}
	if (m.end || !m.over.CompareAndSwap(false, true)) && m.fd >= 0 {
		unix.Close(m.fd)
		m.fd = -1
	}
}

func (m *memoryRead) read() {
	if m.fd < 0 {
		if m.fd, m.err = Open(m.dir, m.name); m.err != nil {
			m.end = true
			return
		}
	}
	for len(m.data) < m.most {
		m.data = slices.Grow(m.data, min(4<<10, m.most-len(m.data)))
		n, err := Read(m.fd, m.data[len(m.data):min(cap(m.data), m.most)])
		if err != nil || n == 0 {
			m.err, m.end = err, true
			return
		}
		m.data = m.data[:len(m.data)+n]
	}
}

// answers waits for the thread, and returns false if it sleeps for too long. A thread that waits for a
// processor only is awaited. l is set if the thread has slept.
func (m *memoryRead) answers(process string, l *lockedProcess) bool {
	describe := func() {
		if l.PID == 0 {
			l.Locked = describeLocked(m.dir, process)
		}
	}
	timer := time.NewTimer(memoryLook)
	defer timer.Stop()
	limit := time.Duration(0)
	for asleep := time.Duration(0); ; timer.Reset(memoryLook) {
		select {
		case <-m.done:
			if m.slept > 0 {
				describe()
				addWait(l.UID, m.slept)
			}
			return true
		case <-timer.C:
		}
		r := ProcessReader{Dir: unix.AT_FDCWD}
		if t, err := r.Task(fmt.Sprintf("/proc/self/task/%d", m.tid.Load())); err != nil || t.State != 'D' {
			continue
		}
		if asleep += memoryLook; asleep == memoryLook {
			describe()
			memory.mu.Lock()
			limit = allowance(l.UID)
			memory.mu.Unlock()
		}
		if asleep >= limit {
			addWait(l.UID, asleep)
			if m.over.CompareAndSwap(false, true) {
				return false
			}
			<-m.done // just now
			return true
		}
	}
}

// describeLocked describes a process that does not answer. One whose user cannot be read is a person's.
func describeLocked(dir int, process string) Locked {
	r := ProcessReader{Dir: dir, Name: []byte(process)}
	t, _ := r.Task(process)
	s, err := r.readState()
	if err != nil {
		s.real = FirstUser
	}
	pid, _ := strconv.Atoi(path.Base(process))
	return Locked{pid, t.Start, s.real, t.Name}
}

// readMemory reads up to most bytes of a file of a process, which is a path below the directory dir, and
// passes them to use, for the time of the call only. If parts is set it reads the whole file, and passes parts
// of whole lines.
func readMemory(dir int, process, file string, most int, parts bool, use func([]byte)) error {
	if memory.some.Load() && refuses(dir, process) {
		return ErrUnread
	}
	memory.mu.Lock()
	data := memory.buf[:0]
	memory.buf = nil
	memory.mu.Unlock()
	m := &memoryRead{dir: dir, name: process + "/" + file, most: most, fd: -1, data: data}
	for {
		m.done = make(chan struct{})
		m.over.Store(false)
		m.slept = 0
		go m.run()
		l := &lockedProcess{done: m.done, own: true}
		if !m.answers(process, l) {
			addLocked(*l)
			memory.mu.Lock()
			noteUnread(l, false)
			memory.mu.Unlock()
			return ErrUnread
		}
		if m.err != nil {
			break
		}
		part := m.data
		if parts && !m.end {
			part = part[:bytes.LastIndexByte(part, '\n')+1]
		}
		use(part)
		if m.data = append(m.data[:0], m.data[len(part):]...); m.end {
			break
		}
		if !parts || len(part) == 0 {
			unix.Close(m.fd)
			break
		}
	}
	memory.mu.Lock()
	memory.buf = m.data
	memory.mu.Unlock()
	return m.err
}

// ReadMemoryFile passes cmdline, environ or maps of a process to use, for the time of the call only; maps in
// several calls. The error is [ErrUnread] if the process does not answer, and [fs.ErrNotExist] if it has ended.
func ReadMemoryFile(h *Host, pid int, file string, use func([]byte)) error {
	process, maps, large := fmt.Sprintf("/proc/%d", pid), file == "maps", false
	err := readMemory(unix.AT_FDCWD, h.Path(process), file, maxMemoryFile+1, maps, func(data []byte) {
		if large = len(data) > maxMemoryFile && !maps; !large {
			use(data)
		}
	})
	switch {
	case large:
		l := lockedProcess{Locked: describeLocked(unix.AT_FDCWD, h.Path(process))}
		memory.mu.Lock()
		noteUnread(&l, true)
		memory.mu.Unlock()
		err = ErrUnread
	case err == nil:
		return nil
	case errors.Is(err, unix.ESRCH): // between open and read
		err = fs.ErrNotExist
	}
	return &fs.PathError{Op: "read", Path: process + "/" + file, Err: err}
}
