package cuda

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// cudaSymbols are the functions of the driver API that this package calls, by the names that the
// macros of cuda.h give them. If a driver lacks a function, the call fails, not the load.
var cudaSymbols = []string{
	"cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetPCIBusId",
	"cuDeviceGetUuid", "cuDeviceGetUuid_v2", "cuDeviceTotalMem_v2", "cuDeviceGetAttribute", "cuDeviceCanAccessPeer",
	"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2",
	"cuCtxSetCurrent", "cuCtxEnablePeerAccess", "cuCtxDisablePeerAccess", "cuMemGetInfo_v2", "cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostAlloc", "cuMemFreeHost",
	"cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyPeerAsync", "cuMemsetD32Async",
	"cuStreamCreate", "cuStreamQuery", "cuStreamWaitEvent", "cuEventCreate", "cuEventRecord", "cuEventElapsedTime",
	"cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel",
}

// cudaLib is the loaded library.
type cudaLib struct {
	symbols map[string]uintptr
	watch   *callWatch
	mu      sync.Mutex // guards contexts and threads
	threads map[int]*cudaThread
}

// loadCUDA loads the library and finds its functions.
func loadCUDA(name string, doing func(string)) (*cudaLib, error) {
	l := &cudaLib{symbols: map[string]uintptr{}, watch: &callWatch{}, threads: map[int]*cudaThread{}}
	l.watch.to(doing)
	done := l.watch.begin("load " + name)
	defer done()
	handle, err := probe.Dlopen(name)
	if err != nil {
		return nil, err
	}
	for _, s := range cudaSymbols {
		if address, err := probe.Dlsym(handle, s); err == nil {
			l.symbols[s] = address
		}
	}
	return l, nil
}

// has reports whether the library has a function.
func (l *cudaLib) has(symbol string) bool { return l.symbols[symbol] != 0 }

// call makes one call for the GPU with that number, -1 for none.
//
//go:uintptrescapes
func (l *cudaLib) call(symbol string, gpu int, args ...uintptr) error {
	code, err := l.result(symbol, gpu, args...)
	if err != nil || code == 0 {
		return err
	}
	return l.failure(symbol, gpu, code)
}

// result makes one call and returns its CUresult. The error means that the library lacks the
// function.
//
//go:uintptrescapes
func (l *cudaLib) result(symbol string, gpu int, args ...uintptr) (code int, err error) {
	address := l.symbols[symbol]
	if address == 0 {
		return 0, fmt.Errorf("%s: the driver's libcuda has no such function", nameCall(symbol, gpu))
	}
	done := l.watch.beginCall(symbol, gpu)
	r, _, _ := purego.SyscallN(address, args...)
	done()
	return int(int32(r)), nil
}

// failure returns the error of a call, with its name.
func (l *cudaLib) failure(symbol string, gpu, code int) error {
	name := cudaErrorNames[code]
	if address := l.symbols["cuGetErrorName"]; address != 0 {
		var text *byte
		if r, _, _ := purego.SyscallN(address, uintptr(code), uintptr(unsafe.Pointer(&text))); int32(r) == 0 && text != nil {
			name = probe.OneLine(readCText(text))
		}
	}
	return &Error{Call: nameCall(symbol, gpu), Code: code, Name: name}
}

// readCText returns the text at an address of C, at most 64 bytes.
func readCText(p *byte) string {
	var b []byte
	for i := range 64 {
		c := *(*byte)(unsafe.Add(unsafe.Pointer(p), i))
		if c == 0 {
			break
		}
		b = append(b, c)
	}
	return string(b)
}

// nameCall names a call as findings do: cuMemAlloc(3), without the suffix of its version.
func nameCall(symbol string, gpu int) string {
	symbol = strings.TrimSuffix(symbol, "_v2")
	if gpu < 0 {
		return symbol
	}
	return symbol + "(" + strconv.Itoa(gpu) + ")"
}

// callWatch knows the calls in progress. Several GPUs work at the same time, each from its own
// thread, but the process announces only one call: the one that started first. So a call that never
// returns is announced, whatever the other GPUs do.
type callWatch struct {
	mu       sync.Mutex
	doing    func(string)
	underway []*watched
}

type watched struct {
	symbol string
	gpu    int
}

func (c *watched) String() string { return nameCall(c.symbol, c.gpu) }

// to sets the function that announces the calls.
func (w *callWatch) to(doing func(string)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.doing = doing
}

// begin announces an action that is not a call of a GPU.
func (w *callWatch) begin(what string) (done func()) { return w.beginCall(what, -1) }

// beginNamed is begin for an action that changes its name later.
func (w *callWatch) beginNamed(what string) (rename func(what string), done func()) {
	c := &watched{what, -1}
	rename = func(what string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if c.symbol = what; len(w.underway) > 0 && w.underway[0] == c {
			w.announce()
		}
	}
	return rename, w.enter(c)
}

// beginCall announces a call, and returns the function to call after it.
func (w *callWatch) beginCall(symbol string, gpu int) (done func()) {
	return w.enter(&watched{symbol, gpu})
}

func (w *callWatch) enter(c *watched) (done func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.underway = append(w.underway, c)
	if len(w.underway) == 1 {
		w.announce()
	}
	return func() { w.end(c) }
}

func (w *callWatch) end(c *watched) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.Index(w.underway, c)
	w.underway = slices.Delete(w.underway, i, i+1)
	if i == 0 && len(w.underway) > 0 {
		w.announce()
	}
}

func (w *callWatch) announce() {
	if w.doing != nil {
		w.doing(w.underway[0].String())
	}
}
