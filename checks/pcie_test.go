package checks

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// adapter3, disk3, and gpuOnBus3 are devices of the node, as these checks name them.
var (
	adapter3  = Device{Kind: "nic", Name: "mlx5_3", PCI: "0000:23:00.0"}
	disk3     = Device{Kind: "nvme", Name: "nvme3", PCI: "0000:43:00.0"}
	gpuOnBus3 = Device{Kind: "gpu", PCI: "0000:13:00.0", Serial: fakenvml.Serial(3), UUID: fakenvml.UUID(3)}
	port3     = Device{Kind: "bridge", PCI: "0000:63:01.0"} // of the switch, above the adapter
)

// emulated is a virtual machine of QEMU that was given whole devices: its root
// ports are PCIe 1 with one lane, whatever runs below them.
func emulated() *fakesys.Node {
	n := fakesys.DGXH100()
	for i := range 8 {
		for _, port := range []string{"0000:6%d:00.0", "0000:6%d:01.0"} {
			n.Set(fmt.Sprintf(port, i), "vendor", "0x1b36")
			links(fmt.Sprintf(port, i), nowWidth, "1", maxWidth, "1", nowSpeed, "2.5 GT/s PCIe", maxSpeed, "2.5 GT/s PCIe")(n)
		}
	}
	return n
}

func TestPCIe(t *testing.T) { testCheck(t, "check_pcie") }

var _ = table("check_pcie", func(name string) []scenario {
	fails := func(d Device, code, want, got, text string) Finding {
		return about(name, d, Finding{Code: "pcie." + code, Severity: Fail, Remedy: ReseatOrRMA, Want: want, Got: got}, text)
	}
	warns := func(d Device, code, want, got, text string) Finding {
		return about(name, d, Finding{Code: "pcie." + code, Severity: Warn, Want: want, Got: got}, text)
	}
	odd := func(s scenario) scenario {
		s.broken = true
		return s
	}
	unknown := func(d Device, text string) Finding { return pcieUnknown(name, d, fmt.Errorf("%s", text)) }
	bad := func(what, got, want string) Finding { return badWord(name, what, got, want) }
	const of3 = "/sys/bus/pci/devices/0000:23:00.0/"
	nothing := func(words string) Finding {
		return Finding{Code: "pcie.none", Severity: Skip, Message: name + ":  no such device on this node: " + words}
	}
	count := func(severity Severity, remedy Remedy, words, want, got string) Finding {
		return Finding{Code: "pcie.count", Severity: severity, Remedy: remedy, Want: want, Got: got,
			Message: name + ":  devices on the PCI bus (" + words + "), want " + want + ", got " + got}
	}
	var slowDisks []Finding
	for i := range 8 {
		slowDisks = append(slowDisks, warns(Device{Kind: "nvme", Name: fmt.Sprintf("nvme%d", i), PCI: fakesys.NVMeAddress(i)}, "speed", "16 GT/s", "8 GT/s", "PCIe speed, as all of its kind"))
	}
	return []scenario{
		onFabric("healthy", nil, nil),
		onRoCE("healthy, RoCE", nil, nil),
		onFabric("as wanted", of("-n", "8", "-w", "16", "-s", "5", "infiniband"), nil).
			orTable(map[string]any{"count": int64(8), "width": int64(16), "speed": "5", "devices": []any{"infiniband"}}),
		onFabric("as wanted, by id and address", of("-n", "9", "-s", "gen4", "144d:*", "f0:00.0"), nil),
		onFabric("as wanted, by class", of("-n", "8", "-s", "32GT/s", "0302"), nil),
		onFabric("virtual functions are left out", of("-n", "9", "network"), func(n *fakesys.Node) { n.AddVF("mlx5_3", "0000:23:00.1", "mlx5_100", 0x70) }),
		onFabric("virtual functions by id", of("-n", "1", "15b3:101e"), func(n *fakesys.Node) { n.AddVF("mlx5_3", "0000:23:00.1", "mlx5_100", 0x70) }),
		{name: "no PCI bus", want: []Finding{nothing("gpu nvswitch network nvme")}},
		onFabric("no such device", of("nvswitch"), nil, nothing("nvswitch")),

		onFabric("lanes lost", nil, links("0000:23:00.0", nowWidth, "8"), fails(adapter3, "width", "x16", "x8", "PCIe width")),
		onFabric("lanes lost of a GPU", nil, links("0000:13:00.0", nowWidth, "8"), fails(gpuOnBus3, "width", "x16", "x8", "PCIe width")),
		onFabric("a disk below its speed", nil, links("0000:43:00.0", nowSpeed, "8.0 GT/s PCIe"), fails(disk3, "speed", "16 GT/s", "8 GT/s", "PCIe speed")),
		onFabric("all disks below their speed", nil, func(n *fakesys.Node) {
			for i := range 8 {
				n.Set(fakesys.NVMeAddress(i), nowSpeed, "8.0 GT/s PCIe")
			}
		}, slowDisks...),
		onFabric("an idle GPU is slow", nil, links("0000:13:00.0", nowSpeed, "2.5 GT/s PCIe")),
		onFabric("a port for management with one lane of two", nil, func(n *fakesys.Node) {
			links("0000:f0:00.0", nowWidth, "1", maxWidth, "2", nowSpeed, "5.0 GT/s PCIe", maxSpeed, "5.0 GT/s PCIe")(n)
		}, warns(Device{Kind: "nic", Name: "eth0", PCI: "0000:f0:00.0"}, "width", "x2", "x1", "PCIe width")),
		onFabric("a port for management at half its speed", nil, func(n *fakesys.Node) {
			links("0000:f0:00.0", nowSpeed, "2.5 GT/s PCIe", maxSpeed, "5.0 GT/s PCIe")(n)
		}, warns(Device{Kind: "nic", Name: "eth0", PCI: "0000:f0:00.0"}, "speed", "5 GT/s", "2.5 GT/s", "PCIe speed")),
		onFabric("one of its kind with fewer lanes and speed, below the port of a virtual machine", nil, func(n *fakesys.Node) {
			links("0000:f0:00.0", nowWidth, "4", nowSpeed, "8.0 GT/s PCIe")(n)
			links("0000:3f:04.0", "vendor", "0x1b36")(n)
		}),
		onFabric("one of eight with fewer lanes, below the port of a virtual machine", nil, func(n *fakesys.Node) {
			links("0000:23:00.0", nowWidth, "8")(n)
			links("0000:63:01.0", "vendor", "0x1b36")(n)
		}, fails(adapter3, "width", "x16", "x8", "PCIe width")),
		onNode(emulated(), "a virtual machine's root ports", of("-w", "16", "-s", "5", "gpu", "infiniband")),
		onFabric("fewer lanes than wanted", of("-w", "4", "nvme"), links("0000:43:00.0", nowWidth, "2", maxWidth, "2"), fails(disk3, "width", "x4", "x2", "PCIe width")),
		onFabric("slower than wanted", of("-s", "4", "nvme"), links("0000:43:00.0", nowSpeed, "8.0 GT/s PCIe", maxSpeed, "8.0 GT/s PCIe"),
			fails(disk3, "speed", "16 GT/s", "8 GT/s", "PCIe speed")),
		onFabric("a slot of eight lanes", nil, func(n *fakesys.Node) {
			links("0000:23:00.0", nowWidth, "8")(n)
			links("0000:63:01.0", maxWidth, "8")(n)
		}, warns(adapter3, "slot", "x16", "x8", "PCIe slot has fewer lanes than those of its kind")),
		onFabric("a slot that is slow", nil, links("0000:63:00.0", maxSpeed, "16.0 GT/s PCIe"),
			warns(gpuOnBus3, "slot", "32 GT/s", "16 GT/s", "PCIe slot is slower than those of its kind")),

		onFabric("one is missing", of("-n", "8", "infiniband"), func(n *fakesys.Node) { n.Remove("0000:23:00.0") }, count(Fail, ReseatOrRMA, "infiniband", "8", "7")),
		onFabric("one too many", of("-n", "7", "nvme"), nil, count(Warn, FixConfig, "nvme", "7", "8")),
		onFabric("one that is named is missing", of("0000:23:00.0"), func(n *fakesys.Node) { n.Remove("0000:23:00.0") },
			about(name, Device{Kind: "pci", PCI: "0000:23:00.0"}, Finding{Code: "pcie.missing", Severity: Fail, Remedy: ReseatOrRMA}, "no such device on the bus")),
		onFabric("one does not answer", nil, links("0000:23:00.0", "config", fakesys.Gone),
			about(name, adapter3, Finding{Code: "pcie.gone", Severity: Fail, Remedy: RebootNode}, "does not answer: every register reads as ones")),
		onFabric("one is switched off", nil, links("0000:43:00.0", "config", fakesys.Gone, "power_state", "D3cold")),

		odd(onFabric("unreadable registers", nil, links("0000:23:00.0", "config/", ""), unknown(adapter3, "read "+of3+"config: is a directory"))),
		odd(onFabric("garbage in registers", nil, links("0000:23:00.0", "config", "\xfe"), unknown(adapter3, "read "+of3+"config: not a configuration space"))),
		odd(onFabric("an unreadable width", nil, links("0000:23:00.0", maxWidth+"/", ""), unknown(adapter3, "read "+of3+maxWidth+": is a directory"))),
		odd(onFabric("garbage for a width", nil, links("0000:23:00.0", nowWidth, "x\xff"))),
		odd(onFabric("garbage for a width that is wanted", of("-w", "16", "infiniband"), links("0000:23:00.0", nowWidth, "x\xff"), unknown(adapter3, "its link tells no width or speed"))),
		odd(onFabric("an unreadable class", of("-n", "8", "infiniband"), links("0000:23:00.0", "class/", ""),
			unknown(Device{Kind: "pci", PCI: "0000:23:00.0"}, "read "+of3+"class: is a directory"))),
		odd(scenario{name: "unreadable PCI bus", files: map[string]string{"sys/bus/pci/devices": ""}, want: unreadable(fmt.Errorf("read /sys/bus/pci/devices: not a directory"))}),
		onFabric("a speed that is none", of("-s", "9"), nil, bad("PCIe speed", "9", "a generation, 1 to 7, or a speed in GT/s")),
		onFabric("a device that is none", of("disk"), nil, bad("device", "disk", "gpu, nvswitch, network, ethernet, infiniband, nvme, bridge, a class, an id or an address")),
	}
})

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

// A word is refused, or means something and comes back as what is written for a person.
func FuzzPCIeWords(f *testing.F) {
	f.Add("gen5")
	f.Add("32.0 GT/s")
	f.Add("0000:c1:00.0")
	f.Add("15b3:*")
	f.Fuzz(func(t *testing.T, word string) {
		if speed, ok := parsePCIeSpeed(word); ok && speed != 0 {
			if again, ok := parsePCIeSpeed(speedText(speed)); !ok || again != speed {
				t.Errorf("%q: %v, then %v", word, speed, again)
			}
		}
		if w, ok := parsePCIeWord(word); ok && strings.TrimSpace(w.class+w.id+w.address) == "" {
			t.Errorf("%q: %+v", word, w)
		}
	})
}
