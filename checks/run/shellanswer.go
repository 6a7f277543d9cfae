package run

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// reply answers __nhc_ask.
func (s *Shell) reply(question string, r NativeReply) error {
	var out []string
	status := 0
	for _, f := range r.Findings { // first of all, since bash may end at a "die"
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

// answer sends what a question is answered with. It carries the question's
// name: one who has asked may be gone, and the next must not take it for theirs.
// The name, PID.NUMBER.DESCRIPTOR, tells where the answer is read: a subshell has
// a pipe of its own, since several may ask at the same time.
func (s *Shell) answer(question string, fields ...string) error {
	fields = append([]string{question, strconv.Itoa(len(fields))}, fields...)
	var pid, number, fd int
	if n, err := fmt.Sscanf(question, "%d.%d.%d", &pid, &number, &fd); n < 3 || err != nil {
		return fmt.Errorf("read from bash: question %q", question)
	}
	if fd == fdAnswers {
		return s.send(s.ans, fields...)
	}
	pipe, err := unix.Open(fmt.Sprintf("/proc/%d/fd/%d", pid, fd), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0) //nolint:forbidigo // the pipe that a subshell reads its answer from
	if err != nil {
		return nil // whoever has asked is gone
	}
	defer unix.Close(pipe)
	if err := s.send(pipe, fields...); err != nil && !errors.Is(err, unix.EPIPE) {
		return err
	}
	return nil
}
