package ncclras

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// Deadline is the time for an answer: NCCL collects it within 10 s.
const Deadline = 12 * time.Second

// collect is the time that NCCL waits for its own ranks, seconds.
const collect = 5

// These bound the search for the endpoint.
const (
	maxProcesses = 256
	maxSockets   = 4096 // of a process
	usualPort    = 28028
)

// ErrNoEndpoint is the error of a job without an endpoint on this node.
var ErrNoEndpoint = errors.New("no process of the job listens for NCCL's RAS")

// endpoint is a socket on which a process of the job listens.
type endpoint struct {
	pid  string
	at   netip.AddrPort
	json bool // its NCCL can answer in JSON
}

// Answer is that of an endpoint.
type Answer struct {
	Text  []byte
	Hosts []string // the addresses of the endpoint's network namespace
}

// Ask asks the endpoint of a job's processes, once. It connects only to a socket on which one of them
// listens, and takes the answer only from one of them: any other user of the node can listen at the port, too.
func Ask(h *probe.Host, pids []string, limit time.Duration, doing func(string)) (Answer, error) {
	end := time.Now().Add(min(limit, Deadline))
	pids = pids[:min(len(pids), maxProcesses)]
	doing("look for NCCL's RAS endpoint of the job")
	e, err := find(h, pids)
	if err != nil {
		return Answer{}, err
	}
	doing(fmt.Sprintf("ask NCCL's RAS endpoint at %s", e.at))
	type result struct {
		Answer
		err error
	}
	done := make(chan result, 1)
	go func() { // a thread that has entered another namespace ends with its goroutine
		runtime.LockOSThread()
		a, err := e.ask(h, pids, end)
		done <- result{a, err}
	}()
	select {
	case r := <-done:
		return r.Answer, r.err
	case <-time.After(time.Until(end) + time.Second):
		return Answer{}, fmt.Errorf("ask NCCL at %s: no answer", e.at)
	}
}

// find returns the endpoint of the first process that has one.
func find(h *probe.Host, pids []string) (endpoint, error) {
	listening := map[string]map[string]netip.AddrPort{} // by namespace and inode
	for _, pid := range pids {
		port, on := portOf(h, pid)
		if !on {
			continue
		}
		ns, err := os.Readlink(h.Path("/proc/" + pid + "/ns/net"))
		if err != nil {
			continue
		}
		if listening[ns] == nil {
			listening[ns] = map[string]netip.AddrPort{}
			for _, s := range sockets(h, pid) {
				if s.state == stateListen {
					listening[ns][s.inode] = s.local
				}
			}
		}
		for _, inode := range inodes(h, pid) {
			if at, ok := listening[ns][inode]; ok && at.Port() == port {
				return endpoint{pid: pid, at: reach(at), json: canJSON(h, pid)}, nil
			}
		}
	}
	return endpoint{}, ErrNoEndpoint
}

// portOf returns the port of a process's endpoint by its environment, the usual one if that cannot be read.
func portOf(h *probe.Host, pid string) (port uint16, on bool) {
	port = usualPort
	err := readMemoryFile(h, pid, "environ", func(environ []byte) {
		for v := range bytes.SplitSeq(environ, []byte{0}) {
			if string(v) == "NCCL_RAS_ENABLE=0" {
				port = 0
				return
			}
			if addr, ok := bytes.CutPrefix(v, []byte("NCCL_RAS_ADDR=")); ok {
				if n, err := strconv.ParseUint(string(addr[bytes.LastIndexByte(addr, ':')+1:]), 10, 16); err == nil {
					port = uint16(n)
				}
			}
		}
	})
	return port, port != 0 && !errors.Is(err, probe.ErrUnread)
}

// reach returns the address at which a listening socket is reached.
func reach(at netip.AddrPort) netip.AddrPort {
	switch {
	case !at.Addr().IsUnspecified():
		return at
	case at.Addr().Is4():
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port())
	default:
		return netip.AddrPortFrom(netip.IPv6Loopback(), at.Port())
	}
}

// The states of a TCP socket in /proc/net/tcp.
const (
	stateOpen   = "01"
	stateListen = "0A"
)

type socket struct {
	local, remote netip.AddrPort
	state, inode  string
}

// sockets lists the TCP sockets in the network namespace of a process.
func sockets(h *probe.Host, pid string) (list []socket) {
	for _, name := range []string{"/net/tcp", "/net/tcp6"} {
		_ = h.Lines("/proc/"+pid+name, func(line []byte) bool {
			if w := strings.Fields(string(line)); len(w) > 9 && (w[3] == stateOpen || w[3] == stateListen) {
				local, ok := parseAddress(w[1])
				remote, known := parseAddress(w[2])
				if ok && known {
					list = append(list, socket{local, remote, w[3], w[9]})
				}
			}
			return len(list) < 1<<20
		})
	}
	return list
}

// parseAddress parses 0100007F:6D7C; each word of 4 bytes is in the order of a little-endian machine.
func parseAddress(s string) (netip.AddrPort, bool) {
	text, port, _ := strings.Cut(s, ":")
	raw, err := hex.DecodeString(text)
	n, portErr := strconv.ParseUint(port, 16, 16)
	if err != nil || portErr != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(raw); i += 4 {
		slices.Reverse(raw[i : i+4])
	}
	addr, ok := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(addr.Unmap(), uint16(n)), ok
}

// inodes lists the sockets that a process has open.
func inodes(h *probe.Host, pid string) (list []string) {
	dir := "/proc/" + pid + "/fd"
	names, err := h.Names(dir)
	if err != nil {
		return nil
	}
	for _, name := range names[:min(len(names), maxSockets)] {
		target, _ := os.Readlink(h.Path(dir + "/" + name))
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			list = append(list, strings.TrimSuffix(inode, "]"))
		}
	}
	return list
}

var library = probe.Lazily(`/libnccl\.so\.2\.(\d+)\.(\d+)`)

// canJSON reports whether the file of a process's NCCL has the number of a release that answers in JSON: 2.28.7
// or newer. A file without a number, as in wheels of Python, may be of any release.
func canJSON(h *probe.Host, pid string) (yes bool) {
	_ = readMemoryFile(h, pid, "maps", func(maps []byte) {
		if m := library().FindSubmatch(maps); m != nil {
			minor, patch := number(string(m[1])), number(string(m[2]))
			yes = yes || minor > 28 || minor == 28 && patch >= 7
		}
	})
	return yes
}

func readMemoryFile(h *probe.Host, pid, file string, use func([]byte)) error {
	n, err := strconv.Atoi(pid)
	if err != nil {
		return err
	}
	return probe.ReadMemoryFile(h, n, file, use)
}

// ask enters the network namespace of the endpoint, and asks it. It must run on a thread of its own.
func (e endpoint) ask(h *probe.Host, pids []string, end time.Time) (a Answer, err error) {
	fail := func(err error) (Answer, error) { return a, fmt.Errorf("ask NCCL at %s: %w", e.at, err) }
	ns, err := os.Open(h.Path("/proc/" + e.pid + "/ns/net"))
	if err != nil {
		return fail(err)
	}
	defer ns.Close()
	own, _ := os.Readlink("/proc/self/ns/net")
	if its, err := os.Readlink(h.Path("/proc/" + e.pid + "/ns/net")); err != nil || its != own {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fail(fmt.Errorf("enter its network namespace: %w", err))
		}
	}
	if addresses, err := net.InterfaceAddrs(); err == nil {
		for _, addr := range addresses {
			if p, err := netip.ParsePrefix(addr.String()); err == nil {
				a.Hosts = append(a.Hosts, p.Addr().String())
			}
		}
	}
	fd, err := connect(e.at, end)
	if err != nil {
		return fail(err)
	}
	conn := os.NewFile(uintptr(fd), e.at.String())
	defer conn.Close()
	if err := conn.SetDeadline(end); err != nil {
		return fail(err)
	}
	if _, err := io.WriteString(conn, "CLIENT PROTOCOL 2\n"); err != nil {
		return fail(err)
	}
	if err := expect(conn, "SERVER PROTOCOL "); err != nil {
		return fail(err)
	}
	if err := e.identify(h, pids, fd); err != nil {
		return fail(err)
	}
	if _, err := fmt.Fprintf(conn, "TIMEOUT %d\n", collect); err != nil {
		return fail(err)
	}
	if err := expect(conn, "OK"); err != nil {
		return fail(err)
	}
	if e.json {
		if _, err := io.WriteString(conn, "SET FORMAT json\n"); err != nil {
			return fail(err)
		}
		if err := expect(conn, "OK"); err != nil {
			return fail(err)
		}
	}
	if _, err := io.WriteString(conn, "VERBOSE STATUS\n"); err != nil {
		return fail(err)
	}
	if a.Text, err = io.ReadAll(io.LimitReader(conn, maxAnswer+1)); err != nil {
		return fail(probe.Reason(err))
	}
	return a, nil
}

// connect connects from the thread's own namespace, which the network poller of Go would not.
func connect(at netip.AddrPort, end time.Time) (fd int, err error) {
	family, to := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()})
	if at.Addr().Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return -1, err
	}
	if err = unix.Connect(fd, to); errors.Is(err, unix.EINPROGRESS) {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, failure := 0, error(unix.EINTR)
		for errors.Is(failure, unix.EINTR) {
			n, failure = unix.Poll(poll, int(max(0, time.Until(end)).Milliseconds()))
		}
		code, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		switch {
		case n == 0 || failure != nil:
			err = unix.ETIMEDOUT
		case code != 0:
			err = unix.Errno(code)
		default:
			err = nil
		}
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// expect reads a line, byte by byte: what follows it is the report.
func expect(conn io.Reader, want string) error {
	var line []byte
	for c := make([]byte, 1); len(line) < 256; {
		if _, err := io.ReadFull(conn, c); err != nil {
			return fmt.Errorf("no answer: %w", probe.Reason(err))
		}
		if c[0] == '\n' {
			break
		}
		line = append(line, c[0])
	}
	if text := strings.TrimSpace(string(line)); !strings.HasPrefix(text, want) {
		return fmt.Errorf("got %q, want %q", word(text), strings.TrimSpace(want))
	}
	return nil
}

// identify returns an error unless a process of the job has accepted the connection: several jobs of a user
// share a port.
func (e endpoint) identify(h *probe.Host, pids []string, fd int) error {
	self, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	var own netip.AddrPort
	switch a := self.(type) {
	case *unix.SockaddrInet4:
		own = netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		own = netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	for _, s := range sockets(h, e.pid) {
		if s.state != stateOpen || s.local != e.at || s.remote != own || s.inode == "0" {
			continue
		}
		for _, pid := range slices.Concat([]string{e.pid}, pids) {
			if slices.Contains(inodes(h, pid), s.inode) {
				return nil
			}
		}
	}
	return errors.New("a process that is not of this job has answered")
}

// InnerPIDs returns the PIDs of processes as they and NCCL see them, in their own PID namespaces.
func InnerPIDs(h *probe.Host, pids []string) (list []int) {
	for _, pid := range pids {
		inner := pid
		err := h.Lines("/proc/"+pid+"/status", func(line []byte) bool {
			if all, ok := bytes.CutPrefix(line, []byte("NSpid:")); ok {
				if words := strings.Fields(string(all)); len(words) > 0 {
					inner = words[len(words)-1]
				}
				return false
			}
			return true
		})
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			list = append(list, number(inner))
		}
	}
	return list
}
