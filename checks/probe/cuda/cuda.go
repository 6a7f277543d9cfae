// Package cuda binds the CUDA driver, cuBLASLt and NCCL without linking them.
package cuda

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// Driver is the driver API of CUDA, libcuda.so.1, in this process: loaded once, never
// unloaded, since the process ends with the run. Every call of it may hang as long as
// the driver does, or end the process: it belongs in the worker of the cuda lane.
type Driver struct {
	Version int    // the newest CUDA that the driver knows: 12040 is 12.4
	GPUs    []*GPU // by PCI address, as the driver counts them with CUDA_DEVICE_ORDER=PCI_BUS_ID

	lib *cudaLib
}

// GPU is a GPU as CUDA knows it. Its PCI address tells which one of NVML it is.
type GPU struct {
	Ordinal      int    // CUDA's own number of it
	PCI          string // 0000:c1:00.0
	UUID         string // GPU-..., in MIG mode that of the instance; "" if the driver cannot tell
	Name         string // NVIDIA H200
	Major, Minor int    // compute capability: 9, 0
	SMs          int    // multiprocessors
	Memory       uint64 // bytes
	ComputeMode  int    // see ComputeModeDefault
	SharedMemory int    // bytes of shared memory that one block can have
	MemoryClock  int    // kHz; 0: the driver does not tell
	BusWidth     int    // bits of the memory's bus; 0: the driver does not tell
	Err          error  // why the GPU cannot be used: what is above may be missing, PCI too

	lib    *cudaLib
	handle uintptr // CUdevice
	cpus   string  // those that are near to it, see Near
	above  string  // the bridges above it, see Above
	open   int     // contexts, guarded by lib.mu
}

// The compute modes: CUcomputemode of cuda.h.
const (
	ComputeModeDefault    = 0
	ComputeModeProhibited = 2
	ComputeModeExclusive  = 3 // one process at a time
)

// The attributes that are asked for: CUdevice_attribute of cuda.h.
const (
	attrMultiprocessors = 16
	attrComputeMode     = 20
	attrMemoryClock     = 36
	attrBusWidth        = 37
	attrMajor           = 75
	attrMinor           = 76
	attrSharedOptIn     = 97
)

// Open loads the driver API and lists the GPUs. doing hears of every call before it is
// made. The answer, an error too, is kept. The error is ErrNoLibrary where there is no
// libcuda, a [Error] where the driver has refused, as CUDA_ERROR_NO_DEVICE.
func Open(h *probe.Host, doing func(call string)) (*Driver, error) {
	c, err := probe.Once(h, "cuda", func() (*Driver, error) { return openCUDA(h, doing) })
	if c != nil {
		c.lib.watch.to(doing)
	}
	return c, err
}

func openCUDA(h *probe.Host, doing func(string)) (*Driver, error) {
	cleanCUDAEnvironment(*probe.Kept[[]string](h, onlyCUDA))
	lib, err := probe.LoadLibrary(h, &probe.LibCUDA, 0, func(path string) (*cudaLib, error) { return loadCUDA(path, doing) })
	if err != nil {
		return nil, err
	}
	if err := lib.call("cuInit", -1, 0); err != nil {
		return nil, err
	}
	c := &Driver{lib: lib}
	var version int32
	if err := lib.call("cuDriverGetVersion", -1, uintptr(unsafe.Pointer(&version))); err != nil {
		return nil, err
	}
	c.Version = int(version)
	var count int32
	if err := lib.call("cuDeviceGetCount", -1, uintptr(unsafe.Pointer(&count))); err != nil {
		return nil, err
	}
	if count < 0 || count > nvidia.MaxGPUs {
		return nil, fmt.Errorf("cuDeviceGetCount: %d GPUs, want at most %d", count, nvidia.MaxGPUs)
	}
	for i := range int(count) {
		g := &GPU{Ordinal: i, lib: lib}
		g.Err = lib.identify(g)
		if _, ok := errors.AsType[*Error](g.Err); g.Err != nil && !ok {
			return nil, g.Err // it is the library's
		}
		if g.PCI != "" {
			g.cpus, g.above = cpusBeside(h, g.PCI), strings.Join(pci.Path(h, g.PCI), " ")
		}
		c.GPUs = append(c.GPUs, g)
	}
	probe.Remember(h, probe.CUDAVersion, c.Version, nil)
	return c, nil
}

// Only has CUDA list these GPUs and no others, by their UUIDs. It is for nodes where
// MIG splits some GPUs up: drivers before 570 show the others only to who asks for them
// so. It counts for a CUDA that has not been asked yet.
func Only(h *probe.Host, uuids []string) { *probe.Kept[[]string](h, onlyCUDA) = uuids }

const onlyCUDA = "only cuda"

// NoMPS is the setting by which a program of CUDA finds no daemon of MPS: nobody can
// make one listen there.
const NoMPS = mpsPipes + "=" + noMPS

const (
	mpsPipes = "CUDA_MPS_PIPE_DIRECTORY"
	noMPS    = "/proc/none-for-nhc-gpu"
)

// cleanCUDAEnvironment takes away what hides GPUs, changes their order or the way they
// work, whoever has set it, and then says how CUDA is to behave here: which GPUs it
// lists, all for none, and that it is no client of MPS, whose daemon would start a
// server for it that stays on the GPUs.
func cleanCUDAEnvironment(only []string) {
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if strings.HasPrefix(name, "CUDA_") || strings.HasPrefix(name, "NVIDIA_") || strings.HasPrefix(name, "CUBLAS") { // and CUBLASLT_LOG_FILE, which would be written as root
			_ = os.Unsetenv(name)
		}
	}
	_ = os.Setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
	_ = os.Setenv(mpsPipes, noMPS)
	if len(only) > 0 {
		_ = os.Setenv("CUDA_VISIBLE_DEVICES", strings.Join(only, ","))
	}
	_ = os.Setenv("CUDA_CACHE_DISABLE", "1") // no compiled kernels are left in a home directory
}

// At is the GPU with a PCI address, nil if CUDA does not see it.
func (c *Driver) At(pci string) *GPU {
	if i := slices.IndexFunc(c.GPUs, func(g *GPU) bool { return g.PCI == pci }); i >= 0 {
		return c.GPUs[i]
	}
	return nil
}

// identify asks who a GPU is, first for its address, to which an error belongs.
func (l *cudaLib) identify(g *GPU) error {
	var handle int32
	if err := l.call("cuDeviceGet", g.Ordinal, uintptr(unsafe.Pointer(&handle)), uintptr(g.Ordinal)); err != nil {
		return err
	}
	g.handle = uintptr(handle)
	var name, bus [128]byte
	if err := l.call("cuDeviceGetPCIBusId", g.Ordinal, uintptr(unsafe.Pointer(&bus)), uintptr(len(bus)-1), g.handle); err != nil {
		return err
	}
	g.PCI = pciAddress(cString(bus[:]))
	if err := l.call("cuDeviceGetName", g.Ordinal, uintptr(unsafe.Pointer(&name)), uintptr(len(name)-1), g.handle); err != nil {
		return err
	}
	g.Name = probe.OneLine(cString(name[:]))
	if err := l.call("cuDeviceTotalMem_v2", g.Ordinal, uintptr(unsafe.Pointer(&g.Memory)), g.handle); err != nil {
		return err
	}
	g.UUID = l.uuid(g)
	for _, a := range []struct {
		number int
		value  *int
		needed bool
	}{
		{attrMajor, &g.Major, true}, {attrMinor, &g.Minor, true}, {attrMultiprocessors, &g.SMs, true}, {attrComputeMode, &g.ComputeMode, true},
		{attrSharedOptIn, &g.SharedMemory, false}, {attrMemoryClock, &g.MemoryClock, false}, {attrBusWidth, &g.BusWidth, false},
	} {
		var v int32
		if err := l.call("cuDeviceGetAttribute", g.Ordinal, uintptr(unsafe.Pointer(&v)), uintptr(a.number), g.handle); err != nil && a.needed {
			return err
		}
		*a.value = int(v)
	}
	return nil
}

// uuid is the UUID of a GPU; drivers before 11.4 have the older of two calls only.
func (l *cudaLib) uuid(g *GPU) string {
	call := "cuDeviceGetUuid_v2"
	if !l.has(call) {
		call = "cuDeviceGetUuid"
	}
	var u [16]byte
	if err := l.call(call, g.Ordinal, uintptr(unsafe.Pointer(&u)), g.handle); err != nil {
		return ""
	}
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// pciAddress is an address as the kernel writes it, of one that CUDA has written:
// 0000:C1:00.0, or with eight digits of the domain.
func pciAddress(s string) string {
	s = strings.ToLower(s)
	if domain, rest, ok := strings.Cut(s, ":"); ok && len(domain) > 4 {
		return strings.TrimLeft(domain[:len(domain)-4], "0") + domain[len(domain)-4:] + ":" + rest
	}
	return s
}

// cString is the text of a buffer before its first zero byte.
func cString(b []byte) string {
	if i := slices.Index(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// cpusBeside are the CPUs that are near to a GPU, "" if the kernel does not tell.
func cpusBeside(h *probe.Host, bdf string) string {
	if bdf == "" {
		return ""
	}
	return pci.LocalCPUs(h, bdf)
}

// goNear moves the thread to the CPUs that are near to a GPU, so that what is allocated
// next is there: the kernel takes memory of the node that the thread runs on. A thread
// that may not run there stays where it is.
func (g *GPU) goNear() (restore func()) {
	stay := func() {}
	ids, ok := pci.ParseNodeList(g.cpus)
	if !ok || len(ids) == 0 {
		return stay
	}
	var before, near unix.CPUSet
	if unix.SchedGetaffinity(0, &before) != nil {
		return stay
	}
	for _, id := range ids {
		near.Set(id)
	}
	if near.Count() == 0 || unix.SchedSetaffinity(0, &near) != nil {
		return stay
	}
	return func() { _ = unix.SchedSetaffinity(0, &before) }
}

// Near are the CPUs that are near to the GPU: "0-55,112-167"; "" if the kernel does not
// tell. GPUs with the same have their pinned memory on the same NUMA node.
func (g *GPU) Near() string { return g.cpus }

// Above are the bridges of the PCI bus above the GPU, from the root port down; none if
// the kernel does not tell.
func (g *GPU) Above() []string { return strings.Fields(g.above) }
