package lint

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/open"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// wrongWith says what is wrong with a step, as far as that can be told without
// running it; sure is false where it may be meant, or may be right after all.
func wrongWith(f *open.Files, s *plan.Step) (text string, sure bool) {
	switch {
	case s.Usage != nil:
		return s.Usage.Message, true
	case s.Garbled:
		return "bash cannot read this line: is a quote or a bracket missing?", true
	case s.Command != "":
		return notFound(f, s.Command, s.NewPath)
	case s.Kind == plan.Assign:
		return setInVain(s.Sets), false
	case s.Kind == plan.Native && s.Table == nil:
		return hardlyMeant(s), false
	}
	return "", false
}

func setInVain(sets []plan.Var) string {
	for _, v := range sets {
		switch {
		case slices.Contains(tooLate, v.Name):
			return v.Name + " is set too late here: it belongs into /etc/sysconfig/nhc (/etc/default/nhc)"
		case slices.Contains(unused, v.Name):
			return v.Name + " means nothing to built-in checks, which run no such command"
		}
	}
	return ""
}

// hardlyMeant says that words of a check are too many or too few, where it
// takes them all the same, as LBNL NHC does.
func hardlyMeant(s *plan.Step) string {
	if why := unsupported(s); why != "" {
		return why + ": the line is skipped"
	}
	if words := surplus(s); len(words) > 0 {
		return "nothing is done with " + strings.Join(words, " ")
	}
	return s.Lacks
}

// unsupported says why a check can never be carried out as the line has it.
func unsupported(s *plan.Step) string {
	info, ok := checks.Lookup(s.Name)
	if !ok {
		return ""
	}
	c := info.New()
	u, ok := c.(interface{ Unsupported() string })
	if !ok || checks.Bind(c, s.Args) != nil {
		return ""
	}
	return u.Unsupported()
}

// surplus are the words that a check takes and does nothing with, as LBNL NHC.
func surplus(s *plan.Step) (words []string) {
	info, ok := checks.Lookup(s.Name)
	if !ok {
		return nil
	}
	c := info.New()
	if checks.Bind(c, s.Args) != nil {
		return nil
	}
	if f := reflect.Indirect(reflect.ValueOf(c)).FieldByName("Surplus"); f.IsValid() {
		words, _ = reflect.TypeAssert[[]string](f)
	}
	return words
}

// neverRun says that an active test takes longer than each run leaves it: it is never
// run. One whose last result counts need not be.
func neverRun(f *open.Files, s *plan.Step) string {
	limit := f.Allowed()
	named := func(name string) bool { return name == "NAME" || name == "CONFFILE" || name == "TIMEOUT" }
	if f.HealthCheck() && slices.ContainsFunc(f.Given, named) { // slurmd gives no options: it is for another run
		limit = f.Set.Timeout()
	}
	if s.MaxAge > 0 || s.Usage != nil || s.Fits(limit) {
		return ""
	}
	return fmt.Sprintf("it may take %s, more than a run of %s leaves: it is skipped", s.Bound, limit)
}

const neverRunFix = "copy the lines to /etc/nhc/nhc-active.conf and run systemctl enable --now nhc-gpu-active.timer; or give the tests less time (-t), or --max-age: see docs/active.md"

// lackedCalls returns the calls in the site's scripts of functions that LBNL NHC has
// and this program has not, as FILE:LINE: text.
func lackedCalls(f *open.Files) (texts []string) {
	if f.Unloaded != nil {
		return nil
	}
	lacked := lacked()
	for _, s := range f.Scripts {
		lacked = slices.DeleteFunc(lacked, func(name string) bool { return slices.Contains(s.Functions, name) })
	}
	for _, s := range f.Scripts {
		if s.Stock || !s.Mode.IsRegular() {
			continue
		}
		o := f.Pool.Call(f.Ctx, checks.Local, &wire.Request{Op: wire.OpRead, Path: s.Path, Line: "read " + s.Path}, session.Reading)
		resp, err := o.Answer()
		if err != nil {
			continue // [open.Files] has reported it
		}
		for _, c := range conf.Calls(resp.Data) {
			if slices.Contains(lacked, c.Name) {
				texts = append(texts, fmt.Sprintf("%s:%d: %s", s.Path, c.Line, lackedText(c.Name)))
			}
		}
	}
	return texts
}

// lacked are the functions of LBNL NHC that this program does not have.
func lacked() []string { return run.LackedFunctions() }

func lackedText(name string) string {
	return name + " is a function of LBNL NHC that nhc-gpu does not have: the call fails with status 127"
}

// notFound says that bash will not find a command.
func notFound(f *open.Files, name string, newPath bool) (text string, sure bool) {
	known, sure := f.LacksCommand(name, newPath)
	if known == nil {
		return "", false
	}
	text = fmt.Sprintf("%s: no check, no function of a script and no command in PATH has this name", name)
	if slices.Contains(run.LackedFunctions(), name) {
		return lackedText(name), sure
	}
	if strings.Contains(name, "/") {
		text = name + ": no such command"
	}
	near := checks.DidYouMean(name, known)
	switch {
	case near != "":
		text += near
	case newPath:
		return "", false
	case !sure:
		text += "; nhc-gpu --check tells whether a file that a script reads defines it"
	}
	return text, sure
}
