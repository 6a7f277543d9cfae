package probe

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// NetworkPCI lists the network controllers of the PCI bus by address, Ethernet and
// InfiniBand, whoever drives them. Virtual functions are none: a node may have
// thousands of them. None without a PCI bus.
func (h *Host) NetworkPCI() ([]string, error) {
	list, err := once(h, "networkpci", func() ([]string, error) {
		names, err := h.names(pciDevices)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return slices.DeleteFunc(names, func(n string) bool { return !h.isNetwork(n) }), err
	})
	return slices.Clone(list), err
}

// isNetwork: base class 02 of the PCI Code and ID Assignment Specification. The
// link is looked at first, since that takes the least of a virtual function.
func (h *Host) isNetwork(address string) bool {
	if h.isVF(address) {
		return false
	}
	class, err := h.readValue(pciDevices + "/" + address + "/class")
	return err == nil && strings.HasPrefix(class, "0x02")
}

// NetMTU is the MTU of a network interface of a PCI device.
func (h *Host) NetMTU(pci, name string) (string, error) {
	return h.readValue(pciDevices + "/" + pci + "/net/" + name + "/mtu")
}

// NetMaster is the interface that one of a PCI device's is part of: a bond, a
// bridge. "" if it is none's part.
func (h *Host) NetMaster(pci string) string {
	dir := pciDevices + "/" + pci + "/net"
	names, err := h.names(dir)
	if err != nil {
		return "" // a device need not have any
	}
	for _, n := range names {
		if link, err := os.Readlink(h.Path(dir + "/" + n + "/master")); err == nil {
			return filepath.Base(link)
		}
	}
	return ""
}
