package probe

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Usage is the resource usage of a process, and its parent, from /proc/PID/stat (proc_pid_stat(5)).
type Usage struct {
	Parent int    // ppid
	Ticks  uint64 // utime + stime, clock ticks of CPU time
	Start  uint64 // starttime, clock ticks after the machine's own start
	VSZ    uint64 // vsize, address space in kB
}

// Seconds returns the CPU time in whole seconds.
func (u Usage) Seconds() uint64 { return u.Ticks / ClockTicks }

// Share returns the CPU time divided by the lifetime in tenths of a percent of one processor,
// rounded down as in ps. uptime is that of [Uptime].
func (u Usage) Share(uptime uint64) uint64 {
	if uptime <= u.Start {
		return 0
	}
	return u.Ticks * 1000 / (uptime - u.Start)
}

// ReadUsage reads the usage of a process of [Processes], once for the life of the Host.
// [os.ErrProcessDone] means that it has ended.
func ReadUsage(h *Host, p Process) (Usage, error) {
	return Once(h, usageKey(p), func() (Usage, error) { return readUsage(h, p) })
}

func usageKey(p Process) string { return "usage " + strconv.Itoa(p.PID) }

func readUsage(h *Host, p Process) (Usage, error) {
	var buf [4 << 10]byte
	path := "/proc/" + strconv.Itoa(p.PID) + "/stat"
	data, err := readProcess(h, path, buf[:])
	if err != nil {
		return Usage{}, err
	}
	u, ok := parseStat(data)
	if !ok {
		return Usage{}, &fs.PathError{Op: "parse", Path: path, Err: fs.ErrInvalid}
	}
	return u, nil
}

// These are the indexes of fields of /proc/PID/stat after the name; proc_pid_stat(5) counts from 3
// there.
const (
	statState   = 0
	statParent  = 1
	statGroup   = 2
	statSession = 3
	statTTY     = 4
	statFlags   = 6
	statUser    = 11
	statSystem  = 12
	statStart   = 19
	statVSize   = 20
)

// splitStat returns the fields of /proc/PID/stat after the name. The name is in parentheses and
// may itself contain blanks, newlines and parentheses; the kernel writes everything after the last
// one.
func splitStat(data []byte) (fields [][]byte, ok bool) {
	_, rest, ok := bytes.Cut(data, []byte("("))
	end := bytes.LastIndexByte(rest, ')')
	if !ok || end < 0 {
		return nil, false
	}
	fields = bytes.Fields(rest[end+1:])
	return fields, len(fields) > statVSize && len(fields[0]) == 1
}

// parseStat parses /proc/PID/stat.
func parseStat(data []byte) (Usage, bool) {
	f, ok := splitStat(data)
	if !ok {
		return Usage{}, false
	}
	good := true
	number := func(i int) uint64 {
		n, err := strconv.ParseUint(string(f[i]), 10, 64)
		good = good && err == nil
		return n
	}
	u := Usage{
		Ticks: number(statUser) + number(statSystem),
		Start: number(statStart),
		VSZ:   number(statVSize) / 1024,
	}
	parent, err := strconv.ParseInt(string(f[statParent]), 10, 32)
	good = good && err == nil && parent >= 0
	u.Parent = int(parent)
	if !good {
		return Usage{}, false
	}
	return u, true
}

// Task is the used part of the stat file of a process or of a thread.
type Task struct {
	Name          string
	State         byte
	Parent, Group int
	Session, Tty  int
	Exiting       bool
	kernel        bool // a kernel thread
	Ticks, Start  uint64
}

// These are PF_EXITING and PF_KTHREAD of the kernel's include/linux/sched.h.
const (
	Exiting      = 0x4
	kernelThread = 0x200000
)

// Task reads the stat file of a process, "4711", or of a thread, "4711/task/4712".
func (r *ProcessReader) Task(dir string) (t Task, err error) {
	n, err := ReadAt(r.Dir, dir+"/stat", r.Status[:])
	if err != nil {
		return t, err
	}
	t, ok := ParseTask(r.Status[:n])
	if !ok {
		return t, &fs.PathError{Op: "parse", Path: "/proc/" + dir + "/stat", Err: fs.ErrInvalid}
	}
	return t, nil
}

// ParseTask parses /proc/PID/stat.
func ParseTask(data []byte) (t Task, good bool) {
	f, good := splitStat(data)
	if !good {
		return t, false
	}
	number := func(i int) uint64 {
		n, err := strconv.ParseInt(string(f[i]), 10, 64)
		good = good && err == nil
		return uint64(n)
	}
	first, last := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	t = Task{
		Name: Printable(bytes.Clone(data[first+1 : last])), State: f[statState][0], Parent: int(number(statParent)), Group: int(number(statGroup)),
		Session: int(number(statSession)), Tty: int(number(statTTY)),
		Exiting: number(statFlags)&Exiting != 0, kernel: number(statFlags)&kernelThread != 0, Ticks: number(statUser) + number(statSystem), Start: number(statStart),
	}
	return t, good
}

// Resident returns the resident memory of a process of [Processes] in kB, VmRSS of
// /proc/PID/status, read once for the life of the Host; 0 for a kernel thread. The rss of its stat
// file is not exact: each processor may have some uncounted pages, which on a large node add up to
// hundreds of MB. [os.ErrProcessDone] means that the process has ended.
func Resident(h *Host, p Process) (uint64, error) {
	return Once(h, "resident "+strconv.Itoa(p.PID), func() (uint64, error) {
		var buf [4 << 10]byte
		path := "/proc/" + strconv.Itoa(p.PID) + "/status"
		data, err := readProcess(h, path, buf[:])
		if err != nil {
			return 0, err
		}
		kB, ok := parseResident(data)
		if !ok {
			return 0, &fs.PathError{Op: "parse", Path: path, Err: fs.ErrInvalid}
		}
		return kB, nil
	})
}

// parseResident parses VmRSS of /proc/PID/status, 0 if it is missing.
func parseResident(data []byte) (kB uint64, ok bool) {
	if _, ok := parseStatus(bytes.Clone(data)); !ok {
		return 0, false
	}
	for line := range bytes.Lines(data) {
		if value, ok := bytes.CutPrefix(line, []byte("VmRSS:")); ok {
			f := bytes.Fields(value)
			if len(f) == 0 {
				return 0, false
			}
			kB, err := strconv.ParseUint(string(f[0]), 10, 64)
			return kB, err == nil
		}
	}
	return 0, true
}

// readProcess reads a file of a process with one read(2).
func readProcess(h *Host, path string, buf []byte) ([]byte, error) {
	n, err := ReadAt(unix.AT_FDCWD, h.Path(path), buf)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return nil, os.ErrProcessDone
	}
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return buf[:n], nil
}

// Uptime returns the time since the machine's boot in clock ticks, from /proc/uptime.
func Uptime(h *Host) (uint64, error) {
	return Once(h, "uptime", func() (uint64, error) {
		const path = "/proc/uptime"
		text, err := h.ReadValue(path)
		if err != nil {
			return 0, err
		}
		ticks, ok := parseUptime(text)
		if !ok {
			return 0, &fs.PathError{Op: "parse", Path: path, Err: fs.ErrInvalid}
		}
		return ticks, nil
	})
}

// maxUptime exceeds any possible uptime, in seconds: thirty thousand years.
const maxUptime = 1e12

func parseUptime(text string) (ticks uint64, ok bool) {
	field, _, _ := bytes.Cut([]byte(text), []byte(" "))
	seconds, err := strconv.ParseFloat(string(field), 64)
	if err != nil || !(seconds >= 0 && seconds < maxUptime) {
		return 0, false
	}
	return uint64(seconds * ClockTicks), true
}
