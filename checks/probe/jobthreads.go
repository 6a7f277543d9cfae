package probe

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// task is what is needed of the stat file of a process or of a thread.
type task struct {
	name          string
	state         byte
	parent, group int
	session, tty  int
	exiting       bool
	kernel        bool // a thread of the kernel's own
	ticks, start  uint64
}

// The flags PF_EXITING and PF_KTHREAD of the kernel's include/linux/sched.h.
const (
	exiting      = 0x4
	kernelThread = 0x200000
)

// task reads the stat file of a process, "4711", or of a thread, "4711/task/4712".
func (s *jobScan) task(dir string) (t task, err error) {
	n, err := readAt(s.dir, dir+"/stat", s.status[:])
	if err != nil {
		return t, err
	}
	t, ok := parseTask(s.status[:n])
	if !ok {
		return t, &fs.PathError{Op: "parse", Path: "/proc/" + dir + "/stat", Err: fs.ErrInvalid}
	}
	return t, nil
}

func parseTask(data []byte) (t task, good bool) {
	f, good := statFields(data)
	if !good {
		return t, false
	}
	number := func(i int) uint64 {
		n, err := strconv.ParseInt(string(f[i]), 10, 64)
		good = good && err == nil
		return uint64(n)
	}
	first, last := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	t = task{
		name: printable(bytes.Clone(data[first+1 : last])), state: f[statState][0], parent: int(number(statParent)), group: int(number(statGroup)),
		session: int(number(statSession)), tty: int(number(statTTY)),
		exiting: number(statFlags)&exiting != 0, kernel: number(statFlags)&kernelThread != 0, ticks: number(statUser) + number(statSystem), start: number(statStart),
	}
	return t, good
}

// describe looks at the threads of a process: of one that is killed the first may
// be dead while another sleeps in the kernel.
func (s *jobScan) describe(pid int, uid uint32) (p JobProcess, err error) {
	dir := strconv.Itoa(pid)
	p = JobProcess{Process: Process{PID: pid, UID: uid}}
	first, err := s.task(dir)
	if err != nil {
		return p, gone(err)
	}
	p.Start, p.Progress = first.start, first.ticks
	tasks := []string{dir}
	if names, err := s.h.names("/proc/" + dir + "/task"); err == nil {
		tasks = nil
		for _, n := range names {
			tasks = append(tasks, dir+"/task/"+n)
		}
	}
	alive := false
	for _, name := range tasks {
		t, err := s.task(name)
		if err != nil || t.state == 'Z' || t.state == 'X' {
			continue
		}
		alive = true
		if t.state == 'D' && !p.Asleep {
			p.Asleep, p.Wchan, p.Killed = true, s.wchan(name), t.exiting || s.killed(name)
			p.Progress += s.switches(name)
		}
	}
	if !alive {
		return p, fs.ErrNotExist
	}
	p.Owned = s.owned(dir)
	p.GPUs = s.gpus(dir)
	if s.name = append(s.name[:0], dir...); !p.Asleep { // or reading the command line might wait for it
		p.Args = s.command()
	}
	if p.Args == "" {
		p.Args = "[" + first.name + "]"
	}
	return p, nil
}

func (s *jobScan) wchan(dir string) string {
	var buf [128]byte
	n, err := readAt(s.dir, dir+"/wchan", buf[:])
	if err != nil || string(buf[:n]) == "0" {
		return ""
	}
	return oneLine(string(buf[:n]))
}

// statusLine is the value of a line of a status file, nil without one.
func (s *jobScan) statusLine(dir, key string) []byte {
	n, err := readAt(s.dir, dir+"/status", s.status[:])
	if err != nil {
		return nil
	}
	for line := range bytes.Lines(s.status[:n]) {
		if value, ok := bytes.CutPrefix(line, []byte(key)); ok {
			return bytes.TrimSpace(value)
		}
	}
	return nil
}

// switches is how often a thread went to sleep.
func (s *jobScan) switches(dir string) uint64 {
	n, _ := strconv.ParseUint(string(s.statusLine(dir, "voluntary_ctxt_switches:")), 10, 64)
	return n
}

// killed says whether SIGKILL is pending.
func (s *jobScan) killed(dir string) bool {
	for _, key := range []string{"SigPnd:", "ShdPnd:"} {
		mask, err := strconv.ParseUint(string(s.statusLine(dir, key)), 16, 64)
		if err == nil && mask&(1<<(unix.SIGKILL-1)) != 0 {
			return true
		}
	}
	return false
}

// gpus are the numbers of the GPUs that a process has open. Reading a link asks no
// driver.
func (s *jobScan) gpus(dir string) (minors []int) {
	fds := fmt.Sprintf("/proc/%s/fd", dir)
	names, err := s.h.names(fds)
	if err != nil {
		return nil
	}
	for _, n := range names {
		target, _ := os.Readlink(s.h.Path(fds + "/" + n))
		digits, ok := strings.CutPrefix(target, "/dev/nvidia")
		if i, err := strconv.Atoi(digits); ok && err == nil && i >= 0 && !slices.Contains(minors, i) {
			minors = append(minors, i)
		}
	}
	slices.Sort(minors)
	return minors
}
