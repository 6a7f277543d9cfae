package xid

import (
	"slices"
	"strconv"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
)

// Which GPU an event is about. The log names GPUs by their PCI addresses, which
// hold for one boot: a GPU may be put into another slot, or be replaced.

// identifyXids gives the events of this boot the UUIDs of their GPUs, and takes those
// of earlier boots along to where their GPUs are now. Those of a board that was replaced end.
func identifyXids(env *checks.Env, l *xidLedger) {
	now := map[string]string{}   // PCI addresses by UUID
	swapped := map[string]bool{} // UUIDs of boards that are no longer there
	for i := range l.Events {
		x := &l.Events[i]
		switch {
		case x.Key.Switch || x.GPU == "":
		case x.Boot == l.Boot && x.UUID == "":
			if x.UUID = l.UUIDs[x.GPU]; x.UUID == "" {
				x.UUID = driverUUID(env, x.GPU)
			}
		case x.Boot != l.Boot && x.UUID != "":
			if len(now) == 0 {
				gpus, _ := nvidia.DriverGPUs(env.Host) // without them nothing has moved
				for _, pci := range gpus {
					now[driverUUID(env, pci)] = pci
				}
			}
			swapped[x.UUID] = x.moved(now)
		}
	}
	l.Events = slices.DeleteFunc(l.Events, func(x xidEvent) bool { return x.Boot != l.Boot && swapped[x.UUID] })
}

func driverUUID(env *checks.Env, pci string) string {
	env.At("read /proc/driver/nvidia/gpus/%s/information", pci)
	return nvidia.DriverGPUUUID(env.Host, pci)
}

// moved finds the GPU of an event among those that are there now, by UUID. gone says that
// another board is at its address: nothing that the old one did counts any more.
func (x *xidEvent) moved(now map[string]string) (gone bool) {
	if pci, ok := now[x.UUID]; ok {
		x.GPU = pci
		return false
	}
	for uuid, pci := range now {
		gone = gone || pci == x.GPU && uuid != ""
	}
	return gone
}

// jobAsked is for how long after an event its process is asked for its job,
// seconds: later the number may be another's.
const jobAsked = 10 * 60

// attributeXids gives the newest events of this boot the jobs of their processes.
func attributeXids(env *checks.Env, l *xidLedger) {
	for i := range l.Events {
		x := &l.Events[i]
		pid, err := strconv.Atoi(x.PID)
		if err != nil || x.Job != "" || x.Told || x.Boot != l.Boot || probe.Now(env.Host).Unix()-x.Last > jobAsked {
			continue
		}
		env.At("read /proc/%d/cgroup", pid)
		x.Job, _ = jobscan.JobOf(env.Host, pid) // a process that has ended keeps its secret
	}
}
