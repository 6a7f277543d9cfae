package probe

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestGPUViews(t *testing.T) {
	t.Parallel()
	pci := "sys/bus/pci/devices/0000:c1:00.0/"
	h := tree(t, map[string]string{
		pci + "vendor": "0x10de\n", pci + "class": "0x030200\n", "sys/drivers/nvidia/": "",
		"sys/bus/pci/devices/0000:05:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:05:00.0/class": "0x068000\n", // an NVSwitch
		"proc/driver/nvidia/version":                       "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (x@y)  Tue\nGCC version: gcc version 11.4.0\n",
		"proc/driver/nvidia/gpus/0000:C1:00.0/information": "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-1\x01\nDevice Minor: \t 3\nGPU Excluded:\t Yes\n",
		"dev/nvidia10": "", "dev/nvidia2": "", "dev/nvidia-uvm": "", "dev/nvidiactl": "", "dev/nvidia01": "",
	})
	if err := os.Symlink("../../../drivers/nvidia", h.Path("/"+pci+"driver")); err != nil {
		t.Fatal(err)
	}
	want := GPUViews{
		PCI:    []PCIGPU{{"0000:c1:00.0", "nvidia"}},
		Driver: []DriverGPU{{Address: "0000:c1:00.0", Minor: 3, UUID: "GPU-1?", Excluded: true}},
		Nodes:  []int{2, 10}, Version: "570.124.06",
	}
	got, err := h.GPUViews()
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if got, err := tree(t, nil).GPUViews(); err != nil || len(got.PCI)+len(got.Driver)+len(got.Nodes) > 0 {
		t.Errorf("on nothing: %v, %v", got, err)
	}
}

func TestParseDriverVersion(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44 UTC 2024\n": "470.256.02",
		"NVRM version: NVIDIA UNIX aarch64 Kernel Module  580.95  Thu":                               "580.95",
		"": "", "\x00\xff. .. a.b 1.": "",
	} {
		if got := parseDriverVersion([]byte(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// Whatever stands in the file, what is read of it is printable and bounded.
func FuzzParseDriverGPU(f *testing.F) {
	f.Add([]byte("Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-1\nDevice Minor: \t 3\nGPU Excluded:\t No\n"))
	f.Add([]byte("Device Minor: -7\nGPU UUID:\x00\xff\n:\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		g := parseDriverGPU("a", data)
		if g.Minor < -1 || strings.ContainsAny(g.UUID, "\n\x00\x7f") {
			t.Errorf("%q: %+v", data, g)
		}
		_ = parseDriverVersion(data)
	})
}
