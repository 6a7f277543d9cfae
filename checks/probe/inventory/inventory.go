// Package inventory reads the inventory of a node.
package inventory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cpu"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/disk"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
)

// Part is a part of a node's inventory. Each is a separate request, so that a part that hangs does
// not affect the others.
type Part string

// These are the parts.
const (
	PartCPU      Part = "cpu"
	PartMemory   Part = "memory"
	PartLoad     Part = "load"
	PartNet      Part = "network"
	PartIB       Part = "infiniband"
	PartGPU      Part = "gpu"
	PartDisks    Part = "disks"
	PartMounts   Part = "mounts"
	PartSpace    Part = "space" // of one mount point
	PartServices Part = "services"
	PartPCI      Part = "pci" // what the GPUs are
)

// Inventory is the hardware of a node. Only the requested part is filled.
type Inventory struct {
	CPUs       cpu.CPUs      `json:"cpus,omitzero"`
	Memory     probe.Memory  `json:"memory,omitzero"`
	Far        uint64        `json:"far,omitempty"`        // kB of Memory.Total on NUMA nodes without CPUs
	GPUMemory  bool          `json:"gpu_memory,omitempty"` // the driver has added the memory of GPUs to the kernel's
	Load       float64       `json:"load,omitempty"`       // average of the last minute
	Links      []NetLink     `json:"links,omitempty"`
	Ports      []IBLink      `json:"ports,omitempty"`
	GPU        GPUFiles      `json:"gpu,omitzero"`
	Disks      []string      `json:"disks,omitempty"` // NVMe name spaces: nvme0n1
	Mounts     []probe.Mount `json:"mounts,omitempty"`
	Configured []string      `json:"configured,omitempty"` // mount points of /etc/fstab and of systemd's mount units
	Space      MountSpace    `json:"space,omitzero"`
	Services   []Service     `json:"services,omitempty"`
	DMI        []DMILine     `json:"dmi,omitempty"`
	IDs        []pci.ID      `json:"ids,omitempty"`
}

// NetLink is a network interface.
type NetLink struct {
	Name    string `json:"name"`
	Virtual string `json:"virtual,omitempty"` // why it may come and go, or differ between nodes; "" if it is built in
}

// IBLink is an InfiniBand port in a form for other processes.
type IBLink struct {
	Name  string `json:"name"` // mlx5_0:1
	State string `json:"state"`
	Phys  string `json:"phys"`
	Rate  string `json:"rate"`
	Err   string `json:"err,omitempty"`
}

// GPUFiles has the GPUs as NVIDIA's driver and the PCI bus show them, without a library.
type GPUFiles struct {
	Nodes []string `json:"nodes,omitempty"` // /dev/nvidia0 ..., in order of their numbers
	PCI   []string `json:"pci,omitempty"`   // addresses of NVIDIA's GPUs
	Own   int      `json:"own,omitempty"`   // number of them that the node's own driver should have
	SMI   string   `json:"smi,omitempty"`   // path of nvidia-smi
}

// MountSpace describes a mount point and its use.
type MountSpace struct {
	Dir    bool          `json:"dir"`    // it is a directory; containers mount single files
	Device uint64        `json:"device"` // st_dev: equal for mounts of one file system
	Space  probe.Amounts `json:"space"`
	Inodes probe.Amounts `json:"inodes"`
}

// Take reads one part. path is the mount point for [PartSpace].
func Take(h *probe.Host, part Part, path string) (inv Inventory, err error) {
	switch part {
	case PartCPU:
		inv.CPUs, err = cpu.CountCPUs(h)
	case PartMemory:
		if inv.Memory, err = probe.ReadMemory(h); err == nil {
			inv.Far, err = readFarMemory(h)
			gpus, _ := pci.NvidiaPCI(h) // a node may have no PCI bus
			inv.GPUMemory = slices.ContainsFunc(gpus, func(addr string) bool { return nvidia.GPUMemoryOnline(h, addr) })
		}
	case PartLoad:
		inv.Load, err = readLoad(h)
	case PartNet:
		inv.Links, err = readNet(h)
	case PartIB:
		inv.Ports, err = readIB(h)
	case PartGPU:
		inv.GPU, err = readGPU(h)
	case PartDisks:
		inv.Disks, err = readDisks(h)
	case PartMounts:
		inv.Configured = readConfigured(h)
		inv.Mounts, err = probe.Mounts(h)
	case PartSpace:
		inv.Space, err = readSpace(h, path)
	case PartServices:
		inv.Services, err = readServices(h)
	case PartPCI:
		inv.IDs, err = pci.GPUIDs(h)
	case PartDMI:
		inv.DMI, err = readDMILines(h)
	default:
		err = fmt.Errorf("inventory: unknown part %q", part)
	}
	return inv, err
}

// readConfigured returns the mount points that the node's configuration names.
func readConfigured(h *probe.Host) (points []string) {
	for _, m := range probe.Fstab(h) {
		points = append(points, filepath.Clean(m.Point))
	}
	for _, dir := range unitDirs {
		units, _ := h.Names(dir) // a node without systemd has none
		for _, u := range units {
			if !strings.HasSuffix(u, ".mount") {
				continue
			}
			text, _ := h.ReadFile(dir + "/" + u) // a link to /dev/null masks it
			for line := range strings.Lines(string(text)) {
				if key, value, _ := strings.Cut(line, "="); strings.TrimSpace(key) == "Where" {
					points = append(points, filepath.Clean(strings.TrimSpace(value)))
				}
			}
		}
	}
	return points
}

// readFarMemory returns the memory of NUMA nodes without CPUs, in kB: of GPUs, HBM of a CPU, or CXL.
func readFarMemory(h *probe.Host) (kB uint64, err error) {
	text, err := h.ReadValue(pci.NUMANodes + "/has_memory")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	near, err := pci.ReadNUMANodes(h)
	if err != nil || len(near) == 0 {
		return 0, err
	}
	ids, _ := pci.ParseNodeList(text)
	for _, id := range ids {
		if slices.ContainsFunc(near, func(n pci.NUMANode) bool { return n.ID == id }) {
			continue
		}
		m, err := cpu.ReadNUMAMemory(h, id)
		if err != nil {
			return 0, err
		}
		kB += m.Total >> 10
	}
	return kB, nil
}

func readLoad(h *probe.Host) (float64, error) {
	const path = "/proc/loadavg"
	text, err := h.ReadValue(path)
	if err != nil {
		return 0, err
	}
	word, _, _ := strings.Cut(text, " ")
	load, err := strconv.ParseFloat(word, 64)
	if err != nil || !(load >= 0 && load < 1e9) { // "nan" is a number, too
		return 0, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("%.20q is not a load average", word)}
	}
	return load, nil
}

// macName matches the name that systemd gives an interface without a stable place: enxb03af2b6059f.
var macName = probe.Lazily(`^(en|wl|ww)x[0-9a-f]{12}$`)

// readNet distinguishes the interfaces of the node from those that software creates. A
// built-in one has a device; bonds and VLANs come from the node's own configuration and count as
// built in.
func readNet(h *probe.Host) ([]NetLink, error) {
	names, err := network.NetDevices(h)
	if err != nil {
		return nil, err
	}
	links := make([]NetLink, 0, len(names))
	for _, n := range names {
		dir := "/sys/class/net/" + n + "/"
		l := NetLink{Name: n}
		bus, _ := os.Readlink(h.Path(dir + "device/subsystem")) // software has none
		above, _ := os.Readlink(h.Path(dir + "master/device/subsystem"))
		switch {
		case n == "lo":
		case macName().MatchString(n):
			l.Virtual = "named after its MAC address"
		case filepath.Base(bus) == "usb":
			l.Virtual = "on USB, perhaps of the BMC"
		case probe.TestFile(h, 'e', dir+"device/physfn"), filepath.Base(bus) == "auxiliary",
			filepath.Base(above) == "vmbus": // the VF of Azure's accelerated networking: its name differs between machines
			l.Virtual = "only a virtual function behind it"
		case probe.TestFile(h, 'e', dir+"device") && rdma.OnPort(h, dir):
			l.Virtual = "made on another interface"
		case probe.TestFile(h, 'e', dir+"device"), probe.TestFile(h, 'd', dir+"bonding"), probe.TestFile(h, 'e', "/proc/net/vlan/"+n):
		default:
			l.Virtual = "no device behind it"
		}
		links = append(links, l)
	}
	return links, nil
}

func readIB(h *probe.Host) ([]IBLink, error) {
	ports, err := rdma.IBPorts(h)
	links := make([]IBLink, 0, len(ports))
	for _, p := range ports {
		l := IBLink{Name: p.Name(), State: p.State, Phys: p.Phys, Rate: p.Rate}
		if p.Err != nil {
			l.Err = strings.ReplaceAll(p.Err.Error(), "\n", "; ")
		}
		links = append(links, l)
	}
	return links, err
}

func readGPU(h *probe.Host) (GPUFiles, error) {
	var g GPUFiles
	if pci, err := pci.NvidiaPCI(h); err == nil && len(pci) > 0 { // a node may have no PCI bus
		g.PCI = pci
		views, err := nvidia.ReadGPUViews(h)
		if err != nil {
			return g, err
		}
		g.Own = len(views.Own())
	}
	names, err := h.Names("/dev")
	if err != nil {
		return g, err
	}
	numbers := []int{}
	for _, n := range names {
		digits, ok := strings.CutPrefix(n, "nvidia")
		if i, err := strconv.Atoi(digits); ok && err == nil && strconv.Itoa(i) == digits && i >= 0 && probe.TestFile(h, 'c', "/dev/"+n) {
			numbers = append(numbers, i)
		}
	}
	sort.Ints(numbers)
	for _, i := range numbers {
		g.Nodes = append(g.Nodes, "/dev/nvidia"+strconv.Itoa(i))
	}
	if path, err := probe.FindProgram(h, []string{"nvidia-smi"}, ""); err == nil {
		g.SMI = path
	}
	return g, nil
}

func readDisks(h *probe.Host) ([]string, error) {
	names, err := h.Names("/sys/block")
	if err != nil {
		return nil, err
	}
	nvme := regexp.MustCompile(`^nvme[0-9]+n[0-9]+$`) // not nvme0c0n1, a path of a multipath device
	var disks []string
	for _, n := range names {
		if nvme.MatchString(n) && probe.TestFile(h, 'b', "/dev/"+n) && !remote(h, "/sys/block/"+n+"/device") {
			disks = append(disks, n)
		}
	}
	return disks, nil
}

// remote reports whether an NVMe disk is connected over a network, perhaps for a job, or is a volume
// of a cloud. dir is its controller or, with multipath, its subsystem with the controllers.
func remote(h *probe.Host, dir string) bool {
	if model, err := h.ReadValue(dir + "/model"); err == nil && disk.IsNetwork(model) {
		return true
	}
	paths, _ := h.Names(dir) // a disk that is being removed has none
	return slices.ContainsFunc(append(paths, "."), func(name string) bool {
		transport, err := h.ReadValue(dir + "/" + name + "/transport")
		return err == nil && transport != "pcie"
	})
}

func readSpace(h *probe.Host, path string) (MountSpace, error) {
	var st unix.Stat_t
	if err := unix.Stat(h.Path(path), &st); err != nil {
		return MountSpace{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	s := MountSpace{Dir: st.Mode&unix.S_IFMT == unix.S_IFDIR, Device: uint64(st.Dev)}
	if !s.Dir {
		return s, nil
	}
	var err error
	if s.Space, err = probe.FSUsage(h, path, probe.Space); err == nil {
		s.Inodes, err = probe.FSUsage(h, path, probe.Inodes)
	}
	return s, err
}

// PartDMI is the part of the inventory from dmidecode. Only root can read it.
const PartDMI Part = "dmi"

// DMILine is a line of a DMI table in the form for checks of DMI data.
type DMILine struct {
	Handle string `json:"handle"` // as dmidecode writes it: 0x1100
	Type   string `json:"type"`   // number of the table's type
	Text   string `json:"text"`   // after the names of its sections
}

// inventoryDMILimit bounds dmidecode, which reads the firmware's memory.
const inventoryDMILimit = 4 * time.Second

func readDMILines(h *probe.Host) ([]DMILine, error) {
	ctx, cancel := context.WithTimeout(context.Background(), inventoryDMILimit)
	defer cancel()
	dmi, err := probe.ReadDMI(ctx, h)
	if err == nil {
		err = dmi.Missing
	}
	if err != nil {
		return nil, fmt.Errorf("run dmidecode: %w", probe.Reason(err))
	}
	var lines []DMILine
	for _, r := range dmi.Records {
		for _, text := range r.Data {
			lines = append(lines, DMILine{Handle: fmt.Sprintf("0x%04X", r.Handle), Type: r.Type, Text: text})
		}
	}
	return lines, nil
}
