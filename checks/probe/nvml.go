package probe

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ErrNoLibrary says that a vendor's library is not installed on this node.
var ErrNoLibrary = errors.New("not found")

// GPU is what NVML tells of one GPU. Empty strings are what the driver did not
// tell.
type GPU struct {
	Index  int    // NVML's own, by PCI address; not the minor number of /dev/nvidiaN
	Name   string // "NVIDIA H200"
	PCI    string // 0000:c1:00.0
	UUID   string // GPU-...
	Serial string // as printed on the board
	Err    error  // why the GPU could not be asked; the others are not concerned
}

// GPUs asks NVML for its GPUs and the version of the driver. It may hang as
// long as the driver does, or end the process: call it only in the worker of
// the nvml lane.
func (h *Host) GPUs() (driver string, gpus []GPU, err error) {
	if ret := nvml.Init(); ret == nvml.ERROR_LIBRARY_NOT_FOUND {
		return "", nil, fmt.Errorf("load libnvidia-ml.so.1: %w", ErrNoLibrary)
	} else if ret != nvml.SUCCESS {
		return "", nil, nvmlError("nvmlInit", ret)
	}
	defer func() { _ = nvml.Shutdown() }()
	driver, ret := nvml.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		return "", nil, nvmlError("nvmlSystemGetDriverVersion", ret)
	}
	n, ret := nvml.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return driver, nil, nvmlError("nvmlDeviceGetCount", ret)
	}
	for i := range n {
		gpus = append(gpus, askGPU(i))
	}
	return driver, gpus, nil
}

func askGPU(i int) GPU {
	g := GPU{Index: i}
	d, ret := nvml.DeviceGetHandleByIndex(i)
	if ret != nvml.SUCCESS {
		g.Err = nvmlError(fmt.Sprintf("nvmlDeviceGetHandleByIndex(%d)", i), ret)
		return g
	}
	if name, ret := d.GetName(); ret == nvml.SUCCESS {
		g.Name = name
	}
	if pci, ret := d.GetPciInfo(); ret == nvml.SUCCESS {
		g.PCI = fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
	}
	if uuid, ret := d.GetUUID(); ret == nvml.SUCCESS {
		g.UUID = uuid
	}
	if serial, ret := d.GetSerial(); ret == nvml.SUCCESS {
		g.Serial = serial
	}
	return g
}

// nvmlError names the call and the error, both without asking the library,
// which may not be there to be asked.
func nvmlError(call string, ret nvml.Return) error {
	names := map[nvml.Return]string{
		nvml.ERROR_DRIVER_NOT_LOADED:       "the driver is not loaded",
		nvml.ERROR_NO_PERMISSION:           "no permission",
		nvml.ERROR_GPU_IS_LOST:             "a GPU is lost",
		nvml.ERROR_RESET_REQUIRED:          "a GPU requires a reset",
		nvml.ERROR_LIB_RM_VERSION_MISMATCH: "library and driver are of different versions",
		nvml.ERROR_TIMEOUT:                 "timeout",
	}
	if name, ok := names[ret]; ok {
		return fmt.Errorf("%s: %s (NVML error %d)", call, name, int(ret))
	}
	return fmt.Errorf("%s: NVML error %d", call, int(ret))
}
