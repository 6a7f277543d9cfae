package inventory

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestInventoryDMI(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(probetest.Tree(t, map[string]string{"bin/dmidecode": `#!/bin/sh
printf 'Handle 0x0011, DMI type 17, 84 bytes\nMemory Device\n\tSize: 64 GB\n\tSpeed: 4800 MT/s\n\nHandle 0x0012, DMI type 127, 4 bytes\nEnd Of Table\n'
`}))
	if err := os.Chmod(h.Path("/bin/dmidecode"), 0o755); err != nil {
		t.Fatal(err)
	}
	got, err := Take(h, PartDMI, "")
	want := []DMILine{
		{Handle: "0x0011", Type: "17", Text: "Memory Device: Size: 64 GB"},
		{Handle: "0x0011", Type: "17", Text: "Memory Device: Speed: 4800 MT/s"},
	}
	if diff := cmp.Diff(want, got.DMI); diff != "" || err != nil {
		t.Errorf("DMI: %v (-want +got):\n%s", err, diff)
	}
	if _, err := Take(probe.NewHost(probetest.Tree(t, map[string]string{"bin/": ""})), PartDMI, ""); probetest.Message(err) != "run dmidecode: file does not exist" {
		t.Errorf("without dmidecode: %v", err)
	}
}
