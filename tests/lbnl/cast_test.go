package lbnl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	processName = "case-process" // argv[0] of a background process to be
	readyFD     = 3              // where it reports an error; closed when it is ready
)

// member is a running background process.
type member struct {
	pid   int
	argv0 string
	rest  string // its state when it is idle
}

// startCast starts the background processes and the holders of sockets, and returns when each is
// ready.
func (s *scene) startCast() ([]member, error) {
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	ready, done, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ready.Close()
	var cast []member
	for i := range s.Procs {
		pid, err := s.Procs[i].start([]uintptr{null.Fd(), null.Fd(), null.Fd(), done.Fd()})
		if err != nil {
			done.Close()
			return nil, err
		}
		rest := "S"
		if s.Procs[i].Args != nil {
			rest = "T"
		}
		cast = append(cast, member{pid, s.Procs[i].Argv0, rest})
	}
	done.Close()
	if complaint, err := io.ReadAll(ready); err != nil || len(complaint) > 0 {
		return nil, fmt.Errorf("start processes: %s: %w", complaint, err)
	}
	for i := range s.Listen {
		pid, err := s.Listen[i].start(null.Fd())
		if err != nil {
			return nil, err
		}
		cast = append(cast, member{pid, s.Listen[i].Argv0, "S"})
	}
	for _, m := range cast {
		if err := m.awaitRest(); err != nil {
			return nil, err
		}
	}
	for i, p := range s.Procs {
		if p.Proc != nil {
			if err := p.Proc.mount(cast[i].pid); err != nil {
				return nil, err
			}
		}
	}
	return cast, nil
}

// start runs this binary as case-process, with those descriptors.
func (p *process) start(fds []uintptr) (int, error) {
	spec, err := json.Marshal(p)
	if err != nil {
		return 0, err
	}
	pid, err := syscall.ForkExec("/proc/self/exe", []string{processName, string(spec)}, &syscall.ProcAttr{
		Dir: "/", Env: []string{"GOMAXPROCS=1"}, Files: fds, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", p.Argv0, err)
	}
	return pid, nil
}

// caseProcess is the main function of a background process. It returns only if it cannot become
// another program.
func caseProcess(spec string) int {
	unix.CloseOnExec(readyFD)
	var p process
	err := json.Unmarshal([]byte(spec), &p)
	if err == nil {
		err = p.become()
	}
	fmt.Fprintf(os.NewFile(readyFD, "ready"), "%s: %v\n", p.Argv0, err)
	return 1
}

// become starts the children, changes the user and executes the program, which keeps the children.
func (p *process) become() error {
	for i := range p.Children {
		if _, err := p.Children[i].start([]uintptr{0, 1, 2, readyFD}); err != nil {
			return err
		}
	}
	if p.UID != 0 {
		err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(p.UID), syscall.Setuid(p.UID))
		if err != nil {
			return err
		}
	}
	if p.Args == nil {
		return syscall.Exec("/usr/bin/sleep", []string{p.Argv0, "1000"}, nil)
	}
	return syscall.Exec("/bin/sh", slices.Concat([]string{p.Argv0, "-c", "kill -STOP $$"}, p.Args), nil)
}

// awaitRest waits until the process sleeps or has stopped itself, so that its stat file shows that
// state.
func (m *member) awaitRest() error {
	for deadline := time.Now().Add(2 * time.Second); procState(m.pid) != m.rest; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not come to rest", m.argv0)
		}
	}
	return nil
}

// killed returns the names of the processes that have ended. It waits for a process that got a
// signal until it is idle again or ends.
func killed(cast []member) (names []string) {
	for _, m := range cast {
		state := procState(m.pid)
		for deadline := time.Now().Add(10 * time.Second); state != "" && state != "Z" && time.Now().Before(deadline); state = procState(m.pid) {
			if state == m.rest && !hasPendingSignal(m.pid, state) && procState(m.pid) == m.rest {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if state == "" || state == "Z" {
			names = append(names, m.argv0)
		}
	}
	return names
}

// hasPendingSignal reports whether a signal has not reached a process yet. A stopped process
// receives only SIGKILL.
func hasPendingSignal(pid int, state string) bool {
	text, err := readProc(pid, "status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		if name != "SigPnd" && name != "ShdPnd" {
			continue
		}
		signals, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if state == "T" {
			signals &= 1 << (unix.SIGKILL - 1)
		}
		if err == nil && signals != 0 {
			return true
		}
	}
	return false
}

// procState returns the state letter of a process, empty if there is none.
func procState(pid int) string {
	text, err := readProc(pid, "stat")
	if err != nil {
		return ""
	}
	_, f := splitStat(string(text))
	return f[0]
}

// readProc reads a file of a process in a procfs of its own, which is mounted nowhere: a case may
// have covered files below /proc, and a covered file of a zombie stays.
func readProc(pid int, name string) ([]byte, error) {
	proc, err := plainProc()
	if err != nil {
		return nil, err
	}
	fd, err := unix.Openat(proc, fmt.Sprintf("%d/%s", pid, name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return io.ReadAll(f)
}

var plainProc = sync.OnceValues(func() (int, error) {
	fs, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
})

// splitStat returns the name in the text of a stat file, and the fields after it, the state first.
func splitStat(text string) (string, []string) {
	open, end := strings.Index(text, "("), strings.LastIndex(text, ")")
	return text[open+1 : end], strings.Fields(text[end+1:])
}

// start opens the socket and passes it to a process of the listener's name, which the kernel's
// files show, too.
func (l *listener) start(null uintptr) (int, error) {
	fd, err := l.open()
	if err != nil {
		return 0, fmt.Errorf("open socket of %s: %w", l.Argv0, err)
	}
	defer unix.Close(fd)
	sleep, err := os.ReadFile("/usr/bin/sleep")
	if err != nil {
		return 0, err
	}
	path := base + "/" + l.Argv0
	if err := putFile(path, sleep, 0o755); err != nil {
		return 0, err
	}
	return syscall.ForkExec(path, []string{l.Argv0, "1000"}, &syscall.ProcAttr{
		Dir: "/", Env: []string{}, Files: []uintptr{null, null, null, uintptr(fd)}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
}

// open creates the socket as its user.
func (l *listener) open() (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if _, err := unix.SetfsuidRetUid(l.UID); err != nil { // of this thread only
		return 0, err
	}
	defer func() { _, _ = unix.SetfsuidRetUid(0) }()

	family, kind := unix.AF_INET, unix.SOCK_STREAM
	var addr unix.Sockaddr
	switch ip := net.ParseIP(l.Addr); l.Proto {
	case "unix":
		family, addr = unix.AF_UNIX, &unix.SockaddrUnix{Name: l.Path}
	case "tcp6":
		family, addr = unix.AF_INET6, &unix.SockaddrInet6{Port: l.Port, Addr: [16]byte(ip.To16())}
	case "udp":
		kind = unix.SOCK_DGRAM
		fallthrough
	case "tcp":
		addr = &unix.SockaddrInet4{Port: l.Port, Addr: [4]byte(ip.To4())}
	default:
		return 0, fmt.Errorf("no such protocol: %s", l.Proto)
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	err = unix.Bind(fd, addr)
	if err == nil && kind == unix.SOCK_STREAM {
		err = unix.Listen(fd, 5)
	}
	if err != nil {
		unix.Close(fd)
		return 0, err
	}
	return fd, nil
}
