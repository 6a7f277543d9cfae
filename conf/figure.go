package conf

import (
	"maps"
	"slices"
)

// Figure is a reference value, its source, and whether this program has measured it on such a
// node.
type Figure struct {
	Values   []int  // more than one if several are correct
	At       string // conditions of the measurement: "8 GiB, 4 GPUs on PCIe"
	Source   string
	Verified bool
}

// The keys of figures. They are for one GPU, except the number of GPUs and the figures of the
// network.
const (
	FigureGPUs          = "gpus"           // GPUs of a node; several values if the platform has several sizes
	FigurePowerLimit    = "power_limit"    // minimum of the default power limit, W
	FigureGraphicsClock = "graphics_clock" // maximum graphics clock, MHz
	FigureMemoryClock   = "memory_clock"   // maximum memory clock, MHz
	FigurePCIeGen       = "pcie_gen"       // minimum PCIe generation of GPU and slot
	FigurePCIeWidth     = "pcie_width"     // minimum number of PCIe lanes in use
	FigureMemoryNode    = "memory_node"    // 1: GPU memory can be a NUMA node of the kernel, with page cache in it
	FigureRemappedRows  = "remapped_rows"  // limit of rows remapped for uncorrected errors
	FigureDRAMErrors    = "dram_errors"    // more DRAM errors warn
	FigureSRAMErrors    = "sram_errors"    // more corrected SRAM errors warn

	FigureNVLinks         = "nvlinks"          // active NVLinks
	FigureNVLinkBandwidth = "nvlink_bandwidth" // one NVLink in one direction, MB/s
	FigureNVLinkGPUs      = "nvlink_gpus"      // GPUs of the smallest node where all NVLinks are up without NVSwitches
	FigureNVSwitchGPUs    = "nvswitch_gpus"    // GPUs of the smallest node with NVSwitches; 0: no node has them
	FigureNVLinkDomain    = "nvlink_domain"    // GPUs of an NVLink domain of several nodes; 0: NVLink does not leave the node

	FigureMemoryPeak = "memory_peak" // memory bandwidth in the data sheet, GB/s
	FigureBF16       = "bf16"        // best measured rate of BF16 matrix multiplication, TFLOPS

	FigureNetworkPorts     = "network_ports"      // compute network ports of a complete node; the planes of a port count as one
	FigureNetworkRate      = "network_rate"       // minimum rate of such a port, the sum of its planes, Gb/s
	FigureNetworkGPUs      = "network_gpus"       // most GPUs that share such a port on a complete node
	FigureNetworkPCIeGen   = "network_pcie_gen"   // minimum PCIe generation of such a port's HCA and slot
	FigureNetworkPCIeWidth = "network_pcie_width" // minimum number of its PCIe lanes
	FigureNetworkTreeGen   = "network_tree_gen"   // minimum PCIe generation of each link between it and the root port
	FigureGPUNetwork       = "gpu_network"        // connection of a GPU and its nearest such port, a word
)

// FigureKind describes a key of figures.
type FigureKind struct {
	Most    int // upper limit, which detects typing errors
	Unit    string
	What    string
	Judged  bool     // checks use it; the other figures are only information
	Several bool     // several values can be correct
	Only    []int    // no other value exists
	None    bool     // it can be 0
	Words   []string // the figure is one of these words; its value is the index of the word, from 1
}

// pcieWidths are the widths of links: PCI Express Base Specification, Link Capabilities Register.
var pcieWidths = []int{1, 2, 4, 8, 12, 16, 32}

// FigureKinds holds all figures of a platform, by key.
var FigureKinds = map[string]FigureKind{
	FigureGPUs:          {Most: 64, What: "GPUs of a node", Judged: true, Several: true},
	FigurePowerLimit:    {Most: 5000, Unit: "W", What: "minimum of the default power limit", Judged: true},
	FigureGraphicsClock: {Most: 10000, Unit: "MHz", What: "maximum graphics clock", Judged: true},
	FigureMemoryClock:   {Most: 50000, Unit: "MHz", What: "maximum memory clock", Judged: true},
	FigurePCIeGen:       {Most: 9, What: "PCIe generation of GPU and slot", Judged: true},
	FigurePCIeWidth:     {Most: 32, Only: pcieWidths, What: "PCIe lanes in use", Judged: true},
	FigureMemoryNode:    {Most: 1, What: "1 if GPU memory can be a NUMA node of the kernel", Judged: true},
	FigureRemappedRows:  {Most: 10000, What: "limit of rows remapped for uncorrected errors", Judged: true},
	FigureDRAMErrors:    {Most: 1 << 40, What: "more DRAM errors warn", Judged: true},
	FigureSRAMErrors:    {Most: 1 << 40, What: "more corrected SRAM errors warn", Judged: true},

	FigureNVLinks:         {Most: 64, What: "active NVLinks", Judged: true, None: true},
	FigureNVLinkBandwidth: {Most: 1000000, Unit: "MB/s", What: "one NVLink in one direction", Judged: true},
	FigureNVLinkGPUs:      {Most: 64, What: "GPUs of the smallest node where all NVLinks are up without NVSwitches", Judged: true},
	FigureNVSwitchGPUs:    {Most: 64, What: "GPUs of the smallest node with NVSwitches, 0 if no node has them", Judged: true, None: true},
	FigureNVLinkDomain:    {Most: 10000, What: "GPUs that NVLink connects across nodes, 0 if it does not leave the node", Judged: true, None: true},

	FigureNetworkPorts:     {Most: 256, What: "ports of the compute network", Judged: true},
	FigureNetworkRate:      {Most: 10000, Unit: "Gb/s", What: "minimum rate of such a port, the sum of its planes", Judged: true},
	FigureNetworkGPUs:      {Most: 64, What: "most GPUs that share such a port on a complete node", Judged: true},
	FigureNetworkPCIeGen:   {Most: 9, What: "PCIe generation of such a port's HCA and slot", Judged: true},
	FigureNetworkPCIeWidth: {Most: 32, Only: pcieWidths, What: "PCIe lanes of such a port's HCA", Judged: true},
	FigureNetworkTreeGen:   {Most: 9, What: "minimum PCIe generation between such a port's HCA and the root port", Judged: true},
	FigureGPUNetwork:       {What: "connection of a GPU and its nearest such port on a complete node", Judged: true, Words: []string{"switch", "root-port", "numa", "system"}},

	FigureMemoryPeak: {Most: 100000, Unit: "GB/s", What: "memory bandwidth in the data sheet", Judged: true},
	FigureBF16:       {Most: 100000, Unit: "TFLOPS", What: "best measured rate of BF16 matrix multiplication", Judged: true},

	"memory":              {Most: 10000, Unit: "GB", What: "memory"},
	"memory_bandwidth":    {Most: 100000000, Unit: "MB/s", What: "minimum memory bandwidth"},
	"host_bandwidth":      {Most: 10000, Unit: "GB/s", What: "minimum rate of copies from and to the host"},
	"p2p_bandwidth":       {Most: 10000, Unit: "GB/s", What: "rate of copies between two GPUs"},
	"allreduce_bandwidth": {Most: 10000, Unit: "GB/s", What: "bus bandwidth of NCCL's all-reduce on one node"},
	"network_planes":      {Most: 16, What: "planes of such a port if each plane is shown as a port"},
	"network_bandwidth":   {Most: 10000, Unit: "Gb/s", What: "minimum ib_write_bw of such a port"},
	"max_power":           {Most: 5000, Unit: "W", What: "maximum power limit"},
	"target_power":        {Most: 5000, Unit: "W", What: "target of DCGM's targeted power"},
	"target_stress":       {Most: 1000000, Unit: "GFLOPS", What: "target of DCGM's targeted stress"},
	"fp8":                 {Most: 100000, Unit: "TFLOPS", What: "best measured rate of FP8 matrix multiplication"},
}

// FigureKeys returns the keys of all figures, sorted.
func FigureKeys() []string { return slices.Sorted(maps.Keys(FigureKinds)) }

// Value returns a figure with one value, 0 if it is unknown.
func (p *Platform) Value(key string) int {
	if v := p.Figures[key].Values; len(v) > 0 {
		return v[0]
	}
	return 0
}

// Word returns a figure that is a word, "" if it is unknown.
func (p *Platform) Word(key string) string {
	words := FigureKinds[key].Words
	if v := p.Value(key); v > 0 && v <= len(words) {
		return words[v-1]
	}
	return ""
}

// GPUs returns the numbers of GPUs that a node of this platform can have, sorted; empty means
// any.
func (p *Platform) GPUs() []int { return p.Figures[FigureGPUs].Values }
