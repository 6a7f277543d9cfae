package fakesys

import (
	"fmt"
	"strings"
)

// Kinds returns healthy nodes of all kinds of fabric; no check has a finding on them. Device ids
// are those of the PCI ID Repository; names, layouts and states follow public dumps of such nodes
// and the kernel's drivers.
func Kinds() map[string]*Node {
	kinds := map[string]*Node{}
	for name, build := range kindRows {
		kinds[name] = build()
	}
	return kinds
}

var kindRows = map[string]func() *Node{
	"dgx-a100": DGXA100,
	"dgx-h100": DGXH100,
	"dgx-h200": DGXH200,
	"dgx-h100, storage cards of two modes": func() *Node {
		n := DGXH100()
		n.Files["proc/net/route"] = New().Files["proc/net/route"]
		for i := range 2 {
			n.card(0xc0+i, 0, vpi(cx7, "InfiniBand", "400 Gb/sec (4X NDR)"), fmt.Sprintf("mlx5_%d", 8+2*i), fmt.Sprintf("ib%d", 8+i))
			n.card(0xc0+i, 1, vpi(cx7, "Ethernet", "100 Gb/sec (4X EDR)"), fmt.Sprintf("mlx5_%d", 9+2*i), fmt.Sprintf("eth%d", 1+i))
		}
		n.AddBond("bond0", "802.3ad 4", "eth1", "eth2").DefaultRoute("bond0")
		return n
	},
	"dgx-1 of V100": func() *Node {
		return someRails(8, 4, rail{gpu: "10de:1db1", subsystem: "10de:1212", hca: cx4, name: "mlx5_%d", net: "ib%d", speed: gen3})
	},
	"dgx-2 of V100": func() *Node {
		return someRails(16, 8, rail{gpu: "10de:1db8", subsystem: "10de:12a2", hca: cx5, name: "mlx5_%d", net: "ib%d", speed: gen3})
	},
	"hgx-b200": HGXB200,
	"dgx-b200, NVSwitch managers": func() *Node {
		n := HGXB200()
		for i := range 4 {
			at := fmt.Sprintf("0000:a0:00.%d", i)
			a := cx7
			a.PCI = PCI{Address: at, Above: []string{"0000:9f:01.0"}, ID: cx7.ID, Driver: "mlx5_core", Speed: gen5, Width: 2}
			a.Name, a.Board, a.Index = fmt.Sprintf("ibp160s0f%d", i), "MT_0000001182", 0xb0+i
			n.AddHCA(a)
			n.Set(at, "vpd", "\x82\x0bConnectX-7\x90\x10V3SMDL=SW_MNGRV").Set(at, "max_link_width", "16").Set("0000:9f:01.0", "max_link_width", "16")
			n.Set(a.Name, "ports/1/state", "2: INIT")
		}
		return n
	},
	"cx8 planes": CX8,
	"gb200 tray": GB200,
	"gb300 tray": func() *Node {
		a := cx8
		a.Ports = strings.Fields("1 2 3 4 5 6 7 8 9 10 11 12")
		n := New()
		for i := range 4 {
			n.addRail(i, rail{gpu: "10de:31c2", subsystem: "10de:21f1", hca: a, name: "mlx5_%d", speed: gen6, numa: i / 2, direct: true})
			for p := 1; p <= 12; p++ {
				if p%3 != 0 {
					port := fmt.Sprintf("ports/%d/", p)
					n.Set(fmt.Sprintf("mlx5_%d", i), port+"state", "1: DOWN").Set(fmt.Sprintf("mlx5_%d", i), port+"phys_state", "3: Disabled")
				}
			}
		}
		return n.ready()
	},
	"gh200": func() *Node {
		n := New()
		n.addRail(0, rail{gpu: "10de:2342", subsystem: "10de:16eb", hca: cx7, name: "mlx5_0", net: "ib0", speed: gen5, direct: true})
		return n.ready()
	},
	"l40s, two RoCE cards": func() *Node {
		n := someRails(4, 0, rail{gpu: "10de:26b9", subsystem: "10de:1851", hca: roce, name: "mlx5_%d", net: "ens%d", speed: gen4})
		for i := range 2 {
			n.card(0xc0+i, 0, vpi(roce, "Ethernet", "200 Gb/sec (4X HDR)"), fmt.Sprintf("mlx5_%d", i), fmt.Sprintf("ens%d", i))
		}
		return n
	},
	"mi300x": func() *Node {
		return someRails(8, 8, rail{gpu: "1002:74a1", subsystem: "1002:74a1", hca: cx7, name: "mlx5_%d", net: "ib%d", speed: gen5})
	},

	"hgx-h100, BlueField front end": func() *Node {
		n := onlyRails(DGXH100())
		for i := range 2 {
			n.card(0xc0, i, bf3, fmt.Sprintf("mlx5_bf%d", i), fmt.Sprintf("eth%d", i))
		}
		n.Down("mlx5_bf1").DefaultRoute("eth0")
		return n
	},
	"roce, front end half cabled": func() *Node {
		n := onlyRails(RoCE())
		for i := range 2 {
			n.card(0xc0, i, cx6dx, fmt.Sprintf("mlx5_f%d", i), fmt.Sprintf("eth%d", i))
		}
		n.Down("mlx5_f1").unplugged("eth1").DefaultRoute("eth0")
		return n
	},
	"hgx-h100, front end of two modes half cabled": func() *Node {
		n := onlyRails(DGXH100())
		n.card(0xc0, 0, vpi(cx6, "Ethernet", "200 Gb/sec (4X HDR)"), "mlx5_f0", "eth0")
		n.card(0xc0, 1, vpi(cx6, "InfiniBand", "200 Gb/sec (4X HDR)"), "mlx5_f1", "ib9")
		n.Down("mlx5_f1").unplugged("ib9").DefaultRoute("eth0")
		return n
	},
	"roce, front end bonded": func() *Node {
		n := onlyRails(RoCE())
		for i := range 2 {
			n.card(0xc0, i, cx6dx, fmt.Sprintf("mlx5_f%d", i), fmt.Sprintf("eth%d", i))
		}
		n.AddBond("bond0", "active-backup 1", "eth0", "eth1").DefaultRoute("bond0")
		return n
	},
	"roce, front end over a VLAN": func() *Node {
		n := onlyRails(RoCE())
		n.card(0xc0, 0, cx6dx, "mlx5_f0", "eth0")
		n.AddNet(Net{Name: "eth0.100", Speed: "100000", Index: 0xb1})
		n.Above("eth0.100", "eth0").DefaultRoute("eth0.100")
		return n
	},
	"dual cards half cabled": func() *Node {
		n := DGXH100()
		for i := range 8 {
			name := fmt.Sprintf("mlx5_b%d", i)
			n.card(0x20+i, 1, cx7, name, "")
			n.Down(name)
		}
		return n
	},
	"roce, storage over InfiniBand": func() *Node {
		n := RoCE()
		n.card(0xc0, 0, cx6, "mlx5_9", "ib0")
		return n
	},

	"oci h100: 16 ports and a front end": ociH100,
	"oci h100: boards that are not known": func() *Node {
		n := ociH100()
		for i := range 8 {
			n.Set(fmt.Sprintf("rocep%ds0", i), "board_id", "ORC0000000009").Set(fmt.Sprintf("rocep%ds0f1", i), "board_id", "ORC0000000009")
		}
		return n
	},
	"oci a100: 16 ports and two of a front end": func() *Node {
		n := someRails(8, 8, rail{gpu: "10de:20b2", subsystem: "10de:1463", hca: vpi(cx5, "Ethernet", "100 Gb/sec (4X EDR)"), name: "mlx5_%d", net: "rdma%d", speed: gen3})
		n = onlyRails(n)
		for i := range 8 {
			n.card(0x20+i, 1, vpi(cx5, "Ethernet", "100 Gb/sec (4X EDR)"), fmt.Sprintf("mlx5_%d", 10+i), fmt.Sprintf("rdma%d", 10+i))
		}
		for i := range 2 {
			n.card(0xc0, i, vpi(cx5, "Ethernet", "100 Gb/sec (4X EDR)"), fmt.Sprintf("mlx5_f%d", i), fmt.Sprintf("eth%d", i))
		}
		n.Down("mlx5_f1").unplugged("eth1").DefaultRoute("eth0")
		return n
	},

	"roce, storage with another MTU": func() *Node {
		n := RoCE()
		n.card(0xc0, 0, cx6dx, "mlx5_9", "eth9")
		return n.Set("eth9", "mtu", "1500")
	},
	"roce, storage over a bond of two cards": func() *Node {
		n := RoCE()
		for i := range 2 {
			n.card(0xc0+i, 0, cx6dx, fmt.Sprintf("mlx5_%d", 8+i), fmt.Sprintf("eth%d", 8+i))
		}
		return n.NoGIDs("mlx5_9", 0).AddBond("bond0", "active-backup 1", "eth8", "eth9")
	},
	"storage in a subnet of its own": func() *Node {
		n := DGXH200()
		for i := 8; i < 10; i++ {
			n.Set(fmt.Sprintf("mlx5_%d", i), "ports/1/gids/0", fmt.Sprintf("fec0:0000:0000:0002:b83f:d203:00c5:1a%02x", i))
		}
		return n
	},
	"roce, leaves that advertise a default route of IPv6": func() *Node {
		n := RoCE()
		for i := range 8 {
			n.DefaultRoute6(fmt.Sprintf("eth1%d", i))
		}
		return n
	},
	"roce, IPv6 alone, a default route on each rail": func() *Node {
		n := RoCE()
		n.Files["proc/net/route"] = New().Files["proc/net/route"]
		n.DefaultRoute6("eth0")
		for i := range 8 {
			n.DefaultRoute6(fmt.Sprintf("eth1%d", i))
		}
		return n
	},

	"azure nd-h100-v5": NDH100v5,
	"azure nd-h200-v5": func() *Node { return azure(8, "10de:2335", "10de:18be", cx7vf, gen5) },
	"azure nd-a100-v4": func() *Node { return azure(8, "10de:20b2", "10de:147f", cx6vf, gen4) },
	"azure hbv3":       func() *Node { return azure(1, "", "", cx6vf, gen4) },
	"azure hbv4":       func() *Node { return azure(1, "", "", cx7vf, gen5) },
	"azure ndv2":       func() *Node { return azure(1, "10de:1db5", "10de:1249", cx5vf, gen3) },

	"aws p4d":  func() *Node { return aws(4, "10de:20b0", "10de:134f", "1d0f:efa0") },
	"aws p5":   func() *Node { return aws(32, "10de:2330", "10de:16c1", "1d0f:efa1") },
	"aws p5en": func() *Node { return aws(16, "10de:2335", "10de:18be", "1d0f:efa2") },

	"lag of a front end": func() *Node {
		n := onlyRails(DGXH100())
		n.card(0xc0, 0, cx6dx, "mlx5_bond_0", "eth0")
		n.lagMember(0xc0, 1, "eth1")
		n.AddBond("bond0", "802.3ad 4", "eth0", "eth1").DefaultRoute("bond0")
		return n
	},
	"lags of data ports": func() *Node {
		n := someRails(8, 0, rail{gpu: "10de:2330", subsystem: "10de:16c1", speed: gen5})
		for i := range 4 {
			at := 0xc0 + i
			n.card(at, 0, vpi(roce, "Ethernet", "200 Gb/sec (4X HDR)"), fmt.Sprintf("mlx5_bond_%d", i), fmt.Sprintf("ens%da", i))
			n.lagMember(at, 1, fmt.Sprintf("ens%db", i))
			n.AddBond(fmt.Sprintf("bond%d", i), "802.3ad 4", fmt.Sprintf("ens%da", i), fmt.Sprintf("ens%db", i))
		}
		return n
	},
	"virtual functions beside their adapters": func() *Node {
		n := DGXH100()
		for i := range 8 {
			n.AddVF(fmt.Sprintf("mlx5_%d", i), fmt.Sprintf("0000:%02x:00.1", 0x20+i), fmt.Sprintf("mlx5_v%d", i), 0x70+i)
		}
		return n
	},
	"representors": func() *Node {
		n := RoCE()
		for i := range 8 {
			n.Set(fmt.Sprintf("eth1%d", i), "phys_port_name", "p0")
			for v := range 2 {
				rep := fmt.Sprintf("eth1%d_%d", i, v)
				n.AddNet(Net{Name: rep, PCI: HCAAddress(i), Speed: "400000", Index: 0x80 + 2*i + v})
				n.Set(rep, "phys_port_name", fmt.Sprintf("pf0vf%d", v)).unplugged(rep)
			}
		}
		return n
	},
	"adapters given to virtual machines": func() *Node {
		n := DGXH100()
		for i := range 2 {
			n.AddPCI(PCI{Address: fmt.Sprintf("0000:c%d:00.0", i), Above: []string{fmt.Sprintf("0000:b%d:01.0", i)}, Class: "020700", ID: cx7.ID, Driver: "vfio-pci", Speed: gen5, Width: 16})
		}
		return n
	},
	"virtual machine with whole adapters": func() *Node {
		n := DGXH100()
		for i := range 8 {
			for _, port := range []string{"0000:6%d:00.0", "0000:6%d:01.0"} {
				bridge := fmt.Sprintf(port, i)
				n.Set(bridge, "vendor", "0x1b36").Set(bridge, "current_link_width", "1").Set(bridge, "max_link_width", "1")
				n.Set(bridge, "current_link_speed", "2.5 GT/s PCIe").Set(bridge, "max_link_speed", "2.5 GT/s PCIe")
			}
		}
		return n
	},

	"omni-path":            func() *Node { return omniPath(1) },
	"omni-path, two rails": func() *Node { return omniPath(2) },
	"broadcom roce": func() *Node {
		return withModules(someRails(8, 8, rail{gpu: "10de:2330", subsystem: "10de:16c1", hca: bnxt, name: "bnxt_re%d", net: "ens%dnp0", speed: gen5}), "bnxt_re", "bnxt_en")
	},
	"intel irdma": func() *Node {
		n := New()
		for i := range 2 {
			n.card(0xc0, i, e810, fmt.Sprintf("irdma%d", i), fmt.Sprintf("ens%df%d", 1, i))
		}
		n.DefaultRoute("ens1f0")
		return withModules(n.ready(), "irdma", "ice")
	},
	"intel iwarp": func() *Node {
		n := New()
		for i := range 2 {
			n.card(0xc0, i, e810, fmt.Sprintf("irdma%d", i), fmt.Sprintf("ens1f%d", i))
			n.iwarp(fmt.Sprintf("irdma%d", i), i)
		}
		return withModules(n.ready(), "irdma", "ice")
	},
	"soft roce":  func() *Node { return software("rxe0", "rdma_rxe") },
	"soft iwarp": func() *Node { return software("siw0", "siw") },

	"routes in VRFs": func() *Node {
		n := onlyRails(RoCE())
		n.AddPCI(PCI{Address: "0000:f0:00.0", Above: []string{"0000:3f:04.0"}, Class: "020000", ID: "8086:1593", Driver: "ice", Speed: gen4, Width: 8})
		n.AddNet(Net{Name: "eth0", PCI: "0000:f0:00.0", Speed: "25000", Index: 0xf0})
		n.AddNet(Net{Name: "mgmt", Speed: "", Index: 0xe0})
		n.Above("mgmt", "eth0")
		n.Links[n.Dir("eth0")+"/master"] = "../../../../virtual/net/mgmt"
		return n
	},
	"ip over infiniband": func() *Node {
		n := onlyRails(DGXH100())
		n.AddNet(Net{Name: "ib0.8001", PCI: HCAAddress(0), Speed: "400000", IB: true, Index: 0x80})
		n.Set("ib0.8001", "parent", "ib0").DefaultRoute("ib0")
		return n
	},
	"ip over infiniband, partitions made by netlink": func() *Node {
		n := DGXH100()
		for i := range 8 {
			child := fmt.Sprintf("ib%d.8001", i)
			n.AddNet(Net{Name: child, PCI: HCAAddress(i), Speed: "400000", IB: true, Index: 0x80 + i})
			for _, dev := range []string{fmt.Sprintf("ib%d", i), child} {
				n.Set(dev, "iflink", strings.TrimSpace(n.Files[n.Dir(fmt.Sprintf("ib%d", i))+"/ifindex"]))
			}
		}
		return n
	},
	"b300, storage over ConnectX-7": func() *Node {
		n := CX8()
		for i := range 2 {
			n.card(0xc0+i, 0, cx7, fmt.Sprintf("mlx5_s%d", i), fmt.Sprintf("ibs%d", i))
		}
		return n
	},
	"no interface over infiniband": func() *Node {
		return someRails(8, 8, rail{gpu: "10de:2330", subsystem: "10de:16c1", hca: cx7, name: "mlx5_%d", speed: gen5})
	},
	"cpu node, one port": func() *Node {
		n := New()
		n.card(0xc0, 0, cx6, "mlx5_0", "ib0")
		return n.ready()
	},
	"cpu node, one dual card half cabled": func() *Node {
		n := New()
		for i := range 2 {
			n.card(0xc0, i, cx6dx, fmt.Sprintf("mlx5_%d", i), fmt.Sprintf("eth%d", i))
		}
		n.Down("mlx5_1").unplugged("eth1").DefaultRoute("eth0")
		return n.ready()
	},
	"cpu node, dual card for data half cabled": func() *Node {
		n := New()
		for i := range 2 {
			n.card(0xc0, i, cx6, fmt.Sprintf("mlx5_%d", i), fmt.Sprintf("ib%d", i))
		}
		n.Down("mlx5_1").unplugged("ib1")
		return n.ready()
	},

	"booting, no subnet manager yet": func() *Node {
		n := DGXH100()
		for i := range 8 {
			n.Set(fmt.Sprintf("mlx5_%d", i), "ports/1/state", "2: INIT").Set(fmt.Sprintf("mlx5_%d", i), "ports/1/lid", "0xffff")
		}
		return n.uptime(60)
	},
	"booting, links train": func() *Node {
		n := DGXH100()
		for i := range 8 {
			n.Down(fmt.Sprintf("mlx5_%d", i))
		}
		return n.uptime(60)
	},
	"booting, roce": func() *Node {
		n := RoCE()
		for i := range 8 {
			n.Set(fmt.Sprintf("rocep%ds0", i), "ports/1/state", "1: DOWN").Set(fmt.Sprintf("rocep%ds0", i), "ports/1/phys_state", "3: Disabled")
		}
		return n.uptime(60)
	},
	"booting, adapters are not ready": func() *Node {
		n := DGXH100()
		for i := range 3 {
			n.NoRDMA(fmt.Sprintf("mlx5_%d", 5+i))
		}
		return n.uptime(60)
	},
	"booting, one adapter is not ready": func() *Node {
		return DGXH100().NoRDMA("mlx5_3").uptime(60)
	},
	"booting, no driver yet": func() *Node {
		n := DGXH100()
		for i := range 8 {
			n.NoRDMA(fmt.Sprintf("mlx5_%d", i))
		}
		n.Files["proc/modules"] = strings.SplitAfter(modules, "\n")[0] + "mlx5_core 1 0 - Live 0x0\nnvidia_uvm 1 0 - Live 0x0\nnvidia 1 1 nvidia_uvm, Live 0x0\n"
		delete(n.Files, "sys/class/infiniband_mad/abi_version")
		delete(n.Files, "sys/class/infiniband_verbs/abi_version")
		return n.uptime(60)
	},
	"booting, roce without addresses": func() *Node {
		n := RoCE()
		for i := range 3 {
			n.NoGIDs(fmt.Sprintf("rocep%ds0", i), 2).Set(fmt.Sprintf("eth1%d", i), "mtu", "1500")
		}
		return n.uptime(60)
	},
	"ethernet only": EthernetOnly,
	"ethernet only, by Mellanox and without RDMA": func() *Node { return MellanoxEthernet(2) },
	"no fabric": New,
}

// ociH100 returns a node with eight cards of two ports, each with half of the rate.
func ociH100() *Node {
	n := onlyRails(RoCE())
	for i := range 8 {
		n.Set(fmt.Sprintf("rocep%ds0", i), "ports/1/rate", "200 Gb/sec (4X HDR)").Set(fmt.Sprintf("eth1%d", i), "speed", "200000")
		n.card(0x20+i, 1, vpi(roce, "Ethernet", "200 Gb/sec (4X HDR)"), fmt.Sprintf("rocep%ds0f1", i), fmt.Sprintf("eth2%d", i))
	}
	n.card(0xc0, 0, cx6dx, "mlx5_f0", "eth0")
	n.DefaultRoute("eth0")
	return n
}

const gen3 = "8.0 GT/s PCIe"

// These are more models of adapters.
var (
	cx4   = HCA{PCI: PCI{ID: "15b3:1013", Speed: gen3}, Type: "MT4115", Board: "MT_2180110032", Fw: "12.28.2006", Layer: "InfiniBand", Rate: "100 Gb/sec (4X EDR)"}
	cx5   = HCA{PCI: PCI{ID: "15b3:1017", Speed: gen3}, Type: "MT4119", Board: "MT_0000000080", Fw: "16.35.3502", Layer: "InfiniBand", Rate: "100 Gb/sec (4X EDR)"}
	cx6dx = HCA{PCI: PCI{ID: "15b3:101d", Speed: gen4}, Type: "MT4125", Board: "MT_0000000359", Fw: "22.41.1000", Layer: "Ethernet", Rate: "100 Gb/sec (4X EDR)"}
	bf3   = HCA{PCI: PCI{ID: "15b3:a2dc", Speed: gen5}, Type: "MT41692", Board: "MT_0000000884", Fw: "32.41.1000", Layer: "Ethernet", Rate: "200 Gb/sec (4X HDR)"}
	cx5vf = HCA{PCI: PCI{ID: "15b3:1018"}, Type: "MT4120", Board: "MT_0000000010", Fw: "16.35.3502", Layer: "InfiniBand", Rate: "100 Gb/sec (4X EDR)"}
	cx6vf = HCA{PCI: PCI{ID: "15b3:101c"}, Type: "MT4124", Board: "MT_0000000223", Fw: "20.38.1002", Layer: "InfiniBand", Rate: "200 Gb/sec (4X HDR)"}
	bnxt  = HCA{PCI: PCI{ID: "14e4:1760"}, Layer: "Ethernet", Rate: "400 Gb/sec (4X NDR)", Fw: "230.2.52.0"}
	e810  = HCA{PCI: PCI{ID: "8086:1592", Speed: gen4}, Layer: "Ethernet", Rate: "100 Gb/sec (4X EDR)", Fw: "1.71"}
	hfi1  = HCA{PCI: PCI{ID: "8086:24f0", Class: "020800", Speed: gen3}, Board: "Intel Omni-Path Host Fabric Interface Adapter 100 Series", Fw: "1.27.0", Layer: "InfiniBand", Rate: "100 Gb/sec (4X EDR)"}
)

// vpi returns an adapter in another mode.
func vpi(a HCA, layer, rate string) HCA {
	a.Layer, a.Rate = layer, rate
	return a
}

// card adds a function of a card with its own root port, whose bus is at.
func (n *Node) card(at, function int, a HCA, name, net string) {
	if a.Address = fmt.Sprintf("0000:%02x:00.%d", at, function); n.at[HCAAddress(at-0x20)] == "" {
		a.Above = []string{fmt.Sprintf("0000:%02x:01.0", at-0x40)}
	} else {
		a.Above = bridges(n.at[HCAAddress(at-0x20)][:strings.LastIndexByte(n.at[HCAAddress(at-0x20)], '/')])
	}
	if a.Speed == "" {
		a.Speed = gen5
	}
	if a.Driver == "" {
		a.Driver = map[string]string{"8086:1592": "ice", "8086:24f0": "hfi1"}[a.ID]
	}
	if a.Driver == "" {
		a.Driver = "mlx5_core"
	}
	if at < 0x40 {
		a.NUMA = (at - 0x20) / 4
	}
	a.Width, a.Name, a.NetDev, a.Index = 16, name, net, at+16*function&0xff
	n.AddHCA(a)
}

// lagMember adds the function of a bond that has no RDMA device itself, because the bond has it.
func (n *Node) lagMember(at, function int, net string) {
	address := fmt.Sprintf("0000:%02x:00.%d", at, function)
	of := n.at[HCAAddress(at-0x20)]
	id := strings.TrimPrefix(strings.TrimSpace(n.Files[of+"/device"]), "0x")
	n.AddPCI(PCI{Address: address, Above: bridges(of[:strings.LastIndexByte(of, '/')]), Class: "020000", ID: "15b3:" + id, Driver: "mlx5_core", Speed: strings.TrimSpace(n.Files[of+"/max_link_speed"]), Width: 16})
	n.AddNet(Net{Name: net, PCI: address, Speed: "100000", Index: at + 0x10})
}

// someRails returns a node with that many GPUs, the first of them with an adapter each.
func someRails(gpus, hcas int, r rail) *Node {
	n := New().AddNameServers()
	for i := range gpus {
		r := r
		r.numa = i * 2 / gpus
		if i < hcas {
			n.addRail(i, r)
			continue
		}
		root := fmt.Sprintf("0000:%02x:01.0", 0x30+i)
		n.AddPCI(PCI{Address: gpuAddress(i), Above: []string{root}, Class: "030200", ID: r.gpu, Driver: "nvidia", NUMA: r.numa, Speed: r.speed, Width: 16})
		vendor, device, _ := strings.Cut(r.subsystem, ":")
		n.Set(gpuAddress(i), "subsystem_vendor", "0x"+vendor).Set(gpuAddress(i), "subsystem_device", "0x"+device)
	}
	n.AddPCI(PCI{Address: "0000:f0:00.0", Above: []string{"0000:3f:04.0"}, Class: "020000", ID: "8086:1593", Driver: "ice", Speed: gen4, Width: 8})
	n.AddNet(Net{Name: "eth0", PCI: "0000:f0:00.0", Speed: "25000", Index: 0xf0})
	n.DefaultRoute("eth0")
	return n.ready()
}

// ready adds the kernel modules to a node.
func (n *Node) ready() *Node {
	n.Files["proc/modules"] = modules
	return n
}

// withModules adds the modules of another driver than mlx5 to a node.
func withModules(n *Node, rdma, driver string) *Node {
	n.Files["proc/modules"] = strings.NewReplacer("mlx5_ib", rdma, "mlx5_core", driver).Replace(modules)
	for name := range n.Links {
		if strings.HasSuffix(n.Links[name], "/drivers/mlx5_core") {
			n.Links[name] = strings.TrimSuffix(n.Links[name], "mlx5_core") + driver
		}
	}
	return n
}

// onlyRails removes the front end of a node.
func onlyRails(n *Node) *Node {
	n.Remove("0000:f0:00.0")
	n.Files["proc/net/route"] = New().Files["proc/net/route"]
	return n
}

// unplugged configures an interface without a carrier.
func (n *Node) unplugged(net string) *Node {
	return n.Set(net, "operstate", "down").Set(net, "carrier", "0").Set(net, "carrier_up_count", "0").Set(net, "carrier_changes", "1").Set(net, "speed", "-1")
}

// uptime sets the uptime of a node, in seconds.
func (n *Node) uptime(seconds int) *Node {
	n.Files["proc/uptime"] = fmt.Sprintf("%d.00 1.00\n", seconds)
	return n
}

// azure returns a virtual machine of Azure with that many adapters.
func azure(hcas int, gpu, subsystem string, a HCA, speed string) *Node {
	n := someRails(hcas, hcas, rail{gpu: gpu, subsystem: subsystem, hca: a, name: "mlx5_ib%d", net: "ib%d", speed: speed, direct: true})
	n = onlyRails(n)
	an := roce
	an.PCI = PCI{Address: "0001:00:02.0", ID: "15b3:101a", Driver: "mlx5_core", Speed: "Unknown"}
	an.Name, an.NetDev, an.Rate, an.Type, an.Index = "mlx5_an0", "eth1", "100 Gb/sec (4X EDR)", "MT4120", 0xa0
	n.AddHCA(an)
	n.AddNet(Net{Name: "eth0", Speed: "100000", Index: 0xa1})
	n.Above("eth0", "eth1").DefaultRoute("eth0")
	return n
}

// aws returns an instance with that many EFA devices in addition to its GPUs.
func aws(efas int, gpu, subsystem, id string) *Node {
	n := someRails(8, 0, rail{gpu: gpu, subsystem: subsystem, speed: gen5})
	for i := range efas {
		name := fmt.Sprintf("rdmap%ds0", 16+i)
		n.AddHCA(HCA{PCI: PCI{Address: fmt.Sprintf("0000:%02x:00.0", 0x80+i), Class: "020000", ID: id, Driver: "efa", NUMA: i * 2 / efas, Speed: "Unknown"},
			Name: name, Type: "", Fw: "0.0.0.0", Layer: "Unknown", Rate: "100 Gb/sec (4X EDR)", Index: 0x40 + i})
		dir := n.Dir(name) + "/"
		for file := range n.Files {
			if port, ok := strings.CutPrefix(file, dir+"ports/1/"); ok && (strings.HasPrefix(port, "counters/") || strings.HasPrefix(port, "hw_counters/")) {
				delete(n.Files, file)
			}
		}
		for c := range strings.FieldsSeq("rx_bytes rx_drops rx_pkts tx_bytes tx_pkts rdma_read_bytes rdma_read_resp_bytes rdma_read_wr_err rdma_read_wrs recv_bytes recv_wrs send_bytes send_wrs") {
			n.Files[dir+"ports/1/hw_counters/"+c] = "0\n"
		}
		n.Set(name, "board_id", "-").Set(name, "hca_type", "-").Set(name, "node_type", "4: usNIC UDP")
	}
	delete(n.Files, "sys/class/infiniband_mad/abi_version")
	n.Files["proc/modules"] = "efa 1 0 - Live 0x0\nib_uverbs 1 1 efa, Live 0x0\nib_core 1 2 efa,ib_uverbs, Live 0x0\nnvidia_uvm 1 0 - Live 0x0\nnvidia 1 1 nvidia_uvm, Live 0x0\n"
	return n
}

// omniPath returns a CPU node with adapters of Omni-Path.
func omniPath(count int) *Node {
	n := New()
	for i := range count {
		n.card(0xc0+i, 0, hfi1, fmt.Sprintf("hfi1_%d", i), fmt.Sprintf("ib%d", i))
	}
	n.Files["proc/modules"] = "hfi1 1 1 - Live 0x0\nib_umad 1 0 - Live 0x0\nib_uverbs 1 1 hfi1, Live 0x0\nib_core 1 3 hfi1,ib_umad,ib_uverbs, Live 0x0\nib_ipoib 1 0 - Live 0x0\nrdma_cm 1 0 - Live 0x0\nrdma_ucm 1 0 - Live 0x0\nib_cm 1 0 - Live 0x0\n"
	return n
}

// MellanoxEthernet returns EthernetOnly with that many Mellanox cards of two ports without an RDMA
// driver.
func MellanoxEthernet(cards int) *Node {
	n := EthernetOnly()
	for i := range 2 * cards {
		at := fmt.Sprintf("0000:%02x:00.%d", 0xc0+i/2, i%2)
		n.AddPCI(PCI{Address: at, Above: []string{fmt.Sprintf("0000:%02x:01.0", 0x80+i/2)}, Class: "020000", ID: cx6dx.ID, Driver: "mlx5_core", Speed: gen4, Width: 16})
		n.AddNet(Net{Name: fmt.Sprintf("ens%df%d", i/2, i%2), PCI: at, Speed: "100000", Index: 0xc0 + i})
	}
	return n
}

// iwarp makes an RDMA device use iWARP: all its GIDs are its MAC address.
func (n *Node) iwarp(name string, index int) {
	n.Set(name, "node_type", "4: RNIC")
	for i := range 4 {
		n.Set(name, fmt.Sprintf("ports/1/gids/%d", i), "-").Set(name, fmt.Sprintf("ports/1/gid_attrs/types/%d", i), "-").Set(name, fmt.Sprintf("ports/1/gid_attrs/ndevs/%d", i), "-")
	}
	n.Set(name, "ports/1/gids/0", fmt.Sprintf("b83f:d2c5:1a%02x:0000:0000:0000:0000:0000", index)).Set(name, "ports/1/gid_attrs/types/0", "IB/RoCE v1")
}

// software returns a node without an adapter whose Ethernet has an RDMA device in software.
func software(name, module string) *Node {
	n := EthernetOnly()
	dir := "sys/devices/virtual/infiniband/" + name
	n.at[name] = dir
	n.Links["sys/class/infiniband/"+name] = "../../devices/virtual/infiniband/" + name
	for file, content := range map[string]string{
		"node_guid": "b83f:d2ff:fec5:1af0", "node_type": "1: CA", "ports/1/state": "4: ACTIVE", "ports/1/phys_state": "5: LinkUp", "ports/1/rate": "25 Gb/sec (1X EDR)",
		"ports/1/link_layer": "Ethernet", "ports/1/lid": "0x0", "ports/1/sm_lid": "0x0", "ports/1/gids/0": "fe80:0000:0000:0000:b83f:d2ff:fec5:1af0", "ports/1/gid_attrs/types/0": "RoCE v2",
	} {
		n.Files[dir+"/"+file] = content + "\n"
	}
	n.Files["sys/class/infiniband_verbs/abi_version"] = "6\n"
	n.Files["proc/modules"] += module + " 1 0 - Live 0x0\nib_uverbs 1 1 " + module + ", Live 0x0\nib_core 1 2 " + module + ",ib_uverbs, Live 0x0\n"
	return n
}
