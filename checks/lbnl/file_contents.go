package lbnl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// fileContents compares the lines of a file with match strings. Each match string must match at
// least one line; a negated one (!) must match no line. First the check removes backslashes, and
// the blanks at both ends of a line; a backslash at the end of a line joins it with the next one.
// A missing file has no lines.
//
//	node* || check_file_contents /etc/passwd '/^root:x:0:0:/' '!/^[+]/'
type fileContents struct {
	File  string   `arg:"1" toml:"file"`  // the file
	Match []string `arg:"*" toml:"match"` // match strings
}

func init() {
	checks.Register(checks.Info{
		Name:    "check_file_contents",
		Usage:   "FILE MATCH ...",
		Summary: "a file contains all required lines and no forbidden line",
		Lane:    checks.Local,
		New:     func() checks.Check { return &fileContents{} },
		Do: func() map[string]string {
			return map[string]string{
				"file.contents.found":   "Compare the file with that of a healthy node, and check the tool that manages it (Puppet, Ansible, the image).",
				"file.contents.missing": "Compare the file with that of a healthy node, and check the tool that manages it (Puppet, Ansible, the image). If the file cannot be read, the field got of --json names the error.",
			}
		},
	})
}

// maxJoined is the longest line that backslashes can join, in bytes.
const maxJoined = probe.MaxLine

func (c *fileContents) Run(_ context.Context, env *checks.Env) []checks.Finding {
	if len(c.Match) == 0 {
		return nil
	}
	var findings []checks.Finding
	m := contentsMatch{fileContents: c, match: env.Matcher(&findings), found: make([]bool, len(c.Match))}
	for i, expr := range c.Match {
		if m.found[i] = strings.HasPrefix(expr, "!"); !m.found[i] {
			m.missing++
		}
	}
	m.positive = m.missing == len(c.Match)
	env.At("read %s", c.File)
	err := env.Host.Lines(env.Abs(c.File), m.add)
	switch {
	case m.tooLong:
		err = fmt.Errorf("read %s: %w: backslashes join more than %d bytes", c.File, probe.ErrNoLines, maxJoined)
	case err == nil && m.joining:
		m.compare() // the file ends in a backslash
	}
	return append(findings, m.verdict(err)...)
}

// contentsMatch compares one file with the match strings.
type contentsMatch struct {
	*fileContents
	match    func(s, expr string) bool
	found    []bool // per match string; true from the start if it is negated
	missing  int    // number of match strings that no line has matched yet
	positive bool   // no match string is negated
	number   int    // number of the current line
	text     strings.Builder
	keep     int  // length of text that must not be trimmed: it ends in an escaped blank
	joining  bool // the next line continues text
	tooLong  bool // backslashes join more than maxJoined bytes
	done     bool // the result is known; no more lines are needed
	unwanted *checks.Finding
}

// add processes one line of the file. It reports whether the next one is needed.
func (m *contentsMatch) add(raw []byte) bool {
	m.joining = false
	for i := 0; i < len(raw); i++ {
		b, escaped := raw[i], false
		if b == '\\' {
			if i++; i == len(raw) {
				m.joining = true
				break
			}
			b, escaped = raw[i], true
		}
		switch {
		case b == 0: // bash drops it
		case escaped:
			m.text.WriteByte(b)
			m.keep = m.text.Len()
		case m.text.Len() > 0 || b != ' ' && b != '\t':
			m.text.WriteByte(b)
		}
	}
	if m.joining {
		m.tooLong = m.text.Len() > maxJoined
		return !m.tooLong
	}
	m.compare()
	return !m.done
}

// compare compares the joined line with the match strings.
func (m *contentsMatch) compare() {
	whole := m.text.String()
	line := whole[:m.keep] + strings.TrimRight(whole[m.keep:], " \t")
	m.text.Reset()
	m.keep, m.joining = 0, false
	m.number++
	for i, expr := range m.Match {
		negated, isNegated := strings.CutPrefix(expr, "!")
		switch {
		case isNegated:
			if m.match(line, negated) {
				m.unwanted, m.done = m.unwantedLine(negated, line), true
				return
			}
		case !m.found[i] && m.match(line, expr):
			m.found[i] = true
			m.missing--
		}
	}
	m.done = m.positive && m.missing == 0
}

func (m *contentsMatch) unwantedLine(expr, line string) *checks.Finding {
	return &checks.Finding{
		Code:     "file.contents.found",
		Severity: checks.Fail,
		Device:   checks.Device{Kind: "file", Name: m.File},
		Message:  fmt.Sprintf("check_file_contents:  File \"%s\" line %d matches \"%s\".", m.File, m.number, expr),
		Want:     "no line that matches " + expr,
		Got:      line,
	}
}

// verdict returns the result of the comparison. A file that cannot be read to its end has an
// unknown result in two cases: no required line is missing, or the kernel reported no error (a
// FIFO without a writer). Otherwise missing lines fail the check, as in LBNL NHC.
func (m *contentsMatch) verdict(err error) []checks.Finding {
	switch {
	case m.unwanted != nil:
		return []checks.Finding{*m.unwanted}
	case m.done:
		return nil
	case err != nil && !hasNoLines(err) && (m.missing == 0 || !isErrno(err)):
		return checks.Unreadable(fmt.Errorf("check_file_contents:  %w", err))
	case m.missing == 0:
		return nil
	}
	first := m.Match[slices.Index(m.found, false)]
	f := checks.Finding{
		Code:     "file.contents.missing",
		Severity: checks.Fail,
		Device:   checks.Device{Kind: "file", Name: m.File},
		Message:  fmt.Sprintf("check_file_contents:  File \"%s\" failed to match \"%s\".", m.File, first),
		Want:     "a line that matches " + first,
	}
	if len(m.Match) > 1 {
		f.Message = fmt.Sprintf("check_file_contents:  File \"%s\" matched %d/%d patterns.  First failed match:  \"%s\".",
			m.File, len(m.Match)-m.missing, len(m.Match), first)
	}
	if err != nil {
		f.Got = err.Error()
	}
	return []checks.Finding{f}
}

// hasNoLines reports whether the path is missing or is an object without lines.
func hasNoLines(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENXIO)
}

// isErrno reports whether the kernel refused to read the file. Any other error means that the
// reader gave up, and the contents are unknown.
func isErrno(err error) bool {
	_, ok := errors.AsType[unix.Errno](err)
	return ok
}
