package jobscan

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// IPCKind is a kind of System V IPC: the name of its file in /proc/sysvipc.
type IPCKind string

// The kinds.
const (
	SharedMemory  IPCKind = "shm"
	MessageQueue  IPCKind = "msg"
	SemaphoreSets IPCKind = "sem"
)

var ipcKinds = []IPCKind{SharedMemory, MessageQueue, SemaphoreSets}

// idColumn returns the kernel's column name for the number of an object.
func (k IPCKind) idColumn() string {
	if k == MessageQueue {
		return "msqid"
	}
	return string(k) + "id"
}

// IPC is an object of System V IPC.
type IPC struct {
	Kind     IPCKind
	ID       int
	Mode     uint32 // permission bits
	UID      uint32 // of its owner
	Creator  uint32 // uid of its creator
	Bytes    uint64 // of shared memory; of the messages in a queue
	Attached int    // how often shared memory is attached
	PIDs     []int  // of shared memory, its creator and last user; of a queue, its last sender and receiver
	Changed  time.Time
}

// IPCs reads /proc/sysvipc. A kernel without System V IPC has none.
func IPCs(h *probe.Host) ([]IPC, error) {
	var list []IPC
	for _, kind := range ipcKinds {
		path := "/proc/sysvipc/" + string(kind)
		data, err := h.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		some, ok := parseIPC(kind, string(data))
		if !ok {
			return nil, &fs.PathError{Op: "parse", Path: path, Err: fs.ErrInvalid}
		}
		list = append(list, some...)
	}
	return list, nil
}

// ipcColumns are the required columns, by their names in the first line: those that all kinds have,
// or one of them.
type ipcColumns map[string]int

func parseIPC(kind IPCKind, text string) (list []IPC, ok bool) {
	columns := ipcColumns{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(columns) == 0 {
			for i, name := range f {
				columns[name] = i
			}
			continue
		}
		o, ok := columns.object(kind, f)
		if !ok {
			return nil, false
		}
		list = append(list, o)
	}
	return list, true
}

func (c ipcColumns) object(kind IPCKind, f []string) (o IPC, good bool) {
	good = true
	number := func(column string, base int) uint64 {
		i, ok := c[column]
		if !ok || i >= len(f) {
			good = false
			return 0
		}
		n, err := strconv.ParseUint(f[i], base, 64)
		good = good && err == nil
		return n
	}
	o = IPC{Kind: kind, ID: int(number(kind.idColumn(), 10)), Mode: uint32(number("perms", 8)) & 0o777,
		UID: uint32(number("uid", 10)), Creator: uint32(number("cuid", 10)), Changed: time.Unix(int64(number("ctime", 10)), 0)}
	switch kind {
	case SharedMemory:
		o.Bytes, o.Attached = number("size", 10), int(number("nattch", 10))
		o.PIDs = []int{int(number("cpid", 10)), int(number("lpid", 10))}
	case MessageQueue:
		o.Bytes = number("cbytes", 10)
		o.PIDs = []int{int(number("lspid", 10)), int(number("lrpid", 10))}
	}
	return o, good
}

// RemoveIPC removes an object that has not changed and is attached by no process. The error for a
// missing object is [fs.ErrNotExist].
func RemoveIPC(h *probe.Host, o IPC) error {
	if h.Recorded() {
		return probe.ErrRecorded
	}
	now, err := IPCs(h)
	if err != nil {
		return err
	}
	for _, n := range now {
		if n.Kind == o.Kind && n.ID == o.ID {
			if n.UID != o.UID || n.Creator != o.Creator || !n.Changed.Equal(o.Changed) || n.Attached > 0 {
				return errChanged
			}
			return removeIPC(o)
		}
	}
	return fs.ErrNotExist
}

var errChanged = errors.New("it has changed in the meantime")

func removeIPC(o IPC) error {
	id := uintptr(o.ID)
	var errno unix.Errno
	switch o.Kind {
	case SharedMemory:
		_, _, errno = unix.Syscall(unix.SYS_SHMCTL, id, unix.IPC_RMID, 0)
	case MessageQueue:
		_, _, errno = unix.Syscall(unix.SYS_MSGCTL, id, unix.IPC_RMID, 0)
	case SemaphoreSets:
		_, _, errno = unix.Syscall6(unix.SYS_SEMCTL, id, 0, unix.IPC_RMID, 0, 0, 0)
	}
	switch errno {
	case 0:
		return nil
	case unix.EINVAL, unix.EIDRM: // removed by another process
		return fs.ErrNotExist
	}
	return fmt.Errorf("remove: %w", os.NewSyscallError(string(o.Kind)+"ctl", errno))
}
