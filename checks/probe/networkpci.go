package probe

import (
	"os"
	"path/filepath"
	"strings"
)

// NetworkPCI lists the network controllers of the PCI bus by address, Ethernet and
// InfiniBand, whoever drives them: base class 02 of the PCI Code and ID Assignment
// Specification. Virtual functions are none. None without a PCI bus.
func (h *Host) NetworkPCI() (addresses []string, err error) {
	list, err := h.PCIList()
	for _, e := range list {
		if strings.HasPrefix(e.Class, "02") {
			addresses = append(addresses, e.Address)
		}
	}
	return addresses, err
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
