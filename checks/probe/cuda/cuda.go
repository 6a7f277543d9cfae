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

// Driver is CUDA's driver API, libcuda.so.1, in this process. It is loaded once and never unloaded,
// since the process ends with the run. Every call can hang as long as the driver does, or end the
// process: use it only in the worker of the cuda lane.
type Driver struct {
	Version int    // the newest CUDA that the driver supports: 12040 is 12.4
	GPUs    []*GPU // by PCI address, in the order of CUDA_DEVICE_ORDER=PCI_BUS_ID

	lib *cudaLib
}

// GPU is a GPU in CUDA. Its PCI address identifies the same GPU in NVML.
type GPU struct {
	Ordinal      int    // CUDA's own index
	PCI          string // 0000:c1:00.0
	UUID         string // GPU-..., in MIG mode that of the instance; "" if unknown
	Major, Minor int    // compute capability: 9, 0
	SMs          int    // multiprocessors
	Memory       uint64 // bytes
	Err          error  // why the GPU cannot be used: fields above may be empty, PCI too

	lib    *cudaLib
	handle uintptr // CUdevice
	cpus   string  // the near CPUs, see Near
	above  string  // the bridges above it, see Above
	open   int     // contexts, guarded by lib.mu
}

// These are the attributes that this package reads: CUdevice_attribute of cuda.h.
const (
	attrMultiprocessors = 16
	attrMajor           = 75
	attrMinor           = 76
)

// Open loads the driver API and lists the GPUs. It calls doing before every call. It keeps the
// answer, even an error. The error is ErrNoLibrary if there is no libcuda, and an [Error] if the
// driver refused, for example CUDA_ERROR_NO_DEVICE.
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
			return nil, g.Err // an error of the library, not of the GPU
		}
		if g.PCI != "" {
			g.cpus, g.above = readCPUsBeside(h, g.PCI), strings.Join(pci.Path(h, g.PCI), " ")
		}
		c.GPUs = append(c.GPUs, g)
	}
	probe.Remember(h, probe.CUDAVersion, c.Version, nil)
	return c, nil
}

// Only restricts CUDA to the GPUs with these UUIDs. It is for nodes with some GPUs split by MIG:
// drivers before 570 show the others only on such a request. It must be called before CUDA is
// initialized.
func Only(h *probe.Host, uuids []string) { *probe.Kept[[]string](h, onlyCUDA) = uuids }

const onlyCUDA = "only cuda"

// NoMPS is the setting that hides any MPS daemon from a CUDA program: no user can create a daemon
// there.
const NoMPS = mpsPipes + "=" + noMPS

const (
	mpsPipes = "CUDA_MPS_PIPE_DIRECTORY"
	noMPS    = "/proc/none-for-nhc-gpu"
)

// cleanCUDAEnvironment removes all variables that hide GPUs, or change their order or mode. Then it
// selects the GPUs that CUDA lists (all if only is empty), and hides MPS, because its daemon would
// start a server for this process that stays on the GPUs.
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
	_ = os.Setenv("CUDA_CACHE_DISABLE", "1") // leave no compiled kernels in a home directory
}

// At returns the GPU with a PCI address, nil if CUDA does not list it.
func (c *Driver) At(pci string) *GPU {
	if i := slices.IndexFunc(c.GPUs, func(g *GPU) bool { return g.PCI == pci }); i >= 0 {
		return c.GPUs[i]
	}
	return nil
}

// identify reads the identity of a GPU. It reads the address first, so that an error has one.
func (l *cudaLib) identify(g *GPU) error {
	var handle int32
	if err := l.call("cuDeviceGet", g.Ordinal, uintptr(unsafe.Pointer(&handle)), uintptr(g.Ordinal)); err != nil {
		return err
	}
	g.handle = uintptr(handle)
	var bus [128]byte
	if err := l.call("cuDeviceGetPCIBusId", g.Ordinal, uintptr(unsafe.Pointer(&bus)), uintptr(len(bus)-1), g.handle); err != nil {
		return err
	}
	g.PCI = normalizeAddress(trimCString(bus[:]))
	if err := l.call("cuDeviceTotalMem_v2", g.Ordinal, uintptr(unsafe.Pointer(&g.Memory)), g.handle); err != nil {
		return err
	}
	g.UUID = l.readUUID(g)
	for _, a := range []struct {
		number int
		value  *int
	}{{attrMajor, &g.Major}, {attrMinor, &g.Minor}, {attrMultiprocessors, &g.SMs}} {
		var v int32
		if err := l.call("cuDeviceGetAttribute", g.Ordinal, uintptr(unsafe.Pointer(&v)), uintptr(a.number), g.handle); err != nil {
			return err
		}
		*a.value = int(v)
	}
	return nil
}

// readUUID returns the UUID of a GPU. Drivers before 11.4 have only the older of two calls.
func (l *cudaLib) readUUID(g *GPU) string {
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

// normalizeAddress converts CUDA's form of an address, 0000:C1:00.0 or with an eight-digit domain, to the
// kernel's form.
func normalizeAddress(s string) string {
	s = strings.ToLower(s)
	if domain, rest, ok := strings.Cut(s, ":"); ok && len(domain) > 4 {
		return strings.TrimLeft(domain[:len(domain)-4], "0") + domain[len(domain)-4:] + ":" + rest
	}
	return s
}

// trimCString returns the text of a buffer before its first zero byte.
func trimCString(b []byte) string {
	if i := slices.Index(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// readCPUsBeside returns the CPUs near to a GPU, "" if unknown.
func readCPUsBeside(h *probe.Host, bdf string) string {
	if bdf == "" {
		return ""
	}
	return pci.LocalCPUs(h, bdf)
}

// goNear moves the thread to the CPUs near to a GPU, so that the next allocation is near, too: the
// kernel allocates on the NUMA node of the thread. A thread that may not run there stays where it
// is.
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

// Near returns the CPUs near to the GPU: "0-55,112-167"; "" if unknown. GPUs with the same CPUs
// have their pinned memory on the same NUMA node.
func (g *GPU) Near() string { return g.cpus }

// Above returns the PCI bridges above the GPU, from the root port down; none if unknown.
func (g *GPU) Above() []string { return strings.Fields(g.above) }
