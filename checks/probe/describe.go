package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// Fact is one line of the description of a node, for a person.
type Fact struct {
	Thing  string `json:"thing"`  // "CPU", "InfiniBand"
	Found  bool   `json:"found"`  // false: this node has none
	Detail string `json:"detail"` // what was found, or where it was looked for
}

// Describe tells what the node has, as far as files tell it.
func (h *Host) Describe() []Fact {
	return []Fact{h.describeOS(), h.describeCPU(), h.describeMemory(), h.describeNet(), h.describeIB(), h.describePCI(), h.describeSlurm()}
}

func (h *Host) describeOS() Fact {
	f := Fact{Thing: "system", Detail: "unknown"}
	if data, err := os.ReadFile(h.Path("/etc/os-release")); err == nil {
		for line := range strings.SplitSeq(string(data), "\n") {
			if name, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
				f.Found, f.Detail = true, strings.Trim(name, `"`)
			}
		}
	}
	if data, err := os.ReadFile(h.Path("/proc/sys/kernel/osrelease")); err == nil {
		f.Found = true
		f.Detail += ", kernel " + strings.TrimSpace(string(data))
	}
	return f
}

func (h *Host) describeCPU() Fact {
	c, err := h.CPUs()
	if err != nil {
		return Fact{Thing: "CPU", Detail: err.Error()}
	}
	return Fact{Thing: "CPU", Found: true, Detail: fmt.Sprintf("%d sockets, %d cores, %d threads", c.Sockets, c.Cores, c.Threads)}
}

func (h *Host) describeMemory() Fact {
	m, err := h.Memory()
	if err != nil {
		return Fact{Thing: "memory", Detail: err.Error()}
	}
	return Fact{Thing: "memory", Found: true, Detail: fmt.Sprintf("%.1f GiB, %.1f GiB free, swap %.1f GiB",
		float64(m.Total)/(1<<20), float64(m.Free)/(1<<20), float64(m.SwapTotal)/(1<<20))}
}

func (h *Host) describeNet() Fact {
	devs, err := h.NetDevices()
	if err != nil {
		return Fact{Thing: "network", Detail: err.Error()}
	}
	return Fact{Thing: "network", Found: len(devs) > 0, Detail: strings.Join(devs, " ")}
}

func (h *Host) describeIB() Fact {
	ports, err := h.IBPorts()
	if err != nil || len(ports) == 0 {
		return Fact{Thing: "InfiniBand", Detail: "no port in /sys/class/infiniband"}
	}
	var words []string
	for _, p := range ports {
		if p.Err != nil {
			words = append(words, fmt.Sprintf("%s %v", p.Name(), p.Err))
			continue
		}
		words = append(words, fmt.Sprintf("%s %s %s Gb/s", p.Name(), p.State, p.Rate))
	}
	return Fact{Thing: "InfiniBand", Found: true, Detail: strings.Join(words, ", ")}
}

func (h *Host) describePCI() Fact {
	found, err := h.nvidiaPCI()
	if err != nil {
		return Fact{Thing: "GPU (PCI)", Detail: "no PCI bus in " + pciDevices}
	}
	if len(found) == 0 {
		return Fact{Thing: "GPU (PCI)", Detail: "no NVIDIA GPU in " + pciDevices}
	}
	return Fact{Thing: "GPU (PCI)", Found: true, Detail: fmt.Sprintf("%d: %s", len(found), strings.Join(found, " "))}
}

const pciDevices = "/sys/bus/pci/devices"

// nvidiaPCI lists NVIDIA's display controllers on the PCI bus: they are there
// whether a driver is or not. Vendor 10de, classes 0300 (VGA) and 0302 (3D): PCI
// ID registry. So the NVSwitches, sound and USB of boards are none of them.
func (h *Host) nvidiaPCI() ([]string, error) {
	names, err := once(h, "nvidiapci", func() (names []string, err error) {
		list, err := h.PCIList()
		for _, e := range list {
			if strings.HasPrefix(e.Class, "0300") || strings.HasPrefix(e.Class, "0302") {
				if vendor, err := h.readValue(pciDevices + "/" + e.Address + "/vendor"); err == nil && vendor == "0x10de" {
					names = append(names, e.Address)
				}
			}
		}
		return names, err
	})
	return slices.Clone(names), err
}

func (h *Host) describeSlurm() Fact {
	path, err := h.find([]string{"scontrol"}, "")
	if errors.Is(err, fs.ErrNotExist) {
		return Fact{Thing: "Slurm", Detail: "no scontrol in " + CommandPath}
	}
	return Fact{Thing: "Slurm", Found: err == nil, Detail: path}
}

// DescribeNVML tells what NVML sees. Only for the worker of the nvml lane. doing
// hears of every call before it is made.
func (h *Host) DescribeNVML(doing func(string)) []Fact {
	n, err := h.NVML(0, doing)
	if err != nil {
		return []Fact{{Thing: "NVML", Detail: err.Error()}}
	}
	facts := []Fact{{Thing: "NVML", Found: true, Detail: fmt.Sprintf("driver %s, %d GPUs", n.Driver.Value, len(n.GPUs))}}
	for _, g := range n.GPUs {
		f := Fact{Thing: fmt.Sprintf("gpu%d", g.Index), Found: true, Detail: fmt.Sprintf("%s %s %s", g.PCI, g.Name.Value, g.UUID.Value)}
		if g.Err != nil {
			f = Fact{Thing: f.Thing, Detail: g.Err.Error()}
		}
		facts = append(facts, f)
	}
	return facts
}

// DescribeDCGM tells whether DCGM's host engine answers. Only for the worker of
// the dcgm lane.
func (h *Host) DescribeDCGM() []Fact {
	n, err := h.HostEngine()
	if err != nil {
		return []Fact{{Thing: "DCGM", Detail: err.Error()}}
	}
	return []Fact{{Thing: "DCGM", Found: true, Detail: fmt.Sprintf("nv-hostengine manages %d GPUs", n)}}
}
