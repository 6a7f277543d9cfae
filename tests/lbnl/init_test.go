package lbnl

import (
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	initName     = "case-init"            // argv[0] of process 1
	reportFD     = 3                      // where it reports
	programLimit = 90 * time.Second       // the longest case takes 3 s on an idle machine
	settleLimit  = 400 * time.Millisecond // unless the case says otherwise
	textLimit    = 200_000
	callsPath    = dir + "/.calls"
)

// caseInit is the main function of process 1 of a case.
func caseInit() int {
	if err := keepDescriptors(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// Because process 1 catches all signals, it survives those that the program sends to every
	// process. Ignoring them would have the same effect, but children inherit that.
	signal.Notify(make(chan os.Signal, 1))
	r := &report{}
	err := playScene(os.Stdin, r)
	if err != nil {
		r.Err = err.Error()
	}
	if err := gob.NewEncoder(os.NewFile(reportFD, "report")).Encode(r); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// keepDescriptors keeps this process's descriptors, and those from the test's own parent, from its
// children.
func keepDescriptors() error {
	open, err := os.ReadDir("/proc/self/fd")
	for _, d := range open {
		if fd, err := strconv.Atoi(d.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return err
}

// playScene reads a scene, creates the stage, runs the program and fills in the report.
func playScene(in io.Reader, r *report) error {
	var s scene
	if err := json.NewDecoder(in).Decode(&s); err != nil {
		return fmt.Errorf("read scene: %w", err)
	}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		os.Exit(1) // the test is gone
	}()
	if err := s.setStage(); err != nil {
		return err
	}
	log, err := listenSyslog()
	if err != nil {
		return err
	}
	if err := s.dress(); err != nil {
		return err
	}
	cast, err := s.startCast()
	if err != nil {
		return err
	}
	out, err := memFile("stdout")
	if err != nil {
		return err
	}
	errs, err := memFile("stderr")
	if err != nil {
		return err
	}
	if err := s.perform(log, out, errs, r); err != nil {
		return err
	}
	calls, err := os.ReadFile(callsPath)
	if err != nil {
		return err
	}
	r.Outcome.Stdout, r.Outcome.Stderr = memText(out), memText(errs)
	r.Outcome.Calls = append(splitLines(string(calls)), log.lines...)
	r.Outcome.Files = s.collect()
	r.Outcome.Killed = killed(cast)
	return nil
}

// perform runs the program to its end, and then gives its remaining processes some time to end.
func (s *scene) perform(log *syslog, out, errs *os.File, r *report) error {
	before, err := pids()
	if err != nil {
		return err
	}
	begin := time.Now()
	pid, err := s.startProgram(out, errs)
	if err != nil {
		return err
	}
	deadline := begin.Add(programLimit)
	for {
		log.drain()
		var status unix.WaitStatus
		got, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if got == pid {
			r.Outcome.Exit = exitCode(status)
			break
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for the program: %w", err)
		}
		if got <= 0 && time.Now().After(deadline) {
			r.TimedOut, r.Outcome.Exit = true, -1
			_ = unix.Kill(pid, unix.SIGKILL)
			_, _ = unix.Wait4(pid, nil, 0, nil)
			break
		}
		if got <= 0 {
			time.Sleep(4 * time.Millisecond)
		}
	}
	r.Wall = time.Since(begin)
	settle := settleLimit
	if s.Settle != nil {
		settle = time.Duration(*s.Settle * float64(time.Second))
	}
	for end := time.Now().Add(settle); ; time.Sleep(10 * time.Millisecond) {
		for got := 1; got > 0; {
			got, _ = unix.Wait4(-1, nil, unix.WNOHANG, nil)
		}
		log.drain()
		left, err := pids()
		if err != nil {
			return err
		}
		newcomer := func(pid int) bool {
			st := procState(pid)
			return !slices.Contains(before, pid) && st != "" && st != "Z"
		}
		if !slices.ContainsFunc(left, newcomer) || time.Now().After(end) {
			return nil
		}
	}
}

// startProgram starts the program of a scene.
func (s *scene) startProgram(out, errs *os.File) (int, error) {
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C"}
	if s.Env != nil {
		env = nil
		for name, value := range s.Env {
			env = append(env, name+"="+value)
		}
		slices.Sort(env)
	}
	in, err := s.input()
	if err != nil {
		return 0, err
	}
	defer in.Close()
	pid, err := syscall.ForkExec(s.Argv[0], s.Argv, &syscall.ProcAttr{
		Dir:   dir,
		Env:   env,
		Files: []uintptr{in.Fd(), out.Fd(), errs.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: s.Leader == nil || *s.Leader},
	})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", s.Argv[0], err)
	}
	return pid, nil
}

// input opens the program's standard input.
func (s *scene) input() (*os.File, error) {
	if s.Stdin == nil {
		return os.Open("/dev/null")
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	_, err = w.WriteString(*s.Stdin) // it fits into the pipe
	return r, err
}

// collect reads the files of the outcome.
func (s *scene) collect() map[string]string {
	files := map[string]string{}
	for _, path := range s.Collect {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			files[path] = "<dir>"
			continue
		}
		text, err := os.ReadFile(path)
		var errno unix.Errno
		switch {
		case errors.As(err, &errno):
			files[path] = "<" + unix.ErrnoName(errno) + ">"
		case err != nil:
			files[path] = "<" + err.Error() + ">"
		default:
			files[path] = newlines.Replace(string(text[:min(len(text), textLimit)]))
		}
	}
	return files
}

// In the recorded outcomes of the reference every end of line in a file is a newline.
var (
	newlines = strings.NewReplacer("\r\n", "\n", "\r", "\n")
	lineEnd  = regexp.MustCompile(`\r\n|[\n\v\f\r\x1c-\x1e\x{85}\x{2028}\x{2029}]`)
)

// splitLines returns the lines of a text without their ends.
func splitLines(text string) []string {
	if text == "" {
		return nil
	}
	lines := lineEnd.Split(text, -1)
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// memFile returns a file in memory that is only appended to, like a terminal or a pipe.
func memFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", name, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_APPEND); err != nil {
		return nil, fmt.Errorf("append to %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// memText reads the whole file.
func memText(f *os.File) string {
	text, err := io.ReadAll(io.NewSectionReader(f, 0, textLimit))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// exitCode converts a status to a shell's number.
func exitCode(status unix.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// pids lists all processes.
func pids() ([]int, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var all []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			all = append(all, pid)
		}
	}
	return all, nil
}
