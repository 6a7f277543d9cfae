package checks

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

const ibPastFile = "past/ib-ports.json"

// ibPast is what earlier runs have kept of an adapter of port 1; boot "" is this one.
func ibPast(i int, layer, boot, more string) string {
	if boot == "" {
		boot = "658f832e-2c36-42e1-a29c-a17c2e3298d2"
	}
	return fmt.Sprintf(`{"version":1,"boot":%q,"devices":{"mlx5_%d 0000:2%d:00.0 b83f:d203:00c5:1a0%d %s":{"seen":1767322745%s}}}`, boot, i, i, i, layer, more)
}

// ibUnknown is that a port or an adapter of the nodes could not be read.
func ibUnknown(check, kind, name string, i int, text string) Finding {
	f := portFinding(check, name, i, Finding{Code: "ib.error", Severity: Unknown}, "could not tell: "+text)
	f.Got = ""
	if kind == "hca" {
		f = hcaFinding(check, name, i, Finding{Code: "ib.error", Severity: Unknown}, "could not tell: "+text)
		f.Got = ""
	}
	return f
}

// h100Network is what is known of the network of such nodes.
func h100Network() *Platform { return &Platform{Name: "HGX H100", NetworkPorts: 8, NetworkRate: 400} }

// booting has the node of a scenario be up for so many seconds.
func booting(s scenario, seconds int) scenario {
	s.files = maps.Clone(s.files)
	s.files["proc/uptime"] = fmt.Sprintf("%d.00 1.00\n", seconds)
	return s
}

func TestIBPorts(t *testing.T) { testCheck(t, "check_ib_ports") }

var _ = table("check_ib_ports", func(name string) (list []scenario) {
	set := func(file, content string) func(*fakesys.Node) {
		return func(n *fakesys.Node) { n.Set("mlx5_3", file, content) }
	}
	state := func(state, phys string) func(*fakesys.Node) {
		return func(n *fakesys.Node) {
			n.Set("mlx5_3", "ports/1/state", state).Set("mlx5_3", "ports/1/phys_state", phys)
		}
	}
	says := func(severity Severity, code string, remedy Remedy, want, got, text string) Finding {
		return portFinding(name, "mlx5_3", 3, Finding{Code: "ib.ports." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	down := func(code string, remedy Remedy, got, text string) Finding {
		return says(Fail, code, remedy, "ACTIVE LinkUp", got, text)
	}
	gone := func(severity Severity, text string) Finding {
		return hcaFinding(name, "mlx5_3", 3, Finding{Code: "ib.ports.gone", Severity: severity, Remedy: ReseatOrRMA}, text)
	}
	count := func(got, text string) Finding {
		return Finding{Code: "ib.ports.count", Severity: Fail, Remedy: ReseatOrRMA, Device: Device{Kind: "ports"}, Want: "at least 8", Got: got, Message: name + ":  " + text}
	}
	halfRate := func(n *fakesys.Node) { n.HalfRate("mlx5_3") }
	remove := func(n *fakesys.Node) { n.Remove(fakesys.HCAAddress(3)) }
	unnamed := func(device string) Finding {
		return Finding{Code: "ib.unnamed", Severity: Fail, Device: Device{Kind: "port", Name: device}, Want: device, Got: "none", Message: name + ":  " + device + ": no such RDMA device or port"}
	}
	const dir = "/sys/class/infiniband/mlx5_3/ports/1/"
	broken := func(s scenario) scenario {
		s.broken = true
		return s
	}
	still := func(s scenario) scenario { // the text has all names in order
		s.still = true
		return s
	}
	seven := "7 ports (mlx5_0:1 mlx5_1:1 mlx5_2:1 mlx5_4:1 mlx5_5:1 mlx5_6:1 mlx5_7:1), want at least 8"
	list = append(list,
		onFabric("healthy", nil, nil).on(h100Network()),
		onRoCE("healthy RoCE", nil, nil).on(h100Network()),
		onFabric("as wanted", of("-n", "8", "-r", "400", "-l", "ib"), nil).orTable(map[string]any{"count": int64(8), "rate": int64(400), "layer": "ib"}),
		onFabric("faster than wanted", of("-r", "200", "mlx5_*"), nil).orTable(map[string]any{"rate": int64(200), "devices": []any{"mlx5_*"}}),
		onFabric("no cable", nil, func(n *fakesys.Node) { n.Down("mlx5_3") }, down("polling", CheckCable, "DOWN Polling", "no link: the cable or the far end")),
		onFabric("switched off", nil, state("1: DOWN", "3: Disabled"), down("disabled", FixConfig, "DOWN Disabled", "the port is switched off")),
		onRoCE("no cable of RoCE", nil, func(n *fakesys.Node) { n.Down("rocep3s0") },
			portFinding(name, "rocep3s0", 3, Finding{Code: "ib.ports.polling", Severity: Fail, Remedy: CheckCable, Want: "ACTIVE LinkUp", Got: "DOWN Disabled"}, "no link: the cable or the far end")),
		onRoCE("the interface of RoCE is switched off", nil, func(n *fakesys.Node) { n.Down("rocep3s0").Set("eth13", "flags", "0x1002") },
			portFinding(name, "rocep3s0", 3, Finding{Code: "ib.ports.disabled", Severity: Fail, Remedy: FixConfig, Want: "ACTIVE LinkUp", Got: "DOWN Disabled"}, "the port is switched off")),
		onFabric("no subnet manager", nil, state("2: INIT", "5: LinkUp"), down("init", CheckFabric, "INIT LinkUp", "no subnet manager has set up the port")),
		onFabric("armed", nil, state("3: ARMED", "5: LinkUp"), down("init", CheckFabric, "ARMED LinkUp", "no subnet manager has set up the port")),
		onFabric("link with errors", nil, state("4: ACTIVE", "6: LinkErrorRecovery"), down("down", CheckCable, "ACTIVE LinkErrorRecovery", "the link is recovering from errors")),
		onFabric("in training", nil, state("1: DOWN", "4: PortConfigurationTraining"), down("down", CheckCable, "DOWN PortConfigurationTraining", "the link is training")),
		booting(onFabric("a minute after a boot", nil, func(n *fakesys.Node) {
			n.Set("mlx5_3", "ports/1/state", "2: INIT").Set("mlx5_4", "ports/1/state", "1: DOWN").Set("mlx5_4", "ports/1/phys_state", "2: Polling")
		}, Finding{Code: "ib.ports.boot", Severity: Skip, Device: Device{Kind: "ports"},
			Message: name + ":  2 ports not up yet, 60 s after the boot, judged from 300 s on: mlx5_3:1 (INIT LinkUp), mlx5_4:1 (DOWN Polling)"}), 60),
		booting(onFabric("switched off, a minute after a boot", nil, state("1: DOWN", "3: Disabled"), down("disabled", FixConfig, "DOWN Disabled", "the port is switched off")), 60),
		booting(onRoCE("an interface that is not configured yet", nil, func(n *fakesys.Node) {
			n.Set("rocep3s0", "ports/1/state", "1: DOWN").Set("rocep3s0", "ports/1/phys_state", "3: Disabled")
		}, Finding{Code: "ib.ports.boot", Severity: Skip, Device: Device{Kind: "ports"},
			Message: name + ":  1 port not up yet, 60 s after the boot, judged from 300 s on: rocep3s0:1 (DOWN Disabled)"}), 60),
		booting(onFabric("no subnet manager five minutes after a boot", nil, state("2: INIT", "5: LinkUp"), down("init", CheckFabric, "INIT LinkUp", "no subnet manager has set up the port")), 300),
		onFabric("in a test", nil, state("1: DOWN", "7: Phy Test"), down("down", CheckCable, "DOWN Phy", "the link is under test")),
		onFabric("a state of another driver", nil, state("1: DOWN", "9: Offline"), down("down", CheckCable, "DOWN Offline", "the link is down")),
		onFabric("no LID", nil, set("ports/1/lid", "0x0"), says(Fail, "lid", CheckFabric, "one", "0x0", "LID")),
		onFabric("the LID of a port that has none", nil, set("ports/1/lid", "0xffff"), says(Fail, "lid", CheckFabric, "one", "0xffff", "LID")),
		onFabric("no LID of a subnet manager", nil, set("ports/1/sm_lid", "0x0"), says(Fail, "lid", CheckFabric, "one", "0x0", "LID of the subnet manager")),
		onFabric("a driver that tells no LID", nil, set("ports/1/lid", "-")),

		onFabric("all lanes at half of the others' rate, and nothing is known of the platform: another network", nil, set("ports/1/rate", "200 Gb/sec (4X HDR)"),
			says(Warn, "rate", CheckCable, "400 Gb/s", "200 Gb/s (4X HDR)", "rate is lower than that of the other ports")),
		onFabric("the same where the platform has eight ports", nil, set("ports/1/rate", "200 Gb/sec (4X HDR)"),
			says(Fail, "rate", CheckCable, "400 Gb/s", "200 Gb/s (4X HDR)", "rate is lower than that of the other ports")).on(h100Network()),
		onFabric("half of the others' lanes, and nothing is known of the platform", nil, halfRate,
			says(Fail, "rate", CheckCable, "400 Gb/s", "200 Gb/s (2X NDR)", "rate is lower than that of the other ports")),
		onFabric("half of the others' rate", nil, halfRate, says(Fail, "rate", CheckCable, "400 Gb/s", "200 Gb/s (2X NDR)", "rate is lower than that of the other ports")).on(h100Network()),
		onFabric("two at half of the others' rate", nil, func(n *fakesys.Node) { n.HalfRate("mlx5_3").HalfRate("mlx5_4") },
			says(Warn, "rate", CheckCable, "400 Gb/s", "200 Gb/s (2X NDR)", "rate is lower than that of the other ports"),
			portFinding(name, "mlx5_4", 4, Finding{Code: "ib.ports.rate", Severity: Warn, Remedy: CheckCable, Want: "400 Gb/s", Got: "200 Gb/s (2X NDR)"}, "rate is lower than that of the other ports")),
		onFabric("half of its rate of before", nil, func(n *fakesys.Node) { n.Set("mlx5_3", "board_id", "MT_0000000891").HalfRate("mlx5_3") },
			says(Fail, "rate", CheckCable, "400 Gb/s", "200 Gb/s (2X NDR)", "rate is lower than it was earlier in this boot")).
			holding(ibPastFile, ibPast(3, "InfiniBand", "", `,"series":{"1":[[1767322745,400]]}`)),
		onFabric("half of its rate in another boot", nil, func(n *fakesys.Node) { n.Set("mlx5_3", "board_id", "MT_0000000891").HalfRate("mlx5_3") }).
			holding(ibPastFile, ibPast(3, "InfiniBand", "another", `,"series":{"1":[[1767322745,400]]}`)),
		onFabric("less than wanted", of("-r", "400"), halfRate, says(Fail, "rate", CheckCable, "at least 400 Gb/s", "200 Gb/s (2X NDR)", "rate")),
		onFabric("less than the platform", nil, func(n *fakesys.Node) { n.Set("mlx5_3", "board_id", "MT_0000000000").HalfRate("mlx5_3") },
			says(Warn, "platform", "", "400 Gb/s", "200 Gb/s", "rate is lower than that of HGX H100")).on(h100Network()),
		onFabric("all less than the platform", nil, func(n *fakesys.Node) {
			for i := range 8 {
				n.HalfRate(fmt.Sprintf("mlx5_%d", i))
			}
		}, Finding{Code: "ib.ports.platform", Severity: Warn, Device: Device{Kind: "ports"}, Want: "400 Gb/s", Got: "200 Gb/s",
			Message: name + ":  no port has the rate of those of HGX H100, want 400 Gb/s, got 200 Gb/s: mlx5_0:1 mlx5_1:1 mlx5_2:1 mlx5_3:1 mlx5_4:1 mlx5_5:1 mlx5_6:1 mlx5_7:1"}).on(h100Network()),

		onFabric("fewer than wanted", of("-n", "8"), remove, count("7", seven)),
		still(onFabric("fewer than wanted, one is no RDMA device", of("-n", "8"), noRDMADevice, count("7", seven+"; without a port: 0000:23:00.0"),
			lacksFinding(name, "ConnectX-7 is on the PCI bus, but no RDMA device; its driver is mlx5_core"))),
		onFabric("one is no RDMA device", nil, noRDMADevice, lacksFinding(name, "ConnectX-7 is on the PCI bus, but no RDMA device; its driver is mlx5_core")),
		onFabric("one has no driver", nil, func(n *fakesys.Node) {
			noRDMADevice(n)
			delete(n.Links, n.Dir(fakesys.HCAAddress(3))+"/driver")
		}, lacksFinding(name, "ConnectX-7 is on the PCI bus, but no RDMA device; no driver has it")),
		onFabric("an unknown InfiniBand adapter", nil, func(n *fakesys.Node) {
			noRDMADevice(n)
			n.Set(fakesys.HCAAddress(3), "device", "0x10ff")
		}, lacksFinding(name, "the InfiniBand adapter 15b3:10ff is on the PCI bus, but no RDMA device; its driver is mlx5_core")),
		onFabric("one is given to a virtual machine", nil, func(n *fakesys.Node) {
			noRDMADevice(n)
			n.Links[n.Dir(fakesys.HCAAddress(3))+"/driver"] = "../../../../../../bus/pci/drivers/vfio-pci"
		}).holding(ibPastFile, ibPast(3, "InfiniBand", "", `,"series":{"1":[[1767322745,400]]}`)),
		onFabric("one has gone", nil, remove, gone(Fail, "no RDMA device any more, as it was earlier in this boot; nor on the PCI bus")).
			holding(ibPastFile, ibPast(3, "InfiniBand", "", `,"series":{"1":[[1767322745,400]]}`)),
		onFabric("one has gone over a boot", nil, remove, gone(Warn, "no RDMA device any more, as it was before the last boot; nor on the PCI bus")).
			holding(ibPastFile, ibPast(3, "InfiniBand", "another", `,"series":{"1":[[1767322745,400]]}`)),
		onFabric("one has gone, as a line on Ethernet does not care", of("-l", "eth"), remove, Finding{Code: "ib.left", Severity: Skip, Message: name + ":  no RDMA port of this node carries jobs' traffic over Ethernet"}).
			holding(ibPastFile, ibPast(3, "InfiniBand", "", `,"series":{"1":[[1767322745,400]]}`)),
		onFabric("one has gone long ago", nil, remove).holding(ibPastFile, `{"version":1,"boot":"x","devices":{"mlx5_3 0000:23:00.0 b83f:d203:00c5:1a03 InfiniBand":{"seen":1760000000}}}`),
		onFabric("one has another name and place", nil, nil).holding(ibPastFile,
			`{"version":1,"boot":"658f832e-2c36-42e1-a29c-a17c2e3298d2","devices":{"ibp35s0 0000:83:00.0 b83f:d203:00c5:1a03 InfiniBand":{"seen":1767322745,"series":{"1":[[1767322745,400]]}}}}`),
		onFabric("a past of another form", nil, nil).holding(ibPastFile, `{"version":1,"boot":"658f832e-2c36-42e1-a29c-a17c2e3298d2","devices":{"x":{"seen":1767322745}}}`),
		onFabric("one is in Ethernet mode", nil, set("ports/1/link_layer", "Ethernet"),
			hcaFinding(name, "mlx5_3", 3, Finding{Code: "ib.ports.layer", Severity: Warn, Remedy: FixConfig, Want: "InfiniBand", Got: "Ethernet"}, "link layer is not what it was")).
			holding(ibPastFile, ibPast(3, "InfiniBand", "another", "")),
		broken(onFabric("a past that is broken", nil, nil, Finding{Code: "fabric.past", Severity: Warn, Message: name + ":  read /past/ib-ports.json: unexpected end of JSON input; it is begun anew"}).holding(ibPastFile, `{"version`)),

		onFabric("each that is named has to pass", of("mlx5_0", "mlx5_3"), func(n *fakesys.Node) { n.Down("mlx5_3") }, down("polling", CheckCable, "DOWN Polling", "no link: the cable or the far end")),
		onFabric("the one that is named is well", of("mlx5_0:1"), func(n *fakesys.Node) { n.Down("mlx5_3") }),
		onFabric("one that is not there", of("mlx5_9"), nil, unnamed("mlx5_9")),
		onFabric("one of another layer", of("-l", "InfiniBand", "mlx5_3"), set("ports/1/link_layer", "Ethernet"), says(Fail, "layer", FixConfig, "InfiniBand", "Ethernet", "link layer")),
		onFabric("a layer that is none", of("-l", "token-ring"), nil, Finding{Code: "config.value", Severity: Unknown, Remedy: FixConfig, Want: "ib or eth", Got: "token-ring", Message: name + `:  layer "token-ring", want ib or eth`}),

		broken(onFabric("unreadable state", nil, set("ports/1/state/", ""), ibUnknown(name, "port", "mlx5_3", 3, "read "+dir+"state: is a directory"))),
		broken(onFabric("unreadable LID of a port that is down", nil, func(n *fakesys.Node) { n.Down("mlx5_3").Set("mlx5_3", "ports/1/lid/", "") },
			ibUnknown(name, "port", "mlx5_3", 3, "read "+dir+"lid: is a directory"), down("polling", CheckCable, "DOWN Polling", "no link: the cable or the far end"))),
		broken(onFabric("garbage for a state", nil, state("\xff\x00", "\x01"), ibUnknown(name, "port", "mlx5_3", 3, `state "", phys_state "": not understood`))),
		broken(onFabric("words for a state", nil, state("4: FINE", "5: Well"), ibUnknown(name, "port", "mlx5_3", 3, `state "FINE", phys_state "Well": not understood`))),
		broken(onFabric("a word for a state, and a link", nil, state("9: FINE", "5: LinkUp"), ibUnknown(name, "port", "mlx5_3", 3, `state "FINE", phys_state "LinkUp": not understood`))),
		broken(onFabric("a word for the state of a link", nil, state("4: ACTIVE", "5: Well"), ibUnknown(name, "port", "mlx5_3", 3, `state "ACTIVE", phys_state "Well": not understood`))),
		onFabric("a word for a state, and no link", nil, state("9: FINE", "2: Polling"), down("polling", CheckCable, "FINE Polling", "no link: the cable or the far end")),
		onFabric("the kernel does not know the state of a link", nil, state("4: ACTIVE", "0: <unknown>"), down("down", CheckCable, "ACTIVE <unknown>", "the link is down")),
		broken(onFabric("a rate that cannot be", nil, set("ports/1/rate", "999999 Gb/sec (4X NDR)"), ibUnknown(name, "port", "mlx5_3", 3, `rate "999999": not understood`))),
		broken(onFabric("garbage for a rate", nil, set("ports/1/rate", "fast"), ibUnknown(name, "port", "mlx5_3", 3, `rate "fast": not understood`))),
		broken(onFabric("garbage for a LID", nil, set("ports/1/lid", "0xzz"), ibUnknown(name, "port", "mlx5_3", 3, `LID "0xzz": not a number`))),
		broken(onFabric("taken out while it was read", nil, set("ports/1/state", "-"), ibUnknown(name, "port", "mlx5_3", 3, "read "+dir+"state: no such file or directory"))),
		broken(onFabric("too few, of which one cannot be read", of("-n", "8"), func(n *fakesys.Node) {
			maps.DeleteFunc(n.Files, func(f, _ string) bool {
				return len(f) > len(n.Dir("mlx5_3"))+6 && f[:len(n.Dir("mlx5_3"))+6] == n.Dir("mlx5_3")+"/ports"
			})
			n.Set("mlx5_3", "ports", "")
		}, ibUnknown(name, "hca", "mlx5_3", 3, "read /sys/class/infiniband/mlx5_3/ports: not a directory"))),
		ethernetOnly(Finding{Code: "ib.none", Severity: Skip, Message: name + ":  no RDMA device on this node"}),
		ethernetOnly(unnamed("mlx5_0"), "mlx5_0"),
		ethernetOnly(count("0", "0 ports, want at least 8"), "-n", "8"),
	)
	list = append(list, onNode(opaAlone(), "Omni-Path without an RDMA device", nil, opaLacks(name)))
	list = append(list, dualPorts()...)
	list = append(list, frontEnds()...)
	list = append(list, otherNodes()...)
	return list
})

// opaAlone is a node with an adapter of Omni-Path of which its driver has made nothing.
func opaAlone() *fakesys.Node {
	n := fakesys.Kinds()["omni-path"]
	noRoCE(n, "hfi1_0")
	n.Files["proc/modules"] = ""
	delete(n.Files, "sys/class/infiniband_mad/abi_version")
	delete(n.Files, "sys/class/infiniband_verbs/abi_version")
	return n
}

// opaLacks is what checks say of it.
func opaLacks(check string) Finding {
	return about(check, Device{Kind: "hca", PCI: "0000:c0:00.0"}, Finding{Code: "ib.lacking", Severity: Fail, Remedy: ReseatOrRMA}, "Omni-Path 100 is on the PCI bus, but no RDMA device; its driver is hfi1")
}

// A rate that cannot be is not what the port has had in this boot.
func TestRateOfGarbage(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	sys := fakesys.DGXH100()
	if err := sys.Write(root); err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		rate string
		want Severity
	}{{"400 Gb/sec (4X NDR)", OK}, {"999999 Gb/sec (4X NDR)", Unknown}, {"400 Gb/sec (4X NDR)", OK}, {"200 Gb/sec (2X NDR)", Fail}} {
		for name, text := range map[string]string{"proc/uptime": fmt.Sprintf("%d.00 1.00\n", 323045+300*i), sys.Dir("mlx5_3") + "/ports/1/rate": step.rate + "\n"} {
			if err := place(root, name, text); err != nil {
				t.Fatal(err)
			}
		}
		env := &Env{Host: probe.NewHost(root)}
		env.Host.SetPast("/past")
		if got := (&ibPorts{}).Run(t.Context(), env); Worst(got) != step.want {
			t.Errorf("%s: %v, want %v", step.rate, got, step.want)
		}
	}
}

// ethernetOnly is a line on a node without an RDMA device.
func ethernetOnly(want Finding, words ...string) scenario {
	n := fakesys.EthernetOnly()
	return onNode(n, fmt.Sprintf("no RDMA device %v", words), words, want)
}

// What one run keeps the next one finds: an adapter that goes is a fault from then on.
func TestPortsOverRuns(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	n := fakesys.DGXH100()
	if err := n.Write(root); err != nil {
		t.Fatal(err)
	}
	run := func() []Finding {
		env := &Env{Host: probe.NewHost(root)}
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
	env := &Env{Host: probe.NewHost(second)}
	env.Host.SetPast("/past")
	var kept historyFile
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
	if len(got) != 1 || got[0].Code != "ib.ports.gone" || got[0].Severity != Fail || got[0].Device.PCI != fakesys.HCAAddress(3) {
		t.Errorf("one is gone: %v", got)
	}
}

// Thousands of virtual functions cost little, and are no ports of the node's.
func TestPortsManyVFs(t *testing.T) {
	if testing.Short() {
		t.Skip("writes a large tree")
	}
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
	for _, c := range []Check{&ibPorts{}, &ibCount{}, &ibModules{}, &ibFirmware{}, &ibPKey{Index: -1}, &ibGID{Index: -1}} {
		if got := c.Run(t.Context(), &Env{Host: probe.NewHost(root)}); len(got) > 0 {
			t.Errorf("%T: %d findings: %v", c, len(got), got[0])
		}
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("took %v", took)
	}
	if got := (&ibPorts{Devices: []string{"mlx5_v77"}}).Run(t.Context(), &Env{Host: probe.NewHost(root)}); len(got) == 0 || got[0].Device.Name != "mlx5_v77:1" {
		t.Errorf("one that is named: %v", got)
	}
}

// Names that are no text, of which some file systems and drivers are capable.
func TestPortsNames(t *testing.T) {
	t.Parallel()
	n := fakesys.DGXH100()
	n.AddHCA(fakesys.HCA{PCI: fakesys.PCI{Address: "0000:c1:00.0", ID: "15b3:1021", Driver: "mlx5_core"}, Name: "mlx5_\xff\n", Layer: "InfiniBand", Rate: "400 Gb/sec (4X NDR)", Index: 0x77})
	root := t.TempDir()
	if err := n.Write(root); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		env := &Env{Host: probe.NewHost(root)}
		env.Host.SetPast("/past")
		if got := (&ibPorts{}).Run(t.Context(), env); len(got) > 0 {
			t.Errorf("%v", got)
		}
	}
}

// The prolog of a job waits for the ports after a boot, and refuses the job if they do
// not come up; the epilog of a job is as any other run.
func TestIBPortsBeforeAJob(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		job  Job
		up   bool // the port comes up while the check waits
		want Severity
	}{
		"prolog":                    {want: Fail},
		"prolog, the port comes up": {up: true, want: OK},
		"epilog":                    {job: Job{Ended: true}, want: Skip},
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
			env := &Env{Host: probe.NewHost(root), Job: &c.job}
			left := 3 * time.Second
			if c.up {
				left = time.Minute
			}
			env.Doing = func(what string) {
				if looks++; c.up && what == "read /sys/class/infiniband/mlx5_3" && looks > 12 {
					if err := place(root, sys.Port("mlx5_3")+"state", "4: ACTIVE\n"); err != nil {
						t.Error(err)
					}
				}
			}
			findings := (&ibPorts{}).Run(WithDeadline(t.Context(), time.Now().Add(left)), env)
			if got := Worst(findings); got != c.want {
				t.Errorf("%v: %v, want %v", findings, got, c.want)
			}
			if c.want == Fail && !strings.Contains(findings[0].Message, "no subnet manager has set up the port; the node was booted 60 s ago") {
				t.Error(findings[0].Message)
			}
		})
	}
}
