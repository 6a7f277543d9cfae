package probe

import (
	"os"
	"path/filepath"
	"strconv"
)

// SlotLanes is how many lanes the port has that a device on the PCI bus is
// plugged into: its own share of them, where a slot is split. known is false
// where there is no such port, as in a virtual machine.
func (h *Host) SlotLanes(address string) (lanes int, known bool) {
	link, err := os.Readlink(h.Path(pciDevices + "/" + address)) // ../../../devices/pci0000:00/PORT/ADDRESS
	if err != nil {
		return 0, false
	}
	text, err := h.readValue(pciDevices + "/" + filepath.Base(filepath.Dir(link)) + "/max_link_width")
	if err != nil {
		return 0, false
	}
	lanes, err = strconv.Atoi(text)
	return lanes, err == nil && lanes > 0 && lanes <= 32 // 0 and 255 are the kernel's "unknown"
}
