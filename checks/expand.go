package checks

import "strings"

// ExpandWords expands a word of nhc.conf once more, as eval does: quotes, ~ at
// the beginning, $NAME and ${NAME}, and blanks outside of quotes split it. It
// gives up, and says so, on anything that takes a shell: commands, redirections,
// braces, other parameter expansions, unfinished quotes.
func ExpandWords(text string, lookup func(name string) string) (words []string, ok bool) {
	x := expander{text: text, lookup: lookup}
	for x.at < len(x.text) {
		if !x.step() {
			return nil, false
		}
	}
	x.flush()
	return x.words, true
}

type expander struct {
	text   string
	at     int
	lookup func(name string) string
	words  []string
	word   strings.Builder
	open   bool // there is a word, even if it is empty so far
}

func (x *expander) flush() {
	if x.open {
		x.words = append(x.words, x.word.String())
	}
	x.word.Reset()
	x.open = false
}

func (x *expander) add(s string) {
	x.word.WriteString(s)
	x.open = true
}

// step takes one character, or one construct, outside of quotes.
func (x *expander) step() bool {
	c := x.text[x.at]
	x.at++
	switch c {
	case ' ', '\t':
		x.flush()
	case '\'':
		quoted, rest, ok := strings.Cut(x.text[x.at:], "'")
		x.add(quoted)
		x.at = len(x.text) - len(rest)
		return ok
	case '"':
		return x.double()
	case '\\':
		if x.at == len(x.text) {
			return false
		}
		x.add(x.text[x.at : x.at+1])
		x.at++
	case '$':
		value, ok := x.variable()
		x.split(value)
		return ok
	case '~':
		if x.open {
			x.add("~")
			return true
		}
		return x.home()
	case '#':
		if !x.open {
			return false
		}
		x.add("#")
	case '\n', '`', ';', '&', '|', '<', '>', '(', ')', '{', '}':
		return false
	default:
		x.add(x.text[x.at-1 : x.at])
	}
	return true
}

// split adds the value of an unquoted variable, which blanks split into words.
func (x *expander) split(value string) {
	for i := 0; i < len(value); i++ {
		switch value[i] {
		case ' ', '\t', '\n':
			x.flush()
		default:
			x.add(value[i : i+1])
		}
	}
}

// home expands ~ if it stands for the home directory.
func (x *expander) home() bool {
	if x.at < len(x.text) && strings.IndexByte("/ \t", x.text[x.at]) < 0 {
		return false // another user's
	}
	dir := x.lookup("HOME")
	x.add(dir)
	return dir != ""
}

// double takes what is between double quotes.
func (x *expander) double() bool {
	x.open = true
	for x.at < len(x.text) {
		c := x.text[x.at]
		x.at++
		switch c {
		case '"':
			return true
		case '`':
			return false
		case '\\':
			if x.at < len(x.text) && strings.IndexByte("$`\"\\", x.text[x.at]) >= 0 {
				x.at++
			}
			x.add(x.text[x.at-1 : x.at])
		case '$':
			value, ok := x.variable()
			if !ok && !strings.HasPrefix(x.text[x.at:], `"`) {
				return false
			}
			x.add(value)
		default:
			x.add(x.text[x.at-1 : x.at])
		}
	}
	return false
}

// variable takes a name behind a dollar sign.
func (x *expander) variable() (value string, ok bool) {
	rest := x.text[x.at:]
	if body, braced := strings.CutPrefix(rest, "{"); braced {
		name, _, closed := strings.Cut(body, "}")
		if !closed || name == "" || NameLength(name) != len(name) {
			return "", false
		}
		x.at += len(name) + 2
		return x.lookup(name), true
	}
	n := NameLength(rest)
	if n == 0 { // only a dollar sign before a blank, a slash or the end
		return "$", rest == "" || strings.IndexByte(" \t/.,:=%+]^~", rest[0]) >= 0
	}
	x.at += n
	return x.lookup(rest[:n]), true
}

// NameLength is how much of s is the name of a variable.
func NameLength(s string) int {
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '_', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
		case '0' <= c && c <= '9' && i > 0:
		default:
			return i
		}
	}
	return len(s)
}
