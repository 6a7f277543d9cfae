// Package topology contains the checks of the PCIe and NUMA topology, and of NVMe disks.
package topology

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/fabric"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/inventory"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
)

// The PCIe and NUMA topology of GPUs, adapters and disks: check_hw_topology judges it, and
// nhc-gpu topo prints it.

// Topology is the topology of a node.
type Topology struct {
	NUMA  []pci.NUMANode `json:"numa"`
	Kinds []string       `json:"platforms"` // a line for each kind of GPU
	GPUs  []Located      `json:"gpus"`
	NICs  []LocatedNIC   `json:"nics"`
	Disks []Located      `json:"disks"`
	Near  [][]string     `json:"near"` // of each GPU to each NIC, see [TopologyWords]

	Libraries []probe.Fact `json:"libraries"` // vendors' libraries, see [inventory.DescribeLibraries]

	Doubts []string `json:"doubts,omitempty"` // errors of readings
}

// Located is a device of the PCI bus, and where it is.
type Located struct {
	Name     string   `json:"name"`              // gpu3 by its place on the bus, mlx5_3, nvme3
	PCI      string   `json:"pci,omitempty"`     // "" of an adapter in software
	ID       string   `json:"id,omitempty"`      // PCI vendor and device: 10de:2330
	NUMA     int      `json:"numa"`              // -1: unknown
	CPUs     string   `json:"cpus,omitempty"`    // local CPUs, a list in the kernel's format
	Bridges  []string `json:"bridges,omitempty"` // above it, from the root port down
	Speed    float64  `json:"speed,omitempty"`   // current speed of the link, GT/s; 0: unknown, as below
	Width    int      `json:"width,omitempty"`   // lanes in use
	MaxSpeed float64  `json:"max_speed,omitempty"`
	MaxWidth int      `json:"max_width,omitempty"`

	err error // of a reading
}

// LocatedNIC is an RDMA device.
type LocatedNIC struct {
	Located

	Model string        `json:"model,omitempty"` // ConnectX-7; "": unknown
	VF    bool          `json:"vf,omitempty"`
	Ports []LocatedPort `json:"ports"`
}

// LocatedPort is a port of an RDMA device, in the kernel's words.
type LocatedPort struct {
	Name    string   `json:"name"` // mlx5_3:1
	Layer   string   `json:"layer,omitempty"`
	State   string   `json:"state,omitempty"`
	Rate    string   `json:"rate,omitempty"` // Gb/s
	NetDevs []string `json:"net_devices,omitempty"`
	Plane   int      `json:"plane,omitempty"`
	Left    string   `json:"left,omitempty"` // why it carries no traffic of jobs; "": it does
}

// Nearness is the closest component that two devices share, in ascending order.
type Nearness int

const (
	sameNode   Nearness = iota
	sameNUMA            // a NUMA node
	sameHost            // a PCIe host bridge of that NUMA node
	sameRoot            // a root port with several switches below it
	sameSwitch          // a switch, or a root port without switches
)

// TopologyWords are the words of nvidia-smi topo -m for each [Nearness], and their meanings.
var TopologyWords = [...][2]string{
	{"SYS", "only the node"}, {"NODE", "a NUMA node"}, {"PHB", "a PCIe host bridge"}, {"PXB", "a root port"}, {"PIX", "a PCIe switch"},
}

func (n Nearness) String() string { return TopologyWords[n][0] }

// describe returns the nearness for a message.
func (n Nearness) describe() string { return TopologyWords[n][1] + " in common" }

// parseLevel returns the nearness for a word of a platform or of a line.
func parseLevel(level string) Nearness {
	switch level {
	case checks.NearSwitch:
		return sameSwitch
	case checks.NearRootPort:
		return sameRoot
	case checks.NearNUMA:
		return sameNUMA
	}
	return sameNode
}

// Near returns the closest component that two devices share.
func (a *Located) Near(b *Located) Nearness {
	shared := 0
	for shared < min(len(a.Bridges), len(b.Bridges)) && a.Bridges[shared] == b.Bridges[shared] {
		shared++
	}
	switch {
	case a.PCI == "" || b.PCI == "":
		return sameNode
	case shared > 0 && max(len(a.Bridges), len(b.Bridges))-shared <= 1: // the switch's own port to each
		return sameSwitch
	case shared > 0:
		return sameRoot
	case a.findHost() == b.findHost():
		return sameHost
	case a.NUMA == b.NUMA:
		return sameNUMA
	}
	return sameNode
}

// findHost returns the bus of the host bridge, which has the root ports: 0000:c0.
func (a *Located) findHost() string {
	at := a.PCI
	if len(a.Bridges) > 0 {
		at = a.Bridges[0]
	}
	if i := strings.LastIndexByte(at, ':'); i >= 0 {
		at = at[:i]
	}
	return at
}

// LocateDevice reads the place of a device on the PCI bus.
func LocateDevice(env *checks.Env, name, address string) Located {
	env.At("read /sys/bus/pci/devices/%s", address)
	d := pci.ReadFunction(env.Host, address)
	a := Located{
		Name: name, PCI: address, NUMA: d.NUMA, Bridges: d.Path, Speed: d.Speed, Width: d.Width, MaxSpeed: d.MaxSpeed, MaxWidth: d.MaxWidth, err: d.Err,
	}
	if d.Vendor != "" {
		a.ID = d.Vendor + ":" + d.Device
	}
	return a
}

// LocateGPUs finds NVIDIA's GPUs. Their numbers are those of NVML if NVML shows all of them.
func LocateGPUs(env *checks.Env) (gpus []Located, err error) {
	env.At("read /sys/bus/pci/devices")
	ids, err := pci.GPUIDs(env.Host)
	for i, id := range ids {
		gpus = append(gpus, LocateDevice(env, fmt.Sprintf("gpu%d", i), id.Address))
	}
	return gpus, err
}

// locateNIC reads the place of an RDMA device.
func locateNIC(env *checks.Env, a *rdma.HCA) LocatedNIC {
	n := LocatedNIC{Located: Located{Name: a.Name, NUMA: -1}, VF: a.VF, Ports: []LocatedPort{}}
	if a.PCI != "" {
		n.Located = LocateDevice(env, a.Name, a.PCI)
	}
	if m := fabric.ModelOf(a.Vendor, a.Model, a.Board); m != nil {
		n.Model = m.Name
	}
	return n
}

// AskTopology reads the topology of the node. Doubts has the errors.
func AskTopology(e *checks.Env) *Topology {
	t := &Topology{NUMA: []pci.NUMANode{}, Kinds: []string{}, NICs: []LocatedNIC{}, Disks: []Located{}, Near: [][]string{}, Libraries: []probe.Fact{}}
	doubt := func(err error) {
		if err != nil {
			t.Doubts = append(t.Doubts, checks.OneLine(err))
		}
	}
	e.At("read /sys/devices/system/node")
	nodes, err := pci.ReadNUMANodes(e.Host)
	doubt(err)
	t.NUMA = append(t.NUMA, nodes...)
	gpus, err := LocateGPUs(e)
	doubt(err)
	t.GPUs = append([]Located{}, gpus...)
	for _, g := range checks.PlatformGroups(e) {
		t.Kinds = append(t.Kinds, g.String())
	}
	if list, err := pci.List(e.Host); err == nil && len(list) == 0 {
		doubt(errors.New("no device on the PCI bus: /sys/bus/pci/devices is empty or missing"))
	}
	f, findings := fabric.Ask(e, "topo")
	for _, of := range findings {
		if of.Severity == checks.Unknown {
			t.Doubts = append(t.Doubts, of.Message)
		}
	}
	if f != nil {
		t.addNICs(e, f, doubt)
	}
	e.At("read /sys/class/nvme")
	names, address, err := pci.NVMePCI(e.Host)
	doubt(err)
	slices.SortFunc(names, compareNames)
	for _, n := range names {
		t.Disks = append(t.Disks, LocateDevice(e, n, address[n]))
	}
	for i := range t.GPUs {
		t.GPUs[i].CPUs = pci.LocalCPUs(e.Host, t.GPUs[i].PCI)
		row := []string{}
		for j := range t.NICs {
			row = append(row, t.GPUs[i].Near(&t.NICs[j].Located).String())
		}
		t.Near = append(t.Near, row)
		doubt(t.GPUs[i].err)
	}
	for i := range t.Disks {
		doubt(t.Disks[i].err)
	}
	e.At("look for the libraries of vendors")
	t.Libraries = append(t.Libraries, inventory.DescribeLibraries(context.Background(), e.Host)...)
	return t
}

// compareNames orders nvme9 before nvme10.
func compareNames(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

// addNICs adds the RDMA devices, but not virtual functions: there can be thousands, and each has the
// place of its physical function.
func (t *Topology) addNICs(e *checks.Env, f *fabric.Fabric, doubt func(error)) {
	hidden := 0
	for i := range f.HCAs {
		a := &f.HCAs[i]
		if a.VF {
			hidden++
			continue
		}
		n := locateNIC(e, a)
		doubt(a.Err)
		for j := range f.Ports {
			p := &f.Ports[j]
			if p.HCA != a {
				continue
			}
			doubt(p.Err)
			n.Ports = append(n.Ports, LocatedPort{Name: p.Name(), Layer: p.Layer, State: p.State, Rate: p.Rate, NetDevs: p.NetDevs, Plane: p.Plane, Left: p.Left})
		}
		t.NICs = append(t.NICs, n)
	}
	slices.SortStableFunc(t.NICs, func(a, b LocatedNIC) int { return compareNames(a.Name, b.Name) })
	if hidden > 0 {
		t.Doubts = append(t.Doubts, checks.Plural(hidden, "virtual function")+" not shown")
	}
}
