package session

import (
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Blame decides which failures of a prolog or an epilog stop the job.
type Blame struct {
	Scope slurm.Scope // the job's GPUs

	spared map[int]bool // failures that do not stop the job, by index
}

// Spare records that the policy for a failure is "drain": the job can run.
func (b *Blame) Spare(failure int) {
	if b.spared == nil {
		b.spared = map[int]bool{}
	}
	b.spared[failure] = true
}

// OfJob returns the index of the worst failure that must stop the job, -1 if there is none. A
// failure of another job's GPU does not count, but a driver that hangs for one GPU can hang for
// the job's GPUs, too.
func (b *Blame) OfJob(failures []checks.Finding) int {
	var places []int
	var list []checks.Finding
	for i, f := range failures {
		if (f.Code == "probe.hung" || b.Scope.Inside(f.Device)) && !b.spared[i] {
			places, list = append(places, i), append(list, f)
		}
	}
	if len(list) == 0 {
		return -1
	}
	return places[verdict.Worst(list)]
}

// OfNode returns the index of the failure that drains the node, -1 if there is none. A
// failure of the job takes precedence.
func (b *Blame) OfNode(failures []checks.Finding) int {
	if of := b.OfJob(failures); of >= 0 {
		return of
	}
	return verdict.Worst(failures)
}

// shownDevices are the kinds of devices that a user may see. Other devices, and messages, can
// name processes, files and users of other jobs.
var shownDevices = []string{"gpu", "hca", "port", "nic", "netdev", "nvme", "nvswitch", "pci", "dimm", "numa", "mount", "service", "module"}

// CauseForUser describes a failure for the user of a job, without any data of other users. s is nil
// if the failure belongs to no step.
func CauseForUser(s *plan.Step, x checks.Finding) string {
	cause := "a check"
	if s != nil && s.Kind == plan.Native {
		cause = s.Name
	}
	if slices.Contains(shownDevices, x.Device.Kind) {
		cause += ", " + x.Device.String()
	}
	if x.Code != "" {
		cause += " [" + x.Code + "]"
	}
	if x.Drill {
		cause = checks.DrillMark + cause
	}
	return cause
}

// JobEnd is how a run around a job ends.
type JobEnd struct {
	Refuses bool   // exit status 1: Slurm requeues the job, or learns that it left the node faulty
	Would   string // the same decision with MODE=observe, which is only logged
	Blamed  int    // the failure that drains the node, -1 for none
}

// EndJob decides how the run of a prolog or an epilog ends. job is "" for a person, who has none.
func EndJob(b *Blame, failures []checks.Finding, role slurm.Role, job string, observes bool) JobEnd {
	end := JobEnd{Blamed: b.OfNode(failures)}
	switch {
	case b.OfJob(failures) < 0:
	case !observes:
		end.Refuses = true
	default:
		of := role.String()
		if job != "" {
			of += " of job " + job
		}
		end.Would = "end the " + of + " with status 1"
	}
	return end
}
