package probe

import (
	"bytes"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// These bound the standard error of a command if only its last line is kept, and set how often its
// size is checked.
const (
	mostStderr  = 1 << 20
	stderrLook  = 20 * time.Millisecond
	lastStderr  = 4 << 10 // the last line is taken from these bytes
	spawnListen = 300 * time.Millisecond
)

// errorFile is the standard error of a command that may outlive this process. A pipe would end or
// block the command after its reader is gone. A memory file does neither; at its size limit writes
// fail, as on a full disk.
type errorFile struct {
	f    *os.File
	stop chan struct{}
	idle chan struct{}
}

// newErrorFile also returns the descriptor for the command, which the caller closes.
func newErrorFile() (*errorFile, *os.File, error) {
	fd, err := unix.MemfdCreate("nhc-stderr", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, err
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		_ = unix.Close(fd)
		return nil, nil, err
	}
	e := &errorFile{f: os.NewFile(uintptr(own), "stderr"), stop: make(chan struct{}), idle: make(chan struct{})}
	go e.watch()
	return e, os.NewFile(uintptr(fd), "stderr"), nil
}

// watch keeps the file from filling the memory.
func (e *errorFile) watch() {
	defer close(e.idle)
	tick := time.NewTicker(stderrLook)
	defer tick.Stop()
	for {
		select {
		case <-e.stop:
			return
		case <-tick.C:
			if e.size() > mostStderr {
				e.seal()
				return
			}
		}
	}
}

func (e *errorFile) size() int64 {
	var st unix.Stat_t
	if unix.Fstat(int(e.f.Fd()), &st) != nil {
		return 0
	}
	return st.Size
}

func (e *errorFile) seal() { _, _ = unix.FcntlInt(e.f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW) }

// close returns the last line of the file. Processes that still run may write up to [mostStderr]
// more.
func (e *errorFile) close() string {
	close(e.stop)
	<-e.idle
	defer e.f.Close()
	size := e.size()
	text := make([]byte, min(size, lastStderr))
	n, _ := e.f.ReadAt(text, size-int64(len(text)))
	_ = unix.Ftruncate(int(e.f.Fd()), size+mostStderr)
	e.seal()
	return LastLine(bytes.ReplaceAll(text[:n], []byte{0}, nil))
}
