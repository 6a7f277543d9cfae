package gpu

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

func TestGPUStatesOf(t *testing.T) {
	t.Parallel()
	n := &nvml.Snapshot{GPUs: []nvml.GPU{
		{Index: 0, PCI: "0000:0a:00.0", UUID: nvml.Known("GPU-0"), Name: nvml.Known("NVIDIA A100-SXM4-80GB"), Modes: nvml.Modes{MIG: nvml.Known(false)},
			Recovery: nvml.Recovery{Action: nvml.Known(1)},
			ECC:      nvml.ECC{SRAMThreshold: nvml.Known(true)},
			Rows:     nvml.Rows{Remapped: nvml.Known(nvml.RemappedRows{Pending: true})}},
		{Index: 1, PCI: "0000:0b:00.0", Err: errors.New("GPU is lost")},
		{Index: 2, PCI: "0000:0c:00.0", Recovery: nvml.Recovery{Action: nvml.Failed[int](errors.New("timeout"))}, NVLinks: nvml.Known([]bool{true, false})},
		{Index: 3, PCI: "0000:0d:00.0", Recovery: nvml.Recovery{Reset: nvml.Known(true), DrainReset: nvml.Known(false)}},
		{Index: 4, PCI: "0000:0e:00.0", Recovery: nvml.Recovery{Reset: nvml.Known(false), DrainReset: nvml.Known(false)}},
		{Index: 5, PCI: "0000:0f:00.0", Rows: nvml.Rows{RetiredPending: nvml.Known(false)}},
		{Index: 6, PCI: "0000:10:00.0", Rows: nvml.Rows{Banks: nvml.Known(nvml.RemappedBanks{Active: 1})}},
		{Index: 7, PCI: "0000:11:00.0", Rows: nvml.Rows{Banks: nvml.Reading[nvml.RemappedBanks]{Known: true, Err: errors.New("timeout")}}},
	}}
	one, yes, no := 1, true, false
	want := []checks.GPUState{
		{Index: 0, PCI: "0000:0a:00.0", UUID: "GPU-0", Name: "NVIDIA A100-SXM4-80GB", MIG: &no, Recovery: &one, SRAMThreshold: &yes, RemapPending: &yes, RemapFailed: &no},
		{Index: 2, PCI: "0000:0c:00.0", Links: []bool{true, false}},
		{Index: 3, PCI: "0000:0d:00.0", Recovery: &one},
		{Index: 4, PCI: "0000:0e:00.0"},
		{Index: 5, PCI: "0000:0f:00.0", RetirePending: &no},
		{Index: 6, PCI: "0000:10:00.0", BankPending: &no},
		{Index: 7, PCI: "0000:11:00.0"},
	}
	if diff := cmp.Diff(want, StatesOf(n)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
