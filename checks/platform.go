package checks

import (
	"fmt"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// Platform holds the reference figures of a platform; 0 is unknown. All figures are of one
// GPU, except GPUs and those of the network.
type Platform struct {
	Name string `toml:"name"`
	File string `toml:"file"` // the file that defines it: conf/profiles/h100.toml

	GPUs          []int `toml:"gpus"`           // allowed numbers of GPUs in a node, ascending; empty: any number
	PowerLimit    int   `toml:"power_limit"`    // minimum of the default power limit, W
	GraphicsClock int   `toml:"graphics_clock"` // maximum clocks, MHz
	MemoryClock   int   `toml:"memory_clock"`
	PCIeGen       int   `toml:"pcie_gen"`      // minimum generation of GPU and slot
	PCIeWidth     int   `toml:"pcie_width"`    // minimum number of lanes in use
	MemoryNode    int   `toml:"memory_node"`   // 1: the GPU's memory can be a NUMA node of the kernel
	RemappedRows  int   `toml:"remapped_rows"` // limit of rows remapped for uncorrected errors
	DRAMErrors    int   `toml:"dram_errors"`   // corrected DRAM errors above this number warn
	SRAMErrors    int   `toml:"sram_errors"`   // corrected SRAM errors above this number warn

	NVLinks         int `toml:"nvlinks"`          // active NVLinks
	NVLinkBandwidth int `toml:"nvlink_bandwidth"` // of one link in one direction, MB/s
	NVLinkGPUs      int `toml:"nvlink_gpus"`      // GPUs of the smallest node where all links are up without NVSwitches
	NVSwitchGPUs    int `toml:"nvswitch_gpus"`    // GPUs of the smallest node with NVSwitches, see HasNVSwitches
	NVLinkDomain    int `toml:"nvlink_domain"`    // largest number of GPUs that NVLink connects across nodes; such nodes run no Fabric Manager

	// Only the site knows how its network was built, so the network figures only warn. They are
	// for HCAs, not for AWS's EFA, which has more and smaller ports. Rate and PCIe figures are
	// for ports whose board supports NetworkRate.

	NetworkPorts     int    `toml:"network_ports"`      // ports of a complete node, see PortsMissing; the planes of a port count as one
	NetworkRate      int    `toml:"network_rate"`       // minimum rate of such a port, the sum of its planes, Gb/s
	NetworkGPUs      int    `toml:"network_gpus"`       // most GPUs that share a port on a complete node, see FullNetwork
	NetworkPCIeGen   int    `toml:"network_pcie_gen"`   // minimum generation of HCA and slot
	NetworkPCIeWidth int    `toml:"network_pcie_width"` // minimum number of lanes
	NetworkTreeGen   int    `toml:"network_tree_gen"`   // minimum generation of each link between HCA and root port
	GPUNetwork       string `toml:"gpu_network"`        // connection of a GPU and its nearest port if FullNetwork: a Near constant

	MemoryPeak int `toml:"memory_peak"` // memory bandwidth in the data sheet, GB/s
	BF16       int `toml:"bf16"`        // best measured rate of BF16 matrix products, TFLOP/s

	Floors []Floor `toml:"floors"` // minimum results of tests, see FloorOf
}

// Figure returns the figure that a floor of active.toml is relative to; 0 is unknown. known
// is false if there is no such figure.
func (p *Platform) Figure(key string) (value int, known bool) {
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

// The nearest common part of the PCIe paths of a GPU and a network port, nearest first. A
// virtual machine shows no switches, and often no NUMA node.
const (
	NearSwitch   = "switch"    // one PCIe switch
	NearRootPort = "root-port" // a root port with several switches below it
	NearNUMA     = "numa"      // a NUMA node
	NearSystem   = "system"    // only the node: no requirement
)

// HasNVSwitches reports whether a node with this number of GPUs on its bus should have
// NVSwitches, and therefore requires Fabric Manager. Boards of four GPUs have none, and a
// virtual machine with a part of a board sees none.
func (p *Platform) HasNVSwitches(gpus int) bool {
	if p.NVSwitchGPUs == 0 {
		return false
	}
	for _, size := range p.GPUs {
		if size >= gpus { // a GPU can be missing
			gpus = size
			break
		}
	}
	return gpus >= p.NVSwitchGPUs
}

// FullNetwork reports whether a node has all ports of the platform for this number of GPUs.
// Only then is the location of the ports known: a node with fewer ports can have them
// anywhere.
func (p *Platform) FullNetwork(gpus, ports int) bool {
	return p.NetworkGPUs > 0 && gpus > 0 && ports*p.NetworkGPUs >= gpus
}

// PortsMissing reports whether the node has slightly fewer ports than the platform, at most a
// quarter: a node with still fewer was built that way. More ports are correct, too.
func (p *Platform) PortsMissing(ports int) bool {
	return ports < p.NetworkPorts && p.NetworkPorts-ports <= p.NetworkPorts/4
}

// PlatformOf returns the platform of a node with this number of GPUs of one device ID on its PCI
// bus, nil if none matches. Device and subsystem are as in [pci.ID].
type PlatformOf func(device, subsystem string, gpus int) *Platform

// PlatformGroup is the set of GPUs with the same PCI device ID.
type PlatformGroup struct {
	Device    string
	Subsystem string    // the most common one
	Addresses []string  // sorted
	Platform  *Platform // nil: none matches
}

// GroupPlatforms groups the GPUs of a node by PCI device ID, and finds the platform of each
// group.
func GroupPlatforms(ids []pci.ID, find PlatformOf) (groups []PlatformGroup) {
	subsystems := map[string]map[string]int{}
	for _, id := range ids {
		at := slices.IndexFunc(groups, func(g PlatformGroup) bool { return g.Device == id.Device })
		if at < 0 {
			at = len(groups)
			groups = append(groups, PlatformGroup{Device: id.Device})
			subsystems[id.Device] = map[string]int{}
		}
		groups[at].Addresses = append(groups[at].Addresses, id.Address)
		subsystems[id.Device][id.Subsystem]++
	}
	for i := range groups {
		g := &groups[i]
		g.Subsystem = Commonest(subsystems[g.Device])
		if find != nil {
			g.Platform = find(g.Device, g.Subsystem, len(g.Addresses))
		}
	}
	return groups
}

// String returns one line about a group, for a user.
func (g *PlatformGroup) String() string {
	what := fmt.Sprintf("%s, PCI device 10de:%s%s", Plural(len(g.Addresses), "GPU"), g.Device, Before(", subsystem ", g.Subsystem, ""))
	if p := g.Platform; p != nil {
		return fmt.Sprintf("%s (%s); %s", p.Name, p.File, what)
	}
	return "unknown; " + what
}

// PlatformGroups returns the groups of this node. It computes them once.
func PlatformGroups(env *Env) []PlatformGroup {
	groups := probe.Kept[[]PlatformGroup](env.Host, "platforms")
	if *groups == nil && env.Platform != nil {
		ids, err := pci.GPUIDs(env.Host)
		if err != nil { // the check that queried NVML has reported it
			return nil
		}
		n, _ := nvml.Asked(env.Host) // without NVML, no GPU counts as a vGPU
		*groups = GroupPlatforms(slices.DeleteFunc(slices.Clone(ids), func(id pci.ID) bool {
			return n != nil && slices.ContainsFunc(n.GPUs, func(g nvml.GPU) bool { return g.PCI == id.Address && g.VGPU.Value })
		}), env.Platform)
	}
	return *groups
}

// NodePlatform returns the platform of the node's GPUs, and their number. If the platform is
// unknown, or the node has several GPU models, it returns an empty one.
func NodePlatform(env *Env) (p *Platform, gpus int) {
	groups := PlatformGroups(env)
	if len(groups) != 1 || groups[0].Platform == nil {
		return &Platform{}, 0
	}
	return groups[0].Platform, len(groups[0].Addresses)
}

// Floor is the minimum result of a test on a healthy node, from a platform's profile or from
// the site. It does not apply to another algorithm, size or number of ranks: NCCL's rings reach
// three quarters of the rate of its NVLS on the same GPUs.
type Floor struct {
	Test      string  `toml:"test"`      // all_reduce
	Algorithm string  `toml:"algorithm"` // ring
	Size      int64   `toml:"size"`      // bytes, or n for n x n matrices; 0 if the test has no size
	Ranks     int     `toml:"ranks"`     // number of GPUs or ports that work together
	Value     float64 `toml:"value"`
	Unit      string  `toml:"unit"`     // GB/s (10^9), TFLOP/s, us, Gb/s, MB/s
	Source    string  `toml:"source"`   // source of the number
	Verified  bool    `toml:"verified"` // this program has measured a higher value on such a node
	File      string  `toml:"file"`     // file and line: conf/profiles/h100.toml:80
}

// FloorOf returns the floor of exactly this run; known is false if there is none. 0 ranks
// mean 1. p can be nil.
func (p *Platform) FloorOf(test, algorithm string, size int64, ranks int) (f Floor, known bool) {
	if p == nil || algorithm == "" {
		return Floor{}, false
	}
	for _, f := range p.Floors {
		if f.Test == test && f.Algorithm == algorithm && f.Size == size && max(f.Ranks, 1) == max(ranks, 1) {
			return f, true
		}
	}
	return Floor{}, false
}
