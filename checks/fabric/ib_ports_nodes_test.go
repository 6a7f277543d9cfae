package fabric

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// dualPorts are nodes with two-port cards.
func dualPorts() []checktest.Scenario {
	node := func(change func(n *fakesys.Node)) *fakesys.Node {
		n := fakesys.DGXH100()
		for i := range 8 {
			n.AddHCA(fakesys.HCA{PCI: fakesys.PCI{Address: fmt.Sprintf("0000:2%d:00.1", i), ID: "15b3:1021", Driver: "mlx5_core", NUMA: i / 4, Speed: "32.0 GT/s PCIe", Width: 16},
				Name: fmt.Sprintf("mlx5_b%d", i), Type: "MT4129", Board: "MT_0000000838", Fw: "28.39.2048", Layer: "InfiniBand", Rate: "400 Gb/sec (4X NDR)", Index: 0xb0 + i})
			n.Down(fmt.Sprintf("mlx5_b%d", i))
		}
		change(n)
		return n
	}
	says := func(device string, severity checks.Severity, why string) checks.Finding {
		f := checktest.PortFinding(ibPortsName, device, 3, checks.Finding{Code: "ib.ports.polling", Severity: severity, Remedy: checks.CheckCable, Want: "ACTIVE LinkUp", Got: "DOWN Polling"}, "link down"+checks.Before("; ", why, ""))
		if device == "mlx5_b3" {
			f.Device.PCI, f.Device.UUID = "0000:23:00.1", "b83f:d203:00c5:1ab3"
			f.Message = ibPortsName + ":  mlx5_b3:1 0000:23:00.1: link down" + checks.Before("; ", why, "") + checktest.WantGot(f)
		}
		return f
	}
	keep := func(s checktest.Scenario, boot, more string) checktest.Scenario {
		if boot == "" {
			boot = "658f832e-2c36-42e1-a29c-a17c2e3298d2"
		}
		return s.Holding(ibPastFile, fmt.Sprintf(`{"version":1,"boot":%q,"devices":{"mlx5_b3 0000:23:00.1 b83f:d203:00c5:1ab3 InfiniBand":{"seen":1767322745%s}}}`, boot, more))
	}
	none := func(*fakesys.Node) {}
	return []checktest.Scenario{
		checktest.OnNode(node(none), "second ports are not cabled", nil),
		checktest.OnNode(node(none), "second ports are not cabled, and are not counted", checktest.Of("-n", "8")),
		checktest.OnNode(node(none), "a second port that is named", checktest.Of("mlx5_b3"), says("mlx5_b3", checks.Fail, "")),
		checktest.OnNode(node(func(n *fakesys.Node) { n.Down("mlx5_3") }), "one card has no link", nil, says("mlx5_3", checks.Fail, "0 of the card's ports are up, on most such cards 1")),
		checktest.OnNode(node(func(n *fakesys.Node) {
			for i := range 8 {
				if i != 3 {
					n.Set(fmt.Sprintf("mlx5_b%d", i), "ports/1/state", "4: ACTIVE").Set(fmt.Sprintf("mlx5_b%d", i), "ports/1/phys_state", "5: LinkUp").Set(fmt.Sprintf("mlx5_b%d", i), "ports/1/rate", "400 Gb/sec (4X NDR)")
				}
			}
		}), "one card has one link of two", nil, says("mlx5_b3", checks.Fail, "1 of the card's ports are up, on most such cards 2")),
		checktest.OnNode(node(func(n *fakesys.Node) {
			for i := range 4 {
				n.Set(fmt.Sprintf("mlx5_b%d", i), "ports/1/state", "4: ACTIVE").Set(fmt.Sprintf("mlx5_b%d", i), "ports/1/phys_state", "5: LinkUp").Set(fmt.Sprintf("mlx5_b%d", i), "ports/1/rate", "400 Gb/sec (4X NDR)")
			}
			for i := range 8 {
				if i != 1 && i != 3 {
					n.Remove(fmt.Sprintf("0000:2%d:00.0", i)).Remove(fmt.Sprintf("0000:2%d:00.1", i))
				}
			}
			n.Down("mlx5_b3")
		}), "two cards that differ", nil, says("mlx5_b3", checks.Warn, "1 of the card's ports are up, on another such card 2")),
		checktest.OnNode(node(func(n *fakesys.Node) {
			for i := range 8 {
				if i != 1 && i != 3 {
					n.Remove(fmt.Sprintf("0000:2%d:00.0", i)).Remove(fmt.Sprintf("0000:2%d:00.1", i))
				}
			}
			n.Down("mlx5_3")
		}), "two cards half cabled, one of which has no link", nil, says("mlx5_3", checks.Warn, "0 of the card's ports are up, on another such card 1")),
		keep(checktest.OnNode(node(none), "a second port was up", nil, says("mlx5_b3", checks.Fail, "up earlier in this boot")), "", `,"series":{"1":[[1767322745,400]]}`),
		keep(checktest.OnNode(node(none), "a second port was up before the boot", nil, says("mlx5_b3", checks.Warn, "up before the last boot")), "x", `,"marks":{"up 1":[1767322745]}`),
		checktest.OnNode(node(func(n *fakesys.Node) {
			for i := range 8 {
				if i != 3 {
					n.Remove(fmt.Sprintf("0000:2%d:00.0", i)).Remove(fmt.Sprintf("0000:2%d:00.1", i))
				}
			}
			n.Down("mlx5_3")
		}), "the only card has no link", nil, says("mlx5_3", checks.Fail, ""), says("mlx5_b3", checks.Fail, "")),
	}
}

// frontEnds are RoCE nodes with a two-port front-end card; its first port has the default route.
func frontEnds() []checktest.Scenario {
	const name = ibPortsName
	node := func(change func(n *fakesys.Node)) *fakesys.Node {
		n := fakesys.RoCE()
		n.Files["proc/net/route"] = strings.SplitAfter(n.Files["proc/net/route"], "\n")[0]
		for i := range 2 {
			n.AddHCA(frontEndPort(0xf1, i))
		}
		n.Down("mlx5_f1_1")
		n.DefaultRoute("ens1")
		change(n)
		return n
	}
	spare := func(severity checks.Severity, why string) checks.Finding {
		d := checks.Device{Kind: "port", Name: "mlx5_f1_1:1", PCI: "0000:f1:00.1", UUID: "b83f:d203:00c5:1af2"}
		f := checks.Finding{Code: "ib.ports.polling", Severity: severity, Remedy: checks.CheckCable, Device: d, Want: "ACTIVE LinkUp", Got: "DOWN Disabled"}
		f.Message = name + ":  " + d.String() + ": link down" + checks.Before("; ", why, "") + checktest.WantGot(f)
		return f
	}
	past := func(s checktest.Scenario, more string) checktest.Scenario {
		return s.Holding(ibPastFile, fmt.Sprintf(`{"version":1,"boot":"658f832e-2c36-42e1-a29c-a17c2e3298d2","devices":{"mlx5_f1_1 0000:f1:00.1 b83f:d203:00c5:1af2 Ethernet":{"seen":1767322745%s}}}`, more))
	}
	none := func(*fakesys.Node) {}
	alone := fakesys.New()
	for i := range 2 {
		alone.AddHCA(frontEndPort(0xf1, i))
	}
	alone.Down("mlx5_f1_1").DefaultRoute("ens1")
	second := func(i int, severity checks.Severity, got, why string) checks.Finding {
		d := checks.Device{Kind: "port", Name: fmt.Sprintf("mlx5_f4_%d:1", i), PCI: fmt.Sprintf("0000:f4:00.%d", i), UUID: fmt.Sprintf("b83f:d203:00c5:1af%d", 4+i)}
		return checktest.About(name, d, checks.Finding{Code: "ib.ports.polling", Severity: severity, Remedy: checks.CheckCable, Want: "ACTIVE LinkUp", Got: got}, "link down"+checks.Before("; ", why, ""))
	}
	both := func(severity checks.Severity, why string) []checks.Finding {
		return []checks.Finding{second(0, severity, "DOWN Disabled", why), second(1, severity, "DOWN Polling", why)}
	}
	wasUp := uncabled()
	wasUp.Set("ens4", "carrier_up_count", "1")
	twoWasUp := func(boot, more string) string {
		return fmt.Sprintf(`{"version":1,"boot":%q,"devices":{"mlx5_f4_0 0000:f4:00.0 b83f:d203:00c5:1af4 Ethernet":{"seen":1767322745%s}}}`, boot, more)
	}
	return []checktest.Scenario{
		checktest.OnNode(uncabled(), "a second card that was never cabled", nil, both(checks.Warn, "never seen up")...),
		checktest.OnNode(uncabled(), "a second card that was never cabled, a number is wanted", checktest.Of("-n", "2"), both(checks.Fail, "")...),
		checktest.OnNode(uncabled(), "a second card that was never cabled, and is named", checktest.Of("mlx5_f4_*"), both(checks.Fail, "")...),
		checktest.OnNode(uncabled(), "a second card that was never cabled, the platform has ports", nil, both(checks.Fail, "")...).On(h100Network()),
		checktest.OnNode(uncabled(), "a second card was up earlier in this boot", nil, both(checks.Fail, "")...).Holding(ibPastFile, twoWasUp(fabricBoot, `,"series":{"1":[[1767322745,100]]}`)),
		checktest.OnNode(uncabled(), "a second card was up before the boot", nil, both(checks.Fail, "")...).Holding(ibPastFile, twoWasUp("x", `,"marks":{"up 1":[1767322745]}`)),
		checktest.OnNode(wasUp, "a second card has had a carrier", nil, both(checks.Fail, "")...),
		checktest.OnNode(node(none), "the second port of the front end is not cabled", nil),
		checktest.Odd(checktest.OnNode(node(func(n *fakesys.Node) { n.Set("mlx5_f1_1", "ports/1/state/", "") }), "its state cannot be read", nil)),
		checktest.OnNode(node(none), "it is not counted", checktest.Of("-n", "9"), checks.Finding{Code: "ib.ports.count", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Device: checks.Device{Kind: "ports"}, Want: "at least 9", Got: "8",
			Message: name + ":  8 ports (rocep0s0:1 rocep1s0:1 rocep2s0:1 rocep3s0:1 rocep4s0:1 rocep5s0:1 rocep6s0:1 rocep7s0:1), want at least 9"}),
		checktest.OnNode(node(none), "it is named", checktest.Of("mlx5_f1_1"), spare(checks.Fail, "")),
		past(checktest.OnNode(node(none), "up earlier in this boot", nil, spare(checks.Fail, "up earlier in this boot")), `,"series":{"1":[[1767322745,100]]}`),
		past(checktest.OnNode(node(none), "it was up in an earlier boot", nil, spare(checks.Warn, "up before the last boot")), `,"marks":{"up 1":[1767322745]}`),
		checktest.OnNode(alone, "a node whose only card is the front end's", nil, checks.Finding{Code: "ib.left", Severity: checks.Skip, Message: name + ":  no RDMA port of this node carries jobs' traffic"}),
		checktest.OnNode(node(func(n *fakesys.Node) {
			for i := range 2 {
				n.AddHCA(frontEndPort(0xf4, i))
			}
			n.DefaultRoute("ens4")
		}), "the port in its place on another card of the front end is in use", nil, spare(checks.Fail, "")),
	}
}

// uncabled returns a node with a front end and a second card without a cable.
func uncabled() *fakesys.Node {
	n := fakesys.EthernetOnly()
	n.Files["proc/net/route"] = fakesys.New().Files["proc/net/route"]
	for i := range 2 {
		n.AddHCA(frontEndPort(0xf1, i))
		n.AddHCA(frontEndPort(0xf4, i))
	}
	n.Down("mlx5_f1_1").Down("mlx5_f4_0").Down("mlx5_f4_1").Set("mlx5_f4_1", "ports/1/phys_state", "2: Polling").DefaultRoute("ens1")
	return n
}

// frontEndPort returns one of two ports of a card at 100 Gb/s.
func frontEndPort(at, i int) fakesys.HCA {
	return fakesys.HCA{
		PCI:  fakesys.PCI{Address: fmt.Sprintf("0000:%02x:00.%d", at, i), Above: []string{fmt.Sprintf("0000:%02x:04.0", at-0xb0)}, ID: "15b3:101d", Driver: "mlx5_core", Speed: "16.0 GT/s PCIe", Width: 16},
		Name: fmt.Sprintf("mlx5_%x_%d", at, i), Type: "MT4125", Board: "MT_0000000359", Fw: "22.41.1000", Layer: "Ethernet", Rate: "100 Gb/sec (4X EDR)", NetDev: fmt.Sprintf("ens%d", at-0xf0+i), Index: at + i,
	}
}

// otherNodes are healthy nodes of other kinds, and some with a fault.
func otherNodes() (list []checktest.Scenario) {
	for name, n := range map[string]*fakesys.Node{
		"DGX A100": fakesys.DGXA100(), "DGX H200": fakesys.DGXH200(), "HGX B200": fakesys.HGXB200(), "GB200": fakesys.GB200(), "ND H100 v5": fakesys.NDH100v5(), "ConnectX-8": fakesys.CX8(),
	} {
		list = append(list, checktest.OnNode(n, name, nil), checktest.OnNode(n, name+" counts", checktest.Of("-n", map[bool]string{true: "4", false: "8"}[name == "GB200"])))
	}
	slices.SortFunc(list, func(a, b checktest.Scenario) int { return len(a.Name) - len(b.Name) })
	storage := fakesys.DGXH200()
	for _, d := range []string{"mlx5_8", "mlx5_9"} {
		storage.HalfRate(d).Set(d, "board_id", "MT_0000000892")
	}
	cx8 := &checks.Platform{Name: "HGX B300", NetworkPorts: 8, NetworkRate: 800}
	plane := fakesys.CX8().Set("mlx5_3", "ports/6/state", "1: DOWN").Set("mlx5_3", "ports/6/phys_state", "2: Polling")
	slow := fakesys.CX8().Set("mlx5_3", "ports/9/rate", "100 Gb/sec (1X NDR)")
	of6 := checktest.PortFinding(ibPortsName, "mlx5_3", 3, checks.Finding{Code: "ib.ports.polling", Severity: checks.Fail, Remedy: checks.CheckCable, Want: "ACTIVE LinkUp", Got: "DOWN Polling"}, "plane 2: link down")
	of6.Device.Name, of6.Message = "mlx5_3:6", ibPortsName+":  mlx5_3:6 0000:23:00.0: plane 2: link down, want ACTIVE LinkUp, got DOWN Polling"
	of9 := of6
	of9.Code, of9.Device.Name, of9.Want, of9.Got = "ib.ports.rate", "mlx5_3:9", "200 Gb/s", "100 Gb/s (1X NDR)"
	of9.Message = ibPortsName + ":  mlx5_3:9 0000:23:00.0: plane 3: rate is lower than on the other ports, want 200 Gb/s, got 100 Gb/s (1X NDR)"
	far := fakesys.NDH100v5().Set("mlx5_ib3", "ports/1/lid", "0x0")
	return append(list,
		checktest.OnNode(storage, "slower ports for storage", nil).On(&checks.Platform{Name: "HGX H200", NetworkPorts: 8, NetworkRate: 400}),
		checktest.OnNode(fakesys.DGXH200().HalfRate("mlx5_9"), "one slower port beyond those of the platform", nil, func() checks.Finding {
			f := checktest.PortFinding(ibPortsName, "mlx5_9", 9, checks.Finding{Code: "ib.ports.rate", Severity: checks.Warn, Remedy: checks.CheckCable, Want: "400 Gb/s", Got: "200 Gb/s (2X NDR)"}, "rate is lower than on the other ports")
			return f
		}()).On(&checks.Platform{Name: "HGX H200", NetworkPorts: 8, NetworkRate: 400}),
		checktest.Odd(checktest.OnNode(fakesys.DGXH200().HalfRate("mlx5_9").Set("mlx5_3", "ports/1/rate", "?"), "the same, and the rate of another port cannot be read", nil,
			ibUnknown(ibPortsName, "port", "mlx5_3", 3, `rate "?": not a rate`),
			checktest.PortFinding(ibPortsName, "mlx5_9", 9, checks.Finding{Code: "ib.ports.rate", Severity: checks.Warn, Remedy: checks.CheckCable, Want: "400 Gb/s", Got: "200 Gb/s (2X NDR)"},
				"rate is lower than on the other ports"))).On(&checks.Platform{Name: "HGX", NetworkPorts: 9, NetworkRate: 400}),
		checktest.OnNode(fakesys.CX8(), "planes make up the rate of the platform", nil).On(cx8),
		checktest.OnNode(plane, "a plane is down", nil, of6).On(cx8),
		checktest.OnNode(slow, "a plane is slow", nil, of9).On(cx8),
		checktest.OnNode(far, "a virtual function without a LID", nil),
	)
}
