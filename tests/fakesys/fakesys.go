// Package fakesys creates the /sys and /proc of nodes for tests: PCI buses with their bridges, RDMA
// devices, network interfaces and disks, in the kernel's layout. A tree consists of two tables, of
// files and of symbolic links, by their paths below the node's root; a test changes entries.
package fakesys

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Node is a tree.
type Node struct {
	Files map[string]string // a name that ends in a slash is a directory
	Links map[string]string

	at map[string]string // the directories of devices: "0000:23:00.0", "mlx5_3", "ib3", "nvme3"
}

// New returns a node without devices.
func New() *Node {
	return &Node{
		Files: map[string]string{
			"proc/sys/kernel/random/boot_id": "658f832e-2c36-42e1-a29c-a17c2e3298d2\n",
			"proc/stat":                      "cpu  0 0 0 0\nbtime 1767000000\n",
			"proc/uptime":                    "323045.00 1.00\n", // so that it is 2026-01-02 03:04:05 UTC
			"proc/net/route":                 "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n",
			"proc/net/ipv6_route":            "",
		},
		Links: map[string]string{},
		at:    map[string]string{},
	}
}

// Clone returns an independent copy of a tree.
func (n *Node) Clone() *Node {
	return &Node{Files: maps.Clone(n.Files), Links: maps.Clone(n.Links), at: maps.Clone(n.at)}
}

// PCI describes a device on the PCI bus.
type PCI struct {
	Address string   // 0000:23:00.0
	Above   []string // the bridges above it, from the root port down; missing ones are created
	Class   string   // 020700
	ID      string   // vendor and device: 15b3:1021
	Driver  string
	NUMA    int
	Speed   string // of the link: "32.0 GT/s PCIe"
	Width   int
}

// AddPCI adds a device to the bus, below its bridges.
func (n *Node) AddPCI(d PCI) {
	domain, _, _ := strings.Cut(d.Address, ":")
	root := d.Address
	if len(d.Above) > 0 {
		root = d.Above[0]
	}
	bus := strings.Split(root, ":")[1]
	dir := fmt.Sprintf("sys/devices/pci%s:%s", domain, bus)
	for _, b := range d.Above {
		dir = path.Join(dir, b)
		if n.at[b] == "" {
			n.put(dir, PCI{Address: b, Class: "060400", ID: "1000:c030", Driver: "pcieport", NUMA: d.NUMA, Speed: d.Speed, Width: d.Width})
		}
	}
	n.put(dir+"/"+d.Address, d)
}

func (n *Node) put(dir string, d PCI) {
	vendor, device, _ := strings.Cut(d.ID, ":")
	n.at[d.Address] = dir
	for name, content := range map[string]string{
		"class": "0x" + d.Class, "vendor": "0x" + vendor, "device": "0x" + device, "numa_node": fmt.Sprint(d.NUMA),
		"current_link_speed": d.Speed, "max_link_speed": d.Speed, "current_link_width": fmt.Sprint(d.Width), "max_link_width": fmt.Sprint(d.Width),
		"aer_dev_correctable": "RxErr 0\nBadTLP 0\nBadDLLP 0\nTOTAL_ERR_COR 0", "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 0", "aer_dev_fatal": "TOTAL_ERR_FATAL 0",
		"config": configOf(d).Config(),
	} {
		n.Files[dir+"/"+name] = content + "\n"
	}
	n.Links["sys/bus/pci/devices/"+d.Address] = "../../../" + strings.TrimPrefix(dir, "sys/")
	if d.Driver != "" {
		n.Links[dir+"/driver"] = strings.Repeat("../", strings.Count(dir, "/")) + "bus/pci/drivers/" + d.Driver
	}
}

// HCA describes an RDMA device.
type HCA struct {
	PCI
	Name   string // mlx5_3
	Type   string // MT4129
	Board  string // MT_0000000838
	Fw     string
	Layer  string   // InfiniBand, Ethernet
	Rate   string   // 400 Gb/sec (4X NDR)
	Ports  []string // numbers; none means one port, 1
	NetDev string   // ib3; for a device with several ports that of the first
	Index  int      // distinguishes GUIDs and addresses
}

// AddHCA adds an RDMA device to the bus, with its ports up.
func (n *Node) AddHCA(a HCA) {
	if a.Class == "" {
		a.Class = map[string]string{"InfiniBand": "020700"}[a.Layer]
		if a.Class == "" {
			a.Class = "020000"
		}
	}
	n.AddPCI(a.PCI)
	dir := n.at[a.Address] + "/infiniband/" + a.Name
	n.at[a.Name] = dir
	n.Links["sys/class/infiniband/"+a.Name] = "../../" + strings.TrimPrefix(dir, "sys/")
	n.Links[dir+"/device"] = "../../../" + a.Address
	for name, content := range map[string]string{
		"hca_type": a.Type, "fw_ver": a.Fw, "board_id": a.Board, "node_guid": fmt.Sprintf("b83f:d203:00c5:1a%02x", a.Index),
		"sys_image_guid": fmt.Sprintf("b83f:d203:00c5:1a%02x", a.Index), "node_type": "1: CA", "hw_rev": "0",
	} {
		n.Files[dir+"/"+name] = content + "\n"
	}
	if len(a.Ports) == 0 {
		a.Ports = []string{"1"}
	}
	for _, p := range a.Ports {
		n.addPort(dir+"/ports/"+p+"/", a)
	}
	if a.NetDev != "" {
		n.AddNet(Net{Name: a.NetDev, PCI: a.Address, Speed: strings.TrimSuffix(strings.Fields(a.Rate)[0], ".0") + "000", IB: a.Layer == "InfiniBand", Index: a.Index})
	}
	n.Files["sys/class/infiniband_mad/abi_version"], n.Files["sys/class/infiniband_verbs/abi_version"] = "5\n", "6\n"
}

// These are counters and hardware counters of mlx5.
var (
	Counters = strings.Fields(`VL15_dropped excessive_buffer_overrun_errors link_downed link_error_recovery local_link_integrity_errors
		multicast_rcv_packets multicast_xmit_packets port_rcv_constraint_errors port_rcv_data port_rcv_errors port_rcv_packets
		port_rcv_remote_physical_errors port_rcv_switch_relay_errors port_xmit_constraint_errors port_xmit_data port_xmit_discards
		port_xmit_packets port_xmit_wait symbol_error unicast_rcv_packets unicast_xmit_packets`)
	HWCounters = strings.Fields(`duplicate_request implied_nak_seq_err lifespan local_ack_timeout_err out_of_buffer out_of_sequence
		packet_seq_err req_cqe_error req_cqe_flush_error req_remote_access_errors req_remote_invalid_request resp_cqe_error
		resp_cqe_flush_error resp_local_length_error resp_remote_access_errors rnr_nak_retry_err rx_atomic_requests rx_icrc_encapsulated
		rx_read_requests rx_write_requests`)
	RoCECounters = strings.Fields(`np_cnp_sent np_ecn_marked_roce_packets roce_adp_retrans roce_adp_retrans_to roce_slow_restart
		roce_slow_restart_cnps roce_slow_restart_trans rp_cnp_handled rp_cnp_ignored`)
)

// Statistics are the kernel's error counters of a network interface.
var Statistics = strings.Fields("rx_crc_errors rx_errors rx_frame_errors rx_length_errors tx_aborted_errors tx_carrier_errors tx_errors")

func (n *Node) addPort(dir string, a HCA) {
	for name, content := range map[string]string{
		"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": a.Rate, "link_layer": a.Layer, "cap_mask": "0xa741e848", "lid_mask_count": "0", "sm_sl": "0",
		"gids/0": fmt.Sprintf("fe80:0000:0000:0000:b83f:d203:00c5:1a%02x", a.Index), "gid_attrs/types/0": "IB/RoCE v1",
	} {
		n.Files[dir+name] = content + "\n"
	}
	if a.Layer == "InfiniBand" {
		n.Files[dir+"lid"], n.Files[dir+"sm_lid"] = fmt.Sprintf("0x5a%02x\n", a.Index), "0x1\n"
		n.Files[dir+"pkeys/0"], n.Files[dir+"pkeys/1"], n.Files[dir+"pkeys/2"] = "0xffff\n", "0x8001\n", "0x0000\n"
	} else {
		n.Files[dir+"lid"], n.Files[dir+"sm_lid"] = "0x0\n", "0x0\n"
		n.Files[dir+"pkeys/0"] = "0xffff\n"
		v4 := fmt.Sprintf("0000:0000:0000:0000:0000:ffff:c0a8:%02x01", a.Index)
		for i, gid := range []string{n.Files[dir+"gids/0"], n.Files[dir+"gids/0"], v4 + "\n", v4 + "\n"} {
			n.Files[fmt.Sprintf("%sgids/%d", dir, i)] = gid
			n.Files[fmt.Sprintf("%sgid_attrs/types/%d", dir, i)] = []string{"IB/RoCE v1\n", "RoCE v2\n"}[i%2]
			n.Files[fmt.Sprintf("%sgid_attrs/ndevs/%d", dir, i)] = a.NetDev + "\n"
		}
		n.Files[dir+"gids/4"] = "0000:0000:0000:0000:0000:0000:0000:0000\n"
		for _, c := range RoCECounters {
			n.Files[dir+"hw_counters/"+c] = "0\n"
		}
	}
	for _, c := range Counters {
		n.Files[dir+"counters/"+c] = "0\n"
	}
	for _, c := range HWCounters {
		n.Files[dir+"hw_counters/"+c] = "0\n"
	}
	n.Files[dir+"hw_counters/lifespan"] = "10\n"
}

// Net describes a network interface.
type Net struct {
	Name  string
	PCI   string // "" for one in software
	Speed string // Mb/s
	IB    bool   // IP over InfiniBand
	Index int
}

// AddNet adds a network interface, which is up.
func (n *Node) AddNet(d Net) {
	dir := "sys/devices/virtual/net/" + d.Name
	if d.PCI != "" {
		dir = n.at[d.PCI] + "/net/" + d.Name
		n.Links[dir+"/device"] = "../../../" + d.PCI
	}
	n.at[d.Name] = dir
	n.Links["sys/class/net/"+d.Name] = "../../" + strings.TrimPrefix(dir, "sys/")
	kind, mtu, duplex, address := "1", "9000", "full", fmt.Sprintf("b8:3f:d2:c5:1a:%02x", d.Index)
	if d.IB {
		kind, mtu, address = "32", "4092", fmt.Sprintf("00:00:10:49:fe:80:00:00:00:00:00:00:b8:3f:d2:03:00:c5:1a:%02x", d.Index)
	}
	for name, content := range map[string]string{
		"operstate": "up", "carrier": "1", "speed": d.Speed, "duplex": duplex, "mtu": mtu, "type": kind, "address": address, "dev_port": "0", "dev_id": "0x0",
		"carrier_changes": "2", "carrier_up_count": "1", "carrier_down_count": "1", "flags": "0x1003", "ifindex": fmt.Sprint(10 + d.Index),
	} {
		n.Files[dir+"/"+name] = content + "\n"
	}
	if d.PCI != "" && !d.IB {
		for _, s := range Statistics {
			n.Files[dir+"/statistics/"+s] = "0\n"
		}
	}
}

// DefaultRoute adds a default route over an interface.
func (n *Node) DefaultRoute(dev string) { n.DefaultRouteOf(dev, 100) }

// DefaultRouteOf is DefaultRoute with a metric. NetworkManager gives each interface another one, from 100.
func (n *Node) DefaultRouteOf(dev string, metric int) {
	n.Files["proc/net/route"] += fmt.Sprintf("%s\t00000000\t0100000A\t0003\t0\t0\t%d\t00000000\t0\t0\t0\n", dev, metric) +
		fmt.Sprintf("%s\t0000000A\t00000000\t0001\t0\t0\t%d\t00FFFFFF\t0\t0\t0\n", dev, metric)
}

// AddNVMe adds a disk to the bus: the controller nvmeI, with one name space.
func (n *Node) AddNVMe(d PCI, i int) {
	d.Class, d.Driver = "010802", "nvme"
	n.AddPCI(d)
	name := fmt.Sprintf("nvme%d", i)
	dir := n.at[d.Address] + "/nvme/" + name
	n.at[name] = dir
	n.Links["sys/class/nvme/"+name] = "../../" + strings.TrimPrefix(dir, "sys/")
	n.Links[dir+"/device"] = "../../../" + d.Address
	for file, content := range map[string]string{
		"state": "live", "model": "SAMSUNG MZ1L23T8HBLA-00A07", "serial": fmt.Sprintf("S6PENN0T0%05d", i), "firmware_rev": "GDC7402Q", "transport": "pcie", "numa_node": fmt.Sprint(d.NUMA),
		fmt.Sprintf("nvme%dn1/size", i): "7501476528",
	} {
		n.Files[dir+"/"+file] = content + "\n"
	}
	n.SetSMART(i, Healthy)
	n.Links[fmt.Sprintf("sys/class/block/nvme%dn1", i)] = fmt.Sprintf("../../%s/nvme%dn1", strings.TrimPrefix(dir, "sys/"), i)
}

// AddVF adds a virtual function to a device, with its own RDMA device.
func (n *Node) AddVF(of, address, name string, index int) {
	a := n.at[of]
	rate := strings.TrimSpace(n.Files[a+"/ports/1/rate"])
	physical := path.Base(path.Dir(path.Dir(a)))
	up := path.Dir(n.at[physical])
	n.at[address] = up + "/" + address
	n.AddHCA(HCA{PCI: PCI{Address: address, Above: bridges(up), ID: "15b3:101e", Driver: "mlx5_core", Speed: "Unknown", Width: 0}, Name: name,
		Type: "MT4126", Layer: strings.TrimSpace(n.Files[a+"/ports/1/link_layer"]), Rate: rate, Index: index})
	n.Links[n.at[address]+"/physfn"] = "../" + physical
}

// bridges returns the bridges in sys/devices/pci0000:c0/0000:c0:01.0.
func bridges(dir string) (list []string) {
	for part := range strings.SplitSeq(dir, "/") {
		if strings.Count(part, ":") == 2 {
			list = append(list, part)
		}
	}
	return list
}

// Dir returns the directory of a device: a PCI device by its address, an RDMA device, a network
// interface or a disk by its name.
func (n *Node) Dir(device string) string {
	dir := n.at[device]
	if dir == "" {
		panic("fakesys: no device " + device)
	}
	return dir
}

// Port returns the directory of a port, "mlx5_3" or "mlx5_3:9", with a final slash.
func (n *Node) Port(name string) string {
	device, port, ok := strings.Cut(name, ":")
	if !ok {
		port = "1"
	}
	return n.Dir(device) + "/ports/" + port + "/"
}

// Set changes a file of a device: Set("mlx5_3", "ports/1/state", "1: DOWN"). The content "-"
// removes it; a file that ends in a slash is a directory.
func (n *Node) Set(device, file, content string) *Node {
	name := n.Dir(device) + "/" + file
	delete(n.Files, strings.TrimSuffix(name, "/"))
	switch {
	case content == "-":
	case strings.HasSuffix(file, "/"):
		n.Files[name] = ""
	default:
		n.Files[name] = content + "\n"
	}
	return n
}

// Move puts a PCI device below other bridges. Its directory stays, and gets a link, so that a
// scenario that differs from another only by the place is small.
func (n *Node) Move(address string, above ...string) *Node {
	bus := above[0][:strings.LastIndexByte(above[0], ':')]
	to := path.Join("sys/devices/pci"+bus, path.Join(above...), address)
	n.Links[to] = strings.Repeat("../", strings.Count(to, "/")) + n.Dir(address)
	n.Links["sys/bus/pci/devices/"+address] = "../../../" + strings.TrimPrefix(to, "sys/")
	return n
}

// Remove removes a device and everything below it.
func (n *Node) Remove(device string) *Node {
	dir := n.Dir(device)
	below := func(p string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
	maps.DeleteFunc(n.Files, func(p, _ string) bool { return below(p) })
	maps.DeleteFunc(n.Links, func(p, target string) bool {
		return below(p) || below(path.Join(path.Dir(p), target))
	})
	maps.DeleteFunc(n.at, func(_, p string) bool { return below(p) })
	return n
}

// Write creates the tree below a directory.
func (n *Node) Write(root string) error {
	made := map[string]bool{}
	makeDir := func(dir string) error {
		if made[dir] {
			return nil
		}
		made[dir] = true
		return os.MkdirAll(dir, 0o755)
	}
	for name, content := range n.Files {
		p := filepath.Join(root, name)
		if strings.HasSuffix(name, "/") {
			if err := makeDir(p); err != nil {
				return err
			}
			continue
		}
		if err := makeDir(filepath.Dir(p)); err != nil {
			return err
		}
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			return err
		}
	}
	for name, target := range n.Links {
		p := filepath.Join(root, name)
		if err := makeDir(filepath.Dir(p)); err != nil {
			return err
		}
		if err := os.Symlink(target, p); err != nil {
			return err
		}
	}
	return nil
}
