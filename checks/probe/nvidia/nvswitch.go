package nvidia

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// This file reads the parts of the fabric on this node other than the GPUs.

// NVSwitches returns the PCI addresses of the NVSwitches that this node runs itself, none if they
// are assigned to a virtual machine. NVSwitches of Blackwell and later are not on the PCI bus of
// the node.
func NVSwitches(h *probe.Host) ([]string, error) {
	return probe.Once(h, "nvswitches", func() ([]string, error) {
		names, err := h.Names(pci.PCIDevices)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return slices.DeleteFunc(names, func(n string) bool {
			dir := pci.PCIDevices + "/" + n
			if vendor, err := h.ReadValue(dir + "/vendor"); err != nil || vendor != "0x10de" {
				return true
			}
			class, err := h.ReadValue(dir + "/class")
			if err != nil || !strings.HasPrefix(class, "0x0680") { // a bridge of a kind that PCI does not define
				return true
			}
			driver, _ := os.Readlink(h.Path(dir + "/driver"))
			return strings.Contains(filepath.Base(driver), "vfio")
		}), err
	})
}

// imexDir has a device node for each IMEX channel of this node.
const imexDir = "/dev/nvidia-caps-imex-channels"

// IMEXChannels returns the number of IMEX channels. Jobs use them to share memory with other nodes
// of their NVLink domain.
func IMEXChannels(h *probe.Host) (int, error) {
	names, err := h.Names(imexDir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	n := 0
	for _, name := range names {
		if strings.HasPrefix(name, "channel") {
			n++
		}
	}
	return n, err
}
