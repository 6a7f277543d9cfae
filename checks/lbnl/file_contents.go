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

// fileContents compares the lines of a file with match strings: each must match
// some line, and a negated one (!) no line. Blanks at both ends of a line and
// backslashes are removed first, and a backslash at the end of a line joins the
// next one. A file that is not there has no lines.
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
		Summary: "a file holds the lines it should, and none it should not",
		Lane:    checks.Local,
		New:     func() checks.Check { return &fileContents{} },
		Do: func() map[string]string {
			return map[string]string{
				"file.contents.found":   "Compare the file with that of a healthy node, and ask what manages it (Puppet, Ansible, the image).",
				"file.contents.missing": "Compare the file with that of a healthy node, and ask what manages it (Puppet, Ansible, the image). Got says if it cannot be read.",
			}
		},
	})
}

// maxJoined is how long a line may become that backslashes join, in bytes.
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
	err := env.Host.Lines(env.Abs(c.File), m.raw)
	switch {
	case m.endless:
		err = fmt.Errorf("read %s: %w: backslashes join more than %d bytes", c.File, probe.ErrNoLines, maxJoined)
	case err == nil && m.joining:
		m.line() // the file ends in a backslash
	}
	return append(findings, m.verdict(err)...)
}

// contentsMatch compares one file with the match strings.
type contentsMatch struct {
	*fileContents
	match    func(s, expr string) bool
	found    []bool // by match string; of a negated one from the start
	missing  int    // match strings that are not found
	positive bool   // no match string is negated
	number   int    // of the current line
	text     strings.Builder
	keep     int  // so much of text is not cut from its end: it ends in an escaped blank
	joining  bool // text is to be continued
	endless  bool // for ever
	over     bool // no more lines are wanted
	unwanted *checks.Finding
}

// raw takes a line of the file. It says whether the next one is wanted.
func (m *contentsMatch) raw(raw []byte) bool {
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
		m.endless = m.text.Len() > maxJoined
		return !m.endless
	}
	m.line()
	return !m.over
}

// line compares the line that has been put together.
func (m *contentsMatch) line() {
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
				m.unwanted, m.over = m.unwantedLine(negated, line), true
				return
			}
		case !m.found[i] && m.match(line, expr):
			m.found[i] = true
			m.missing--
		}
	}
	m.over = m.positive && m.missing == 0
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

// verdict says what the comparison came to. A file that could not be read to
// its end may hold what is missing if it is a pipe or a device; else LBNL NHC
// fails over what was not found in it.
func (m *contentsMatch) verdict(err error) []checks.Finding {
	switch {
	case m.unwanted != nil:
		return []checks.Finding{*m.unwanted}
	case m.over:
		return nil
	case err != nil && !noLines(err) && (m.missing == 0 || !answered(err)):
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

// noLines says that there is nothing at that path which could have lines.
func noLines(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENXIO)
}

// answered says that the kernel refused to read the file, which is another
// thing than nobody saying anything.
func answered(err error) bool {
	_, ok := errors.AsType[unix.Errno](err)
	return ok
}
