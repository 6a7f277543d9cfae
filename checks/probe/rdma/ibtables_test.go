package rdma

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestIBPKeys(t *testing.T) {
	t.Parallel()
	const dir = "sys/class/infiniband/mlx5_0/ports/1/pkeys/"
	h := probe.NewHost(probetest.Tree(t, map[string]string{dir + "0": "0xffff\n", dir + "1": "0x0000\n", dir + "2": "0x8000\n", dir + "3": "\xff\n", dir + "4/": "", dir + "5": "0x0001\n", dir + "7": "0x8002\n"}))
	got, err := IBPKeys(h, "mlx5_0", "1", func(PKey) bool { return false })
	if diff := cmp.Diff([]PKey{{0, 0xffff}, {5, 1}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if want := "parse /" + dir + "3: invalid argument\nread /" + dir + "4: is a directory"; probetest.Message(err) != want {
		t.Errorf("%v, want %s", err, want)
	}
	if !got[0].Full() || got[1].Full() || got[0].Partition() != 0x7fff {
		t.Errorf("membership of %v", got)
	}
	if got, err = IBPKeys(h, "mlx5_0", "1", func(PKey) bool { return true }); len(got) != 1 || err != nil {
		t.Errorf("it reads on when it has enough: %v, %v", got, err)
	}
	if _, err = IBPKeys(h, "mlx5_9", "1", nil); probetest.Message(err) != "read /sys/class/infiniband/mlx5_9/ports/1/pkeys/0: no such file or directory" {
		t.Errorf("no table: %v", err)
	}
	all := map[string]string{}
	for i := range 8 {
		all[fmt.Sprint(dir, i)+"/"] = ""
	}
	if _, err = IBPKeys(probe.NewHost(probetest.Tree(t, all)), "mlx5_0", "1", nil); strings.Count(probetest.Message(err), "\n") != 2 {
		t.Errorf("it goes on reading what cannot be read: %v", err)
	}
}

func TestIBGIDs(t *testing.T) {
	t.Parallel()
	const dir = "sys/class/infiniband/rocep0s0/ports/1/"
	h := probe.NewHost(probetest.Tree(t, map[string]string{
		dir + "gids/0": "fe80:0000:0000:0000:b83f:d203:00c5:1a00\n", dir + "gid_attrs/types/0": "IB/RoCE v1\n", dir + "gid_attrs/ndevs/0": "eth10\n",
		dir + "gids/1": "0000:0000:0000:0000:0000:0000:0000:0000\n",
		dir + "gids/2": "0000:0000:0000:0000:0000:ffff:c0a8:0001\n", dir + "gid_attrs/types/2": "RoCE v2\n",
		dir + "gids/3": "fe80::1\n",
	}))
	got, err := IBGIDs(h, "rocep0s0", "1", func(GID) bool { return false })
	want := []GID{
		{0, [16]byte{0xfe, 0x80, 8: 0xb8, 0x3f, 0xd2, 3, 0, 0xc5, 0x1a, 0}, "IB/RoCE v1", "eth10"},
		{2, [16]byte{10: 0xff, 0xff, 0xc0, 0xa8, 0, 1}, "RoCE v2", ""},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if probetest.Message(err) != "parse /"+dir+"gids/3: invalid argument" {
		t.Errorf("garbage: %v", err)
	}
	if !want[0].LinkLocal() || want[1].LinkLocal() {
		t.Error("which is of the link alone")
	}
	if id, err := IBGID0(h, "rocep0s0", "1"); id != want[0].ID || err != nil {
		t.Errorf("the first: %x, %v", id, err)
	}
}

func TestNetworkPCI(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(probetest.Tree(t, map[string]string{
		pci.PCIDevices[1:] + "/0000:01:00.0/class": "0x020700\n", pci.PCIDevices[1:] + "/0000:02:00.0/class": "0x020000\n", pci.PCIDevices[1:] + "/0000:03:00.0/class": "0x030200\n",
		pci.PCIDevices[1:] + "/0000:04:00.0/class": "\xff", pci.PCIDevices[1:] + "/0000:05:00.0/class/": "",
	}))
	if got, err := network.PCIAddress(h); err != nil || !slices.Equal(got, []string{"0000:01:00.0", "0000:02:00.0"}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := network.PCIAddress(probe.NewHost(probetest.Tree(t, nil))); got != nil || err != nil {
		t.Errorf("no bus: %v, %v", got, err)
	}
}

func TestBuiltIn(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(probetest.Tree(t, map[string]string{"sys/module/ib_core/": "", "proc/sys/kernel/osrelease": "6.8\n", "lib/modules/6.8/modules.builtin": "kernel/drivers/x/rdma-cm.ko\n\nodd\n"}))
	for name, want := range map[string]bool{"ib_core": true, "rdma_cm": true, "odd": true, "mlx5_ib": false} {
		if got := probe.BuiltIn(h, name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if probe.BuiltIn(probe.NewHost(probetest.Tree(t, map[string]string{"proc/sys/kernel/osrelease": "../..\n"})), "x") {
		t.Error("a release that leads elsewhere")
	}
}

func FuzzGID(f *testing.F) {
	f.Add("fe80:0000:0000:0000:b83f:d203:00c5:1a00")
	f.Add("::")
	f.Add("fe80:0000:0000:0000:b83f:d203:00c5:1a00\xff")
	f.Fuzz(func(t *testing.T, text string) {
		id, ok := parseGID(text)
		if !ok {
			if id != [16]byte{} {
				t.Errorf("%q: %x of what is none", text, id)
			}
			return
		}
		var words []string
		for i := 0; i < len(id); i += 2 {
			words = append(words, fmt.Sprintf("%x", uint16(id[i])<<8|uint16(id[i+1])))
		}
		if again, ok := parseGID(strings.Join(words, ":")); !ok || again != id {
			t.Errorf("%q: %x, again %x", text, id, again)
		}
	})
}
