package probe

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
)

// pciSlots is where the kernel lists the slots that the firmware describes.
const pciSlots = "/sys/bus/pci/slots"

// SlotName names the slot that a device of the PCI bus is in, as it is printed on the machine:
// that of the device itself or of the nearest bridge above it. Without one it is the label
// that the firmware gives the device (SMBIOS type 41, _DSM). "" if neither is there.
func (h *Host) SlotName(address string) string {
	slots, _ := once(h, "pcislots", func() (map[string]string, error) {
		names, err := h.names(pciSlots)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		slots := map[string]string{}
		for _, name := range names {
			if at, err := h.readValue(pciSlots + "/" + name + "/address"); err == nil {
				slots[strings.TrimSpace(at)] = name
			}
		}
		return slots, err
	})
	way := append(slices.Clone(h.PCIPath(address)), address)
	for _, a := range slices.Backward(way) {
		device, _, _ := strings.Cut(a, ".") // a slot has no function: 0000:c1:00
		if name := slots[device]; name != "" {
			return name
		}
	}
	label, err := h.readValue(pciDevices + "/" + address + "/label")
	if err != nil {
		return ""
	}
	return cleanText(label)
}

// cleanText is a text from a device without what could upset a terminal or a log.
func cleanText(text string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, text))
}
