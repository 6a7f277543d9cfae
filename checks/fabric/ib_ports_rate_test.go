package fabric

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// A port of unknown rate may be as fast as the others: the slower port of storage is an extra one.
func TestRateBesideAnUnknownOne(t *testing.T) {
	t.Parallel()
	unread := func(n *fakesys.Node, file string) *fakesys.Node {
		path := n.Dir("mlx5_3") + "/" + file
		delete(n.Files, path)
		n.Files[path+"/x"] = ""
		return n
	}
	storage := func() *fakesys.Node { return without(fakesys.DGXH200(), 9).HalfRate("mlx5_8") }
	otherBoard := func() *fakesys.Node { return storage().Set("mlx5_8", "board_id", "MT_0000000999") }
	booting := func(n *fakesys.Node) *fakesys.Node {
		n.Down("mlx5_3").Files["proc/uptime"] = "60.00 1.00\n"
		return n
	}
	halfCabled := func() *fakesys.Node { // second ports without a cable
		n := without(fakesys.DGXH200(), 8, 9)
		for i := range 8 {
			n.AddHCA(fakesys.HCA{PCI: fakesys.PCI{Address: fmt.Sprintf("0000:2%d:00.1", i), ID: "15b3:1021", Driver: "mlx5_core", NUMA: i / 4, Speed: "32.0 GT/s PCIe", Width: 16},
				Name: fmt.Sprintf("mlx5_b%d", i), Type: "MT4129", Board: "MT_0000000838", Fw: "28.39.2048", Layer: "InfiniBand", Rate: "400 Gb/sec (4X NDR)", Index: 0xb0 + i})
			n.Down(fmt.Sprintf("mlx5_b%d", i))
		}
		return n
	}
	evenSplit := func() *fakesys.Node { // beside cards for storage without a cable
		n := without(fakesys.DGXH200(), 8, 9)
		for i := range 4 {
			n.AddHCA(fakesys.HCA{PCI: fakesys.PCI{Address: fmt.Sprintf("0000:a%d:00.%d", i/2, i%2), ID: "15b3:1021", Driver: "mlx5_core", NUMA: 0, Speed: "32.0 GT/s PCIe", Width: 16},
				Name: fmt.Sprintf("mlx5_c%d", i), Type: "MT4129", Board: "MT_0000000838", Fw: "28.39.2048", Layer: "InfiniBand", Rate: "400 Gb/sec (4X NDR)", Index: 0xc0 + i})
			n.Down(fmt.Sprintf("mlx5_c%d", i)).HalfRate(fmt.Sprintf("mlx5_%d", 4+i))
		}
		return n
	}
	noPorts := func(n *fakesys.Node, name string) *fakesys.Node {
		dir := n.Dir(name) + "/ports"
		for file := range n.Files {
			if strings.HasPrefix(file, dir+"/") {
				delete(n.Files, file)
			}
		}
		n.Files[dir] = ""
		return n
	}
	for name, c := range map[string]struct {
		sys  *fakesys.Node
		want string // about other ports than mlx5_3
	}{
		"all are up":                            {storage(), "warn ib.ports.rate mlx5_8:1"},
		"a rail is starting":                    {booting(storage()), "warn ib.ports.rate mlx5_8:1"},
		"a rail is down":                        {storage().Down("mlx5_3"), "warn ib.ports.rate mlx5_8:1"},
		"a link layer is unread":                {unread(storage(), "ports/1/link_layer"), "warn ib.ports.rate mlx5_8:1"},
		"a board is unread":                     {unread(storage(), "board_id"), "warn ib.ports.rate mlx5_8:1"},
		"another board: all are up":             {otherBoard(), ""},
		"another board: a rail is starting":     {booting(otherBoard()), ""},
		"another board: a rate is unread":       {otherBoard().Set("mlx5_3", "ports/1/rate", "?"), ""},
		"another board: an adapter is unread":   {noPorts(otherBoard(), "mlx5_3"), ""},
		"a rail is slow, second ports uncabled": {halfCabled().HalfRate("mlx5_5"), "fail ib.ports.rate mlx5_5:1"},
		"half of the rails are slow":            {evenSplit(), "warn ib.ports.platform mlx5_4:1, warn ib.ports.platform mlx5_5:1, warn ib.ports.platform mlx5_6:1, warn ib.ports.platform mlx5_7:1"},
		"a rail is slow, storage is unread":     {noPorts(otherBoard(), "mlx5_8").HalfRate("mlx5_5"), "fail ib.ports.rate mlx5_5:1"},
	} {
		env := later(t, nil, c.sys)
		env.Platform = func(string, string, int) *checks.Platform { return h100Network() }
		var got []string
		for _, f := range (&ibPorts{}).Run(t.Context(), env) {
			if f.Severity != checks.Skip && f.Severity != checks.Unknown && f.Device.Name != "mlx5_3:1" {
				got = append(got, fmt.Sprint(f.Severity, " ", f.Code, " ", f.Device.Name))
			}
		}
		if diff := cmp.Diff(c.want, strings.Join(got, ", ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
