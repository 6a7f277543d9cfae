package probe

import (
	"strings"
	"unicode/utf8"
)

// OneLine makes a word of what a library has written: one line without
// control characters, for it goes into logs and reasons.
func OneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\uFFFD' {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	return strings.TrimSpace(s)
}

// Printable is what is left of a text after ps has printed it and a shell has
// split it into words: newlines are blanks, other control characters and bytes
// that are no UTF-8 are "?", and runs of blanks one blank.
func Printable(data []byte) string {
	if !utf8.Valid(data) {
		data = validUTF8(data)
	}
	out := data[:0]
	for _, c := range data {
		switch {
		case c == '\n' || c == ' ':
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

// validUTF8 puts a question mark in the place of each byte that is no part of a
// character, in place.
func validUTF8(data []byte) []byte {
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			data[i] = '?'
		}
		i += n
	}
	return data
}

// LastLine is the last that is not empty.
func LastLine(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return ShortLine(lines[len(lines)-1])
}

// ShortLine is a line cut for a message, with what cannot be printed replaced.
func ShortLine(line string) string {
	const most = 160
	line = strings.TrimSpace(Printable([]byte(line)))
	if len(line) > most {
		line = strings.ToValidUTF8(line[:most], "") + "..."
	}
	return line
}

// NotNumber says whether s is anything but digits.
func NotNumber(s string) bool {
	return s == "" || strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '9' })
}
