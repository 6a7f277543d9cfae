package probe

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ClockTicks is the number of clock ticks of /proc in a second: USER_HZ, on every architecture of
// Go.
const ClockTicks = 100

// Process is one process as "ps axo uid,pid,args" prints it.
type Process struct {
	PID  int
	UID  uint32 // effective uid: the owner of /proc/PID
	Args string // command line with single blanks; [name] of a kernel thread

	Unread bool // the command line could not be read: Args is the name, of at most 15 bytes
}

// MayRun reports whether a process whose command line could not be read may be a program: it has the
// program's name, or an interpreter's, as firewalld has that of Python. It believes the latter only of
// system users, as any user can start an interpreter.
func (p Process) MayRun(h *Host, program string) bool {
	program = path.Base(program)
	return p.Unread && (p.Args == program[:min(len(program), maxName)] ||
		interpreter().MatchString(p.Args) && p.UID < FirstUser && OwnAccord(h, p.PID))
}

// maxName is the length of the longest name in /proc/PID/stat, bytes.
const maxName = 15

var interpreter = Lazily(`^(python|perl|ruby|java|node|php|lua|tclsh|bash$|dash$|sh$)`)

// Command returns the first word of the command line.
func (p Process) Command() string {
	word, _, _ := strings.Cut(p.Args, " ")
	return word
}

// ProcessNow reads one process.
func ProcessNow(h *Host, pid int) (Process, error) {
	r, err := OpenProc(h.Path("/proc"))
	if err != nil {
		return Process{}, err
	}
	defer r.Close()
	return r.read(pid)
}

// Processes lists the processes of /proc by PID. It ignores a process that ends in the meantime, or
// that this user may not read.
func Processes(h *Host) ([]Process, error) {
	return Once(h, "processes", func() ([]Process, error) {
		dir, err := os.Open(h.Path("/proc"))
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: "/proc", Err: Reason(err)}
		}
		defer dir.Close()
		names, err := dir.Readdirnames(-1)
		*Kept[uint64](h, listedAt) = readTicks()
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: "/proc", Err: Reason(err)}
		}
		pids := PIDs(names)
		r := ProcessReader{Dir: int(dir.Fd())}
		r.owners = isProcfs(r.Dir)
		procs, pace := make([]Process, 0, len(pids)), h.Pace()
		r.long = &longArgs{by: map[uint32]int{}}
		for _, pid := range pids {
			pace()
			if p, err := r.read(pid); err == nil {
				procs = append(procs, p)
			}
		}
		return procs, nil
	})
}

// PIDs returns the process IDs among the names of /proc, sorted.
func PIDs(names []string) []int {
	pids := make([]int, 0, len(names))
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// ProcessesOf lists the processes that wants accepts: it sees the name as the command line. The command lines of
// other processes are not read, since users can make them many and long. Threads of the kernel are ignored.
func ProcessesOf(h *Host, wants func(Process) bool) ([]Process, error) {
	names, err := h.Names("/proc")
	if err != nil {
		return nil, err
	}
	r, err := OpenProc(h.Path("/proc"))
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: "/proc", Err: Reason(err)}
	}
	defer r.Close()
	var procs []Process
	pace := h.Pace()
	for _, pid := range PIDs(names) {
		pace()
		uid, err := r.Owner(pid)
		if err != nil {
			continue
		}
		t, _ := r.Task(strconv.Itoa(pid))
		if t.kernel || !wants(Process{PID: pid, UID: uid, Args: t.Name}) {
			continue
		}
		if p, err := r.read(pid); err == nil {
			procs = append(procs, p)
		}
	}
	return procs, nil
}

// listedAt is the key of the time when the processes were listed, in clock ticks after the
// machine's start: a process that started later has reused a listed PID.
const listedAt = "processes listed"

// readTicks returns the time since the machine's boot, in clock ticks; 0 if it is
// unknown.
func readTicks() uint64 { return uint64(SinceBoot()) / (1e9 / ClockTicks) }

// maxArgs bounds the read of a command line, bytes. ps cuts them much earlier, but Java class paths
// are longer than that. Once the long command lines of a person together have maxAllArgs, or those of all persons
// mostAllArgs, only shortArgs of the others are read: a user can have thousands of processes.
const (
	maxArgs     = 64 << 10
	maxAllArgs  = 32 << 20
	mostAllArgs = 128 << 20
	shortArgs   = 1 << 10
)

// longArgs has the bytes of the long command lines of persons.
type longArgs struct {
	by        map[uint32]int // by the user who answers for the processes
	all, most int            // the sum, and the maximum
}

// room returns how much of a command line may be read.
func (r *ProcessReader) room() int {
	if r.long == nil || r.long.most <= maxAllArgs && r.long.all <= mostAllArgs {
		return maxArgs
	}
	if uid, err := r.answerer(); err == nil && uid >= FirstUser && (r.long.by[uid] > maxAllArgs || r.long.all > mostAllArgs) {
		return shortArgs
	}
	return maxArgs
}

// add counts a command line.
func (r *ProcessReader) add(args string) {
	if r.long == nil || len(args) <= shortArgs {
		return
	}
	if uid, err := r.answerer(); err == nil && uid >= FirstUser {
		r.long.by[uid] += len(args)
		r.long.all, r.long.most = r.long.all+len(args), max(r.long.most, r.long.by[uid])
	}
}

// ProcessReader reads processes below an open /proc into reused buffers, because a node may have
// thousands.
type ProcessReader struct {
	Dir    int  // descriptor of /proc
	owners bool // its directories belong to the processes' users
	Name   []byte
	Status [4 << 10]byte
	long   *longArgs // nil: not counted
}

// OpenProc returns a reader of the processes in a directory, which the caller closes.
func OpenProc(dir string) (*ProcessReader, error) {
	fd, err := Open(unix.AT_FDCWD, dir)
	if err != nil {
		return nil, err
	}
	return &ProcessReader{Dir: fd, owners: isProcfs(fd)}, nil
}

// Close closes the descriptor of /proc.
func (r *ProcessReader) Close() { unix.Close(r.Dir) }

func (r *ProcessReader) read(pid int) (Process, error) {
	r.Name = strconv.AppendInt(r.Name[:0], int64(pid), 10)
	p := Process{PID: pid}
	var s status
	var err error
	if r.owners {
		if p.UID, err = readOwner(r.Dir, string(r.Name)); err != nil {
			return p, err
		}
		if p.Args, p.Unread = r.Command(); p.Args != "" {
			return p, nil
		}
		s, err = r.readNameless()
	} else {
		s, err = r.readState()
		p.UID = s.uid
	}
	if err != nil {
		return p, err
	}
	if s.memory {
		p.Args, p.Unread = r.Command()
	}
	if p.Args == "" {
		p.Args = "[" + s.name + "]"
		if s.dead {
			p.Args += " <defunct>"
		}
	}
	return p, nil
}

// Command returns the command line, "" if it is missing or not readable: readState finds out the
// reason. If the memory of the process is locked, it returns the name of the program, and true.
func (r *ProcessReader) Command() (args string, unread bool) {
	err := readMemory(r.Dir, string(r.Name), "cmdline", r.room(), false, func(data []byte) { args = CommandLine(data) })
	r.add(args)
	if errors.Is(err, ErrUnread) {
		t, _ := r.Task(string(r.Name))
		return t.Name, true
	}
	return args, false
}

// readState reads the status file, which takes as long as all other files together.
func (r *ProcessReader) readState() (status, error) {
	n, err := ReadAt(r.Dir, string(r.Name)+"/status", r.Status[:])
	if err != nil {
		return status{}, err
	}
	s, ok := parseStatus(r.Status[:n])
	if !ok {
		return s, errBadStatus
	}
	return s, nil
}

// readNameless returns the state of a process without a command line, usually a kernel thread, but not
// its owners. Reading its stat file takes two thirds of the time of the status file.
func (r *ProcessReader) readNameless() (status, error) {
	t, err := r.Task(string(r.Name))
	return status{name: t.Name, dead: t.State == 'Z' || t.State == 'X', memory: !t.kernel}, err
}

// Owner returns the effective uid of a process.
func (r *ProcessReader) Owner(pid int) (uint32, error) {
	r.Name = strconv.AppendInt(r.Name[:0], int64(pid), 10)
	if r.owners {
		return readOwner(r.Dir, string(r.Name))
	}
	st, err := r.readState()
	return st.uid, err
}

// Gone replaces the error of a process that has ended by [os.ErrProcessDone].
func Gone(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) {
		return fs.ErrNotExist
	}
	return err
}

// isProcfs reports whether the directories below a descriptor are the kernel's, which belong to the
// effective users of the processes (task_dump_owner in the kernel's fs/proc/base.c). In a copy they
// belong to its creator.
func isProcfs(dir int) bool {
	var s unix.Statfs_t
	return unix.Fstatfs(dir, &s) == nil && s.Type == unix.PROC_SUPER_MAGIC
}

func readOwner(dir int, name string) (uint32, error) {
	var s unix.Stat_t
	err := unix.Fstatat(dir, name, &s, 0)
	return s.Uid, err
}

var errBadStatus = &fs.PathError{Op: "parse", Path: "status", Err: fs.ErrInvalid}

// status is the used part of /proc/PID/status.
type status struct {
	name   string // command name, cut at 15 bytes by the kernel
	uid    uint32 // effective
	real   uint32
	dead   bool // zombie, or about to disappear
	memory bool // has an address space: neither kernel thread nor zombie
}

// parseStatus parses /proc/PID/status. The kernel writes the name first and escapes newlines in it,
// so that no name can imitate another line.
func parseStatus(data []byte) (status, bool) {
	var s status
	rest, ok := bytes.CutPrefix(data, []byte("Name:\t"))
	if !ok {
		return s, false
	}
	name, rest, _ := bytes.Cut(rest, []byte("\n"))
	s.name = Printable(unescapeName(name))
	owner := false
	for line := range bytes.Lines(rest) {
		key, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			continue
		}
		switch string(key) {
		case "State":
			v := bytes.TrimSpace(value)
			s.dead = len(v) > 0 && (v[0] == 'Z' || v[0] == 'X')
		case "Uid":
			s.real, s.uid, owner = parseOwners(value)
		case "VmSize":
			s.memory = true
			return s, owner
		}
	}
	return s, owner
}

// parseOwners parses the real and the effective uid. The saved and the file system uid follow them.
func parseOwners(value []byte) (uid, effective uint32, ok bool) {
	first, rest, _ := bytes.Cut(bytes.TrimLeft(value, "\t "), []byte("\t"))
	second, _, _ := bytes.Cut(rest, []byte("\t"))
	r, err1 := strconv.ParseUint(string(first), 10, 32)
	e, err2 := strconv.ParseUint(string(second), 10, 32)
	return uint32(r), uint32(e), err1 == nil && err2 == nil
}

// unescapeName decodes the two escapes of the kernel's name line, in place.
func unescapeName(name []byte) []byte {
	out := name[:0]
	for i := 0; i < len(name); i++ {
		c := name[i]
		if c == '\\' && i+1 < len(name) {
			switch name[i+1] {
			case 'n':
				c = '\n'
				i++
			case '\\':
				i++
			}
		}
		out = append(out, c)
	}
	return out
}

// CommandLine converts /proc/PID/cmdline to the words that ps shows.
func CommandLine(data []byte) string { return printable(data, 0) }

// NoProcess reports whether no process has that PID now; it returns false if in doubt.
func NoProcess(h *Host, pid int) bool {
	_, err := os.Lstat(h.Path("/proc/" + strconv.Itoa(pid)))
	return errors.Is(err, fs.ErrNotExist)
}

// SeesAllProcesses reports whether /proc shows every process of the node: to root, outside of
// containers. It assumes so for a recorded node without that information if any process was
// recorded.
func SeesAllProcesses(h *Host) bool {
	name, err := os.Readlink(h.Path("/proc/self/ns/pid"))
	if h.Recorded() && err != nil {
		return !NoProcess(h, 1)
	}
	return err == nil && name == firstPIDs && (os.Geteuid() == 0 || h.Recorded())
}
