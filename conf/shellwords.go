package conf

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// errNeedsShell marks a word whose value cannot be determined without a shell.
var errNeedsShell = errors.New("needs a shell")

// words expands shell words without a shell: quotes, $NAME, ${NAME}, ${NAME:-word} and
// ${NAME-word}.
type words struct {
	lookup  func(name string) (value string, set bool)
	special string // unquoted characters that bash would expand at this place
	split   bool   // bash would split the values of unquoted variables at this place
}

// expand returns the text of a word.
func (e words) expand(w *syntax.Word) (string, error) {
	if w == nil {
		return "", nil
	}
	var b strings.Builder
	for _, part := range w.Parts {
		var text string
		var err error
		switch part := part.(type) {
		case *syntax.Lit:
			text, err = e.literal(part.Value)
		case *syntax.SglQuoted:
			text = part.Value
			if part.Dollar {
				err = errNeedsShell
			}
		case *syntax.DblQuoted:
			text, err = e.quoted(part)
		case *syntax.ParamExp:
			text, err = e.param(part, false)
			if e.split {
				err = errNeedsShell
			}
		default:
			err = errNeedsShell
		}
		if err != nil {
			return "", err
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

// literal removes the backslashes of unquoted text.
func (e words) literal(s string) (string, error) {
	if hasTilde(s) || strings.ContainsAny(s, e.special) {
		return "", fmt.Errorf("%q %w", s, errNeedsShell)
	}
	return unescape(s, ""), nil
}

// hasTilde reports whether bash could expand a ~ in unquoted text of a value.
func hasTilde(s string) bool { return strings.HasPrefix(s, "~") || strings.Contains(s, ":~") }

// NeedsShell reports whether the value of an assignment has unquoted text that bash changes otherwise than
// package expand: a backslash, a ~ behind the beginning, and behind export a list in braces.
func NeedsShell(value *syntax.Word, export bool) bool {
	braced := *value
	if export && syntax.SplitBraces(&braced) {
		return true
	}
	return slices.ContainsFunc(value.Parts, func(part syntax.WordPart) bool {
		lit, ok := part.(*syntax.Lit)
		return ok && (hasTilde(lit.Value) || strings.Contains(lit.Value, `\`))
	})
}

// quoted expands text in double quotes.
func (e words) quoted(q *syntax.DblQuoted) (string, error) {
	if q.Dollar {
		return "", errNeedsShell
	}
	var b strings.Builder
	for _, part := range q.Parts {
		switch part := part.(type) {
		case *syntax.Lit:
			b.WriteString(unescape(part.Value, "$`\"\\"))
		case *syntax.ParamExp:
			text, err := e.param(part, true)
			if err != nil {
				return "", err
			}
			b.WriteString(text)
		default:
			return "", errNeedsShell
		}
	}
	return b.String(), nil
}

// unescape removes the backslashes before the given characters (before any character if none are
// given) and those that join lines.
func unescape(s, escapable string) string {
	var b strings.Builder
	for {
		plain, rest, ok := strings.Cut(s, `\`)
		b.WriteString(plain)
		switch {
		case !ok:
			return b.String()
		case rest == "":
			return b.String() + `\`
		case rest[0] == '\n':
		case escapable == "" || strings.IndexByte(escapable, rest[0]) >= 0:
			b.WriteByte(rest[0])
		default:
			b.WriteString(`\` + rest[:1])
		}
		s = rest[1:]
	}
}

// param expands a variable, possibly with a default.
func (e words) param(p *syntax.ParamExp, inQuotes bool) (string, error) {
	known := syntax.ParamExp{Dollar: p.Dollar, Rbrace: p.Rbrace, Short: p.Short, Param: p.Param, Exp: p.Exp}
	if !reflect.DeepEqual(*p, known) || p.Param == nil || !syntax.ValidName(p.Param.Value) {
		return "", errNeedsShell
	}
	value, set := e.lookup(p.Param.Value)
	if kind, ok := shellVars[p.Param.Value]; ok && (kind == dynamic || !set) {
		return "", fmt.Errorf("$%s %w", p.Param.Value, errNeedsShell)
	}
	switch {
	case p.Exp == nil:
		return value, nil
	case p.Exp.Op != syntax.DefaultUnset && p.Exp.Op != syntax.DefaultUnsetOrNull:
		return "", errNeedsShell
	case set && (value != "" || p.Exp.Op == syntax.DefaultUnset):
		return value, nil
	case inQuotes && p.Exp.Word != nil && !isPlain(p.Exp.Word):
		return "", errNeedsShell // quotes within quotes have different rules
	}
	return e.expand(p.Exp.Word)
}

// isPlain reports whether a word is text without quotes.
func isPlain(w *syntax.Word) bool {
	return w.Lit() != "" && !strings.ContainsAny(w.Lit(), `\~`)
}

// shellVars holds the variables that bash itself sets.
var shellVars = map[string]varKind{
	"BASH": preset, "BASH_VERSION": preset, "HOME": preset, "HOSTNAME": preset, "HOSTTYPE": preset, "IFS": preset,
	"MACHTYPE": preset, "OLDPWD": preset, "OPTERR": preset, "OPTIND": preset, "OSTYPE": preset, "PATH": preset,
	"PS4": preset, "PWD": preset, "SHELL": preset, "SHLVL": preset, "TERM": preset, "_": dynamic,

	"BASHOPTS": dynamic, "BASHPID": dynamic, "BASH_ALIASES": dynamic, "BASH_ARGC": dynamic, "BASH_ARGV": dynamic,
	"BASH_ARGV0": dynamic, "BASH_CMDS": dynamic, "BASH_COMMAND": dynamic, "BASH_LINENO": dynamic, "BASH_SOURCE": dynamic,
	"BASH_SUBSHELL": dynamic, "BASH_VERSINFO": dynamic, "DIRSTACK": dynamic, "EPOCHREALTIME": dynamic, "EPOCHSECONDS": dynamic,
	"EUID": dynamic, "FUNCNAME": dynamic, "GROUPS": dynamic, "HISTCMD": dynamic, "LINENO": dynamic, "PIPESTATUS": dynamic,
	"PPID": dynamic, "RANDOM": dynamic, "SECONDS": dynamic, "SHELLOPTS": dynamic, "SRANDOM": dynamic, "UID": dynamic,
}

type varKind int

const (
	preset  varKind = iota // bash sets it at the start unless the environment does
	dynamic                // bash changes it, or it cannot be assigned
)

// Quote quotes a word if bash requires it.
func Quote(word string) string {
	if word != "" && strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+=./:,%@") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
