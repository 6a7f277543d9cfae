package run

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

func TestHungDevice(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		lane  checks.Lane
		doing string
		want  checks.Device
	}{
		{checks.NVML, "nvmlDeviceGetTemperature(1) of gpu1 0000:40:00.0", checks.Device{Kind: "gpu", Name: "gpu1", PCI: "0000:40:00.0"}},
		{checks.NVML, "nvmlDeviceGetTemperature(1)", checks.Device{Kind: "gpu", Name: "gpu1"}},
		{checks.NVML, "nvmlDeviceGetP2PStatus(3, 4) of gpu3 0000:66:00.0", checks.Device{Kind: "gpu", Name: "gpu3", PCI: "0000:66:00.0"}},
		{checks.NVML, "nvmlInit", checks.Device{Kind: "library", Name: "NVML"}},
		{checks.NVML, "", checks.Device{Kind: "library", Name: "NVML"}},
		{checks.CUDA, "cuMemAlloc(3) of gpu4 0000:14:00.0", checks.Device{Kind: "gpu", Name: "gpu4", PCI: "0000:14:00.0"}},
		{checks.CUDA, "gpu3: bandwidth of its memory: wait for the GPU in cuStreamQuery(3) of gpu3 0000:13:00.0", checks.Device{Kind: "gpu", Name: "gpu3", PCI: "0000:13:00.0"}},
		{checks.CUDA, "cuDeviceGet(3)", checks.Device{Kind: "library", Name: "CUDA"}},
		{checks.CUDA, "open 8 GPUs: cuDevicePrimaryCtxRetain(0, 1)", checks.Device{Kind: "library", Name: "CUDA"}},
		{checks.CUDA, "call ncclCommInitAll for 8 GPUs", checks.Device{Kind: "library", Name: "CUDA"}},
		{checks.DCGM, "dcgmHealthCheck(1)", checks.Device{Kind: "library", Name: "DCGM"}},
		{checks.Local, "statfs /home/../home", checks.Device{Kind: "path", Name: "/home"}},
		{checks.Local, "run test -d /srv/x", checks.Device{Kind: "path", Name: "/srv/x"}},
		{checks.Local, "fsync in /scratch", checks.Device{Kind: "path", Name: "/scratch"}},
		{checks.Local, "run /usr/bin/nvidia-smi -q", checks.Device{}},
		{checks.Cmd, "run /opt/site/probe --all", checks.Device{Kind: "path", Name: "/opt/site/probe"}},
		{checks.Local, "read /sys/class/infiniband/mlx5_0/ports/1/counters", checks.Device{Kind: "port", Name: "mlx5_0:1"}},
		{checks.Local, "read /sys/class/infiniband", checks.Device{Kind: "path", Name: "/sys/class/infiniband"}},
		{checks.Local, "read /sys/class/infiniband/mlx5_0", checks.Device{Kind: "port", Name: "mlx5_0"}},
		{checks.Local, "read /sys/class/net/eth0", checks.Device{Kind: "netdev", Name: "eth0"}},
		{checks.Local, "read /sys/bus/pci/devices/0000:66:00.0/config", checks.Device{Kind: "pci", PCI: "0000:66:00.0"}},
		{checks.Local, "read /proc/driver/nvidia/gpus/0000:66:00.0/information", checks.Device{Kind: "gpu", PCI: "0000:66:00.0"}},
		{checks.Local, "read the kernel's log", checks.Device{}},
		{checks.Local, "", checks.Device{}},
	} {
		if got := HungDevice(tt.lane, tt.doing); got != tt.want {
			t.Errorf("HungDevice(%s, %q) = %+v, want %+v", tt.lane, tt.doing, got, tt.want)
		}
	}
	for device, want := range map[checks.Device]checks.Remedy{
		{Kind: "path", Name: "/scratch"}:           checks.NoRemedy,
		{Kind: "path", Name: "/proc/4711/cmdline"}: checks.NoRemedy,
		{}: checks.NoRemedy,
		{Kind: "path", Name: "/sys/class/infiniband"}: checks.RebootNode,
		{Kind: "path", Name: "/dev/nvme0"}:            checks.RebootNode,
		{Kind: "port", Name: "mlx5_0:1"}:              checks.RebootNode,
		{Kind: "gpu", PCI: "0000:66:00.0"}:            checks.RebootNode,
		{Kind: "library", Name: "NVML"}:               checks.RebootNode,
	} {
		if got := HungRemedy(device, "read the kernel's log"); got != want {
			t.Errorf("HungRemedy(%+v) = %q, want %q", device, got, want)
		}
	}
	for _, doing := range []string{"run /usr/bin/nvidia-smi -q", "run dmidecode -t 17", "read the PCI bus"} {
		if got := HungRemedy(HungDevice(checks.Local, doing), doing); got != checks.RebootNode {
			t.Errorf("HungRemedy of %q = %q", doing, got)
		}
	}
	call, gpu := splitHungCall("nvmlDeviceGetTemperature(1) of gpu1 0000:40:00.0")
	if call != "nvmlDeviceGetTemperature(1)" || gpu.PCI != "0000:40:00.0" {
		t.Errorf("splitHungCall: %q, %+v", call, gpu)
	}
	call, _ = splitHungCall("gpu3: bandwidth of its memory: cuLaunchKernel(3) of gpu3 0000:13:00.0")
	if call != "gpu3: bandwidth of its memory: cuLaunchKernel(3)" {
		t.Errorf("splitHungCall: %q", call)
	}
}
