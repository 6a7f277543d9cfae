package network

import (
	"errors"
	"io/fs"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestNetIf(t *testing.T) {
	t.Parallel()
	sys := fakesys.RoCE()
	sys.AddBond("bond0", "802.3ad 4", "eth10", "eth11")
	sys.Set("eth12", "operstate", "down").Set("eth12", "carrier", "-").Set("eth12", "speed", "-1").Set("eth12", "duplex", "unknown").Set("eth12", "flags", "0x1002")
	sys.Set("eth13", "mtu", "nine\xff").Set("eth14", "operstate", "-")
	sys.Files["sys/class/net/bonding_masters"] = "bond0\n"
	root := t.TempDir()
	if err := sys.Write(root); err != nil {
		t.Fatal(err)
	}
	h := probe.NewHost(root)
	names, err := NetIfs(h)
	if got, want := strings.Join(names, " "), "bond0 eth0 eth10 eth11 eth12 eth13 eth14 eth15 eth16 eth17"; got != want || err != nil {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	for _, want := range []NetIf{
		{Name: "eth10", Type: 1, On: true, OperState: "up", Carrier: 1, Speed: 400000, Duplex: "full", MTU: 9000, Index: 10, Changes: 2, Counted: true, Physical: true, PCI: "0000:20:00.0",
			Slave: &BondPart{MII: "up", Aggregator: "1"}},
		{Name: "bond0", Type: 1, On: true, OperState: "up", Carrier: 1, Speed: 800000, Duplex: "full", MTU: 9000, Index: 186, Changes: 2, Counted: true, Lower: []string{"eth10", "eth11"},
			Bond: &Bond{Mode: "802.3ad", Members: []string{"eth10", "eth11"}, Aggregator: "1", Partner: "00:1c:73:00:00:99"}},
		{Name: "eth12", Type: 1, OperState: "down", Carrier: -1, Duplex: "unknown", MTU: 9000, Index: 12, Changes: 2, Counted: true, Physical: true, PCI: "0000:22:00.0"},
	} {
		if diff := cmp.Diff(want, ReadNetIf(h, want.Name), cmpopts.EquateErrors()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", want.Name, diff)
		}
	}
	for name, want := range map[string]error{"eth13": fs.ErrInvalid, "eth14": fs.ErrNotExist, "eth99": fs.ErrNotExist, "../net/eth0": fs.ErrNotExist, "": fs.ErrNotExist} {
		if err := ReadNetIf(h, name).Err; !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", name, err, want)
		}
	}
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	sys := fakesys.New()
	sys.Files["proc/net/route"] += "eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n" +
		"eth0\t0000000A\t00000000\t0001\t0\t0\t100\t0000FCFF\t0\t0\t0\n*\t000010AC\t00000000\t0001\t0\t0\t0\t0000F0FF\t0\t0\t0\n" +
		"eth1\t0000A8C0\t00000000\t0000\t0\t0\t0\t0000FFFF\t0\t0\t0\nnonsense\xff\n"
	sys.Files["proc/net/ipv6_route"] = "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fd000000000000000000000000000001 00000400 00000003 00000000 00000003     eth0\n" +
		"00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo\n"
	if err := sys.Write(root); err != nil {
		t.Fatal(err)
	}
	got, err := Routes(probe.NewHost(root))
	want := []Route{
		{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("10.0.0.1"), Dev: "eth0", Metric: 100},
		{Prefix: netip.MustParsePrefix("10.0.0.0/14"), Dev: "eth0", Metric: 100},
		{Prefix: netip.MustParsePrefix("172.16.0.0/12"), Dev: "*", Nowhere: true},
		{Prefix: netip.MustParsePrefix("::/0"), Gateway: netip.MustParseAddr("fd00::1"), Dev: "eth0", Metric: 1024},
		{Prefix: netip.MustParsePrefix("::/0"), Dev: "lo", Metric: 0xffffffff, Nowhere: true},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err == nil || err.Error() != "parse /proc/net/route: line 6: not a route" {
		t.Errorf("error %v", err)
	}
}

func FuzzNetIf(f *testing.F) {
	f.Add("100000", "eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0", "00000000000000000000000000000000 00 0 00 fd000000000000000000000000000001 00000400 00000003 00000000 00000003     eth0")
	f.Add("4294967295", "* 0 0 0201 0 0 0 FFFFFFFFFFFFFFFF", "0 80")
	f.Fuzz(func(t *testing.T, speed, route4, route6 string) {
		if n := parseNetSpeed(speed); n < 0 || n > 100_000_000 {
			t.Errorf("%q is %d", speed, n)
		}
		for _, parse := range []func([]string) (Route, bool, error){parseRoute4, parseRoute6} {
			for _, text := range []string{route4, route6} {
				if r, ok, err := parse(strings.Fields(text)); ok && (err != nil || !r.Prefix.IsValid()) {
					t.Errorf("%q: %v, %v", text, r, err)
				}
			}
		}
	})
}
