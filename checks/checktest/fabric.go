package checktest

import (
	"fmt"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// OnFabric returns a scenario on a node with eight GPUs, eight InfiniBand adapters and eight
// disks, changed by change.
func OnFabric(name string, words []string, change func(*fakesys.Node), want ...checks.Finding) Scenario {
	return onSys("fabric", fakesys.DGXH100(), name, words, change, want)
}

// OnRoCE does the same with RoCE adapters.
func OnRoCE(name string, words []string, change func(*fakesys.Node), want ...checks.Finding) Scenario {
	return onSys("roce", fakesys.RoCE(), name, words, change, want)
}

// OnNode returns a scenario on another node, which the self-test does not have.
func OnNode(sys *fakesys.Node, name string, words []string, want ...checks.Finding) Scenario {
	return Scenario{Name: name, Words: words, Files: sys.Files, Links: sys.Links, Past: "/past", Want: want, UnitOnly: true}
}

func onSys(base string, sys *fakesys.Node, name string, words []string, change func(*fakesys.Node), want []checks.Finding) Scenario {
	if change != nil {
		change(sys)
	}
	n := FabricNode(sys)
	return Scenario{Name: name, Words: words, Files: n.Files, Links: n.Links, NVML: n.NVML, Node: base, Want: want}
}

// PortFinding returns a finding about port 1 of adapter i of those nodes.
func PortFinding(check, name string, i int, f checks.Finding, text string) checks.Finding {
	sys := fakesys.DGXH100()
	return About(check, checks.Device{Kind: "port", Name: name + ":1", PCI: fakesys.HCAAddress(i), UUID: strings.TrimSpace(sys.Files[sys.Dir("mlx5_0")+"/node_guid"][:17]) + "0" + string(rune('0'+i))}, f, text)
}

// HCAFinding does the same for the adapter itself.
func HCAFinding(check, name string, i int, f checks.Finding, text string) checks.Finding {
	f = PortFinding(check, name, i, f, text)
	port := f.Device.String()
	f.Device.Kind, f.Device.Name = "hca", name
	f.Message = strings.Replace(f.Message, port, f.Device.String(), 1)
	return f
}

// NVMeFinding returns a finding about disk i of those nodes.
func NVMeFinding(check string, i int, f checks.Finding, text string) checks.Finding {
	return About(check, checks.Device{Kind: "nvme", Name: fmt.Sprintf("nvme%d", i), PCI: fakesys.NVMeAddress(i), Serial: fmt.Sprintf("S6PENN0T0%05d", i)}, f, text)
}

// Switch3 is the PCIe switch above GPU 3.
var Switch3 = checks.Device{Kind: "bridge", PCI: "0000:53:00.0"}

// Links sets files of a device: pairs such as current_link_width, 8, max_link_width, 8.
func Links(device string, words ...string) func(*fakesys.Node) {
	return func(n *fakesys.Node) {
		for i := 0; i+1 < len(words); i += 2 {
			n.Set(device, words[i], words[i+1])
		}
	}
}

// Files of a PCIe device.
const (
	NowWidth = "current_link_width"
	MaxWidth = "max_link_width"
	NowSpeed = "current_link_speed"
	MaxSpeed = "max_link_speed"
)
