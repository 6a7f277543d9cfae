package xid

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
)

// statesByPCI are the states of the GPUs by PCI address; nil if nobody has asked.
func statesByPCI(env *checks.Env) map[string]checks.GPUState {
	if env.GPUStates == nil {
		return nil
	}
	states := map[string]checks.GPUState{}
	list := env.GPUStates()
	*probe.Kept[[]checks.GPUState](env.Host, "states of GPUs") = list
	for _, s := range list {
		if pci, ok := checks.PCIAddress(s.PCI); ok {
			states[pci] = s
		}
	}
	return states
}

func isTrue(b *bool) bool  { return b != nil && *b }
func isFalse(b *bool) bool { return b != nil && !*b }

// decide lets what NVML says overrule the class that the log alone gives.
func (c *xidCase) decide(s checks.GPUState) {
	class, note := c.class, ""
	switch {
	case class == checks.XidHold: // only an operator ends it
	case c.row.State == "remap", c.row.State == "bank":
		class, note = decideRemap(class, c.row.State, s)
	case c.row.State == "sram" && isTrue(s.SRAMThreshold):
		class, note = checks.XidHold, "SRAM errors are beyond their threshold"
	case c.row.State == "mig" && class == checks.XidReset && isFalse(s.MIG) && strings.Contains(s.Name, " A100"):
		class, note = checks.XidReboot, "on an A100 without MIG"
	case c.row.State == "links":
		class, note = c.decideLinks(s.Links)
	}
	c.note(note)
	if c.byState = class.Drains() && note != ""; class.Rank() > checks.XidReset.Rank() && c.byState {
		c.last().Raised = class // what ends it must not depend on NVML being asked again
	}
	if class != c.class {
		c.class, c.remedy = class, classRemedy(class, c.row.Remedy)
	}
}

// decideLinks asks the NVLinks that the lines name, or all of them if a line
// names none. Some links of a healthy GPU may be down: nothing is connected.
func (c *xidCase) decideLinks(up []bool) (checks.XidClass, string) {
	if len(up) == 0 || c.class.Rank() <= checks.XidFollow.Rank() {
		return c.class, ""
	}
	var ok string
	for _, e := range c.events {
		n, err := strconv.Atoi(e.Link)
		switch {
		case err != nil && slices.Contains(up, false), err == nil && n >= len(up):
			return c.class, ""
		case err != nil:
			ok = "every link is up"
		case !up[n]:
			if class := c.class; class.Drains() {
				return class, fmt.Sprintf("link %d is down", n)
			}
			return checks.XidReset, fmt.Sprintf("link %d is down", n)
		case ok == "":
			ok = fmt.Sprintf("link %d is up", n)
		default:
			ok = "its links are up"
		}
	}
	if !c.class.Drains() {
		return c.class, ""
	}
	return checks.XidWatch, ok
}

// decideRemap asks the row remapper. It does not know of banks.
func decideRemap(class checks.XidClass, state string, s checks.GPUState) (checks.XidClass, string) {
	switch {
	case isTrue(s.RemapFailed):
		return checks.XidHold, "remapping has failed"
	case isTrue(s.RemapPending):
		return checks.XidReset, "a remapping is pending"
	case !isFalse(s.RemapPending) || !isFalse(s.RemapFailed):
		return class, ""
	case class == checks.XidState && state == "bank":
		return class, ""
	case class == checks.XidState:
		return checks.XidIgnore, ""
	case class.Drains():
		return checks.XidWatch, "no remapping is pending"
	}
	return class, ""
}

// recoveryActions are the values of NVML's nvmlDeviceGpuRecoveryAction_t, which
// Xid 154 prints, too.
var recoveryActions = [...]struct {
	class  checks.XidClass
	remedy checks.Remedy
	asks   string
}{
	{checks.XidIgnore, checks.NoRemedy, "nothing"},
	{checks.XidReset, checks.ResetGPU, "a GPU reset"},
	{checks.XidReboot, checks.RebootNode, "a reboot of the node"},
	{checks.XidReset, checks.ResetGPU, "an end of peer-to-peer traffic (drain P2P)"},
	{checks.XidReset, checks.ResetGPU, "a GPU reset when its work is drained"},
	{checks.XidReset, checks.CheckFabric, "a recovery of the IMEX domain"},
	{checks.XidReset, checks.ResetGPU, "a reset of the bus"},
	{checks.XidReboot, checks.RebootNode, "a reboot of the system"},
}

// recoveryAction is what a recovery action means. One that is newer than this
// program asks for the most.
func recoveryAction(n int) (class checks.XidClass, remedy checks.Remedy, asks string) {
	if n == -1 {
		return checks.XidWatch, checks.NoRemedy, "something that cannot be read"
	}
	if n < 0 || n >= len(recoveryActions) {
		return checks.XidReboot, checks.RebootNode, fmt.Sprintf("action %#x, which is unknown to this version of nhc-gpu", n)
	}
	a := recoveryActions[n]
	return a.class, a.remedy, a.asks
}

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
