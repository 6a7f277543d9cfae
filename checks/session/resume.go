package session

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// A drain is stored with its cause. A run resumes the node only if it reads the file with the
// line that failed; no other run has looked at the fault. A drain by a prolog or an epilog is an
// exception: no prolog runs on a drained node, so any run that has the same check can resume
// it.

// Paths maps the files of the configuration, as they are named, to their resolved paths.
type Paths map[string]string

// Of returns the stored form of a file's path, "" for none: the path as resolved by the worker
// that read the file.
func (p Paths) Of(file string) string {
	if path := p[file]; path != "" || file == "" {
		return path
	}
	return filepath.Clean(file)
}

// nameOf returns the check of a step, or the line that bash runs.
func nameOf(s *plan.Step) string { return cmp.Or(s.Name, s.Text) }

// CauseOf returns the cause to store for a failure of a step.
func CauseOf(s *plan.Step, paths Paths, job bool) slurm.Cause {
	c := slurm.Cause{Check: nameOf(s), File: paths.Of(s.Pos.File), Job: job}
	if Unasked(s) {
		c.File = "" // no line requests it
	}
	if s.Kind == plan.Native && s.Table == nil {
		c.Line = s.Text
	}
	c.Drill = isDrill(s)
	return c
}

// notLooked are the codes of an ordinary check that did not look at its subject, besides those of
// [checks.NotYet]. Other skips in a passing check are about a part, or about a device that the node does
// not have.
var notLooked = []string{"job.none", "job.gpus.unknown", "ib.inactive"}

// Unanswered holds the steps of a plan that were skipped in whole or in part, by index. Each string names
// the skipped part:
//   - a device, or a called check;
//   - "" or a code of [checks.NotYet]: every fault of the step;
//   - [checks.NoneStuck]: every fault of the step but a stuck process.
type Unanswered map[int][]string

// Note records the result of a step. A skipped passive check counts as answered, unless its code is in
// notLooked. An active test, or a line of bash that calls one, has an answer if it has measured
// something and skipped no GPU: a drain names one GPU, but the others can have a fault, too. Nothing
// else that it reports is an answer: it can be from before the test began.
func (u Unanswered) Note(s *plan.Step, list []checks.Finding) {
	if s == nil {
		return
	}
	skipped := func(f checks.Finding) bool { return f.Severity == checks.Skip || f.Severity == checks.Unknown }
	ordinary := s.Kind == plan.Native && !s.Active
	told := slices.ContainsFunc(list, func(f checks.Finding) bool {
		return !skipped(f) && (ordinary || f.Severity == checks.Fail || strings.HasSuffix(f.Code, ".rates"))
	})
	for _, f := range list {
		switch {
		case skipped(f) && (checks.NotYet(f.Code) || f.Code == checks.NoneStuck): // another fault that it has found says nothing of this one
			u[s.Index] = append(u[s.Index], f.Code)
		case !skipped(f) || ordinary && (told || !slices.Contains(notLooked, f.Code)):
		case !told || strings.HasPrefix(f.Code, "active."):
			u[s.Index] = append(u[s.Index], "")
		case f.Device.String() != "":
			u[s.Index] = append(u[s.Index], f.Device.String())
		}
	}
}

// Omit records that a line of bash has not run a check that it calls, because of the check's contexts.
func (u Unanswered) Omit(s *plan.Step, check string) {
	if s != nil {
		u[s.Index] = append(u[s.Index], check)
	}
}

// Early reports whether a check has not judged something, since it may still be starting after a boot.
func (u Unanswered) Early() bool {
	for _, skipped := range u {
		if slices.ContainsFunc(skipped, checks.NotYet) {
			return true
		}
	}
	return false
}

// skips reports whether a step has not looked for the fault of a mark.
func (u Unanswered) skips(s *plan.Step, m slurm.Mark) bool {
	return slices.ContainsFunc(u[s.Index], func(skipped string) bool {
		if info, omitted := checks.Lookup(skipped); omitted {
			return m.Code() == "" || info.Bears(m.Code())
		}
		if skipped == checks.NoneStuck {
			return m.Code() != checks.JobStuck
		}
		return m.Fault == "" || checks.NotYet(skipped) || strings.HasSuffix(m.Fault, skipped)
	})
}

// Marked returns the failure that the mark of a node names: the one that drains it. But the end of a stuck
// process answers that fault alone, so another failure of its check takes precedence.
func Marked(failures []checks.Finding, draining int) checks.Finding {
	x := failures[draining]
	for _, o := range failures {
		if x.Code == checks.JobStuck && o.Check == x.Check && o.Code != x.Code {
			return o
		}
	}
	return x
}

// Pass is a run without failures.
type Pass struct {
	Plan       *plan.Plan // nil: the run has no plan
	Files      []string   // the files of the configuration that the run has read, as they are named
	Checking   []string   // those that have a check for some host
	Paths      Paths
	Unanswered Unanswered
	Drill      bool // a drill is under way
}

// Lacks returns why this run cannot resume the node after a drain with this mark, "" if it can.
func (p Pass) Lacks(m slurm.Mark) string {
	c := m.Cause
	switch {
	case c.Drill && p.Drill:
		return "in a drill that is not over"
	case c.Drill:
		return ""
	}
	file := p.Paths.Of(c.File) // a run that could not read the file has stored its name
	isFile := func(f string) bool { return p.Paths.Of(f) == file }
	reads := file != "" && slices.ContainsFunc(p.Files, isFile)
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
	if len(same) > 0 { // otherwise its arguments may have been corrected
		like = same
	}
	excluded := slices.ContainsFunc(p.Plan.Skipped, func(s plan.Skipped) bool { return of(&s.Step) })
	switch {
	case slices.ContainsFunc(like, func(s *plan.Step) bool { return !p.Unanswered.skips(s, m) || !p.Unanswered.mustAnswer(s, c) }):
		return ""
	case len(like) > 0:
		return "which this run skipped or did not finish"
	case excluded || !reads:
		return "which this run does not have"
	case c.Check != "" && !slices.ContainsFunc(p.Checking, isFile): // its copy may have failed: nothing has been looked at
		return "whose file now has no check for any node"
	}
	return "" // the line was removed, or is no longer for this node
}

// mustAnswer reports whether a skipped step counts as not having looked. A skip of an ordinary
// check in the same file is an answer: the check does not apply to the node. It is no answer if the
// check waits for something that starts after a boot.
func (u Unanswered) mustAnswer(s *plan.Step, c slurm.Cause) bool {
	return c.Job || s.Active || s.Kind == plan.ShellLine || slices.ContainsFunc(u[s.Index], checks.NotYet)
}
