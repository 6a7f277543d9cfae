package genconf

import (
	"fmt"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// sheet is a configuration file under construction.
type sheet struct {
	lines    []sheetLine
	warnings []string
}

// sheetLine is a heading, a comment or a check.
type sheetLine struct {
	heading string
	comment string
	check   string // the check with its arguments, quoted for a shell
	note    string // the comment above the check; "": its summary from the registry
	why     string // why the check is only a comment; "": it is active. "-": it is a suggestion
	found   string // the fault that the check found on this node

	stays checks.Severity // findings from this severity on keep the line active; 0: no finding does
}

func (s *sheet) heading(text string) { s.lines = append(s.lines, sheetLine{heading: text}) }

func (s *sheet) comment(format string, args ...any) {
	s.lines = append(s.lines, sheetLine{comment: fmt.Sprintf(format, args...)})
}

// warn adds a comment, and a warning for stderr.
func (s *sheet) warn(format string, args ...any) {
	text := visible(fmt.Sprintf(format, args...))
	s.lines = append(s.lines, sheetLine{comment: text})
	s.warnings = append(s.warnings, text)
}

// check adds a line and returns true, if the program has this check. It quotes the arguments.
func (s *sheet) check(name string, words ...string) bool {
	line, ok := checkLine(name, words)
	if ok {
		s.lines = append(s.lines, sheetLine{check: line})
	}
	return ok
}

// standing adds checks without arguments. If one finds something of this severity or worse, its
// line stays active, with the fault in a comment: else the check would be missing after the repair.
func (s *sheet) standing(from checks.Severity, names ...string) {
	for _, name := range names {
		if s.check(name) {
			s.lines[len(s.lines)-1].stays = from
		}
	}
}

// about sets the comment of the line that was added last.
func (s *sheet) about(format string, args ...any) {
	s.lines[len(s.lines)-1].note = fmt.Sprintf(format, args...)
}

// suggest adds a line as a comment, which the administrator can activate.
func (s *sheet) suggest(name string, words ...string) {
	if line, ok := checkLine(name, words); ok {
		s.lines = append(s.lines, sheetLine{check: line, why: "-"})
	}
}

func checkLine(name string, words []string) (string, bool) {
	if _, ok := checks.Lookup(name); !ok {
		return "", false
	}
	line := []string{name}
	for _, w := range words {
		line = append(line, shellWord(w))
	}
	return strings.Join(line, " "), true
}

// render returns the text of the file.
func (s *sheet) render(mask string) string {
	var b strings.Builder
	explained := "" // the check of the line above
	for i, l := range s.lines {
		name, _, _ := strings.Cut(l.check, " ")
		switch {
		case l.heading != "":
			if i > 0 {
				b.WriteString("\n")
			}
			rule := strings.Repeat("#", 71)
			fmt.Fprintf(&b, "%s\n###\n### %s\n###\n", rule, l.heading)
		case l.check != "" && l.why == "":
			if l.note != "" || name != explained {
				b.WriteString(wrapped(l.explanation(name)))
			}
			if l.found != "" {
				b.WriteString(comment("this line found a fault, " + l.found + ":"))
			}
			b.WriteString(confLine(mask, l.check))
		case l.check != "":
			if l.why != "-" {
				b.WriteString(comment("not written, " + l.why + ":"))
			}
			b.WriteString("#" + confLine(mask, l.check))
		default:
			b.WriteString(comment(l.comment))
		}
		explained = name
	}
	return b.String()
}

// explanation returns the comment above a check.
func (l *sheetLine) explanation(name string) string {
	if l.note != "" {
		return l.note
	}
	info, _ := checks.Lookup(name)
	return info.Summary
}

// wrapped returns a comment in lines of at most 100 characters.
func wrapped(text string) string {
	var b strings.Builder
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > 98 {
			b.WriteString(comment(line))
			line = ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return b.String() + comment(line)
}

func comment(text string) string {
	if text == "" {
		return "#\n"
	}
	return "# " + visible(text) + "\n"
}

// confLine returns a line of nhc.conf. It doubles backslashes, since reading removes one of two.
func confLine(mask, check string) string {
	return " " + strings.ReplaceAll(mask+" || "+check, `\`, `\\`) + "\n"
}

// visible makes a text safe for a comment: it has one line, and no backslash at its end joins it
// with the next line.
func visible(s string) string {
	s = strings.Map(func(r rune) rune {
		if isControl(r) || r == '\\' {
			return '?'
		}
		return r
	}, s)
	return strings.ToValidUTF8(s, "?")
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// shellWord quotes a word for a check line. bash splits the line at blanks, and joins the parts
// with single blanks, before it interprets quotes: so the quoted word must not have two blanks in a
// row. Unprintable characters become octal escapes.
func shellWord(w string) string {
	if strings.ContainsFunc(w, func(r rune) bool { return isControl(r) || r == '\uFFFD' }) {
		return escapedWord(w)
	}
	q := conf.Quote(w)
	for strings.Contains(q, "  ") {
		q = strings.ReplaceAll(q, "  ", " '' ")
	}
	return q
}

// escapedWord quotes a word as $'...', which only a shell can read.
func escapedWord(w string) string {
	var b strings.Builder
	b.WriteString("$'")
	for i := range len(w) {
		switch c := w[i]; {
		case c <= ' ' || c >= 0x7f || c == '\'' || c == '\\':
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String() + "'"
}

// literalMatch returns a match string that matches only s.
func literalMatch(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		whole := i == 0 && (c == '!' || c == '/' && strings.HasSuffix(s, "/") || c == '{' && strings.HasSuffix(s, "}"))
		if whole || strings.IndexByte(`*?[]\()|`, c) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	return b.String()
}
