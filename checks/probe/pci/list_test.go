package pci

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestPCIList(t *testing.T) {
	t.Parallel()
	n := fakesys.New()
	n.AddHCA(fakesys.HCA{PCI: fakesys.PCI{Address: "0000:20:00.0", Above: []string{"0000:1f:01.0"}, ID: "15b3:1021", Speed: "32.0 GT/s PCIe", Width: 16}, Name: "mlx5_0", Layer: "Ethernet", Rate: "400 Gb/sec"})
	n.AddVF("mlx5_0", "0000:20:00.1", "mlx5_1", 1)
	n.Files["sys/bus/pci/devices/0000:21:00.0/class/"] = ""
	root := t.TempDir()
	if err := n.Write(root); err != nil {
		t.Fatal(err)
	}
	h := probe.NewHost(root)
	list, err := List(h)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range list {
		got = append(got, fmt.Sprintf("%s %q %v %q %q %s", e.Address, e.Class, e.VF, ReadID(h, e.Address), Name(h, e.Address), probetest.Message(e.Err)))
	}
	want := []string{
		`0000:1f:01.0 "060400" false "1000:c030" "" `, `0000:20:00.0 "020000" false "15b3:1021" "mlx5_0" `, `0000:20:00.1 "" true "15b3:101e" "mlx5_1" `,
		`0000:21:00.0 "" false "" "" read /sys/bus/pci/devices/0000:21:00.0/class: is a directory`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	slot, ok := Slot(h, ReadFunction(h, "0000:20:00.0"))
	if !ok || slot.Address != "0000:1f:01.0" || slot.MaxWidth != 16 {
		t.Errorf("slot %+v", slot)
	}
	if list, err := List(probe.NewHost(probetest.Tree(t, nil))); list != nil || err != nil {
		t.Errorf("without a bus: %v, %v", list, err)
	}
	if _, err := List(probe.NewHost(probetest.Tree(t, map[string]string{"sys/bus/pci/devices": ""}))); probetest.Message(err) != "read /sys/bus/pci/devices: not a directory" {
		t.Error(err)
	}
}

// This is a server with eight adapters of 256 virtual functions each.
func BenchmarkPCIList(b *testing.B) {
	n := fakesys.New()
	for i := range 400 {
		n.AddPCI(fakesys.PCI{Address: fmt.Sprintf("0000:%02x:%02x.0", i/32, i%32), Class: "088000", ID: "8086:0998"})
	}
	for i := range 2048 {
		a := fmt.Sprintf("0001:%02x:%02x.%d", i/256, i/8%32, i%8)
		n.AddPCI(fakesys.PCI{Address: a, Class: "020000", ID: "15b3:101e"})
		n.Links[n.Dir(a)+"/physfn"] = "../0001:00:00.0"
	}
	root := b.TempDir()
	if err := n.Write(root); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if list, err := List(probe.NewHost(root)); err != nil || len(list) != 2448 {
			b.Fatal(len(list), err)
		}
	}
}

func TestBridges(t *testing.T) {
	t.Parallel()
	for link, want := range map[string]string{
		"../../../devices/pci0000:c0/0000:c0:01.0/0000:c1:00.0":                                                                      "[0000:c0:01.0]",
		"../../../devices/pci0000:c0/0000:c0:01.0":                                                                                   "[]",
		"../../../devices/pci0000:64/0000:64:00.5/pci10000:00/10000:00:02.0/10000:01:00.0":                                           "[10000:00:02.0]",
		"../../../devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/47505500-0001-0000-3130-444531303244/pci0001:00/0001:00:00.0": "[]",
	} {
		if got := fmt.Sprint(parseBridges(link)); got != want {
			t.Errorf("%s: %s, want %s", link, got, want)
		}
	}
}

func FuzzLinkSpeed(f *testing.F) {
	for _, seed := range []string{"32.0 GT/s PCIe", "8 GT/s", "Unknown", "", "nan GT/s", "-1 GT/s", "1e300 GT/s", "\xff\x00", "16.0"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n := ParseLinkSpeed(text); !(n >= 0 && n < 1000) {
			t.Errorf("%q: %g", text, n)
		}
	})
}
