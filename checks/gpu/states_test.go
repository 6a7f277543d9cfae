package gpu

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

func TestGPUStatesOf(t *testing.T) {
	t.Parallel()
	n := &probe.NVML{GPUs: []probe.GPU{
		{Index: 0, PCI: "0000:0a:00.0", UUID: probe.Known("GPU-0"), Name: probe.Known("NVIDIA A100-SXM4-80GB"), Modes: probe.Modes{MIG: probe.Known(false)},
			Recovery: probe.Recovery{Action: probe.Known(1)},
			ECC:      probe.ECC{SRAMThreshold: probe.Known(true)},
			Rows:     probe.Rows{Remapped: probe.Known(probe.RemappedRows{Pending: true})}},
		{Index: 1, PCI: "0000:0b:00.0", Err: errors.New("GPU is lost")},
		{Index: 2, PCI: "0000:0c:00.0", Recovery: probe.Recovery{Action: probe.Failed[int](errors.New("timeout"))}, NVLinks: probe.Known([]bool{true, false})},
		{Index: 3, PCI: "0000:0d:00.0", Recovery: probe.Recovery{Reset: probe.Known(true), DrainReset: probe.Known(false)}},
		{Index: 4, PCI: "0000:0e:00.0", Recovery: probe.Recovery{Reset: probe.Known(false), DrainReset: probe.Known(false)}},
	}}
	one, yes, no := 1, true, false
	want := []checks.GPUState{
		{Index: 0, PCI: "0000:0a:00.0", UUID: "GPU-0", Name: "NVIDIA A100-SXM4-80GB", MIG: &no, Recovery: &one, SRAMThreshold: &yes, RemapPending: &yes, RemapFailed: &no},
		{Index: 2, PCI: "0000:0c:00.0", Links: []bool{true, false}},
		{Index: 3, PCI: "0000:0d:00.0", Recovery: &one},
		{Index: 4, PCI: "0000:0e:00.0"},
	}
	if diff := cmp.Diff(want, GPUStatesOf(n)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
