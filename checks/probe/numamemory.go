package probe

import (
	"bytes"
	"errors"
	"io/fs"
	"slices"
	"strconv"
)

// NUMAMemory is the memory of NUMA nodes, in bytes.
type NUMAMemory struct {
	Total uint64 // MemTotal
	Free  uint64 // MemFree: what can be had without taking it from the page cache
}

// MemoryNear is the memory of the NUMA nodes that have any of these CPUs, of now, as
// /sys/devices/system/node/node*/meminfo has it. Nothing of it is known, and there is
// no error, where the kernel does not tell.
func (h *Host) MemoryNear(cpus []int) (m NUMAMemory, known bool, err error) {
	nodes, err := h.NUMANodes()
	if err != nil {
		return m, false, err
	}
	for _, n := range nodes {
		own, _ := parseList(n.CPUs, maxCPUs)
		if !slices.ContainsFunc(own, func(cpu int) bool { return slices.Contains(cpus, cpu) }) {
			continue
		}
		path := numaNodes + "/node" + strconv.Itoa(n.ID) + "/meminfo"
		data, err := h.readFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return NUMAMemory{}, false, nil
		}
		if err != nil {
			return NUMAMemory{}, false, err
		}
		of, ok := parseNUMAMemory(data)
		if !ok {
			return NUMAMemory{}, false, &fs.PathError{Op: "read", Path: path, Err: errNoNUMAMemory}
		}
		m.Total, m.Free, known = m.Total+of.Total, m.Free+of.Free, true
	}
	return m, known, nil
}

var errNoNUMAMemory = errors.New("no MemTotal and MemFree lines")

// parseNUMAMemory reads "Node 0 MemFree: 123 kB".
func parseNUMAMemory(data []byte) (m NUMAMemory, ok bool) {
	found := 0
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
		case "MemFree:":
			m.Free = kB << 10
		default:
			continue
		}
		found++
	}
	return m, found == 2
}
