package checks

// Platform are the figures of a kind of node; 0 is one that nobody knows. All
// are of one GPU, but for GPUs and those of the network.
type Platform struct {
	Name string `toml:"name"`
	File string `toml:"file"` // where it is from: conf/profiles/h100.toml

	GPUs          []int `toml:"gpus"`           // how many a node may have, in order; none: any number
	PowerLimit    int   `toml:"power_limit"`    // lowest default power limit, W
	GraphicsClock int   `toml:"graphics_clock"` // highest clocks, MHz
	MemoryClock   int   `toml:"memory_clock"`
	PCIeGen       int   `toml:"pcie_gen"`      // lowest generation of GPU and slot
	PCIeWidth     int   `toml:"pcie_width"`    // fewest lanes in use
	MemoryNode    int   `toml:"memory_node"`   // 1: the GPU's memory may be a NUMA node of the kernel
	RemappedRows  int   `toml:"remapped_rows"` // so many rows remapped for uncorrected errors are too many
	DRAMErrors    int   `toml:"dram_errors"`   // errors of DRAM above which there is a warning
	SRAMErrors    int   `toml:"sram_errors"`   // the same of corrected errors of SRAM

	NVLinks         int `toml:"nvlinks"`          // active NVLinks
	NVLinkBandwidth int `toml:"nvlink_bandwidth"` // one of them, one way, MB/s
	NVLinkGPUs      int `toml:"nvlink_gpus"`      // GPUs of the smallest node that has them all up without NVSwitches
	NVSwitchGPUs    int `toml:"nvswitch_gpus"`    // GPUs of the smallest node with NVSwitches, see HasNVSwitches
	NVLinkDomain    int `toml:"nvlink_domain"`    // most GPUs that NVLink joins across nodes: no Fabric Manager there

	// Nobody but the site knows how its network was built, so what follows only
	// warns. It is about HCAs, not about AWS's EFA, whose ports are smaller and
	// more. Rate and PCIe are about ports whose board can do NetworkRate.

	NetworkPorts     int    `toml:"network_ports"`      // where a node has all, see PortsMissing; all planes of a port are one
	NetworkRate      int    `toml:"network_rate"`       // lowest of such a port, all its planes together, Gb/s
	NetworkPlanes    int    `toml:"network_planes"`     // of such a port, where the HCA shows each as a port; it may show one
	NetworkGPUs      int    `toml:"network_gpus"`       // most that share a port on a node with all ports, see FullNetwork
	NetworkPCIeGen   int    `toml:"network_pcie_gen"`   // lowest generation of HCA and slot
	NetworkPCIeWidth int    `toml:"network_pcie_width"` // fewest lanes
	NetworkTreeGen   int    `toml:"network_tree_gen"`   // lowest generation between HCA and root port
	GPUNetwork       string `toml:"gpu_network"`        // what a GPU and the nearest port have in common where FullNetwork: a Near word

	MemoryPeak int `toml:"memory_peak"` // memory bandwidth by the data sheet, GB/s
	BF16       int `toml:"bf16"`        // best rate of BF16 products that was measured, TFLOP/s

	Floors []Floor `toml:"floors"` // what tests reach at least, see FloorOf
}

// figure returns the figure that a floor of active.toml is a part of; 0 is one that
// nobody knows. known: there is such a figure.
func (p *Platform) figure(key string) (value int, known bool) {
	switch {
	case p == nil:
		return 0, false
	case key == "memory_peak":
		return p.MemoryPeak, true
	case key == "bf16":
		return p.BF16, true
	}
	return 0, false
}

// What a GPU and a port of the network may have in common, nearest first. A
// virtual machine shows no switches, and often no NUMA node.
const (
	NearSwitch   = "switch"    // one PCIe switch
	NearRootPort = "root-port" // a root port, with several switches below it
	NearNUMA     = "numa"      // a NUMA node
	NearSystem   = "system"    // nothing but the node: anything will do
)

// HasNVSwitches says whether NVSwitches should join the GPUs of a node that has
// so many on its bus, so that it needs Fabric Manager: boards of four GPUs have
// none, nor does a virtual machine with a part of a board see any.
func (p *Platform) HasNVSwitches(gpus int) bool {
	if p.NVSwitchGPUs == 0 {
		return false
	}
	for _, size := range p.GPUs {
		if size >= gpus { // one may be missing
			gpus = size
			break
		}
	}
	return gpus >= p.NVSwitchGPUs
}

// FullNetwork says whether so many ports are what the platform has at best for so
// many GPUs. Only then is it known where they are: a node with fewer may have
// them anywhere.
func (p *Platform) FullNetwork(gpus, ports int) bool {
	return p.NetworkGPUs > 0 && gpus > 0 && ports*p.NetworkGPUs >= gpus
}

// PortsMissing says whether so many ports are a few fewer than the platform has,
// at most a quarter: a node with fewer still was built so. More are right, too.
func (p *Platform) PortsMissing(ports int) bool {
	return ports < p.NetworkPorts && p.NetworkPorts-ports <= p.NetworkPorts/4
}

// PlatformOf finds the platform of a node that has so many GPUs of a device on
// its PCI bus, nil if none fits. Device and subsystem are as in [probe.PCIID].
type PlatformOf func(device, subsystem string, gpus int) *Platform
