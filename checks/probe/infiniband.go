package probe

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// IBPort is one directory of /sys/class/infiniband/DEVICE/ports, with the
// words that LBNL NHC compares.
type IBPort struct {
	Device string // mlx5_0
	Port   string // 1
	PCI    string // address of the device: 0000:c1:00.0; "" if it has none
	State  string // second word of state: "4: ACTIVE" is ACTIVE
	Phys   string // second word of phys_state: "5: LinkUp" is LinkUp
	Rate   string // first word of rate, in Gb/s: "200 Gb/sec (4X HDR)" is 200
	Err    error  // why a word above is missing; the other ports are not concerned
}

// Name is how LBNL NHC names a port: mlx5_0:1.
func (p IBPort) Name() string { return p.Device + ":" + p.Port }

const ibClass = "/sys/class/infiniband"

// IBPorts lists the InfiniBand and RoCE ports by name. None without the
// driver; one that cannot be read is listed with its error.
func (h *Host) IBPorts() ([]IBPort, error) {
	return once(h, "ibports", func() ([]IBPort, error) {
		devices, err := h.names(ibClass)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		var ports []IBPort
		for _, d := range devices {
			dir := filepath.Join(ibClass, d, "ports")
			numbers, err := h.names(dir)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				ports = append(ports, IBPort{Device: d, PCI: h.pciOf(d), Err: err})
			}
			for _, n := range numbers {
				ports = append(ports, h.ibPort(d, n))
			}
		}
		return ports, nil
	})
}

func (h *Host) ibPort(device, number string) IBPort {
	p := IBPort{Device: device, Port: number, PCI: h.pciOf(device)}
	dir := filepath.Join(ibClass, device, "ports", number)
	word := func(file string, at int) string {
		s, err := h.readValue(filepath.Join(dir, file))
		if err != nil {
			p.Err = errors.Join(p.Err, err)
			return ""
		}
		words := strings.FieldsFunc(s, func(r rune) bool { return r == ' ' || r == ':' || r == '\t' })
		if at >= len(words) {
			return ""
		}
		return words[at]
	}
	p.State = word("state", 1)
	p.Phys = word("phys_state", 1)
	p.Rate = word("rate", 0)
	return p
}

// pciOf is the PCI address behind an InfiniBand device.
func (h *Host) pciOf(device string) string {
	target, err := os.Readlink(h.Path(filepath.Join(ibClass, device, "device")))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// MADVersion is /sys/class/infiniband_mad/abi_version: "" or "0" if the
// ib_umad module is not loaded, without which no InfiniBand tool works.
func (h *Host) MADVersion() string {
	v, _ := once(h, "ibmad", func() (string, error) {
		return h.readValue("/sys/class/infiniband_mad/abi_version")
	})
	return strings.TrimSpace(v)
}

// names lists a directory, sorted.
func (h *Host) names(p string) ([]string, error) {
	dir, err := os.Open(h.Path(p))
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: p, Err: reason(err)}
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: p, Err: reason(err)}
	}
	sort.Strings(names)
	return names, nil
}

// reason strips the path from an error, which is that of this machine and not
// of the node.
func reason(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	if le, ok := errors.AsType[*os.LinkError](err); ok { // names a temporary file, too
		return le.Err
	}
	return err
}
