package lint

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/open"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/conf/spell"
)

// wrongWith returns the mistake in a step that its text alone does not show: its variables have
// values only here, and its command may be missing. sure is false if the line can be right.
func wrongWith(f *open.Files, s *plan.Step) (text string, sure bool) {
	switch {
	case s.Usage != nil:
		return s.Usage.Message, true
	case s.Command != "":
		return notFound(f, s.Command, s.NewPath)
	}
	return s.Lacks, false
}

// neverRun returns why no run has time for an active test, "" if one has, or if a run uses its
// last result.
func neverRun(f *open.Files, s *plan.Step) string {
	limit := f.Allowed()
	named := func(name string) bool { return name == "NAME" || name == "CONFFILE" || name == "TIMEOUT" }
	if f.HealthCheck() && slices.ContainsFunc(f.Given, named) { // slurmd starts a run without options
		limit = f.Set.Timeout()
	}
	if s.MaxAge > 0 || s.Usage != nil || s.Fits(limit) {
		return ""
	}
	return fmt.Sprintf("it may take %s, more than a run of %s leaves: it is skipped", s.Bound, limit)
}

const neverRunFix = "copy the lines to /etc/nhc/nhc-active.conf and run systemctl enable --now nhc-gpu-active.timer; or give the tests less time (-t), or --max-age: see /usr/share/doc/nhc-gpu/docs/active.md"

// lackedCalls returns FILE:LINE: text for each call in the site's scripts of a function that only
// LBNL NHC has.
func lackedCalls(f *open.Files) (texts []string) {
	if f.Bash.Unloaded != nil {
		return nil
	}
	lacked := run.LackedFunctions()
	for _, s := range f.Bash.Scripts {
		lacked = slices.DeleteFunc(lacked, func(name string) bool { return slices.Contains(s.Functions, name) })
	}
	for _, s := range f.Bash.Scripts {
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

func lackedText(name string) string {
	return name + " is a function of LBNL NHC that nhc-gpu does not have: the call fails with status 127"
}

// notFound returns an error if bash cannot find a command.
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
	near := spell.DidYouMean(name, known)
	switch {
	case near != "":
		text += near
	case newPath:
		return "", false
	case !sure:
		text += "; nhc-gpu --check shows whether a file that a script reads defines it"
	}
	return text, sure
}
