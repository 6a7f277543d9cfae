package rdma

import (
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestIBPorts(t *testing.T) {
	t.Parallel()
	const class = "sys/class/infiniband/"
	h := probe.NewHost(probetest.Tree(t, map[string]string{
		class + "mlx5_0/ports/1/state":               "4: ACTIVE\n",
		class + "mlx5_0/ports/1/phys_state":          "5: LinkUp\n",
		class + "mlx5_0/ports/1/rate":                "400 Gb/sec (4X NDR)\n",
		class + "mlx5_1/ports/1/state/":              "",
		class + "mlx5_1/ports/1/phys_state":          "\n",
		class + "mlx5_2/ports":                       "not a directory",
		class + "mlx5_3/":                            "",
		class + "mlx4_0/ports/2/state":               "1: DOWN\n",
		class + "mlx4_0/ports/2/phys_state":          "2: Polling\n",
		class + "mlx4_0/ports/2/rate":                "2.5 Gb/sec (1X SDR)\n",
		"sys/class/infiniband_mad/abi_version":       "5\n",
		"sys/devices/pci0000:c0/0000:c1:00.0/uevent": "",
	}))
	err := os.Symlink("../../../devices/pci0000:c0/0000:c1:00.0", h.Path("/"+class+"mlx5_0/device"))
	if err != nil {
		t.Fatal(err)
	}
	ports, err := IBPorts(h)
	if err != nil {
		t.Fatal(err)
	}
	type port struct{ Name, PCI, State, Phys, Rate, Err string }
	got := make([]port, 0, len(ports))
	for _, p := range ports {
		got = append(got, port{Name: p.Name(), PCI: p.PCI, State: p.State, Phys: p.Phys, Rate: p.Rate, Err: probetest.Message(p.Err)})
	}
	want := []port{
		{Name: "mlx4_0:2", State: "DOWN", Phys: "Polling", Rate: "2.5"},
		{Name: "mlx5_0:1", PCI: "0000:c1:00.0", State: "ACTIVE", Phys: "LinkUp", Rate: "400"},
		{Name: "mlx5_1:1", Err: "read /sys/class/infiniband/mlx5_1/ports/1/state: is a directory\n" +
			"read /sys/class/infiniband/mlx5_1/ports/1/rate: no such file or directory"},
		{Name: "mlx5_2:", Err: "read /sys/class/infiniband/mlx5_2/ports: not a directory"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("IBPorts (-want +got):\n%s", diff)
	}
	if v := MADVersion(h); v != "5" {
		t.Errorf("MADVersion = %q, want 5", v)
	}
}

func TestIBPortsWithoutDriver(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(probetest.Tree(t, nil))
	if ports, err := IBPorts(h); ports != nil || err != nil {
		t.Errorf("IBPorts = %v, %v; want none", ports, err)
	}
	if v := MADVersion(h); v != "" {
		t.Errorf("MADVersion = %q, want none", v)
	}
	h = probe.NewHost(probetest.Tree(t, map[string]string{"sys/class/infiniband": "a file"}))
	if _, err := IBPorts(h); probetest.Message(err) != "read /sys/class/infiniband: not a directory" {
		t.Errorf("IBPorts of a file: %v", err)
	}
}

// A device that has already blocked another check is skipped; the others are read.
func TestHCAsStuck(t *testing.T) {
	t.Parallel()
	const class = "sys/class/infiniband/"
	h := probe.NewHost(probetest.Tree(t, map[string]string{class + "mlx5_0/ports/1/state": "4: ACTIVE\n", class + "mlx5_10/ports/1/state": "4: ACTIVE\n", class + "mlx5_1/ports/1/state": "4: ACTIVE\n"}))
	h.SetStuck([]string{"read /sys/class/infiniband/mlx5_1/ports/1/counters", "stat /home"})
	list, err := HCAs(h, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, a := range list {
		got[a.Name] = errors.Is(a.Err, probe.ErrStuck)
	}
	if diff := cmp.Diff(map[string]bool{"mlx5_0": false, "mlx5_1": true, "mlx5_10": false}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	const want = "read /sys/class/infiniband/mlx5_1: skipped: this device already blocked another check"
	if got := probetest.Message(list[1].Err); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// The serial number of a board is in the read-only part of its vital product data; truncated or
// invalid data has none.
func TestVPDField(t *testing.T) {
	t.Parallel()
	const board = "\x82\x04\x00Name\x90\x13\x00PN\x04MCX7SN\x09MT2301X01\x78"
	for data, want := range map[string]string{
		board: "MT2301X01", board[:26]: "MT2301", "": "", "\x90": "", "\x90\xff\xffSN\xffabc": "abc",
		"\x82\x04\x00Name\x78": "", "\xff\xff\xff\xff": "", "\x91\x05\x00SN\x02ab": "",
	} {
		if got := pci.VpdField([]byte(data), "SN"); got != want {
			t.Errorf("%q: %q, want %q", data, got, want)
		}
	}
}

func FuzzGbps(f *testing.F) {
	for _, seed := range []string{"400 Gb/sec (4X NDR)", "nan", "-1", "1e300", "\xff\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n := parseRate(text); !(n >= 0) {
			t.Errorf("%q: %g Gb/s", text, n)
		}
	})
}
