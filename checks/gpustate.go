package checks

import "github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"

// GPUState is what the driver says of a GPU now. It is worth more than any
// line of a log: a log tells what was. A nil pointer means that nobody knows.
type GPUState struct {
	Index  int    // NVML's
	PCI    string // 0000:c1:00.0
	UUID   string
	Serial string
	Name   string // NVIDIA A100-SXM4-80GB

	Lost *nvml.Error // the GPU is lost or requires a reset; nothing else is known then

	Recovery      *int   // the recovery action, NVML field 230
	RemapPending  *bool  // rows wait for a reset to be remapped
	RemapFailed   *bool  // rows could not be remapped
	SRAMThreshold *bool  // uncorrected SRAM errors are beyond their threshold
	MIG           *bool  // it is divided into instances
	Links         []bool // whether each NVLink is up, by its number; empty: nobody knows
}

// LostError is the error by which NVML has reported a state of the GPU ([nvml.IsGPUState]), nil
// if it has not.
func (s *GPUState) LostError() error {
	if s.Lost == nil {
		return nil
	}
	return s.Lost
}
