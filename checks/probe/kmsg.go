package probe

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const kmsgPath = "/dev/kmsg"

// KernelRecord is one record of the kernel's log (Documentation/ABI/testing/dev-kmsg).
type KernelRecord struct {
	Seq   uint64        // counts the records of one boot
	Level int           // 0 emergency ... 7 debug
	At    time.Duration // after the boot, by the clock of printk
	Cont  bool          // printed with KERN_CONT: the rest of an earlier record, or all that its driver prints
	Text  []byte        // without its newline; only valid during the call
}

// KernelLogEnd is the end of a reading of the kernel's log.
type KernelLogEnd struct {
	First   uint64        // the oldest record that was still there
	Begin   time.Duration // its time after the boot
	Next    uint64        // the first unread record; 0: there was none
	Overrun bool          // records were overwritten before they were read
	Cut     bool          // the log has more records than the limit of one reading
	Lost    uint64        // records between the expected and the first one, overwritten before they were read
}

// Complete reports whether the reading has all records from a time after the boot on.
func (e KernelLogEnd) Complete(from time.Duration) bool {
	return e.Next > 0 && !e.Overrun && !e.Cut && e.Lost == 0 && (e.First == 0 || e.Begin <= from)
}

const (
	kmsgBuffer  = 16 << 10 // a record is at most 8 KiB (CONSOLE_EXT_LOG_MAX)
	kmsgRecords = 1 << 20  // of one reading: a kernel that logs endlessly must not block the reader
)

// KernelLog passes the records of /dev/kmsg from sequence number from on to each, as far as the
// kernel itself wrote them: records of processes have another facility, whatever their text is. It
// does not wait for more. Below another root it reads a recorded file of such records.
//
// Each record is complete. The NVIDIA driver prints every line with KERN_CONT (nv_printf in
// kernel-open/nvidia/os-interface.c), so flag c does not mean that another record precedes it. The
// kernel has joined all records that it could (prb_reserve_in_last).
func KernelLog(h *Host, from uint64, each func(KernelRecord)) (KernelLogEnd, error) {
	t, err := OpenKernelLog(h)
	if err != nil {
		return KernelLogEnd{}, err
	}
	defer t.Close()
	return t.read(from, each, false)
}

// KernelTail is the kernel's log, open for several readings.
type KernelTail struct {
	fd       int
	recorded bool // a file: one read returns many records
	grown    int  // for a file: reports that it was written to
}

// OpenKernelLog opens the kernel's log at its oldest record.
func OpenKernelLog(h *Host) (*KernelTail, error) {
	fd, err := Retry(func() (int, error) {
		return unix.Open(h.Path(kmsgPath), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: kmsgPath, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, &fs.PathError{Op: "stat", Path: kmsgPath, Err: err}
	}
	return &KernelTail{fd: fd, recorded: st.Mode&unix.S_IFMT == unix.S_IFREG, grown: -1}, nil
}

// Close closes the log.
func (t *KernelTail) Close() {
	unix.Close(t.fd)
	if t.grown >= 0 {
		unix.Close(t.grown)
	}
}

// Read passes the records that no earlier reading has passed, as [KernelLog] does.
func (t *KernelTail) Read(from uint64, each func(KernelRecord)) (KernelLogEnd, error) {
	return t.read(from, each, true)
}

func (t *KernelTail) read(from uint64, each func(KernelRecord), again bool) (KernelLogEnd, error) {
	l := kernelLog{from: from, each: each, recorded: t.recorded, grows: again && t.recorded}
	err := l.read(func(buf []byte) (int, error) { return unix.Read(t.fd, buf) })
	if err == nil && l.begun > 0 {
		_, err = unix.Seek(t.fd, -l.begun, io.SeekCurrent)
	}
	if err != nil {
		return l.end, &fs.PathError{Op: "read", Path: kmsgPath, Err: err}
	}
	return l.end, nil
}

// Wait waits until the log has more records, at most for limit. A file, which only a test has, is at its end at
// first, and can always be read: inotify reports its growth.
func (t *KernelTail) Wait(limit time.Duration) error {
	fd := t.fd
	if t.recorded {
		if t.grown < 0 {
			var err error
			if t.grown, err = unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC); err != nil {
				return &fs.PathError{Op: "watch", Path: kmsgPath, Err: err}
			}
			if _, err = unix.InotifyAddWatch(t.grown, fmt.Sprintf("/proc/self/fd/%d", t.fd), unix.IN_MODIFY); err != nil {
				return &fs.PathError{Op: "watch", Path: kmsgPath, Err: err}
			}
			return nil // it may have grown before
		}
		fd = t.grown
	}
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if _, err := unix.Poll(fds, int(limit.Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
		return &fs.PathError{Op: "poll", Path: kmsgPath, Err: err}
	}
	if t.recorded {
		buf := make([]byte, 4096)
		for {
			if n, err := unix.Read(t.grown, buf); n <= 0 || err != nil {
				return nil
			}
		}
	}
	return nil
}

// kernelLog is one reading.
type kernelLog struct {
	from     uint64
	each     func(KernelRecord)
	recorded bool  // a file: one read returns many records
	grows    bool  // the last line of the file can be one that is being written
	begun    int64 // bytes of such a line
	end      KernelLogEnd
	count    int
	unnamed  *KernelRecord // a record that lacks the name of a cpuset
}

func (l *kernelLog) read(read func([]byte) (int, error)) error {
	buf := make([]byte, kmsgBuffer)
	rest := 0
	for l.count < kmsgRecords {
		n, err := read(buf[rest:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EPIPE): // the next read gives the oldest record that is left
			l.end.Overrun = true
			l.count++
			continue
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil:
			return err
		case n == 0 && l.grows:
			l.begun = int64(rest)
			return nil
		case n == 0:
			l.addLines(buf[:rest])
			return nil
		case !l.recorded:
			l.addLines(buf[:n])
			continue
		}
		data := buf[:rest+n]
		whole := bytes.LastIndexByte(data, '\n') + 1
		l.addLines(data[:whole])
		rest = copy(buf, data[whole:])
		if rest == len(buf) { // no record is that long
			rest = 0
		}
	}
	l.end.Cut = true
	return nil
}

// addLines handles complete records, each with the lines of its dictionary, which begin with a blank.
func (l *kernelLog) addLines(data []byte) {
	for len(data) > 0 {
		line, more, _ := bytes.Cut(data, []byte("\n"))
		data = more
		if len(line) > 0 && line[0] != ' ' {
			l.addRecord(line)
		}
	}
}

// addRecord handles one record: "6,339,5140900,-;NVRM: loading ...".
func (l *kernelLog) addRecord(line []byte) {
	l.count++
	r, facility, flag, ok := parseKernelRecord(line)
	if !ok {
		return
	}
	if l.end.Next == 0 {
		l.end.First, l.end.Begin = r.Seq, r.At
	}
	if expected := max(l.end.Next, l.from); expected > 0 && r.Seq > expected {
		l.end.Lost += r.Seq - expected
	}
	l.end.Next = max(l.end.Next, r.Seq+1)
	r.Cont = flag == 'c'
	if facility != 0 || flag == '+' || l.cpuset(r) || r.Seq < l.from {
		return
	}
	l.each(r)
}

// These bound the wait for the name of a cpuset: a user who can starve the printing process must
// not be able to delay the driver's lines for long.
const (
	cpusetRecords = 1000
	cpusetTime    = time.Minute
)

// cpuset reports whether a record may be only the name of a cpuset, which a user may have chosen.
// The kernel prints "...,cpuset=NAME,mems_allowed=0" in three parts
// (cpuset_print_current_mems_allowed in kernel/cgroup/cpuset.c). If another processor's record
// comes between them, NAME begins a record with flag c. Until the last part arrives, no record with
// flag c is passed on.
func (l *kernelLog) cpuset(r KernelRecord) bool {
	if u := l.unnamed; u != nil && (r.Seq > u.Seq+cpusetRecords || r.At > u.At+cpusetTime) {
		l.unnamed = nil
	}
	doubtful := r.Cont && l.unnamed != nil
	switch {
	case wantsCpuset(r.Text):
		l.unnamed = &KernelRecord{Seq: r.Seq, At: r.At}
	case doubtful && bytes.Contains(r.Text, []byte(",mems_allowed=")):
		l.unnamed = nil
	}
	return doubtful
}

// wantsCpuset reports whether the name of a cpuset follows a record: a line of the OOM killer, of a
// failed allocation, or such a part of one. Other lines end with the path of a cgroup, which a user
// may have chosen.
func wantsCpuset(text []byte) bool {
	line, ok := bytes.CutSuffix(text, []byte(",cpuset="))
	return ok && !bytes.HasPrefix(line, []byte("cgroup: ")) &&
		(len(line) == 0 || bytes.HasPrefix(line, []byte("oom-kill:constraint=")) || bytes.Contains(line, []byte(", nodemask=")))
}

// parseKernelRecord parses "priority,sequence,microseconds,flag[,...];text". The flag is - or c;
// kernels before 4.10 have + in the middle of a line.
func parseKernelRecord(line []byte) (r KernelRecord, facility uint64, flag byte, ok bool) {
	head, text, ok := bytes.Cut(line, []byte(";"))
	if !ok {
		return r, 0, 0, false
	}
	priority, head, ok1 := cutNumber(head)
	seq, head, ok2 := cutNumber(head)
	at, head, ok3 := cutNumber(head)
	if !ok1 || !ok2 || !ok3 || len(head) == 0 || at > 1<<53 {
		return r, 0, 0, false
	}
	r = KernelRecord{Seq: seq, Level: int(priority & 7), At: time.Duration(at) * time.Microsecond, Text: text}
	return r, priority >> 3, head[0], true
}

// cutNumber removes a decimal number and the comma behind it.
func cutNumber(b []byte) (n uint64, rest []byte, ok bool) {
	i := 0
	for ; i < len(b) && b[i] >= '0' && b[i] <= '9'; i++ {
		if i > 18 {
			return 0, nil, false
		}
		n = n*10 + uint64(b[i]-'0')
	}
	if i == 0 || i == len(b) || b[i] != ',' {
		return 0, nil, false
	}
	return n, b[i+1:], true
}

// BootID returns the id of the current boot, from /proc/sys/kernel/random/boot_id.
func BootID(h *Host) (string, error) {
	return Once(h, "boot id", func() (string, error) {
		return h.ReadValue("/proc/sys/kernel/random/boot_id")
	})
}

// SinceBoot returns the time since the boot, with the time for which the machine was suspended; 0 if it is unknown.
func SinceBoot() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// LogEpoch returns the zero of the times in the kernel's log, in Unix seconds. The clock of printk
// stops while the node is suspended; LogEpoch corrects that for the records logged since then, and
// nothing else, so it may be off by a minute after a month.
func LogEpoch(h *Host) (int64, error) {
	booted, err := BootTime(h)
	if err != nil {
		return 0, err
	}
	var all, awake unix.Timespec
	if h.Recorded() || unix.ClockGettime(unix.CLOCK_BOOTTIME, &all) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &awake) != nil {
		return booted.Unix(), nil
	}
	return booted.Unix() + all.Sec - awake.Sec, nil
}

// Now returns the time of the node; for a recorded node the time of its recording, as far as known.
func Now(h *Host) time.Time {
	if !h.Recorded() {
		return time.Now()
	}
	booted, err := BootTime(h)
	ticks, noUptime := Uptime(h)
	if err != nil || noUptime != nil {
		return time.Now()
	}
	return booted.Add(time.Duration(ticks/ClockTicks) * time.Second)
}

// BootTime returns when the node booted, in seconds, from btime of /proc/stat.
func BootTime(h *Host) (time.Time, error) {
	return Once(h, "boot time", func() (time.Time, error) {
		data, err := h.ReadFile("/proc/stat")
		if err != nil {
			return time.Time{}, err
		}
		seconds, ok := parseBootTime(data)
		if !ok {
			return time.Time{}, &fs.PathError{Op: "parse", Path: "/proc/stat", Err: fs.ErrInvalid}
		}
		return time.Unix(seconds, 0), nil
	})
}

func parseBootTime(data []byte) (seconds int64, ok bool) {
	_, rest, ok := bytes.Cut(data, []byte("\nbtime "))
	if !ok {
		return 0, false
	}
	word, _, _ := bytes.Cut(rest, []byte("\n"))
	seconds, err := strconv.ParseInt(strings.TrimSpace(string(word)), 10, 64)
	return seconds, err == nil && seconds >= 0 && seconds < 1<<40
}
