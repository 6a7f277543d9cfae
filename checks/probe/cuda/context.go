package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Context is the primary context of a GPU, which NCCL and cuBLAS use, too. It belongs to the
// goroutine that opened it. That goroutine is bound to its thread until it closes the context; no
// other goroutine may use the context. One goroutine may have contexts of several GPUs.
//
// A driver that does not answer blocks the thread forever. The doing function of [Open] gets the
// names of the calls in progress.
type Context struct {
	GPU *GPU

	lib     *cudaLib
	handle  uintptr // CUcontext
	thread  *cudaThread
	modules map[string]*Module
	launch  *launchArguments
}

// cudaThread knows the current context of a thread.
type cudaThread struct {
	id      int
	current *Context
	since   uint64 // value of foreignCalls at that time
	open    int    // contexts, guarded by cudaLib.mu
}

// foreignCalls counts the calls of libraries that change the current context of a thread, such as
// NCCL. They should restore it, but this package does not rely on that.
var foreignCalls atomic.Uint64

// isCurrent reports whether the context is certainly the current one of its thread.
func (c *Context) isCurrent() bool {
	return c.thread.current == c && c.thread.since == foreignCalls.Load()
}

// Memory is an address in a GPU's memory. Callers may add bytes to it.
type Memory uint64

// Open creates or shares the GPU's primary context, and binds the goroutine to its thread. The same
// goroutine must call Close.
func (g *GPU) Open() (*Context, error) {
	runtime.LockOSThread()
	c := &Context{GPU: g, lib: g.lib, modules: map[string]*Module{}, launch: new(launchArguments)}
	if err := c.lib.call("cuDevicePrimaryCtxRetain", g.Ordinal, uintptr(unsafe.Pointer(&c.handle)), g.handle); err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	c.lib.enter(c)
	if err := c.Use(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Wake creates the primary contexts of GPUs in parallel, each from its own thread, and keeps them
// until done is called. It ignores errors, since they recur when the GPUs are opened.
func (c *Driver) Wake(gpus []*GPU) (done func()) {
	const symbol = "cuDevicePrimaryCtxRetain"
	var waiting []string // the GPUs whose call is in progress: one of them hangs or crashes
	for _, g := range gpus {
		waiting = append(waiting, strconv.Itoa(g.Ordinal))
	}
	text := func() string { return symbol + "(" + strings.Join(waiting, ", ") + ")" }
	rename, ended := c.lib.watch.beginNamed(text())
	defer ended()
	var all sync.WaitGroup
	have, back := make([]bool, len(gpus)), make(chan int, len(gpus))
	for i, g := range gpus {
		all.Go(func() {
			var context uintptr
			have[i] = c.lib.call(symbol, g.Ordinal, uintptr(unsafe.Pointer(&context)), g.handle) == nil
			back <- g.Ordinal
		})
	}
	for len(waiting) > 0 {
		one := strconv.Itoa(<-back)
		waiting = slices.DeleteFunc(waiting, func(n string) bool { return n == one })
		rename(text())
	}
	all.Wait()
	return func() {
		for i, g := range gpus {
			if have[i] {
				_ = c.lib.call(c.lib.form("cuDevicePrimaryCtxRelease"), g.Ordinal, g.handle) // one of several references
			}
		}
	}
}

// enter counts a context of this thread.
func (l *cudaLib) enter(c *Context) {
	id := unix.Gettid()
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.thread = l.threads[id]; c.thread == nil {
		c.thread = &cudaThread{id: id}
		l.threads[id] = c.thread
	}
	c.thread.open++
	c.GPU.open++
}

// leave reports whether a context was the last one of its GPU.
func (l *cudaLib) leave(c *Context) (last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.thread.open--
	if c.thread.current = nil; c.thread.open == 0 {
		delete(l.threads, c.thread.id)
	}
	c.GPU.open--
	return c.GPU.open == 0
}

// Close releases the context. Closing the last one of a GPU ends all work on the GPU and frees all
// its memory, including that of NCCL and cuBLAS: close them first.
func (c *Context) Close() error {
	defer runtime.UnlockOSThread()
	last := c.lib.leave(c)
	_ = c.lib.call("cuCtxSetCurrent", c.GPU.Ordinal, 0) // an error of the context's work recurs below
	err := c.lib.call(c.lib.form("cuDevicePrimaryCtxRelease"), c.GPU.Ordinal, c.GPU.handle)
	if !last {
		return err
	}
	return errors.Join(err, c.lib.call(c.lib.form("cuDevicePrimaryCtxReset"), c.GPU.Ordinal, c.GPU.handle))
}

// form returns the second form of a call, which drivers before 11.0 do not have.
func (l *cudaLib) form(symbol string) string {
	if l.has(symbol + "_v2") {
		return symbol + "_v2"
	}
	return symbol
}

// Use makes the context the current one of its thread. Each method of this type does that itself;
// only direct calls of a library, such as NCCL, need it.
func (c *Context) Use() error {
	c.thread.current = nil
	since := foreignCalls.Load()
	if err := c.lib.call("cuCtxSetCurrent", c.GPU.Ordinal, c.handle); err != nil {
		return err
	}
	c.thread.current, c.thread.since = c, since
	return nil
}

// call makes one call in this context.
//
//go:uintptrescapes
func (c *Context) call(symbol string, args ...uintptr) error {
	if !c.isCurrent() {
		if err := c.Use(); err != nil {
			return err
		}
	}
	return c.lib.call(symbol, c.GPU.Ordinal, args...)
}

// Handle returns the CUcontext, for libraries that need it.
func (c *Context) Handle() uintptr { return c.handle }

// MemInfo returns the free and the total bytes of the GPU's memory. It rejects a driver's answer
// with more free memory than the GPU has.
func (c *Context) MemInfo() (free, total uint64, err error) {
	err = c.call("cuMemGetInfo_v2", uintptr(unsafe.Pointer(&free)), uintptr(unsafe.Pointer(&total)))
	if c.GPU.Memory > 0 {
		total = min(total, c.GPU.Memory)
	}
	return min(free, total), total, err
}

// errNothing is the error of a call that reports success but returns no data.
func (c *Context) errNothing(symbol string) error {
	return fmt.Errorf("%s: reported success, but returned no data", nameCall(symbol, c.GPU.Ordinal))
}

// Alloc allocates n bytes of the GPU's memory. If there is too little, the error is an [Error] with
// the code CUDAOutOfMemory.
func (c *Context) Alloc(n uint64) (Memory, error) {
	var m Memory
	if err := c.call("cuMemAlloc_v2", uintptr(unsafe.Pointer(&m)), uintptr(n)); err != nil {
		return 0, fmt.Errorf("allocate %d bytes: %w", n, err)
	}
	if m == 0 {
		return 0, c.errNothing("cuMemAlloc")
	}
	return m, nil
}

// Free frees memory of Alloc.
func (c *Context) Free(m Memory) error { return c.call("cuMemFree_v2", uintptr(m)) }

// HostAlloc allocates n bytes of pinned memory of the node, which the GPU reads and writes itself,
// on the NUMA node nearest to the GPU if the kernel shows it.
func (c *Context) HostAlloc(n uint64) ([]byte, error) {
	var p unsafe.Pointer
	restore := c.GPU.goNear()
	err := c.call("cuMemHostAlloc", uintptr(unsafe.Pointer(&p)), uintptr(n), hostPortable)
	restore()
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes of pinned memory: %w", n, err)
	}
	if p == nil {
		return nil, c.errNothing("cuMemHostAlloc")
	}
	return unsafe.Slice((*byte)(p), n), nil
}

// hostPortable is CU_MEMHOSTALLOC_PORTABLE: pinned for the contexts of all GPUs.
const hostPortable = 1

// HostFree frees memory of HostAlloc.
func (c *Context) HostFree(b []byte) error {
	if cap(b) == 0 {
		return nil
	}
	return c.call("cuMemFreeHost", address(b))
}

// address returns the address of memory of HostAlloc. It does not keep a Go slice alive.
func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// CanReach reports whether this GPU can read and write the memory of another directly, by NVLink or
// PCIe.
func (c *Context) CanReach(other *Context) (bool, error) {
	var can int32
	err := c.call("cuDeviceCanAccessPeer", uintptr(unsafe.Pointer(&can)), c.GPU.handle, other.GPU.handle)
	return can != 0, err
}

// EnablePeer allows this GPU to read and write the memory of another. It is not an error if that is
// already allowed.
func (c *Context) EnablePeer(other *Context) error {
	err := c.call("cuCtxEnablePeerAccess", other.handle, 0)
	if e, ok := errors.AsType[*Error](err); ok && e.Code == cudaAlreadyEnabled {
		return nil
	}
	return err
}

// DisablePeer reverts EnablePeer: without NVSwitches a GPU has at most eight peers at a time.
func (c *Context) DisablePeer(other *Context) error {
	return c.call("cuCtxDisablePeerAccess", other.handle)
}
