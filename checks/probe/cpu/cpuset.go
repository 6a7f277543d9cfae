package cpu

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// These functions read the CPUs that a thread may run on, and their places.

const cpuDir = "/sys/devices/system/cpu"

// Place is the place of a CPU in the topology.
type Place struct {
	CPU  int
	NUMA int    // its NUMA node
	Core string // the CPUs of its core, as the kernel writes them: "0,96"; "" if unknown
	LLC  string // the CPUs that share its last-level cache: "0-7,96-103"
	Size int64  // of that cache, bytes; 0 if unknown
}

// AllowedCPUs returns the CPUs that this process may run on, in order.
func AllowedCPUs(h *probe.Host) ([]int, error) {
	if h.Recorded() { // for a node in a tree of files, the online CPUs
		text, err := h.ReadValue(cpuDir + "/online")
		if err != nil {
			return nil, err
		}
		return parseCPUList(cpuDir+"/online", text)
	}
	set := unix.NewCPUSet(probe.MaxCPUs - 1)
	if err := unix.SchedGetaffinityDynamic(0, set); err != nil {
		return nil, fmt.Errorf("read the CPUs that this process may run on: %w", err)
	}
	var list []int
	for cpu := range probe.MaxCPUs {
		if set.IsSet(cpu) {
			list = append(list, cpu)
		}
	}
	return list, nil
}

// parseCPUList parses a list of CPUs that must not be empty.
func parseCPUList(path, text string) ([]int, error) {
	list, ok := pci.ParseList(text, probe.MaxCPUs)
	if !ok || len(list) == 0 {
		return nil, &fs.PathError{Op: "parse", Path: path, Err: fs.ErrInvalid}
	}
	return list, nil
}

// Places returns the places of CPUs. If the kernel does not show a value, Places assumes one NUMA
// node, and one thread for each core.
func Places(h *probe.Host, cpus []int) ([]Place, error) {
	nodes, err := pci.ReadNUMANodes(h)
	if err != nil {
		return nil, err
	}
	at := map[int]int{}
	for _, n := range nodes {
		list, _ := pci.ParseList(n.CPUs, probe.MaxCPUs)
		for _, cpu := range list {
			at[cpu] = n.ID
		}
	}
	places := make([]Place, 0, len(cpus))
	for _, cpu := range cpus {
		p := Place{CPU: cpu, NUMA: at[cpu]}
		dir := cpuDir + "/cpu" + strconv.Itoa(cpu)
		if p.Core, err = readOptional(h, dir+"/topology/thread_siblings_list"); err != nil {
			return nil, err
		}
		if p.LLC, p.Size, err = findLastCache(h, dir+"/cache"); err != nil {
			return nil, err
		}
		places = append(places, p)
	}
	return places, nil
}

// readOptional reads an attribute that may be missing.
func readOptional(h *probe.Host, path string) (string, error) {
	text, err := h.ReadValue(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(text), err
}

// findLastCache finds the highest-level cache below a CPU's directory: the CPUs that share it, and its
// size in bytes.
func findLastCache(h *probe.Host, dir string) (shared string, size int64, err error) {
	names, err := h.Names(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, err
	}
	highest := 0
	for _, n := range names {
		if !strings.HasPrefix(n, "index") {
			continue
		}
		text, err := readOptional(h, dir+"/"+n+"/level")
		if err != nil {
			return "", 0, err
		}
		level, bad := strconv.Atoi(text)
		if bad != nil || level <= highest {
			continue
		}
		of, err1 := readOptional(h, dir+"/"+n+"/shared_cpu_list")
		big, err2 := readOptional(h, dir+"/"+n+"/size")
		if err := errors.Join(err1, err2); err != nil {
			return "", 0, err
		}
		if bytes, ok := parseCacheSize(big); ok {
			highest, shared, size = level, of, bytes
		}
	}
	return shared, size, nil
}

// parseCacheSize parses a size such as "32768K".
func parseCacheSize(text string) (bytes int64, ok bool) {
	unit := int64(1)
	for suffix, n := range map[string]int64{"K": 1 << 10, "M": 1 << 20, "G": 1 << 30} {
		if rest, cut := strings.CutSuffix(text, suffix); cut {
			text, unit = rest, n
		}
	}
	n, err := strconv.ParseInt(text, 10, 32)
	return n * unit, err == nil && n > 0
}

// ParseCPUs parses a list of CPUs as the kernel writes it: "0-55,112-167". It returns nil for an
// invalid list.
func ParseCPUs(text string) []int {
	list, _ := pci.ParseList(text, probe.MaxCPUs)
	return list
}
