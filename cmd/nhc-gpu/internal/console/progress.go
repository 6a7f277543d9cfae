package console

import (
	"fmt"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
)

// While an active test runs, a person who waits for it sees on one line what it
// does: the check, what it is at, how long of how long. The line is gone when the
// test is over; nothing of it reaches a file, a pipe, slurmd or syslog.

// Progress is that line.
type Progress struct {
	fd    int
	plain bool // no colours
	shown bool
	Lead  string // before it, "run 2 of 5"
}

// NewProgress returns nil if standard error is not a terminal that can erase.
func NewProgress() *Progress {
	if !term.IsTerminal(2) || os.Getenv("TERM") == "" || os.Getenv("TERM") == "dumb" {
		return nil
	}
	return &Progress{fd: 2, plain: os.Getenv("NO_COLOR") != ""}
}

// Hook returns the function that an engine calls, nil for no progress.
func (p *Progress) Hook() func(*plan.Step, string, time.Duration, time.Duration) {
	if p == nil {
		return nil
	}
	return p.doing
}

const (
	eraseLine = "\r\x1b[K"
	dim       = "\x1b[2m"
	undim     = "\x1b[0m"
)

// doing redraws the line, or erases it when there is no step.
func (p *Progress) doing(s *plan.Step, what string, elapsed, bound time.Duration) {
	if s == nil {
		p.Clear()
		return
	}
	width := p.width()
	clock := fmt.Sprintf("  %s of at most %s", elapsed.Truncate(time.Second), bound.Round(time.Second))
	text := cutTo(verdict.Printable(before(p.Lead)+before(checks.FullName(s.Name))+what), width-1-len(clock))
	if width-1 < len(clock) {
		clock = ""
	}
	if clock != "" && !p.plain {
		clock = dim + clock + undim
	}
	p.write(eraseLine + text + clock)
	p.shown = true
}

// Say shows a line about the run as a whole, on a terminal.
func (p *Progress) Say(format string, args ...any) {
	if p == nil {
		return
	}
	p.write(eraseLine + cutTo(verdict.Printable(fmt.Sprintf(format, args...)), p.width()-1))
	p.shown = true
}

// width returns the columns of the terminal, 80 if it does not say.
func (p *Progress) width() int {
	if width, _, err := term.GetSize(p.fd); err == nil && width > 0 {
		return width
	}
	return 80
}

// Clear erases the line.
func (p *Progress) Clear() {
	if p != nil && p.shown {
		p.write(eraseLine)
		p.shown = false
	}
}

// before puts a colon behind a text, if there is one.
func before(text string) string {
	if text == "" {
		return ""
	}
	return text + ": "
}

// cutTo cuts a text to a width in characters.
func cutTo(text string, width int) string {
	text = strings.TrimSuffix(text, ": ")
	if width = max(width, 0); utf8.RuneCountInString(text) <= width {
		return text
	}
	runes := []rune(text)
	if width < 4 {
		return string(runes[:width])
	}
	return string(runes[:width-3]) + "..."
}

// write gives up on a terminal that takes nothing now (control-S): the run goes on.
func (p *Progress) write(text string) {
	polls := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLOUT}}
	if n, err := unix.Poll(polls, 0); err == nil && n > 0 && polls[0].Revents&unix.POLLOUT != 0 {
		_, _ = unix.Write(p.fd, []byte(text))
	}
}
