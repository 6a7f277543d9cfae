package pcie

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// adapter3, disk3, and gpuOnBus3 are devices of the node, as these checks name them.
var (
	adapter3  = checks.Device{Kind: "nic", Name: "mlx5_3", PCI: "0000:23:00.0"}
	disk3     = checks.Device{Kind: "nvme", Name: "nvme3", PCI: "0000:43:00.0"}
	gpuOnBus3 = checks.Device{Kind: "gpu", PCI: "0000:13:00.0", Serial: fakenvml.Serial(3), UUID: fakenvml.UUID(3)}
	port3     = checks.Device{Kind: "bridge", PCI: "0000:63:01.0"} // of the switch, above the adapter
)

// emulated returns a virtual machine of QEMU with passed-through devices: its root
// ports show PCIe 1 with one lane.
func emulated() *fakesys.Node {
	n := fakesys.DGXH100()
	for i := range 8 {
		for _, port := range []string{"0000:6%d:00.0", "0000:6%d:01.0"} {
			n.Set(fmt.Sprintf(port, i), "vendor", "0x1b36")
			checktest.Links(fmt.Sprintf(port, i), checktest.NowWidth, "1", checktest.MaxWidth, "1", checktest.NowSpeed, "2.5 GT/s PCIe", checktest.MaxSpeed, "2.5 GT/s PCIe")(n)
		}
	}
	return n
}

func TestPCIe(t *testing.T) { checktest.Run(t, "check_pcie") }

var _ = checktest.Table("check_pcie", func(name string) []checktest.Scenario {
	fails := func(d checks.Device, code, want, got, text string) checks.Finding {
		return checktest.About(name, d, checks.Finding{Code: "pcie." + code, Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: want, Got: got}, text)
	}
	warns := func(d checks.Device, code, want, got, text string) checks.Finding {
		return checktest.About(name, d, checks.Finding{Code: "pcie." + code, Severity: checks.Warn, Want: want, Got: got}, text)
	}
	odd := func(s checktest.Scenario) checktest.Scenario {
		s.Broken = true
		return s
	}
	unknown := func(d checks.Device, text string) checks.Finding {
		return reportUnread(name, d, fmt.Errorf("%s", text))
	}
	bad := func(what, got, want string) checks.Finding { return checks.BadWord(name, what, got, want) }
	const of3 = "/sys/bus/pci/devices/0000:23:00.0/"
	nothing := func(words string) checks.Finding {
		return checks.Finding{Code: "pcie.none", Severity: checks.Skip, Message: name + ":  no such device on this node: " + words}
	}
	count := func(severity checks.Severity, remedy checks.Remedy, words, want, got string) checks.Finding {
		return checks.Finding{Code: "pcie.count", Severity: severity, Remedy: remedy, Want: want, Got: got,
			Message: name + ":  devices on the PCI bus (" + words + "), want " + want + ", got " + got}
	}
	var slowDisks []checks.Finding
	for i := range 8 {
		slowDisks = append(slowDisks, warns(checks.Device{Kind: "nvme", Name: fmt.Sprintf("nvme%d", i), PCI: fakesys.NVMeAddress(i)}, "speed", "16 GT/s", "8 GT/s", "PCIe speed, the same on all devices of its kind"))
	}
	// disks returns a change of disks, and what the check says of them.
	disks := func(file, content string, which ...int) func(*fakesys.Node) {
		return func(n *fakesys.Node) {
			for _, i := range which {
				n.Set(fakesys.NVMeAddress(i), file, content)
			}
		}
	}
	usual := func(code, want, got, text string, which ...int) (list []checks.Finding) {
		for _, i := range which {
			list = append(list, warns(checks.Device{Kind: "nvme", Name: fmt.Sprintf("nvme%d", i), PCI: fakesys.NVMeAddress(i)}, code, want, got, text+", not lower than usual for its kind"))
		}
		return list
	}
	const halfSpeed, port, isPort, isDisk3 = "8.0 GT/s PCIe", "0000:f0:00.0", "8086:1593 0000:3f:04.0", "144d:a80a 0000:33:03.0"
	slowPort := checktest.Links(port, checktest.NowSpeed, halfSpeed)
	console := checks.Device{Kind: "nic", Name: "eth0", PCI: port}
	had := func(s checktest.Scenario, address, is, figures string) checktest.Scenario {
		return checktest.AsIs(s).Holding("past/pcie-link.json", `{"`+address+`":{"is":"`+is+`",`+figures+`}}`)
	}
	// allDisks returns the finding of each disk.
	allDisks := func(code, want, got, text string) (list []checks.Finding) {
		for i := range 8 {
			list = append(list, checktest.About(name, checks.Device{Kind: "nvme", Name: fmt.Sprintf("nvme%d", i), PCI: fakesys.NVMeAddress(i)},
				checks.Finding{Code: "pcie." + code, Severity: checks.Fail, Remedy: checks.FixConfig, Want: want, Got: got}, text+", as on most devices of its kind"))
		}
		return list
	}
	absent := func(address string) checks.Finding {
		return checktest.About(name, checks.Device{Kind: "pci", PCI: address}, checks.Finding{Code: "pcie.missing", Severity: checks.Fail, Remedy: checks.FixConfig}, "no such device on the bus")
	}
	return []checktest.Scenario{
		checktest.OnFabric("all disks have fewer lanes than wanted", checktest.Of("-w", "16", "nvme"), nil, allDisks("width", "x16", "x4", "PCIe width")...),
		checktest.OnFabric("all disks are slower than wanted", checktest.Of("-s", "5", "nvme"), nil, allDisks("speed", "32 GT/s", "16 GT/s", "PCIe speed")...),
		checktest.OnFabric("no device of a wanted number", checktest.Of("-n", "4", "nvswitch"), nil, count(checks.Fail, checks.FixConfig, "nvswitch", "4", "0")),
		checktest.OnFabric("no device of the wanted addresses", checktest.Of("0000:a1:00.0", "0000:a2:00.0"), nil, absent("0000:a1:00.0"), absent("0000:a2:00.0")),
		checktest.OnFabric("healthy", nil, nil),
		checktest.OnRoCE("healthy, RoCE", nil, nil),
		checktest.OnFabric("as wanted", checktest.Of("-n", "8", "-w", "16", "-s", "5", "infiniband"), nil).
			OrTable(map[string]any{"count": int64(8), "width": int64(16), "speed": "5", "devices": []any{"infiniband"}}),
		checktest.OnFabric("as wanted, by id and address", checktest.Of("-n", "9", "-s", "gen4", "144d:*", "f0:00.0"), nil),
		checktest.OnFabric("as wanted, by class", checktest.Of("-n", "8", "-s", "32GT/s", "0302"), nil),
		checktest.OnFabric("virtual functions are skipped", checktest.Of("-n", "9", "network"), func(n *fakesys.Node) { n.AddVF("mlx5_3", "0000:23:00.1", "mlx5_100", 0x70) }),
		checktest.OnFabric("virtual functions by id", checktest.Of("-n", "1", "15b3:101e"), func(n *fakesys.Node) { n.AddVF("mlx5_3", "0000:23:00.1", "mlx5_100", 0x70) }),
		{Name: "no PCI bus", Want: []checks.Finding{nothing("gpu nvswitch network nvme")}},
		checktest.OnFabric("no such device", checktest.Of("nvswitch"), nil, nothing("nvswitch")),

		checktest.OnFabric("lanes lost", nil, checktest.Links("0000:23:00.0", checktest.NowWidth, "8"), fails(adapter3, "width", "x16", "x8", "PCIe width")),
		checktest.OnFabric("lanes lost of a GPU", nil, checktest.Links("0000:13:00.0", checktest.NowWidth, "8"), fails(gpuOnBus3, "width", "x16", "x8", "PCIe width")),
		checktest.OnFabric("a disk below its speed", nil, checktest.Links("0000:43:00.0", checktest.NowSpeed, "8.0 GT/s PCIe"), fails(disk3, "speed", "16 GT/s", "8 GT/s", "PCIe speed")),
		checktest.OnFabric("all disks below their speed", nil, func(n *fakesys.Node) {
			for i := range 8 {
				n.Set(fakesys.NVMeAddress(i), checktest.NowSpeed, "8.0 GT/s PCIe")
			}
		}, slowDisks...),
		checktest.AsIs(checktest.OnFabric("all disks below their speed, and one below the others", nil, func(n *fakesys.Node) {
			disks(checktest.NowSpeed, halfSpeed, 0, 1, 2, 4, 5, 6, 7)(n)
			disks(checktest.NowSpeed, "5.0 GT/s PCIe", 3)(n)
		}, slices.Insert(usual("speed", "16 GT/s", "8 GT/s", "PCIe speed", 0, 1, 2, 4, 5, 6, 7), 3, fails(disk3, "speed", "16 GT/s", "5 GT/s", "PCIe speed"))...)),
		checktest.AsIs(checktest.OnFabric("all disks with fewer lanes, and one with even fewer", nil, func(n *fakesys.Node) {
			disks(checktest.NowWidth, "2", 0, 1, 2, 4, 5, 6, 7)(n)
			disks(checktest.NowWidth, "1", 3)(n)
		}, slices.Insert(usual("width", "x4", "x2", "PCIe width", 0, 1, 2, 4, 5, 6, 7), 3, fails(disk3, "width", "x4", "x1", "PCIe width"))...)),
		checktest.AsIs(checktest.OnFabric("six disks behind a slow backplane, two in fast slots", nil, disks(checktest.NowSpeed, halfSpeed, 0, 1, 2, 3, 4, 5),
			usual("speed", "16 GT/s", "8 GT/s", "PCIe speed", 0, 1, 2, 3, 4, 5)...)),
		checktest.AsIs(checktest.OnFabric("four disks behind a slow backplane, four in fast slots", nil, disks(checktest.NowSpeed, halfSpeed, 0, 1, 2, 3),
			usual("speed", "16 GT/s", "8 GT/s", "PCIe speed", 0, 1, 2, 3)...)),
		had(checktest.OnFabric("a disk in a fast slot is now as slow as those behind the backplane", nil, disks(checktest.NowSpeed, halfSpeed, 0, 1, 2, 3, 4, 5),
			slices.Insert(usual("speed", "16 GT/s", "8 GT/s", "PCIe speed", 0, 1, 2, 4, 5), 3,
				fails(disk3, "speed", "16 GT/s", "8 GT/s", "PCIe speed is lower than this device had before"))...), fakesys.NVMeAddress(3), isDisk3, `"width":4,"speed":16`),
		had(checktest.OnFabric("all disks below their earlier speed", nil, disks(checktest.NowSpeed, halfSpeed, 0, 1, 2, 3, 4, 5, 6, 7), slowDisks...),
			fakesys.NVMeAddress(3), isDisk3, `"width":4,"speed":16`),
		checktest.OnFabric("the only one of its kind is slow", nil, slowPort, warns(console, "speed", "16 GT/s", "8 GT/s", "PCIe speed, not higher in any earlier run")),
		had(checktest.OnFabric("the only one of its kind is slow, as before", nil, slowPort, warns(console, "speed", "16 GT/s", "8 GT/s", "PCIe speed, not higher in any earlier run")),
			port, isPort, `"width":8,"speed":8`),
		had(checktest.OnFabric("the only one of its kind has become slow", nil, slowPort, fails(console, "speed", "16 GT/s", "8 GT/s", "PCIe speed is lower than this device had before")),
			port, isPort, `"width":8,"speed":16`),
		had(checktest.OnFabric("the only one of its kind has lost lanes", nil, checktest.Links(port, checktest.NowWidth, "2"),
			fails(console, "width", "x4", "x2", "PCIe width is lower than this device had before")), port, isPort, `"width":4,"speed":16`),
		had(checktest.OnFabric("another device at its address is slow", nil, slowPort, warns(console, "speed", "16 GT/s", "8 GT/s", "PCIe speed, not higher in any earlier run")),
			port, "8086:1521 0000:3f:04.0", `"width":8,"speed":16`),
		odd(checktest.OnFabric("the past is garbage", nil, nil, checks.Finding{Code: "fabric.past", Severity: checks.Warn, Message: name + ":  /past/pcie-link.json is damaged; a new history begins"}).
			Holding("past/pcie-link.json", "x")),
		checktest.OnFabric("an idle GPU is slow", nil, checktest.Links("0000:13:00.0", checktest.NowSpeed, "2.5 GT/s PCIe")),
		checktest.OnFabric("a port for management with one lane of two", nil, func(n *fakesys.Node) {
			checktest.Links("0000:f0:00.0", checktest.NowWidth, "1", checktest.MaxWidth, "2", checktest.NowSpeed, "5.0 GT/s PCIe", checktest.MaxSpeed, "5.0 GT/s PCIe")(n)
		}, warns(checks.Device{Kind: "nic", Name: "eth0", PCI: "0000:f0:00.0"}, "width", "x2", "x1", "PCIe width, not higher in any earlier run")),
		checktest.OnFabric("a port for management at half its speed", nil, func(n *fakesys.Node) {
			checktest.Links("0000:f0:00.0", checktest.NowSpeed, "2.5 GT/s PCIe", checktest.MaxSpeed, "5.0 GT/s PCIe")(n)
		}, warns(checks.Device{Kind: "nic", Name: "eth0", PCI: "0000:f0:00.0"}, "speed", "5 GT/s", "2.5 GT/s", "PCIe speed, not higher in any earlier run")),
		checktest.OnFabric("the only one of its kind, with fewer lanes and less speed, below an emulated port", nil, func(n *fakesys.Node) {
			checktest.Links("0000:f0:00.0", checktest.NowWidth, "4", checktest.NowSpeed, "8.0 GT/s PCIe")(n)
			checktest.Links("0000:3f:04.0", "vendor", "0x1b36")(n)
		}),
		checktest.OnFabric("one of eight with fewer lanes, below an emulated port", nil, func(n *fakesys.Node) {
			checktest.Links("0000:23:00.0", checktest.NowWidth, "8")(n)
			checktest.Links("0000:63:01.0", "vendor", "0x1b36")(n)
		}, fails(adapter3, "width", "x16", "x8", "PCIe width")),
		checktest.OnNode(emulated(), "a virtual machine's root ports", checktest.Of("-w", "16", "-s", "5", "gpu", "infiniband")),
		checktest.OnFabric("fewer lanes than wanted", checktest.Of("-w", "4", "nvme"), checktest.Links("0000:43:00.0", checktest.NowWidth, "2", checktest.MaxWidth, "2"), fails(disk3, "width", "x4", "x2", "PCIe width")),
		checktest.OnFabric("slower than wanted", checktest.Of("-s", "4", "nvme"), checktest.Links("0000:43:00.0", checktest.NowSpeed, "8.0 GT/s PCIe", checktest.MaxSpeed, "8.0 GT/s PCIe"),
			fails(disk3, "speed", "16 GT/s", "8 GT/s", "PCIe speed")),
		checktest.OnFabric("a slot of eight lanes", nil, func(n *fakesys.Node) {
			checktest.Links("0000:23:00.0", checktest.NowWidth, "8")(n)
			checktest.Links("0000:63:01.0", checktest.MaxWidth, "8")(n)
		}, warns(adapter3, "slot", "x16", "x8", "PCIe slot has fewer lanes than those of its kind")),
		checktest.OnFabric("a slow slot", nil, checktest.Links("0000:63:00.0", checktest.MaxSpeed, "16.0 GT/s PCIe"),
			warns(gpuOnBus3, "slot", "32 GT/s", "16 GT/s", "PCIe slot is slower than those of its kind")),

		checktest.OnFabric("one is missing", checktest.Of("-n", "8", "infiniband"), func(n *fakesys.Node) { n.Remove("0000:23:00.0") }, count(checks.Fail, checks.ReseatOrRMA, "infiniband", "8", "7")),
		checktest.OnFabric("one too many", checktest.Of("-n", "7", "nvme"), nil, count(checks.Warn, checks.FixConfig, "nvme", "7", "8")),
		checktest.OnFabric("a missing address", checktest.Of("0000:23:00.0"), func(n *fakesys.Node) { n.Remove("0000:23:00.0") },
			checktest.About(name, checks.Device{Kind: "pci", PCI: "0000:23:00.0"}, checks.Finding{Code: "pcie.missing", Severity: checks.Fail, Remedy: checks.ReseatOrRMA}, "no such device on the bus")),
		checktest.OnFabric("one does not answer", nil, checktest.Links("0000:23:00.0", "config", fakesys.Gone),
			checktest.About(name, adapter3, checks.Finding{Code: "pcie.gone", Severity: checks.Fail, Remedy: checks.PowerCycle}, "does not answer: every register reads as ones")),
		checktest.OnFabric("one is switched off", nil, checktest.Links("0000:43:00.0", "config", fakesys.Gone, "power_state", "D3cold")),

		odd(checktest.OnFabric("unreadable registers", nil, checktest.Links("0000:23:00.0", "config/", ""), unknown(adapter3, "read "+of3+"config: is a directory"))),
		odd(checktest.OnFabric("garbage in registers", nil, checktest.Links("0000:23:00.0", "config", "\xfe"), unknown(adapter3, "read "+of3+"config: not a configuration space"))),
		odd(checktest.OnFabric("an unreadable width", nil, checktest.Links("0000:23:00.0", checktest.MaxWidth+"/", ""), unknown(adapter3, "read "+of3+checktest.MaxWidth+": is a directory"))),
		odd(checktest.OnFabric("garbage for a width", nil, checktest.Links("0000:23:00.0", checktest.NowWidth, "x\xff"))),
		odd(checktest.OnFabric("garbage for a wanted width", checktest.Of("-w", "16", "infiniband"), checktest.Links("0000:23:00.0", checktest.NowWidth, "x\xff"), unknown(adapter3, "its link reports no width or speed"))),
		odd(checktest.OnFabric("an unreadable class", checktest.Of("-n", "8", "infiniband"), checktest.Links("0000:23:00.0", "class/", ""),
			unknown(checks.Device{Kind: "pci", PCI: "0000:23:00.0"}, "read "+of3+"class: is a directory"))),
		odd(checktest.Scenario{Name: "unreadable PCI bus", Files: map[string]string{"sys/bus/pci/devices": ""}, Want: checks.Unreadable(fmt.Errorf("read /sys/bus/pci/devices: not a directory"))}),
		checktest.OnFabric("an invalid speed", checktest.Of("-s", "9"), nil, bad("PCIe speed", "9", "a generation, 1 to 7, or a speed in GT/s")),
		checktest.OnFabric("an invalid device", checktest.Of("disk"), nil, bad("device", "disk", "gpu, nvswitch, network, ethernet, infiniband, nvme, bridge, a class, an id or an address")),
	}
})

// One link after another falls and returns: only the links that have fallen fail.
func TestPCIePast(t *testing.T) {
	t.Parallel()
	past := &Past{links: map[string]pastLink{}}
	for step, now := range []struct{ speeds, fail string }{
		{"16 16 16 16", ""}, {"16 16 8 16", "2"}, {"16 16 16 16", ""}, // built so, behind a backplane
		{"16", ""}, {"8", "0"}, {"16", ""}, // the others have disappeared
		{"32 32 32 32", ""}, {"32 16 16 16", "123"}, {"16 16 16 16", ""}, {"16 16 16 8", "3"}, // a change of the BIOS lowers all
	} {
		var links []*Link
		fail := ""
		for i, word := range strings.Fields(now.speeds) {
			speed, _ := parsePCIeSpeed(word)
			at := fmt.Sprintf("0000:4%d:00.0", i)
			links = append(links, &Link{Kind: "disk", Function: pci.Function{Address: at, Width: 4, MaxWidth: 4, Speed: speed, MaxSpeed: 32},
				Slot: pci.Function{Address: "0000:00:01.0", MaxWidth: 4, MaxSpeed: 32}})
		}
		for i, faults := range Judge(links, Want{}, past) {
			for _, f := range faults {
				if f.severity == checks.Fail {
					fail += fmt.Sprint(i)
				}
			}
		}
		if fail != now.fail {
			t.Errorf("step %d, %s: %q fail, want %q", step, now.speeds, fail, now.fail)
		}
	}
}

// Of two links one may be built slower than the other: only a later loss fails, also where no slot is shown.
func TestPCIeOfTwo(t *testing.T) {
	t.Parallel()
	for _, slot := range []pci.Function{{}, {Address: "0000:00:01.0", MaxWidth: 16, MaxSpeed: 32}} {
		past := &Past{links: map[string]pastLink{}}
		for step, now := range []struct {
			second int
			want   checks.Severity
		}{{8, checks.Warn}, {8, checks.Warn}, {16, checks.OK}, {8, checks.Fail}} {
			var links []*Link
			for i, width := range []int{16, now.second} {
				links = append(links, &Link{Kind: "nic", Slot: slot, Function: pci.Function{Address: fmt.Sprintf("0000:4%d:00.0", i), Width: width, MaxWidth: 16, Speed: 32, MaxSpeed: 32}})
			}
			worst := checks.OK
			for _, faults := range Judge(links, Want{}, past) {
				for _, f := range faults {
					worst = max(worst, f.severity)
				}
			}
			if worst != now.want {
				t.Errorf("step %d, slot %q: %v, want %v", step, slot.Address, worst, now.want)
			}
		}
	}
}

func TestPCIeSpeed(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]float64{
		"": 0, "1": 2.5, "5": 32, "gen5": 32, "GEN 6": 64, "7": 128, "8": 8, "16": 16, "32.0 GT/s": 32, "2.5": 2.5, "5GT/s": 5, "5 gt/s": 5, "128": 128,
		"0": -1, "-1": -1, "gen8": -1, "gen2.5": -1, "33": -1, "nan": -1, "1e1": -1, "GT/s": -1, "5 lanes": -1,
	} {
		got, ok := parsePCIeSpeed(word)
		if ok != (want >= 0) || ok && got != want {
			t.Errorf("%q: %v, %v; want %v", word, got, ok, want)
		}
	}
}

func TestPCIeWords(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]pcieWord{
		"gpu": {class: "gpu"}, "NVMe": {class: "010802"}, "0302": {class: "0302"}, "02": {class: "02"}, "15B3:1021": {id: "15b3:1021"}, "15b3:*": {id: "15b3:*"},
		"c1:00.0": {address: "0000:c1:00.0"}, "0001:C1:00.0": {address: "0001:c1:00.0"}, "0000:2?:*": {address: "0000:2?:*"},
		"": {}, "030": {}, "disk": {}, "a:b:c:d": {}, "mlx5_0": {},
	} {
		got, ok := parsePCIeWord(text)
		want.text = text
		if ok != (want.class+want.id+want.address != "") || got != want {
			t.Errorf("%q: %+v, %v", text, got, ok)
		}
	}
}

// A word is refused, or the speed that it gives parses again.
func FuzzPCIeWords(f *testing.F) {
	f.Add("gen5")
	f.Add("32.0 GT/s")
	f.Add("0000:c1:00.0")
	f.Add("15b3:*")
	f.Fuzz(func(t *testing.T, word string) {
		if speed, ok := parsePCIeSpeed(word); ok && speed != 0 {
			if again, ok := parsePCIeSpeed(SpeedText(speed)); !ok || again != speed {
				t.Errorf("%q: %v, then %v", word, speed, again)
			}
		}
		if w, ok := parsePCIeWord(word); ok && strings.TrimSpace(w.class+w.id+w.address) == "" {
			t.Errorf("%q: %+v", word, w)
		}
	})
}
