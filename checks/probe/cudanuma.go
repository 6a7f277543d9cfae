package probe

import (
	"strings"

	"golang.org/x/sys/unix"
)

// cpusBeside are the CPUs that are near to a GPU, "" if the kernel does not tell.
func (h *Host) cpusBeside(pci string) string {
	if pci == "" {
		return ""
	}
	return h.LocalCPUs(pci)
}

// goNear moves the thread to the CPUs that are near to a GPU, so that what is allocated
// next is there: the kernel takes memory of the node that the thread runs on. A thread
// that may not run there stays where it is.
func (g *CUDAGPU) goNear() (restore func()) {
	stay := func() {}
	ids, ok := parseNodeList(g.cpus)
	if !ok || len(ids) == 0 {
		return stay
	}
	var before, near unix.CPUSet
	if unix.SchedGetaffinity(0, &before) != nil {
		return stay
	}
	for _, id := range ids {
		near.Set(id)
	}
	if near.Count() == 0 || unix.SchedSetaffinity(0, &near) != nil {
		return stay
	}
	return func() { _ = unix.SchedSetaffinity(0, &before) }
}

// Near are the CPUs that are near to the GPU: "0-55,112-167"; "" if the kernel does not
// tell. GPUs with the same have their pinned memory on the same NUMA node.
func (g *CUDAGPU) Near() string { return g.cpus }

// Above are the bridges of the PCI bus above the GPU, from the root port down; none if
// the kernel does not tell.
func (g *CUDAGPU) Above() []string { return strings.Fields(g.above) }
