package probe

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// OneLine converts the text of a library to one line for logs and reasons. Characters that control a
// terminal (ESC, U+009B) or reorder a line (U+202E) become "?".
func OneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) || r == utf8.RuneError {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	return strings.TrimSpace(s)
}

// Shorten cuts a text after at most n bytes, between characters.
func Shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// Printable converts a text as ps and a shell would: newlines become blanks, other
// characters that do not print and bytes that are not UTF-8 become "?", and consecutive blanks become one.
func Printable(data []byte) string { return printable(data, '\n') }

// printable does so, and converts another character to a blank.
func printable(data []byte, blank byte) string {
	if !utf8.Valid(data) {
		data = replaceInvalid(data)
	}
	out := data[:0]
	for _, r := range string(data) {
		switch {
		case r == '\n' || r == ' ' || r == rune(blank):
			if len(out) > 0 && out[len(out)-1] != ' ' {
				out = append(out, ' ')
			}
		case !unicode.IsGraphic(r):
			out = append(out, '?')
		default:
			out = utf8.AppendRune(out, r)
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
