package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// This is the worker's half of [run.Pool.OpenState]: the directory below /run that the runs of a
// node share. Its files decide whether a node stays in service, so only its owner may write there.

// state carries out an operation on the directory.
func state(w *worker, req *wire.Request) *wire.Response {
	resp := &wire.Response{}
	if req.Op == wire.OpOpen {
		release, err := claimOpening(req.Path, onceWait)
		if err != nil {
			return &wire.Response{Err: err.Error()}
		}
		defer release()
	}
	dir, err := openStateDir(req.Path)
	if err == nil {
		switch req.Op {
		case wire.OpOpen:
			return dir.begin(req, w.vars.Supervisor)
		case wire.OpLoad:
			resp.Data, err = dir.load(req.Name)
		case wire.OpSave:
			err = dir.save(req.Name, req.Data)
			// The monitor lives, and an outdated memory would hide a drain.
			inPlace := req.Name == wire.MonitorFile || req.Name == wire.MemoryFile
			if errors.Is(err, unix.ENOSPC) && inPlace && dir.overwrite(req.Name, req.Data) == nil {
				err = nil
			}
		case wire.OpStuck:
			err = dir.addStuck(req.Data)
		case wire.OpLock:
			resp.Busy, err = dir.lock(req.Name, strings.Join(req.Args, ""), w.vars.Supervisor, req.Timeout)
		case wire.OpUnlock:
			err = dir.unlock(req.Name, w.vars.Supervisor)
		}
	}
	if err != nil {
		resp := &wire.Response{Err: err.Error()}
		if errors.Is(err, errNoStateDir) {
			resp.Kind = wire.NoDirectory
		}
		return resp
	}
	return resp
}

// errNoStateDir means that the directory does not exist and cannot be made: no run has stored anything.
var errNoStateDir = errors.New("it does not exist")

type stateDir string

// openStateDir creates the directory and its parents if needed (mode 0700). It refuses
// a directory that another user owns or can write to.
func openStateDir(path string) (stateDir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		if _, missing := os.Lstat(path); errors.Is(missing, fs.ErrNotExist) {
			return "", fmt.Errorf("make state directory: %w, and %w", err, errNoStateDir)
		}
		return "", fmt.Errorf("make state directory: %w", err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		return "", fmt.Errorf("open state directory: %w", err)
	}
	if !info.IsDir() {
		return "", fmt.Errorf("open state directory %s: not a directory", path)
	}
	if err := checkOwner(info); err != nil {
		return "", fmt.Errorf("open state directory %s: %w", path, err)
	}
	return stateDir(path), nil
}

// checkOwner returns an error if another user could have written the file.
func checkOwner(info fs.FileInfo) error {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("owned by user %d", st.Uid)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("writable by others (mode %04o)", info.Mode().Perm())
	}
	return nil
}

// begin reads the data that a run needs at its start. It omits unreadable data.
func (d stateDir) begin(req *wire.Request, supervisor int) *wire.Response {
	resp := &wire.Response{Lines: make([][]byte, wire.OpenedFiles)}
	trouble := func(err error) {
		if err != nil {
			resp.Doubts = append(resp.Doubts, err.Error())
		}
	}
	var err error
	if len(req.Args) == 2 {
		resp.Busy, err = d.lock(req.Args[0], req.Args[1], supervisor, 0)
		trouble(err)
	}
	resp.Lines[wire.OpenedLedger], err = d.load(wire.LedgerFile)
	trouble(err)
	resp.Lines[wire.OpenedCrashes], _ = d.load(wire.CrashFile) // without it there is no count to reset
	resp.Lines[wire.OpenedDrill], err = d.load(wire.DrillFile)
	trouble(err)
	resp.Lines[wire.OpenedMonitor], _ = d.load(wire.MonitorFile) // only says whether the monitor lives
	if req.Name != "" {
		resp.Lines[wire.OpenedLanes], _ = d.load(req.Name) // without it each worker starts when it is needed
	}
	return resp
}

// open opens a file of the directory. It follows no link, and does not block on a pipe.
func (d stateDir) open(name string, how int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(string(d), name), how|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err == nil {
		err = checkOwner(info)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return f, nil
}

// load reads a file, nil if it is missing.
func (d stateDir) load(name string) ([]byte, error) {
	f, err := d.open(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, wire.MaxState+1))
	if err == nil && len(data) > wire.MaxState {
		err = fmt.Errorf("%s: more than %d bytes", f.Name(), wire.MaxState)
	}
	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	return append([]byte{}, data...), nil
}

// save replaces a file atomically: a reader, or the run after a killed one, finds the old file or
// the new one.
func (d stateDir) save(name string, data []byte) error {
	tmp := fmt.Sprintf("%s.%d", name, os.Getpid())
	_ = os.Remove(filepath.Join(string(d), tmp)) // of a dead process with the same PID
	f, err := d.open(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(string(d), name))
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

// overwrite writes a file of JSON in place, into the blocks that it has.
func (d stateDir) overwrite(name string, data []byte) error {
	f, err := d.open(name, os.O_WRONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err = unix.Fstat(int(f.Fd()), &st); err == nil && int64(len(data)) > st.Blocks*512 {
		err = unix.ENOSPC
	}
	if err == nil {
		_, err = f.WriteAt(fmt.Appendf(nil, "%-*s", st.Size, data), 0)
	}
	return err
}

// ledgerWait bounds the wait for another run that writes the ledger. Without the lock an entry may
// be lost; the next hang of that line adds it again.
const ledgerWait = 400 * time.Millisecond

// addStuck adds stuck processes to the ledger and drops those that have ended. Runs overlap, so it
// keeps entries that another run added in the meantime.
func (d stateDir) addStuck(data []byte) error {
	var fresh, all []wire.StuckProcess
	if err := json.Unmarshal(data, &fresh); err != nil {
		return fmt.Errorf("write the list of stuck processes: %w", err)
	}
	if f, err := d.open(wire.LedgerFile+".lock", os.O_RDWR|os.O_CREATE); err == nil {
		defer f.Close()
		_ = probe.Flock(f, unix.LOCK_EX, time.Now().Add(ledgerWait))
	}
	if old, err := d.load(wire.LedgerFile); err == nil {
		_ = json.Unmarshal(old, &all) // an invalid file is replaced
	}
	all = slices.DeleteFunc(append(all, fresh...), func(c wire.StuckProcess) bool { return !process.Alive(c.PID, c.Start) })
	data, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the list of stuck processes: %w", err)
	}
	return d.save(wire.LedgerFile, append(data, '\n'))
}

// A lock is a line in a file with the PID and the start time of the supervisor that holds it. The
// lock ends with that process. flock protects only the line: a worker that no signal can end would
// hold a flock forever, and a replaced worker would lose it.
const (
	lockPoll = 20 * time.Millisecond
	lineWait = 200 * time.Millisecond // for another run that reads or writes the line
)

// lock takes a lock for the supervisor, a run of some kind; "" is none. It waits for the holder at most for
// wait. Then a run that checks the whole node takes the lock from one that checks a part.
func (d stateDir) lock(name, kind string, supervisor int, wait time.Duration) (*wire.Holder, error) {
	st, err := process.ReadStat(supervisor)
	if err != nil {
		return nil, fmt.Errorf("take lock: %w", err)
	}
	f, err := d.open(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, fmt.Errorf("take lock: %w", err)
	}
	defer f.Close()
	end := time.Now().Add(wait)
	for ; ; time.Sleep(lockPoll) {
		err := probe.Flock(f, unix.LOCK_EX, time.Now().Add(lineWait))
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("take lock %s: %w", f.Name(), err)
		}
		flocked := err == nil
		holder, start := readLine(f)
		free := flocked && (holder.PID == supervisor && start == st.Start || start == 0 || !process.Alive(holder.PID, start))
		if flocked && wait > 0 && holder.Part && kind != "" && kind != wire.KindMonitor && !time.Now().Before(end) {
			free = true
		}
		if free {
			if err := checkParent(supervisor); err != nil {
				return nil, fmt.Errorf("take lock %s: %w", f.Name(), err)
			}
			line := fmt.Sprintf(wire.LockLine, supervisor, time.Now().Unix(), st.Start)
			if kind == wire.KindMonitor {
				line += wire.LockPart
			}
			if err := writeLine(f, line); err != nil {
				return nil, fmt.Errorf("take lock: %w", err)
			}
			return nil, nil
		}
		if flocked {
			_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
		}
		if !time.Now().Before(end) {
			return holder, nil
		}
	}
}

// checkParent returns an error if the supervisor has ended. Init, or another process that lives on, is then the
// parent of this one, and a lock in its name would never end.
func checkParent(supervisor int) error {
	if os.Getppid() != supervisor {
		return fmt.Errorf("the supervisor (process %d) has ended", supervisor)
	}
	return nil
}

// unlock releases a lock of the supervisor.
func (d stateDir) unlock(name string, supervisor int) error {
	f, err := d.open(name, os.O_RDWR)
	if err != nil {
		return fmt.Errorf("release lock: %w", err)
	}
	defer f.Close()
	if err := probe.Flock(f, unix.LOCK_EX, time.Now().Add(lineWait)); err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("release lock %s: %w", f.Name(), err)
	}
	if holder, _ := readLine(f); holder.PID != supervisor || checkParent(supervisor) != nil {
		return nil // another process holds it
	}
	if err := writeLine(f, ""); err != nil {
		return fmt.Errorf("release lock: %w", err)
	}
	return nil
}

// readLine reads the holder of a lock; start is 0 if the line does not name a process that can hold it.
func readLine(f *os.File) (h *wire.Holder, start uint64) {
	h = new(wire.Holder)
	line := make([]byte, wire.LockSize)
	n, _ := f.ReadAt(line, 0)
	var pid int
	var since int64
	if got, _ := fmt.Sscanf(string(line[:n]), wire.LockLine, &pid, &since, &start); got < 3 || pid <= 0 || pid == 1 && !isThisProgram(pid) {
		return h, 0
	}
	h.PID, h.Age = pid, max(0, time.Since(time.Unix(since, 0)))
	h.Part = strings.HasSuffix(strings.TrimRight(string(line[:n]), " \n"), wire.LockPart)
	return h, start
}

// isThisProgram reports whether a process runs this program. In a container that can be process 1. Any other process 1
// lives as long as the node, and takes no lock.
func isThisProgram(pid int) bool {
	var own, other unix.Stat_t
	return unix.Stat("/proc/self/exe", &own) == nil && unix.Stat(fmt.Sprintf("/proc/%d/exe", pid), &other) == nil &&
		own.Dev == other.Dev && own.Ino == other.Ino
}

func writeLine(f *os.File, text string) error {
	_, err := f.WriteAt(fmt.Appendf(nil, "%-*s\n", wire.LockSize-1, text), 0)
	return err
}
