package active

import (
	"fmt"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// What joins two GPUs, for checks that compare pairs of them.

// Kinds of pairs: joined by NVSwitches, by NVLinks of a number that is not told, and by
// the host, where they are near to the same CPUs or not.
const (
	nvSwitched = "nvlink"
	nvUntold   = "nvlink, by what is not told"
	joinedNear = "pcie near"
	joinedFar  = "pcie far"
)

// joined says what is between two GPUs, as far as NVML and the kernel tell: pairs are
// compared with those that have the same. In a mesh the number of links belongs to it,
// on PCIe whether the way leaves the switch, the root port, the NUMA node: each step may
// halve the rate.
func (l *loadedGPU) joined(other *loadedGPU) string {
	if l.gpu.NVLink.PeerP2P.Value[checks.GPUName(other.gpu)] == nvml.P2POK {
		links := 0
		for _, far := range l.gpu.NVLink.FarPCI.Value {
			if far == other.gpu.PCI {
				links++
			}
		}
		if links > 0 {
			return fmt.Sprintf("nvlink x%d", links)
		}
		if slices.Contains(l.gpu.NVLink.Far.Value, "switch") {
			return nvSwitched
		}
		return nvUntold
	}
	above, beside := l.c.GPU.Above(), other.c.GPU.Above()
	shared := sharedBridges(above, beside)
	switch own := max(len(above), len(beside)) - shared; {
	case shared > 0 && own <= 1:
		return "one pcie switch"
	case shared > 0:
		return fmt.Sprintf("pcie switches %d deep", own)
	case l.c.GPU.Near() == other.c.GPU.Near():
		return joinedNear
	}
	return joinedFar
}

// sharedBridges is how many bridges two devices have in common, from the root port down.
func sharedBridges(above, beside []string) (n int) {
	for n < min(len(above), len(beside)) && above[n] == beside[n] {
		n++
	}
	return n
}

// throughHost stands among ways for what joins the sockets of a node, and for the node
// where the kernel tells no bridge, as in a virtual machine: then nobody knows.
const throughHost = "host"

// way is what the data of two GPUs cross that other pairs may cross as well: the bridges
// above one of them alone, and what joins the sockets. NVLinks are for the two alone, or
// their switches have room for all.
func (l *loadedGPU) way(other *loadedGPU) (parts []string) {
	if l.gpu.NVLink.PeerP2P.Value[checks.GPUName(other.gpu)] == nvml.P2POK {
		return nil
	}
	above, beside := l.c.GPU.Above(), other.c.GPU.Above()
	shared := sharedBridges(above, beside)
	parts = append(parts, above[shared:]...)
	parts = append(parts, beside[shared:]...)
	if len(above) == 0 || len(beside) == 0 || l.joined(other) == joinedFar {
		parts = append(parts, throughHost)
	}
	return parts
}
