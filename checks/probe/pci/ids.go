package pci

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// ID identifies the model of a GPU on the PCI bus, by the numbers of the PCI ID registry.
type ID struct {
	Address   string `json:"address"`             // 0000:c1:00.0
	Device    string `json:"device"`              // of NVIDIA's: "2330"
	Subsystem string `json:"subsystem,omitempty"` // vendor and device of the board: "10de:16c1"; "" if unknown
}

// GPUIDs returns the numbers of NVIDIA's GPUs on the PCI bus, with any driver.
func GPUIDs(h *probe.Host) ([]ID, error) {
	return probe.Once(h, "gpuids", func() (ids []ID, err error) {
		addresses, err := NvidiaPCI(h)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		for _, a := range addresses {
			read := func(name string) string {
				v, _ := h.ReadValue(PCIDevices + "/" + a + "/" + name)
				return strings.ToLower(strings.TrimPrefix(v, "0x"))
			}
			id := ID{Address: a, Device: read("device")}
			if vendor, device := read("subsystem_vendor"), read("subsystem_device"); vendor != "" && device != "" {
				id.Subsystem = vendor + ":" + device
			}
			ids = append(ids, id)
		}
		return ids, err
	})
}
