package run

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// These are the descriptors that bash gets, see prelude.sh. A line that opens one by its number would
// take it away from the run, so the numbers are ones that no one writes. Below a low hard limit of open files
// all of them are lower, see countLower.
const (
	fdCommands = 240
	fdEvents   = 241
	fdAnswers  = 242
	fdLine     = 243
	fdInit     = 244
	fdLibrary  = 245
	fdScratch  = 246
)

var shellFds = [...]int{fdCommands, fdEvents, fdAnswers, fdLine, fdInit, fdLibrary, fdScratch}

// fewestFiles is the lowest hard limit of open files below which bash starts.
const fewestFiles = 68

// countLower returns by how much the descriptors of bash are below their numbers, so that they fit below the hard
// limit of open files. The soft limit of this program can be one less: Go raises it to the hard one only if it is
// further away.
func countLower() (lower int, err error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read the limit of open files (RLIMIT_NOFILE): %w", err)
	}
	if limit.Max < fewestFiles {
		return 0, fmt.Errorf("the hard limit of open files (RLIMIT_NOFILE) is %d, want at least %d", limit.Max, fewestFiles)
	}
	return fdScratch + 2 - int(min(limit.Max, fdScratch+2)), nil
}

// numbered matches the descriptors of bash in the prelude, and the limit that is above them.
var numbered = checks.Lazily(`\b24[0-7]\b`)

// lowerFds returns text of bash with lower descriptors.
func lowerFds(text string, lower int) string {
	if lower == 0 {
		return text
	}
	return numbered().ReplaceAllStringFunc(text, func(s string) string {
		fd, _ := strconv.Atoi(s)
		return strconv.Itoa(fd - lower)
	})
}

// ShellSetup has the settings that a shell starts with.
type ShellSetup struct {
	Program string   // $0
	Init    string   // bash text with variables and redirections, which runs first
	Env     []string // its environment
	Trace   bool     // -x
}

// Shell is the one real bash of a run, in its own session. It is not safe for concurrent use.
type Shell struct {
	pid     int
	done    <-chan struct{}
	end     *death
	cmd     int // write end of its commands
	ans     int // write end of its answers
	fds     [3]int
	open    [3]bool
	senders map[int32]*sender // of events, by their process
	speaks  *sender           // the sender of the current events
	ready   bool              // bash has started
	leaves  bool              // bash has announced its end
	traps   bool              // a trap of the site on EXIT runs then
	until   time.Time         // deadline of the command; zero means none
	handler ShellHandler
	wake    int // read end of the pipe that a signal uses to interrupt a wait
	marks   process.Marks
	number  int // of the command
	lower   int // see countLower
}

// ErrInterrupted means that a signal ended the wait for the shell.
var ErrInterrupted = errors.New("interrupted by a signal")

// ErrForged means that a process of another user sent events in the shell's name.
var ErrForged = errors.New("the line cannot be evaluated")

// ErrDeadline means that the shell did not answer in time.
var ErrDeadline = errors.New("deadline exceeded")

// StartShell starts bash. wake is a descriptor that becomes readable when a signal interrupts the
// run, -1 for none.
func StartShell(setup ShellSetup, h ShellHandler, wake int) (*Shell, error) {
	lower, err := countLower()
	if err != nil {
		return nil, fmt.Errorf("start bash: %w", err)
	}
	var init strings.Builder
	init.WriteString("__nhc_names=(" + strings.Join(slices.Concat(SettingNames, slices.Sorted(maps.Keys(checks.Variables()))), " ") + ")\n")
	init.WriteString(lowerFds(prelude+preludeChecks, lower))
	init.WriteString("readonly -f " + strings.Join(ownFunctions(), " ") + "\n") // the loop needs them
	fmt.Fprintf(&init, "exec %d<&-\n__nhc_reserve", fdInit-lower)               // bash has read it
	for _, fd := range shellFds {
		if fd != fdInit {
			fmt.Fprintf(&init, " %d", fd-lower)
		}
	}
	init.WriteString("\n")
	init.WriteString("__nhc_checks=(" + strings.Join(checks.Names(), " ") + ")\n__nhc_native \"${__nhc_checks[@]}\"\n")
	for _, m := range libraryName().FindAllStringSubmatch(library+libfacts, -1) {
		init.WriteString(m[1] + "() { __nhc_library; " + m[1] + " \"$@\"; }\n")
	}
	init.WriteString("set -f\n")
	init.WriteString(setup.Init)
	init.WriteString("\n__nhc_traps\n__nhc_event ready\n")
	if setup.Trace {
		init.WriteString("set -x\n")
	}
	init.WriteString("__nhc_loop\n")

	files, err := openShellPipes(init.String())
	if err != nil {
		return nil, fmt.Errorf("start bash: %w", err)
	}
	defer files.closeChild()
	// The child is this program again: it moves the descriptors to their numbers and becomes bash.
	// So the supervisor never executes a file that may lie on a dead mount.
	pid, err := spawn([]string{wire.WorkerName, "shell", setup.Program}, setup.Env, os.Stdin, files.stdout, files.stderr,
		files.commands, files.events, files.answers, files.line, files.init, files.library, files.scratch)
	if err != nil {
		files.closeParent()
		return nil, fmt.Errorf("start bash: %w", err)
	}
	s := &Shell{
		pid: pid, handler: h, wake: wake, lower: lower,
		cmd: files.cmdFd, ans: files.ansFd, fds: [3]int{files.evFd, files.outFd, files.errFd}, open: [3]bool{true, true, true},
	}
	s.done, s.end = reap(pid, false)
	s.marks = process.NewMarks()
	s.mark()
	return s, nil
}

// BecomeShell replaces a worker by bash. It returns only with an error.
func BecomeShell(program string) error {
	lower, err := countLower() // the hard limit is inherited
	if err != nil {
		return err
	}
	for i, fd := range shellFds {
		if err := unix.Dup3(3+i, fd-lower, 0); err != nil {
			return fmt.Errorf("duplicate descriptor %d as %d: %w", 3+i, fd-lower, err)
		}
	}
	for i := range shellFds {
		_ = unix.Close(3 + i)
	}
	argv := []string{"bash", "--noprofile", "--norc", "-c", ". /proc/self/fd/" + strconv.Itoa(fdInit-lower), program}
	err = unix.Exec("/bin/bash", argv, os.Environ()) //nolint:forbidigo // the child that becomes bash
	return fmt.Errorf("exec /bin/bash: %w", err)
}

// Guarded returns the data that a guard needs to end the shell, see [Pool.Guard].
func (s *Shell) Guarded() process.Guarded {
	g := process.Guarded{PID: s.pid, Marks: s.marks}
	if st, err := process.ReadStat(s.pid); err == nil {
		g.Start = st.Start
	}
	return g
}

// mark gives a new number to the processes that start from now on.
func (s *Shell) mark() {
	s.number++
	s.marks.Set(s.pid, s.number)
}

// Pid returns the PID of the shell, which is also its session.
func (s *Shell) Pid() int { return s.pid }

// Line runs one check line and waits for its end. exited is true if the line ended the shell
// itself, with that status.
func (s *Shell) Line(forked bool, number int, text string, deadline time.Time) (status int, exited bool, err error) {
	op := "run"
	if forked {
		op = "fork"
	}
	return s.command(deadline, op, strconv.Itoa(number), text)
}

// Set evaluates an assignment that this program has carried out already.
func (s *Shell) Set(text string, deadline time.Time) error {
	s.until = deadline
	return s.send(s.cmd, "set", text)
}

// Failed is a failure outside the shell that the site's own OFFLINE_NODE gets.
type Failed struct {
	Number, Line string // of the check line, as CNUM and CHECK; empty if the failure is not about a line
	Message      string
	Syslog       string // text that syslog gets before, if any
}

// Helper runs the site's own OFFLINE_NODE, or ONLINE_NODE if nothing has failed.
func (s *Shell) Helper(failed *Failed, deadline time.Time) (status int, err error) {
	fields := []string{"online"}
	if failed != nil {
		fields = []string{"offline", failed.Number, failed.Line, failed.Message, failed.Syslog}
	}
	status, _, err = s.command(deadline, fields...)
	return status, err
}

// Test evaluates a command in a subshell: an external matcher.
func (s *Shell) Test(command string, deadline time.Time) (status int, err error) {
	status, _, err = s.command(deadline, "match", command)
	return status, err
}

// Load sources the scripts of $INCDIR in order. exited is true if one of them ended the shell, with
// that status.
func (s *Shell) Load(scripts []wire.Script, deadline time.Time) (status int, exited bool, err error) {
	words := buildLoadArgs(scripts)
	fields := append([]string{"load", strconv.Itoa(len(words))}, words...)
	return s.command(deadline, fields...)
}

// Source reads a file of shell text and reports the settings that it changed.
func (s *Shell) Source(path string, deadline time.Time) (status int, exited bool, err error) {
	return s.command(deadline, "source", path)
}

func (s *Shell) command(deadline time.Time, fields ...string) (int, bool, error) {
	s.until = deadline
	s.mark()
	if err := s.send(s.cmd, fields...); err != nil {
		return 0, false, err
	}
	status, exited, err := s.await()
	if err == nil && !exited {
		s.mark() // processes that this command left behind may stay
	}
	return status, exited, err
}

// send writes to bash until the command's deadline, because bash may not be reading.
func (s *Shell) send(fd int, fields ...string) error {
	var b []byte
	for _, f := range fields {
		b = append(append(b, strings.ReplaceAll(f, "\x00", "")...), 0)
	}
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err == unix.EAGAIN {
			if err := s.awaitRoom(fd); err != nil {
				return err
			}
			continue
		}
		if err == unix.EINTR {
			continue
		}
		if err == unix.EPIPE {
			return nil // bash has stopped reading: its last events or its exit status explain why
		}
		if err != nil {
			return fmt.Errorf("write to bash: %w", err)
		}
		b = b[n:]
	}
	return nil
}

func (s *Shell) awaitRoom(fd int) error {
	wait, err := s.waitTime()
	if err != nil {
		return err
	}
	s.drain() // or bash may wait for us, too
	polls := []unix.PollFd{
		{Fd: int32(fd), Events: unix.POLLOUT},
		{Fd: int32(s.wake), Events: unix.POLLIN},
		{Fd: int32(s.fds[atStdout]), Events: unix.POLLIN},
		{Fd: int32(s.fds[atStderr]), Events: unix.POLLIN},
	}
	for i, at := range []int{atStdout, atStderr} {
		if !s.open[at] {
			polls[2+i].Fd = -1
		}
	}
	if _, err := unix.Poll(polls, wait); err != nil && err != unix.EINTR {
		return fmt.Errorf("wait for bash: %w", err)
	}
	if polls[1].Revents != 0 {
		return ErrInterrupted
	}
	return nil
}

// look is the interval of the tests whether bash still lives: processes that it started may keep
// its descriptors open.
const look = 250 * time.Millisecond

// waitTime returns how long to wait for bash until the next look, in milliseconds.
func (s *Shell) waitTime() (int, error) {
	d := look
	if !s.until.IsZero() {
		if d = min(d, time.Until(s.until)); d <= 0 {
			return 0, ErrDeadline
		}
	}
	return int(d.Milliseconds()) + 1, nil
}

// closeGrace is how long bash may take to exit.
const closeGrace = time.Second

// Close makes the shell exit and gives it a moment. A site's own trap on EXIT has until the deadline, or until
// a signal interrupts the run; so has bash until it has announced that there is none. If the shell had to be
// killed, overdue names the part that did not end.
func (s *Shell) Close(deadline time.Time) (overdue string) {
	shut(&s.cmd)
	shut(&s.ans) // the trap gets no answers
	grace := time.Now().Add(closeGrace)
	tick := time.NewTicker(closeGrace / 20)
	defer tick.Stop()
	for left := false; !left && overdue == ""; {
		select {
		case <-s.done:
			left = true
		case <-tick.C:
			s.drain() // or the trap waits for room
			s.readEnd()
			end := grace
			if (s.traps || !s.leaves) && deadline.After(grace) && !s.interrupted() {
				end = deadline
			}
			switch {
			case time.Now().Before(end):
			case s.traps:
				overdue = "the trap on EXIT of the site"
			default:
				overdue = "bash"
			}
		}
	}
	if overdue != "" {
		s.Guarded().End(s.number)
	}
	s.drain()
	s.close()
	return overdue
}

// readEnd takes the announcement of the end of bash. Nothing else that it sends matters now.
func (s *Shell) readEnd() {
	for {
		for s.speaks != nil {
			name, fields, ok, err := s.speaks.next()
			if err != nil || !ok {
				break
			}
			s.leaves = s.leaves || name == "lost" || name == "exit"
			s.traps = s.traps || name == "lost" && field(fields, 0) != ""
		}
		var err error
		if s.speaks, err = s.receive(); err != nil || s.speaks == nil {
			return
		}
	}
}

// interrupted reports whether a signal has interrupted the run.
func (s *Shell) interrupted() bool {
	polls := []unix.PollFd{{Fd: int32(s.wake), Events: unix.POLLIN}}
	n, err := unix.Poll(polls, 0)
	return err == nil && n > 0 && polls[0].Revents != 0
}

func (s *Shell) close() {
	for _, fd := range []*int{&s.cmd, &s.fds[atEvents], &s.fds[atStdout], &s.fds[atStderr], &s.ans} {
		shut(fd)
	}
}

// shut closes a descriptor only once: its number may soon belong to another file.
func shut(fd *int) {
	if *fd >= 0 {
		_ = unix.Close(*fd)
		*fd = -1
	}
}

// Kill ends the shell and the processes of its current line. It returns the PIDs that no signal
// could end.
func (s *Shell) Kill() []int {
	_ = unix.Kill(s.pid, unix.SIGKILL) // before its descriptors close, or its traps would write more events
	s.close()
	return s.Guarded().End(s.number)
}

// reply answers __nhc_ask.
func (s *Shell) reply(question string, r NativeReply) error {
	var out []string
	status := 0
	for _, f := range r.Findings { // before the rest, since bash may end at a "die"
		if f.Aside() {
			out = append(out, "log", f.Message)
		}
	}
	for _, f := range r.Findings {
		switch {
		case f.Code == checks.ArrayCode:
			out = append(out, "array", f.Device.Name, f.Got)
		case f.Severity <= checks.Skip:
		case f.Severity < checks.Fail:
			out = append(out, "log", f.Message)
		case f.Message == "":
			status = max(f.Status, 1)
		default:
			status = max(f.Status, 1)
			out = append(out, "die", strconv.Itoa(status), f.Message)
		}
	}
	return s.answer(question, append(out, "status", strconv.Itoa(status))...)
}

// answer sends the answer to a question. The answer carries the question's name: the process that
// asked may be gone, and the next one must not take this answer for its own. The name is
// PID.NUMBER.DESCRIPTOR. It identifies the pipe for the answer: a subshell has its own pipe, since
// several may ask at the same time.
func (s *Shell) answer(question string, fields ...string) error {
	fields = append([]string{question, strconv.Itoa(len(fields))}, fields...)
	var pid, number, fd int
	if n, err := fmt.Sscanf(question, "%d.%d.%d", &pid, &number, &fd); n < 3 || err != nil {
		return fmt.Errorf("read from bash: question %q", question)
	}
	if fd == fdAnswers-s.lower {
		return s.send(s.ans, fields...)
	}
	pipe, err := unix.Open(fmt.Sprintf("/proc/%d/fd/%d", pid, fd), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0) //nolint:forbidigo // the pipe that a subshell reads its answer from
	if err != nil {
		return nil // the process that asked is gone
	}
	defer unix.Close(pipe)
	return s.send(pipe, fields...)
}
