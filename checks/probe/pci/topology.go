package pci

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// This file reads the topology of a node beyond each device's own files.

// NUMANode is a NUMA node with CPUs, which excludes the nodes of GPU memory.
type NUMANode struct {
	ID   int    `json:"id"`
	CPUs string `json:"cpus,omitempty"` // as the kernel writes a list: 0-55,112-167
}

// NUMANodes has a directory for each NUMA node.
const NUMANodes = "/sys/devices/system/node"

// ReadNUMANodes returns the nodes with CPUs, in order, none if the kernel does not show them.
func ReadNUMANodes(h *probe.Host) ([]NUMANode, error) {
	return probe.Once(h, "numa nodes", func() (nodes []NUMANode, err error) {
		text, err := h.ReadValue(NUMANodes + "/has_cpu")
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		ids, ok := ParseNodeList(text)
		if !ok {
			return nil, &fs.PathError{Op: "read", Path: NUMANodes + "/has_cpu", Err: errors.New("no list of NUMA nodes")}
		}
		for _, id := range ids {
			nodes = append(nodes, NUMANode{ID: id, CPUs: readCPUList(h, NUMANodes+"/node"+strconv.Itoa(id)+"/cpulist")})
		}
		return nodes, nil
	})
}

// LocalCPUs returns the CPUs near to a PCI device: "0-55,112-167"; "" if unknown.
func LocalCPUs(h *probe.Host, address string) string {
	return readCPUList(h, PCIDevices+"/"+address+"/local_cpulist")
}

// readCPUList reads a list for display.
func readCPUList(h *probe.Host, p string) string {
	text, err := h.ReadValue(p)
	if err != nil || strings.Trim(text, "0123456789,-") != "" {
		return ""
	}
	return text
}

// maxNUMANodes exceeds the maximum of any kernel, to bound a list of them.
const maxNUMANodes = 1 << 10

// ParseNodeList parses "0-1,4". An empty list is valid.
func ParseNodeList(text string) (ids []int, ok bool) { return ParseList(text, maxNUMANodes) }

// ParseList parses such a list of numbers below most.
func ParseList(text string, most uint64) (ids []int, ok bool) {
	if text == "" {
		return nil, true
	}
	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := strconv.ParseUint(from, 10, 16)
		last := first
		if isRange && err == nil {
			last, err = strconv.ParseUint(to, 10, 16)
		}
		if err != nil || last < first || last >= most || len(ids) > int(most) {
			return nil, false
		}
		for i := first; i <= last; i++ {
			ids = append(ids, int(i))
		}
	}
	return ids, true
}

// NVMePCI returns the disks on the PCI bus: the names of NVMe controllers, sorted, and their
// addresses. A node need not have any.
func NVMePCI(h *probe.Host) (names []string, address map[string]string, err error) {
	const class = "/sys/class/nvme"
	all, err := h.Names(class)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	address = map[string]string{}
	for _, n := range all {
		link, err := os.Readlink(h.Path(class + "/" + n + "/device"))
		if err == nil && strings.Count(filepath.Base(link), ":") == 2 { // a disk over the network has no address
			names, address[n] = append(names, n), filepath.Base(link)
		}
	}
	return names, address, err
}
