package probe

import (
	"strings"
	"unicode/utf8"
)

// OneLine converts the text of a library to one line without control characters, for logs and
// reasons.
func OneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\uFFFD' {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	return strings.TrimSpace(s)
}

// Printable converts a text as ps and a shell would: newlines become blanks, other control
// characters and bytes that are not UTF-8 become "?", and consecutive blanks become one.
func Printable(data []byte) string { return printable(data, '\n') }

// printable does so, and converts another character to a blank.
func printable(data []byte, blank byte) string {
	if !utf8.Valid(data) {
		data = replaceInvalid(data)
	}
	out := data[:0]
	for _, c := range data {
		switch {
		case c == '\n' || c == ' ' || c == blank:
			if len(out) > 0 && out[len(out)-1] != ' ' {
				out = append(out, ' ')
			}
		case c < ' ' || c == 0x7f:
			out = append(out, '?')
		default:
			out = append(out, c)
		}
	}
	return strings.TrimSuffix(string(out), " ")
}

// replaceInvalid replaces each byte that is not part of a character by a question mark, in place.
func replaceInvalid(data []byte) []byte {
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			data[i] = '?'
		}
		i += n
	}
	return data
}

// LastLine returns the last line that is not empty.
func LastLine(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return ShortLine(lines[len(lines)-1])
}

// ShortLine shortens a line for a message and replaces characters that cannot be printed.
func ShortLine(line string) string {
	const most = 160
	line = strings.TrimSpace(Printable([]byte(line)))
	if len(line) > most {
		line = strings.ToValidUTF8(line[:most], "") + "..."
	}
	return line
}

// NotNumber reports whether s has any character other than digits.
func NotNumber(s string) bool {
	return s == "" || strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '9' })
}
