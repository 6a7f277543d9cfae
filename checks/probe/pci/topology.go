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

// Where things lie in a node, beside what a device says of itself.

// NUMANode is one that has CPUs: those of graphics memory have none.
type NUMANode struct {
	ID   int    `json:"id"`
	CPUs string `json:"cpus,omitempty"` // as the kernel writes a list: 0-55,112-167
}

// NUMANodes has a directory for each NUMA node.
const NUMANodes = "/sys/devices/system/node"

// ReadNUMANodes are those with CPUs, in order. None if the kernel does not tell.
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
			nodes = append(nodes, NUMANode{ID: id, CPUs: listOfCPUs(h, NUMANodes+"/node"+strconv.Itoa(id)+"/cpulist")})
		}
		return nodes, nil
	})
}

// LocalCPUs are those that are near to a device of the PCI bus: "0-55,112-167"; ""
// if it is not told.
func LocalCPUs(h *probe.Host, address string) string {
	return listOfCPUs(h, PCIDevices+"/"+address+"/local_cpulist")
}

// listOfCPUs reads a list that a person is shown.
func listOfCPUs(h *probe.Host, p string) string {
	text, err := h.ReadValue(p)
	if err != nil || strings.Trim(text, "0123456789,-") != "" {
		return ""
	}
	return text
}

// maxNUMANodes is more than any kernel has, so that a list of them is bounded.
const maxNUMANodes = 1 << 10

// ParseNodeList reads "0-1,4". An empty list is one, too.
func ParseNodeList(text string) (ids []int, ok bool) { return ParseList(text, maxNUMANodes) }

// ParseList reads such a list of numbers below most.
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

// NVMePCI are the disks on the PCI bus: the addresses of NVMe controllers, by their
// names, in order of these. A node need not have any.
func NVMePCI(h *probe.Host) (names []string, address map[string]string, err error) {
	const class = "/sys/class/nvme"
	all, err := h.Names(class)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	address = map[string]string{}
	for _, n := range all {
		link, err := os.Readlink(h.Path(class + "/" + n + "/device"))
		if err == nil && strings.Count(filepath.Base(link), ":") == 2 { // one over the network has none
			names, address[n] = append(names, n), filepath.Base(link)
		}
	}
	return names, address, err
}
