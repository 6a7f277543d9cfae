package session

import (
	"cmp"
	"path/filepath"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// What a drain is remembered by, and who takes it back: a run that reads the file which
// the line that failed stands in. No other run has looked at the fault; but what a prolog
// or an epilog has found must be taken back by somebody else, since no drained node sees
// them again: by a run that has the same check.

// Paths are the files of the configuration, as they are named, and where they are.
type Paths map[string]string

// Of returns the one way in which a file is remembered, "" for none: as the worker that has
// read it has resolved it.
func (p Paths) Of(file string) string {
	if path := p[file]; path != "" || file == "" {
		return path
	}
	return filepath.Clean(file)
}

// nameOf is the check of a step, or the line that bash runs.
func nameOf(s *plan.Step) string { return cmp.Or(s.Name, s.Text) }

// CauseOf returns what a failure of a step is remembered by.
func CauseOf(s *plan.Step, paths Paths, job bool) slurm.Cause {
	c := slurm.Cause{Check: nameOf(s), File: paths.Of(s.Pos.File), Job: job}
	if Unasked(s) {
		c.File = "" // no line asks for it
	}
	if s.Kind == plan.Native && s.Table == nil {
		c.Line = s.Text
	}
	return c
}

// notLooked are the codes by which an ordinary check says that it has not looked at what
// it is about. Other skips of one that passes are about a part, or about what the node
// has not got.
var notLooked = []string{"job.none", "job.gpus.unknown"}

// Unanswered are the steps of a plan that have only been skipped, by their index.
type Unanswered map[int]bool

// Note takes note of what a step has come to: an active test that was only skipped has not
// looked, nor has a line of bash. The result of an earlier run counts as its own.
func (u Unanswered) Note(s *plan.Step, list []checks.Finding, earlier bool) {
	told := slices.ContainsFunc(list, func(f checks.Finding) bool { return f.Severity != checks.Skip && f.Severity != checks.Unknown })
	if len(list) == 0 || earlier || told || s == nil {
		return
	}
	if s.Kind == plan.Native && !s.Active && !slices.ContainsFunc(list, func(f checks.Finding) bool { return slices.Contains(notLooked, f.Code) }) {
		return
	}
	u[s.Index] = true
}

// Pass is a run that has found nothing.
type Pass struct {
	Plan       *plan.Plan // nil: it has none
	Files      []string   // of the configuration that it has read, as they are named
	Paths      Paths
	Unanswered Unanswered
}

// Lacks says why this run does not take back what the node was drained for, "" if it does.
func (p Pass) Lacks(c slurm.Cause) string {
	file := p.Paths.Of(c.File) // as earlier runs may have written it
	reads := file != "" && slices.ContainsFunc(p.Files, func(f string) bool { return p.Paths.Of(f) == file })
	if !reads && !c.Job || p.Plan == nil {
		return "whose file this run does not read"
	}
	of := func(s *plan.Step) bool { return nameOf(s) == c.Check && (c.Job || p.Paths.Of(s.Pos.File) == file) }
	var same, like []*plan.Step
	for i := range p.Plan.Steps {
		if s := &p.Plan.Steps[i]; of(s) && s.Text == c.Line {
			same = append(same, s)
		} else if of(s) {
			like = append(like, s)
		}
	}
	if len(same) > 0 { // else its words may have been corrected
		like = same
	}
	left := slices.ContainsFunc(p.Plan.Left, func(l plan.Left) bool { return of(&l.Step) })
	switch {
	case slices.ContainsFunc(like, func(s *plan.Step) bool { return !p.Unanswered[s.Index] || !mustAnswer(s, c) }):
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
