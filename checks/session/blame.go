package session

import (
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Blame decides which failures of a prolog or an epilog the job must not run with.
type Blame struct {
	Scope slurm.Scope // the job's GPUs

	spared map[int]bool // failures that let the job run, by their place among all
}

// Judged notes the failures numbered from to below to: the policy "drain" lets the job run.
func (b *Blame) Judged(from, to int, action conf.Action) {
	for i := from; i < to && action == conf.Drain; i++ {
		if b.spared == nil {
			b.spared = map[int]bool{}
		}
		b.spared[i] = true
	}
}

// OfJob returns the place of the worst failure that the job must not run with, -1 if there
// is none. A failure of another job's GPU is no reason, but a driver that hangs for one GPU
// may hang for the job's, too.
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

// OfNode returns the place of the failure that the node is drained for, -1 if there is none:
// the job's own goes first.
func (b *Blame) OfNode(failures []checks.Finding) int {
	if of := b.OfJob(failures); of >= 0 {
		return of
	}
	return verdict.Worst(failures)
}

// shownDevices are the kinds of devices that a user may know of. Other devices, and
// messages, may name the processes, files and users of other jobs.
var shownDevices = []string{"gpu", "hca", "port", "nic", "netdev", "nvme", "nvswitch", "pci", "dimm", "numa", "mount", "service", "module"}

// CauseForUser describes a failure of a step, nil if it is of none, in words that name
// nothing of other users.
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
	return cause
}
