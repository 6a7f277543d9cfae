package nvidia

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// MaxGPUs is larger than the number of GPUs of any node.
const MaxGPUs = 256

// GPUViews has the GPUs as the kernel shows them, without a library: the PCI bus, the files of
// NVIDIA's driver, and its device nodes.
type GPUViews struct {
	PCI     []PCIGPU    // by address; none if the node shows no PCI bus
	Driver  []DriverGPU // by address, from /proc/driver/nvidia/gpus; in a container only its own
	Nodes   []int       // the N of /dev/nvidiaN, in order
	Version string      // of the loaded driver, from /proc/driver/nvidia/version; "" if it is not loaded
}

// PCIGPU is an NVIDIA GPU in /sys/bus/pci/devices.
type PCIGPU struct {
	Address string // 0000:c1:00.0
	Driver  string // of the kernel: "nvidia", "vfio-pci"; "" if it has none
	Aside   Aside
}

// Aside is the reason why NVIDIA's driver need not have a GPU on this node.
type Aside string

// These are the reasons, as messages show them.
const (
	Expected Aside = "" // it has to
	Display  Aside = "is a display card without NVIDIA's driver"
	NotGiven Aside = "was not given to this container"
)

// Passed reports whether the GPU is assigned to a virtual machine, or reserved for one: the node's
// own driver does not use it.
func (p PCIGPU) Passed() bool {
	return strings.Contains(p.Driver, "vfio") || p.Driver == "pci-stub" || strings.HasSuffix(p.Driver, "pciback") // the last: Xen
}

// Left returns why the node's own driver need not have the GPU, "" if it must.
func (p PCIGPU) Left() string {
	if p.Passed() {
		return "is left to " + p.Driver
	}
	return string(p.Aside)
}

// Own returns the addresses of the GPUs that the node's own driver should have: those on the bus,
// or in a container without a bus those of the driver.
func (v *GPUViews) Own() (list []string) {
	excluded := map[string]bool{}
	for _, d := range v.Driver {
		excluded[d.Address] = d.Excluded
		if len(v.PCI) == 0 && !d.Excluded {
			list = append(list, d.Address)
		}
	}
	for _, p := range v.PCI {
		if p.Left() == "" && !excluded[p.Address] {
			list = append(list, p.Address)
		}
	}
	return list
}

// Used returns the GPUs that the driver uses, in the order of NVML: their indexes are the numbers of nvidia-smi, of
// findings (gpu3), and of slurmd. An excluded GPU has none.
func (v *GPUViews) Used() []DriverGPU {
	return slices.DeleteFunc(slices.Clone(v.Driver), func(d DriverGPU) bool { return d.Excluded })
}

// Has reports whether the driver has the GPU.
func (v *GPUViews) Has(address string) bool {
	return slices.ContainsFunc(v.Driver, func(d DriverGPU) bool { return d.Address == address })
}

// Any reports whether the kernel shows an NVIDIA GPU or its driver. Under WSL 2 only NVML does.
func (v *GPUViews) Any() bool {
	return len(v.PCI)+len(v.Driver)+len(v.Nodes) > 0 || v.Version != ""
}

// setAside marks the GPUs on the bus that the driver does not have, and need not have.
func setAside(h *probe.Host, v *GPUViews) {
	contained := h.InContainer()
	if contained { // CDI shows the files of all GPUs, but device nodes only of the assigned ones
		v.Driver = slices.DeleteFunc(v.Driver, func(d DriverGPU) bool { return d.Minor >= 0 && !slices.Contains(v.Nodes, d.Minor) })
	}
	ids, _ := pci.GPUIDs(h) // without ids no card counts as another model
	device := map[string]string{}
	for _, id := range ids {
		device[id.Address] = id.Device
	}
	has, bound := map[string]bool{}, false // devices; whether the bus shows drivers
	for _, p := range v.PCI {
		if v.Has(p.Address) {
			has[device[p.Address]] = true
			bound = bound || p.Driver != ""
		}
	}
	display := pci.OfClass(h, "0300")
	for i := range v.PCI {
		p := &v.PCI[i]
		switch {
		case v.Has(p.Address):
		case contained && (p.Driver == "nvidia" || p.Driver == "" && len(has) > 0 && !bound):
			p.Aside = NotGiven
		case (p.Driver == "" || p.Driver == "nouveau") && slices.Contains(display, p.Address) && len(has) > 0 && device[p.Address] != "" && !has[device[p.Address]]:
			p.Aside = Display
		}
	}
}

// DriverGPU is a directory of /proc/driver/nvidia/gpus.
type DriverGPU struct {
	Address  string // 0000:c1:00.0
	Minor    int    // the N of /dev/nvidiaN; -1 if unknown
	UUID     string
	Excluded bool // by NVreg_ExcludedGpus: the driver ignores it
}

const driverGPUs = "/proc/driver/nvidia/gpus"

const gpuViews = "gpuviews"

// DriverStarted makes the next [ReadGPUViews] read again if the views lack a device node or the driver:
// NVML's start loads the driver and creates the device nodes, in the first run after a boot.
func DriverStarted(h *probe.Host) {
	if v, err := ReadGPUViews(h); err == nil && (v.Version == "" || len(v.Nodes) < len(v.Driver)) {
		probe.Uncache(h, gpuViews)
	}
}

// ReadGPUViews reads all views. A missing view is empty, which is not an error.
func ReadGPUViews(h *probe.Host) (GPUViews, error) {
	return probe.Once(h, gpuViews, func() (v GPUViews, err error) {
		absent := func(err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		addresses, err := pci.NvidiaPCI(h)
		if err := absent(err); err != nil {
			return v, err
		}
		for _, a := range addresses {
			link, _ := os.Readlink(h.Path(pci.PCIDevices + "/" + a + "/driver")) // no link: no driver
			driver := filepath.Base(link)
			if link == "" {
				driver = ""
			}
			v.PCI = append(v.PCI, PCIGPU{Address: a, Driver: driver})
		}
		names, err := h.Names(driverGPUs)
		if err := absent(err); err != nil {
			return v, err
		}
		for _, a := range names {
			data, err := h.ReadFile(driverGPUs + "/" + a + "/information")
			if err := absent(err); err != nil {
				return v, err
			}
			v.Driver = append(v.Driver, parseDriverGPU(strings.ToLower(a), data))
		}
		if v.Nodes, err = listGPUNodes(h); absent(err) != nil {
			return v, err
		}
		data, err := h.ReadFile("/proc/driver/nvidia/version")
		if err := absent(err); err != nil {
			return v, err
		}
		v.Version = probe.ParseDriverVersion(string(data))
		setAside(h, &v)
		return v, nil
	})
}

// DriverUnloaded reports whether the node has GPUs for NVIDIA's driver, but no part of the driver:
// no module, no file in /proc, no device node. It returns false if a source cannot be read.
func DriverUnloaded(h *probe.Host) bool {
	v, err := ReadGPUViews(h)
	if err != nil || v.Version != "" || len(v.Driver) > 0 {
		return false
	}
	own := func(p PCIGPU) bool { return p.Driver == "" }
	if !slices.ContainsFunc(v.PCI, own) || slices.ContainsFunc(v.PCI, func(p PCIGPU) bool { return !own(p) && !p.Passed() }) {
		return false
	}
	ofNVIDIA := func(name string) bool { return strings.HasPrefix(name, "nvidia") }
	modules, err := probe.Modules(h)
	if err != nil || len(modules) == 0 || slices.ContainsFunc(modules, ofNVIDIA) {
		return false
	}
	nodes, err := h.Names("/dev")
	return err == nil && !slices.ContainsFunc(nodes, ofNVIDIA)
}

// listGPUNodes returns the numbers of /dev/nvidiaN.
func listGPUNodes(h *probe.Host) ([]int, error) {
	names, err := h.Names("/dev")
	if err != nil {
		return nil, err
	}
	var numbers []int
	for _, n := range names {
		digits, ok := strings.CutPrefix(n, "nvidia")
		if i, err := strconv.Atoi(digits); ok && err == nil && strconv.Itoa(i) == digits && i >= 0 {
			numbers = append(numbers, i)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// parseDriverGPU parses lines such as "Device Minor: \t 3".
func parseDriverGPU(address string, data []byte) DriverGPU {
	g := DriverGPU{Address: address, Minor: -1}
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); strings.TrimSpace(key) {
		case "Device Minor":
			if n, err := strconv.Atoi(value); err == nil && n >= 0 {
				g.Minor = n
			}
		case "GPU UUID":
			g.UUID = parseUUID(value)
		case "GPU Excluded":
			g.Excluded = value == "Yes"
		}
	}
	return g
}

// ProductUUID distinguishes this machine from another that runs from the same disk: it is the
// system UUID of the DMI table, "" if the node does not show it.
func ProductUUID(h *probe.Host) string {
	id, _ := probe.Once(h, "productuuid", func() (string, error) { return h.ReadValue("/sys/class/dmi/id/product_uuid") })
	return id
}
