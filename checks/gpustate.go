package checks

import "github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"

// GPUState is the present state of a GPU according to the driver. It takes precedence over the
// log, which describes the past. A nil field is unknown.
type GPUState struct {
	Index  int    // NVML index
	PCI    string // 0000:c1:00.0
	UUID   string
	Serial string
	Name   string // NVIDIA A100-SXM4-80GB

	Lost *nvml.Error // the GPU is lost or requires a reset; all other fields are unknown

	Recovery      *int   // the recovery action, NVML field 230
	RemapPending  *bool  // rows wait for a reset to be remapped
	RemapFailed   *bool  // a row remapping failed
	BankPending   *bool  // a bank waits for a reset to be remapped
	RetirePending *bool  // pages wait for a reset to be retired: GPUs that remap no rows
	SRAMThreshold *bool  // uncorrected SRAM errors exceed their threshold
	MIG           *bool  // MIG is enabled
	Links         []bool // by link number: the NVLink is up; empty: unknown
}

// LostError returns the error that reports a lost GPU or one that requires a reset
// ([nvml.IsGPUState]), or nil.
func (s *GPUState) LostError() error {
	if s.Lost == nil {
		return nil
	}
	return s.Lost
}
