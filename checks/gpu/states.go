package gpu

import (
	"errors"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// StateGroups are the groups that [StatesOf] needs.
const StateGroups = nvml.GroupRecovery | nvml.GroupECC | nvml.GroupRows | nvml.GroupModes | nvml.GroupNVLinks

// StatesOf returns the states of GPUs. Package xid judges the kernel's log by them.
func StatesOf(n *nvml.Snapshot) []checks.GPUState {
	var states []checks.GPUState
	for _, g := range n.GPUs {
		if g.Err != nil {
			s := checks.GPUState{Index: g.Index, PCI: g.PCI, UUID: g.UUID.Value, Serial: g.Serial.Value}
			if e, ok := errors.AsType[*nvml.Error](g.Err); ok && nvml.IsGPUState(e) {
				s.Lost = e
				states = append(states, s)
			}
			continue // the checks of GPUs report other errors
		}
		s := checks.GPUState{Index: g.Index, PCI: g.PCI, UUID: g.UUID.Value, Serial: g.Serial.Value, Name: g.Name.Value, MIG: valueOf(g.Modes.MIG)}
		if g.NVLinks.Err == nil { // else an unread link would count as down
			s.Links = g.NVLinks.Value
		}
		s.Recovery = readRecovery(&g.Recovery)
		s.SRAMThreshold = valueOf(g.ECC.SRAMThreshold)
		if r := g.Rows.Remapped; r.Known && (r.Err == nil || r.Value.Pending) { // an error may hide a fault
			s.RemapPending = &r.Value.Pending
		}
		if r := g.Rows.Remapped; r.Known && (r.Err == nil || r.Value.Failed) {
			s.RemapFailed = &r.Value.Failed
		}
		if b := g.Rows.Banks; b.Known && (b.Err == nil || b.Value.Pending) {
			s.BankPending = &b.Value.Pending
		}
		s.RetirePending = valueOf(g.Rows.RetiredPending)
		states = append(states, s)
	}
	return states
}

// readRecovery returns the recovery action, nil if unknown. Drivers without field 230 report only
// that a reset is needed; if they report none, the action is unknown.
func readRecovery(r *nvml.Recovery) *int {
	action := valueOf(r.Action)
	switch {
	case action != nil:
	case r.DrainReset.Known && r.DrainReset.Value:
		action = new(nvml.RecoveryDrainReset)
	case r.Reset.Known && r.Reset.Value:
		action = new(nvml.RecoveryReset)
	}
	return action
}

// valueOf returns a pointer to the value of a reading, nil if it is unknown.
func valueOf[T any](r nvml.Reading[T]) *T {
	if !r.Known {
		return nil
	}
	return &r.Value
}
