package pci

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// Entry is a device on the PCI bus in a list of all devices.
type Entry struct {
	Address string
	Class   string // 020700; "" of a virtual function, because no file of it is read
	VF      bool
	Err     error // why its class is unknown
}

// List lists the bus by address. It reads one file of each device, and none of virtual functions,
// because a node may have thousands. Without a PCI bus there are none.
func List(h *probe.Host) ([]Entry, error) {
	return probe.Once(h, "pcilist", func() ([]Entry, error) {
		names, err := h.Names(PCIDevices)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		bus, err := probe.Open(unix.AT_FDCWD, h.Path(PCIDevices))
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: PCIDevices, Err: err}
		}
		defer unix.Close(bus)
		list := make([]Entry, 0, len(names))
		var buf [probe.ValueSize]byte
		for _, name := range names {
			_, err := unix.Readlinkat(bus, name+"/physfn", buf[:])
			e := Entry{Address: name, VF: err == nil}
			if !e.VF {
				e.Class = strings.TrimPrefix(readWordAt(bus, PCIDevices, name+"/class", &e.Err), "0x")
			}
			list = append(list, e)
		}
		return list, nil
	})
}

// OfClass returns the devices whose class begins with some digits, by address: 0108 are NVMe
// controllers, 0207 InfiniBand adapters. It excludes virtual functions.
func OfClass(h *probe.Host, digits string) (addresses []string) {
	list, err := List(h)
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

// NvidiaPCI lists NVIDIA's display controllers on the PCI bus, with or without a driver: vendor
// 10de, classes 0300 (VGA) and 0302 (3D) of the PCI ID registry. That excludes the NVSwitches,
// sound and USB devices of boards.
func NvidiaPCI(h *probe.Host) ([]string, error) {
	names, err := probe.Once(h, "nvidiapci", func() (names []string, err error) {
		list, err := List(h)
		for _, e := range list {
			if strings.HasPrefix(e.Class, "0300") || strings.HasPrefix(e.Class, "0302") {
				if vendor, err := h.ReadValue(PCIDevices + "/" + e.Address + "/vendor"); err == nil && vendor == "0x10de" {
					names = append(names, e.Address)
				}
			}
		}
		return names, err
	})
	return slices.Clone(names), err
}

// ReadID returns the vendor and device of an address: 15b3:1021; "" if unknown.
func ReadID(h *probe.Host, address string) string {
	var err error
	dir := PCIDevices + "/" + address
	vendor, device := h.Word(dir, "vendor", &err), h.Word(dir, "device", &err)
	if vendor == "" || device == "" {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(vendor, "0x") + ":" + strings.TrimPrefix(device, "0x"))
}

// Name returns the driver's name of a device: mlx5_3, nvme3, eth0; "" if there is none. If there
// are several it returns the first.
func Name(h *probe.Host, address string) string {
	for _, class := range []string{"infiniband", "nvme", "net"} {
		if names, err := h.Names(PCIDevices + "/" + address + "/" + class); err == nil && len(names) > 0 {
			return names[0]
		}
	}
	return ""
}
