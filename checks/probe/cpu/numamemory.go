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
	Free  uint64 // MemFree: available without taking it from the page cache
	Cache uint64 // pages that the page cache can free at once: clean, not locked pages of files
	Named uint64 // memory that the kernel attributes to files, processes and itself; pages of a driver are not included
}

// MemoryNear returns the current memory of the NUMA nodes that have any of these CPUs, from
// /sys/devices/system/node/node*/meminfo. known is false, without an error, if the kernel does not
// show it.
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

// ReadNUMAMemory reads the memory of one NUMA node.
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

// parseNUMAMemory parses lines such as "Node 0 MemFree: 123 kB". Of the page cache it counts the
// pages on the kernel's reclaim lists. FilePages would include those of tmpfs and of an initramfs,
// which the kernel cannot free.
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
