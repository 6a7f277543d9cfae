package checks

import (
	"fmt"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

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

// Figure returns the figure that a floor of active.toml is a part of; 0 is one that
// nobody knows. known: there is such a figure.
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
// its PCI bus, nil if none fits. Device and subsystem are as in [pci.ID].
type PlatformOf func(device, subsystem string, gpus int) *Platform

// PlatformGroup are the GPUs of one device on the PCI bus.
type PlatformGroup struct {
	Device    string
	Subsystem string    // that of most of them
	Addresses []string  // in order
	Platform  *Platform // nil: none fits
}

// GroupPlatforms sorts the GPUs of a node by what they are, and finds the
// platform of each kind. A node with two kinds of GPU has two groups.
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

// Tell is one line about a group, for a person.
func (g *PlatformGroup) Tell() string {
	what := fmt.Sprintf("%s, PCI device 10de:%s%s", Plural(len(g.Addresses), "GPU"), g.Device, Before(", subsystem ", g.Subsystem, ""))
	if p := g.Platform; p != nil {
		return fmt.Sprintf("%s (%s); %s", p.Name, p.File, what)
	}
	return "unknown; " + what
}

// PlatformGroups are those of this node, found once.
func PlatformGroups(env *Env) []PlatformGroup {
	groups := probe.Kept[[]PlatformGroup](env.Host, "platforms")
	if *groups == nil && env.Platform != nil {
		ids, err := pci.GPUIDs(env.Host)
		if err != nil { // the check that has asked NVML has reported it
			return nil
		}
		n, _ := nvml.Asked(env.Host) // without NVML no GPU is known to be a vGPU
		*groups = GroupPlatforms(slices.DeleteFunc(slices.Clone(ids), func(id pci.ID) bool {
			return n != nil && slices.ContainsFunc(n.GPUs, func(g nvml.GPU) bool { return g.PCI == id.Address && g.VGPU.Value })
		}), env.Platform)
	}
	return *groups
}

// NodePlatform is that of the node's GPUs, and how many they are: one without any
// figure if none is known, or if there are several kinds of GPU.
func NodePlatform(env *Env) (p *Platform, gpus int) {
	groups := PlatformGroups(env)
	if len(groups) != 1 || groups[0].Platform == nil {
		return &Platform{}, 0
	}
	return groups[0].Platform, len(groups[0].Addresses)
}

// Floor is what a test of a healthy node reaches at least, of a platform's
// profile or a site's. It says nothing of another algorithm, size or number of
// ranks: NCCL's rings reach three quarters of what its NVLS does on the same GPUs.
type Floor struct {
	Test      string  `toml:"test"`      // all_reduce
	Algorithm string  `toml:"algorithm"` // ring
	Size      int64   `toml:"size"`      // bytes, or n of matrices of n x n; 0 where the test has none
	Ranks     int     `toml:"ranks"`     // GPUs or ports at work together; 1 is one alone
	Value     float64 `toml:"value"`
	Unit      string  `toml:"unit"`     // GB/s (10^9), TFLOP/s, us, Gb/s, MB/s
	Source    string  `toml:"source"`   // where the number is from
	Verified  bool    `toml:"verified"` // this program has measured more on such a node
	File      string  `toml:"file"`     // where it stands: conf/profiles/h100.toml:80
}

// FloorOf is the floor of exactly this run; known is false if there is none. No
// ranks, and one, are the same. It may be asked of a platform that nobody knows.
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
