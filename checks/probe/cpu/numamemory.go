package cpu

import (
	"bytes"
	"errors"
	"io/fs"
	"slices"
	"strconv"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// NUMAMemory is the memory of NUMA nodes, in bytes.
type NUMAMemory struct {
	Total uint64 // MemTotal
	Free  uint64 // MemFree: what can be had without taking it from the page cache
	Cache uint64 // what the page cache can give back at once: pages of files that are clean and not locked
	Named uint64 // what the kernel counts for files, processes and itself; a driver's own pages are not in it
}

// MemoryNear is the memory of the NUMA nodes that have any of these CPUs, of now, as
// /sys/devices/system/node/node*/meminfo has it. Nothing of it is known, and there is
// no error, where the kernel does not tell.
func MemoryNear(h *probe.Host, cpus []int) (m NUMAMemory, known bool, err error) {
	nodes, err := pci.ReadNUMANodes(h)
	if err != nil {
		return m, false, err
	}
	for _, n := range nodes {
		own, _ := pci.ParseList(n.CPUs, probe.MaxCPUs)
		if !slices.ContainsFunc(own, func(cpu int) bool { return slices.Contains(cpus, cpu) }) {
			continue
		}
		of, err := ReadNUMAMemory(h, n.ID)
		if errors.Is(err, fs.ErrNotExist) {
			return NUMAMemory{}, false, nil
		}
		if err != nil {
			return NUMAMemory{}, false, err
		}
		m.Total, m.Free, m.Cache, m.Named, known = m.Total+of.Total, m.Free+of.Free, m.Cache+of.Cache, m.Named+of.Named, true
	}
	return m, known, nil
}

// ReadNUMAMemory is the memory of one NUMA node.
func ReadNUMAMemory(h *probe.Host, node int) (NUMAMemory, error) {
	path := pci.NUMANodes + "/node" + strconv.Itoa(node) + "/meminfo"
	data, err := h.ReadFile(path)
	if err != nil {
		return NUMAMemory{}, err
	}
	m, ok := parseNUMAMemory(data)
	if !ok {
		return NUMAMemory{}, &fs.PathError{Op: "read", Path: path, Err: errNoNUMAMemory}
	}
	return m, nil
}

var errNoNUMAMemory = errors.New("no MemTotal and MemFree lines")

// parseNUMAMemory reads "Node 0 MemFree: 123 kB". Of the page cache those pages count
// that the kernel has on its lists of files to reclaim: FilePages has those of tmpfs and
// of an initramfs, too, which it can give to nobody.
func parseNUMAMemory(data []byte) (m NUMAMemory, ok bool) {
	found := 0
	var dirty uint64
	for line := range bytes.Lines(data) {
		f := bytes.Fields(line)
		if len(f) < 4 {
			continue
		}
		kB, err := strconv.ParseUint(string(f[3]), 10, 54)
		if err != nil {
			continue
		}
		switch string(f[2]) {
		case "MemTotal:":
			m.Total = kB << 10
			found++
		case "MemFree:":
			m.Free = kB << 10
			found++
		case "Active(file):", "Inactive(file):":
			m.Cache += kB << 10
		case "FilePages:", "AnonPages:", "Slab:", "PageTables:", "KernelStack:":
			m.Named += kB << 10
		case "Dirty:", "Writeback:":
			dirty += kB << 10
		}
	}
	m.Named = min(m.Named, m.Total)
	m.Cache -= min(m.Cache, dirty)
	return m, found == 2
}
