package checks

import (
	"fmt"
	"strconv"
)

// Which GPU an event is about. The log names GPUs by their PCI addresses, which
// hold for one boot: a GPU may be put into another slot, or be replaced.

// identify gives the events of this boot the UUIDs of their GPUs, and takes those
// of earlier boots along to where their GPUs are now.
func (e *Env) identify(l *xidLedger) {
	now := map[string]string{} // PCI addresses by UUID
	for i := range l.Events {
		x := &l.Events[i]
		switch {
		case x.Key.Switch || x.GPU == "":
		case x.Boot == l.Boot && x.UUID == "":
			if x.UUID = l.UUIDs[x.GPU]; x.UUID == "" {
				x.UUID = e.driverUUID(x.GPU)
			}
		case x.Boot != l.Boot && x.UUID != "":
			if len(now) == 0 {
				gpus, _ := e.Host.DriverGPUs() // without them nothing has moved
				for _, pci := range gpus {
					now[e.driverUUID(pci)] = pci
				}
			}
			x.moved(now)
		}
	}
}

func (e *Env) driverUUID(pci string) string {
	e.At("read /proc/driver/nvidia/gpus/%s/information", pci)
	return e.Host.DriverGPUUUID(pci)
}

// moved finds the GPU of an event among those that are there now, by UUID.
func (x *xidEvent) moved(now map[string]string) {
	if pci, ok := now[x.UUID]; ok {
		x.GPU = pci
		return
	}
	for uuid, pci := range now {
		x.gone = x.gone || pci == x.GPU && uuid != ""
	}
}

// goneNote tells of a case whose GPU is no longer there.
func (c *xidCase) goneNote() {
	if e := c.last(); e.gone {
		c.note(fmt.Sprintf("of %s, which is no longer there", e.UUID))
	}
}

// jobAsked is for how long after an event its process is asked for its job,
// seconds: later the number may be another's.
const jobAsked = 10 * 60

// attribute gives the newest events of this boot the jobs of their processes.
func (e *Env) attribute(l *xidLedger) {
	for i := range l.Events {
		x := &l.Events[i]
		pid, err := strconv.Atoi(x.PID)
		if err != nil || x.Job != "" || x.Told || x.Boot != l.Boot || e.Host.Now().Unix()-x.Last > jobAsked {
			continue
		}
		e.At("read /proc/%d/cgroup", pid)
		x.Job, _ = e.Host.JobOf(pid) // a process that has ended keeps its secret
	}
}
