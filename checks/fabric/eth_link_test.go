package fabric

import (
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/selftest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestEthLink(t *testing.T) { checktest.Run(t, "check_eth_link") }

var _ = checktest.Table("check_eth_link", func(name string) []checktest.Scenario {
	const file = "past/eth-link.json"
	of13 := func(severity checks.Severity, code string, remedy checks.Remedy, want, got, text string) checks.Finding {
		return ethFinding("eth13", fakesys.HCAAddress(3), checks.Finding{Code: "eth." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	all, set := checktest.Of("eth1*"), func(file, content string) func(*fakesys.Node) {
		return func(n *fakesys.Node) { n.Set("eth13", file, content) }
	}
	dead := func(n *fakesys.Node) {
		n.Set("eth13", "carrier", "0").Set("eth13", "operstate", "down").Set("eth13", "speed", "-1").Set("eth13", "duplex", "unknown")
	}
	members := checktest.Of("eth10", "eth11", "eth12", "eth13", "eth14", "eth15", "eth16", "eth17")
	bond := func(mode string, change func(*fakesys.Node)) func(*fakesys.Node) {
		return func(n *fakesys.Node) {
			n.AddBond("bond0", mode, members...)
			if change != nil {
				change(n)
			}
		}
	}
	lacp, lost := "802.3ad 4", of13(checks.Warn, "member", checks.CheckCable, "up", "no carrier", "link of a member of bond0")
	lostFails := lost
	lostFails.Severity = checks.Fail
	past := func(s checktest.Scenario, at, changes string) checktest.Scenario {
		return s.Holding(file, `{"version":1,"boot":"658f832e-2c36-42e1-a29c-a17c2e3298d2","devices":{"eth13":{"seen":`+at+`,"series":{"carrier_changes":[[`+at+`,`+changes+`]]}}}}`)
	}
	return append(ethFrontEnd(name), []checktest.Scenario{
		checktest.OnRoCE("healthy", all, nil),
		checktest.OnRoCE("healthy, the default route", nil, nil),
		checktest.OnRoCE("as wanted", checktest.Of("-s", "400G", "-d", "full", "-m", "9000", "-c", "0", "eth1*"), nil).
			OrTable(map[string]any{"speed": "400G", "duplex": "full", "mtu": int64(9000), "changes": int64(0), "interfaces": []any{"eth1*"}}),
		checktest.OnRoCE("no carrier", all, dead, of13(checks.Fail, "down", checks.CheckCable, "up", "no carrier", "link")),
		checktest.OnRoCE("disabled on the node", all, func(n *fakesys.Node) { dead(n); n.Set("eth13", "flags", "0x1002").Set("eth13", "carrier", "-") },
			of13(checks.Fail, "down", checks.CheckCable, "up", "off", "link")),
		checktest.OnRoCE("dormant", all, set("operstate", "dormant"), of13(checks.Fail, "down", checks.CheckCable, "up", "dormant", "link")),
		checktest.OnRoCE("a driver without a state", all, set("operstate", "unknown")),
		checktest.OnRoCE("too slow", checktest.Of("-s", "400000", "eth1*"), func(n *fakesys.Node) {
			for _, m := range members {
				n.Set(m, "speed", "-1")
			}
			n.Set("eth13", "speed", "200000")
		}, of13(checks.Fail, "speed", checks.CheckCable, "400000 Mb/s", "200000 Mb/s", "speed")),
		checktest.AsIs(checktest.OnRoCE("all slower than wanted: the line is wrong", checktest.Of("-s", "800G", "eth1*"), nil, onEach(func(i int) checks.Finding {
			return checktest.About(name, checks.Device{Kind: "netdev", Name: members[i], PCI: fakesys.HCAAddress(i)}, checks.Finding{Code: "eth.speed", Severity: checks.Fail, Remedy: checks.FixConfig, Want: "800000 Mb/s", Got: "400000 Mb/s"}, "speed")
		})...)),
		checktest.OnRoCE("slower than the others", all, set("speed", "100000"), of13(checks.Warn, "differ", checks.CheckCable, "400000 Mb/s", "100000 Mb/s", "slower than other cards of its model")),
		checktest.OnRoCE("faster than the others", all, set("speed", "800000")),
		checktest.OnRoCE("unknown speed", checktest.Of("-s", "400G", "eth1*"), set("speed", "-1")),
		checktest.OnRoCE("half duplex", all, set("duplex", "half"), of13(checks.Warn, "duplex", checks.CheckCable, "full", "half", "duplex")),
		checktest.OnRoCE("half duplex, -d full", checktest.Of("-d", "full", "eth1*"), set("duplex", "half"), of13(checks.Fail, "duplex", checks.CheckCable, "full", "half", "duplex")),
		checktest.OnRoCE("half duplex, -d any", checktest.Of("-d", "any", "eth1*"), set("duplex", "half")),
		checktest.OnRoCE("another MTU", checktest.Of("-m", "9000", "eth1*"), set("mtu", "1500"), of13(checks.Fail, "mtu", checks.FixConfig, "9000", "1500", "MTU")),
		checktest.OnRoCE("no such interface", checktest.Of("eth13", "eth18"), nil,
			checks.Finding{Code: "eth.missing", Severity: checks.Fail, Device: checks.Device{Kind: "netdev", Name: "eth18"}, Want: "eth18", Got: "none", Message: name + ":  eth18: no such interface, want eth18, got none"}),
		checktest.OnRoCE("a glob does not match virtual functions", checktest.Of("eth1*"), func(n *fakesys.Node) {
			n.AddVF("rocep3s0", "0000:23:00.1", "rocep3s0v0", 0x70)
			n.AddNet(fakesys.Net{Name: "eth130", PCI: "0000:23:00.1", Index: 0x70})
			n.Set("eth130", "operstate", "down").Set("eth130", "carrier", "0")
		}),

		past(checktest.OnRoCE("the carrier came and went long ago", all, set("carrier_changes", "500")), "1767322745", "500"),
		past(checktest.OnRoCE("once within the hour", all, set("carrier_changes", "4")), "1767322745", "2"),
		past(checktest.OnRoCE("flapping", all, set("carrier_changes", "8"), of13(checks.Warn, "changes", checks.CheckCable, "at most 2 an hour", "6", "changes of the carrier")), "1767322745", "2"),
		past(checktest.OnRoCE("flapping, slowly", all, set("carrier_changes", "8")), "1767301445", "2"),
		past(checktest.OnRoCE("a reloaded driver", checktest.Of("-c", "0", "eth1*"), set("carrier_changes", "4")), "1767322745", `2]],"ifindex":[[1767322745,9`),
		past(checktest.OnRoCE("more changes than allowed", checktest.Of("-c", "0", "eth1*"), set("carrier_changes", "4"), of13(checks.Fail, "changes", checks.CheckCable, "at most 0 an hour", "2", "changes of the carrier")), "1767322745", "2"),
		checktest.OnRoCE("many changes, no history", all, set("carrier_changes", "8000")),

		checktest.OnRoCE("a whole bond", checktest.Of("-s", "3000G", "bond0"), bond(lacp, nil)),
		checktest.OnRoCE("a member has no carrier", checktest.Of("bond0"), bond(lacp, dead), lost),
		checktest.OnRoCE("a member has no carrier, -b", checktest.Of("-b", "bond0"), bond("active-backup 1", dead), lostFails).OrTable(map[string]any{"members": true, "interfaces": []any{"bond0"}}),
		checktest.OnRoCE("a member's name", checktest.Of("bond0", "eth13"), bond(lacp, dead), of13(checks.Fail, "down", checks.CheckCable, "up", "no carrier", "link")),
		checktest.OnRoCE("a member is named first", checktest.Of("eth13", "bond0"), bond(lacp, dead), of13(checks.Fail, "down", checks.CheckCable, "up", "no carrier", "link")),
		checktest.OnRoCE("MII reports that a member is down", checktest.Of("bond0"), bond("balance-rr 0", set("bonding_slave/mii_status", "down")),
			of13(checks.Warn, "member", checks.CheckCable, "up", "MII status down", "link of a member of bond0")),
		checktest.OnRoCE("LACP excludes a member", checktest.Of("bond0"), bond(lacp, set("bonding_slave/ad_aggregator_id", "2")),
			of13(checks.Warn, "member", checks.CheckFabric, "1", "2", "aggregator of a member of bond0")),
		checktest.OnRoCE("the switch has no LACP", checktest.Of("bond0"), bond(lacp, func(n *fakesys.Node) { n.Set("bond0", "bonding/ad_partner_mac", "00:00:00:00:00:00") }),
			ethFinding("bond0", "", checks.Finding{Code: "eth.lacp", Severity: checks.Warn, Remedy: checks.CheckFabric, Want: "a partner", Got: "none"}, "LACP")),
		checktest.OnRoCE("LACP is visible to root only", checktest.Of("bond0"), bond(lacp, func(n *fakesys.Node) { n.Set("bond0", "bonding/ad_partner_mac", "-") })),
		checktest.OnRoCE("a slow member", checktest.Of("bond0"), bond(lacp, set("speed", "100000")), of13(checks.Warn, "differ", checks.CheckCable, "400000 Mb/s", "100000 Mb/s", "slower than other cards of its model")),

		booting(checktest.OnRoCE("no carrier, a minute after a boot", all, dead, checks.Finding{Code: "eth.boot", Severity: checks.Skip,
			Message: name + ":  not judged in the first 300 s after a boot, booted 60 s ago: eth13 0000:23:00.0: link, want up, got no carrier"}), 60),
		booting(checktest.OnRoCE("no such interface, a minute after a boot", checktest.Of("eth13", "eth18"), nil, checks.Finding{Code: "eth.boot", Severity: checks.Skip,
			Message: name + ":  not judged in the first 300 s after a boot, booted 60 s ago: eth18: no such interface, want eth18, got none"}), 60),
		booting(checktest.OnRoCE("no carrier five minutes after a boot", all, dead, of13(checks.Fail, "down", checks.CheckCable, "up", "no carrier", "link")), 300),
		booting(checktest.OnRoCE("half duplex, a minute after a boot", all, set("duplex", "half"), of13(checks.Warn, "duplex", checks.CheckCable, "full", "half", "duplex")), 60),
		checktest.Odd(checktest.OnRoCE("unreadable", all, func(n *fakesys.Node) { n.Set("eth13", "operstate/", "") }, of13(checks.Unknown, "error", "", "", "", "cannot be read: read /sys/class/net/eth13/operstate: is a directory"))),
		checktest.Odd(checktest.OnRoCE("no carrier, and the state cannot be read", all, func(n *fakesys.Node) { dead(n); n.Set("eth13", "operstate/", "") },
			of13(checks.Unknown, "error", "", "", "", "cannot be read: read /sys/class/net/eth13/operstate: is a directory"),
			of13(checks.Fail, "down", checks.CheckCable, "up", "no carrier", "link"))),
		checktest.Odd(checktest.OnRoCE("disabled on the node, and the state cannot be read", all, func(n *fakesys.Node) {
			n.Set("eth13", "flags", "0x1002").Set("eth13", "carrier", "-").Set("eth13", "operstate/", "")
		}, of13(checks.Unknown, "error", "", "", "", "cannot be read: read /sys/class/net/eth13/operstate: is a directory"),
			of13(checks.Fail, "down", checks.CheckCable, "up", "off", "link"))),
		checktest.Odd(checktest.OnRoCE("garbage", all, set("mtu", "\xff\xfe"), of13(checks.Unknown, "error", "", "", "", "cannot be read: parse /sys/class/net/eth13/mtu: invalid argument"))),
		checktest.Odd(checktest.OnRoCE("garbage in flags", all, set("flags", "up"), of13(checks.Unknown, "error", "", "", "", "cannot be read: parse /sys/class/net/eth13/flags: invalid argument"))),
		checktest.Odd(checktest.OnRoCE("removed while it was read", all, set("operstate", "-"), of13(checks.Unknown, "error", "", "", "", "cannot be read: read /sys/class/net/eth13/operstate: file does not exist"))),
		checktest.Odd(checktest.OnRoCE("a member has no carrier, and the other one cannot be read", checktest.Of("bond0"), func(n *fakesys.Node) {
			dead(n.AddBond("bond0", lacp, "eth12", "eth13").Set("eth12", "mtu", "?"))
		}, ethFinding("eth12", fakesys.HCAAddress(2), checks.Finding{Code: "eth.error", Severity: checks.Unknown}, "cannot be read: parse /sys/class/net/eth12/mtu: invalid argument"), lost)),
		checktest.Odd(checktest.OnRoCE("an impossible speed", all, set("speed", "99999999999999999999"))),
		checktest.Odd(checktest.UnreadableAt(checktest.OnRoCE("unreadable list of interfaces", all, nil, checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /sys/class/net: not a directory"}), "sys/class/net")),
		checktest.Odd(checktest.OnRoCE("unreadable routes", nil, func(n *fakesys.Node) { delete(n.Files, "proc/net/route"); n.Files["proc/net/route/"] = "" },
			checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /proc/net/route: is a directory"})),
		checktest.Odd(checktest.OnRoCE("a damaged history", all, nil, checks.Finding{Code: "fabric.past", Severity: checks.Warn, Message: name + ":  /past/eth-link.json is damaged; a new history begins"}).Holding(file, "{{")),
	}...)
})

// ethFrontEnd returns scenarios about the interface with the default route, and its parts.
func ethFrontEnd(name string) []checktest.Scenario {
	eth0 := func(f checks.Finding, text string) checks.Finding { return ethFinding("eth0", "0000:f0:00.0", f, text) }
	noCarrier := func(n *fakesys.Node) { n.Set("eth0", "carrier", "0").Set("eth0", "operstate", "down") }
	vlan := func(n *fakesys.Node) {
		n.AddNet(fakesys.Net{Name: "eth0.100", Speed: "25000", Index: 1})
		n.Above("eth0.100", "eth0")
		n.Files["proc/net/route"] = fakesys.New().Files["proc/net/route"]
		n.DefaultRoute("eth0.100")
	}
	gone := checktest.OnRoCE("no route, no name", nil, func(n *fakesys.Node) { delete(n.Files, "proc/net/route"); delete(n.Files, "proc/net/ipv6_route") },
		checks.Finding{Code: "eth.none", Severity: checks.Skip, Message: name + ":  no interface has the default route"})
	azure := fakesys.NDH100v5()
	azure.Links[azure.Dir("eth0")+"/device"] = "../../../f8b3781b-1e82-4818-a1c3-63d806ec15bb"
	azure.Set("eth1", "carrier", "0")
	bridge := fakesys.RoCE()
	bridge.AddNet(fakesys.Net{Name: "br0", Index: 1})
	bridge.AddNet(fakesys.Net{Name: "veth1", Index: 2})
	bridge.Above("br0", "eth0").Above("br0", "veth1").Set("veth1", "operstate", "down").Set("veth1", "carrier", "0").Set("br0", "speed", "-1")
	bridge.Files["proc/net/route"] = fakesys.New().Files["proc/net/route"]
	bridge.DefaultRoute("br0")
	cut := bridge.Clone()
	noCarrier(cut)
	return []checktest.Scenario{
		gone,
		checktest.OnRoCE("the default route's has no carrier", nil, noCarrier, eth0(checks.Finding{Code: "eth.down", Severity: checks.Fail, Remedy: checks.CheckCable, Want: "up", Got: "no carrier"}, "link")),
		checktest.OnRoCE("the default route's is too slow", checktest.Of("-s", "100G"), nil, eth0(checks.Finding{Code: "eth.speed", Severity: checks.Fail, Remedy: checks.CheckCable, Want: "100000 Mb/s", Got: "25000 Mb/s"}, "speed")),
		checktest.OnRoCE("a VLAN on a card", checktest.Of("-s", "25G"), vlan),
		checktest.OnRoCE("a VLAN on a card without a carrier", nil, func(n *fakesys.Node) {
			vlan(n)
			noCarrier(n)
			n.Set("eth0.100", "operstate", "lowerlayerdown").Set("eth0.100", "carrier", "0")
		},
			ethFinding("eth0.100", "", checks.Finding{Code: "eth.down", Severity: checks.Fail, Remedy: checks.CheckCable, Want: "up", Got: "no carrier"}, "link"),
			eth0(checks.Finding{Code: "eth.down", Severity: checks.Fail, Remedy: checks.CheckCable, Want: "up", Got: "no carrier"}, "link")),
		checktest.OnNode(bridge, "a bridge of containers", nil),
		checktest.OnNode(cut, "a bridge whose card has no carrier", nil, eth0(checks.Finding{Code: "eth.down", Severity: checks.Fail, Remedy: checks.CheckCable, Want: "up", Got: "no carrier"}, "link")),
		checktest.OnNode(azure, "the fast half of Azure's interface has no carrier", nil,
			ethFinding("eth1", "0001:00:02.0", checks.Finding{Code: "eth.member", Severity: checks.Warn, Remedy: checks.CheckCable, Want: "up", Got: "no carrier"}, "link of a member of eth0")),
		checktest.OnNode(fakesys.NDH100v5(), "Azure", nil),
		checktest.OnNode(fakesys.GB200(), "GB200", nil),
		checktest.OnNode(fakesys.New(), "no interface at all", nil, checks.Finding{Code: "eth.none", Severity: checks.Skip, Message: name + ":  no interface has the default route"}),
		checktest.OnNode(fakesys.New(), "no interface at all, one on the line", checktest.Of("eth0"),
			checks.Finding{Code: "eth.missing", Severity: checks.Fail, Remedy: checks.FixConfig, Device: checks.Device{Kind: "netdev", Name: "eth0"}, Want: "eth0", Got: "none", Message: name + ":  eth0: no such interface, want eth0, got none"}),
	}
}

func ethFinding(dev, pci string, f checks.Finding, text string) checks.Finding {
	return checktest.About(ethLinkName, checks.Device{Kind: "netdev", Name: dev, PCI: pci}, f, text)
}

// An interface that starts after a boot is not judged, but before a job; the changes of its carrier until then do not
// count.
func TestEthLinkAfterABoot(t *testing.T) {
	t.Parallel()
	sys := fakesys.RoCE()
	sys.Set("eth13", "carrier", "0").Set("eth13", "operstate", "down")
	root := t.TempDir()
	if err := sys.Write(root); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		up, changes int
		carrier     string
		job         *checks.Job
		want        checks.Severity
	}{
		{60, 1, "0", nil, checks.Skip}, {61, 1, "0", &checks.Job{}, checks.Fail}, {62, 1, "0", &checks.Job{Ended: true}, checks.Skip},
		{200, 9, "1", nil, checks.OK}, {400, 9, "1", nil, checks.OK}, {700, 12, "1", nil, checks.Warn},
	} {
		for file, text := range map[string]string{
			"proc/uptime": fmt.Sprintf("%d.00 1.00\n", step.up), sys.Dir("eth13") + "/carrier": step.carrier, sys.Dir("eth13") + "/carrier_changes": fmt.Sprint(step.changes),
			sys.Dir("eth13") + "/operstate": map[string]string{"0": "down", "1": "up"}[step.carrier],
		} {
			if err := selftest.Place(root, file, text); err != nil {
				t.Fatal(err)
			}
		}
		env := &checks.Env{Host: probe.NewHost(root), Job: step.job}
		env.Host.SetPast("/past")
		if got := (&ethLink{Names: []string{"eth1*"}}).Run(t.Context(), env); checks.Worst(got) != step.want {
			t.Errorf("%d s after the boot, job %v: %v, want %v", step.up, step.job, got, step.want)
		}
	}
}

func TestEthLinkWords(t *testing.T) {
	t.Parallel()
	for _, words := range [][]string{checktest.Of("-s", "fast"), checktest.Of("-s", "25GB"), checktest.Of("-d", "double"), checktest.Of("-c", "-1"), checktest.Of("-c", "x"), checktest.Of("-m", "big")} {
		if err := checks.Bind(&ethLink{}, words); err == nil {
			t.Errorf("%q is taken", words)
		}
	}
	if err := checks.BindTable(&ethLink{}, map[string]any{"speed": "nan"}); err == nil {
		t.Error("a speed that is no number is taken")
	}
}

func FuzzEthSpeed(f *testing.F) {
	for _, s := range []string{"25G", "2.5g", "1000M", "100000", "NaN", "-1", "1e9G", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, ok := parseEthSpeed(text); ok && (n <= 0 || n > 1e11) {
			t.Errorf("%q is %d", text, n)
		}
	})
}
