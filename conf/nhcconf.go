// Package conf parses configuration: nhc.conf exactly as LBNL NHC does, TOML tables, VAR=value
// arguments, the sysconfig file and the forms of LOGFILE.
//
// It knows no check and does not access the machine: every function turns bytes, which the caller
// has read, into values. Package match decides whether a target matches a host.
package conf

import (
	"bytes"
	"fmt"
	"strings"
)

// MaxSize is the largest configuration file in bytes. A worker reads no more of one.
const MaxSize = 2 << 20

// Pos is a position in a file.
type Pos struct {
	File string
	Line int // from 1; for lines joined by a backslash, the first; 0: none
}

func (p Pos) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// Line is one check line of nhc.conf: "target || check".
type Line struct {
	Pos           Pos
	Target, Check string
}

// Warning is text in nhc.conf that is valid but probably a mistake.
type Warning struct {
	Pos  Pos
	Text string
}

// Parse parses nhc.conf as LBNL NHC's "while read LINE" does. It removes one level of backslashes
// everywhere; a backslash at the end of a line joins the next one, also in a comment. The text
// before the first "||" is the target, the text after it the check. Lines without one of the two
// and lines that begin with "#" are skipped.
//
// Parse differs in three points: it drops carriage returns before the end of a line, it reads a last
// line without a newline, and for a line without "||" it returns a warning.
func Parse(file string, data []byte) (lines []Line, warnings []Warning, err error) {
	const want = `lines of "target || check"`
	if err := usable(file, data, want); err != nil {
		return nil, nil, err
	}
	if strings.HasSuffix(file, ".toml") { // no line of it would run, and the node would count as healthy
		return nil, nil, fmt.Errorf("%s: TOML, want %s", file, want)
	}
	warn := func(pos Pos, format string, args ...any) {
		warnings = append(warnings, Warning{pos, fmt.Sprintf(format, args...)})
	}
	if bytes.HasPrefix(data, []byte("\ufeff")) {
		warn(Pos{file, 1}, "a byte order mark is part of the first target, want none")
	}
	r := newLineReader(data)
	for r.more() {
		pos := Pos{file, r.line}
		text := r.read()
		target, check, ok := strings.Cut(text, "||")
		target, check = strings.Trim(target, blanks), strings.Trim(check, blanks)
		switch {
		case target == "" || target[0] == '#':
		case !ok:
			warn(pos, `no "||" in %q, want "target || check": not run`, shorten(target))
		case check != "":
			lines = append(lines, Line{pos, target, check})
		}
	}
	return lines, warnings, nil
}

const blanks = " \t"

// lineReader reads lines like bash's read builtin without -r.
type lineReader struct {
	rest string
	line int // number of the next line
}

func newLineReader(data []byte) *lineReader {
	s := strings.ReplaceAll(string(data), "\x00", "")
	s = strings.ReplaceAll(s, "\r\n", "\n")
	return &lineReader{strings.TrimSuffix(s, "\r"), 1}
}

func (r *lineReader) more() bool { return r.rest != "" }

// read returns the next line without its backslashes.
func (r *lineReader) read() string {
	var b strings.Builder
	for {
		i := strings.IndexAny(r.rest, "\\\n")
		if i < 0 {
			b.WriteString(r.rest)
			r.rest = ""
			return b.String()
		}
		b.WriteString(r.rest[:i])
		special := r.rest[i]
		r.rest = r.rest[i+1:]
		if special == '\n' {
			r.line++
			return b.String()
		}
		if r.rest == "" {
			return b.String()
		}
		if r.rest[0] == '\n' {
			r.line++
		} else {
			b.WriteByte(r.rest[0])
		}
		r.rest = r.rest[1:]
	}
}

// usable rejects data that cannot be a text file of the configuration.
func usable(file string, data []byte, want string) error {
	if len(data) > MaxSize {
		return fmt.Errorf("%s: %d bytes, want at most %d", file, len(data), MaxSize)
	}
	const looked = 8 << 10
	for _, c := range data[:min(len(data), looked)] {
		if c < ' ' && !strings.ContainsRune("\t\n\v\f\r\x1b", rune(c)) || c == 0x7f {
			return fmt.Errorf("%s: binary data, want %s", file, want)
		}
	}
	return nil
}

// shorten limits the length of a text in a message.
func shorten(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
