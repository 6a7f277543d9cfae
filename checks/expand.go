package checks

import "strings"

// ExpandWords expands an argument of nhc.conf once more, as eval does: quotes, ~ at
// the beginning, $NAME and ${NAME}; blanks outside of quotes separate words. ok is
// false if the text requires a shell: commands, redirections, braces, other parameter
// expansions, unfinished quotes.
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
	open   bool // a word has begun; it can still be empty
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

// step reads one character, or one construct, outside of quotes.
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
		return x.readQuoted()
	case '\\':
		if x.at == len(x.text) {
			return false
		}
		x.add(x.text[x.at : x.at+1])
		x.at++
	case '$':
		value, ok := x.readVariable()
		x.split(value)
		return ok
	case '~':
		if x.open {
			x.add("~")
			return true
		}
		return x.expandHome()
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

// split adds the value of an unquoted variable. Blanks split it into words.
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

// expandHome expands ~ if it means the home directory.
func (x *expander) expandHome() bool {
	if x.at < len(x.text) && strings.IndexByte("/ \t", x.text[x.at]) < 0 {
		return false // ~user
	}
	dir := x.lookup("HOME")
	x.add(dir)
	return dir != ""
}

// readQuoted reads up to the closing double quote.
func (x *expander) readQuoted() bool {
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
			value, ok := x.readVariable()
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

// readVariable reads a name after a dollar sign and returns its value.
func (x *expander) readVariable() (value string, ok bool) {
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
	if n == 0 { // a literal dollar sign: before a blank, a slash or the end
		return "$", rest == "" || strings.IndexByte(" \t/.,:=%+]^~", rest[0]) >= 0
	}
	x.at += n
	return x.lookup(rest[:n]), true
}

// NameLength returns how many leading bytes of s can be the name of a variable.
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
