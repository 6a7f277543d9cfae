package session

import (
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// The checks that an epilog always runs. It looks for remains of a job before all other checks,
// so that a hang cannot hide them, and checks the memory of its GPUs after the processes had
// time to end.
const (
	leftoversCheck = "check_job_leftovers"
	jobGPUsCheck   = "check_job_gpus"
)

// jobHealthCheck is the check that the monitor runs while jobs run.
const jobHealthCheck = "check_job_health"

// everyEpilog and everyJob are the positions of the steps that no line requests.
const (
	everyEpilog = "every epilog"
	everyJob    = "every running job"
)

// Unasked reports whether a step is one that no line requests.
func Unasked(s *plan.Step) bool {
	return s.Pos == conf.Pos{File: everyEpilog} || s.Pos == conf.Pos{File: everyJob}
}

// AddUnasked adds these checks to the plan of an epilog, or of a run of the monitor, except those that the site's
// lines contain. A run of the monitor for other events than running jobs skips its check.
func AddUnasked(p *plan.Plan, opts plan.Options) *plan.Plan {
	pos := everyEpilog
	switch {
	case opts.Context == conf.Monitor:
		pos = everyJob
	case opts.Context != conf.Epilog:
		return p
	}
	asked := func(name string) bool {
		names := func(s plan.Step) bool { return s.Name == name || strings.Contains(s.Text, name) }
		return slices.ContainsFunc(p.Steps, names) || slices.ContainsFunc(p.Skipped, func(s plan.Skipped) bool { return names(s.Step) })
	}
	step := func(name string) *plan.Plan {
		if asked(name) {
			return new(plan.Plan)
		}
		return plan.BuildTables([]conf.Entry{{Pos: conf.Pos{File: pos}, Name: name, Hosts: "*", Params: map[string]any{}}}, opts)
	}
	if pos == everyJob {
		health := step(jobHealthCheck)
		if !slices.Contains(opts.Events, monitor.Job) {
			for _, s := range health.Steps {
				health.Skipped = append(health.Skipped, plan.Skipped{Step: s, Because: "the event does not concern it"})
			}
			health.Steps = nil
		}
		p.Add(health)
		return p
	}
	all := step(leftoversCheck)
	gpus := step(jobGPUsCheck)
	all.Add(p)
	all.Add(gpus)
	return all
}

// OwnFile returns the path of the file that is only for a prolog or an epilog, next to the general
// one; "" if path is already that file.
func OwnFile(path, context string) string {
	base, suffix := strings.TrimSuffix(path, ".conf"), "-"+context
	if strings.HasSuffix(base, suffix) {
		return ""
	}
	return base + suffix + ".conf"
}
