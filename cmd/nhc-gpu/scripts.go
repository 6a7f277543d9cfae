package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
)

// noteScripts takes note of the scripts in INCDIR. Bash runs them as root: ones
// that others could have written, or put there (a link will do), are refused, all
// of them, for a function may be defined in one and used in another.
func (r *oneRun) noteScripts(o run.Outcome) {
	dir := r.Set.Get("INCDIR")
	resp, err := o.AnswerTo("list " + dir)
	if r.unloaded = err; err != nil {
		return
	}
	r.scripts = resp.Scripts
	if resp.File != nil && r.hasScripts() {
		if r.unloaded = trusted(dir, resp.File); r.unloaded != nil {
			return
		}
	}
	for _, s := range r.scripts {
		if s.Stock || !s.Mode.IsRegular() {
			continue
		}
		if r.unloaded = trusted(s.Path, &s.FileInfo); r.unloaded != nil {
			return
		}
	}
}

// hasScripts says whether the site has scripts that are not LBNL NHC's own,
// which the checks of this program replace.
func (r *oneRun) hasScripts() bool {
	return slices.ContainsFunc(r.scripts, func(s run.Script) bool { return !s.Stock })
}

// loadScripts has bash read the scripts of the site, if there are any. They may
// set variables, define checks anew, or end the run. Around a job they are for the
// lines of nhc-prolog.conf and nhc-epilog.conf alone.
func (r *oneRun) loadScripts() {
	if r.job != nil && !r.job.own {
		r.overrides = run.Overrides(r.scripts)
		return
	}
	if r.unloaded == nil && !r.hasScripts() {
		return
	}
	o := &observer{r}
	err := o.needShell(r.Budget.End)
	switch {
	case err == nil:
	case errors.Is(err, run.ErrDeadline):
		r.emit(r.fold.f.Expired(o.killLine("load scripts of " + r.Set.Get("INCDIR"))))
	case errors.Is(err, run.ErrInterrupted):
		r.endShell()
		r.interrupted()
	default:
		r.endShell()
		r.unloaded = err
		r.emit(r.fold.f.Findings([]checks.Finding{{
			Code: "scripts.unusable", Severity: checks.Unknown, Message: fmt.Sprintf("scripts are not used:  %v", err),
		}}))
	}
}
