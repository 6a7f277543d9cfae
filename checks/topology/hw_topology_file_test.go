package topology

import (
	"fmt"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

const topologyPath = "/etc/nhc/topology.xml"

// ncclTopology returns NCCL's file of a DGX H100.
func ncclTopology() string {
	var b strings.Builder
	b.WriteString("<system version=\"1\">\n")
	for numa := range 2 {
		fmt.Fprintf(&b, "<cpu numaid=\"%d\" affinity=\"00000000,ffffffff\" arch=\"x86_64\">\n", numa)
		for i := numa * 4; i < numa*4+4; i++ {
			at := railBridges(i, "00")
			fmt.Fprintf(&b, "<pci busid=%q class=\"0x060400\"><pci busid=%q class=\"0x060400\" link_width=\"16\">\n", at[0], at[1])
			fmt.Fprintf(&b, "<pci busid=%q class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\"><gpu dev=\"%d\" sm=\"90\"/></pci>\n", fakenvml.Address(i), i)
			fmt.Fprintf(&b, "<pci busid=%q class=\"0x020700\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\"><nic><net name=\"mlx5_%d\"/></nic></pci>\n", fakesys.HCAAddress(i), i)
			b.WriteString("</pci></pci>\n")
		}
		b.WriteString("</cpu>\n")
	}
	return b.String() + "</system>\n"
}

// lineOf returns the line of a device in the file.
func lineOf(text, address string) string {
	before, _, _ := strings.Cut(text, address)
	return fmt.Sprintf("%s:%d", topologyPath, 1+strings.Count(before, "\n"))
}

// lstopoTopology returns lstopo's file of the same node, with disks and other objects.
func lstopoTopology() string {
	var b strings.Builder
	b.WriteString("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">\n<object type=\"Machine\" nodeset=\"0x00000003\">\n")
	for i := range 8 {
		if i%4 == 0 {
			fmt.Fprintf(&b, "<object type=\"Package\" nodeset=\"0x0000000%d\"><object type=\"NUMANode\" os_index=\"%d\" nodeset=\"0x0000000%[1]d\"/>\n", 1+i/4, i/4)
		}
		at := railBridges(i, "00")
		fmt.Fprintf(&b, "<object type=\"Bridge\" bridge_type=\"0-1\"><object type=\"Bridge\" bridge_type=\"1-1\" pci_busid=%q pci_type=\"0604 [1000:c030]\">\n", at[0])
		fmt.Fprintf(&b, "<object type=\"PCIDev\" pci_busid=%q pci_type=\"0302 [10de:2330] [10de:16c1] a1\"/>\n", fakenvml.Address(i))
		fmt.Fprintf(&b, "<object type=\"PCIDev\" pci_busid=%q pci_type=\"0207 [15b3:1021] [15b3:0041] 00\"><object type=\"OSDev\" name=\"mlx5_%d\"/></object>\n", fakesys.HCAAddress(i), i)
		fmt.Fprintf(&b, "</object><object type=\"PCIDev\" pci_busid=%q pci_type=\"0108 [144d:a80a] [144d:aa8b] 00\"/>\n</object>\n", fakesys.NVMeAddress(i))
		if i%4 == 3 {
			b.WriteString("</object>\n")
		}
	}
	b.WriteString("<object type=\"PCIDev\" pci_busid=\"0000:99:00.0\" pci_type=\"0300 [1a03:2000] [1a03:2000] 41\"/>\n")
	return b.String() + "</object>\n</topology>\n"
}

var _ = checktest.Table("check_hw_topology", func(name string) []checktest.Scenario {
	words := checktest.Of(topologyPath)
	nccl, lstopo := ncclTopology(), lstopoTopology()
	on := func(name, file string, change func(*fakesys.Node), want ...checks.Finding) checktest.Scenario {
		return checktest.AsIs(checktest.OnFabric(name, words, change, want...).Holding(topologyPath[1:], file))
	}
	at := func(kind string, i int, f checks.Finding, text, address string) checks.Finding {
		return topologyFinding(kind, i, f, strings.ReplaceAll(text, "FILE", lineOf(nccl, address)))
	}
	gpu, hca := fakenvml.Address(3), fakesys.HCAAddress(3)
	missing := checks.Finding{Code: "topology.missing", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: "a GPU", Got: "none"}
	adapter := missing
	adapter.Want = "a network adapter"
	disk := missing
	disk.Want = "an NVMe disk"
	wrongNUMA := checks.Finding{Code: "topology.numa", Severity: checks.Fail, Want: "NUMA node 0", Got: "1"}
	noNUMA := checks.Finding{Code: "topology.numa", Severity: checks.Warn, Want: "NUMA node 0", Got: "none"}
	place := checks.Finding{Code: "topology.place", Severity: checks.Fail, Want: "below the bridge 0000:53:00.0", Got: "below the host 0000:33:02.0"}
	width := checks.Finding{Code: "topology.width", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: "x16", Got: "x8"}
	without := strings.Replace(nccl, fmt.Sprintf("<pci busid=%q class=\"0x030200\"", gpu), `<pci busid="0000:99:00.0" class="0x040300"`, 1)
	fileSays := func(text string) checks.Finding {
		return checks.Finding{Code: "topology.file", Severity: checks.Unknown, Remedy: checks.FixConfig, Message: name + ":  " + text}
	}
	broken := func(s checktest.Scenario) checktest.Scenario {
		s.Broken = true
		return s
	}
	hidden := strings.NewReplacer("0000:3", "ffff:3", "0000:5", "ffff:5").Replace(nccl) // as in a virtual machine
	var narrow, noDisks []checks.Finding
	for i := range 8 {
		misfiled, noDisk := width, disk
		misfiled.Remedy, noDisk.Remedy = checks.FixConfig, checks.FixConfig
		narrow = append(narrow, at("gpu", i, misfiled, "has fewer lanes than in FILE", fakenvml.Address(i)))
		noDisks = append(noDisks, topologyFinding("nvme", i, noDisk, "is in "+lineOf(lstopo, fakesys.NVMeAddress(i))+", but not on the PCI bus"))
	}
	return []checktest.Scenario{
		on("all GPUs have fewer lanes than in the file", nccl, func(n *fakesys.Node) {
			for i := range 8 {
				n.HalfWidth(fakenvml.Address(i))
			}
		}, narrow...),
		on("all disks of the file are missing", lstopo, func(n *fakesys.Node) {
			for i := range 8 {
				n.Remove(fakesys.NVMeAddress(i))
			}
		}, noDisks...),
		on("as in a file of NCCL", nccl, nil).OrTable(map[string]any{"file": topologyPath}),
		on("as in a file of lstopo", lstopo, nil),
		on("a disk of the file is missing", lstopo, func(n *fakesys.Node) { n.Remove(fakesys.NVMeAddress(3)) }, topologyFinding("nvme", 3, disk, "is in "+lineOf(lstopo, "0000:43")+", but not on the PCI bus")),
		on("a file with invented bridges", hidden, nil),
		on("a GPU of the file is missing", nccl, func(n *fakesys.Node) { n.Remove(gpu) }, at("gone", 3, missing, "is in FILE, but not on the PCI bus", gpu)),
		on("an adapter of the file is missing", nccl, func(n *fakesys.Node) { n.Remove(hca) },
			checks.Finding{Code: adapter.Code, Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: adapter.Want, Got: "none", Device: checks.Device{Kind: "hca", PCI: hca}, Message: name + ":  " + hca + ": is in " + lineOf(nccl, hca) + ", but not on the PCI bus, want a network adapter, got none"}),
		on("a GPU that is not in the file", without, nil, topologyFinding("gpu", 3, checks.Finding{Code: "topology.extra", Severity: checks.Warn}, "is not in "+topologyPath)),
		on("a GPU on another NUMA node", nccl, func(n *fakesys.Node) { n.Set(gpu, "numa_node", "1") }, at("gpu", 3, wrongNUMA, "is in another place than in FILE", gpu)),
		on("a GPU on no NUMA node", nccl, func(n *fakesys.Node) { n.Set(gpu, "numa_node", "-1") }, at("gpu", 3, noNUMA, "is in another place than in FILE", gpu)),
		on("an adapter below another bridge", nccl, func(n *fakesys.Node) { n.Move(hca, "0000:33:02.0") }, at("hca", 3, place, "is in another place than in FILE", hca)),
		on("a GPU with half its lanes", nccl, func(n *fakesys.Node) { n.HalfWidth(gpu) }, at("gpu", 3, width, "has fewer lanes than in FILE", gpu)),
		on("a GPU that does not support so many lanes", nccl, func(n *fakesys.Node) { n.HalfWidth(gpu).Set(gpu, "max_link_width", "8") }),
		on("a virtual function", nccl, func(n *fakesys.Node) { n.HalfWidth(hca).Set(hca, "device", "0x101e") }),
		on("no adapter in the file", strings.ReplaceAll(nccl, "0x020700", "0x040300"), nil),
		on("the file, and near adapters", nccl, func(n *fakesys.Node) { n.Move(hca, "0000:33:02.0") }, at("hca", 3, place, "is in another place than in FILE", hca),
			topologyFinding("gpu", 3, checks.Finding{Code: "topology.far", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: oneSwitch, Got: oneHost}, "its adapter should be mlx5_3 0000:23:00.0, which is not near to any GPU")).Saying("-l", "switch", topologyPath),
		on("a file of another kind of node", strings.ReplaceAll(nccl, `busid="0000:`, `busid="0007:`), nil, fileSays(topologyPath+" is of another kind of node: this node has none of its 16 devices")),
		broken(on("no file", "", nil, fileSays("read "+topologyPath+": no such file or directory")).Lacking(topologyPath[1:])),
		broken(on("garbage", "<system>\n<cpu numaid=\"x\">\n", nil, fileSays(topologyPath+`:2: numaid "x": want the number of a NUMA node`))),
		broken(on("half of the file", nccl[:len(nccl)/2], nil, fileSays(fmt.Sprintf("%s:%d: unexpected EOF", topologyPath, 1+strings.Count(nccl[:len(nccl)/2], "\n"))))),
		broken(on("a GPU of the file that cannot be read", nccl, func(n *fakesys.Node) { n.Set(gpu, "numa_node", "-").Set(gpu, "numa_node/", "") },
			topologyFinding("gpu", 3, checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown}, "cannot be read: read /sys/bus/pci/devices/0000:13:00.0/numa_node: is a directory"))),
		broken(on("a disk of the file that cannot be read", lstopo, func(n *fakesys.Node) {
			n.Set(fakesys.NVMeAddress(3), "numa_node", "-").Set(fakesys.NVMeAddress(3), "numa_node/", "")
		}, topologyFinding("nvme", 3, checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown}, "cannot be read: read /sys/bus/pci/devices/0000:43:00.0/numa_node: is a directory"))),
	}
})
