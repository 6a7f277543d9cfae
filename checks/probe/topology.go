package probe

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Where things lie in a node, beside what a device says of itself.

// NUMANode is one that has CPUs: those of graphics memory have none.
type NUMANode struct {
	ID   int    `json:"id"`
	CPUs string `json:"cpus,omitempty"` // as the kernel writes a list: 0-55,112-167
}

const numaNodes = "/sys/devices/system/node"

// NUMANodes are those with CPUs, in order. None if the kernel does not tell.
func (h *Host) NUMANodes() ([]NUMANode, error) {
	return once(h, "numa nodes", func() (nodes []NUMANode, err error) {
		text, err := h.readValue(numaNodes + "/has_cpu")
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		ids, ok := parseNodeList(text)
		if !ok {
			return nil, &fs.PathError{Op: "read", Path: numaNodes + "/has_cpu", Err: errors.New("no list of NUMA nodes")}
		}
		for _, id := range ids {
			nodes = append(nodes, NUMANode{ID: id, CPUs: h.listOfCPUs(numaNodes + "/node" + strconv.Itoa(id) + "/cpulist")})
		}
		return nodes, nil
	})
}

// LocalCPUs are those that are near to a device of the PCI bus: "0-55,112-167"; ""
// if it is not told.
func (h *Host) LocalCPUs(address string) string {
	return h.listOfCPUs(pciDevices + "/" + address + "/local_cpulist")
}

// listOfCPUs reads a list that a person is shown.
func (h *Host) listOfCPUs(p string) string {
	text, err := h.readValue(p)
	if err != nil || strings.Trim(text, "0123456789,-") != "" {
		return ""
	}
	return text
}

// maxNUMANodes is more than any kernel has, so that a list of them is bounded.
const maxNUMANodes = 1 << 10

// parseNodeList reads "0-1,4". An empty list is one, too.
func parseNodeList(text string) (ids []int, ok bool) { return parseList(text, maxNUMANodes) }

// parseList reads such a list of numbers below most.
func parseList(text string, most uint64) (ids []int, ok bool) {
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
func (h *Host) NVMePCI() (names []string, address map[string]string, err error) {
	const class = "/sys/class/nvme"
	all, err := h.names(class)
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
