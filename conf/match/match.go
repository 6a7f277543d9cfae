// Package match decides whether a string fits an LBNL NHC match expression:
// a glob, a /regular expression/, a {node range} or the language of an outside
// matcher, each of them with an optional leading "!" for "does not fit".
//
// Globs are those of bash with extglob; regular expressions are the extended
// ones of glibc. Both are compiled into one kind of automaton, so that
// matching takes time proportional to the length of the string whatever the
// expression, and no expression can hang the caller. See [Matcher.Match].
//
// Go's regexp cannot do this. A glob has !(...), the complement of a pattern,
// anywhere and nested: RE2 has no complement, and an automaton of derivatives has
// it as one more operator. glibc has \<, \>, \` and \', a{,3}, a**, counts up to
// 32767 and [[.x.]], which RE2 refuses or reads otherwise, and refuses what RE2
// takes. bash matches the bytes of a string that is no UTF-8, and takes an
// unclosed bracket as itself. A difference would leave a site's line out on some
// nodes without an error. So the tests give random expressions and strings to
// bash itself, in two locales, and compare (bash_test.go).
package match

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxExpr is the longest glob or regular expression in bytes. Node ranges may
// be of any length.
const MaxExpr = 64 << 10

// The errors of [Matcher.Match]. An expression that is merely not valid in its
// language is no error: it matches nothing.
var (
	// ErrExpansion is an expression of one character that is both its own
	// delimiters, such as "/". LBNL NHC ends the whole run over it with exit code 1.
	ErrExpansion = errors.New("one character cannot be both delimiters")
	// ErrTooLarge is an expression longer than MaxExpr, nested deeper than
	// 1000 parentheses or whose repeat counts multiply to too much.
	ErrTooLarge = errors.New("expression too large")
	// ErrBackref is a regular expression with a back-reference (\1), which no
	// linear-time matcher can serve.
	ErrBackref = errors.New("back-references are not supported")
)

// External is a match language that the site adds: an expression between the
// delimiters is handed to a command. See NHC_MCHECK_DELIM, NHC_MCHECK_COMMAND.
type External struct {
	Delim   string // its first character opens an expression, its last one closes it
	Command string // shell command; %h stands for the string, %m for the expression
}

// Matcher matches with the site's settings. The zero value knows no external
// matchers and drops warnings. It is safe for concurrent use if Run and Warn are.
type Matcher struct {
	External []External

	// Run decides whether s fits expr for an external matcher: its command line
	// for the two, see [External.Line], ends with status 0. Nil means that none
	// ever does.
	Run func(e External, s, expr string) bool

	// Warn receives the text that LBNL NHC logs about a malformed range. May be nil.
	Warn func(text string)
}

// Match says whether s fits expr. A leading "!" turns the answer round. What
// follows is tried in this order:
//
//	/ERE/     a regular expression, found anywhere in s
//	{LIST}    a list of nodes and node ranges, {n[01-10],login}, that contains s
//	external  one of m.External, by its delimiters
//	GLOB      a bash pattern with extglob that matches the whole of s
//
// Strings and expressions are read as UTF-8 if both are valid UTF-8, else as
// bytes; character classes and \w are those of the C locale.
//
// The time is at most proportional to len(s) times the length of the expression
// with its repeat counts written out; only with !(...) it may be proportional to
// the square of len(s), and of higher powers where they are nested.
func (m *Matcher) Match(s, expr string) (bool, error) {
	body, negated := strings.CutPrefix(expr, "!")
	ok, err := m.match(s, body)
	if err != nil {
		return false, fmt.Errorf("match expression %q: %w", shorten(expr), err)
	}
	return ok != negated, nil
}

func (m *Matcher) match(s, expr string) (bool, error) {
	if inner, ok, err := within(expr, "/"); err != nil {
		return false, err
	} else if ok {
		return runERE(s, inner)
	}
	if inner, ok, _ := within(expr, "{}"); ok {
		return m.inRange(s, inner), nil
	}
	for _, e := range m.External {
		if inner, ok, err := within(expr, e.Delim); err != nil {
			return false, err
		} else if ok {
			return m.Run != nil && m.Run(e, s, inner), nil
		}
	}
	return run(s, expr, glob)
}

// Valid says why an expression is one that can fit nothing, or only a part of
// what stands in it: a regular expression that is none, a range with a member
// that ends the list. [Matcher.Match] is silent about the first, as LBNL NHC.
func Valid(expr string) (err error) {
	body := strings.TrimPrefix(expr, "!")
	if inner, ok, _ := within(body, "/"); ok {
		if _, err := (program{expr: inner, lang: ere, bytes: !utf8.ValidString(inner)}).compile(); errors.Is(err, errSyntax) {
			return errors.New("not a regular expression: it fits nothing")
		}
	}
	if inner, ok, _ := within(body, "{}"); ok {
		warn := func(string) {
			err = errors.New("not a range of nodes such as {n[01-16],login}: it fits nothing from there on")
		}
		(&Matcher{Warn: warn}).inRange("", inner)
	}
	return err
}

// within takes the delimiters off expr, if expr begins with the first and ends
// with the last character of delim, which must be two characters of expr.
func within(expr, delim string) (inner string, ok bool, err error) {
	_, opens := utf8.DecodeRuneInString(delim)
	_, closes := utf8.DecodeLastRuneInString(delim)
	if expr == "" || delim == "" ||
		!strings.HasPrefix(expr, delim[:opens]) || !strings.HasSuffix(expr, delim[len(delim)-closes:]) {
		return "", false, nil
	}
	if len(expr) < opens+closes {
		return "", false, ErrExpansion
	}
	return expr[opens : len(expr)-closes], true, nil
}

// Line puts the string and the expression into the command, in double quotes
// and otherwise as they are. A shell expands what is in them: a string that
// anybody may have chosen must be handed over in another way, with "$1" in its place.
func (e External) Line(s, expr string) string {
	c := strings.ReplaceAll(e.Command, "%h", `"`+s+`"`)
	return strings.ReplaceAll(c, "%m", `"`+expr+`"`)
}

// Externals pairs the values of NHC_MCHECK_DELIM with those of
// NHC_MCHECK_COMMAND. A delimiter without a command has the empty one, which fits
// everything.
func Externals(delims, commands []string) []External {
	var list []External
	for i, d := range delims {
		e := External{Delim: d}
		if i < len(commands) {
			e.Command = commands[i]
		}
		list = append(list, e)
	}
	return list
}

// Glob says whether the bash pattern (with extglob) matches the whole of s. A
// pattern beyond the limits of [ErrTooLarge] matches nothing.
func Glob(s, pattern string) bool {
	ok, err := run(s, pattern, glob)
	return ok && err == nil
}

// Find says whether the bash pattern matches some part of s that is not empty,
// as bash's ${s//pattern} would take out. A pattern beyond the limits of
// [ErrTooLarge] is found nowhere.
func Find(s, pattern string) bool {
	ok, err := run(s, pattern, find)
	return ok && err == nil
}

// runERE says whether the extended regular expression matches somewhere in s;
// one that is not valid does not.
func runERE(s, expr string) (bool, error) {
	ok, err := run(s, expr, ere)
	if errors.Is(err, errSyntax) {
		return false, nil
	}
	return ok, err
}

// shorten keeps messages about very long expressions readable.
func shorten(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
