// Package cpu reads CPUs and NUMA nodes, and measures their memory.
package cpu

import (
	"bytes"
	"strconv"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// CPUs counts processors the way LBNL NHC does.
type CPUs struct {
	Sockets int // distinct "physical id" values
	Cores   int // sockets times the last "cpu cores"
	Threads int // sockets times the last "siblings"
}

// CountCPUs counts the processors of /proc/cpuinfo.
func CountCPUs(h *probe.Host) (CPUs, error) {
	return probe.Once(h, "cpus", func() (CPUs, error) {
		data, err := h.ReadFile("/proc/cpuinfo")
		if err != nil {
			return CPUs{}, err
		}
		return parseCPUs(data), nil
	})
}

// Model returns the name of the CPUs, "" if it is unknown: ARM does not show it.
func Model(h *probe.Host) string {
	data, _ := h.ReadFile("/proc/cpuinfo")
	for line := range bytes.Lines(data) {
		if key, value, _ := bytes.Cut(line, []byte(":")); string(bytes.TrimSpace(key)) == "model name" {
			return string(bytes.Join(bytes.Fields(value), []byte(" ")))
		}
	}
	return ""
}

// InVM reports whether the node is a virtual machine, which CPUs of x86 show as a flag.
func InVM(h *probe.Host) bool {
	is, _ := probe.Once(h, "hypervisor", func() (bool, error) {
		data, err := h.ReadFile("/proc/cpuinfo")
		return bytes.Contains(data, []byte(" hypervisor ")) || bytes.Contains(data, []byte(" hypervisor\n")), err
	})
	return is
}

// parseCPUs follows LBNL NHC for missing fields, too: without a "physical id" (ARM, some virtual
// machines) every processor is a socket with one core, and a file without any field counts as one
// of each.
func parseCPUs(data []byte) CPUs {
	ids := map[string]bool{}
	processors, cores, siblings := 0, 0, 0
	told := false // there is a number of cores
	for line := range bytes.Lines(data) {
		key, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			continue
		}
		switch string(bytes.TrimSpace(key)) {
		case "processor":
			processors++
		case "physical id":
			ids[string(bytes.TrimSpace(value))] = true
		case "cpu cores":
			cores, told = parseCount(value), len(bytes.TrimSpace(value)) > 0
		case "siblings":
			siblings = parseCount(value)
		}
	}
	switch sockets := len(ids); {
	case sockets == 0 && processors > 0:
		return CPUs{Sockets: processors, Cores: processors, Threads: processors}
	case told:
		return CPUs{Sockets: sockets, Cores: sockets * cores, Threads: sockets * siblings}
	default:
		return CPUs{Sockets: 1, Cores: 1, Threads: 1}
	}
}

// parseCount parses a number, 0 if it is invalid.
func parseCount(field []byte) int {
	n, err := strconv.Atoi(string(bytes.TrimSpace(field)))
	if err != nil {
		return 0
	}
	return n
}
