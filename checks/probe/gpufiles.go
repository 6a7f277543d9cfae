package probe

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// GPUViews is what the kernel shows of the GPUs, no library asked: the PCI bus,
// the files of NVIDIA's driver, and its device nodes.
type GPUViews struct {
	PCI     []PCIGPU    // by address; none if the node shows no PCI bus
	Driver  []DriverGPU // by address, from /proc/driver/nvidia/gpus
	Nodes   []int       // the N of /dev/nvidiaN, in order
	Version string      // of the loaded driver, from /proc/driver/nvidia/version; "" if it is not loaded
}

// PCIGPU is a GPU of NVIDIA's in /sys/bus/pci/devices.
type PCIGPU struct {
	Address string // 0000:c1:00.0
	Driver  string // of the kernel: "nvidia", "vfio-pci"; "" if none has taken it
}

// Passed says whether the GPU was given to a virtual machine, or is kept for one:
// the node's own driver has nothing to do with it.
func (p PCIGPU) Passed() bool {
	return strings.Contains(p.Driver, "vfio") || p.Driver == "pci-stub" || strings.HasSuffix(p.Driver, "pciback") // the last: Xen
}

// DriverGPU is a directory of /proc/driver/nvidia/gpus.
type DriverGPU struct {
	Address  string // 0000:c1:00.0
	Minor    int    // the N of /dev/nvidiaN; -1 if it is not told
	UUID     string
	Excluded bool // by NVreg_ExcludedGpus: the driver leaves it alone
}

const driverGPUs = "/proc/driver/nvidia/gpus"

// GPUViews reads all views. One that is not there is empty, which is no error.
func (h *Host) GPUViews() (GPUViews, error) {
	return once(h, "gpuviews", func() (v GPUViews, err error) {
		absent := func(err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		addresses, err := h.nvidiaPCI()
		if err := absent(err); err != nil {
			return v, err
		}
		for _, a := range addresses {
			link, _ := os.Readlink(h.Path(pciDevices + "/" + a + "/driver")) // no link: no driver
			driver := filepath.Base(link)
			if link == "" {
				driver = ""
			}
			v.PCI = append(v.PCI, PCIGPU{a, driver})
		}
		names, err := h.names(driverGPUs)
		if err := absent(err); err != nil {
			return v, err
		}
		for _, a := range names {
			data, err := h.readFile(driverGPUs + "/" + a + "/information")
			if err := absent(err); err != nil {
				return v, err
			}
			v.Driver = append(v.Driver, parseDriverGPU(strings.ToLower(a), data))
		}
		if v.Nodes, err = h.gpuNodes(); absent(err) != nil {
			return v, err
		}
		data, err := h.readFile("/proc/driver/nvidia/version")
		if err := absent(err); err != nil {
			return v, err
		}
		v.Version = ParseDriverVersion(string(data))
		return v, nil
	})
}

// gpuNodes are the numbers of /dev/nvidiaN.
func (h *Host) gpuNodes() ([]int, error) {
	names, err := h.names("/dev")
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

// parseDriverGPU reads lines as "Device Minor: \t 3".
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
			g.UUID = gpuUUID(value)
		case "GPU Excluded":
			g.Excluded = value == "Yes"
		}
	}
	return g
}

func notNumber(s string) bool {
	return s == "" || strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '9' })
}

// ProductUUID tells this machine from another that runs from the same disk: the
// DMI table's number of the system, "" if the node does not show it.
func (h *Host) ProductUUID() string {
	id, _ := once(h, "productuuid", func() (string, error) { return h.readValue("/sys/class/dmi/id/product_uuid") })
	return id
}
