package probe

import (
	"errors"
	"io/fs"
	"strings"
)

// PCIID says what a GPU on the PCI bus is, in the numbers of the PCI ID registry.
type PCIID struct {
	Address   string `json:"address"`             // 0000:c1:00.0
	Device    string `json:"device"`              // of NVIDIA's: "2330"
	Subsystem string `json:"subsystem,omitempty"` // vendor and device of the board: "10de:16c1"; "" if it is not told
}

// GPUIDs are the numbers of NVIDIA's GPUs on the PCI bus, whoever drives them.
func (h *Host) GPUIDs() ([]PCIID, error) {
	return once(h, "gpuids", func() (ids []PCIID, err error) {
		addresses, err := h.nvidiaPCI()
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		for _, a := range addresses {
			read := func(name string) string {
				v, _ := h.readValue(pciDevices + "/" + a + "/" + name)
				return strings.ToLower(strings.TrimPrefix(v, "0x"))
			}
			id := PCIID{Address: a, Device: read("device")}
			if vendor, device := read("subsystem_vendor"), read("subsystem_device"); vendor != "" && device != "" {
				id.Subsystem = vendor + ":" + device
			}
			ids = append(ids, id)
		}
		return ids, err
	})
}
