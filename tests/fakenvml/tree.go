package fakenvml

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Files returns the files of a node with that number of GPUs, in addition to NVML's values: the PCI
// bus, the driver's own files, device nodes (regular files), modules.
func Files(model Model, gpus int) map[string]string {
	device, subsystem, _ := strings.Cut(deviceIDs[model], " ")
	f := map[string]string{
		"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  " + Driver + "  Tue Mar 11 03:00:00 UTC 2025\nGCC version:\n",
		"proc/modules":               "nvidia_uvm 1 0 - Live 0x0\nnvidia 1 1 nvidia_uvm, Live 0x0\n",
		"dev/nvidiactl":              "",
	}
	for i := range gpus {
		dir := "sys/bus/pci/devices/" + Address(i) + "/"
		f[dir+"vendor"], f[dir+"class"] = "0x10de\n", "0x030200\n"
		f[dir+"device"], f[dir+"subsystem_device"], f[dir+"subsystem_vendor"] = device[:6]+"\n", subsystem[:6]+"\n", "0x"+subsystem[6:]+"\n"
		f[dir+"current_link_width"], f[dir+"max_link_width"] = "16\n", "16\n"
		f[dir+"current_link_speed"], f[dir+"max_link_speed"] = "32.0 GT/s PCIe\n", "32.0 GT/s PCIe\n"
		f[dir+"aer_dev_correctable"] = "RxErr 0\nBadTLP 0\nBadDLLP 0\nTOTAL_ERR_COR 0\n"
		f[dir+"aer_dev_nonfatal"], f[dir+"aer_dev_fatal"] = "TOTAL_ERR_NONFATAL 0\n", "TOTAL_ERR_FATAL 0\n"
		f["proc/driver/nvidia/gpus/"+Address(i)+"/information"] = fmt.Sprintf("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 100\nGPU UUID: \t %s\n"+
			"Video BIOS: \t 96.00.30.00.01\nBus Type: \t PCIe\nDMA Size: \t 52 bits\nBus Location: \t %s\nDevice Minor: \t %d\nGPU Firmware: \t %s\nGPU Excluded:\t No\n",
			UUID(i), Address(i), i, Driver)
		f[fmt.Sprintf("dev/nvidia%d", i)] = ""
	}
	return f
}

// Driver is the version of the driver in every scenario.
const Driver = "570.124.06"

// Write creates files below root, except those with the content "-".
func Write(root string, files map[string]string) error {
	for name, content := range files {
		if content == "-" {
			continue
		}
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}
