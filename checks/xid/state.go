package xid

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
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
