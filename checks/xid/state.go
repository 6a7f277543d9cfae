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

// readStates returns the states of the GPUs by PCI address, nil if NVML cannot be queried.
func readStates(env *checks.Env) map[string]checks.GPUState {
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

// decide overrides the class that the log gives by NVML's state of the GPU.
func (c *xidCase) decide(s checks.GPUState) {
	class, note := c.class, ""
	switch {
	case class == checks.XidHold: // only an operator can end it
	case c.row.State == "remap", c.row.State == "bank":
		class, note = c.decideRemap(s)
	case c.row.State == "sram" && isTrue(s.SRAMThreshold):
		class, note = checks.XidHold, "SRAM errors are beyond their threshold"
	case c.row.State == "mig" && class == checks.XidReset && isFalse(s.MIG) && strings.Contains(s.Name, " A100") &&
		slices.ContainsFunc(c.events, func(e *xidEvent) bool { return e.Asks != asksDrainReset }):
		class, note = checks.XidReboot, "on an A100 without MIG"
	case c.row.State == "links":
		class, note = c.decideLinks(s.Links)
	}
	c.note(note)
	if c.byState = class.Drains() && note != ""; class.Rank() > checks.XidReset.Rank() && c.byState {
		c.last().Raised = class // its end must not depend on another query of NVML
	}
	if class != c.class {
		c.class, c.remedy = class, classRemedy(class, c.row.Remedy)
	}
}

// decideLinks decides by the NVLinks that the lines name, or by all links if a line names none. Some
// links of a healthy GPU can be down, because they are not connected.
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

// decideRemap decides by the remapper of rows and banks, or by the pages of a GPU that retires pages. It does not
// lower an error after which the driver has asked for a reset, and no error at the retirement of a page: NVML does
// not report whether that failed.
func (c *xidCase) decideRemap(s checks.GPUState) (checks.XidClass, string) {
	class, isBank := c.class, c.row.State == "bank"
	asked := slices.ContainsFunc(c.events, func(e *xidEvent) bool { return e.Asks == asksReset || e.Asks == asksDrainReset })
	switch {
	case isTrue(s.RemapFailed):
		return checks.XidHold, "remapping has failed"
	case isTrue(s.RemapPending), isBank && isTrue(s.BankPending):
		return checks.XidReset, "a remapping is pending"
	case isTrue(s.RetirePending):
		return checks.XidReset, "a page retirement is pending"
	case class == checks.XidState && (isBank && isFalse(s.BankPending) || !isBank && isFalse(s.RetirePending)):
		return checks.XidIgnore, ""
	case isBank, !isFalse(s.RemapPending) || !isFalse(s.RemapFailed):
		return class, ""
	case class == checks.XidState:
		return checks.XidIgnore, ""
	case class.Drains() && !asked:
		return checks.XidWatch, "no remapping is pending"
	}
	return class, ""
}

// The GPU of an event. The log names GPUs by PCI address, which is valid for one boot: a GPU can be
// moved to another slot, or be replaced.

// identifyXids adds the UUIDs of the GPUs to the events of this boot, and moves events of earlier boots
// to the current addresses of their GPUs. It drops those of a replaced board.
func identifyXids(env *checks.Env, l *xidLedger) {
	now := map[string]string{}   // PCI addresses by UUID
	swapped := map[string]bool{} // UUIDs of replaced boards
	for i := range l.Events {
		x := &l.Events[i]
		switch {
		case x.Key.Switch || x.GPU == "":
		case x.Boot == l.Boot && x.UUID == "":
			if x.UUID = l.UUIDs[x.GPU]; x.UUID == "" {
				x.UUID = readUUID(env, x.GPU)
			}
		case x.Boot != l.Boot && x.UUID != "":
			if len(now) == 0 {
				gpus, _ := nvidia.DriverGPUs(env.Host) // without them no event is moved
				for _, pci := range gpus {
					now[readUUID(env, pci)] = pci
				}
			}
			swapped[x.UUID] = x.move(now)
		}
	}
	l.Events = slices.DeleteFunc(l.Events, func(x xidEvent) bool { return x.Boot != l.Boot && swapped[x.UUID] })
}

func readUUID(env *checks.Env, pci string) string {
	env.At("read /proc/driver/nvidia/gpus/%s/information", pci)
	return nvidia.DriverGPUUUID(env.Host, pci)
}

// move sets the current address of an event's GPU, by UUID. gone: another board is at its address, and
// the event no longer counts.
func (x *xidEvent) move(now map[string]string) (gone bool) {
	if pci, ok := now[x.UUID]; ok {
		x.GPU = pci
		return false
	}
	for uuid, pci := range now {
		gone = gone || pci == x.GPU && uuid != ""
	}
	return gone
}

// jobAsked is how long after an event the job of its process is read, seconds: later the PID can be
// reused.
const jobAsked = 10 * 60

// attributeXids adds the jobs of the processes to the newest events of this boot.
func attributeXids(env *checks.Env, l *xidLedger) {
	for i := range l.Events {
		x := &l.Events[i]
		pid, err := strconv.Atoi(x.PID)
		if err != nil || x.Job != "" || x.Told || x.Boot != l.Boot || probe.Now(env.Host).Unix()-x.Last > jobAsked {
			continue
		}
		env.At("read /proc/%d/cgroup", pid)
		x.Job, _ = jobscan.JobOf(env.Host, pid) // the process may have ended
	}
}
