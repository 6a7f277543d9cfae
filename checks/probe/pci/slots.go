package pci

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// pciSlots is where the kernel lists the slots that the firmware describes.
const pciSlots = "/sys/bus/pci/slots"

// SlotName returns the name of a PCI device's slot as it is printed on the machine: of the device
// itself or of the nearest bridge above it. Without a slot it is the firmware's label of the device
// (SMBIOS type 41, _DSM), or "".
func SlotName(h *probe.Host, address string) string {
	slots, _ := probe.Once(h, "pcislots", func() (map[string]string, error) {
		names, err := h.Names(pciSlots)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		slots := map[string]string{}
		for _, name := range names {
			if at, err := h.ReadValue(pciSlots + "/" + name + "/address"); err == nil {
				slots[strings.TrimSpace(at)] = name
			}
		}
		return slots, err
	})
	way := append(slices.Clone(Path(h, address)), address)
	for _, a := range slices.Backward(way) {
		device, _, _ := strings.Cut(a, ".") // slots have addresses without the function: 0000:c1:00
		if name := slots[device]; name != "" {
			return name
		}
	}
	label, err := h.ReadValue(PCIDevices + "/" + address + "/label")
	if err != nil {
		return ""
	}
	return CleanText(label)
}

// CleanText removes characters that could disturb a terminal or a log from a device's text.
func CleanText(text string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, text))
}
