package jobs

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// A counter that a GPU or its driver does not support is absent, not 0.
func TestGPUCounters(t *testing.T) {
	t.Parallel()
	n := &nvml.Snapshot{GPUs: []nvml.GPU{
		{Index: 0, PCI: "0000:10:00.0", Link: nvml.Link{Replays: nvml.Known(3)}, Rows: nvml.Rows{Remapped: nvml.Known(nvml.RemappedRows{Uncorrected: 2, Pending: true})},
			ECC:          nvml.ECC{DRAM: nvml.ECCCounts{Corrected: nvml.Known[uint64](7), Uncorrected: nvml.Failed[uint64](errors.New("no"))}},
			NVLinkErrors: nvml.NVLinkErrors{Replay: nvml.Known(5)}, Throttle: nvml.Throttle{Thermal: nvml.Known[uint64](9)}},
		{Index: 1, PCI: "0000:11:00.0", Err: errors.New("lost")},
		{Index: 3, PCI: "0000:13:00.0", ECC: nvml.ECC{DRAM: nvml.ECCCounts{Corrected: nvml.Reading[uint64]{Value: 7, Known: true, Err: errors.New("of one location")}}},
			Rows: nvml.Rows{Remapped: nvml.Reading[nvml.RemappedRows]{Known: true, Err: errors.New("of one field")}}},
		{Index: 2, PCI: "0000:12:00.0", Rows: nvml.Rows{RetiredDBE: nvml.Known(1)}, Link: nvml.Link{Replays: nvml.Known(-1)},
			NVLinkErrors: nvml.NVLinkErrors{Sums: nvml.Known(map[string]uint64{"recoveries": 4, "effective": 0, "symbol": 9})}},
	}}
	got := map[string]map[string]uint64{}
	for _, c := range GPUCounters(n) {
		got[c.Device.String()] = c.Values
	}
	want := map[string]map[string]uint64{
		"gpu0 0000:10:00.0": {"pcie.replays": 3, "rows.corrected": 0, "rows.uncorrected": 2, "rows.pending": 1, "rows.failed": 0,
			"ecc.dram.corrected": 7, "nvlink.replays": 5, "throttle.thermal.ns": 9},
		"gpu3 0000:13:00.0": {},
		"gpu2 0000:12:00.0": {"pages.retired.dbe": 1, "nvlink.recoveries": 4, "nvlink.effective": 0},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNodeCounters(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	files := fakenvml.Files(fakenvml.H100, 3)
	files["sys/bus/pci/devices/"+fakenvml.Address(1)+"/aer_dev_correctable"] = "RxErr 4\nTOTAL_ERR_COR 4\n"
	files["sys/bus/pci/devices/"+fakenvml.Address(2)+"/aer_dev_nonfatal"] = "?\n" // then the others are unread, too
	files["sys/class/infiniband/mlx5_0/ports/1/counters/link_downed"] = "2\n"
	files["sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error"] = "?\n"
	files["sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence"] = "4294967295\n"
	if err := fakenvml.Write(root, files); err != nil {
		t.Fatal(err)
	}
	list, err := NodeCounters(probe.NewHost(root))
	if err == nil {
		t.Error("an invalid counter is not reported")
	}
	got := map[string]map[string]uint64{}
	for _, c := range list {
		got[c.Device.Kind+" "+c.Device.String()] = c.Values
	}
	want := map[string]map[string]uint64{
		"gpu " + fakenvml.Address(0): {"aer.corrected": 0, "aer.nonfatal": 0, "aer.fatal": 0},
		"gpu " + fakenvml.Address(1): {"aer.corrected": 4, "aer.nonfatal": 0, "aer.fatal": 0},
		"port mlx5_0:1":              {"ib.link_downed": 2, "ib.out_of_sequence": 4294967295},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Counters that grow on a healthy node are not in the line about a job.
func TestRoutine(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"ib.out_of_sequence": true, "ib.link_downed": false, "ib.local_ack_timeout_err": false, "ib.unknown": false,
		countPowerCap: true, countReplays: false, "out_of_sequence": false,
	} {
		if got := checks.Routine(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
