package lbnl

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestNetRoute(t *testing.T) { checktest.Run(t, "check_net_route") }

var _ = checktest.Table("check_net_route", func(name string) []checktest.Scenario {
	says := func(code, to, want, got string) checks.Finding {
		f := checks.Finding{Code: "net.route." + code, Severity: checks.Fail, Device: checks.Device{Kind: "route", Name: to}, Want: want, Got: got}
		f.Message = name + ":  " + to + ": route" + checktest.WantGot(f)
		return f
	}
	const (
		none6   = "00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo\n"
		first6  = "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fd000000000000000000000000000001 00000400 00000003 00000000 00000003     eth0\n"
		second6 = "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fd000000000000000000000000000002 00000400 00000003 00000000 00000003     eth1\n"
		link6   = "fd000000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0\n"
	)
	lines := func(v4, v6 string) func(*fakesys.Node) {
		return func(n *fakesys.Node) {
			n.Files["proc/net/route"] = fakesys.New().Files["proc/net/route"] + v4
			n.Files["proc/net/ipv6_route"] = v6
		}
	}
	const (
		default4 = "eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
		backup4  = "eth1\t00000000\t0200000A\t0003\t0\t0\t200\t00000000\t0\t0\t0\n"
		data4    = "eth1\t0000140A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"  // 10.20.0.0/16
		narrow4  = "eth2\t0001140A\t0900140A\t0003\t0\t0\t50\t00FFFFFF\t0\t0\t0\n" // 10.20.1.0/24
		hole4    = "*\t0000140A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
		reject4  = "*\t00000000\t00000000\t0201\t0\t0\t0\t00000000\t0\t0\t0\n"
		gone4    = "eth1\t0000140A\t00000000\t0000\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
	)
	blackhole := says("nowhere", "10.20.1.2", "a route", "one that drops packets")
	return []checktest.Scenario{
		checktest.OnFabric("healthy", nil, nil),
		checktest.OnFabric("as wanted", checktest.Of("-d", "default", "-i", "eth*", "-g", "10.0.0.1"), nil).
			OrTable(map[string]any{"destination": "default", "interface": "eth*", "gateway": "10.0.0.1"}),
		checktest.OnFabric("no route", nil, lines("", none6), says("missing", "default", "a route", "only the kernel's unreachable route")),
		checktest.OnFabric("no route of either kind", nil, lines("", ""), says("missing", "default", "a route", "none")),
		checktest.OnFabric("the default route drops everything", nil, lines(reject4, none6), says("nowhere", "default", "a route", "one that drops packets")),
		checktest.OnFabric("the default route of IPv6 will do", nil, lines("", first6+none6)),
		checktest.OnFabric("one of two default routes of IPv6", checktest.Of("-g", "fd00::2"), lines(default4, first6+second6+none6)),
		checktest.OnFabric("that of IPv4 is wanted", checktest.Of("-d", "0.0.0.0/0"), lines("", first6), says("missing", "0.0.0.0/0", "a route", "none")),
		checktest.OnFabric("IPv6 is off", checktest.Of("-d", "fd00::5"), func(n *fakesys.Node) { delete(n.Files, "proc/net/ipv6_route") }, says("missing", "fd00::5", "a route", "none")),
		checktest.OnFabric("an address of IPv6 on the link", checktest.Of("-d", "fd00::5", "-i", "eth0"), lines(default4, first6+link6+none6)),
		checktest.OnFabric("an address without a router", checktest.Of("-d", "fd00::5", "-g", "fd00::1"), lines(default4, first6+link6+none6), says("gateway", "fd00::5", "fd00::1", "none")),
		checktest.OnFabric("over another interface", checktest.Of("-i", "bond*"), nil, says("interface", "default", "bond*", "eth0")),
		checktest.OnFabric("over another gateway", checktest.Of("-g", "10.0.0.2"), nil, says("gateway", "default", "10.0.0.2", "10.0.0.1")),
		checktest.OnFabric("the lower metric", checktest.Of("-i", "eth1"), lines(backup4+default4, ""), says("interface", "default", "eth1", "eth0")),
		checktest.OnFabric("the longest prefix", checktest.Of("-d", "10.20.1.2", "-i", "eth2", "-g", "10.20.0.9"), lines(default4+data4+narrow4, "")),
		checktest.OnFabric("the longest prefix, the other way round", checktest.Of("-d", "10.20.1.2", "-i", "eth2"), lines(narrow4+data4+default4, "")),
		checktest.OnFabric("an address of the wider network", checktest.Of("-d", "10.20.2.2", "-i", "eth2"), lines(default4+data4+narrow4, ""), says("interface", "10.20.2.2", "eth2", "eth1")),
		checktest.OnFabric("a network", checktest.Of("-d", "10.20.0.0/16", "-i", "eth1"), lines(default4+data4, "")),
		checktest.OnFabric("a network that only the default route reaches", checktest.Of("-d", "10.20.0.0/16"), nil, says("missing", "10.20.0.0/16", "a route", "none")),
		checktest.OnFabric("a route that is not up", checktest.Of("-d", "10.20.0.0/16"), lines(default4+gone4, ""), says("missing", "10.20.0.0/16", "a route", "none")),
		checktest.OnFabric("a black hole", checktest.Of("-d", "10.20.1.2"), lines(default4+hole4, ""), blackhole),
		checktest.Odd(checktest.OnFabric("unreadable", nil, func(n *fakesys.Node) {
			delete(n.Files, "proc/net/route")
			n.Files["proc/net/route/"] = ""
		}, checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /proc/net/route: is a directory"})),
		checktest.Odd(checktest.OnFabric("garbage, and the route is there", nil, lines("\xff\xfe\n"+default4+"eth0 x\n", "nonsense\n"))),
		checktest.Odd(checktest.OnFabric("garbage, and the route is not there", checktest.Of("-d", "10.20.0.0/16"), lines(default4+"eth0 x\n", ""), checks.Finding{Code: "net.route.unread", Severity: checks.Unknown,
			Device: checks.Device{Kind: "route", Name: "10.20.0.0/16"}, Message: name + ":  10.20.0.0/16: not checked: parse /proc/net/route: line 3: not a route"})),
		checktest.OnNode(fakesys.New(), "no network at all", nil, says("missing", "default", "a route", "none")),
	}
})

func TestNetRouteWords(t *testing.T) {
	t.Parallel()
	for _, words := range [][]string{checktest.Of("-d", "nfs1"), checktest.Of("-d", "10.0.0.0/33"), checktest.Of("-g", "router"), checktest.Of("eth0")} {
		if err := checks.Bind(&netRoute{To: toDefault}, words); err == nil {
			t.Errorf("%q is accepted", words)
		}
	}
}
