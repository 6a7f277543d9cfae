package checks

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// statesByPCI are the states of the GPUs by PCI address; nil if nobody has asked.
func statesByPCI(env *Env) map[string]GPUState {
	if env.GPUStates == nil {
		return nil
	}
	states := map[string]GPUState{}
	list := env.GPUStates()
	*probe.Kept[[]GPUState](env.Host, "states of GPUs") = list
	for _, s := range list {
		if pci, ok := pciAddress(s.PCI); ok {
			states[pci] = s
		}
	}
	return states
}

func isTrue(b *bool) bool  { return b != nil && *b }
func isFalse(b *bool) bool { return b != nil && !*b }

// decide lets what NVML says overrule the class that the log alone gives.
func (c *xidCase) decide(s GPUState) {
	class, note := c.class, ""
	switch {
	case class == XidHold: // only an operator ends it
	case c.row.State == "remap", c.row.State == "bank":
		class, note = decideRemap(class, c.row.State, s)
	case c.row.State == "sram" && isTrue(s.SRAMThreshold):
		class, note = XidHold, "SRAM errors are beyond their threshold"
	case c.row.State == "mig" && class == XidReset && isFalse(s.MIG) && strings.Contains(s.Name, " A100"):
		class, note = XidReboot, "on an A100 without MIG"
	case c.row.State == "links":
		class, note = c.decideLinks(s.Links)
	}
	c.note(note)
	if c.byState = class.drains() && note != ""; class.rank() > XidReset.rank() && c.byState {
		c.last().Raised = class // what ends it must not depend on NVML being asked again
	}
	if class != c.class {
		c.class, c.remedy = class, classRemedy(class, c.row.Remedy)
	}
}

// decideLinks asks the NVLinks that the lines name, or all of them if a line
// names none. Some links of a healthy GPU may be down: nothing is connected.
func (c *xidCase) decideLinks(up []bool) (XidClass, string) {
	if len(up) == 0 || c.class.rank() <= XidFollow.rank() {
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
			if class := c.class; class.drains() {
				return class, fmt.Sprintf("link %d is down", n)
			}
			return XidReset, fmt.Sprintf("link %d is down", n)
		case ok == "":
			ok = fmt.Sprintf("link %d is up", n)
		default:
			ok = "its links are up"
		}
	}
	if !c.class.drains() {
		return c.class, ""
	}
	return XidWatch, ok
}

// decideRemap asks the row remapper. It does not know of banks.
func decideRemap(class XidClass, state string, s GPUState) (XidClass, string) {
	switch {
	case isTrue(s.RemapFailed):
		return XidHold, "remapping has failed"
	case isTrue(s.RemapPending):
		return XidReset, "a remapping is pending"
	case !isFalse(s.RemapPending) || !isFalse(s.RemapFailed):
		return class, ""
	case class == XidState && state == "bank":
		return class, ""
	case class == XidState:
		return XidIgnore, ""
	case class.drains():
		return XidWatch, "no remapping is pending"
	}
	return class, ""
}

// recoveryActions are the values of NVML's nvmlDeviceGpuRecoveryAction_t, which
// Xid 154 prints, too.
var recoveryActions = [...]struct {
	class  XidClass
	remedy Remedy
	asks   string
}{
	{XidIgnore, NoRemedy, "nothing"},
	{XidReset, ResetGPU, "a GPU reset"},
	{XidReboot, RebootNode, "a reboot of the node"},
	{XidReset, ResetGPU, "an end of peer-to-peer traffic (drain P2P)"},
	{XidReset, ResetGPU, "a GPU reset when its work is drained"},
	{XidReset, CheckFabric, "a recovery of the IMEX domain"},
	{XidReset, ResetGPU, "a reset of the bus"},
	{XidReboot, RebootNode, "a reboot of the system"},
}

// recoveryAction is what a recovery action means. One that is newer than this
// program asks for the most.
func recoveryAction(n int) (class XidClass, remedy Remedy, asks string) {
	if n == -1 {
		return XidWatch, NoRemedy, "something that cannot be read"
	}
	if n < 0 || n >= len(recoveryActions) {
		return XidReboot, RebootNode, fmt.Sprintf("action %#x, which is unknown to this version of nhc-gpu", n)
	}
	a := recoveryActions[n]
	return a.class, a.remedy, a.asks
}
