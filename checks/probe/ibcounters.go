package probe

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strconv"
)

// IBCounts are the error counters of a port: /sys/class/infiniband/DEVICE/ports/N/counters.
type IBCounts struct {
	Device, Port string
	PCI          string
	Counts       map[string]uint64 // by the name of the file; what the device does not have is not there
}

// Name is how LBNL NHC names a port: mlx5_0:1.
func (p IBCounts) Name() string { return p.Device + ":" + p.Port }

// ibErrors are the counters of errors that the kernel documents
// (Documentation/ABI/stable/sysfs-class-infiniband).
var ibErrors = []string{
	"symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_xmit_discards",
	"local_link_integrity_errors", "excessive_buffer_overrun_errors",
}

// IBCounters reads the error counters of all ports. None without the driver; what
// could not be read is in err, the rest stands.
func (h *Host) IBCounters() (list []IBCounts, err error) {
	devices, err := h.names(ibClass)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, d := range devices {
		ports, err := h.names(filepath.Join(ibClass, d, "ports"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, n := range ports {
			p := IBCounts{Device: d, Port: n, PCI: h.pciOf(d), Counts: map[string]uint64{}}
			for _, name := range ibErrors {
				path := filepath.Join(ibClass, d, "ports", n, "counters", name)
				text, err := h.readValue(path)
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if err != nil {
					errs = append(errs, err)
					continue
				}
				if v, err := strconv.ParseUint(text, 10, 64); err == nil {
					p.Counts[name] = v
				} else {
					errs = append(errs, &fs.PathError{Op: "parse", Path: path, Err: fs.ErrInvalid})
				}
			}
			list = append(list, p)
		}
	}
	return list, errors.Join(errs...)
}
