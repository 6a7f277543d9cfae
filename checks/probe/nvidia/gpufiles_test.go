package nvidia

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestGPUViews(t *testing.T) {
	t.Parallel()
	pci := "sys/bus/pci/devices/0000:c1:00.0/"
	h := probe.NewHost(probetest.Tree(t, map[string]string{
		pci + "vendor": "0x10de\n", pci + "class": "0x030200\n", "sys/drivers/nvidia/": "",
		"sys/bus/pci/devices/0000:05:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:05:00.0/class": "0x068000\n", // an NVSwitch
		"proc/driver/nvidia/version":                       "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (x@y)  Tue\nGCC version: gcc version 11.4.0\n",
		"proc/driver/nvidia/gpus/0000:C1:00.0/information": "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-1\nDevice Minor: \t 3\nGPU Excluded:\t Yes\n",
		"dev/nvidia10": "", "dev/nvidia2": "", "dev/nvidia-uvm": "", "dev/nvidiactl": "", "dev/nvidia01": "",
	}))
	if err := os.Symlink("../../../drivers/nvidia", h.Path("/"+pci+"driver")); err != nil {
		t.Fatal(err)
	}
	want := GPUViews{
		PCI:    []PCIGPU{{Address: "0000:c1:00.0", Driver: "nvidia"}},
		Driver: []DriverGPU{{Address: "0000:c1:00.0", Minor: 3, UUID: "GPU-1", Excluded: true}},
		Nodes:  []int{2, 10}, Version: "570.124.06",
	}
	got, err := ReadGPUViews(h)
	if diff := cmp.Diff(want, got); diff != "" || err != nil || len(got.Used()) > 0 {
		t.Errorf("%v, used %v (-want +got):\n%s", err, got.Used(), diff)
	}
	if got, err := ReadGPUViews(probe.NewHost(probetest.Tree(t, nil))); err != nil || len(got.PCI)+len(got.Driver)+len(got.Nodes) > 0 {
		t.Errorf("on nothing: %v, %v", got, err)
	}
}

// Other functions of a GPU's board, GPUs of other vendors, and the virtual functions that SR-IOV
// creates for virtual machines do not count as GPUs.
func TestNotEveryDeviceIsAGPU(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	device := func(address, vendor, class string) {
		files[pci.PCIDevices+"/"+address+"/vendor"], files[pci.PCIDevices+"/"+address+"/class"] = vendor+"\n", class+"\n"
	}
	device("0000:c1:00.0", "0x10de", "0x030000") // VGA
	device("0000:c2:00.0", "0x10de", "0x030200") // 3D
	device("0000:c2:00.1", "0x10de", "0x040300") // sound
	device("0000:c2:00.2", "0x10de", "0x0c0330") // USB
	device("0000:c2:00.3", "0x10de", "0x0c8000") // USB-C
	device("0000:c2:00.4", "0x10de", "0x030200") // virtual function
	device("0000:05:00.0", "0x10de", "0x068000") // NVSwitch
	device("0000:06:00.0", "0x1a03", "0x030000") // of the board's controller
	device("0000:07:00.0", "0x1002", "0x038000") // AMD's
	files[pci.PCIDevices+"/0000:08:00.0/class"] = "0x030200\n"
	h := probe.NewHost(probetest.Tree(t, files))
	if err := os.Symlink("../0000:c2:00.0", h.Path(pci.PCIDevices+"/0000:c2:00.4/physfn")); err != nil {
		t.Fatal(err)
	}
	got, err := pci.NvidiaPCI(h)
	if diff := cmp.Diff([]string{"0000:c1:00.0", "0000:c2:00.0"}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestPassed(t *testing.T) {
	t.Parallel()
	for driver, want := range map[string]bool{
		"vfio-pci": true, "nvgrace_gpu_vfio_pci": true, "nvidia-vgpu-vfio": true, "pci-stub": true, "pciback": true, "xen-pciback": true,
		"nvidia": false, "nouveau": false, "": false,
	} {
		if got := (PCIGPU{Address: "0000:c1:00.0", Driver: driver}).Passed(); got != want {
			t.Errorf("%q: %v", driver, got)
		}
	}
}

// Whatever the file contains, the parsed values are printable and bounded.
func FuzzParseDriverGPU(f *testing.F) {
	f.Add([]byte("Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-1\nDevice Minor: \t 3\nGPU Excluded:\t No\n"))
	f.Add([]byte("Device Minor: -7\nGPU UUID:\x00\xff\n:\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		g := parseDriverGPU("a", data)
		if g.Minor < -1 || strings.ContainsAny(g.UUID, "\n\x00\x7f") {
			t.Errorf("%q: %+v", data, g)
		}
	})
}
