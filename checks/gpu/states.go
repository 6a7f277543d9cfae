package gpu

import (
	"errors"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// StateGroups are what NVML has to be asked for [StatesOf].
const StateGroups = nvml.GroupRecovery | nvml.GroupECC | nvml.GroupRows | nvml.GroupModes | nvml.GroupNVLinks

// StatesOf is what the log of Xids is judged by, out of a snapshot of NVML.
func StatesOf(n *nvml.Snapshot) []checks.GPUState {
	var states []checks.GPUState
	for _, g := range n.GPUs {
		if g.Err != nil {
			s := checks.GPUState{Index: g.Index, PCI: g.PCI, UUID: g.UUID.Value, Serial: g.Serial.Value}
			if e, ok := errors.AsType[*nvml.Error](g.Err); ok && nvml.IsGPUState(e) {
				s.Lost = e
				states = append(states, s)
			}
			continue // what else cannot be asked is for the checks of the GPU
		}
		s := checks.GPUState{Index: g.Index, PCI: g.PCI, UUID: g.UUID.Value, Serial: g.Serial.Value, Name: g.Name.Value, MIG: known(g.Modes.MIG), Links: g.NVLinks.Value}
		s.Recovery = recoveryOf(&g.Recovery)
		s.SRAMThreshold = known(g.ECC.SRAMThreshold)
		if rows := known(g.Rows.Remapped); rows != nil {
			s.RemapPending, s.RemapFailed = &rows.Pending, &rows.Failed
		}
		states = append(states, s)
	}
	return states
}

// recoveryOf is the recovery action. Drivers that do not know field 230 only say
// that a reset is wanted; that they want none says little.
func recoveryOf(r *nvml.Recovery) *int {
	action := known(r.Action)
	switch {
	case action != nil:
	case r.DrainReset.Known && r.DrainReset.Value:
		action = new(nvml.RecoveryDrainReset)
	case r.Reset.Known && r.Reset.Value:
		action = new(nvml.RecoveryReset)
	}
	return action
}

// known is a reading's value, nil if there is none.
func known[T any](r nvml.Reading[T]) *T {
	if !r.Known {
		return nil
	}
	return &r.Value
}
