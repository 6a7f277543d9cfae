package session

import (
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// The checks of an epilog that no line needs to ask for. What a job has left is
// looked for before anything else, so that nothing that hangs hides it, and its
// GPUs' memory when the processes have had their time.
const (
	leftoversCheck = "check_job_leftovers"
	jobGPUsCheck   = "check_job_gpus"
)

// everyEpilog stands for the place of what no line asks for.
const everyEpilog = "every epilog"

// Unasked reports whether no line asks for a step.
func Unasked(s *plan.Step) bool { return s.Pos == conf.Pos{File: everyEpilog} }

// AfterJob adds these checks to the plan of an epilog, but those that the site names.
func AfterJob(p *plan.Plan, opts plan.Options) *plan.Plan {
	if opts.Context != conf.Epilog {
		return p
	}
	asked := func(name string) bool {
		names := func(s plan.Step) bool { return s.Name == name || strings.Contains(s.Text, name) }
		return slices.ContainsFunc(p.Steps, names) || slices.ContainsFunc(p.Left, func(l plan.Left) bool { return names(l.Step) })
	}
	step := func(name string) *plan.Plan {
		if asked(name) {
			return new(plan.Plan)
		}
		return plan.BuildTables([]conf.Entry{{Pos: conf.Pos{File: everyEpilog}, Name: name, Hosts: "*", Params: map[string]any{}}}, opts)
	}
	all := step(leftoversCheck)
	gpus := step(jobGPUsCheck)
	all.Add(p)
	all.Add(gpus)
	return all
}

// OwnFile returns the file of lines that is for a prolog or an epilog alone, beside the one
// that is for all runs; "" if that is it.
func OwnFile(path, context string) string {
	base, suffix := strings.TrimSuffix(path, ".conf"), "-"+context
	if strings.HasSuffix(base, suffix) {
		return ""
	}
	return base + suffix + ".conf"
}
