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

// Holder is the process behind a socket.
type Holder struct {
	PID  int
	Name string // first word of its command name, which the kernel cuts at 15 bytes
}

// Holders are the processes by the inodes of the sockets that they have
// open. Of several with the same socket it is the one with the highest pid, the
// one that ss shows first: a daemon rather than the systemd that opened the
// socket for it. Processes that this user may not look into are left out, and
// so are sockets of the kernel itself, such as those of its NFS server.
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
		for _, pid := range pids {
			s.process(pid)
		}
		return s.holders, nil
	})
}

// holderScan looks through the open files of processes. It uses its buffers
// again and again: a node may have thousands of processes.
type holderScan struct {
	dir     int // descriptor of /proc
	holders map[uint64]Holder
	names   []string
	entries [32 << 10]byte
	link    [64]byte // "socket:[18446744073709551615]" and more
	name    [64]byte
}

// list names what is in a directory.
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

// process notes the sockets of one process. One that ends meanwhile, or that
// must not be looked into, has none.
func (s *holderScan) process(pid int) {
	dir := strconv.Itoa(pid)
	fds, err := probe.Open(s.dir, dir+"/fd")
	if err != nil {
		return
	}
	defer unix.Close(fds)
	names, _ := s.list(fds)
	holder := Holder{PID: pid}
	for _, name := range names {
		n, err := unix.Readlinkat(fds, name, s.link[:])
		if err != nil {
			continue
		}
		inode, ok := socketInode(s.link[:n])
		if !ok {
			continue
		}
		if holder.Name == "" {
			holder.Name = s.command(dir)
		}
		s.holders[inode] = holder
	}
}

// command is the first word of a process's name: the reference cuts what ss
// prints at blanks.
func (s *holderScan) command(dir string) string {
	n, err := probe.ReadAt(s.dir, dir+"/comm", s.name[:])
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(strings.TrimLeft(string(s.name[:n]), " \t\n"), " ")
	return strings.TrimRight(first, "\n")
}

// socketInode reads what a link of /proc/PID/fd says about a socket.
func socketInode(link []byte) (uint64, bool) {
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
