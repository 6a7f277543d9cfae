package network

import (
	"bytes"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// Holder is the process that holds a socket.
type Holder struct {
	PID  int
	Name string // first word of its command name, which the kernel cuts at 15 bytes
}

// Holders returns the processes by the inodes of their open sockets. If several share a socket it
// is the one with the highest PID, which ss shows first: a daemon rather than the systemd that
// opened the socket for it. It ignores processes that this user may not read, and sockets of the
// kernel itself, such as those of its NFS server.
func Holders(h *probe.Host) (map[uint64]Holder, error) {
	return probe.Once(h, "socket holders", func() (map[uint64]Holder, error) {
		dir, err := os.Open(h.Path("/proc"))
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: "/proc", Err: probe.Reason(err)}
		}
		defer dir.Close()
		s := holderScan{dir: int(dir.Fd()), holders: map[uint64]Holder{}}
		names, err := s.list(s.dir)
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: "/proc", Err: err}
		}
		var pids []int
		for _, n := range names {
			if pid, err := strconv.Atoi(n); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		slices.Sort(pids)
		pace := h.Pace()
		for _, pid := range pids {
			s.addProcess(pid, pace)
		}
		return s.holders, nil
	})
}

// holderScan searches the open files of processes. It reuses its buffers, because a node may have
// thousands of processes.
type holderScan struct {
	dir     int // descriptor of /proc
	holders map[uint64]Holder
	names   []string
	entries [32 << 10]byte
	link    [64]byte // "socket:[18446744073709551615]" and more
	name    [64]byte
}

// list returns the names in a directory.
func (s *holderScan) list(dir int) ([]string, error) {
	s.names = s.names[:0]
	for {
		n, err := unix.ReadDirent(dir, s.entries[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return s.names, err
		}
		_, _, s.names = unix.ParseDirent(s.entries[:n], -1, s.names)
	}
}

// addProcess records the sockets of one process. A process that ends in the meantime, or that this
// user may not read, has none.
func (s *holderScan) addProcess(pid int, pace func()) {
	dir := strconv.Itoa(pid)
	fds, err := probe.Open(s.dir, dir+"/fd")
	if err != nil {
		return
	}
	defer unix.Close(fds)
	names, _ := s.list(fds)
	holder := Holder{PID: pid}
	for _, name := range names {
		pace()
		n, err := unix.Readlinkat(fds, name, s.link[:])
		if err != nil {
			continue
		}
		inode, ok := parseSocketLink(s.link[:n])
		if !ok {
			continue
		}
		if holder.Name == "" {
			holder.Name = s.command(dir)
		}
		s.holders[inode] = holder
	}
}

// command returns the first word of a process's name: LBNL NHC cuts the output of ss at blanks.
func (s *holderScan) command(dir string) string {
	n, err := probe.ReadAt(s.dir, dir+"/comm", s.name[:])
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(strings.TrimLeft(string(s.name[:n]), " \t\n"), " ")
	return strings.TrimRight(first, "\n")
}

// parseSocketLink parses the link of a socket in /proc/PID/fd.
func parseSocketLink(link []byte) (uint64, bool) {
	number, ok := bytes.CutPrefix(link, []byte("socket:["))
	if !ok {
		return 0, false
	}
	number, ok = bytes.CutSuffix(number, []byte("]"))
	if !ok {
		return 0, false
	}
	inode, err := strconv.ParseUint(string(number), 10, 64)
	return inode, err == nil && inode != 0
}
