package checks

import (
	"fmt"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// onFabric is a line on a node with eight GPUs, eight InfiniBand adapters and eight
// disks, of which something is changed.
func onFabric(name string, words []string, change func(*fakesys.Node), want ...Finding) scenario {
	return onSys("fabric", fakesys.DGXH100(), name, words, change, want)
}

// onRoCE is the same with RoCE adapters.
func onRoCE(name string, words []string, change func(*fakesys.Node), want ...Finding) scenario {
	return onSys("roce", fakesys.RoCE(), name, words, change, want)
}

// onNode is a line on another node, which the self-test has not.
func onNode(sys *fakesys.Node, name string, words []string, want ...Finding) scenario {
	return scenario{name: name, words: words, files: sys.Files, links: sys.Links, past: "/past", want: want, unitOnly: true}
}

func onSys(base string, sys *fakesys.Node, name string, words []string, change func(*fakesys.Node), want []Finding) scenario {
	if change != nil {
		change(sys)
	}
	n := fabricNode(sys)
	return scenario{name: name, words: words, files: n.files, links: n.links, nvml: n.nvml, node: base, want: want}
}

// portFinding is what is said of port 1 of an adapter of those nodes, by its number.
func portFinding(check, name string, i int, f Finding, text string) Finding {
	sys := fakesys.DGXH100()
	f.Device = Device{Kind: "port", Name: name + ":1", PCI: fakesys.HCAAddress(i), UUID: strings.TrimSpace(sys.Files[sys.Dir("mlx5_0")+"/node_guid"][:17]) + "0" + string(rune('0'+i))}
	f.Message = check + ":  " + f.Device.String() + ": " + text + wantGot(f)
	if f.Want == "" && f.Got == "" {
		f.Got = text
	}
	return f
}

// hcaFinding is the same of the adapter itself.
func hcaFinding(check, name string, i int, f Finding, text string) Finding {
	f = portFinding(check, name, i, f, text)
	port := f.Device.String()
	f.Device.Kind, f.Device.Name = "hca", name
	f.Message = strings.Replace(f.Message, port, f.Device.String(), 1)
	return f
}

func nvmeFinding(check string, i int, f Finding, text string) Finding {
	f.Device = Device{Kind: "nvme", Name: fmt.Sprintf("nvme%d", i), PCI: fakesys.NVMeAddress(i), Serial: fmt.Sprintf("S6PENN0T0%05d", i)}
	f.Message = check + ":  " + f.Device.String() + ": " + text + wantGot(f)
	if f.Want == "" && f.Got == "" {
		f.Got = text
	}
	return f
}

// switch3 is the PCIe switch above GPU 3.
var switch3 = Device{Kind: "bridge", PCI: "0000:53:00.0"}

// links sets files of a device in turn: current_link_width, 8, max_link_width, 8.
func links(device string, words ...string) func(*fakesys.Node) {
	return func(n *fakesys.Node) {
		for i := 0; i+1 < len(words); i += 2 {
			n.Set(device, words[i], words[i+1])
		}
	}
}

const (
	nowWidth, maxWidth = "current_link_width", "max_link_width"
	nowSpeed, maxSpeed = "current_link_speed", "max_link_speed"
)
