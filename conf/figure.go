package conf

import (
	"maps"
	"slices"
)

// Figure is a number, where it comes from, and whether this program has read it
// on such a node.
type Figure struct {
	Values   []int  // more than one only where several are right
	At       string // what it was measured with, where that matters: "8 GiB, 4 GPUs on PCIe"
	Source   string
	Verified bool
}

// The keys of figures that checks judge by. They are of one GPU, but for those of
// the node's GPUs and of its network.
const (
	FigureGPUs          = "gpus"           // GPUs of a node; several where the platform comes in several sizes
	FigurePowerLimit    = "power_limit"    // lowest default power limit, W
	FigureGraphicsClock = "graphics_clock" // highest graphics clock, MHz
	FigureMemoryClock   = "memory_clock"   // highest memory clock, MHz
	FigurePCIeGen       = "pcie_gen"       // lowest PCIe generation that GPU and slot have together
	FigurePCIeWidth     = "pcie_width"     // fewest PCIe lanes in use
	FigureMemoryNode    = "memory_node"    // 1: GPU memory may be a NUMA node of the kernel, with its page cache
	FigureRemappedRows  = "remapped_rows"  // so many rows remapped for uncorrected errors are too many
	FigureDRAMErrors    = "dram_errors"    // DRAM errors above which there is a warning
	FigureSRAMErrors    = "sram_errors"    // corrected SRAM errors above which there is a warning

	FigureNVLinks         = "nvlinks"          // active NVLinks
	FigureNVLinkBandwidth = "nvlink_bandwidth" // one NVLink, one way, MB/s
	FigureNVLinkGPUs      = "nvlink_gpus"      // GPUs of the smallest node that has all NVLinks up without NVSwitches
	FigureNVSwitchGPUs    = "nvswitch_gpus"    // GPUs of the smallest node with NVSwitches; 0: none has
	FigureNVLinkDomain    = "nvlink_domain"    // GPUs of an NVLink domain of several nodes; 0: a node is alone

	FigureMemoryPeak = "memory_peak" // memory bandwidth by the data sheet, GB/s
	FigureBF16       = "bf16"        // best rate of BF16 matrix multiplication that was measured, TFLOPS

	FigureNetworkPorts     = "network_ports"      // ports of the compute network where it has all; one with all its planes
	FigureNetworkRate      = "network_rate"       // lowest rate of such a port, all its planes together, Gb/s
	FigureNetworkPlanes    = "network_planes"     // planes of such a port, where its HCA shows each as a port
	FigureNetworkGPUs      = "network_gpus"       // most GPUs that share such a port where a node has all of them
	FigureNetworkPCIeGen   = "network_pcie_gen"   // lowest PCIe generation of such a port's HCA and its slot
	FigureNetworkPCIeWidth = "network_pcie_width" // fewest PCIe lanes of it
	FigureNetworkTreeGen   = "network_tree_gen"   // lowest PCIe generation between it and the root port
	FigureGPUNetwork       = "gpu_network"        // how far apart a GPU and the nearest such port may be, a word
)

// FigureKind is what a key of figures stands for.
type FigureKind struct {
	Most    int // bounds it, so that a slip of the pen is found
	Unit    string
	What    string
	Judged  bool     // the checks know it; the others are for whoever measures
	Several bool     // more than one value may be right
	None    bool     // it may be 0
	Words   []string // it is one of these words and not a number; its value is the word's place, from 1
}

// FigureKinds are all figures that a platform may have, by key.
var FigureKinds = map[string]FigureKind{
	FigureGPUs:          {Most: 64, What: "GPUs of a node", Judged: true, Several: true},
	FigurePowerLimit:    {Most: 5000, Unit: "W", What: "lowest default power limit", Judged: true},
	FigureGraphicsClock: {Most: 10000, Unit: "MHz", What: "highest graphics clock", Judged: true},
	FigureMemoryClock:   {Most: 50000, Unit: "MHz", What: "highest memory clock", Judged: true},
	FigurePCIeGen:       {Most: 9, What: "PCIe generation of GPU and slot", Judged: true},
	FigurePCIeWidth:     {Most: 32, What: "PCIe lanes in use", Judged: true},
	FigureMemoryNode:    {Most: 1, What: "whether GPU memory may be a NUMA node of the kernel", Judged: true},
	FigureRemappedRows:  {Most: 10000, What: "rows remapped for uncorrected errors that are too many", Judged: true},
	FigureDRAMErrors:    {Most: 1 << 40, What: "DRAM errors above which there is a warning", Judged: true},
	FigureSRAMErrors:    {Most: 1 << 40, What: "corrected SRAM errors above which there is a warning", Judged: true},

	FigureNVLinks:         {Most: 64, What: "active NVLinks", Judged: true, None: true},
	FigureNVLinkBandwidth: {Most: 1000000, Unit: "MB/s", What: "one NVLink, one way", Judged: true},
	FigureNVLinkGPUs:      {Most: 64, What: "GPUs of the smallest node that has all NVLinks up without NVSwitches", Judged: true},
	FigureNVSwitchGPUs:    {Most: 64, What: "GPUs of the smallest node that NVSwitches join, 0 if none does", Judged: true, None: true},
	FigureNVLinkDomain:    {Most: 10000, What: "GPUs that NVLink joins across nodes, 0 if it does not", Judged: true, None: true},

	FigureNetworkPorts:     {Most: 256, What: "ports of the compute network", Judged: true},
	FigureNetworkRate:      {Most: 10000, Unit: "Gb/s", What: "rate of such a port, all its planes together", Judged: true},
	FigureNetworkPlanes:    {Most: 16, What: "planes of such a port, where each is shown as a port", Judged: true},
	FigureNetworkGPUs:      {Most: 64, What: "GPUs that share such a port, on a node with all ports", Judged: true},
	FigureNetworkPCIeGen:   {Most: 9, What: "PCIe generation of such a port's HCA and slot", Judged: true},
	FigureNetworkPCIeWidth: {Most: 32, What: "PCIe lanes of such a port's HCA", Judged: true},
	FigureNetworkTreeGen:   {Most: 9, What: "PCIe generation between such a port's HCA and the root port", Judged: true},
	FigureGPUNetwork:       {What: "what a GPU and the nearest such port have in common, on a node with all ports", Judged: true, Words: []string{"switch", "root-port", "numa", "system"}},

	FigureMemoryPeak: {Most: 100000, Unit: "GB/s", What: "memory bandwidth by the data sheet", Judged: true},
	FigureBF16:       {Most: 100000, Unit: "TFLOPS", What: "BF16 matrix multiplication, best that was measured", Judged: true},

	"memory":              {Most: 10000, Unit: "GB", What: "memory"},
	"memory_bandwidth":    {Most: 100000000, Unit: "MB/s", What: "memory bandwidth, least that passes"},
	"host_bandwidth":      {Most: 10000, Unit: "GB/s", What: "copy from and to the host, least that passes"},
	"p2p_bandwidth":       {Most: 10000, Unit: "GB/s", What: "copy between two GPUs"},
	"allreduce_bandwidth": {Most: 10000, Unit: "GB/s", What: "bus bandwidth of NCCL's all-reduce on one node"},
	"network_bandwidth":   {Most: 10000, Unit: "Gb/s", What: "ib_write_bw of such a port, least that passes"},
	"max_power":           {Most: 5000, Unit: "W", What: "highest power limit"},
	"target_power":        {Most: 5000, Unit: "W", What: "what DCGM's targeted power must reach"},
	"target_stress":       {Most: 1000000, Unit: "GFLOPS", What: "what DCGM's targeted stress must reach"},
	"fp8":                 {Most: 100000, Unit: "TFLOPS", What: "FP8 matrix multiplication, best that was measured"},
}

// FigureKeys are the keys of all figures, sorted.
func FigureKeys() []string { return slices.Sorted(maps.Keys(FigureKinds)) }

// Value is a figure of which there is one value, 0 if it is not known.
func (p *Platform) Value(key string) int {
	if v := p.Figures[key].Values; len(v) > 0 {
		return v[0]
	}
	return 0
}

// Word is a figure that is a word, "" if it is not known.
func (p *Platform) Word(key string) string {
	words := FigureKinds[key].Words
	if v := p.Value(key); v > 0 && v <= len(words) {
		return words[v-1]
	}
	return ""
}

// GPUs are the numbers of GPUs that a node of this platform may have, in order;
// none means any.
func (p *Platform) GPUs() []int { return p.Figures[FigureGPUs].Values }
