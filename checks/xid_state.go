package checks

import "fmt"

// GPUState is what the driver says of a GPU now. It is worth more than any
// line of a log: a log tells what was. A nil pointer means that nobody knows.
type GPUState struct {
	Index  int    // NVML's
	PCI    string // 0000:c1:00.0
	UUID   string
	Serial string

	Recovery      *int  // the recovery action, NVML field 230
	RemapPending  *bool // rows wait for a reset to be remapped
	RemapFailed   *bool // rows could not be remapped
	SRAMThreshold *bool // uncorrected SRAM errors are beyond their threshold
	LinksDown     *int  // NVLinks that should be up and are not
}

// statesByPCI are the states of the GPUs by PCI address; nil if nobody has asked.
func (e *Env) statesByPCI() map[string]GPUState {
	if e.GPUStates == nil {
		return nil
	}
	states := map[string]GPUState{}
	for _, s := range e.GPUStates() {
		if pci, ok := pciAddress(s.PCI); ok {
			states[pci] = s
		}
	}
	return states
}

func isTrue(b *bool) bool  { return b != nil && *b }
func isFalse(b *bool) bool { return b != nil && !*b }

// decide lets what NVML says overrule the class that the log alone gives.
func (r *xidRow) decide(class XidClass, s GPUState) (XidClass, string) {
	switch r.State {
	case "remap":
		return decideRemap(class, s)
	case "sram":
		if isTrue(s.SRAMThreshold) {
			return XidHold, "SRAM errors are beyond their threshold"
		}
	case "links":
		switch {
		case s.LinksDown == nil || class == XidHold:
		case *s.LinksDown == 0 && class.drains():
			return XidWatch, "every link is up"
		case *s.LinksDown > 0 && !class.drains():
			return XidReset, fmt.Sprintf("%d links are down", *s.LinksDown)
		}
	}
	return class, ""
}

// decideRemap asks the row remapper.
func decideRemap(class XidClass, s GPUState) (XidClass, string) {
	switch {
	case isTrue(s.RemapFailed):
		return XidHold, "remapping has failed"
	case isTrue(s.RemapPending):
		return XidReset, "a remapping is pending"
	case !isFalse(s.RemapPending) || !isFalse(s.RemapFailed):
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
