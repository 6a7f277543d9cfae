package checks

func init() { RegisterAdvice(adviseSweep) }

// adviseSweep returns the advice on the codes of nhc-gpu sweep, which no check of a node reports.
func adviseSweep() map[string]string {
	const end = " Then test the nodes again: nhc-gpu sweep."
	return map[string]string{
		"sweep.node.check": "A check fails on this node: the message has its finding, nhc-gpu explain CODE its advice. Repair that first: the later stages of the sweep skip the node.",
		"sweep.node.lost":  "The node has stopped answering during the sweep: look at its console and kernel log (Xids, blocked tasks) and at sinfo -R, then restart it. If it died under load, suspect power and cooling.",

		"sweep.reach.loss":    "Packets are lost on this plane. Move the cable to another switch port: if the loss stays, replace the cable, then the adapter. The error counters of the interface (ethtool -S INTERFACE) and of the switch port show which end is bad." + end,
		"sweep.reach.latency": "Answers on this plane are late: look for a route through another network (ip route get ADDRESS), for pause frames (ethtool -S INTERFACE), and for a busy switch port." + end,
		"sweep.reach.connect": "The node takes no TCP connection on this plane: compare its address, its firewall (nft list ruleset) and its routes with those of a healthy node.",
		"sweep.reach.name":    "The name of the node is not resolved on the other node: compare /etc/hosts, /etc/resolv.conf and /etc/nsswitch.conf with those of a healthy node.",
		"sweep.reach.mtu":     "Full packets do not pass although both interfaces are set for them: compare the MTU of the interfaces (ip link) and of the switch ports between them. Large transfers stall, small ones pass.",
		"sweep.reach.plane":   "Other nodes have an interface on this plane, this one has none: see ip -br addr and nmcli or networkd on the node, then the cable.",
		"sweep.node.unable":   "The check cannot run on this node; the message gives the reason. No part is accused: compare the software of the node with that of one where it runs.",
		"sweep.reach.unable":  "The test cannot run here; the message gives the reason. No node is accused.",

		"sweep.tcp.slow":   "TCP is slow on this plane. Move the cable to another switch port: if it stays slow, replace the cable, then the adapter. Also compare the speed of the link (ethtool INTERFACE), its error counters (ethtool -S), and the ring and offload settings (ethtool -g, -k) with those of a healthy node." + end,
		"sweep.tcp.flaky":  "TCP is slow on this plane from time to time. Look for errors and link changes in the counters of the interface (ethtool -S, twice, a minute apart) and of the switch port, then replace the cable. Also look for another program that uses the network." + end,
		"sweep.tcp.failed": "TCP transfers end early on this plane: compare firewall and interface of the node with those of a healthy one, see dmesg and the counters of the interface (ethtool -S), then swap the cable." + end,
		"sweep.tcp.wrong":  "Data that passed through this node arrived changed although TCP has a checksum: its memory or its adapter is faulty. Take the node out of service, see its memory errors (nhc-gpu check check_hw_mcelog), and replace the adapter.",
		"sweep.tcp.unable": "The test cannot run on this node; the message gives the reason. No part is accused: compare its interfaces with those of a node where it runs.",

		"sweep.rdma.slow":    "RDMA is slow on this rail. Exchange the cable with that of a fast rail: if the fault moves, replace the cable, else the adapter or switch port. Also compare the rate and width of the port (ibstat), its error counters (perfquery, ethtool -S), its PCIe link (nhc-gpu topo, lspci -vv) and the settings of the adapter with those of a healthy node." + end,
		"sweep.rdma.flaky":   "RDMA is slow on this rail from time to time. Look for symbol errors and link changes in the counters of both ends, twice, a minute apart, then replace the cable. Also look for adaptive routing or congestion control that is off on one switch." + end,
		"sweep.rdma.latency": "RDMA messages on this rail are late: compare the firmware and the PCIe settings of the adapter (mlxconfig, setpci) and the route with those of a fast rail. Power saving of CPU and PCIe (C-states, ASPM) adds microseconds." + end,
		"sweep.rdma.unable":  "The test cannot run on this node; the message gives the reason. Install perftest, or compare the RDMA ports of the node with those of a healthy one.",
		"sweep.rdma.failed":  "RDMA does not work on this rail: see the state of the port (ibstat), its GIDs and partition keys (show_gids), and the subnet manager; on Ethernet also PFC and ECN of the switch port.",

		"sweep.nccl.slow":    "Collectives are slow with this node. Run the active tests on the node alone (nhc-gpu --check -n nhc-active -t 900); if they pass, exchange the cables of its rails one by one. Also look at nvidia-smi topo -m, the clocks and power of its GPUs, GPUDirect (the module nvidia_peermem, ACS off)." + end,
		"sweep.nccl.flaky":   "Collectives are slow with this node from time to time: read the error counters of its ports and NVLinks twice, a minute apart, and look at the clocks of its GPUs while the test runs." + end,
		"sweep.nccl.unable":  "NCCL cannot run on this node; the message gives the reason. Install the same driver and NCCL as on the other nodes.",
		"sweep.nccl.hang":    "A collective does not end with this node: look for Xids and adapter messages in its kernel log, and at the state of its ports. Reboot it and run the active tests on it alone before it gets a job.",
		"sweep.nccl.wrong":   "This GPU or node has returned wrong data: take it out of service. Run nhc-gpu check check_gpu_memtest and nhc-gpu check check_gpu_gemm there, and ask the vendor for a replacement if one fails.",
		"sweep.nccl.error":   "NCCL has reported an error on this node: the message has it. Compare the versions of NCCL, of the driver and of the adapter's firmware with those of a healthy node.",
		"sweep.nccl.network": "NCCL uses TCP although the node has RDMA ports: see the state of the ports (ibstat), the limit of locked memory (ulimit -l) in a job, /dev/infiniband, and NCCL_IB_HCA, NCCL_NET and NCCL_IB_DISABLE in /etc/nccl.conf.",
	}
}
