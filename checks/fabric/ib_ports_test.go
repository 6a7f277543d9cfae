package fabric

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/selftest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

const ibPastFile = "past/ib-ports.json"

// ibPast returns the history of an adapter of port 1; boot "" is the present one.
func ibPast(i int, layer, boot, more string) string {
	if boot == "" {
		boot = "658f832e-2c36-42e1-a29c-a17c2e3298d2"
	}
	return fmt.Sprintf(`{"version":1,"boot":%q,"devices":{"mlx5_%d 0000:2%d:00.0 b83f:d203:00c5:1a0%d %s":{"seen":1767322745%s}}}`, boot, i, i, i, layer, more)
}

// ibUnknown returns the finding that a port or an adapter could not be read.
func ibUnknown(check, kind, name string, i int, text string) checks.Finding {
	f := checktest.PortFinding(check, name, i, checks.Finding{Code: "ib.error", Severity: checks.Unknown}, "cannot be read: "+text)
	f.Got = ""
	if kind == "hca" {
		f = checktest.HCAFinding(check, name, i, checks.Finding{Code: "ib.error", Severity: checks.Unknown}, "cannot be read: "+text)
		f.Got = ""
	}
	return f
}

// h100Network returns the network figures of the platform of these nodes.
func h100Network() *checks.Platform {
	return &checks.Platform{Name: "HGX H100", NetworkPorts: 8, NetworkRate: 400}
}

// booting sets the uptime of a scenario's node, seconds.
func booting(s checktest.Scenario, seconds int) checktest.Scenario {
	s.Files = maps.Clone(s.Files)
	s.Files["proc/uptime"] = fmt.Sprintf("%d.00 1.00\n", seconds)
	return s
}

func TestIBPorts(t *testing.T) { checktest.Run(t, "check_ib_ports") }

var _ = checktest.Table("check_ib_ports", func(name string) (list []checktest.Scenario) {
	set := func(file, content string) func(*fakesys.Node) {
		return func(n *fakesys.Node) { n.Set("mlx5_3", file, content) }
	}
	state := func(state, phys string) func(*fakesys.Node) {
		return func(n *fakesys.Node) {
			n.Set("mlx5_3", "ports/1/state", state).Set("mlx5_3", "ports/1/phys_state", phys)
		}
	}
	says := func(severity checks.Severity, code string, remedy checks.Remedy, want, got, text string) checks.Finding {
		return checktest.PortFinding(name, "mlx5_3", 3, checks.Finding{Code: "ib.ports." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	down := func(code string, remedy checks.Remedy, got, text string) checks.Finding {
		return says(checks.Fail, code, remedy, "ACTIVE LinkUp", got, text)
	}
	gone := func(severity checks.Severity, text string) checks.Finding {
		return checktest.HCAFinding(name, "mlx5_3", 3, checks.Finding{Code: "ib.ports.gone", Severity: severity, Remedy: checks.PowerCycle}, text)
	}
	count := func(got, text string) checks.Finding {
		return checks.Finding{Code: "ib.ports.count", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Device: checks.Device{Kind: "ports"}, Want: "at least 8", Got: got, Message: name + ":  " + text}
	}
	halfRate := func(n *fakesys.Node) { n.HalfRate("mlx5_3") }
	remove := func(n *fakesys.Node) { n.Remove(fakesys.HCAAddress(3)) }
	unnamed := func(device string) checks.Finding {
		return checks.Finding{Code: "ib.unnamed", Severity: checks.Fail, Device: checks.Device{Kind: "port", Name: device}, Want: device, Got: "none", Message: name + ":  " + device + ": no such RDMA device or port"}
	}
	goneByName := unnamed("mlx5_3")
	goneByName.Remedy = checks.ReseatOrRMA
	const dir = "/sys/class/infiniband/mlx5_3/ports/1/"
	broken := func(s checktest.Scenario) checktest.Scenario {
		s.Broken = true
		return s
	}
	still := func(s checktest.Scenario) checktest.Scenario { // the text has all names in order
		s.Still = true
		return s
	}
	seven := "7 ports (mlx5_0:1 mlx5_1:1 mlx5_2:1 mlx5_4:1 mlx5_5:1 mlx5_6:1 mlx5_7:1), want at least 8"
	list = append(list,
		checktest.OnFabric("healthy", nil, nil).On(h100Network()),
		checktest.OnRoCE("healthy RoCE", nil, nil).On(h100Network()),
		checktest.OnFabric("as wanted", checktest.Of("-n", "8", "-r", "400", "-l", "ib"), nil).OrTable(map[string]any{"count": int64(8), "rate": int64(400), "layer": "ib"}),
		checktest.OnFabric("faster than wanted", checktest.Of("-r", "200", "mlx5_*"), nil).OrTable(map[string]any{"rate": int64(200), "devices": []any{"mlx5_*"}}),
		checktest.OnFabric("no cable", nil, func(n *fakesys.Node) { n.Down("mlx5_3") }, down("polling", checks.CheckCable, "DOWN Polling", "link down")),
		checktest.OnFabric("disabled", nil, state("1: DOWN", "3: Disabled"), down("disabled", checks.FixConfig, "DOWN Disabled", "the port is disabled")),
		checktest.OnRoCE("no cable of RoCE", nil, func(n *fakesys.Node) { n.Down("rocep3s0") },
			checktest.PortFinding(name, "rocep3s0", 3, checks.Finding{Code: "ib.ports.polling", Severity: checks.Fail, Remedy: checks.CheckCable, Want: "ACTIVE LinkUp", Got: "DOWN Disabled"}, "link down")),
		checktest.OnRoCE("a disabled RoCE interface", nil, func(n *fakesys.Node) { n.Down("rocep3s0").Set("eth13", "flags", "0x1002") },
			checktest.PortFinding(name, "rocep3s0", 3, checks.Finding{Code: "ib.ports.disabled", Severity: checks.Fail, Remedy: checks.FixConfig, Want: "ACTIVE LinkUp", Got: "DOWN Disabled"}, "the port is disabled")),
		checktest.OnFabric("no subnet manager", nil, state("2: INIT", "5: LinkUp"), down("init", checks.CheckFabric, "INIT LinkUp", "no subnet manager has configured the port")),
		checktest.OnFabric("armed", nil, state("3: ARMED", "5: LinkUp"), down("init", checks.CheckFabric, "ARMED LinkUp", "no subnet manager has configured the port")),
		checktest.OnFabric("link with errors", nil, state("4: ACTIVE", "6: LinkErrorRecovery"), down("down", checks.CheckCable, "ACTIVE LinkErrorRecovery", "the link is recovering from errors")),
		checktest.OnFabric("in training", nil, state("1: DOWN", "4: PortConfigurationTraining"), down("down", checks.CheckCable, "DOWN PortConfigurationTraining", "the link is training")),
		booting(checktest.OnFabric("a minute after a boot", nil, func(n *fakesys.Node) {
			n.Set("mlx5_3", "ports/1/state", "2: INIT").Set("mlx5_4", "ports/1/state", "1: DOWN").Set("mlx5_4", "ports/1/phys_state", "2: Polling")
		}, checks.Finding{Code: "ib.ports.boot", Severity: checks.Skip, Device: checks.Device{Kind: "ports"},
			Message: name + ":  2 ports not up yet 60 s after the boot, judged after 300 s: mlx5_3:1 (INIT LinkUp), mlx5_4:1 (DOWN Polling)"}), 60),
		booting(checktest.OnFabric("Omni-Path is offline, a minute after a boot", nil, state("1: DOWN", "9: <unknown>"), checks.Finding{Code: "ib.ports.boot", Severity: checks.Skip, Device: checks.Device{Kind: "ports"},
			Message: name + ":  1 port not up yet 60 s after the boot, judged after 300 s: mlx5_3:1 (DOWN <unknown>)"}), 60),
		booting(checktest.OnFabric("Omni-Path is offline five minutes after a boot", nil, state("1: DOWN", "9: <unknown>"), down("down", checks.CheckCable, "DOWN <unknown>", "the link is down")), 300),
		booting(checktest.OnFabric("disabled, a minute after a boot", nil, state("1: DOWN", "3: Disabled"), down("disabled", checks.FixConfig, "DOWN Disabled", "the port is disabled")), 60),
		booting(checktest.OnRoCE("an interface that is not configured yet", nil, func(n *fakesys.Node) {
			n.Set("rocep3s0", "ports/1/state", "1: DOWN").Set("rocep3s0", "ports/1/phys_state", "3: Disabled")
		}, checks.Finding{Code: "ib.ports.boot", Severity: checks.Skip, Device: checks.Device{Kind: "ports"},
			Message: name + ":  1 port not up yet 60 s after the boot, judged after 300 s: rocep3s0:1 (DOWN Disabled)"}), 60),
		booting(checktest.OnFabric("no subnet manager five minutes after a boot", nil, state("2: INIT", "5: LinkUp"), down("init", checks.CheckFabric, "INIT LinkUp", "no subnet manager has configured the port")), 300),
		checktest.OnFabric("in a test", nil, state("1: DOWN", "7: Phy Test"), down("down", checks.CheckCable, "DOWN Phy", "the link is under test")),
		checktest.OnFabric("a state of another driver", nil, state("1: DOWN", "9: Offline"), down("down", checks.CheckCable, "DOWN Offline", "the link is down")),
		checktest.OnFabric("no LID", nil, set("ports/1/lid", "0x0"), says(checks.Fail, "lid", checks.CheckFabric, "an address", "0x0", "LID")),
		checktest.OnFabric("the LID of a port without one", nil, set("ports/1/lid", "0xffff"), says(checks.Fail, "lid", checks.CheckFabric, "an address", "0xffff", "LID")),
		checktest.OnFabric("no LID of a subnet manager", nil, set("ports/1/sm_lid", "0x0"), says(checks.Fail, "lid", checks.CheckFabric, "an address", "0x0", "LID of the subnet manager")),
		checktest.OnFabric("a driver without LIDs", nil, set("ports/1/lid", "-")),

		checktest.OnFabric("all lanes at half of the others' rate, unknown platform: another network", nil, set("ports/1/rate", "200 Gb/sec (4X HDR)"),
			says(checks.Warn, "rate", checks.CheckCable, "400 Gb/s", "200 Gb/s (4X HDR)", "rate is lower than on the other ports")),
		checktest.OnFabric("the same where the platform has eight ports", nil, set("ports/1/rate", "200 Gb/sec (4X HDR)"),
			says(checks.Fail, "rate", checks.CheckCable, "400 Gb/s", "200 Gb/s (4X HDR)", "rate is lower than on the other ports")).On(h100Network()),
		checktest.OnFabric("half of the others' lanes, unknown platform", nil, halfRate,
			says(checks.Fail, "rate", checks.CheckCable, "400 Gb/s", "200 Gb/s (2X NDR)", "rate is lower than on the other ports")),
		checktest.OnFabric("half of the others' rate", nil, halfRate, says(checks.Fail, "rate", checks.CheckCable, "400 Gb/s", "200 Gb/s (2X NDR)", "rate is lower than on the other ports")).On(h100Network()),
		checktest.OnFabric("two at half of the others' rate", nil, func(n *fakesys.Node) { n.HalfRate("mlx5_3").HalfRate("mlx5_4") },
			says(checks.Warn, "rate", checks.CheckCable, "400 Gb/s", "200 Gb/s (2X NDR)", "rate is lower than on the other ports"),
			checktest.PortFinding(name, "mlx5_4", 4, checks.Finding{Code: "ib.ports.rate", Severity: checks.Warn, Remedy: checks.CheckCable, Want: "400 Gb/s", Got: "200 Gb/s (2X NDR)"}, "rate is lower than on the other ports")),
		checktest.OnFabric("half of its earlier rate", nil, func(n *fakesys.Node) { n.Set("mlx5_3", "board_id", "MT_0000000891").HalfRate("mlx5_3") },
			says(checks.Fail, "rate", checks.CheckCable, "400 Gb/s", "200 Gb/s (2X NDR)", "rate is lower than earlier in this boot")).
			Holding(ibPastFile, ibPast(3, "InfiniBand", "", `,"series":{"1":[[1767322745,400]]}`)),
		checktest.OnFabric("half of its rate in another boot", nil, func(n *fakesys.Node) { n.Set("mlx5_3", "board_id", "MT_0000000891").HalfRate("mlx5_3") }).
			Holding(ibPastFile, ibPast(3, "InfiniBand", "another", `,"series":{"1":[[1767322745,400]]}`)),
		checktest.OnFabric("less than wanted", checktest.Of("-r", "400"), halfRate, says(checks.Fail, "rate", checks.CheckCable, "at least 400 Gb/s", "200 Gb/s (2X NDR)", "rate")),
		checktest.AsIs(checktest.OnFabric("all less than wanted: the line is wrong", checktest.Of("-r", "800"), nil, onEach(func(i int) checks.Finding {
			return checktest.PortFinding(name, fmt.Sprintf("mlx5_%d", i), i, checks.Finding{Code: "ib.ports.rate", Severity: checks.Fail, Remedy: checks.FixConfig, Want: "at least 800 Gb/s", Got: "400 Gb/s (4X NDR)"}, "rate")
		})...)),
		checktest.OnFabric("less than the platform", nil, func(n *fakesys.Node) { n.Set("mlx5_3", "board_id", "MT_0000000000").HalfRate("mlx5_3") },
			says(checks.Warn, "platform", "", "400 Gb/s", "200 Gb/s", "rate is lower than on HGX H100")).On(h100Network()),
		checktest.OnFabric("all less than the platform", nil, func(n *fakesys.Node) {
			for i := range 8 {
				n.HalfRate(fmt.Sprintf("mlx5_%d", i))
			}
		}, checks.Finding{Code: "ib.ports.platform", Severity: checks.Warn, Device: checks.Device{Kind: "ports"}, Want: "400 Gb/s", Got: "200 Gb/s",
			Message: name + ":  no port has the rate of HGX H100, want 400 Gb/s, got 200 Gb/s: mlx5_0:1 mlx5_1:1 mlx5_2:1 mlx5_3:1 mlx5_4:1 mlx5_5:1 mlx5_6:1 mlx5_7:1"}).On(h100Network()),

		checktest.OnFabric("fewer than wanted", checktest.Of("-n", "8"), remove, count("7", seven)),
		still(checktest.OnFabric("fewer than wanted, one is not an RDMA device", checktest.Of("-n", "8"), noRDMADevice, count("7", seven+"; without a port: 0000:23:00.0"),
			lacksFinding(name, "ConnectX-7 is on the PCI bus, but is not an RDMA device; its driver is mlx5_core"))),
		checktest.OnFabric("one is not an RDMA device", nil, noRDMADevice, lacksFinding(name, "ConnectX-7 is on the PCI bus, but is not an RDMA device; its driver is mlx5_core")),
		checktest.OnFabric("one has no driver", nil, func(n *fakesys.Node) {
			noRDMADevice(n)
			delete(n.Links, n.Dir(fakesys.HCAAddress(3))+"/driver")
		}, lacksFinding(name, "ConnectX-7 is on the PCI bus, but is not an RDMA device; it has no driver")),
		checktest.OnFabric("an unknown InfiniBand adapter", nil, func(n *fakesys.Node) {
			noRDMADevice(n)
			n.Set(fakesys.HCAAddress(3), "device", "0x10ff")
		}, lacksFinding(name, "the InfiniBand adapter 15b3:10ff is on the PCI bus, but is not an RDMA device; its driver is mlx5_core")),
		checktest.OnFabric("one is passed to a virtual machine", nil, func(n *fakesys.Node) {
			noRDMADevice(n)
			n.Links[n.Dir(fakesys.HCAAddress(3))+"/driver"] = "../../../../../../bus/pci/drivers/vfio-pci"
		}).Holding(ibPastFile, ibPast(3, "InfiniBand", "", `,"series":{"1":[[1767322745,400]]}`)),
		checktest.OnFabric("one is missing", nil, remove, gone(checks.Fail, "RDMA device is missing, present earlier in this boot; not on the PCI bus")).
			Holding(ibPastFile, ibPast(3, "InfiniBand", "", `,"series":{"1":[[1767322745,400]]}`)),
		checktest.OnFabric("one is missing since a boot", nil, remove, gone(checks.Warn, "RDMA device is missing, present before the last boot; not on the PCI bus")).
			Holding(ibPastFile, ibPast(3, "InfiniBand", "another", `,"series":{"1":[[1767322745,400]]}`)),
		checktest.OnFabric("one is missing, on a line about Ethernet", checktest.Of("-l", "eth"), remove, checks.Finding{Code: "ib.left", Severity: checks.Skip, Message: name + ":  no RDMA port of this node carries jobs' traffic over Ethernet"}).
			Holding(ibPastFile, ibPast(3, "InfiniBand", "", `,"series":{"1":[[1767322745,400]]}`)),
		checktest.OnFabric("one is missing for long", nil, remove).Holding(ibPastFile, `{"version":1,"boot":"x","devices":{"mlx5_3 0000:23:00.0 b83f:d203:00c5:1a03 InfiniBand":{"seen":1760000000}}}`),
		checktest.OnFabric("one has another name and address", nil, nil).Holding(ibPastFile,
			`{"version":1,"boot":"658f832e-2c36-42e1-a29c-a17c2e3298d2","devices":{"ibp35s0 0000:83:00.0 b83f:d203:00c5:1a03 InfiniBand":{"seen":1767322745,"series":{"1":[[1767322745,400]]}}}}`),
		checktest.OnFabric("a history of another format", nil, nil).Holding(ibPastFile, `{"version":1,"boot":"658f832e-2c36-42e1-a29c-a17c2e3298d2","devices":{"x":{"seen":1767322745}}}`),
		checktest.OnFabric("one is in Ethernet mode", nil, set("ports/1/link_layer", "Ethernet"),
			checktest.HCAFinding(name, "mlx5_3", 3, checks.Finding{Code: "ib.ports.layer", Severity: checks.Warn, Remedy: checks.FixConfig, Want: "InfiniBand", Got: "Ethernet"}, "link layer has changed")).
			Holding(ibPastFile, ibPast(3, "InfiniBand", "another", "")),
		broken(checktest.OnFabric("a damaged history", nil, nil, checks.Finding{Code: "fabric.past", Severity: checks.Warn, Message: name + ":  /past/ib-ports.json is damaged; a new history begins"}).Holding(ibPastFile, `{"version`)),

		checktest.OnFabric("each named port has to pass", checktest.Of("mlx5_0", "mlx5_3"), func(n *fakesys.Node) { n.Down("mlx5_3") }, down("polling", checks.CheckCable, "DOWN Polling", "link down")),
		checktest.OnFabric("the named port is healthy", checktest.Of("mlx5_0:1"), func(n *fakesys.Node) { n.Down("mlx5_3") }),
		checktest.OnFabric("a device that does not exist", checktest.Of("mlx5_9"), nil, unnamed("mlx5_9")),
		checktest.AsIs(checktest.OnFabric("one of eight named devices is missing", checktest.Of("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"), remove, goneByName)),
		checktest.OnFabric("one of another layer", checktest.Of("-l", "InfiniBand", "mlx5_3"), set("ports/1/link_layer", "Ethernet"), says(checks.Fail, "layer", checks.FixConfig, "InfiniBand", "Ethernet", "link layer")),
		checktest.OnFabric("an invalid layer", checktest.Of("-l", "token-ring"), nil, checks.Finding{Code: "config.value", Severity: checks.Unknown, Remedy: checks.FixConfig, Want: "ib or eth", Got: "token-ring", Message: name + `:  layer "token-ring", want ib or eth`}),

		broken(checktest.OnFabric("unreadable state", nil, set("ports/1/state/", ""), ibUnknown(name, "port", "mlx5_3", 3, "read "+dir+"state: is a directory"))),
		broken(checktest.OnFabric("unreadable state of a port without a link", nil, func(n *fakesys.Node) { n.Down("mlx5_3").Set("mlx5_3", "ports/1/state/", "") },
			ibUnknown(name, "port", "mlx5_3", 3, "read "+dir+"state: is a directory"), down("polling", checks.CheckCable, "Polling", "link down"))),
		broken(checktest.OnFabric("unreadable state of a disabled port", nil, func(n *fakesys.Node) {
			n.Set("mlx5_3", "ports/1/state/", "").Set("mlx5_3", "ports/1/phys_state", "3: Disabled")
		}, ibUnknown(name, "port", "mlx5_3", 3, "read "+dir+"state: is a directory"), down("disabled", checks.FixConfig, "Disabled", "the port is disabled"))),
		broken(checktest.OnFabric("down, and the state of the link cannot be read", nil, func(n *fakesys.Node) { n.Down("mlx5_3").Set("mlx5_3", "ports/1/phys_state/", "") },
			ibUnknown(name, "port", "mlx5_3", 3, "read "+dir+"phys_state: is a directory"), down("down", checks.CheckCable, "DOWN", "the link is down"))),
		broken(checktest.OnFabric("no subnet manager, and the state of the link is missing", nil, func(n *fakesys.Node) {
			n.Set("mlx5_3", "ports/1/state", "2: INIT").Set("mlx5_3", "ports/1/phys_state", "-")
		}, ibUnknown(name, "port", "mlx5_3", 3, "read "+dir+"phys_state: no such file or directory"), down("init", checks.CheckFabric, "INIT", "no subnet manager has configured the port"))),
		checktest.OnFabric("down, and the state of the link is empty", nil, state("1: DOWN", ""), down("down", checks.CheckCable, "DOWN", "the link is down")),
		broken(checktest.OnFabric("active, and the state of the link cannot be read", nil, set("ports/1/phys_state/", ""), ibUnknown(name, "port", "mlx5_3", 3, "read "+dir+"phys_state: is a directory"))),
		broken(booting(checktest.OnFabric("states that cannot be read, a minute after a boot", nil, func(n *fakesys.Node) {
			n.Down("mlx5_3").Set("mlx5_3", "ports/1/phys_state/", "").Down("mlx5_4").Set("mlx5_4", "ports/1/state/", "")
		}, ibUnknown(name, "port", "mlx5_3", 3, "read "+dir+"phys_state: is a directory"), ibUnknown(name, "port", "mlx5_4", 4, "read /sys/class/infiniband/mlx5_4/ports/1/state: is a directory"),
			checks.Finding{Code: "ib.ports.boot", Severity: checks.Skip, Device: checks.Device{Kind: "ports"},
				Message: name + ":  2 ports not up yet 60 s after the boot, judged after 300 s: mlx5_3:1 (DOWN), mlx5_4:1 (Polling)"}), 60)),
		broken(checktest.OnFabric("unreadable LID of a port that is down", nil, func(n *fakesys.Node) { n.Down("mlx5_3").Set("mlx5_3", "ports/1/lid/", "") },
			ibUnknown(name, "port", "mlx5_3", 3, "read "+dir+"lid: is a directory"), down("polling", checks.CheckCable, "DOWN Polling", "link down"))),
		broken(checktest.OnFabric("garbage for a state", nil, state("\xff\x00", "\x01"), ibUnknown(name, "port", "mlx5_3", 3, `unknown state "" or phys_state ""`))),
		broken(checktest.OnFabric("unknown states", nil, state("4: FINE", "5: Well"), ibUnknown(name, "port", "mlx5_3", 3, `unknown state "FINE" or phys_state "Well"`))),
		broken(checktest.OnFabric("an unknown state with a link", nil, state("9: FINE", "5: LinkUp"), ibUnknown(name, "port", "mlx5_3", 3, `unknown state "FINE" or phys_state "LinkUp"`))),
		broken(checktest.OnFabric("an unknown state of the link", nil, state("4: ACTIVE", "5: Well"), ibUnknown(name, "port", "mlx5_3", 3, `unknown state "ACTIVE" or phys_state "Well"`))),
		checktest.OnFabric("an unknown state without a link", nil, state("9: FINE", "2: Polling"), down("polling", checks.CheckCable, "FINE Polling", "link down")),
		checktest.OnFabric("the kernel does not know the state of a link", nil, state("4: ACTIVE", "0: <unknown>"), down("down", checks.CheckCable, "ACTIVE <unknown>", "the link is down")),
		broken(checktest.OnFabric("an impossible rate", nil, set("ports/1/rate", "999999 Gb/sec (4X NDR)"), ibUnknown(name, "port", "mlx5_3", 3, `rate "999999": not a rate`))),
		broken(checktest.OnFabric("garbage for a rate", nil, set("ports/1/rate", "fast"), ibUnknown(name, "port", "mlx5_3", 3, `rate "fast": not a rate`))),
		broken(checktest.OnFabric("garbage for a LID", nil, set("ports/1/lid", "0xzz"), ibUnknown(name, "port", "mlx5_3", 3, `LID "0xzz": not a number`))),
		broken(checktest.OnFabric("removed while it was read", nil, set("ports/1/state", "-"), ibUnknown(name, "port", "mlx5_3", 3, "read "+dir+"state: no such file or directory"))),
		broken(checktest.OnFabric("too few, one of them unreadable", checktest.Of("-n", "8"), func(n *fakesys.Node) {
			maps.DeleteFunc(n.Files, func(f, _ string) bool {
				return len(f) > len(n.Dir("mlx5_3"))+6 && f[:len(n.Dir("mlx5_3"))+6] == n.Dir("mlx5_3")+"/ports"
			})
			n.Set("mlx5_3", "ports", "")
		}, ibUnknown(name, "hca", "mlx5_3", 3, "read /sys/class/infiniband/mlx5_3/ports: not a directory"))),
		ethernetOnly(checks.Finding{Code: "ib.none", Severity: checks.Skip, Message: name + ":  no RDMA device on this node"}),
		ethernetOnly(unnamed("mlx5_0"), "mlx5_0"),
		ethernetOnly(count("0", "0 ports, want at least 8"), "-n", "8"),
	)
	list = append(list, checktest.OnNode(opaAlone(), "Omni-Path without an RDMA device", nil, opaLacks(name)))
	list = append(list, dualPorts()...)
	list = append(list, frontEnds()...)
	list = append(list, otherNodes()...)
	return list
})

// opaAlone returns a node with an Omni-Path adapter without an RDMA device.
func opaAlone() *fakesys.Node {
	n := fakesys.Kinds()["omni-path"]
	noRoCE(n, "hfi1_0")
	n.Files["proc/modules"] = ""
	delete(n.Files, "sys/class/infiniband_mad/abi_version")
	delete(n.Files, "sys/class/infiniband_verbs/abi_version")
	return n
}

// opaLacks returns the finding about it.
func opaLacks(check string) checks.Finding {
	return checktest.About(check, checks.Device{Kind: "hca", PCI: "0000:c0:00.0"}, checks.Finding{Code: "ib.lacking", Severity: checks.Fail, Remedy: checks.ReseatOrRMA}, "Omni-Path 100 is on the PCI bus, but is not an RDMA device; its driver is hfi1")
}

// An impossible rate is not stored as a rate of this boot.
func TestRateOfGarbage(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	sys := fakesys.DGXH100()
	if err := sys.Write(root); err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		rate string
		want checks.Severity
	}{{"400 Gb/sec (4X NDR)", checks.OK}, {"999999 Gb/sec (4X NDR)", checks.Unknown}, {"400 Gb/sec (4X NDR)", checks.OK}, {"200 Gb/sec (2X NDR)", checks.Fail}} {
		for name, text := range map[string]string{"proc/uptime": fmt.Sprintf("%d.00 1.00\n", 323045+300*i), sys.Dir("mlx5_3") + "/ports/1/rate": step.rate + "\n"} {
			if err := selftest.Place(root, name, text); err != nil {
				t.Fatal(err)
			}
		}
		env := &checks.Env{Host: probe.NewHost(root)}
		env.Host.SetPast("/past")
		if got := (&ibPorts{}).Run(t.Context(), env); checks.Worst(got) != step.want {
			t.Errorf("%s: %v, want %v", step.rate, got, step.want)
		}
	}
}

// ethernetOnly returns a line on a node without an RDMA device.
func ethernetOnly(want checks.Finding, words ...string) checktest.Scenario {
	n := fakesys.EthernetOnly()
	return checktest.OnNode(n, fmt.Sprintf("no RDMA device %v", words), words, want)
}

// A run finds the history of the one before: an adapter that disappears is a fault from then on.
func TestPortsOverRuns(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	n := fakesys.DGXH100()
	if err := n.Write(root); err != nil {
		t.Fatal(err)
	}
	run := func() []checks.Finding {
		env := &checks.Env{Host: probe.NewHost(root)}
		env.Host.SetPast("/past")
		return (&ibPorts{}).Run(t.Context(), env)
	}
	if got := run(); got != nil {
		t.Fatalf("healthy: %v", got)
	}
	n.Remove(fakesys.HCAAddress(3))
	second := t.TempDir()
	if err := n.Write(second); err != nil {
		t.Fatal(err)
	}
	env := &checks.Env{Host: probe.NewHost(second)}
	env.Host.SetPast("/past")
	var kept checks.HistoryFile
	old := probe.NewHost(root)
	old.SetPast("/past")
	if err := old.Recall("ib-ports", &kept); err != nil {
		t.Fatal(err)
	}
	if len(kept.Devices) != 8 {
		t.Errorf("%d adapters are kept, want 8", len(kept.Devices))
	}
	if err := env.Host.Keep("ib-ports", kept); err != nil {
		t.Fatal(err)
	}
	got := (&ibPorts{}).Run(t.Context(), env)
	if len(got) != 1 || got[0].Code != "ib.ports.gone" || got[0].Severity != checks.Fail || got[0].Device.PCI != fakesys.HCAAddress(3) {
		t.Errorf("one is gone: %v", got)
	}
}

// Thousands of virtual functions cost little, and are not ports of the node.
func TestPortsManyVFs(t *testing.T) {
	t.Parallel()
	n := fakesys.DGXH100()
	for i := range 2000 {
		name := fmt.Sprintf("mlx5_v%d", i)
		address := fmt.Sprintf("0000:%02x:%02x.%d", 0x80+i/256, i/8%32, i%8)
		dir := "sys/devices/pci0000:80/" + address
		n.Files[dir+"/class"], n.Files[dir+"/vendor"], n.Files[dir+"/device"] = "0x020700\n", "0x15b3\n", "0x101e\n"
		n.Links[dir+"/physfn"] = "../../pci0000:20/0000:20:00.0"
		n.Links["sys/bus/pci/devices/"+address] = "../../../" + dir[4:]
		n.Files[dir+"/infiniband/"+name+"/ports/1/state"] = "1: DOWN\n"
		n.Links[dir+"/infiniband/"+name+"/device"] = "../../../" + address
		n.Links["sys/class/infiniband/"+name] = "../../" + dir[4:] + "/infiniband/" + name
	}
	root := t.TempDir()
	if err := n.Write(root); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for _, c := range []checks.Check{&ibPorts{}, &ibCount{}, &ibModules{}, &ibFirmware{}, &ibPKey{Index: -1}, &ibGID{Index: -1}} {
		if got := c.Run(t.Context(), &checks.Env{Host: probe.NewHost(root)}); len(got) > 0 {
			t.Errorf("%T: %d findings: %v", c, len(got), got[0])
		}
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("took %v", took)
	}
	if got := (&ibPorts{Devices: []string{"mlx5_v77"}}).Run(t.Context(), &checks.Env{Host: probe.NewHost(root)}); len(got) == 0 || got[0].Device.Name != "mlx5_v77:1" {
		t.Errorf("one that is named: %v", got)
	}
}

// Names that are not text, as some file systems and drivers produce.
func TestPortsNames(t *testing.T) {
	t.Parallel()
	n := fakesys.DGXH100()
	n.AddHCA(fakesys.HCA{PCI: fakesys.PCI{Address: "0000:c1:00.0", ID: "15b3:1021", Driver: "mlx5_core"}, Name: "mlx5_\xff\n", Layer: "InfiniBand", Rate: "400 Gb/sec (4X NDR)", Index: 0x77})
	root := t.TempDir()
	if err := n.Write(root); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		env := &checks.Env{Host: probe.NewHost(root)}
		env.Host.SetPast("/past")
		if got := (&ibPorts{}).Run(t.Context(), env); len(got) > 0 {
			t.Errorf("%v", got)
		}
	}
}

// The prolog of a job waits for the ports after a boot, and refuses the job if they do not come
// up; the epilog is like any other run.
func TestIBPortsBeforeAJob(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		job  checks.Job
		up   bool // the port comes up while the check waits
		want checks.Severity
	}{
		"prolog":                    {want: checks.Fail},
		"prolog, the port comes up": {up: true, want: checks.OK},
		"epilog":                    {job: checks.Job{Ended: true}, want: checks.Skip},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sys := fakesys.DGXH100().Set("mlx5_3", "ports/1/state", "2: INIT")
			sys.Files["proc/uptime"] = "60.00 1.00\n"
			root := t.TempDir()
			if err := sys.Write(root); err != nil {
				t.Fatal(err)
			}
			looks := 0
			env := &checks.Env{Host: probe.NewHost(root), Job: &c.job}
			left := 3 * time.Second
			if c.up {
				left = time.Minute
			}
			env.Doing = func(what string) {
				if looks++; c.up && what == "read /sys/class/infiniband/mlx5_3" && looks > 12 {
					if err := selftest.Place(root, sys.Port("mlx5_3")+"state", "4: ACTIVE\n"); err != nil {
						t.Error(err)
					}
				}
			}
			findings := (&ibPorts{}).Run(checks.WithDeadline(t.Context(), time.Now().Add(left)), env)
			if got := checks.Worst(findings); got != c.want {
				t.Errorf("%v: %v, want %v", findings, got, c.want)
			}
			if c.want == checks.Fail && !strings.Contains(findings[0].Message, "no subnet manager has configured the port; the node booted 60 s ago") {
				t.Error(findings[0].Message)
			}
		})
	}
}
