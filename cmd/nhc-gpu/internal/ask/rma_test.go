package ask

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
)

func TestResolvePart(t *testing.T) {
	t.Parallel()
	gpu := func(name, pci, id string) checks.Device {
		return checks.Device{Kind: "gpu", Name: name, PCI: pci, UUID: "GPU-" + id, Serial: "165" + id}
	}
	gpu3, gpu4, mlx := gpu("gpu3", "0000:13:00.0", "3"), gpu("gpu4", "0000:14:00.0", "4"), checks.Device{Kind: "hca", Name: "mlx5_2", PCI: "0000:c1:00.0"}
	shifted := gpu("gpu3", "0000:14:00.0", "4") // after gpu3 has left the bus
	gone := gpu("", "0000:13:00.0", "3")
	fail := func(d checks.Device) []*event.Event {
		return []*event.Event{{Results: []event.Result{{Code: "x", Severity: checks.Fail, Device: d}}}}
	}
	port := checks.Device{Kind: "port", Name: "mlx5_2:1", PCI: mlx.PCI}
	for _, tt := range []struct {
		name, word     string
		present, known []checks.Device
		events         []*event.Event
		want           checks.Device
		wrong          string // a part of the error
	}{
		{"a name", "gpu4", []checks.Device{gpu3, gpu4}, nil, nil, gpu4, ""},
		{"an address in capitals", "0000:C1:00.0", []checks.Device{gpu3, mlx}, nil, nil, mlx, ""},
		{"a UUID", "GPU-3", []checks.Device{gpu3, gpu4}, nil, nil, gpu3, ""},
		{"a serial number", "1654", []checks.Device{gpu3, gpu4}, nil, nil, gpu4, ""},
		{"a port", "mlx5_2:1", []checks.Device{gpu3, mlx}, nil, nil, mlx, ""},
		{"a port in a message", "mlx5_2:1", []checks.Device{mlx}, nil, fail(port), mlx, ""},
		{"a GPU that only a message knows", "gpu3", nil, nil, fail(gpu3), gpu3, ""},
		{"a GPU that only earlier runs know", "1653", []checks.Device{shifted}, []checks.Device{gone}, nil, gone, ""},
		{"a number that another GPU has now", "gpu3", []checks.Device{shifted}, []checks.Device{gone}, fail(gpu3), checks.Device{}, "name the PCI address"},
		{"a typing error", "gpu33", []checks.Device{gpu3, mlx}, nil, nil, checks.Device{}, "did you mean gpu3?"},
		{"no device at all", "nvme0", nil, nil, nil, checks.Device{}, "this node has no GPU, adapter or NVMe disk"},
	} {
		got, err := resolvePart(tt.word, tt.present, tt.known, tt.events)
		if tt.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("%s: %v", tt.name, err)
			}
			continue
		}
		if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", tt.name, err, diff)
		}
	}
}

func TestPart(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 22, 3, 12, 41, 0, time.UTC)
	d := checks.Device{Kind: "gpu", Name: "gpu3", PCI: "0000:13:00.0", UUID: "GPU-3"}
	whole := d
	whole.Serial = "1653"
	other := checks.Device{Kind: "gpu", Name: "gpu3", PCI: d.PCI, UUID: "GPU-before", Serial: "1"}
	result := func(d checks.Device, text string) event.Result {
		return event.Result{Check: "check_gpu_ecc", Code: "gpu.ecc.dram", Severity: checks.Fail, Device: d, Message: "check_gpu_ecc:  " + text}
	}
	past := []*event.Event{ // the newest first
		{Time: at.Add(2 * time.Hour), Results: []event.Result{result(d, "third"), result(d, "again")}},
		{Time: at.Add(time.Hour), Results: []event.Result{result(whole, "second")}},
		{Time: at, Results: []event.Result{result(d, "first"), {Check: "check_gpu_count", Severity: checks.OK, Device: d}}},
		{Time: at.Add(-time.Hour), Results: []event.Result{result(other, "of the GPU before")}},
	}
	p := &checks.Part{Device: d}
	addErrors(p, past)
	if diff := cmp.Diff([]checks.PartError{{Source: "health check", Code: "gpu.ecc.dram", First: at, Last: at.Add(2 * time.Hour), Count: 3, Message: "first"}}, p.Errors); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
	dead := &checks.Part{Device: checks.Device{Kind: "gpu", PCI: d.PCI}}
	fromRecords(dead, d, nil, []checks.Device{whole}, past)
	if dead.Device.Serial != "1653" || !strings.HasPrefix(dead.SerialFrom, "the records of the board that was here before this boot") {
		t.Errorf("no run of this boot has read it: serial %q from %q", dead.Device.Serial, dead.SerialFrom)
	}
	fromRecords(p, d, []checks.Device{other}, nil, past)
	if p.Device.Serial != "1653" || !strings.HasPrefix(p.SerialFrom, "the run of 2026-11-2") {
		t.Errorf("serial %q from %q", p.Device.Serial, p.SerialFrom)
	}
	addAnswer(p, &checks.Part{State: "does not answer: lost", Driver: "570"})
	if p.Device.Serial != "1653" || p.Driver != "570" || !strings.HasSuffix(p.State, "does not answer: lost") {
		t.Errorf("after an answer without values: %+v", p)
	}
	for kind, want := range map[string]string{"gpu": "nvidia-bug-report", "hca": "mlxlink", "nvme": "telemetry"} {
		add := strings.Join(toAdd(&checks.Part{Device: checks.Device{Kind: kind}}), "\n")
		if !strings.Contains(add, want) || !strings.Contains(add, "BMC") || !strings.Contains(add, "bundle") {
			t.Errorf("%s: %s", kind, add)
		}
	}
	if add := strings.Join(toAdd(&checks.Part{Archives: []string{"a"}, System: checks.System{Serial: "S"}}), "\n"); strings.Contains(add, "bundle") || strings.Contains(add, "DMI") {
		t.Errorf("nothing of these is missing: %s", add)
	}
}
