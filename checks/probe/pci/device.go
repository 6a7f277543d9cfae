// Package pci reads the PCI bus.
package pci

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// PCIDevices has a directory for each PCI function.
const PCIDevices = "/sys/bus/pci/devices"

// Function is a directory of /sys/bus/pci/devices. Values that the kernel does not show are 0 or
// "".
type Function struct {
	Address string // 0000:c1:00.0
	Class   string // 020700: class, subclass and interface
	Vendor  string // ids, as in the PCI ID registry: 15b3
	Device  string // 1021
	Driver  string // mlx5_core; "" if it has none
	NUMA    int    // the nearest node; -1 if unknown, as on a machine with only one
	VF      bool   // a virtual function, whose physical one is on this node, too

	Width, MaxWidth int      // lanes of the link in use, and those that the device has
	Speed, MaxSpeed float64  // GT/s of the link now, and the maximum of the device
	Path            []string // the bridges above it, from the root port down: 0000:c0:01.0

	Err error // why a value above is missing
}

// ReadFunction reads one device of the PCI bus.
func ReadFunction(h *probe.Host, address string) Function {
	d, _ := probe.Once(h, "pci "+address, func() (Function, error) { return readDevice(h, address), nil })
	return d
}

func readDevice(h *probe.Host, address string) Function {
	dir := PCIDevices + "/" + address
	d := Function{Address: address, NUMA: -1}
	if d.Err = h.StuckAt(dir); d.Err != nil {
		return d
	}
	fd, err := probe.Open(unix.AT_FDCWD, h.Path(dir)) // only once, because the path is long
	if err != nil {
		d.Err = &fs.PathError{Op: "read", Path: dir, Err: err}
		return d
	}
	defer unix.Close(fd)
	word := func(name string) string { return readWordAt(fd, dir, name, &d.Err) }
	hex := func(name string) string { return strings.ToLower(strings.TrimPrefix(word(name), "0x")) }
	d.Class, d.Vendor, d.Device = hex("class"), hex("vendor"), hex("device")
	var buf [probe.ValueSize]byte
	if n, err := unix.Readlinkat(fd, "driver", buf[:]); err == nil {
		d.Driver = filepath.Base(string(buf[:n]))
	}
	if n, err := strconv.Atoi(word("numa_node")); err == nil {
		d.NUMA = n
	}
	_, err = unix.Readlinkat(fd, "physfn", buf[:])
	d.VF = err == nil
	d.Width, d.MaxWidth = parseWidth(word("current_link_width")), parseWidth(word("max_link_width"))
	d.Speed, d.MaxSpeed = ParseLinkSpeed(word("current_link_speed")), ParseLinkSpeed(word("max_link_speed"))
	d.Path = Path(h, address)
	return d
}

// Path returns the bridges above a device, from the root port down.
func Path(h *probe.Host, address string) []string {
	link, err := os.Readlink(h.Path(PCIDevices + "/" + address))
	if err != nil {
		return nil
	}
	return parseBridges(link)
}

// readWordAt returns the first line of a file of an open directory, "" if the driver does not have the
// file.
func readWordAt(fd int, dir, name string, errs *error) string {
	var buf [probe.ValueSize]byte
	n, err := probe.ReadAt(fd, name, buf[:])
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		*errs = errors.Join(*errs, &fs.PathError{Op: "read", Path: dir + "/" + name, Err: err})
	}
	text, _, _ := strings.Cut(string(buf[:max(n, 0)]), "\n")
	return strings.TrimSpace(text)
}

// Slot returns the port above a device or a bridge. A virtual machine that shows no bridges has
// none.
func Slot(h *probe.Host, d Function) (port Function, found bool) {
	if len(d.Path) == 0 {
		return Function{}, false
	}
	return ReadFunction(h, d.Path[len(d.Path)-1]), true
}

// Both returns the lower of two figures; if one is unknown (0), the other.
func Both[T int | float64](a, b T) T {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// VirtualBridge reports whether a bridge is an emulated one of QEMU or VMware: the speed that it
// shows is not the speed of the link.
func VirtualBridge(d Function) bool {
	return slices.Contains([]string{"1b36", "15ad"}, d.Vendor) || !strings.HasPrefix(d.Class, "0604")
}

// DataShare is the part of a PCIe link's rate that is left for data: the overhead is a tenth
// (128b/130b, headers of packets of 256 bytes).
const DataShare = 0.9

// Limit returns the rate in Gb/s that a device and the port above it are made for, 0 if unknown. A link that
// runs below it is faulty, which must not lower the expectation.
func Limit(h *probe.Host, address string) float64 {
	d := ReadFunction(h, address)
	slot, found := Slot(h, d)
	if !found || VirtualBridge(slot) {
		slot = Function{}
	}
	return Both(d.MaxSpeed, slot.MaxSpeed) * float64(Both(d.MaxWidth, slot.MaxWidth)) * DataShare
}

// IsVF reports whether a device is a virtual function, whose physical one is on this node, too.
func IsVF(h *probe.Host, address string) bool {
	_, err := os.Readlink(h.Path(PCIDevices + "/" + address + "/physfn"))
	return err == nil
}

// parseWidth parses a number of lanes; 0 and 255 are the kernel's "unknown".
func parseWidth(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > 32 {
		return 0
	}
	return n
}

// ParseLinkSpeed parses the speed of a PCIe link in /sys, in GT/s: "32.0 GT/s PCIe", "8 GT/s" of
// kernels before 5.7. "Unknown" and invalid text are 0.
func ParseLinkSpeed(text string) float64 {
	word, unit, _ := strings.Cut(text, " ")
	n, err := strconv.ParseFloat(word, 64)
	if err != nil || !(n > 0 && n < 1000) || !strings.HasPrefix(unit, "GT/s") { // "nan" is a number, too
		return 0
	}
	return n
}

// parseBridges returns the bridges in ../../../devices/pci0000:c0/0000:c0:01.0/0000:c1:00.0, without
// the device itself. Below a controller with its own bus (Intel's VMD,
// .../0000:64:00.5/pci10000:00/10000:00:02.0) the path begins with the root port of that bus.
func parseBridges(link string) (path []string) {
	for part := range strings.SplitSeq(filepath.Dir(link), "/") {
		switch {
		case strings.HasPrefix(part, "pci"):
			path = nil
		case strings.Count(part, ":") == 2:
			path = append(path, strings.ToLower(part))
		}
	}
	return path
}
