// Package nvidia reads the GPUs from files of the kernel and of NVIDIA's kernel module.
package nvidia

import (
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// This file reads /proc/driver/nvidia, which the NVIDIA kernel module provides without its library.

// DriverGPUs returns the PCI addresses of the NVIDIA kernel module's GPUs, in the order of NVML:
// 0000:c1:00.0. It includes a GPU that has fallen off the bus, and no excluded one ([GPUViews.Used]).
func DriverGPUs(h *probe.Host) ([]string, error) {
	return probe.Once(h, "nvidia driver gpus", func() ([]string, error) {
		const path = probe.NvProc + "/gpus"
		dir, err := os.Open(h.Path(path))
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: path, Err: probe.Reason(err)}
		}
		defer dir.Close()
		names, err := dir.Readdirnames(-1)
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: path, Err: probe.Reason(err)}
		}
		slices.Sort(names)
		return slices.DeleteFunc(names, func(pci string) bool {
			data, _ := h.ReadFile(path + "/" + pci + "/information") // without it the GPU counts
			return parseDriverGPU(pci, data).Excluded
		}), nil
	})
}

// DriverGPUUUID returns the UUID of a GPU of [DriverGPUs], "" if the module does not know it.
func DriverGPUUUID(h *probe.Host, pci string) string {
	data, err := h.ReadFile(probe.NvProc + "/gpus/" + pci + "/information")
	if err != nil {
		return ""
	}
	return parseGPUUUID(string(data))
}

func parseGPUUUID(text string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, "GPU UUID:"); ok {
			return parseUUID(value)
		}
	}
	return ""
}

// DriverGPUModel returns the model of a GPU of [DriverGPUs], "" if the module does not know it:
// NVIDIA H100 80GB HBM3.
func DriverGPUModel(h *probe.Host, pci string) string {
	data, err := h.ReadFile(probe.NvProc + "/gpus/" + pci + "/information")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "Model:"); ok {
			return probe.OneLine(strings.TrimSpace(value))
		}
	}
	return ""
}

// parseUUID returns the value if it is a UUID. Before its first contact with a GPU the module shows
// GPU-????????-????-????-????-????????????.
func parseUUID(value string) string {
	if value = probe.OneLine(strings.TrimSpace(value)); strings.HasPrefix(value, "GPU-") && !strings.Contains(value, "?") {
		return value
	}
	return ""
}

// GPUMemoryOnline reports whether the NVIDIA kernel module has added the memory of a GPU to the
// kernel as a NUMA node, as on GH200.
func GPUMemoryOnline(h *probe.Host, pci string) bool {
	data, err := h.ReadFile(probe.NvProc + "/gpus/" + pci + "/numa_status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(data)) {
		if key, v, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "Status" {
			return strings.TrimSpace(v) == "online"
		}
	}
	return false
}
