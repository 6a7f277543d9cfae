package pci

import (
	"bytes"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// vpdSize bounds the read of vital product data: each four bytes are a request to the device, and
// the data of adapters is shorter.
const vpdSize = 1 << 10

// SwitchManager reports whether a network adapter exists to manage NVSwitches: its vital product
// data has SW_MNG, the mark for Fabric Manager. It returns false for users other than root, and
// without such data.
func SwitchManager(h *probe.Host, pci string) bool {
	return bytes.Contains(readVPD(h, pci), []byte("SW_MNG"))
}

// BoardSerial returns the serial number in a board's vital product data, "" if it has none or
// cannot be read.
func BoardSerial(h *probe.Host, pci string) string { return VpdField(readVPD(h, pci), "SN") }

// BoardPart returns the part number in the same data.
func BoardPart(h *probe.Host, pci string) string { return VpdField(readVPD(h, pci), "PN") }

func readVPD(h *probe.Host, pci string) []byte {
	data, _ := probe.Once(h, "vpd "+pci, func() ([]byte, error) {
		buf := make([]byte, vpdSize)
		n, err := probe.ReadAt(unix.AT_FDCWD, h.Path(PCIDevices+"/"+pci+"/vpd"), buf)
		return buf[:max(n, 0)], err
	})
	return data
}

// VpdField finds a keyword in the read-only part of vital product data: PCI Local Bus Specification
// 3.0, appendix I. Each resource has a tag and a length of two bytes, each keyword two letters and
// a length of one byte.
func VpdField(data []byte, keyword string) string {
	const large, readOnly = 0x80, 0x90
	for len(data) >= 3 && data[0]&large != 0 {
		end := min(len(data), 3+int(data[1])+int(data[2])<<8)
		part := data[3:end]
		for data[0] == readOnly && len(part) >= 3 {
			stop := min(len(part), 3+int(part[2]))
			if string(part[:2]) == keyword {
				return strings.TrimSpace(strings.Trim(string(part[3:stop]), "\x00"))
			}
			part = part[stop:]
		}
		data = data[end:]
	}
	return ""
}
