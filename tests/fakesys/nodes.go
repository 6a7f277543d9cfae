package fakesys

import (
	"fmt"
	"maps"
	"strings"
)

// These are the nodes. The addresses are invented, except for the topology: a GPU and its HCA below
// one switch, disks below their own root ports.

const (
	gen4 = "16.0 GT/s PCIe"
	gen5 = "32.0 GT/s PCIe"
	gen6 = "64.0 GT/s PCIe"
)

// gpuAddress returns the address of a GPU, the same as in fakenvml.
func gpuAddress(i int) string { return fmt.Sprintf("0000:%02x:00.0", 0x10+i) }

// HCAAddress returns the address of the HCA next to the GPU with that index.
func HCAAddress(i int) string { return fmt.Sprintf("0000:%02x:00.0", 0x20+i) }

// NVMeAddress returns the address of the disk with that index.
func NVMeAddress(i int) string { return fmt.Sprintf("0000:%02x:00.0", 0x40+i) }

// rail has a GPU, its HCA and a disk, near to each other.
type rail struct {
	gpu, subsystem string // ids: 10de:2330
	hca            HCA    // without name and address
	name, net      string // patterns: mlx5_%d, ib%d
	speed          string
	numa           int
	direct         bool // no switch: GPU and HCA have their own root ports
}

func (n *Node) addRail(i int, r rail) {
	root, up := fmt.Sprintf("0000:%02x:01.0", 0x30+i), fmt.Sprintf("0000:%02x:00.0", 0x50+i)
	toGPU, toHCA := fmt.Sprintf("0000:%02x:00.0", 0x60+i), fmt.Sprintf("0000:%02x:01.0", 0x60+i)
	gpu, hca := []string{root, up, toGPU}, []string{root, up, toHCA}
	if r.direct {
		gpu, hca = []string{root}, []string{fmt.Sprintf("0000:%02x:02.0", 0x30+i)}
	}
	if r.gpu != "" {
		n.AddPCI(PCI{Address: gpuAddress(i), Above: gpu, Class: "030200", ID: r.gpu, Driver: "nvidia", NUMA: r.numa, Speed: r.speed, Width: 16})
		vendor, device, _ := strings.Cut(r.subsystem, ":")
		n.Set(gpuAddress(i), "subsystem_vendor", "0x"+vendor).Set(gpuAddress(i), "subsystem_device", "0x"+device)
	}
	a := r.hca
	a.Address, a.Above, a.NUMA, a.Speed, a.Width, a.Index = HCAAddress(i), hca, r.numa, r.speed, 16, i
	a.Driver = "mlx5_core"
	if a.Name = r.name; strings.Contains(r.name, "%") {
		a.Name = fmt.Sprintf(r.name, i)
	}
	if r.net != "" {
		a.NetDev = fmt.Sprintf(r.net, i)
	}
	n.AddHCA(a)
}

// Models of HCAs.
var (
	cx6   = HCA{PCI: PCI{ID: "15b3:101b"}, Type: "MT4123", Board: "MT_0000000223", Fw: "20.38.1002", Layer: "InfiniBand", Rate: "200 Gb/sec (4X HDR)"}
	cx7   = HCA{PCI: PCI{ID: "15b3:1021"}, Type: "MT4129", Board: "MT_0000000838", Fw: "28.39.2048", Layer: "InfiniBand", Rate: "400 Gb/sec (4X NDR)"}
	cx7vf = HCA{PCI: PCI{ID: "15b3:101e"}, Type: "MT4126", Board: "MT_0000000838", Fw: "28.39.2048", Layer: "InfiniBand", Rate: "400 Gb/sec (4X NDR)"}
	cx8   = HCA{PCI: PCI{ID: "15b3:1023"}, Type: "MT4131", Board: "MT_0000001236", Fw: "40.45.1020", Layer: "InfiniBand", Rate: "200 Gb/sec (2X NDR)"}
	roce  = HCA{PCI: PCI{ID: "15b3:1021"}, Type: "MT4129", Board: "MT_0000000834", Fw: "28.39.2048", Layer: "Ethernet", Rate: "400 Gb/sec (4X NDR)"}
)

// modules are the kernel modules that RDMA needs, in addition to those of GPUs.
const modules = "nvidia_peermem 16384 0 - Live 0x0\nib_umad 1 8 - Live 0x0\nib_uverbs 1 2 rdma_ucm,mlx5_ib, Live 0x0\nrdma_ucm 1 0 - Live 0x0\nrdma_cm 1 1 rdma_ucm, Live 0x0\n" +
	"ib_cm 1 1 rdma_cm, Live 0x0\nmlx5_ib 1 0 - Live 0x0\nib_core 1 7 rdma_cm,ib_uverbs,mlx5_ib, Live 0x0\nib_ipoib 1 0 - Live 0x0\nmlx5_core 1 1 mlx5_ib, Live 0x0\n" +
	"nvidia_uvm 1 0 - Live 0x0\nnvidia 1 1 nvidia_uvm, Live 0x0\n"

// eightRails returns a node with eight GPUs, each with an HCA and a disk, and a front end.
func eightRails(r rail, frontEnd bool) *Node {
	n := New().AddNameServers()
	for i := range 8 {
		r.numa = i / 4
		n.addRail(i, r)
		n.AddNVMe(PCI{Address: NVMeAddress(i), Above: []string{fmt.Sprintf("0000:%02x:03.0", 0x30+i)}, ID: "144d:a80a", NUMA: i / 4, Speed: gen4, Width: 4}, i)
	}
	n.Files["proc/modules"] = modules
	if frontEnd {
		n.AddPCI(PCI{Address: "0000:f0:00.0", Above: []string{"0000:3f:04.0"}, Class: "020000", ID: "8086:1593", Driver: "ice", NUMA: 0, Speed: gen4, Width: 8})
		n.AddNet(Net{Name: "eth0", PCI: "0000:f0:00.0", Speed: "25000", Index: 0xf0})
		n.DefaultRoute("eth0")
	}
	return n
}

// DGXH100 has eight H100, eight ConnectX-7 at 400 Gb/s, and eight disks. Selftest starts from it,
// so its devices differ in the one digit of their number.
func DGXH100() *Node {
	return eightRails(rail{gpu: "10de:2330", subsystem: "10de:16c1", hca: cx7, name: "mlx5_%d", net: "ib%d", speed: gen5}, true).AddEDAC()
}

// DGXH200 is the same with H200, and two more HCAs for storage.
func DGXH200() *Node {
	n := eightRails(rail{gpu: "10de:2335", subsystem: "10de:18be", hca: cx7, name: "mlx5_%d", net: "ib%d", speed: gen5}, true)
	for i := 8; i < 10; i++ {
		a := cx7
		a.PCI = PCI{Address: HCAAddress(i), Above: []string{fmt.Sprintf("0000:%02x:01.0", 0x30+i)}, ID: cx7.ID, Driver: "mlx5_core", NUMA: i - 8, Speed: gen5, Width: 16}
		a.Name, a.NetDev, a.Index = fmt.Sprintf("mlx5_%d", i), fmt.Sprintf("ib%d", i), i
		n.AddHCA(a)
	}
	return n
}

// DGXA100 has eight A100 and eight ConnectX-6 at 200 Gb/s, on PCIe 4.
func DGXA100() *Node {
	return eightRails(rail{gpu: "10de:20b2", subsystem: "10de:147f", hca: cx6, name: "mlx5_%d", net: "ib%d", speed: gen4}, true)
}

// HGXB200 has eight B200 and eight ConnectX-7, named by their location.
func HGXB200() *Node {
	return eightRails(rail{gpu: "10de:2901", subsystem: "10de:1999", hca: cx7, name: "ibp%ds0", net: "ibs%d", speed: gen5}, true)
}

// NDH100v5 is the virtual machine of Azure: its HCAs are virtual functions without visible physical
// ones, and mlx5_an0 is its Ethernet.
func NDH100v5() *Node {
	n := eightRails(rail{gpu: "10de:2330", subsystem: "10de:16c1", hca: cx7vf, name: "mlx5_ib%d", net: "ib%d", speed: gen5, direct: true}, false)
	an := roce
	an.PCI = PCI{Address: "0001:00:02.0", ID: "15b3:101a", Driver: "mlx5_core", NUMA: 0, Speed: "Unknown", Width: 0}
	an.Name, an.NetDev, an.Rate, an.Type, an.Index = "mlx5_an0", "eth1", "100 Gb/sec (4X EDR)", "MT4120", 0xa0
	n.AddHCA(an)
	n.AddNet(Net{Name: "eth0", Speed: "100000", Index: 0xa1}) // the synthetic interface, above eth1
	n.Links[n.Dir("eth0")+"/lower_eth1"] = "../../../" + strings.TrimPrefix(n.Dir("eth1"), "sys/devices/")
	n.DefaultRoute("eth0")
	return n
}

// GB200 is a tray: four GPUs without a PCIe connection to the four HCAs, and two BlueField-3.
func GB200() *Node {
	n := New()
	for i, name := range []string{"mlx5_0", "mlx5_1", "mlx5_3", "mlx5_4"} {
		n.addRail(i, rail{gpu: "10de:2941", subsystem: "10de:2046", hca: cx7, name: name, net: "ib%d", speed: gen5, numa: i / 2, direct: true})
	}
	for i, name := range []string{"mlx5_2", "mlx5_5"} {
		bf := HCA{PCI: PCI{Address: HCAAddress(8 + i), Above: []string{fmt.Sprintf("0000:%02x:01.0", 0x38+i)}, ID: "15b3:a2dc", Driver: "mlx5_core", NUMA: i, Speed: gen5, Width: 16},
			Name: name, Type: "MT41692", Board: "MT_0000000884", Fw: "32.41.1000", Layer: "Ethernet", Rate: "200 Gb/sec (2X NDR)", NetDev: fmt.Sprintf("eth%d", i), Index: 8 + i}
		n.AddHCA(bf)
	}
	n.Files["proc/modules"] = modules
	n.DefaultRoute("eth0")
	return n
}

// CX8 has eight B300 and eight ConnectX-8, whose links are four planes each.
func CX8() *Node {
	a := cx8
	for p := range 12 {
		a.Ports = append(a.Ports, fmt.Sprint(p+1))
	}
	n := eightRails(rail{gpu: "10de:3182", subsystem: "10de:2061", hca: a, name: "mlx5_%d", speed: gen6}, true)
	for i := range 8 {
		for p := 1; p <= 12; p++ {
			if p%3 != 0 { // the others are not cabled
				port := fmt.Sprintf("ports/%d/", p)
				n.Set(fmt.Sprintf("mlx5_%d", i), port+"state", "1: DOWN").Set(fmt.Sprintf("mlx5_%d", i), port+"phys_state", "3: Disabled")
			}
		}
	}
	return n
}

// RoCE has eight H100 and eight ConnectX-7 in Ethernet mode.
func RoCE() *Node {
	return eightRails(rail{gpu: "10de:2330", subsystem: "10de:16c1", hca: roce, name: "rocep%ds0", net: "eth1%d", speed: gen5}, true)
}

// EthernetOnly has eight GPUs, a front end, and no RDMA device.
func EthernetOnly() *Node {
	n := DGXH100()
	for i := range 8 {
		n.Remove(HCAAddress(i))
	}
	delete(n.Files, "sys/class/infiniband_mad/abi_version")
	delete(n.Files, "sys/class/infiniband_verbs/abi_version")
	n.Files["proc/modules"] = "nvidia_uvm 1 0 - Live 0x0\nnvidia 1 1 nvidia_uvm, Live 0x0\n"
	return n
}

// NoRDMA removes an RDMA device, but not its function on the bus.
func (n *Node) NoRDMA(device string) *Node {
	dir := n.Dir(device)
	maps.DeleteFunc(n.Files, func(f, _ string) bool { return strings.HasPrefix(f, dir+"/") })
	delete(n.Links, "sys/class/infiniband/"+device)
	delete(n.Links, dir+"/device")
	return n
}

// NoGIDs removes the GIDs of a port from an index on.
func (n *Node) NoGIDs(device string, from int) *Node {
	for i := from; i < 4; i++ {
		n.Set(device, fmt.Sprintf("ports/1/gids/%d", i), "0000:0000:0000:0000:0000:0000:0000:0000")
	}
	return n
}

// DefaultRoute6 adds an IPv6 default route over an interface, in any table.
func (n *Node) DefaultRoute6(dev string) *Node {
	const none = "00000000000000000000000000000000"
	n.Files["proc/net/ipv6_route"] += none + " 00 " + none + " 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003 " + dev + "\n"
	return n
}

// Down disconnects the cable of a device. Drivers report Disabled for an Ethernet port without a
// carrier (mlx5_query_port_roce, bnxt_re_query_port, irdma_query_port).
func (n *Node) Down(device string) *Node {
	phys := "2: Polling"
	if strings.TrimSpace(n.Files[n.Port(device)+"link_layer"]) == "Ethernet" {
		phys = "3: Disabled"
		dir, _, _ := strings.Cut(n.Dir(device), "/infiniband/")
		for net, at := range n.at {
			if strings.HasPrefix(at, dir+"/net/") {
				n.unplugged(net)
			}
		}
	}
	return n.Set(device, "ports/1/state", "1: DOWN").Set(device, "ports/1/phys_state", phys).Set(device, "ports/1/rate", "10 Gb/sec (4X SDR)")
}

// HalfRate makes a link train with half of its lanes.
func (n *Node) HalfRate(device string) *Node {
	return n.Set(device, "ports/1/rate", "200 Gb/sec (2X NDR)")
}

// HalfWidth halves the lanes of a device's PCIe link.
func (n *Node) HalfWidth(address string) *Node { return n.Set(address, "current_link_width", "8") }

// Ports returns a node without a GPU that has that many ConnectX-7, to measure how the cost of
// checks grows.
func Ports(count int) *Node {
	n := New()
	for i := range count {
		a := cx7
		a.Address, a.Above, a.Driver, a.Speed, a.Width = fmt.Sprintf("0001:%02x:00.0", 0x40+i), []string{fmt.Sprintf("0001:%02x:01.0", i)}, "mlx5_core", gen5, 16
		a.Name, a.NetDev, a.Index = fmt.Sprintf("mlx5_%d", i), fmt.Sprintf("ib%d", i), i
		n.AddHCA(a)
	}
	n.Files["proc/modules"] = modules
	return n
}
