package pci

import (
	"fmt"
	"slices"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestNUMANodes(t *testing.T) {
	t.Parallel()
	const dir = "sys/devices/system/node/"
	h := probe.NewHost(probetest.Tree(t, map[string]string{dir + "has_cpu": "0-1\n", dir + "node0/cpulist": "0-55,112-167\n", dir + "node1/cpulist": "56\x1b[2J\n"}))
	got, err := ReadNUMANodes(h)
	if want := []NUMANode{{0, "0-55,112-167"}, {1, ""}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if got, err := ReadNUMANodes(probe.NewHost("/nonexistent")); got != nil || err != nil {
		t.Errorf("a kernel without NUMA: %v, %v", got, err)
	}
	for content, want := range map[string]string{"x\n": "read /sys/devices/system/node/has_cpu: no list of NUMA nodes", "0-99999\n": "read /sys/devices/system/node/has_cpu: no list of NUMA nodes", "\n": ""} {
		if _, err := ReadNUMANodes(probe.NewHost(probetest.Tree(t, map[string]string{dir + "has_cpu": content}))); probetest.Message(err) != want {
			t.Errorf("%q: %q, want %q", content, probetest.Message(err), want)
		}
	}
}

func TestNVMePCI(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	n := fakesys.DGXH100()
	n.Links["sys/class/nvme/nvme8/device"] = "../../../fabrics/ctl"
	if err := n.Write(root); err != nil {
		t.Fatal(err)
	}
	names, address, err := NVMePCI(probe.NewHost(root))
	if err != nil || len(names) != 8 || names[3] != "nvme3" || address["nvme3"] != fakesys.NVMeAddress(3) {
		t.Errorf("%v, %v, %v", names, address, err)
	}
	if names, _, err := NVMePCI(probe.NewHost(t.TempDir())); names != nil || err != nil {
		t.Errorf("without a disk: %v, %v", names, err)
	}
}

func FuzzParseNodeList(f *testing.F) {
	for _, s := range []string{"", "0", "0-1", "0-1,4", "1-0", "0-", "-1", "0-1023", "0-1024", "0,,1", "18446744073709551616"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ids, ok := ParseNodeList(text)
		if !ok && ids != nil || len(ids) > 3*maxNUMANodes {
			t.Errorf("%q: %d nodes, %v", text, len(ids), ok)
		}
		for _, id := range ids {
			if id < 0 || id >= maxNUMANodes {
				t.Errorf("%q: %s", text, fmt.Sprint(ids))
			}
		}
	})
}
