package pci

import (
	"errors"
	"io/fs"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// AER counts the PCIe errors that the kernel has logged for a device since it found the device:
// /sys/bus/pci/devices/ADDRESS/aer_dev_*.
type AER struct {
	Corrected, NonFatal, Fatal uint64
}

// AERNames counts them by name, such as "BadTLP". One error may have several names.
type AERNames struct {
	Corrected, NonFatal, Fatal map[string]uint64

	Unread []string // the kinds that could not be read: correctable, nonfatal, fatal
}

// ReadAER reads the counters of a device. known is false if the kernel has none: the device or its
// root port has no AER, or firmware handles it.
func ReadAER(h *probe.Host, address string) (a AER, known bool, err error) {
	a, _, known, err = AERByName(h, address)
	return a, known, err
}

// AERByName also returns the counters by name, without those that are 0. err names the files that could not be read;
// the result has the rest.
func AERByName(h *probe.Host, address string) (a AER, names AERNames, known bool, err error) {
	dir := PCIDevices + "/" + address
	if err := h.StuckAt(dir); err != nil {
		return a, names, false, err
	}
	fd, err := probe.Open(unix.AT_FDCWD, h.Path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return a, names, false, nil
	}
	if err != nil {
		return a, names, false, &fs.PathError{Op: "read", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	var buf [aerSize]byte
	var errs []error
	for _, c := range []struct {
		file, total string
		into        *uint64
		names       *map[string]uint64
	}{
		{"aer_dev_correctable", "TOTAL_ERR_COR", &a.Corrected, &names.Corrected},
		{"aer_dev_nonfatal", "TOTAL_ERR_NONFATAL", &a.NonFatal, &names.NonFatal},
		{"aer_dev_fatal", "TOTAL_ERR_FATAL", &a.Fatal, &names.Fatal},
	} {
		size, err := probe.ReadAt(fd, c.file, buf[:])
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		op := "read"
		if err == nil {
			n, by, ok := parseAER(buf[:size], c.total)
			if ok {
				known = true
				*c.into, *c.names = n, by
				continue
			}
			op, err = "parse", fs.ErrInvalid // 0 would look like a counter that was reset
		}
		errs = append(errs, &fs.PathError{Op: op, Path: dir + "/" + c.file, Err: err})
		names.Unread = append(names.Unread, strings.TrimPrefix(c.file, "aer_dev_"))
	}
	return a, names, known, errors.Join(errs...)
}

// parseAER finds the line "TOTAL_ERR_COR 17", and the other lines that are not 0.
func parseAER(data []byte, total string) (n uint64, names map[string]uint64, ok bool) {
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		count, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
		switch {
		case name == total:
			n, ok = count, err == nil
		case err == nil && count > 0 && len(names) < aerNames:
			if names == nil {
				names = map[string]uint64{}
			}
			names[name] = count
		}
	}
	if !ok {
		n = 0
	}
	return n, names, ok
}

// These exceed the names and bytes of any such file of the kernel.
const (
	aerNames = 40
	aerSize  = 4096
)
