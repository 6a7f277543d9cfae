package conf

import (
	"fmt"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// ParseAssign parses one NAME=value or "export NAME=value" argument of the command line. The value
// is literal, with three exceptions: quotes around a part of it ('..' and "..") are removed, $NAME
// and ${NAME} outside of single quotes are replaced by vars, and NAME=( .. ) is a list of words.
// Nothing is executed, split at separators, or globbed.
func ParseAssign(word string, vars func(string) string) (name, value string, array []string, isArray, export bool, err error) {
	text := word
	if rest, ok := strings.CutPrefix(word, "export"); ok && strings.TrimLeft(rest, whitespace) != rest {
		text, export = strings.TrimLeft(rest, whitespace), true
	}
	name, text, ok := strings.Cut(text, "=")
	switch {
	case strings.HasPrefix(word, "-"):
		return "", "", nil, false, false, fmt.Errorf("argument %q: options must precede the first NAME=value", shorten(word))
	case !ok && (strings.Contains(word, "/") || strings.HasSuffix(word, ".conf") || strings.HasSuffix(word, ".toml")):
		return "", "", nil, false, false, fmt.Errorf("argument %q: want NAME=value; a file needs -c FILE, a directory -D DIR", shorten(word))
	case !ok && syntax.ValidName(name) && !export:
		return "", "", nil, false, false, fmt.Errorf("argument %q: want NAME=value; a command must be the first argument", shorten(word))
	case !ok || !syntax.ValidName(name):
		return "", "", nil, false, false, fmt.Errorf("argument %q: want NAME=value or export NAME=value", shorten(word))
	}
	if list, ok := within(text, "(", ")"); ok {
		return name, "", literalWords(list, vars), true, export, nil
	}
	var b strings.Builder
	for text != "" {
		var u unit
		u, text = nextUnit(text, vars)
		b.WriteString(u.text)
	}
	return name, b.String(), nil, false, export, nil
}

const whitespace = " \t\n"

// within removes the brackets of s, and blanks around them.
func within(s, opens, closes string) (inner string, ok bool) {
	s = strings.Trim(s, whitespace)
	if len(s) < len(opens)+len(closes) || !strings.HasPrefix(s, opens) || !strings.HasSuffix(s, closes) {
		return "", false
	}
	return s[len(opens) : len(s)-len(closes)], true
}

func literalWords(s string, vars func(string) string) []string {
	words := []string{}
	var b strings.Builder
	begun := false
	end := func() {
		if begun {
			words = append(words, b.String())
		}
		b.Reset()
		begun = false
	}
	for s != "" {
		var u unit
		u, s = nextUnit(s, vars)
		if u.kind == plainChar && strings.Contains(whitespace, u.text) {
			end()
			continue
		}
		b.WriteString(u.text)
		begun = begun || u.kind == quotedText || u.text != ""
	}
	end()
	return words
}

// unit is the smallest part of a literal value.
type unit struct {
	kind unitKind
	text string // expanded, without quotes
}

type unitKind int

const (
	plainChar unitKind = iota
	variable
	quotedText
)

// nextUnit cuts the next unit off s, which is not empty. An unpaired quote and a $ without a name are
// plain characters.
func nextUnit(s string, vars func(string) string) (u unit, rest string) {
	switch s[0] {
	case '\'':
		if text, rest, ok := strings.Cut(s[1:], "'"); ok {
			return unit{quotedText, text}, rest
		}
	case '"':
		if text, rest, ok := strings.Cut(s[1:], `"`); ok {
			return unit{quotedText, expandNames(text, vars)}, rest
		}
	case '$':
		if name, rest, ok := cutName(s); ok {
			return unit{variable, vars(name)}, rest
		}
	}
	return unit{plainChar, s[:1]}, s[1:]
}

func expandNames(s string, vars func(string) string) string {
	var b strings.Builder
	for s != "" {
		plain, _, _ := strings.Cut(s, "$")
		b.WriteString(plain)
		s = s[len(plain):]
		if name, rest, ok := cutName(s); ok {
			b.WriteString(vars(name))
			s = rest
		} else if s != "" {
			b.WriteByte('$')
			s = s[1:]
		}
	}
	return b.String()
}

// cutName cuts $NAME or ${NAME} off s.
func cutName(s string) (name, rest string, ok bool) {
	s, ok = strings.CutPrefix(s, "$")
	if !ok {
		return "", "", false
	}
	if braced, isBraced := strings.CutPrefix(s, "{"); isBraced {
		name, rest, ok = strings.Cut(braced, "}")
		return name, rest, ok && syntax.ValidName(name)
	}
	end := strings.IndexFunc(s, func(r rune) bool { return !isNameRune(r) })
	if end < 0 {
		end = len(s)
	}
	return s[:end], s[end:], syntax.ValidName(s[:end])
}

func isNameRune(r rune) bool {
	return r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
}
