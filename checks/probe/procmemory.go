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
	// thread sleeps in the kernel for longer than its user may be awaited: see allowance. A read that takes less
	// than leastWait is no wait: threads of a healthy process contend for the lock, too.
	memoryLook = 25 * time.Millisecond
	leastWait  = 2 * time.Millisecond
	longWait   = time.Second
	shortWait  = 125 * time.Millisecond
	// mostWaits is the time for all users from FirstUser on, or for all others, after which shortWait applies. After
	// twice that time the worker waits only for users that have caused no wait yet, for one look; after three times
	// for none. It counts again after renewal: the monitor's worker lives long.
	mostWaits = 2 * time.Second
	renewal   = time.Minute

	// FirstUser is the first uid of ordinary users.
	FirstUser = 1000
	// noUser answers for a process whose user cannot be read.
	noUser = 1<<32 - 1

	// At most so many processes of a user other than root, and of all ordinary users, may leave a thread behind.
	// Others of them are not asked until one answers, but for the first of a user.
	mostOfUser  = 2
	mostOfUsers = 8
	mostThreads = 32
)

// ErrUnread means that a user keeps the memory of a process from being read. Nothing is known of the
// process then; the node is not faulty.
var ErrUnread = errors.New("the memory of the process is locked, or too large")

// Locked is a process whose memory could not be read.
type Locked struct {
	PID   int
	Start uint64 // clock ticks after the machine's start
	UID   uint32 // the user who answers for it, see [ProcessReader.answerer]
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

	done  chan struct{} // closed when its read has returned; nil: a thread of another worker waits
	since time.Time     // of that worker's
	own   bool          // LockedCalls has not returned it yet
}

// waits reports whether a thread still waits for the process. Whether that of another worker has its answer is not
// known: the process is asked again after renewal.
func (l *lockedProcess) waits() bool {
	if l.done == nil {
		return time.Since(l.since) < renewal
	}
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
	some   atomic.Bool // a process may have to be refused
	mu     sync.Mutex
	locked []*lockedProcess
	looked time.Time // when those that have ended were removed
	unread map[uint32]*unreadUser
	waits
	idle   *memoryRead
	reader ProcessReader
}

// waits has how long reads have slept since a time.
type waits struct {
	since           time.Time
	by              map[uint32]time.Duration // the user who answers for the process
	last            map[uint32]Locked        // the last process of a person that was awaited
	persons, others time.Duration            // the sums
	long            bool                     // a person has shortWait
}

// setLocked adds processes below a directory that did not answer other workers, by their calls. Those of this
// worker are among them, so their entries stay after the answer.
func setLocked(proc string, calls []string) {
	for _, call := range calls {
		l := lockedProcess{since: time.Now()}
		if n, _ := fmt.Sscanf(call, lockedCall, &l.PID, &l.Start, &l.UID); n == 3 && l.lives(unix.AT_FDCWD, proc) {
			addLocked(l)
		}
	}
}

// lives reports whether the process has not ended.
func (l *lockedProcess) lives(dir int, proc string) bool {
	r := ProcessReader{Dir: dir}
	t, err := r.Task(path.Join(proc, strconv.Itoa(l.PID)))
	return err == nil && t.Start == l.Start
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
// not read because of others, or is too large, or that was slow, so that those of other users were not read. It
// returns each user once.
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
		memory.waits = waits{since: time.Now(), by: map[uint32]time.Duration{}, last: map[uint32]Locked{}}
	}
	all, own := memory.others, time.Duration(0)
	if uid >= FirstUser {
		all, own = memory.persons, memory.by[uid]
	}
	limit := longWait
	if all >= mostWaits {
		limit = shortWait
	}
	switch {
	case uid < FirstUser:
	case all >= 3*mostWaits, all >= 2*mostWaits && own > 0:
		return 0
	case all >= 2*mostWaits:
		return memoryLook
	}
	return limit - own
}

// mayRefuse reports whether any process must not be asked. The caller holds the lock.
func mayRefuse() bool {
	allowance(0) // counts again
	return memory.long || memory.persons >= mostWaits || slices.ContainsFunc(memory.locked, (*lockedProcess).waits)
}

// addWait records how long a read of a process has slept.
func addWait(l Locked, d time.Duration) {
	memory.mu.Lock()
	defer memory.mu.Unlock()
	allowance(l.UID)
	if memory.by[l.UID] += d; l.UID < FirstUser {
		memory.others += d
	} else {
		memory.persons += d
		memory.last[l.UID] = l
		memory.long = memory.long || memory.by[l.UID] >= shortWait
	}
	memory.some.Store(mayRefuse())
}

// refuses reports whether a process below dir must not be asked.
func refuses(dir int, process string) bool {
	memory.mu.Lock()
	defer memory.mu.Unlock()
	if now := time.Now(); now.Sub(memory.looked) > time.Second {
		memory.looked = now
		memory.locked = slices.DeleteFunc(memory.locked, func(l *lockedProcess) bool {
			return (l.done == nil || !l.waits()) && !l.lives(dir, path.Dir(process))
		})
	}
	if !mayRefuse() {
		memory.some.Store(false)
		return false
	}
	r := &memory.reader
	r.Dir, r.Name = dir, append(r.Name[:0], process...)
	t, err := r.Task(process)
	if err != nil || t.kernel {
		return false
	}
	pid, _ := strconv.Atoi(path.Base(process))
	for _, l := range memory.locked {
		if l.PID == pid && l.Start == t.Start && l.waits() {
			l.Name = t.Name
			noteUnread(l, false)
			return true
		}
	}
	uid, err := r.answerer()
	if err != nil || uid == 0 {
		return false
	}
	user, users := 0, 0
	for _, l := range memory.locked {
		if !l.waits() {
			continue
		}
		if l.UID >= FirstUser {
			users++
		}
		if l.UID == uid {
			user++
		}
	}
	few := users < mostOfUsers || user == 0 && users < mostThreads
	if user < mostOfUser && (uid < FirstUser || few && allowance(uid) > 0) {
		return false
	}
	cause, known := Locked{pid, t.Start, uid, t.Name}, true
	if user == 0 && memory.by[uid] < shortWait { // another user is the cause
		cause, known = slowest()
	}
	if known {
		noteUnread(&lockedProcess{Locked: cause}, true)
	}
	return true
}

// slowest returns the last process of the person whose reads have slept longest. The caller holds the lock.
func slowest() (l Locked, known bool) {
	for uid, last := range memory.last {
		if d, most := memory.by[uid], memory.by[l.UID]; !known || d > most || d == most && uid < l.UID {
			l, known = last, true
		}
	}
	return l, known
}

// memoryRead is the read of a file of a process, or of its next part. The thread that makes it has it alone
// until done.
type memoryRead struct {
	dir   int
	name  string
	most  int
	parts bool
	fd    int // -1: not open
	end   bool
	data  []byte
	err   error
	slept time.Duration
	tid   atomic.Int32
	done  chan struct{}
	timer *time.Timer
	over  atomic.Bool   // the first of thread and waiter to set it continues with the file
	left  chan struct{} // closed by a thread that was left
}

func (m *memoryRead) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	m.tid.Store(int32(unix.Gettid()))
	var before, after unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &before)
	began := time.Now()
	m.read()
	if took := time.Since(began); took >= leastWait { // else it has not slept, or that does not count
		if _ = unix.Getrusage(unix.RUSAGE_THREAD, &after); after.Nvcsw > before.Nvcsw {
			m.slept = took
		}
	}
	m.finish()
}

// finish passes the answer to the waiter, if it still waits.
func (m *memoryRead) finish() {
	waited := m.over.CompareAndSwap(false, true)
	if (m.end || !waited) && m.fd >= 0 {
		unix.Close(m.fd)
		m.fd = -1
	}
	if waited {
		m.done <- struct{}{}
	} else {
		close(m.left)
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
		space := m.data[len(m.data):min(cap(m.data), m.most)]
		n, err := Read(m.fd, space)
		if err != nil || n == 0 {
			m.err, m.end = err, true
			return
		}
		m.data = m.data[:len(m.data)+n]
		if !m.parts && n < len(space) { // the kernel returns the list of mappings in small parts, the others whole
			m.end = true
			return
		}
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
	m.timer.Reset(memoryLook)
	defer m.timer.Stop()
	limit := time.Duration(0)
	for asleep := time.Duration(0); ; m.timer.Reset(memoryLook) {
		select {
		case <-m.done:
			if m.slept > 0 {
				describe()
				addWait(l.Locked, m.slept)
			}
			return true
		case <-m.timer.C:
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
			addWait(l.Locked, asleep)
			l.done = make(chan struct{})
			if m.left = l.done; m.over.CompareAndSwap(false, true) {
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
	uid, err := r.answerer()
	if err != nil {
		uid = noUser
	}
	pid, _ := strconv.Atoi(path.Base(process))
	return Locked{pid, t.Start, uid, t.Name}
}

// readMemory reads up to most bytes of a file of a process, which is a path below the directory dir, and
// passes them to use, for the time of the call only. If parts is set it reads the whole file, and passes parts
// of whole lines.
func readMemory(dir int, process, file string, most int, parts bool, use func([]byte)) error {
	if memory.some.Load() && refuses(dir, process) {
		return ErrUnread
	}
	memory.mu.Lock()
	m := memory.idle
	memory.idle = nil
	memory.mu.Unlock()
	if m == nil {
		m = &memoryRead{done: make(chan struct{}, 1), timer: time.NewTimer(memoryLook)}
	}
	m.dir, m.name, m.most, m.parts = dir, process+"/"+file, most, parts
	m.fd, m.end, m.data, m.err = -1, false, m.data[:0], nil
	for {
		m.over.Store(false)
		m.slept = 0
		go m.run()
		var l lockedProcess
		if !m.answers(process, &l) {
			l.own = true
			addLocked(l)
			memory.mu.Lock()
			noteUnread(&l, false)
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
	err := m.err
	memory.mu.Lock()
	memory.idle = m
	memory.mu.Unlock()
	return err
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
