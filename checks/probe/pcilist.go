package probe

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// PCIEntry is a device on the PCI bus, as far as a list of all needs it.
type PCIEntry struct {
	Address string
	Class   string // 020700; "" of a virtual function, which nothing is read of
	VF      bool
	Err     error // why its class is not known
}

// PCIList lists the bus by address. It reads one file of each device, and none of
// virtual functions: a node may have thousands. A machine without a PCI bus has none.
func (h *Host) PCIList() ([]PCIEntry, error) {
	return once(h, "pcilist", func() ([]PCIEntry, error) {
		names, err := h.names(pciDevices)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		bus, err := open(unix.AT_FDCWD, h.Path(pciDevices))
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: pciDevices, Err: err}
		}
		defer unix.Close(bus)
		list := make([]PCIEntry, 0, len(names))
		var buf [valueSize]byte
		for _, name := range names {
			_, err := unix.Readlinkat(bus, name+"/physfn", buf[:])
			e := PCIEntry{Address: name, VF: err == nil}
			if !e.VF {
				e.Class = strings.TrimPrefix(wordAt(bus, pciDevices, name+"/class", &e.Err), "0x")
			}
			list = append(list, e)
		}
		return list, nil
	})
}

// PCIOfClass are the devices whose class begins with some digits, by address: 0108
// are NVMe controllers, 0207 InfiniBand adapters. Virtual functions are none.
func (h *Host) PCIOfClass(digits string) (addresses []string) {
	list, err := h.PCIList()
	if err != nil {
		return nil
	}
	for _, e := range list {
		if e.Class != "" && strings.HasPrefix(e.Class, digits) {
			addresses = append(addresses, e.Address)
		}
	}
	return addresses
}

// nvidiaPCI lists NVIDIA's display controllers on the PCI bus: they are there
// whether a driver is or not. Vendor 10de, classes 0300 (VGA) and 0302 (3D): PCI
// ID registry. So the NVSwitches, sound and USB of boards are none of them.
func (h *Host) nvidiaPCI() ([]string, error) {
	names, err := once(h, "nvidiapci", func() (names []string, err error) {
		list, err := h.PCIList()
		for _, e := range list {
			if strings.HasPrefix(e.Class, "0300") || strings.HasPrefix(e.Class, "0302") {
				if vendor, err := h.readValue(pciDevices + "/" + e.Address + "/vendor"); err == nil && vendor == "0x10de" {
					names = append(names, e.Address)
				}
			}
		}
		return names, err
	})
	return slices.Clone(names), err
}

// PCIID is the vendor and device of one: 15b3:1021; "" if it does not tell.
func (h *Host) PCIID(address string) string {
	var err error
	dir := pciDevices + "/" + address
	vendor, device := h.word(dir, "vendor", &err), h.word(dir, "device", &err)
	if vendor == "" || device == "" {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(vendor, "0x") + ":" + strings.TrimPrefix(device, "0x"))
}

// PCIName is what the driver of a device calls it: mlx5_3, nvme3, eth0; "" if that
// is nothing. One with several has the first.
func (h *Host) PCIName(address string) string {
	for _, class := range []string{"infiniband", "nvme", "net"} {
		if names, err := h.names(pciDevices + "/" + address + "/" + class); err == nil && len(names) > 0 {
			return names[0]
		}
	}
	return ""
}
