package probe

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// execute starts a program as bash does. It searches the PATH unless the name has a slash, and runs
// a text file without an interpreter line by bash.
//
// It does not use os/exec, because that package starts an additional process before its first start
// to test whether the kernel has pidfds.
func execute(h *Host, c Command, attr *syscall.SysProcAttr, stdout, stderr *os.File) (pid int, err error) {
	dir := c.Dir
	if dir != "" {
		dir = h.Path(dir)
		if unix.Access(dir, unix.X_OK) != nil {
			dir = "" // a folder that is gone: where this process is, as bash would stay
		}
	}
	path := h.Path(c.Program)
	if c.Program == "" {
		if path, err = FindProgram(h, c.Argv, dir); err != nil {
			return 0, err
		}
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	stdin, err := openStdin(h, c)
	if err != nil {
		return 0, err
	}
	if stdin != nil {
		defer stdin.Close()
	}
	if c.Merge {
		stderr = stdout
	}
	proc := &syscall.ProcAttr{Dir: dir, Env: dropDuplicates(append(removePrefix(h, c.Unset), c.Env...)), Sys: attr}
	for _, f := range []*os.File{stdin, stdout, stderr} {
		if f == nil {
			f = null
		}
		proc.Files = append(proc.Files, f.Fd())
	}
	err = runOnCPUs(c.CPUs, func() error {
		pid, err = syscall.ForkExec(path, c.Argv, proc)
		if errors.Is(err, unix.ENOEXEC) && isText(path) {
			pid, err = syscall.ForkExec(h.Path("/bin/bash"), append([]string{"bash", path}, c.Argv[1:]...), proc)
		}
		return err
	})
	if err != nil {
		return 0, &fs.PathError{Op: "run", Path: path, Err: err}
	}
	return pid, nil
}

// dropDuplicates drops all but the last setting of each variable.
func dropDuplicates(env []string) []string {
	seen := make(map[string]bool, len(env))
	var kept []string
	for _, e := range slices.Backward(env) {
		name, _, _ := strings.Cut(e, "=")
		if !seen[name] {
			seen[name] = true
			kept = append(kept, e)
		}
	}
	slices.Reverse(kept)
	return kept
}

// openStdin opens the standard input of a command, nil for none.
func openStdin(h *Host, c Command) (*os.File, error) {
	if c.stdin != nil {
		return c.stdin, nil
	}
	if c.Input != "" {
		f, err := os.OpenFile(h.Path(c.Input), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", c.Input, Reason(err))
		}
		return f, nil
	}
	if c.Stdin == nil {
		return nil, nil
	}
	return SealText("nhc-stdin", c.Stdin)
}

// SealText returns a memory file with a text that no process can change. A pipe would lose a text that
// does not fit into it, or block its writer: the command may never read.
func SealText(name string, text []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make memory file: %w", err)
	}
	writable := os.NewFile(uintptr(fd), name)
	defer writable.Close()
	if _, err := writable.Write(text); err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		return nil, fmt.Errorf("seal memory file: %w", err)
	}
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
}

// pipeSize is the capacity of an empty pipe, bytes (pipe(7)).
const pipeSize = 64 << 10

// FindProgram returns the path of a command's program on this machine.
func FindProgram(h *Host, argv []string, dir string) (string, error) {
	name := ""
	if len(argv) > 0 {
		name = argv[0]
	}
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			return filepath.Join(dir, name), nil
		}
		return h.Path(name), nil
	}
	if name == "" {
		return "", &fs.PathError{Op: "run", Path: name, Err: fs.ErrNotExist}
	}
	inert := "" // a file of that name that cannot be run
	for _, d := range filepath.SplitList(h.Getenv("PATH")) {
		path := h.Path(filepath.Join(d, name))
		st, err := os.Stat(path)
		if err != nil || st.IsDir() {
			continue
		}
		if unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS) == nil {
			return path, nil
		}
		if inert == "" {
			inert = path
		}
	}
	if inert == "" {
		return "", &fs.PathError{Op: "run", Path: name, Err: fs.ErrNotExist}
	}
	return inert, nil
}

// Environment returns the environment of commands: the one of [Host.SetEnviron], with CommandPath if it has no
// PATH, or that of this process with CommandPath as its PATH.
func Environment(h *Host) []string {
	if h.environ == nil {
		return append(os.Environ(), "PATH="+CommandPath) // the last setting of a variable counts
	}
	return append([]string{"PATH=" + CommandPath}, h.environ...)
}

// removePrefix returns the environment without the variables with that prefix; "" keeps all.
func removePrefix(h *Host, prefix string) []string {
	env := Environment(h)
	if prefix == "" {
		return env
	}
	return slices.DeleteFunc(env, func(e string) bool { return strings.HasPrefix(e, prefix) })
}

// isText reports whether bash would run a file as a script: its first line has no zero byte.
func isText(path string) bool {
	buf := make([]byte, 80)
	n, err := ReadAt(unix.AT_FDCWD, path, buf)
	if err != nil {
		return false
	}
	line, _, _ := bytes.Cut(buf[:n], []byte("\n"))
	return bytes.IndexByte(line, 0) < 0
}

// Exit statuses of bash.
const (
	notExecutable = 126
	NotFound      = 127
	Signalled     = 128 // plus the number of the signal
)

// startStatus returns bash's status for a command that could not start.
func startStatus(err error) int {
	if errors.Is(err, fs.ErrNotExist) {
		return NotFound
	}
	return notExecutable
}

// ExitStatus returns bash's status for a process that has ended.
func ExitStatus(w syscall.WaitStatus) int {
	if w.Signaled() {
		return Signalled + int(w.Signal())
	}
	return w.ExitStatus()
}

// capture keeps the beginning of the data written to a pipe and drops the rest, so that the writer
// never has to wait.
type capture struct {
	r     *os.File
	limit int
	eof   chan struct{} // closed at the end of the data
	kept  []byte
	more  bool
}

// newCapture also returns the write end of the pipe, which the caller closes.
func newCapture(limit int, heard func([]byte)) (*capture, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	c := &capture{r: r, limit: limit, eof: make(chan struct{})}
	go func() {
		defer close(c.eof)
		buf := make([]byte, pipeSize)
		for {
			n, err := r.Read(buf)
			c.keep(buf[:n])
			if heard != nil && n > 0 {
				heard(c.kept)
			}
			if err != nil {
				return
			}
		}
	}()
	return c, w, nil
}

func (c *capture) keep(data []byte) {
	room := c.limit - len(c.kept)
	c.kept = append(c.kept, data[:min(room, len(data))]...)
	c.more = c.more || len(data) > room
}

// stop closes the pipe and returns the kept data, and whether there was more. It includes data
// still in the pipe that the reading goroutine has not read yet.
func (c *capture) stop() ([]byte, bool) {
	_ = c.r.SetReadDeadline(time.Now()) // ends that goroutine even if a process left behind still writes
	<-c.eof
	_ = c.r.SetReadDeadline(time.Time{})
	if conn, err := c.r.SyscallConn(); err == nil {
		buf := make([]byte, pipeSize) // the capacity of the pipe
		_ = conn.Read(func(fd uintptr) bool {
			for range 64 { // a pipe holds pages of 4 or 64 KiB, 16 of them by default
				n, err := unix.Read(int(fd), buf)
				if err != nil || n == 0 {
					break
				}
				c.keep(buf[:n])
			}
			return true
		})
	}
	_ = c.r.Close()
	return c.kept, c.more
}

// listDescendants lists the processes below pid outside its process group, which a signal to the group
// does not reach.
func listDescendants(pid int) []int {
	var all []int
	for todo := []int{pid}; len(todo) > 0; {
		next := Children(todo[0])
		todo = append(todo[1:], next...)
		for _, c := range next {
			if pgid, err := unix.Getpgid(c); err == nil && pgid != pid {
				all = append(all, c)
			}
		}
	}
	return all
}

// Children reads /proc/PID/task/*/children of this machine; kernels built without it list none.
func Children(pid int) []int {
	files, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/[0-9]*/children")
	var pids []int
	for _, f := range files {
		data, err := readAll(f)
		if err != nil {
			continue
		}
		for field := range bytes.FieldsSeq(data) {
			if n, err := strconv.Atoi(string(field)); err == nil {
				pids = append(pids, n)
			}
		}
	}
	return pids
}

// runOnCPUs calls do on a thread that may run only on these CPUs; processes that it starts inherit
// that. If the CPUs are not available, as in a cpuset without them, the thread runs on any CPU.
func runOnCPUs(cpus []int, do func() error) error {
	if len(cpus) == 0 {
		return do()
	}
	runtime.LockOSThread()
	old := unix.NewCPUSet(MaxCPUs - 1)
	if err := unix.SchedGetaffinityDynamic(0, old); err != nil {
		runtime.UnlockOSThread()
		return do()
	}
	defer func() {
		if unix.SchedSetaffinityDynamic(0, old) == nil { // else the thread ends with its goroutine
			runtime.UnlockOSThread()
		}
	}()
	set := CPUSet(slices.DeleteFunc(slices.Clone(cpus), func(cpu int) bool { return !old.IsSet(cpu) }))
	if set.Count() > 0 {
		_ = unix.SchedSetaffinityDynamic(0, set)
	}
	return do()
}

// MaxCPUs is the kernel's maximum number of CPUs on this architecture (NR_CPUS).
const MaxCPUs = 8192

// CPUSet is a set of CPUs as sched_setaffinity takes it.
func CPUSet(cpus []int) unix.CPUSetDynamic {
	set := unix.NewCPUSet(MaxCPUs - 1)
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	return set
}
