package fakesys

import "strings"

// PCIConfig has values of a device's configuration space.
type PCIConfig struct {
	ReadRequest int  // MaxReadReq, bytes
	NoRelaxed   bool // relaxed ordering is off
	ACS         int  // control register of a bridge; -1 if it has none
}

// Redirect are the bits of Access Control Services that prevent direct access between peers.
const Redirect = 1<<2 | 1<<3 | 1<<4

// Gone is the result of reading a device that has disappeared.
var Gone = strings.Repeat("\xff", 0x108)

// Config returns the first bytes of a configuration space. Bytes that the program does not read are
// dots, to keep the text short.
func (c PCIConfig) Config() string {
	b := []byte(strings.Repeat(".", 0x108))
	b[0x06], b[0x07] = 0x10, 0 // it has capabilities
	b[0x34] = 0x40
	b[0x40], b[0x41] = 0x10, 0 // PCI Express, and no other
	size := 0
	for 128<<size < c.ReadRequest {
		size++
	}
	b[0x48], b[0x49] = 1<<5|1<<4, byte(size<<4)
	if c.NoRelaxed {
		b[0x48] = 1 << 5
	}
	copy(b[0x100:], "\x00\x00\x00\x00")
	if c.ACS >= 0 {
		copy(b[0x100:], "\x0d\x00\x01\x00")
		b[0x106], b[0x107] = byte(c.ACS), 0
	}
	return string(b)
}

// configOf returns the configuration of a healthy device.
func configOf(d PCI) PCIConfig {
	switch {
	case strings.HasPrefix(d.Class, "0604"):
		return PCIConfig{ReadRequest: 128}
	case strings.HasPrefix(d.ID, "15b3:"):
		return PCIConfig{ReadRequest: 4096, ACS: -1}
	}
	return PCIConfig{ReadRequest: 512, ACS: -1}
}
