package network

import (
	"errors"
	"io/fs"
	"strconv"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// Carrier counts how often a network interface lost its link.
type Carrier struct {
	Downs uint64 // since the driver created the interface
	Known bool   // the kernel shows the count
	Index uint64 // of the interface; another one means that the driver created it again
}

// ReadCarrier reads carrier_down_count and ifindex of /sys/class/net/DEV. Kernels before 4.16 have
// only carrier_changes, which counts ups and downs.
func ReadCarrier(h *probe.Host, dev string) (c Carrier, err error) {
	dir := "/sys/class/net/" + dev + "/"
	if c.Index, _, err = readCount(h, dir+"ifindex"); err != nil {
		return c, err
	}
	if c.Downs, c.Known, err = readCount(h, dir+"carrier_down_count"); !errors.Is(err, fs.ErrNotExist) {
		return c, err
	}
	c.Downs, c.Known, err = readCount(h, dir+"carrier_changes")
	c.Downs /= 2
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return c, err
}

// WasUp reports whether an interface has had its link since the driver created it, as far as the kernel counts
// that: since 4.16.
func WasUp(h *probe.Host, dev string) bool {
	n, _, err := readCount(h, NetClass+"/"+dev+"/carrier_up_count")
	return err == nil && n > 0
}

// readCount reads a file with one number.
func readCount(h *probe.Host, p string) (n uint64, known bool, err error) {
	text, err := h.ReadValue(p)
	if err != nil {
		return 0, false, err
	}
	if n, err = strconv.ParseUint(text, 10, 64); err != nil {
		return 0, false, &fs.PathError{Op: "parse", Path: p, Err: fs.ErrInvalid}
	}
	return n, true, nil
}
