package probe

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ClockTicks is how many clock ticks of /proc make a second: USER_HZ, on every
// architecture that Go knows.
const ClockTicks = 100

// Usage is what a process uses, and whose child it is, from /proc/PID/stat
// (proc_pid_stat(5)).
type Usage struct {
	Parent int    // ppid
	Ticks  uint64 // utime + stime, clock ticks of CPU time
	Start  uint64 // starttime, clock ticks after the machine's own start
	VSZ    uint64 // vsize, address space in kB
	RSS    uint64 // rss, resident memory in kB
}

// Seconds is the CPU time in whole seconds.
func (u Usage) Seconds() uint64 { return u.Ticks / ClockTicks }

// Share is the CPU time per time of life in tenths of a percent of one
// processor, rounded down as ps does. uptime is that of [Host.Uptime].
func (u Usage) Share(uptime uint64) uint64 {
	if uptime <= u.Start {
		return 0
	}
	return u.Ticks * 1000 / (uptime - u.Start)
}

// Usage reads what a process of [Host.Processes] uses, once for the life of the
// Host. [os.ErrProcessDone] means that it has ended.
func (h *Host) Usage(p Process) (Usage, error) {
	return once(h, usageKey(p), func() (Usage, error) { return h.readUsage(p) })
}

func usageKey(p Process) string { return "usage " + strconv.Itoa(p.PID) }

func (h *Host) readUsage(p Process) (Usage, error) {
	var buf [4 << 10]byte
	path := "/proc/" + strconv.Itoa(p.PID) + "/stat"
	n, err := readAt(unix.AT_FDCWD, h.Path(path), buf[:])
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return Usage{}, os.ErrProcessDone
	}
	if err != nil {
		return Usage{}, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	u, ok := parseStat(buf[:n])
	if !ok {
		return Usage{}, &fs.PathError{Op: "parse", Path: path, Err: fs.ErrInvalid}
	}
	return u, nil
}

// Places in the fields of /proc/PID/stat behind the name; proc_pid_stat(5)
// counts from 3 there.
const (
	statParent = 1
	statUser   = 11
	statSystem = 12
	statStart  = 19
	statVSize  = 20
	statRSS    = 21
)

// parseStat reads /proc/PID/stat. The name stands in parentheses and may itself
// hold blanks, newlines and parentheses; what follows the last one is the
// kernel's.
func parseStat(data []byte) (Usage, bool) {
	_, rest, ok := bytes.Cut(data, []byte("("))
	end := bytes.LastIndexByte(rest, ')')
	if !ok || end < 0 {
		return Usage{}, false
	}
	f := bytes.Fields(rest[end+1:])
	if len(f) <= statRSS || len(f[0]) != 1 {
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
	pages, err := strconv.ParseInt(string(f[statRSS]), 10, 64) // may be below 0 for a moment
	good = good && err == nil
	u.RSS = uint64(max(pages, 0)) * uint64(os.Getpagesize()) / 1024
	if !good {
		return Usage{}, false
	}
	return u, true
}

// Uptime is how long the machine runs, in clock ticks, from /proc/uptime.
func (h *Host) Uptime() (uint64, error) {
	return once(h, "uptime", func() (uint64, error) {
		const path = "/proc/uptime"
		text, err := h.readValue(path)
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

// maxUptime is more than a machine can run, in seconds: thirty thousand years.
const maxUptime = 1e12

func parseUptime(text string) (ticks uint64, ok bool) {
	field, _, _ := bytes.Cut([]byte(text), []byte(" "))
	seconds, err := strconv.ParseFloat(string(field), 64)
	if err != nil || !(seconds >= 0 && seconds < maxUptime) {
		return 0, false
	}
	return uint64(seconds * ClockTicks), true
}
