package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakecuda"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// fakeHost returns a host with the fake library of a scenario.
func fakeHost(t *testing.T, scenario string, missing ...string) *probe.Host {
	t.Helper()
	need.Program(t, "gcc")
	lib, err := fakecuda.Place(t.TempDir(), scenario, missing...)
	if err != nil {
		t.Fatal(err)
	}
	h := probe.NewHost(t.TempDir())
	probe.SetLibraries(h, map[string]string{probe.SettingCUDA: lib})
	return h
}

// openFake opens the GPU with that number of eight.
func openFake(t *testing.T, i int, lines ...string) *Context {
	t.Helper()
	cuda, err := Open(fakeHost(t, fakecuda.Scenario(8, lines...)), nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cuda.GPUs[i].Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func must[T any](t *testing.T) func(v T, err error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCUDAListsGPUs(t *testing.T) {
	var calls []string
	cuda, err := Open(fakeHost(t, fakecuda.Scenario(8, "7 cuDeviceGetPCIBusId = 00000002:C1:00.0")), func(call string) { calls = append(calls, call) })
	if err != nil {
		t.Fatal(err)
	}
	want := GPU{Ordinal: 3, PCI: fakenvml.Address(3), UUID: fakenvml.UUID(3), Major: 9, SMs: 2, Memory: 32 << 20,
		lib: cuda.lib, handle: 3}
	if len(cuda.GPUs) != 8 || cuda.Version != 12080 || *cuda.GPUs[3] != want {
		t.Errorf("%d GPUs, version %d, %+v", len(cuda.GPUs), cuda.Version, *cuda.GPUs[3])
	}
	if cuda.At("0002:c1:00.0") != cuda.GPUs[7] || cuda.At("0000:c1:00.0") != nil {
		t.Error("a GPU is not found by its address")
	}
	if !slices.Contains(calls, "cuInit") || !slices.Contains(calls, "cuDeviceGetPCIBusId(7)") {
		t.Errorf("calls: %v", calls)
	}
}

// No variable of the original environment hides a GPU.
func TestCUDACleansItsEnvironment(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "3")
	t.Setenv("CUBLASLT_LOG_FILE", "/root/owned")
	t.Setenv("NVIDIA_TF32_OVERRIDE", "0")
	t.Setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
	t.Setenv("CUDAHOME", "/usr/local/cuda")
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
	cleanCUDAEnvironment(nil)
	for name, want := range map[string]string{"CUDA_VISIBLE_DEVICES": "", "CUBLASLT_LOG_FILE": "", "CUDA_MPS_PIPE_DIRECTORY": noMPS, "NVIDIA_TF32_OVERRIDE": "", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDAHOME": "/usr/local/cuda"} {
		if got := os.Getenv(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	cleanCUDAEnvironment([]string{"GPU-a", "GPU-b"})
	if got := os.Getenv("CUDA_VISIBLE_DEVICES"); got != "GPU-a,GPU-b" {
		t.Errorf("%q is visible", got)
	}
}

func TestCUDAErrors(t *testing.T) {
	for name, c := range map[string]struct {
		scenario string
		missing  []string
		want     string
	}{
		"no GPU":            {scenario: fakecuda.Scenario(0), want: "cuInit: CUDA_ERROR_NO_DEVICE (CUDA error 100)"},
		"fabric not ready":  {scenario: fakecuda.Scenario(8, "- cuInit error 802"), want: "cuInit: CUDA_ERROR_SYSTEM_NOT_READY (CUDA error 802)"},
		"name of a driver":  {scenario: fakecuda.Scenario(8, "- cuDriverGetVersion error 998"), want: "cuDriverGetVersion: CUDA_ERROR_OF_ANOTHER_TIME (CUDA error 998)"},
		"no name":           {scenario: fakecuda.Scenario(8, "- cuInit error 4711"), want: "cuInit: CUDA error 4711"},
		"too many":          {scenario: fakecuda.Scenario(8, "- cuDeviceGetCount = 1000"), want: "cuDeviceGetCount: 1000 GPUs, want at most 256"},
		"missing symbol":    {scenario: fakecuda.Scenario(8), missing: []string{"cuDeviceGetPCIBusId"}, want: "cuDeviceGetPCIBusId(0): the driver's libcuda has no such function"},
		"no names of error": {scenario: fakecuda.Scenario(8, "- cuInit error 999"), missing: []string{"cuGetErrorName"}, want: "cuInit: CUDA_ERROR_UNKNOWN (CUDA error 999)"},
	} {
		_, err := Open(fakeHost(t, c.scenario, c.missing...), nil)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	one, err := Open(fakeHost(t, fakecuda.Scenario(8, "3 cuDeviceTotalMem error 214")), nil)
	noError(t, err)
	if g := one.GPUs[3]; len(one.GPUs) != 8 || g.PCI != fakenvml.Address(3) || g.Err == nil || g.Err.Error() != "cuDeviceTotalMem(3): CUDA_ERROR_ECC_UNCORRECTABLE (CUDA error 214)" || one.GPUs[4].Err != nil {
		t.Errorf("of one GPU of eight: %+v", g)
	}
	old, err := Open(fakeHost(t, fakecuda.Scenario(1), fakecuda.Old...), nil)
	if err != nil || old.GPUs[0].UUID != fakenvml.UUID(0) {
		t.Errorf("of an old driver: %v, %v", old, err)
	}
}

func TestCUDAWithoutLibrary(t *testing.T) {
	h := probe.NewHost(t.TempDir())
	if _, err := Open(h, nil); !errors.Is(err, probe.ErrOtherNode) {
		t.Errorf("below another root: %v", err)
	}
	h = probe.NewHost(t.TempDir())
	probe.SetLibraries(h, map[string]string{probe.SettingCUDA: "/nonexistent/libcuda.so.1"})
	if _, err := Open(h, nil); !errors.Is(err, probe.ErrNoLibrary) {
		t.Errorf("no such file: %v", err)
	}
	lib := t.TempDir() + "/libcuda.so.1"
	noError(t, os.WriteFile(lib, []byte("no library\n"), 0o600))
	h = probe.NewHost(t.TempDir())
	probe.SetLibraries(h, map[string]string{probe.SettingCUDA: lib})
	if _, err := Open(h, nil); err == nil || errors.Is(err, probe.ErrNoLibrary) || !strings.HasPrefix(err.Error(), "load "+lib+": ") {
		t.Errorf("garbage: %v", err)
	}
}

func TestCUDAContextKeepsNothing(t *testing.T) {
	cuda, err := Open(fakeHost(t, fakecuda.Scenario(2)), nil)
	noError(t, err)
	var left [2]uint64
	for i := range left {
		c := must[*Context](t)(cuda.GPUs[1].Open())
		free, total, err := c.MemInfo()
		if left[i] = free; err != nil || total != 32<<20 {
			t.Fatalf("%d bytes, %v", total, err)
		}
		must[Memory](t)(c.Alloc(1 << 20))
		if now, _, _ := c.MemInfo(); now != free-1<<20 {
			t.Errorf("%d of %d bytes free after 1 MiB was taken", now, free)
		}
		_, err = c.Alloc(1 << 40)
		if e, ok := errors.AsType[*Error](err); !ok || e.Code != CUDAOutOfMemory || err.Error() != "allocate 1099511627776 bytes: cuMemAlloc(1): CUDA_ERROR_OUT_OF_MEMORY (CUDA error 2)" {
			t.Errorf("too much: %v", err)
		}
		noError(t, c.Close())
	}
	if left[0] != left[1] {
		t.Errorf("%d bytes are free at first, %d after Close", left[0], left[1])
	}
}

// A goroutine may have contexts of several GPUs; a call for one does not affect another.
func TestCUDACopies(t *testing.T) {
	cuda, err := Open(fakeHost(t, fakecuda.Scenario(8, "3 h2d = 21", "5 peer 3 = 100", "3 reach 6 = 0")), nil)
	noError(t, err)
	three, five, six := must[*Context](t)(cuda.GPUs[3].Open()), must[*Context](t)(cuda.GPUs[5].Open()), must[*Context](t)(cuda.GPUs[6].Open())
	defer func() { noError(t, errors.Join(three.Close(), five.Close(), six.Close())) }()
	const n = 1 << 20
	from, to := must[[]byte](t)(three.HostAlloc(n)), must[[]byte](t)(three.HostAlloc(n))
	for i := range from {
		from[i] = byte(i * 7)
	}
	a, b := must[Memory](t)(three.Alloc(n)), must[Memory](t)(five.Alloc(n))
	before, after := must[Event](t)(three.NewEvent()), must[Event](t)(three.NewEvent())
	s := must[Stream](t)(three.NewStream())
	took := func(work error) time.Duration {
		t.Helper()
		noError(t, errors.Join(work, three.Record(after, s), three.Sync(t.Context(), s)))
		d := must[time.Duration](t)(three.Elapsed(before, after))
		noError(t, three.Record(before, s))
		return d
	}
	noError(t, three.Record(before, s))
	if d := took(three.CopyToDevice(a, from, s)); d < 49400 || d > 50400 { // 1 MiB at 21 GB/s, ns
		t.Errorf("from the host: %v", d)
	}
	if can, err := three.CanReach(six); can || err != nil {
		t.Errorf("peer that is out of reach: %v, %v", can, err)
	}
	if err := three.EnablePeer(six); err == nil || !strings.Contains(err.Error(), "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED") {
		t.Errorf("peer that is out of reach: %v", err)
	}
	noError(t, errors.Join(three.EnablePeer(five), three.EnablePeer(five), five.EnablePeer(three)))
	noError(t, errors.Join(five.CopyFromPeer(three, b, a, n, 0), five.CopyToHost(to, b, 0), five.Sync(t.Context(), 0)))
	if d := took(three.CopyFromPeer(five, a, b, n, s)); d < 10400 || d > 10600 { // 1 MiB at 100 GB/s, ns
		t.Errorf("peer: %v", d)
	}
	if !slices.Equal(from, to) {
		t.Error("what came back is not what was sent")
	}
	noError(t, errors.Join(three.Fill32(a, 0xdeadbeef, n/4, s), three.CopyToHost(to, a, s), three.Sync(t.Context(), s)))
	if got := binary.LittleEndian.Uint32(to[n-4:]); got != 0xdeadbeef {
		t.Errorf("filled with %#x", got)
	}
	noError(t, errors.Join(three.HostFree(from), three.Free(a)))
}

// A kernel gets its arguments. Sync abandons work that never ends when its time is up.
func TestCUDAKernels(t *testing.T) {
	c := openFake(t, 2, "2 stuck = 0x8 3 1")
	m := must[*Module](t)(c.Module("memory"))
	if again, err := c.Module("memory"); again != m || err != nil {
		t.Errorf("loaded twice: %v", err)
	}
	const n = 1 << 16
	x, report := must[Memory](t)(c.Alloc(n)), must[Memory](t)(c.Alloc(512))
	host := must[[]byte](t)(c.HostAlloc(512))
	write, verify := must[*Kernel](t)(m.Kernel("pattern_write")), must[*Kernel](t)(m.Kernel("pattern_verify"))
	noError(t, errors.Join(c.Fill32(report, 0, 128, 0),
		c.Launch(write, Dim{X: 3}, Dim{X: 64}, 0, x, uint64(n/16), uint64(100), int32(0), uint32(0)),
		c.Launch(verify, Dim{X: 2}, Dim{X: 32}, 0, x, uint64(n/16), uint64(100), int32(0), uint32(0), report),
		c.CopyToHost(host, report, 0), c.Sync(t.Context(), 0)))
	word := binary.LittleEndian.Uint32
	if word(host) != 1 || word(host[8:]) != 1608 || word(host[16:]) != 0 || word(host[20:]) != 8 {
		t.Errorf("report: %v, want one wrong word at 1608, 0 that is 8", host[:32])
	}
	if err := c.Launch(write, Dim{}, Dim{}, 0, 17); err == nil || err.Error() != "launch pattern_write: argument 0 has an unsupported type" {
		t.Errorf("argument of a wrong type: %v", err)
	}
	if _, err := m.Kernel("nobody"); err == nil || !strings.Contains(err.Error(), "find kernel nobody of memory: cuModuleGetFunction(2): CUDA_ERROR_NOT_FOUND") {
		t.Errorf("no such kernel: %v", err)
	}
	if _, err := c.Module("nobody"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such module: %v", err)
	}
}

func TestCUDASyncEndsWithItsContext(t *testing.T) {
	c := openFake(t, 1, "1 cuStreamQuery error 600")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := c.Sync(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("work that never ends: %v", err)
	}
	c = openFake(t, 1, "1 cuStreamQuery error 719")
	if err := c.Sync(t.Context(), 0); err == nil || err.Error() != "cuStreamQuery(1): CUDA_ERROR_LAUNCH_FAILED (CUDA error 719)" {
		t.Errorf("work that failed: %v", err)
	}
}

func TestCUDAOfOldDrivers(t *testing.T) {
	c := openFake(t, 0, "- ptx = 50")
	if _, err := c.Module("memory"); err == nil || !strings.Contains(err.Error(), "CUDA_ERROR_UNSUPPORTED_PTX_VERSION (CUDA error 222)") {
		t.Errorf("driver that is too old for the PTX: %v", err)
	}
	c = openFake(t, 0, "0 attribute 75 = 6")
	if _, err := c.Module("memory"); err == nil || !strings.Contains(err.Error(), "CUDA_ERROR_NO_BINARY_FOR_GPU (CUDA error 209)") {
		t.Errorf("GPU that is too old for the PTX: %v", err)
	}
}

// The announced call is the one that started first.
func TestCallWatchNamesTheOldest(t *testing.T) {
	t.Parallel()
	var said []string
	w := &callWatch{}
	w.to(func(call string) { said = append(said, call) })
	hung := w.beginCall("cuLaunchKernel", 3)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { w.beginCall("cuStreamQuery", 4)() })
	}
	wg.Wait()
	if want := []string{"cuLaunchKernel(3)"}; !slices.Equal(said, want) {
		t.Errorf("said %v, want %v", said, want)
	}
	after := w.beginCall("cuMemAlloc_v2", 5)
	hung()
	after()
	if want := []string{"cuLaunchKernel(3)", "cuMemAlloc(5)"}; !slices.Equal(said, want) {
		t.Errorf("said %v, want %v", said, want)
	}
}

// After a call of NCCL no thread relies on its current context, because NCCL may change it.
func TestContextAfterNCCL(t *testing.T) {
	t.Parallel()
	h := fakeHost(t, fakecuda.Scenario(2))
	var mu sync.Mutex
	var calls []string
	cuda := must[*Driver](t)(Open(h, func(call string) {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, call)
	}))
	c := must[*Context](t)(cuda.GPUs[1].Open())
	defer func() { noError(t, c.Close()) }()
	sets := func() (n int) {
		mu.Lock()
		defer mu.Unlock()
		calls = nil
		mu.Unlock()
		_, _, err := c.MemInfo()
		mu.Lock()
		noError(t, err)
		for _, call := range calls {
			if call == "cuCtxSetCurrent(1)" {
				n++
			}
		}
		return n
	}
	_, _, err := c.MemInfo()
	noError(t, err)
	noError(t, (&NCCL{groupStart: func() int32 { return 0 }, groupEnd: func() int32 { return 0 }}).Group(func() error {
		return c.lib.call("cuCtxSetCurrent", 0, 0) // as NCCL would
	}))
	if n := sets(); n != 1 {
		t.Errorf("the context was set %d times after NCCL, want once", n)
	}
}

// GPUs without persistence mode open slowly, so they are opened in parallel; a call that hangs is
// announced.
func TestWakeOpensSideBySide(t *testing.T) {
	t.Parallel()
	h := fakeHost(t, fakecuda.Scenario(8, "* cuDevicePrimaryCtxRetain late 400"))
	var mu sync.Mutex
	var first string
	cuda := must[*Driver](t)(Open(h, func(call string) {
		mu.Lock()
		defer mu.Unlock()
		if first == "" && strings.HasPrefix(call, "cuDevicePrimaryCtxRetain") {
			first = call
		}
	}))
	began := time.Now()
	done := cuda.Wake(cuda.GPUs)
	if took := time.Since(began); took > 8*400*time.Millisecond {
		t.Errorf("%v for eight GPUs of 400ms each", took)
	}
	if first != "cuDevicePrimaryCtxRetain(0, 1, 2, 3, 4, 5, 6, 7)" {
		t.Errorf("named %s", first)
	}
	done()
	cuda.Wake(nil)()
}
