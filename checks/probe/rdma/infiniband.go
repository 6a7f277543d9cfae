// Package rdma reads InfiniBand, RoCE and EFA devices, and runs perftest.
package rdma

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
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// HCA is an RDMA device, a directory of /sys/class/infiniband: InfiniBand, RoCE, EFA or in
// software. Values that a driver does not show are "".
type HCA struct {
	Name     string // mlx5_0, mlx5_ib0, rocep1s0
	PCI      string // 0000:c1:00.0; "" for one in software, or on another bus
	Driver   string // of the PCI device: mlx5_core
	Vendor   string // PCI ids: 15b3
	Model    string // 1021
	NUMA     int    // the nearest node; -1 if unknown
	VF       bool   // a virtual function, whose physical one is on this node, too
	Type     string // hca_type: MT4129
	IWARP    bool   // uses iWARP instead of InfiniBand or RoCE: node_type "4: RNIC"
	Firmware string // fw_ver: 28.39.2048
	Board    string // board_id, Mellanox's PSID: MT_0000000838
	GUID     string // node_guid: b83f:d203:00c5:1a2e
	Ports    []IBPort
	Err      error // why a value above is missing; other devices are not affected
}

// IBPort is one directory of /sys/class/infiniband/DEVICE/ports, with the words that LBNL NHC
// compares.
type IBPort struct {
	Device  string   // mlx5_0
	Port    string   // 1
	PCI     string   // address of the device: 0000:c1:00.0; "" if it has none
	State   string   // second word of state: "4: ACTIVE" is ACTIVE
	Phys    string   // second word of phys_state: "5: LinkUp" is LinkUp
	Rate    string   // first word of rate, in Gb/s: "200 Gb/sec (4X HDR)" is 200
	Lanes   string   // the text in its brackets: 4X HDR
	Layer   string   // link_layer: InfiniBand, Ethernet; "" if the kernel is too old
	LID     string   // of the port, and of the subnet manager: 0x1f
	SMLID   string   //
	NetDevs []string // network interfaces of the port: ib0, eth2
	Err     error    // why a word above is missing; other ports are not affected
}

// Name returns LBNL NHC's name of a port: mlx5_0:1.
func (p IBPort) Name() string { return p.Device + ":" + p.Port }

// Gbps returns the rate of the port in Gb/s, 0 if unknown.
func (p IBPort) Gbps() float64 { return parseRate(p.Rate) }

func parseRate(word string) float64 {
	n, err := strconv.ParseFloat(word, 64)
	const most = 6400                        // 12 lanes of XDR have 2400; more is garbage
	if err != nil || !(n > 0 && n <= most) { // "nan" is a number, too
		return 0
	}
	return n
}

const ibClass = "/sys/class/infiniband"

// HCAs lists the RDMA devices by name, none without a driver. It lists a device that it cannot read
// with its error. For a virtual function it returns only name and address, because a node may have
// thousands, see [WholeHCA]. doing may be nil.
func HCAs(h *probe.Host, doing func(string)) ([]HCA, error) {
	return probe.Once(h, "hcas", func() ([]HCA, error) {
		names, err := h.Names(ibClass)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		var list []HCA
		for _, name := range names {
			if err := h.StuckAt(ibClass + "/" + name); err != nil {
				list = append(list, HCA{Name: name, NUMA: -1, Err: err})
				continue
			}
			if doing != nil {
				doing("read " + ibClass + "/" + name)
			}
			if bdf := readPCIAddress(h, name); bdf != "" && pci.IsVF(h, bdf) {
				list = append(list, HCA{Name: name, PCI: bdf, NUMA: -1, VF: true})
				continue
			}
			list = append(list, WholeHCA(h, name))
		}
		return list, nil
	})
}

// WholeHCA reads one device, including a virtual function.
func WholeHCA(h *probe.Host, name string) HCA {
	dir := filepath.Join(ibClass, name)
	a := HCA{Name: name, NUMA: -1, PCI: readPCIAddress(h, name)}
	a.Type, a.Firmware, a.Board, a.GUID = h.Word(dir, "hca_type", &a.Err), h.Word(dir, "fw_ver", &a.Err), h.Word(dir, "board_id", &a.Err), h.Word(dir, "node_guid", &a.Err)
	a.IWARP = strings.HasSuffix(h.Word(dir, "node_type", &a.Err), " RNIC")
	if a.PCI != "" {
		d := pci.ReadFunction(h, a.PCI)
		a.Driver, a.Vendor, a.Model, a.NUMA, a.VF = d.Driver, d.Vendor, d.Device, d.NUMA, d.VF
		a.Err = errors.Join(a.Err, d.Err)
	}
	numbers, err := h.Names(filepath.Join(dir, "ports"))
	if errors.Is(err, fs.ErrNotExist) { // or the device was just removed
		_, err = h.Names(dir)
	}
	if err != nil {
		a.Err = errors.Join(a.Err, err)
	}
	slices.SortFunc(numbers, compareByNumber)
	for _, n := range numbers {
		a.Ports = append(a.Ports, readPort(h, a.PCI, name, n, len(numbers)))
	}
	return a
}

// compareByNumber sorts 9 before 10.
func compareByNumber(a, b string) int {
	if d := len(a) - len(b); d != 0 {
		return d
	}
	return strings.Compare(a, b)
}

// IBPorts lists the InfiniBand and RoCE ports by name, none without the driver. It lists a port
// that it cannot read with its error.
func IBPorts(h *probe.Host) ([]IBPort, error) {
	list, err := HCAs(h, nil)
	var ports []IBPort
	for _, a := range list {
		if a.VF {
			a = WholeHCA(h, a.Name)
		}
		if len(a.Ports) == 0 && a.Err != nil && !errors.Is(a.Err, fs.ErrNotExist) {
			ports = append(ports, IBPort{Device: a.Name, PCI: a.PCI, Err: a.Err})
		}
		ports = append(ports, a.Ports...)
	}
	return ports, err
}

func readPort(h *probe.Host, pci, device, number string, ports int) IBPort {
	p := IBPort{Device: device, Port: number, PCI: pci}
	dir := filepath.Join(ibClass, device, "ports", number)
	for _, f := range []struct {
		name string
		at   int
		into *string
	}{{"state", 1, &p.State}, {"phys_state", 1, &p.Phys}, {"rate", 0, &p.Rate}} {
		text, err := h.ReadValue(filepath.Join(dir, f.name))
		if err != nil {
			p.Err = errors.Join(p.Err, err)
			continue
		}
		words := strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ':' || r == '\t' })
		if f.at < len(words) {
			*f.into = words[f.at]
		}
		if _, lanes, ok := strings.Cut(text, "("); ok && f.name == "rate" {
			p.Lanes = strings.TrimRight(lanes, ") \t")
		}
	}
	p.Layer, p.LID, p.SMLID = h.Word(dir, "link_layer", &p.Err), h.Word(dir, "lid", &p.Err), h.Word(dir, "sm_lid", &p.Err)
	if pci != "" {
		p.NetDevs = listNetDevs(h, pci, number, ports)
	}
	return p
}

// listNetDevs returns the network interfaces of a port. If a device has several ports, dev_port,
// which counts from 0, assigns them to one. It excludes interfaces that others create on the port,
// because they come and go without it, see [OnPort].
func listNetDevs(h *probe.Host, bdf, port string, ports int) (list []string) {
	dir := pci.PCIDevices + "/" + bdf + "/net"
	names, err := h.Names(dir)
	if err != nil {
		return nil // a port need not have any
	}
	for _, n := range names {
		if len(names) > 1 && OnPort(h, dir+"/"+n) {
			continue
		}
		if ports > 1 {
			text, err := h.ReadValue(dir + "/" + n + "/dev_port")
			at, bad := strconv.Atoi(text)
			if err != nil || bad != nil || strconv.Itoa(at+1) != port {
				continue
			}
		}
		list = append(list, n)
	}
	return list
}

// OnPort reports whether an interface was created on a port, and is not the port's own: the host's
// end of a virtual function ("pf0vf3", "c1pf0sf88"), or another partition of IP over InfiniBand.
// One created by sysfs has a parent; each names the port's own interface as its lower one (iflink).
func OnPort(h *probe.Host, dir string) bool {
	if name, err := h.ReadValue(dir + "/phys_port_name"); err == nil && strings.Contains(name, "pf") {
		return true
	}
	own, err := h.ReadValue(dir + "/ifindex")
	on, bad := h.ReadValue(dir + "/iflink")
	if err == nil && bad == nil && on != own {
		return true
	}
	_, err = h.ReadValue(dir + "/parent")
	return err == nil
}

// readPCIAddress returns the PCI address of an InfiniBand device.
func readPCIAddress(h *probe.Host, device string) string {
	target, err := os.Readlink(h.Path(filepath.Join(ibClass, device, "device")))
	if err != nil || strings.Count(filepath.Base(target), ":") != 2 {
		return ""
	}
	return filepath.Base(target)
}

// PortGUID returns the GUID of a port, the second half of its first GID; "" if it has none.
func PortGUID(h *probe.Host, device, port string) string {
	if h.StuckAt(ibClass+"/"+device) != nil {
		return ""
	}
	gid, err := h.ReadValue(filepath.Join(ibClass, device, "ports", port, "gids/0"))
	groups := strings.Split(strings.TrimSpace(gid), ":")
	if err != nil || len(groups) != 8 {
		return ""
	}
	return strings.Join(groups[4:], ":")
}

// MADVersion returns /sys/class/infiniband_mad/abi_version: "" or "0" if the ib_umad module is not
// loaded, without which no InfiniBand tool works.
func MADVersion(h *probe.Host) string {
	v, _ := probe.Once(h, "ibmad", func() (string, error) {
		return h.ReadValue("/sys/class/infiniband_mad/abi_version")
	})
	return strings.TrimSpace(v)
}

// VerbsVersion returns /sys/class/infiniband_verbs/abi_version: "" if the ib_uverbs module is not
// loaded, without which no program can use RDMA.
func VerbsVersion(h *probe.Host) string {
	v, _ := probe.Once(h, "ibverbs", func() (string, error) {
		return h.ReadValue("/sys/class/infiniband_verbs/abi_version")
	})
	return strings.TrimSpace(v)
}

// Verbs maps RDMA devices to the uverbs devices that programs open: mlx5_0 to uverbs0. There are
// none without the ib_uverbs module.
func Verbs(h *probe.Host) (map[string]string, error) {
	return probe.Once(h, "verbs", func() (map[string]string, error) {
		const dir = "/sys/class/infiniband_verbs"
		names, err := h.Names(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		devices := map[string]string{}
		for _, n := range names {
			if !strings.HasPrefix(n, "uverbs") {
				continue
			}
			device, bad := h.ReadValue(dir + "/" + n + "/ibdev")
			if bad != nil {
				return nil, bad
			}
			devices[strings.TrimSpace(device)] = n
		}
		return devices, err
	})
}

// VerbsNodeMissing reports whether a uverbs device has no node below /dev/infiniband, and returns
// the path of the node. It returns false for a recorded node without any.
func VerbsNodeMissing(h *probe.Host, name string) (missing bool, path string) {
	const dir = "/dev/infiniband"
	path = dir + "/" + name
	if h.Path("/") != "/" {
		names, _ := h.Names(dir)
		if !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "uverbs") }) {
			return false, path
		}
	}
	var st unix.Stat_t
	return errors.Is(unix.Lstat(h.Path(path), &st), unix.ENOENT), path
}
