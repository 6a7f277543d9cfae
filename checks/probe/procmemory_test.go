package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// A process whose environment exceeds the limit is named once, and not asked again.
func TestLargeEnvironment(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sleep", "600")
	for i := range 12 {
		cmd.Env = append(cmd.Env, fmt.Sprintf("V%d=%s", i, strings.Repeat("x", 100<<10)))
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	h, pid := NewHost("/"), cmd.Process.Pid
	probetest.Await(t, "the program has its environment", func() bool { // the kernel shows it after the command line
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		return err == nil && len(data) > 12*100<<10
	})
	use := func(data []byte) { t.Errorf("got %d bytes", len(data)) }
	for range 2 {
		if err := ReadMemoryFile(h, pid, "environ", use); !errors.Is(err, ErrUnread) || !strings.Contains(err.Error(), fmt.Sprintf("/proc/%d/environ", pid)) {
			t.Errorf("%v, want ErrUnread", err)
		}
	}
	is := func(l Locked) bool {
		return l.PID == pid && l.Name == "sleep" && int(l.UID) == os.Getuid() && l.Start > 0
	}
	if list := NewLocked(); !slices.ContainsFunc(list, is) {
		t.Errorf("%+v, want process %d", list, pid)
	}
	if list := NewLocked(); slices.ContainsFunc(list, is) {
		t.Errorf("%+v, want it once", list)
	}
	if p, err := ProcessNow(h, pid); err != nil || p.Args != "sleep 600" || p.Unread {
		t.Errorf("%+v, %v, want its command line", p, err)
	}
	if calls := LockedCalls(); slices.ContainsFunc(calls, func(c string) bool { return strings.Contains(c, strconv.Itoa(pid)) }) {
		t.Errorf("%q: no thread waits for it", calls)
	}
}

// A process that has blocked another worker is not asked. Neither are others of its user, nor those of a user with
// one that has blocked, once so many have. The first of another user is asked up to a limit.
func TestLockedElsewhere(t *testing.T) {
	t.Cleanup(forgetLocked)
	const user, other, third = 70001, 70002, 70003
	files := map[string]string{}
	process := func(pid, uid int) { lockable(files, pid, uid) }
	const first = 1 << 30
	calls := []string{"read /sys"}
	for i := range mostOfUser {
		process(first+i, user)
		calls = append(calls, fmt.Sprintf(lockedCall, first+i, 10*(first+i), user))
	}
	process(first+10, user)
	process(first+11, other)
	process(first+12, 0)
	process(first+13, 500)
	h := NewHost(probetest.Tree(t, files))
	h.SetStuck(calls)
	want := func(pid int, args string) {
		t.Helper()
		if p, err := ProcessNow(h, pid); err != nil || p.Args != args {
			t.Errorf("process %d: %+v, %v, want %q", pid-first, p, err, args)
		}
	}
	want(first, "name")
	want(first+10, "name")
	want(first+11, "the line")
	want(first+12, "the line")
	lock := func(pid, uid int) {
		process(pid, uid)
		calls = append(calls, fmt.Sprintf(lockedCall, pid, 10*pid, uid))
	}
	for i := range mostOfUsers - mostOfUser - 1 {
		lock(first+100+i, 70100+i)
	}
	lock(first+99, third)
	process(first+98, third)
	h = NewHost(probetest.Tree(t, files))
	h.SetStuck(calls)
	want(first+11, "the line")
	want(first+98, "name")
	for i := range mostThreads - mostOfUsers {
		lock(first+200+i, 70200+i)
	}
	h = NewHost(probetest.Tree(t, files))
	h.SetStuck(calls)
	want(first+11, "name")
	want(first+12, "the line")
	want(first+13, "the line")
	if err := ReadMemoryFile(h, first, "environ", func([]byte) {}); !errors.Is(err, ErrUnread) {
		t.Errorf("%v, want ErrUnread", err)
	}
	if err := ReadMemoryFile(h, first+97, "environ", func([]byte) {}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want no such process", err)
	}
	var names []int
	for _, l := range NewLocked() {
		names = append(names, l.PID-first)
	}
	if !slices.Equal(names, []int{0, 98}) { // 11 is not the cause, 100 was not asked
		t.Errorf("processes %v, want one of each user that blocks", names)
	}
}

// A process that blocked another worker no longer counts if it has ended or its number was reused, nor after a
// while: its answer is not known to this worker.
func TestLockedNoMore(t *testing.T) {
	t.Cleanup(forgetLocked)
	const first, user = 1 << 25, 70031
	files := map[string]string{}
	for i := range 5 {
		lockable(files, first+i, user)
	}
	root := probetest.Tree(t, files)
	h, call := NewHost(root), func(pid, start int) string { return fmt.Sprintf(lockedCall, pid, start, user) }
	asked := func(why string, want bool) {
		t.Helper()
		memory.mu.Lock()
		memory.looked = time.Time{}
		memory.mu.Unlock()
		if p, err := ProcessNow(h, first); err != nil || p.Unread == want {
			t.Errorf("%s: %+v, %v, want it asked: %v", why, p, err, want)
		}
	}
	h.SetStuck([]string{call(first+50, 10*(first+50)), call(first+51, 1), call(first+1, 7)})
	asked("ended before", true)
	h.SetStuck([]string{call(first+1, 10*(first+1)), call(first+2, 10*(first+2))})
	asked("two wait", false)
	if err := os.RemoveAll(filepath.Join(root, "proc", strconv.Itoa(first+2))); err != nil {
		t.Fatal(err)
	}
	asked("one has ended", true)
	h.SetStuck([]string{call(first+3, 10*(first+3))})
	asked("two wait again", false)
	memory.mu.Lock()
	for _, l := range memory.locked {
		l.since = l.since.Add(-renewal)
	}
	memory.mu.Unlock()
	asked("a minute later", true)
	if memory.some.Load() {
		t.Error("each read still looks for locked processes")
	}
}

// A user answers for all uids of a container.
func TestContainerUIDs(t *testing.T) {
	t.Parallel()
	need.Root(t, "processes of several users")
	const user, inside = 1<<30 + 77041, 1<<30 + 88000
	start := func(cmd *exec.Cmd) int {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		comm := fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid)
		probetest.Await(t, "sleep starts", func() bool {
			text, _ := os.ReadFile(comm)
			return string(text) == "sleep\n"
		})
		return cmd.Process.Pid
	}
	cmd := exec.Command("unshare", "--user", "sleep", "100")
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	pid := start(cmd)
	for _, file := range []string{"uid_map", "gid_map"} {
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/%s", pid, file), fmt.Appendf(nil, "0 %d 100\n", inside), 0); err != nil {
			t.Fatal(err)
		}
	}
	in := start(exec.Command("nsenter", "--user", "--target", strconv.Itoa(pid), "--setuid", "5", "--setgid", "5", "sleep", "100"))
	if s, err := (&ProcessReader{Dir: unix.AT_FDCWD, Name: fmt.Appendf(nil, "/proc/%d", in)}).readState(); err != nil || s.real != inside+5 {
		t.Fatalf("%+v, %v, want uid %d", s, err, inside+5)
	}
	if l := describeLocked(unix.AT_FDCWD, fmt.Sprintf("/proc/%d", in)); l.UID != user {
		t.Errorf("uid %d answers, want %d", l.UID, user)
	}
	if l := describeLocked(unix.AT_FDCWD, fmt.Sprintf("/proc/%d", os.Getpid())); l.UID != 0 {
		t.Errorf("uid %d answers for root's process", l.UID)
	}
	if l := describeLocked(unix.AT_FDCWD, "/proc/none"); l.UID != noUser {
		t.Errorf("uid %d answers for a process without a status", l.UID)
	}
}

func forgetLocked() {
	memory.mu.Lock()
	defer memory.mu.Unlock()
	memory.locked, memory.unread, memory.waits, memory.looked = nil, nil, waits{}, time.Time{}
	memory.some.Store(false)
}

// lockable is a process of a user with the command line "the line".
func lockable(files map[string]string, pid, uid int) {
	dir := fmt.Sprintf("proc/%d/", pid)
	files[dir+"stat"] = fmt.Sprintf("%d (name) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0 0 0\n", pid, 10*pid)
	files[dir+"status"] = fmt.Sprintf("Name:\tname\nState:\tS\nUid:\t%[1]d\t0\t0\t0\nVmSize:\t1 kB\n", uid)
	files[dir+"cmdline"], files[dir+"environ"] = "the\x00line\x00", "A=1\x00"
}

// A process that has answered late is read again, and is no finding.
func TestLockedAnswers(t *testing.T) {
	t.Cleanup(forgetLocked)
	const first, user = 1 << 27, 70011
	files := map[string]string{}
	for i := range mostOfUser + 1 {
		lockable(files, first+i, user)
	}
	h, done := NewHost(probetest.Tree(t, files)), make(chan struct{})
	var calls []string
	for i := range mostOfUser {
		l := lockedProcess{Locked: Locked{PID: first + i, Start: uint64(10 * (first + i)), UID: user}, done: done, own: true}
		addLocked(l)
		calls = append(calls, l.call())
	}
	for i, unread := range []bool{true, false} {
		for pid := first; pid <= first+mostOfUser; pid++ {
			if p, err := ProcessNow(h, pid); err != nil || p.Unread != unread || (p.Args == "the line") == unread {
				t.Errorf("%+v, %v, want unread %v", p, err, unread)
			}
		}
		if i == 0 {
			close(done)
			h.SetStuck(calls) // the supervisor returns them to this worker, too
		}
	}
	memory.mu.Lock()
	memory.unread = map[uint32]*unreadUser{user: {lockedProcess: memory.locked[0]}}
	memory.mu.Unlock()
	if list := NewLocked(); len(list) != 0 {
		t.Errorf("%+v, want none", list)
	}
	if list := LockedCalls(); len(list) != 0 {
		t.Errorf("%q, want none", list)
	}
}

// The reads of a person's processes wait for a limited time together. Daemons are always asked.
func TestWaitsAreLimited(t *testing.T) {
	t.Cleanup(forgetLocked)
	const first, users = 1 << 26, 70021
	files := map[string]string{}
	for i, uid := range []int{users, users + 1, users + 2, 0, 500} {
		lockable(files, first+i, uid)
	}
	h := NewHost(probetest.Tree(t, files))
	want := func(unread ...bool) {
		t.Helper()
		for i, u := range unread {
			if p, err := ProcessNow(h, first+i); err != nil || p.Unread != u {
				t.Errorf("%+v, %v, want unread %v", p, err, u)
			}
		}
	}
	for range 10 { // pulses
		addWait(Locked{UID: users}, longWait/10)
	}
	addWait(Locked{UID: users + 1}, longWait/2)
	addWait(Locked{UID: 0}, mostWaits)
	if list := NewLocked(); len(list) != 0 {
		t.Errorf("%+v: all waits have ended, and nothing is refused", list)
	}
	want(true, false, false, false, false)
	addWait(Locked{UID: users + 2}, longWait/2)
	want(true, true, true, false, false)
	reports := func(users ...uint32) {
		t.Helper()
		var got []uint32
		for _, l := range NewLocked() {
			got = append(got, l.UID)
		}
		if slices.Sort(got); !slices.Equal(got, users) {
			t.Errorf("users %d, want %d", got, users)
		}
	}
	reports(users, users+1, users+2) // no process waits, but some were not read
	allows := func(uid uint32, want time.Duration) {
		t.Helper()
		memory.mu.Lock()
		defer memory.mu.Unlock()
		if d := allowance(uid); d != want {
			t.Errorf("%v for uid %d, want %v", d, uid, want)
		}
	}
	allows(users+3, shortWait)
	addWait(Locked{UID: users + 4}, mostWaits-memoryLook)
	addWait(Locked{UID: users + 5}, memoryLook)
	allows(users+3, memoryLook)
	allows(users+5, 0)
	allows(500, shortWait) // root has waited
	addWait(Locked{UID: users + 6}, mostWaits)
	allows(users+3, 0)
	lockable(files, first+5, users+3)
	h = NewHost(probetest.Tree(t, files))
	if p, err := ProcessNow(h, first+5); err != nil || !p.Unread {
		t.Errorf("%+v, %v, want it unread", p, err)
	}
	reports(users + 6) // who has made it wait longest, not the user who was not read
	memory.mu.Lock()
	defer memory.mu.Unlock()
	memory.since = time.Now().Add(-2 * renewal)
	if d := allowance(users); d != longWait {
		t.Errorf("%v after the renewal, want %v", d, longWait)
	}
}

// sleepUninterruptibly is how a thread waits for the child of a vfork. It returns when the child has been killed.
//
//go:norace
func sleepUninterruptibly(pipe uintptr) (child uintptr) {
	var pid [1]int32
	if child, _, _ = syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(unix.CLONE_VFORK|syscall.SIGCHLD), 0, 0, 0, 0, 0); child != 0 {
		return child
	}
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0)
	n, _, _ := syscall.RawSyscall(syscall.SYS_GETPID, 0, 0, 0)
	pid[0] = int32(n)
	_, _, _ = syscall.RawSyscall(syscall.SYS_WRITE, pipe, uintptr(unsafe.Pointer(&pid)), unsafe.Sizeof(pid))
	for {
		_, _, _ = syscall.RawSyscall6(syscall.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}

// A thread that sleeps for longer than its user may be awaited is left behind. It counts until it has its answer.
func TestThreadIsLeft(t *testing.T) {
	t.Cleanup(forgetLocked)
	const pid, user = 1 << 24, 70061
	files := map[string]string{}
	lockable(files, pid, user)
	lockable(files, pid+1, user)
	root := probetest.Tree(t, files)
	process := fmt.Sprintf("%s/proc/%d", root, pid)
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	defer to.Close()
	addWait(Locked{UID: user}, longWait-2*memoryLook)
	m := &memoryRead{dir: unix.AT_FDCWD, fd: -1, done: make(chan struct{}, 1), timer: time.NewTimer(0)}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		m.tid.Store(int32(unix.Gettid()))
		child := sleepUninterruptibly(to.Fd())
		_, _ = unix.Wait4(int(child), nil, 0, nil)
		m.finish()
	}()
	child := make([]byte, 4)
	if _, err := io.ReadFull(from, child); err != nil {
		t.Fatal(err)
	}
	var l lockedProcess
	answers := m.answers(process, &l)
	if answers || l.PID != pid || l.UID != user || l.Start != 10*pid {
		t.Fatalf("answers: %v, %+v", answers, l)
	}
	addLocked(l)
	memory.mu.Lock()
	if d := memory.by[user]; d != longWait {
		t.Errorf("its user has made it wait for %v, want %v", d, longWait)
	}
	memory.mu.Unlock()
	h := NewHost(root)
	for i := range 2 {
		if p, err := ProcessNow(h, pid+i); err != nil || !p.Unread {
			t.Errorf("%+v, %v, want it unread", p, err)
		}
	}
	if list := NewLocked(); len(list) != 1 || list[0].PID != pid {
		t.Errorf("%+v, want the process", list)
	}
	if err := unix.Kill(int(binary.NativeEndian.Uint32(child)), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-l.done
	memory.mu.Lock()
	memory.since = time.Time{} // a minute later
	memory.mu.Unlock()
	for i := range 2 {
		if p, err := ProcessNow(h, pid+i); err != nil || p.Unread {
			t.Errorf("%+v, %v, want it read", p, err)
		}
	}
}

// The list of mappings is read to its end, in parts of whole lines.
func TestLongMaps(t *testing.T) {
	t.Parallel()
	line := "7f0-7f1 rw-s 0 00:1a 4711 /dev/shm/" + strings.Repeat("x", 200) + "\n"
	const lines = 30000
	h := NewHost(probetest.Tree(t, map[string]string{"proc/7/maps": strings.Repeat(line, lines)}))
	got := 0
	err := ReadMemoryFile(h, 7, "maps", func(data []byte) {
		if n := strings.Count(string(data), line); n*len(line) != len(data) {
			t.Errorf("a part of %d bytes has %d whole lines", len(data), n)
		}
		got += strings.Count(string(data), "\n")
	})
	if err != nil || got != lines {
		t.Errorf("%d lines, %v, want %d", got, err, lines)
	}
}

// All command lines of a person together are bounded; each keeps its beginning. Those of daemons are whole.
func TestManyLongCommandLines(t *testing.T) {
	t.Parallel()
	root := probetest.Tree(t, map[string]string{
		"proc/1/cmdline": strings.Repeat("a", maxArgs), "proc/1/status": "Name:\tx\nState:\tS\nUid:\t1000\t1000\t1000\t1000\nVmSize:\t1 kB\n",
		"proc/9999/cmdline": strings.Repeat("a", maxArgs), "proc/9999/status": "Name:\tx\nState:\tS\nUid:\t999\t999\t999\t999\nVmSize:\t1 kB\n",
	})
	const processes = maxAllArgs/maxArgs + 100
	for pid := 2; pid <= processes; pid++ {
		dir := filepath.Join(root, "proc", strconv.Itoa(pid))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"cmdline", "status"} {
			if err := os.Link(filepath.Join(root, "proc/1", name), filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	procs, err := Processes(NewHost(root))
	if err != nil || len(procs) != processes+1 {
		t.Fatalf("%d processes, %v, want %d", len(procs), err, processes+1)
	}
	if last := procs[processes]; len(last.Args) != maxArgs {
		t.Errorf("%d bytes of a daemon, want %d", len(last.Args), maxArgs)
	}
	sum := 0
	for _, p := range procs[:processes] {
		sum += len(p.Args)
	}
	if last := len(procs[processes-1].Args); sum > maxAllArgs+maxArgs+processes*shortArgs || last != shortArgs || len(procs[0].Args) != maxArgs {
		t.Errorf("%d bytes, the last %d", sum, last)
	}
}

// The command lines of all persons together are bounded, too.
func TestLongCommandLinesOfAll(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for pid, uid := range map[int]int{1: 0, 2: 500, 3: 70051, 4: 70052} {
		lockable(files, pid, uid)
	}
	r, err := OpenProc(filepath.Join(probetest.Tree(t, files), "proc"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	rooms := func(want ...int) {
		t.Helper()
		for i, n := range want {
			if r.Name = strconv.AppendInt(nil, int64(i+1), 10); r.room() != n {
				t.Errorf("process %d: %d bytes, want %d", i+1, r.room(), n)
			}
		}
	}
	rooms(maxArgs, maxArgs, maxArgs, maxArgs)
	r.long = &longArgs{by: map[uint32]int{}}
	rooms(maxArgs, maxArgs, maxArgs, maxArgs)
	r.Name = []byte("3")
	r.add(strings.Repeat("x", maxAllArgs+1))
	rooms(maxArgs, maxArgs, shortArgs, maxArgs)
	r.long.all = mostAllArgs + 1
	rooms(maxArgs, maxArgs, shortArgs, shortArgs)
}

// A loop that takes long announces that it goes on.
func TestPace(t *testing.T) {
	t.Parallel()
	h := NewHost("/")
	h.Pace()() // nothing to announce to
	said := 0
	h.SetDoing(func(string) { said++ })
	pace := h.Pace()
	pace()
	if said != 0 {
		t.Error("announced at once")
	}
	for end := time.Now().Add(20 * time.Second); said < 2 && time.Now().Before(end); {
		pace()
	}
	if said != 2 {
		t.Errorf("announced %d times, want twice", said)
	}
}

// Each read costs one hand-over to a thread.
func BenchmarkMemoryRead(b *testing.B) {
	name := strconv.Itoa(probetest.StartSleep(b).Process.Pid)
	r, err := OpenProc("/proc")
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	b.ReportAllocs()
	for b.Loop() {
		if err := readMemory(r.Dir, name, "cmdline", maxArgs, false, func([]byte) {}); err != nil {
			b.Fatal(err)
		}
	}
}
