package fabric

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/selftest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// dualRoCE returns a changed node with eight RoCE cards of two ports each.
func dualRoCE(change func(*fakesys.Node)) *fakesys.Node {
	n := fakesys.Kinds()["oci h100: 16 ports and a front end"]
	change(n)
	return n
}

// noSecondPort removes the RDMA device of the second function of adapter 3.
func noSecondPort(n *fakesys.Node) { noRoCE(n, "rocep3s0f1") }

// lacksSecond returns the finding that this function is only on the bus.
func lacksSecond(check string) checks.Finding {
	f := checks.Finding{Code: "ib.lacking", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Device: checks.Device{Kind: "hca", PCI: "0000:23:00.1"}, Got: lacksText}
	f.Message = check + ":  0000:23:00.1: " + lacksText
	return f
}

// lagNode returns RoCE adapters; the third is a LAG over the two ports of its card.
func lagNode(mode string) *fakesys.Node { return addLAG(fakesys.RoCE(), mode) }

func addLAG(n *fakesys.Node, mode string) *fakesys.Node {
	address := "0000:23:00.1"
	n.AddPCI(fakesys.PCI{Address: address, Above: []string{"0000:33:01.0", "0000:53:00.0", "0000:63:01.0"}, Class: "020000", ID: "15b3:1021", Driver: "mlx5_core", Speed: "32.0 GT/s PCIe", Width: 16})
	n.AddNet(fakesys.Net{Name: "eth23", PCI: address, Speed: "400000", Index: 0x93})
	return n.AddBond("bond3", mode, "eth13", "eth23")
}

var _ = checktest.Table("check_ib_ports", func(name string) (list []checktest.Scenario) {
	lag := func(title, mode string, words []string, change func(*fakesys.Node), want ...checks.Finding) checktest.Scenario {
		n := lagNode(mode)
		if change != nil {
			change(n)
		}
		return checktest.OnNode(n, title, words, want...)
	}
	member := func(severity checks.Severity, remedy checks.Remedy, got string) checks.Finding {
		return checktest.PortFinding(name, "rocep3s0", 3, checks.Finding{Code: "ib.ports.member", Severity: severity, Remedy: remedy, Want: "up", Got: got}, "member eth23 0000:23:00.1 of bond3")
	}
	unplugged := func(n *fakesys.Node) { n.Set("eth23", "carrier", "0").Set("eth23", "operstate", "down") }
	off := func(n *fakesys.Node) {
		n.Set("eth23", "flags", "0x1002").Set("eth23", "operstate", "down").Set("eth23", "carrier", "-")
	}
	const lacp, backup = "802.3ad 4", "active-backup 1"
	apart := func(n *fakesys.Node) { // each port has an RDMA device of its own, which shows its state
		n.AddHCA(fakesys.HCA{PCI: fakesys.PCI{Address: "0000:23:00.1", Above: []string{"0000:33:01.0", "0000:53:00.0", "0000:63:01.0"}, ID: "15b3:1021", Driver: "mlx5_core", Speed: "32.0 GT/s PCIe", Width: 16},
			Name: "rocep3s1", Type: "MT4129", Board: "MT_0000000834", Fw: "28.39.2048", Layer: "Ethernet", Rate: "400 Gb/sec (4X NDR)", Index: 0x93})
		unplugged(n)
	}
	list = append(list,
		lag("a LAG", lacp, nil, nil),
		lag("a LAG of which half is dead", lacp, nil, unplugged, member(checks.Warn, checks.CheckCable, "no carrier")),
		lag("a LAG of which half is dead, and must not be", lacp, checktest.Of("-b"), unplugged, member(checks.Fail, checks.CheckCable, "no carrier")),
		checktest.Odd(lag("a LAG of which half is dead, and its state cannot be read", lacp, checktest.Of("-b"), func(n *fakesys.Node) { unplugged(n); n.Set("eth23", "operstate/", "") },
			ibUnknown(name, "port", "rocep3s0", 3, "member eth23 of bond3: read /sys/class/net/eth23/operstate: is a directory"), member(checks.Fail, checks.CheckCable, "no carrier"))),
		checktest.Odd(lag("a LAG with a member whose state cannot be read", lacp, checktest.Of("-b"), func(n *fakesys.Node) { n.Set("eth23", "operstate/", "") },
			ibUnknown(name, "port", "rocep3s0", 3, "member eth23 of bond3: read /sys/class/net/eth23/operstate: is a directory"))),
		lag("a LAG of which half is switched off", lacp, nil, off, member(checks.Warn, checks.FixConfig, "off")),
		lag("a LAG with a member that LACP leaves out", lacp, nil, func(n *fakesys.Node) { n.Set("eth23", "bonding_slave/ad_aggregator_id", "2") }, member(checks.Warn, checks.CheckFabric, "excluded by LACP")),
		lag("an active backup that is not in use", backup, nil, off),
		lag("an active backup that is not in use, and must be", backup, checktest.Of("-b"), off, member(checks.Fail, checks.FixConfig, "off")),
		lag("an active backup that has lost its cable", backup, nil, unplugged, member(checks.Warn, checks.CheckCable, "no carrier")),
		lag("a bond of ports that show their own state", lacp, nil, apart),
		lag("a LAG without a cable, of which half is switched off", lacp, nil, func(n *fakesys.Node) { n.Down("rocep3s0"); off(n) },
			checktest.PortFinding(name, "rocep3s0", 3, checks.Finding{Code: "ib.ports.polling", Severity: checks.Fail, Remedy: checks.CheckCable, Want: "ACTIVE LinkUp", Got: "DOWN Disabled"}, "link down")),
		lag("a LAG that is switched off", lacp, nil, func(n *fakesys.Node) { n.Down("rocep3s0").Set("eth13", "flags", "0x1002"); off(n) },
			checktest.PortFinding(name, "rocep3s0", 3, checks.Finding{Code: "ib.ports.disabled", Severity: checks.Fail, Remedy: checks.FixConfig, Want: "ACTIVE LinkUp", Got: "DOWN Disabled"}, "the port is disabled")),
	)
	second := func(title string, change func(*fakesys.Node), want ...checks.Finding) checktest.Scenario {
		return checktest.OnNode(dualRoCE(change), title, nil, want...).Holding(ibPastFile,
			`{"version":1,"boot":"658f832e-2c36-42e1-a29c-a17c2e3298d2","devices":{"rocep3s0f1 0000:23:00.1 b83f:d203:00c5:1a33 Ethernet":{"seen":1767322745,"series":{"1":[[1767322745,200]]}}}}`)
	}
	left := checks.Finding{Code: "ib.ports.gone", Severity: checks.Fail, Remedy: checks.PowerCycle, Device: checks.Device{Kind: "hca", Name: "rocep3s0f1", PCI: "0000:23:00.1", UUID: "b83f:d203:00c5:1a33"},
		Got: "RDMA device is missing, present earlier in this boot; not on the PCI bus"}
	left.Message = name + ":  " + left.Device.String() + ": " + left.Got
	list = append(list,
		checktest.OnNode(fakesys.Kinds()["oci h100: boards that are not known"], "cards whose ports have the rate of the platform together", nil).On(h100Network()),
		second("the second port of a card is no RDMA device", noSecondPort, lacksSecond(name)),
		second("the second port of a card has left the bus", func(n *fakesys.Node) { n.Remove("0000:23:00.1") }, left),
		second("the second port of a card has become part of a LAG", func(n *fakesys.Node) { noSecondPort(n); n.AddBond("bond3", "802.3ad 4", "eth13", "eth23") }),
		second("the second port of a card is served by a device with two ports", func(n *fakesys.Node) {
			noSecondPort(n)
			for file, content := range maps.Clone(n.Files) {
				if rest, ok := strings.CutPrefix(file, n.Port("rocep3s0")); ok {
					n.Files[n.Port("rocep3s0:2")+rest] = content
				}
			}
		}),
	)
	half := checktest.OnRoCE("half of a LAG is dead", nil, func(n *fakesys.Node) { addLAG(n, "802.3ad 4"); unplugged(n) }, member(checks.Warn, checks.CheckCable, "no carrier"))
	half.Still = true // the second port is not one of the node's eight
	list = append(list, half)
	hca := func(code string, severity checks.Severity, remedy checks.Remedy, text string) checks.Finding {
		return checktest.HCAFinding(name, "mlx5_3", 3, checks.Finding{Code: "ib.ports." + code, Severity: severity, Remedy: remedy}, text)
	}
	verbs := func(change func(*fakesys.Node)) func(*fakesys.Node) {
		return func(n *fakesys.Node) {
			for i := range 8 {
				n.Files[fmt.Sprintf("sys/class/infiniband_verbs/uverbs%d/ibdev", i)] = fmt.Sprintf("mlx5_%d\n", i)
				n.Files[fmt.Sprintf("dev/infiniband/uverbs%d", i)] = ""
			}
			change(n)
		}
	}
	noDev := func(n *fakesys.Node) {
		for i := range 8 {
			delete(n.Files, fmt.Sprintf("dev/infiniband/uverbs%d", i))
		}
	}
	twin := func(vpd map[int]string) func(*fakesys.Node) {
		return func(n *fakesys.Node) {
			n.Set("mlx5_3", "node_guid", "b83f:d203:00c5:1a02")
			for i, serial := range vpd {
				n.Set(fakesys.HCAAddress(i), "vpd", "\x82\x0a\x00ConnectX-7\x90\x13\x00PN\x04MCX7SN"+string(rune(len(serial)))+serial+"\x78")
			}
		}
	}
	const same = "same GUID b83f:d203:00c5:1a02 as mlx5_2 0000:22:00.0"
	sameGUID := func(severity checks.Severity) checks.Finding {
		f := hca("guid", severity, checks.FixConfig, same)
		f.Device.UUID = "b83f:d203:00c5:1a02"
		return f
	}
	empty := func(device string) func(*fakesys.Node) {
		return func(n *fakesys.Node) {
			for file := range n.Files {
				if dir := n.Dir(device) + "/ports/"; len(file) > len(dir) && file[:len(dir)] == dir {
					delete(n.Files, file)
				}
			}
			n.Files[n.Dir(device)+"/ports/"] = ""
		}
	}
	still := func(s checktest.Scenario) checktest.Scenario { // the second of the two is the one that is named
		s.Still = true
		return s
	}
	allHDR := func(n *fakesys.Node) {
		for i := range 8 {
			n.Set(fmt.Sprintf("mlx5_%d", i), "ports/1/rate", "200 Gb/sec (4X HDR)")
		}
	}
	var rated []string
	for i := range 8 {
		rated = append(rated, fmt.Sprintf(`"mlx5_%d 0000:2%d:00.0 b83f:d203:00c5:1a0%d InfiniBand":{"seen":1767322745,"marks":{"rate 1 400":[1767236345]}}`, i, i, i))
	}
	list = append(list,
		checktest.OnFabric("device nodes for programs", nil, verbs(func(*fakesys.Node) {})),
		checktest.OnFabric("no device node for programs", nil, verbs(func(n *fakesys.Node) { delete(n.Files, "dev/infiniband/uverbs3") }),
			hca("uverbs", checks.Fail, checks.RebootNode, "/dev/infiniband/uverbs3 is missing, programs cannot use it")),
		checktest.OnFabric("no verbs device of one adapter", nil, verbs(func(n *fakesys.Node) { delete(n.Files, "sys/class/infiniband_verbs/uverbs3/ibdev") }),
			hca("uverbs", checks.Fail, checks.RebootNode, "no uverbs device, programs cannot use it")),
		checktest.OnFabric("a recorded node without /dev", nil, verbs(noDev)),
		still(checktest.OnFabric("two adapters with one GUID", nil, twin(nil), sameGUID(checks.Warn))),
		still(checktest.OnFabric("two boards with one GUID", nil, twin(map[int]string{2: "MT2301X01", 3: "MT2301X02"}), sameGUID(checks.Fail))),
		checktest.OnFabric("all slower than before the reboot", nil, allHDR, checks.Finding{Code: "ib.ports.slower", Severity: checks.Warn, Remedy: checks.CheckFabric, Device: checks.Device{Kind: "ports"}, Want: "400 Gb/s", Got: "200 Gb/s (4X HDR)",
			Message: name + ":  all ports are slower than before the reboot, want 400 Gb/s, got 200 Gb/s (4X HDR): mlx5_0:1 mlx5_1:1 mlx5_2:1 mlx5_3:1 mlx5_4:1 mlx5_5:1 mlx5_6:1 mlx5_7:1"}).
			Holding(ibPastFile, fmt.Sprintf(`{"version":1,"boot":"x","devices":{%s}}`, strings.Join(rated, ","))),
		checktest.OnFabric("two halves of a board with one GUID", nil, twin(map[int]string{2: "MT2301X01", 3: "MT2301X01"})),
		checktest.OnFabric("an adapter without a port", nil, empty("mlx5_3"), hca("none", checks.Fail, checks.RebootNode, "adapter without a port")),
		checktest.OnFabric("an adapter without a folder of ports", nil, func(n *fakesys.Node) { empty("mlx5_3")(n); delete(n.Files, n.Dir("mlx5_3")+"/ports/") },
			hca("none", checks.Fail, checks.RebootNode, "adapter without a port")),
	)
	return list
})

// Ports that are all slower after a reboot warn until an operator acknowledges it.
func TestPortsSlowerThanBefore(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	n := fakesys.DGXH100()
	if err := n.Write(root); err != nil {
		t.Fatal(err)
	}
	run := func(c *ibPorts) []checks.Finding {
		t.Helper()
		env := &checks.Env{Host: probe.NewHost(root)}
		env.Host.SetPast("/past")
		return c.Run(t.Context(), env)
	}
	set := func(file, content string) {
		t.Helper()
		if err := selftest.Place(root, file, content); err != nil {
			t.Fatal(err)
		}
	}
	rates := func(rate string, devices ...int) {
		for _, i := range devices {
			set(n.Port(fmt.Sprintf("mlx5_%d", i))+"rate", rate+"\n")
		}
	}
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	if got := run(&ibPorts{}); got != nil {
		t.Fatalf("healthy: %v", got)
	}
	set("proc/sys/kernel/random/boot_id", "another\n")
	set("proc/uptime", "326645.00 1.00\n")
	if got := run(&ibPorts{}); got != nil {
		t.Fatalf("after a reboot: %v", got)
	}
	set("proc/sys/kernel/random/boot_id", "a third\n")
	rates("200 Gb/sec (4X HDR)", all...)
	got := run(&ibPorts{})
	want := "check_ib_ports:  all ports are slower than before the reboot, want 400 Gb/s, got 200 Gb/s (4X HDR): mlx5_0:1 mlx5_1:1 mlx5_2:1 mlx5_3:1 mlx5_4:1 mlx5_5:1 mlx5_6:1 mlx5_7:1"
	if len(got) != 1 || got[0].Code != "ib.ports.slower" || got[0].Severity != checks.Warn || got[0].Message != want {
		t.Fatalf("all slower: %+v", got)
	}
	if got := run(&ibPorts{Rate: 200}); got != nil {
		t.Errorf("slower, as the line has it: %v", got)
	}
	rates("400 Gb/sec (4X NDR)", 0, 1, 2)
	if got := run(&ibPorts{}); len(got) != 5 || slices.ContainsFunc(got, func(f checks.Finding) bool { return f.Code != "ib.ports.slower" && f.Code != "ib.ports.rate" }) {
		t.Errorf("five slower: %+v", got)
	}
	rates("200 Gb/sec (4X HDR)", 0, 1, 2)
	set("proc/sys/kernel/random/boot_id", "a fourth\n")
	set("proc/uptime", "330245.00 1.00\n")
	env := &checks.Env{Host: probe.NewHost(root)}
	env.Host.SetPast("/past")
	if _, err := ClearIB(env, nil, "root"); err != nil {
		t.Fatal(err)
	}
	if got := run(&ibPorts{}); got != nil {
		t.Errorf("it was meant: %v", got)
	}
	set("proc/uptime", "333845.00 1.00\n")
	if got := run(&ibPorts{}); got != nil {
		t.Errorf("it was meant an hour ago: %v", got)
	}
}
