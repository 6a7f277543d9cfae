// Package nvidia reads what the kernel and NVIDIA's kernel module show of GPUs.
package nvidia

import (
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// What the NVIDIA kernel module tells without its library, in
// /proc/driver/nvidia.

// DriverGPUs are the PCI addresses of the GPUs that the NVIDIA kernel module
// drives, in the order in which NVML counts them: 0000:c1:00.0. One that has
// fallen off the bus is still among them.
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
		return names, nil
	})
}

// DriverGPUUUID is the UUID of a GPU of [DriverGPUs], "" if the module
// does not know it.
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
			return gpuUUID(value)
		}
	}
	return ""
}

// gpuUUID is the value if it is a UUID: of a GPU that it has not talked to yet
// the module says GPU-????????-????-????-????-????????????.
func gpuUUID(value string) string {
	if value = probe.OneLine(strings.TrimSpace(value)); strings.HasPrefix(value, "GPU-") && !strings.Contains(value, "?") {
		return value
	}
	return ""
}

// GPUMemoryOnline reports whether the NVIDIA kernel module has given the memory of a
// GPU to the kernel as a NUMA node, as on GH200.
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
