package pci

import (
	"slices"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

func TestGPUIDs(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	files := fakenvml.Files(fakenvml.H100, 2)
	dir := "sys/bus/pci/devices/" + fakenvml.Address(1) + "/"
	files[dir+"device"], files[dir+"subsystem_vendor"] = "0x26B9\n", "-"
	if err := fakenvml.Write(root, files); err != nil {
		t.Fatal(err)
	}
	got, err := GPUIDs(probe.NewHost(root))
	want := []ID{{fakenvml.Address(0), "2330", "10de:16c1"}, {fakenvml.Address(1), "26b9", ""}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if got, err := GPUIDs(probe.NewHost("/nonexistent")); len(got) != 0 || err != nil {
		t.Errorf("without a PCI bus: %v, %v", got, err)
	}
}
