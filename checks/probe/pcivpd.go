package probe

import (
	"bytes"

	"golang.org/x/sys/unix"
)

// vpdSize bounds what is read of vital product data: each four bytes are a question to
// the device, and those of adapters are shorter.
const vpdSize = 1 << 10

// SwitchManager says whether a network adapter is there to manage NVSwitches: its vital
// product data have SW_MNG, by which Fabric Manager finds it. Root is told; who is not,
// or where there are no such data, is told that it is none.
func (h *Host) SwitchManager(pci string) bool {
	is, _ := once(h, "vpd "+pci, func() (bool, error) {
		buf := make([]byte, vpdSize)
		n, err := readAt(unix.AT_FDCWD, h.Path(pciDevices+"/"+pci+"/vpd"), buf)
		return err == nil && bytes.Contains(buf[:n], []byte("SW_MNG")), err
	})
	return is
}
