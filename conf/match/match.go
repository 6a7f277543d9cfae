// Package match decides whether a string matches an LBNL NHC match expression: a glob, a /regular
// expression/, a {node range} or the language of an external matcher, each with an optional leading
// "!" for "does not match".
//
// Globs are those of bash with extglob; regular expressions are the extended ones of glibc. Both are
// compiled into the same kind of automaton, so the time is proportional to the length of the string
// for every expression, and no expression can hang the caller. See [Matcher.Match].
//
// Go's regexp cannot do this. A glob has !(...), the complement of a pattern, anywhere and nested:
// RE2 has no complement, and an automaton of derivatives has it as one more operator. glibc has \<,
// \>, \` and \', a{,3}, a**, counts up to 32767 and [[.x.]], which RE2 rejects or interprets
// otherwise, and rejects expressions that RE2 accepts. bash matches the bytes of a string that is not
// UTF-8, and treats an unclosed bracket as a plain character. With a difference, a site's line would
// be skipped on some nodes without an error. Therefore the tests give random expressions and strings
// to bash itself, in two locales, and compare (bash_test.go).
package match

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxExpr is the maximum length of a glob or regular expression in bytes. Node ranges can have any
// length.
const MaxExpr = 64 << 10

// The errors of [Matcher.Match]. An expression that is only invalid in its language is not an error:
// it matches nothing.
var (
	// ErrExpansion is an expression of one character that is both its delimiters, such as "/".
	// LBNL NHC ends the whole run with exit status 1 because of it.
	ErrExpansion = errors.New("one character cannot be both delimiters")
	// ErrTooLarge is an expression that is longer than MaxExpr, has more than 1000 nested
	// parentheses, or has repeat counts with too large a product.
	ErrTooLarge = errors.New("expression too large")
	// ErrBackref is a regular expression with a back-reference (\1), which a linear-time matcher
	// cannot support.
	ErrBackref = errors.New("back-references are not supported")
)

// External is a match language of the site: a command receives the expression between the
// delimiters. See NHC_MCHECK_DELIM, NHC_MCHECK_COMMAND.
type External struct {
	Delim   string // the first character opens an expression, the last one closes it
	Command string // shell command; %h is replaced by the string, %m by the expression
}

// Matcher matches with the site's settings. The zero value has no external matchers and drops
// warnings. It is safe for concurrent use if Run and Warn are.
type Matcher struct {
	External []External

	// Run decides whether s matches expr for an external matcher: its command line, see
	// [External.Line], exits with status 0. Nil means that none ever
	// does.
	Run func(e External, s, expr string) bool

	// Warn receives the text that LBNL NHC logs about a malformed range. Can be nil.
	Warn func(text string)
}

// Match reports whether s matches expr. A leading "!" negates the result. The rest is tried in this
// order:
//
//	/ERE/     a regular expression, found anywhere in s
//	{LIST}    a list of nodes and node ranges, {n[01-10],login}, that contains s
//	external  one of m.External, by its delimiters
//	GLOB      a bash pattern with extglob that matches the whole of s
//
// Strings and expressions are interpreted as UTF-8 if both are valid UTF-8, else as
// bytes; character classes and \w are those of the C locale.
//
// The time is at most proportional to len(s) times the length of the expression with its repeat
// counts expanded. Only with !(...) it can be proportional to the square of len(s), and to higher
// powers if they are nested.
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

// Valid returns an error if an expression can match nothing, or only a part of its text is used: an
// invalid regular expression, or a range with a member that ends the list. [Matcher.Match] does not
// report the first, like LBNL NHC.
func Valid(expr string) (err error) {
	body := strings.TrimPrefix(expr, "!")
	if inner, ok, _ := within(body, "/"); ok {
		if _, err := (program{expr: inner, lang: ere, bytes: !utf8.ValidString(inner)}).compile(); errors.Is(err, errSyntax) {
			return errors.New("not a regular expression: it matches nothing")
		}
	}
	if inner, ok, _ := within(body, "{}"); ok {
		warn := func(string) {
			err = errors.New("not a range of nodes such as {n[01-16],login}: the rest is ignored")
		}
		(&Matcher{Warn: warn}).inRange("", inner)
	}
	return err
}

// within removes the delimiters of expr, if expr begins with the first and ends with the last
// character of delim; they must be two characters of expr.
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

// Line inserts the string and the expression into the command, in double quotes and otherwise
// unchanged. A shell expands their contents: pass a string that any user can choose in another way,
// with "$1" instead.
func (e External) Line(s, expr string) string {
	c := strings.ReplaceAll(e.Command, "%h", `"`+s+`"`)
	return strings.ReplaceAll(c, "%m", `"`+expr+`"`)
}

// Externals pairs the values of NHC_MCHECK_DELIM with those of NHC_MCHECK_COMMAND. A delimiter
// without a command has the empty command, which matches everything.
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

// Glob reports whether the bash pattern (with extglob) matches the whole of s. A
// pattern beyond the limits of [ErrTooLarge] matches nothing.
func Glob(s, pattern string) bool {
	ok, err := run(s, pattern, glob)
	return ok && err == nil
}

// Find reports whether the bash pattern matches a non-empty part of s, which bash's ${s//pattern}
// would remove. A pattern beyond the limits of [ErrTooLarge] is never
// found.
func Find(s, pattern string) bool {
	ok, err := run(s, pattern, find)
	return ok && err == nil
}

// runERE reports whether the extended regular expression matches somewhere in s; an invalid one does
// not.
func runERE(s, expr string) (bool, error) {
	ok, err := run(s, expr, ere)
	if errors.Is(err, errSyntax) {
		return false, nil
	}
	return ok, err
}

// shorten limits the length of an expression in a message.
func shorten(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
