package network

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// PCIAddress lists the network controllers of the PCI bus by address, Ethernet and InfiniBand, with
// any driver: base class 02 of the PCI Code and ID Assignment Specification. It excludes virtual
// functions. There are none without a PCI bus.
func PCIAddress(h *probe.Host) (addresses []string, err error) {
	list, err := pci.List(h)
	for _, e := range list {
		if strings.HasPrefix(e.Class, "02") {
			addresses = append(addresses, e.Address)
		}
	}
	return addresses, err
}

// NetMTU returns the MTU of a network interface of a PCI device.
func NetMTU(h *probe.Host, bdf, name string) (string, error) {
	return h.ReadValue(pci.PCIDevices + "/" + bdf + "/net/" + name + "/mtu")
}

// NetMaster returns the bond or bridge of a PCI device's network interface, "" if it has none.
func NetMaster(h *probe.Host, bdf string) string {
	dir := pci.PCIDevices + "/" + bdf + "/net"
	names, err := h.Names(dir)
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
