package cuda

import (
	"embed"
	"fmt"
	"math"
	"unsafe"
)

// kernels are programs for GPUs, which the driver compiles for its GPU; the sources are in the same
// directory.
//
//go:embed kernels/*.ptx
var kernels embed.FS

// Module is a file of kernels, loaded into a context.
type Module struct {
	c       *Context
	name    string
	handle  uintptr
	kernels map[string]*Kernel
}

// Kernel is a program that runs on a GPU.
type Kernel struct {
	c      *Context
	name   string
	handle uintptr
}

// Dim is the size of a grid or of a block of threads. 0 counts as 1.
type Dim struct{ X, Y, Z int }

// launchArguments are the arguments of a launch, in memory that does not move.
type launchArguments struct {
	values   [16]uint64
	pointers [16]unsafe.Pointer
}

// Module loads kernels/NAME.ptx, once for each context. The driver takes some tens of milliseconds
// to compile it.
func (c *Context) Module(name string) (*Module, error) {
	if m := c.modules[name]; m != nil {
		return m, nil
	}
	text, err := kernels.ReadFile("kernels/" + name + ".ptx")
	if err != nil {
		return nil, fmt.Errorf("load the kernels of %s: %w", name, err)
	}
	text = append(text, 0)
	m := &Module{c: c, name: name, kernels: map[string]*Kernel{}}
	if err := c.call("cuModuleLoadData", uintptr(unsafe.Pointer(&m.handle)), uintptr(unsafe.Pointer(unsafe.SliceData(text)))); err != nil {
		return nil, fmt.Errorf("compile the kernels of %s: %w", name, err)
	}
	c.modules[name] = m
	return m, nil
}

// Kernel finds a kernel of the module.
func (m *Module) Kernel(name string) (*Kernel, error) {
	if k := m.kernels[name]; k != nil {
		return k, nil
	}
	symbol := append([]byte(name), 0)
	k := &Kernel{c: m.c, name: name}
	if err := m.c.call("cuModuleGetFunction", uintptr(unsafe.Pointer(&k.handle)), m.handle, uintptr(unsafe.Pointer(unsafe.SliceData(symbol)))); err != nil {
		return nil, fmt.Errorf("find kernel %s of %s: %w", name, m.name, err)
	}
	m.kernels[name] = k
	return k, nil
}

// Launch queues a kernel, without shared memory beyond that of its source. The arguments must have the
// kernel's own types: Memory and uint64 for 64 bits, uint32 and int32, float32, float64.
func (c *Context) Launch(k *Kernel, grid, block Dim, s Stream, args ...any) error {
	if err := c.launch.set(args); err != nil {
		return fmt.Errorf("launch %s: %w", k.name, err)
	}
	err := c.call("cuLaunchKernel", k.handle, size(grid.X), size(grid.Y), size(grid.Z), size(block.X), size(block.Y), size(block.Z),
		0, uintptr(s), uintptr(unsafe.Pointer(&c.launch.pointers)), 0)
	if err != nil {
		return fmt.Errorf("launch %s: %w", k.name, err)
	}
	return nil
}

func size(n int) uintptr { return uintptr(max(n, 1)) }

// set stores the arguments for the driver, which reads them before a launch returns.
func (a *launchArguments) set(args []any) error {
	if len(args) > len(a.values) {
		return fmt.Errorf("%d arguments, want at most %d", len(args), len(a.values))
	}
	for i, arg := range args {
		switch v := arg.(type) {
		case Memory:
			a.values[i] = uint64(v)
		case uint64:
			a.values[i] = v
		case uint32:
			a.values[i] = uint64(v)
		case int32:
			a.values[i] = uint64(uint32(v))
		case float32:
			a.values[i] = uint64(math.Float32bits(v))
		case float64:
			a.values[i] = math.Float64bits(v)
		default:
			return fmt.Errorf("argument %d has an unsupported type", i)
		}
		a.pointers[i] = unsafe.Pointer(&a.values[i])
	}
	return nil
}
