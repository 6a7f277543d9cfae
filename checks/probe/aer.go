package probe

import (
	"errors"
	"io/fs"
	"strconv"
	"strings"
)

// AER counts the PCIe errors that the kernel has seen of a device since it was
// found: /sys/bus/pci/devices/ADDRESS/aer_dev_*.
type AER struct {
	Corrected, NonFatal, Fatal uint64
}

// AER reads the counters of a device. known is false where the kernel keeps
// none: the device or its root port has no AER, or firmware handles it.
func (h *Host) AER(address string) (a AER, known bool, err error) {
	for _, c := range []struct {
		file, total string
		into        *uint64
	}{
		{"aer_dev_correctable", "TOTAL_ERR_COR", &a.Corrected}, {"aer_dev_nonfatal", "TOTAL_ERR_NONFATAL", &a.NonFatal}, {"aer_dev_fatal", "TOTAL_ERR_FATAL", &a.Fatal},
	} {
		data, err := h.readFile(pciDevices + "/" + address + "/" + c.file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return a, known, err
		}
		n, ok := parseAER(data, c.total)
		known = known || ok
		*c.into = n
	}
	return a, known, nil
}

// parseAER finds the line "TOTAL_ERR_COR 17".
func parseAER(data []byte, total string) (n uint64, ok bool) {
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name != total {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
		return n, err == nil
	}
	return 0, false
}
