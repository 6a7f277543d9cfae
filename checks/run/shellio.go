package run

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
)

// shellPipes are the descriptors between the supervisor and its bash.
type shellPipes struct {
	commands, events, answers, line, init, library, scratch, stdout, stderr *os.File // bash's ends
	cmdFd, evFd, ansFd, outFd, errFd                                        int      // ours
}

func openShellPipes(init string) (*shellPipes, error) {
	p := &shellPipes{}
	in := func(child **os.File, ours *int) error {
		var fd [2]int
		if err := unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
			return fmt.Errorf("make pipe: %w", err)
		}
		*child, *ours = os.NewFile(uintptr(fd[0]), "pipe"), fd[1]
		return unix.SetNonblock(fd[1], true)
	}
	// bash writes its events to a socket, because the kernel names the sender of each.
	socket := func(child **os.File, ours *int) error {
		fd, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("make socket: %w", err)
		}
		*child, *ours = os.NewFile(uintptr(fd[1]), "socket"), fd[0]
		if err := unix.SetsockoptInt(fd[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
			return fmt.Errorf("ask for the senders of events: %w", err)
		}
		_ = unix.Shutdown(fd[0], unix.SHUT_WR) // bash reads nothing from it
		return nil
	}
	out := func(child **os.File, ours *int) error {
		var fd [2]int
		if err := unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
			return fmt.Errorf("make pipe: %w", err)
		}
		*child, *ours = os.NewFile(uintptr(fd[1]), "pipe"), fd[0]
		return unix.SetNonblock(fd[0], true)
	}
	for _, step := range []func() error{
		func() error { return in(&p.commands, &p.cmdFd) },
		func() error { return socket(&p.events, &p.evFd) },
		func() error { return in(&p.answers, &p.ansFd) },
		func() error { return out(&p.stdout, &p.outFd) },
		func() error { return out(&p.stderr, &p.errFd) },
		func() error { return seal(&p.line, "nhc-line", runLine) },
		func() error { return seal(&p.init, "nhc-init", init) },
		func() error { return seal(&p.library, "nhc-library", library+libfacts) },
		func() error { return makeScratch(&p.scratch) },
	} {
		if err := step(); err != nil {
			p.closeChild()
			p.closeParent()
			return nil, err
		}
	}
	return p, nil
}

// seal creates a memory file that no process can change, and opens it for reading.
func seal(file **os.File, name, text string) (err error) {
	if *file, err = probe.SealText(name, []byte(text)); err != nil {
		return err
	}
	return (*file).Chmod(0o400)
}

// makeScratch creates the writable file for bash's lists of names. The reader checks the names.
func makeScratch(file **os.File) error {
	fd, err := unix.MemfdCreate("nhc-scratch", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("make memory file: %w", err)
	}
	*file = os.NewFile(uintptr(fd), "nhc-scratch")
	return (*file).Chmod(0o600)
}

func (p *shellPipes) closeChild() {
	for _, f := range []*os.File{p.commands, p.events, p.answers, p.line, p.init, p.library, p.scratch, p.stdout, p.stderr} {
		if f != nil {
			f.Close()
		}
	}
}

func (p *shellPipes) closeParent() {
	for _, fd := range []int{p.cmdFd, p.evFd, p.ansFd, p.outFd, p.errFd} {
		if fd > 0 {
			_ = unix.Close(fd)
		}
	}
}

// These are the indexes in Shell.fds.
const (
	atEvents = iota
	atStdout
	atStderr
)

// await reads the shell's events and output until the end of the command and passes everything to
// the handler. It passes on output before an event that was written after it.
func (s *Shell) await() (status int, exited bool, err error) {
	for {
		wait, err := s.waitTime()
		if err != nil {
			return 0, false, err
		}
		dead := s.ended() // before the read, so that the read gets the last events
		polls := make([]unix.PollFd, 0, 4)
		for i, fd := range s.fds {
			if s.open[i] {
				polls = append(polls, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
			}
		}
		if s.wake >= 0 {
			polls = append(polls, unix.PollFd{Fd: int32(s.wake), Events: unix.POLLIN})
		}
		if _, err := unix.Poll(polls, wait); err != nil && err != unix.EINTR {
			return 0, false, fmt.Errorf("wait for bash: %w", err)
		}
		end, status, exited, err := s.handleEvents()
		if end || err != nil {
			return status, exited, err
		}
		if !s.open[atEvents] || dead {
			return s.exitStatus()
		}
		if n := len(polls) - 1; s.wake >= 0 && polls[n].Revents != 0 {
			return 0, false, ErrInterrupted
		}
	}
}

func (s *Shell) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// endsBySignal reports whether a signal ends the shell, which is about to exit.
func (s *Shell) endsBySignal() bool {
	select {
	case <-s.done:
		return s.end.Signaled()
	case <-time.After(closeGrace):
		return false
	}
}

// exitStatus returns the status of a shell that exited without an event, because it was killed. A
// shell that never started, for lack of memory or descriptors, proves nothing about the node, and
// neither does one that lost its descriptors.
func (s *Shell) exitStatus() (int, bool, error) {
	select {
	case <-s.done:
	case <-time.After(process.EndGrace):
		return 0, false, fmt.Errorf("bash closed its descriptors")
	}
	if !s.ready {
		return 0, false, fmt.Errorf("bash did not start: %v", s.end)
	}
	if s.end.Exited() && s.end.ExitStatus() == lostStatus {
		return 0, false, errors.New("bash has lost its descriptors")
	}
	if s.end.Signaled() {
		return 0, false, s.killedError()
	}
	return probe.ExitStatus(s.end.WaitStatus), true, nil
}

// killedError returns the error of a shell that a signal ended, for example the kernel when memory
// ran out. That is not a result of the line; LBNL NHC runs as that bash and reports nothing.
func (s *Shell) killedError() error { return fmt.Errorf("bash died: %s", s.end.cause()) }

// lostStatus is the status of a bash whose loop over commands has ended, see __nhc_loop.
const lostStatus = 251

// handleEvents handles every complete event. end is true if the command is over.
func (s *Shell) handleEvents() (end bool, status int, exited bool, err error) {
	for {
		for s.speaks != nil { // includes events after the end of the last command
			name, fields, ok, perr := s.speaks.next()
			if perr != nil {
				return false, 0, false, perr
			}
			if !ok {
				break
			}
			if end, status, exited, err := s.handle(name, fields); err != nil || end {
				return end, status, exited, err
			}
			s.drain()
		}
		var rerr error
		if s.speaks, rerr = s.receive(); rerr != nil {
			return false, 0, false, rerr
		}
		s.drain()
		if s.speaks == nil {
			return false, 0, false, nil
		}
	}
}

// receive reads the events that one process of the shell has sent, nil if there are none for now.
// Events of another user's process end the shell: its descriptors are private, so one was passed to
// that process, and nothing that the shell sends is reliable.
func (s *Shell) receive() (*sender, error) {
	var buf [32 << 10]byte
	oob := make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	for s.open[atEvents] {
		n, oobn, _, _, err := unix.Recvmsg(s.fds[atEvents], buf[:], oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return nil, nil
		case err != nil || n == 0:
			s.open[atEvents] = false
			return nil, nil
		}
		cred, err := parseCredentials(oob[:oobn])
		if err != nil {
			return nil, err
		}
		if cred.Uid != uint32(os.Getuid()) {
			return nil, fmt.Errorf("process %d of user %d wrote to the private descriptor of this run's shell: %w", cred.Pid, cred.Uid, ErrForged)
		}
		if s.senders == nil {
			s.senders = map[int32]*sender{}
		}
		from := s.senders[cred.Pid]
		if from == nil {
			from = new(sender)
			s.senders[cred.Pid] = from
		}
		from.pending = append(from.pending, buf[:n]...)
		return from, nil
	}
	return nil, nil
}

// parseCredentials finds the sender of a message in the kernel's control messages.
func parseCredentials(oob []byte) (*unix.Ucred, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	for i := range messages {
		if cred, err := unix.ParseUnixCredentials(&messages[i]); err == nil {
			return cred, nil
		}
	}
	if err == nil {
		err = errors.New("the kernel named none")
	}
	return nil, fmt.Errorf("find the sender of a message from bash: %w", err)
}

// sender is a process that sends events: bash, or one of its subshells. Each has its own buffer,
// since the parts of two long events may alternate.
type sender struct {
	pending []byte // of an incomplete event
}

// next removes one event from the buffer.
func (s *sender) next() (name string, fields []string, ok bool, err error) {
	rest := s.pending
	next := func() (string, bool) {
		i := bytes.IndexByte(rest, 0)
		if i < 0 {
			return "", false
		}
		f := string(rest[:i])
		rest = rest[i+1:]
		return f, true
	}
	name, ok = next()
	if !ok {
		return "", nil, false, nil
	}
	count, ok := next()
	if !ok {
		return "", nil, false, nil
	}
	n, aerr := strconv.Atoi(count)
	if aerr != nil || n < 0 {
		return "", nil, false, fmt.Errorf("read from bash: event %q with count %q", name, count)
	}
	for range n {
		f, ok := next()
		if !ok {
			return "", nil, false, nil
		}
		fields = append(fields, f)
	}
	s.pending = append(s.pending[:0], rest...)
	return name, fields, true, nil
}

// handle handles one event. end is true if the command is over.
func (s *Shell) handle(name string, f []string) (end bool, status int, exited bool, err error) {
	if name != "end" && name != "exit" {
		return false, 0, false, s.serve(name, f)
	}
	status, aerr := strconv.Atoi(field(f, 0))
	if aerr != nil {
		return false, 0, false, fmt.Errorf("read from bash: status %q", field(f, 0))
	}
	s.leaves = s.leaves || name == "exit"                  // then it announces no trap
	if name == "exit" && status == 0 && s.endsBySignal() { // the trap on EXIT cannot know this
		return false, 0, false, s.killedError()
	}
	return true, status, name == "exit", nil
}

// field returns a field of an event, "" if the event lacks it.
func field(f []string, i int) string {
	if i < len(f) {
		return f[i]
	}
	return ""
}

// serve handles an event within a command.
func (s *Shell) serve(name string, f []string) error {
	switch name {
	case "lost":
		return errors.New("bash reads no more commands")
	case "broken":
		return errors.New(field(f, 0))
	case "ready":
		s.ready = true
	case "settings":
		s.handler.Settings(parsePairs(f))
	case "environ":
		s.handler.Environ(parsePairs(f))
	case "functions":
		s.handler.Functions(f)
	case "dump":
		vars := make([]ShellVar, 0, len(f)/3)
		for i := 0; i+2 < len(f); i += 3 {
			vars = append(vars, ShellVar{Name: f[i], Value: f[i+2], Export: strings.Contains(f[i+1], "x")})
		}
		s.handler.Variables(vars)
	case "array":
		s.handler.Array(field(f, 0), f[min(1, len(f)):])
	case "syslog":
		s.handler.Syslog(field(f, 0))
	case "flush":
		s.handler.Flush()
	case "died":
		s.handler.Died()
		return s.answer(field(f, 0), "done")
	case "forked":
		pid, _ := strconv.Atoi(field(f, 1))
		s.handler.Forked(pid)
		return s.answer(field(f, 0), "done")
	case "die":
		if helper, text := s.handler.Die(field(f, 1), field(f, 2), field(f, 3) != "0", field(f, 4) != "0"); helper {
			return s.answer(field(f, 0), "helper", text)
		}
		return s.answer(field(f, 0), "done")
	case "leaving":
		status, err := strconv.Atoi(field(f, 1))
		if err != nil {
			return fmt.Errorf("read from bash: status %q", field(f, 1))
		}
		if helper, text, message := s.handler.Leaving(status); helper {
			return s.answer(field(f, 0), "helper", text, message)
		}
		return s.answer(field(f, 0), "done")
	case "native":
		if len(f) < 4 {
			return fmt.Errorf("read from bash: call of a check with %d words", len(f))
		}
		return s.reply(f[0], s.handler.Call(f[1], f[2], f[3:]))
	case "match":
		return s.reply(field(f, 0), s.handler.Match(field(f, 3), field(f, 4)))
	default:
		return fmt.Errorf("read from bash: unknown event %q", name)
	}
	return nil
}

// parsePairs returns the map of a list of alternating names and values.
func parsePairs(f []string) map[string]string {
	values := make(map[string]string, len(f)/2)
	for i := 0; i+1 < len(f); i += 2 {
		values[f[i]] = f[i+1]
	}
	return values
}

// drain passes on all output that has been written so far.
func (s *Shell) drain() {
	var buf [32 << 10]byte
	for _, i := range []int{atStdout, atStderr} {
		for s.open[i] {
			n, err := unix.Read(s.fds[i], buf[:])
			if err == unix.EINTR {
				continue
			}
			if n == 0 && err == nil {
				s.open[i] = false
			}
			if n <= 0 {
				break
			}
			s.handler.Output(i, buf[:n])
		}
	}
}
