package network

import (
	"errors"
	"io/fs"
	"strconv"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// Carrier is how often a network interface has lost its link.
type Carrier struct {
	Downs uint64 // since the driver has made the interface
	Known bool   // the kernel tells it
	Index uint64 // of the interface: another one means that the driver has made it anew
}

// ReadCarrier reads carrier_down_count and ifindex of /sys/class/net/DEV. Kernels
// before 4.16 have carrier_changes only, which counts ups and downs.
func ReadCarrier(h *probe.Host, dev string) (c Carrier, err error) {
	dir := "/sys/class/net/" + dev + "/"
	if c.Index, _, err = count(h, dir+"ifindex"); err != nil {
		return c, err
	}
	if c.Downs, c.Known, err = count(h, dir+"carrier_down_count"); !errors.Is(err, fs.ErrNotExist) {
		return c, err
	}
	c.Downs, c.Known, err = count(h, dir+"carrier_changes")
	c.Downs /= 2
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return c, err
}

// count reads a file that holds one number.
func count(h *probe.Host, p string) (n uint64, known bool, err error) {
	text, err := h.ReadValue(p)
	if err != nil {
		return 0, false, err
	}
	if n, err = strconv.ParseUint(text, 10, 64); err != nil {
		return 0, false, &fs.PathError{Op: "parse", Path: p, Err: fs.ErrInvalid}
	}
	return n, true, nil
}
