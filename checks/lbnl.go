package checks

import (
	"context"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// What the checks of LBNL NHC have in common: their texts, and how they look
// at words and paths.

// badOption renders an option error after the name that LBNL NHC puts before it.
func badOption(name string, err *UsageError) Finding {
	var text string
	switch err.Kind {
	case BadOption:
		text = "Invalid option:  -" + err.Word
	case NoArgument:
		text = "Option -" + err.Word + " requires an argument."
	default:
		text = "Syntax error:  " + err.Error()
	}
	if err.Name != "" {
		name = err.Name
	}
	return usage(name+":  "+text, err.Want)
}

// usageOf is the BadUsage of a check whose option errors begin with its name.
func usageOf(name string) func(string, *UsageError) Finding {
	return func(_ string, err *UsageError) Finding { return badOption(name, err) }
}

// usage is the failure of a check that was given the wrong words.
func usage(message, want string) Finding {
	return Finding{Code: "config.usage", Severity: Fail, Message: message, Want: want, Remedy: FixConfig}
}

// badValue is the failure of a check that was given a word which is no number.
func badValue(check, what, word, want string) Finding {
	return Finding{
		Code:     "config.value",
		Severity: Fail,
		Message:  fmt.Sprintf("%s:  Invalid %s \"%s\"; want %s.", check, what, word, want),
		Want:     want,
		Got:      word,
		Remedy:   FixConfig,
	}
}

// numberLimits reads limits; nil is one that is not given.
func numberLimits(check string, words ...string) ([]*big.Rat, *Finding) {
	limits := make([]*big.Rat, len(words))
	for i, w := range words {
		if w == "" {
			continue
		}
		limit, ok := parseNumber(w)
		if !ok {
			bad := badValue(check, "limit", w, "a number")
			return nil, &bad
		}
		limits[i] = limit
	}
	return limits, nil
}

// unreadable is what a check says when it could not read what it judges.
func unreadable(err error) []Finding {
	return []Finding{{Code: "probe.unreadable", Severity: Unknown, Message: err.Error()}}
}

// matcher matches strings as LBNL's mcheck does. What is wrong with the
// expressions goes to notes, once each; one that cannot be told to match does not.
func (e *Env) matcher(notes *[]Finding) func(s, expr string) bool {
	note := func(severity Severity, text string) {
		f := Finding{Code: "config.match", Severity: severity, Message: text, Remedy: FixConfig}
		if !slices.Contains(*notes, f) {
			*notes = append(*notes, f)
		}
	}
	m := match.Matcher{
		External: match.Externals(e.array("NHC_MCHECK_DELIM"), e.array("NHC_MCHECK_COMMAND")),
		Warn:     func(text string) { note(Warn, text) },
	}
	if m.External != nil {
		m.Run = e.external(func(err error) { note(Unknown, err.Error()) })
	}
	return func(s, expr string) bool {
		ok, err := m.Match(s, expr)
		if err != nil {
			note(Unknown, err.Error())
		}
		return ok
	}
}

// should says in LBNL's words what a match string demands.
func should(expr string) string {
	if rest, not := strings.CutPrefix(expr, "!"); not {
		return "should NOT match " + rest
	}
	return "should match " + expr
}

// lookup is the value of a variable as the checks of nhc.conf see it.
func (e *Env) lookup(name string) string {
	if v, ok := e.Vars[name]; ok {
		return v
	}
	return e.Host.Getenv(name)
}

// array is the value of an array as the checks of nhc.conf see it. A plain
// variable is one with one element.
func (e *Env) array(name string) []string {
	if a, ok := e.Arrays[name]; ok {
		return a
	}
	if v := e.Vars[name]; v != "" {
		return []string{v}
	}
	return nil
}

// external runs the site's own matchers, each string and expression once. What
// they print is dropped. LBNL NHC evaluates the string as a part of the command;
// here it is handed over as $1, for it may be a command line, a path or an
// output that any user has chosen.
func (e *Env) external(broken func(error)) func(match.External, string, string) bool {
	type pair struct{ command, s string }
	known := map[pair]bool{}
	return func(x match.External, s, expr string) bool {
		p := pair{x.Line("$1", expr), s}
		ok, seen := known[p]
		if seen {
			return ok
		}
		// Unquoted, so that runs of blanks collapse; without pathname expansion, as in LBNL NHC.
		c := e.shell("shopt -s extglob; set -f; eval $2", "nhc", s, p.command)
		e.At("run external matcher %s", x.Command)
		exit := e.Host.Run(context.Background(), c)
		if exit.Err != nil {
			broken(fmt.Errorf("run external matcher %q: %w", x.Command, exit.Err))
		}
		known[p] = exit.Status == 0 && exit.Err == nil && !exit.Stuck
		return known[p]
	}
}

// abs makes a path of the configuration absolute: a relative one begins where
// the shell lines before it have gone.
func (e *Env) abs(p string) string {
	if pwd := e.Vars["PWD"]; pwd != "" && p != "" && !strings.HasPrefix(p, "/") {
		return pwd + "/" + p
	}
	return p
}

// owner is the name of a process's user, "" if its uid has no account.
func (e *Env) owner(p probe.Process) string {
	e.At("look up uid %d", p.UID)
	return e.Host.UserName(p.UID)
}

// command is a program as the configuration asks for it: it runs where the
// shell lines before it have gone.
func (e *Env) command(argv ...string) probe.Command {
	return probe.Command{Argv: argv, Dir: e.Vars["PWD"]}
}

// shell is a command line of the configuration, run by bash. Words are $0, $1 ...
func (e *Env) shell(line string, words ...string) probe.Command {
	return e.command(append([]string{"/bin/bash", "-c", line}, words...)...)
}
