package run

import (
	"fmt"
	"path"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

var (
	// "nvmlDeviceGetTemperature(1) of gpu1 0000:40:00.0"
	gpuCall = checks.Lazily(`^(\S+\((\d+)[^)]*\))(?: of (gpu\d+) (\S+))?$`)
	// "gpu3: bandwidth of its memory: cuLaunchKernel(3) of gpu3 0000:13:00.0"; the number in
	// brackets is CUDA's own index, which does not identify the GPU
	cudaCall = checks.Lazily(`^(.*\bcu\w+\([\d, ]+\))(?: of (gpu\d+) (\S+))?$`)
	// "stat /home", "read /proc/mounts", "write to /scratch"
	pathCall = checks.Lazily(`^[a-z]+(?: [a-z]+)?(?: -\w)? (/\S*)`)

	ibPath  = checks.Lazily(`^/sys/class/infiniband/([^/]+)(?:/ports/(\d+))?`)
	netPath = checks.Lazily(`^/sys/class/net/([^/]+)`)
	pciPath = checks.Lazily(`^(/sys/bus/pci/devices|/proc/driver/nvidia/gpus)/([0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])`)
)

// splitHungCall splits the call that a worker announced into the call and its GPU.
func splitHungCall(doing string) (call string, gpu checks.Device) {
	if m := cudaCall().FindStringSubmatch(doing); m != nil {
		if m[2] != "" {
			gpu = checks.Device{Kind: "gpu", Name: m[2], PCI: m[3]}
		}
		return m[1], gpu
	}
	m := gpuCall().FindStringSubmatch(doing)
	if m == nil {
		return doing, checks.Device{}
	}
	gpu = checks.Device{Kind: "gpu", Name: "gpu" + m[2]}
	if m[3] != "" {
		gpu.Name, gpu.PCI = m[3], m[4]
	}
	return m[1], gpu
}

// libraries has the library of each lane, for a blocked call that is not about one device.
var libraries = map[checks.Lane]string{checks.NVML: "NVML", checks.DCGM: "DCGM", checks.CUDA: "CUDA"}

// HungDevice returns the device of a blocked call: a GPU, port, interface, path or library.
func HungDevice(lane checks.Lane, doing string) checks.Device {
	if lane.Vendor() {
		if _, gpu := splitHungCall(doing); gpu.Name != "" && lane != checks.DCGM {
			return gpu
		}
		return checks.Device{Kind: "library", Name: libraries[lane]}
	}
	m := pathCall().FindStringSubmatch(doing)
	if m == nil || strings.HasPrefix(doing, "run ") && hardwareCall().MatchString(doing) {
		return checks.Device{} // the program waits for the hardware, not for its own file
	}
	p := path.Clean(m[1])
	if m := ibPath().FindStringSubmatch(p); m != nil {
		return checks.Device{Kind: "port", Name: strings.TrimSuffix(m[1]+":"+m[2], ":")}
	}
	if m := netPath().FindStringSubmatch(p); m != nil {
		return checks.Device{Kind: "netdev", Name: m[1]}
	}
	if m := pciPath().FindStringSubmatch(p); m != nil {
		kind := "pci"
		if strings.HasPrefix(m[1], "/proc") {
			kind = "gpu"
		}
		return checks.Device{Kind: kind, PCI: m[2]}
	}
	return checks.Device{Kind: "path", Name: p}
}

// These match files of drivers, and calls of hardware that name no file.
var (
	driverPath   = checks.Lazily(`^/(sys|dev|proc/driver)/`)
	hardwareCall = checks.Lazily(`\b(nvidia-smi|dmidecode|NVML|PCI bus|NVSwitches)\b`)
)

// HungRemedy returns the remedy of a call that blocks in a device, none if it names no device. A reboot can help hardware, its driver and a
// library. A mount needs its file server: nodes that have mounted a dead one reboot in vain.
func HungRemedy(d checks.Device, doing string) checks.Remedy {
	if d == (checks.Device{}) && !hardwareCall().MatchString(doing) || d.Kind == "path" && !driverPath().MatchString(d.Name) {
		return checks.NoRemedy
	}
	return checks.RebootNode
}

// Describe describes where a process hangs. The text is the same in every run, so a reason made
// from it does not change while the hang lasts.
func Describe(h *checks.Hung) string {
	var parts []string
	if call, _ := splitHungCall(h.Doing); call != "" {
		parts = append(parts, "in "+call)
	}
	who := fmt.Sprintf("process %d", h.PID)
	if h.State != "" {
		who += " in state " + h.State
	}
	if h.Wchan != "" {
		who += ", wait channel " + h.Wchan
	}
	if h.Stuck {
		who += "; no signal can end it"
	}
	return strings.Join(append(parts, who), ": ")
}
