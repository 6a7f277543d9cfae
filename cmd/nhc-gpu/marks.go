package main

import (
	"cmp"
	"path/filepath"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// What a drain is remembered by, and who takes it back: a run that reads the file which
// the line that failed stands in. No other run has looked at the fault; but what a prolog
// or an epilog has found must be taken back by somebody else, since no drained node sees
// them again: by a run that has the same check.

// checkOf is the check of a step, or the line that bash runs.
func checkOf(s *plan.Step) string { return cmp.Or(s.Name, s.Text) }

// cause is what the failure that marks the node is about.
func (r *oneRun) cause() slurm.Cause {
	s := r.steps[r.fold.f.Blamed()]
	switch {
	case s == nil && r.job != nil:
		return slurm.Cause{}
	case s == nil:
		s = r.current
	}
	if s == nil {
		return slurm.Cause{File: r.spelt(r.set.get("CONFFILE"))}
	}
	c := slurm.Cause{Check: checkOf(s), File: r.spelt(s.Pos.File), Job: r.job != nil}
	if unasked(s) {
		c.File = "" // no line asks for it
	}
	if s.Kind == plan.Native && s.Table == nil {
		c.Line = s.Text
	}
	return c
}

// spelt is the one way in which a file is remembered, "" for none: as the worker that has
// read it has resolved it.
func (r *oneRun) spelt(file string) string {
	if path := r.resolved[file]; path != "" || file == "" {
		return path
	}
	return filepath.Clean(file)
}

// opened is a file of the configuration that a worker has read.
func (r *oneRun) opened(path string, o run.Outcome) (run.File, error) {
	f, err := o.File("read " + path)
	if err == nil && f.Path != "" {
		if r.resolved == nil {
			r.resolved = map[string]string{}
		}
		r.resolved[path] = f.Path
	}
	return f, err
}

// notLooked are the codes by which an ordinary check says that it has not looked at what
// it is about. Other skips of one that passes are about a part, or about what the node
// has not got.
var notLooked = []string{"job.none", "job.gpus.unknown"}

// answered takes note of what the step whose turn it is has come to: an active test that
// was only skipped has not looked, nor has a line of bash. The result of an earlier run
// counts as its own.
func (r *oneRun) answered(list []checks.Finding, earlier bool) {
	told := slices.ContainsFunc(list, func(f checks.Finding) bool { return f.Severity != checks.Skip && f.Severity != checks.Unknown })
	if len(list) == 0 || earlier || told || r.current == nil {
		return
	}
	if s := r.current; s.Kind == plan.Native && !s.Active && !slices.ContainsFunc(list, func(f checks.Finding) bool { return slices.Contains(notLooked, f.Code) }) {
		return
	}
	if r.unanswered == nil {
		r.unanswered = map[int]bool{}
	}
	r.unanswered[r.current.Index] = true
}

// lacks says why this run, which has passed, does not take back what the node was drained
// for, "" if it does.
func (r *oneRun) lacks(c slurm.Cause) string {
	file := r.spelt(c.File) // as earlier runs may have written it
	reads := file != "" && (file == r.spelt(r.set.get("CONFFILE")) || file == r.spelt(r.tablesFile()))
	if !reads && !c.Job || r.plan == nil {
		return "whose file this run does not read"
	}
	of := func(s *plan.Step) bool { return checkOf(s) == c.Check && (c.Job || r.spelt(s.Pos.File) == file) }
	var same, like []*plan.Step
	for i := range r.plan.Steps {
		if s := &r.plan.Steps[i]; of(s) && s.Text == c.Line {
			same = append(same, s)
		} else if of(s) {
			like = append(like, s)
		}
	}
	if len(same) > 0 { // else its words may have been corrected
		like = same
	}
	left := slices.ContainsFunc(r.plan.Left, func(l plan.Left) bool { return of(&l.Step) })
	switch {
	case slices.ContainsFunc(like, func(s *plan.Step) bool { return !r.unanswered[s.Index] || !mustAnswer(s, c) }):
		return ""
	case len(like) > 0:
		return "which was skipped in this run"
	case left || !reads:
		return "which this run does not have"
	}
	return "" // the line is gone, or not for this node any more
}

// mustAnswer says whether a step that was skipped has not looked. Of an ordinary check of
// the same file that is an answer, as it always was: it does not apply to the node.
func mustAnswer(s *plan.Step, c slurm.Cause) bool {
	return c.Job || s.Active || s.Kind == plan.ShellLine
}
