package checks

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestEthLink(t *testing.T) { testCheck(t, "check_eth_link") }

var _ = table("check_eth_link", func(name string) []scenario {
	const file = "past/eth-link.json"
	of13 := func(severity Severity, code string, remedy Remedy, want, got, text string) Finding {
		return ethFinding("eth13", fakesys.HCAAddress(3), Finding{Code: "eth." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	all, set := of("eth1*"), func(file, content string) func(*fakesys.Node) {
		return func(n *fakesys.Node) { n.Set("eth13", file, content) }
	}
	dead := func(n *fakesys.Node) {
		n.Set("eth13", "carrier", "0").Set("eth13", "operstate", "down").Set("eth13", "speed", "-1").Set("eth13", "duplex", "unknown")
	}
	members := of("eth10", "eth11", "eth12", "eth13", "eth14", "eth15", "eth16", "eth17")
	bond := func(mode string, change func(*fakesys.Node)) func(*fakesys.Node) {
		return func(n *fakesys.Node) {
			n.AddBond("bond0", mode, members...)
			if change != nil {
				change(n)
			}
		}
	}
	lacp, lost := "802.3ad 4", of13(Warn, "member", CheckCable, "up", "no carrier", "link of a member of bond0")
	lostFails := lost
	lostFails.Severity = Fail
	past := func(s scenario, at, changes string) scenario {
		return s.holding(file, `{"version":1,"boot":"658f832e-2c36-42e1-a29c-a17c2e3298d2","devices":{"eth13":{"seen":`+at+`,"series":{"carrier_changes":[[`+at+`,`+changes+`]]}}}}`)
	}
	return append(ethFrontEnd(name), []scenario{
		onRoCE("healthy", all, nil),
		onRoCE("healthy, the default route", nil, nil),
		onRoCE("as wanted", of("-s", "400G", "-d", "full", "-m", "9000", "-c", "0", "eth1*"), nil).
			orTable(map[string]any{"speed": "400G", "duplex": "full", "mtu": int64(9000), "changes": int64(0), "interfaces": []any{"eth1*"}}),
		onRoCE("no carrier", all, dead, of13(Fail, "down", CheckCable, "up", "no carrier", "link")),
		onRoCE("taken down here", all, func(n *fakesys.Node) { dead(n); n.Set("eth13", "flags", "0x1002").Set("eth13", "carrier", "-") },
			of13(Fail, "down", CheckCable, "up", "off", "link")),
		onRoCE("dormant", all, set("operstate", "dormant"), of13(Fail, "down", CheckCable, "up", "dormant", "link")),
		onRoCE("a driver that keeps no state", all, set("operstate", "unknown")),
		onRoCE("too slow", of("-s", "400000", "eth1*"), func(n *fakesys.Node) {
			for _, m := range members {
				n.Set(m, "speed", "-1")
			}
			n.Set("eth13", "speed", "200000")
		}, of13(Fail, "speed", CheckCable, "400000 Mb/s", "200000 Mb/s", "speed")),
		onRoCE("slower than the others", all, set("speed", "100000"), of13(Warn, "differ", CheckCable, "400000 Mb/s", "100000 Mb/s", "speed is not that of others of its model")),
		onRoCE("faster than the others", all, set("speed", "800000")),
		onRoCE("no speed is told", of("-s", "400G", "eth1*"), set("speed", "-1")),
		onRoCE("half duplex", all, set("duplex", "half"), of13(Warn, "duplex", CheckCable, "full", "half", "duplex")),
		onRoCE("half duplex, full is wanted", of("-d", "full", "eth1*"), set("duplex", "half"), of13(Fail, "duplex", CheckCable, "full", "half", "duplex")),
		onRoCE("half duplex will do", of("-d", "any", "eth1*"), set("duplex", "half")),
		onRoCE("another MTU", of("-m", "9000", "eth1*"), set("mtu", "1500"), of13(Fail, "mtu", FixConfig, "9000", "1500", "MTU")),
		onRoCE("no such interface", of("eth13", "eth18"), nil,
			Finding{Code: "eth.missing", Severity: Fail, Device: Device{Kind: "netdev", Name: "eth18"}, Want: "eth18", Got: "none", Message: name + ":  eth18: no such interface, want eth18, got none"}),
		onRoCE("virtual functions are not meant by a glob", of("eth1*"), func(n *fakesys.Node) {
			n.AddVF("rocep3s0", "0000:23:00.1", "rocep3s0v0", 0x70)
			n.AddNet(fakesys.Net{Name: "eth130", PCI: "0000:23:00.1", Index: 0x70})
			n.Set("eth130", "operstate", "down").Set("eth130", "carrier", "0")
		}),

		past(onRoCE("the carrier came and went long ago", all, set("carrier_changes", "500")), "1767322745", "500"),
		past(onRoCE("once within the hour", all, set("carrier_changes", "4")), "1767322745", "2"),
		past(onRoCE("flapping", all, set("carrier_changes", "8"), of13(Warn, "changes", CheckCable, "at most 2 an hour", "6", "changes of the carrier")), "1767322745", "2"),
		past(onRoCE("flapping, slowly", all, set("carrier_changes", "8")), "1767301445", "2"),
		past(onRoCE("a driver that was loaded anew", of("-c", "0", "eth1*"), set("carrier_changes", "4")), "1767322745", `2]],"ifindex":[[1767322745,9`),
		past(onRoCE("more changes than allowed", of("-c", "0", "eth1*"), set("carrier_changes", "4"), of13(Fail, "changes", CheckCable, "at most 0 an hour", "2", "changes of the carrier")), "1767322745", "2"),
		onRoCE("many changes, no past", all, set("carrier_changes", "8000")),

		onRoCE("a whole bond", of("-s", "3000G", "bond0"), bond(lacp, nil)),
		onRoCE("a member has no carrier", of("bond0"), bond(lacp, dead), lost),
		onRoCE("a member has no carrier, none may", of("-b", "bond0"), bond("active-backup 1", dead), lostFails).orTable(map[string]any{"members": true, "interfaces": []any{"bond0"}}),
		onRoCE("a member's name", of("bond0", "eth13"), bond(lacp, dead), of13(Fail, "down", CheckCable, "up", "no carrier", "link")),
		onRoCE("a member is named first", of("eth13", "bond0"), bond(lacp, dead), of13(Fail, "down", CheckCable, "up", "no carrier", "link")),
		onRoCE("MII says that a member is down", of("bond0"), bond("balance-rr 0", set("bonding_slave/mii_status", "down")),
			of13(Warn, "member", CheckCable, "up", "MII status down", "link of a member of bond0")),
		onRoCE("LACP has left a member out", of("bond0"), bond(lacp, set("bonding_slave/ad_aggregator_id", "2")),
			of13(Warn, "member", CheckFabric, "1", "2", "aggregator of a member of bond0")),
		onRoCE("the switch has no LACP", of("bond0"), bond(lacp, func(n *fakesys.Node) { n.Set("bond0", "bonding/ad_partner_mac", "00:00:00:00:00:00") }),
			ethFinding("bond0", "", Finding{Code: "eth.lacp", Severity: Warn, Remedy: CheckFabric, Want: "a partner", Got: "none"}, "LACP")),
		onRoCE("LACP tells root only", of("bond0"), bond(lacp, func(n *fakesys.Node) { n.Set("bond0", "bonding/ad_partner_mac", "-") })),
		onRoCE("a slow member", of("bond0"), bond(lacp, set("speed", "100000")), of13(Warn, "differ", CheckCable, "400000 Mb/s", "100000 Mb/s", "speed is not that of others of its model")),

		odd(onRoCE("unreadable", all, func(n *fakesys.Node) { n.Set("eth13", "operstate/", "") }, of13(Unknown, "error", "", "", "", "could not tell: read /sys/class/net/eth13/operstate: is a directory"))),
		odd(onRoCE("garbage", all, set("mtu", "\xff\xfe"), of13(Unknown, "error", "", "", "", "could not tell: parse /sys/class/net/eth13/mtu: invalid argument"))),
		odd(onRoCE("garbage in flags", all, set("flags", "up"), of13(Unknown, "error", "", "", "", "could not tell: parse /sys/class/net/eth13/flags: invalid argument"))),
		odd(onRoCE("taken out in mid-read", all, set("operstate", "-"), of13(Unknown, "error", "", "", "", "could not tell: read /sys/class/net/eth13/operstate: file does not exist"))),
		odd(onRoCE("a speed of another world", all, set("speed", "99999999999999999999"))),
		odd(unreadableAt(onRoCE("unreadable list of interfaces", all, nil, Finding{Code: "probe.unreadable", Severity: Unknown, Message: "read /sys/class/net: not a directory"}), "sys/class/net")),
		odd(onRoCE("unreadable routes", nil, func(n *fakesys.Node) { delete(n.Files, "proc/net/route"); n.Files["proc/net/route/"] = "" },
			Finding{Code: "probe.unreadable", Severity: Unknown, Message: "read /proc/net/route: is a directory"})),
		odd(onRoCE("a past that is broken", all, nil, Finding{Code: "fabric.past", Severity: Warn, Message: name + ":  read /past/eth-link.json: invalid character '{' looking for beginning of object key string; it is begun anew"}).holding(file, "{{")),
	}...)
})

// ethFrontEnd are scenarios about the interface with the default route, and what it
// may be made of.
func ethFrontEnd(name string) []scenario {
	eth0 := func(f Finding, text string) Finding { return ethFinding("eth0", "0000:f0:00.0", f, text) }
	noCarrier := func(n *fakesys.Node) { n.Set("eth0", "carrier", "0").Set("eth0", "operstate", "down") }
	vlan := func(n *fakesys.Node) {
		n.AddNet(fakesys.Net{Name: "eth0.100", Speed: "25000", Index: 1})
		n.Above("eth0.100", "eth0")
		n.Files["proc/net/route"] = fakesys.New().Files["proc/net/route"]
		n.DefaultRoute("eth0.100")
	}
	gone := onRoCE("no route, no name", nil, func(n *fakesys.Node) { delete(n.Files, "proc/net/route"); delete(n.Files, "proc/net/ipv6_route") },
		Finding{Code: "eth.none", Severity: Skip, Message: name + ":  no interface has the default route"})
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
	return []scenario{
		gone,
		onRoCE("the default route's has no carrier", nil, noCarrier, eth0(Finding{Code: "eth.down", Severity: Fail, Remedy: CheckCable, Want: "up", Got: "no carrier"}, "link")),
		onRoCE("the default route's is too slow", of("-s", "100G"), nil, eth0(Finding{Code: "eth.speed", Severity: Fail, Remedy: CheckCable, Want: "100000 Mb/s", Got: "25000 Mb/s"}, "speed")),
		onRoCE("a VLAN on a card", of("-s", "25G"), vlan),
		onRoCE("a VLAN whose card has no carrier", nil, func(n *fakesys.Node) {
			vlan(n)
			noCarrier(n)
			n.Set("eth0.100", "operstate", "lowerlayerdown").Set("eth0.100", "carrier", "0")
		},
			ethFinding("eth0.100", "", Finding{Code: "eth.down", Severity: Fail, Remedy: CheckCable, Want: "up", Got: "no carrier"}, "link"),
			eth0(Finding{Code: "eth.down", Severity: Fail, Remedy: CheckCable, Want: "up", Got: "no carrier"}, "link")),
		onNode(bridge, "a bridge of containers", nil),
		onNode(cut, "a bridge whose card has no carrier", nil, eth0(Finding{Code: "eth.down", Severity: Fail, Remedy: CheckCable, Want: "up", Got: "no carrier"}, "link")),
		onNode(azure, "the fast half of Azure's interface has no carrier", nil,
			ethFinding("eth1", "0001:00:02.0", Finding{Code: "eth.member", Severity: Warn, Remedy: CheckCable, Want: "up", Got: "no carrier"}, "link of a member of eth0")),
		onNode(fakesys.NDH100v5(), "Azure", nil),
		onNode(fakesys.GB200(), "GB200", nil),
		onNode(fakesys.New(), "no interface at all", nil, Finding{Code: "eth.none", Severity: Skip, Message: name + ":  no interface has the default route"}),
		onNode(fakesys.New(), "no interface at all, one is named", of("eth0"),
			Finding{Code: "eth.missing", Severity: Fail, Device: Device{Kind: "netdev", Name: "eth0"}, Want: "eth0", Got: "none", Message: name + ":  eth0: no such interface, want eth0, got none"}),
	}
}

func ethFinding(dev, pci string, f Finding, text string) Finding {
	f.Device = Device{Kind: "netdev", Name: dev, PCI: pci}
	f.Message = ethLinkName + ":  " + f.Device.String() + ": " + text + wantGot(f)
	if f.Want == "" && f.Got == "" {
		f.Got = text
	}
	return f
}

func TestEthLinkWords(t *testing.T) {
	t.Parallel()
	for _, words := range [][]string{of("-s", "fast"), of("-s", "25GB"), of("-d", "double"), of("-c", "-1"), of("-c", "x"), of("-m", "big")} {
		if err := Bind(&ethLink{}, words); err == nil {
			t.Errorf("%q is taken", words)
		}
	}
	if err := BindTable(&ethLink{}, map[string]any{"speed": "nan"}); err == nil {
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
