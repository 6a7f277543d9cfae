package cuda

import (
	"errors"
	"fmt"
	"path/filepath"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// CUBLASLt is NVIDIA's library of matrix products, a part of toolkits and frameworks. Like libcuda
// it is loaded once and never unloaded, and its calls may hang as long as the driver does.
type CUBLASLt struct {
	Name    string // the loaded library: libcublasLt.so.12
	Version int    // 120405 is 12.4.5

	cuda    *cudaLib
	symbols map[string]uintptr
}

// CUBLASLtError is the error of a call of cuBLASLt.
type CUBLASLtError struct {
	Call string // cublasLtMatmul(3): the number is CUDA's index of the GPU
	Code int    // cublasStatus_t: 15
	Name string // CUBLAS_STATUS_NOT_SUPPORTED
}

// Error names the call and the status.
func (e *CUBLASLtError) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Call, e.Name, e.Code) }

// cublasStatus are the names of cublas_api.h.
var cublasStatus = map[int]string{
	1:  "CUBLAS_STATUS_NOT_INITIALIZED",
	3:  "CUBLAS_STATUS_ALLOC_FAILED",
	7:  "CUBLAS_STATUS_INVALID_VALUE",
	8:  "CUBLAS_STATUS_ARCH_MISMATCH",
	11: "CUBLAS_STATUS_MAPPING_ERROR",
	13: "CUBLAS_STATUS_EXECUTION_FAILED",
	14: "CUBLAS_STATUS_INTERNAL_ERROR",
	15: "CUBLAS_STATUS_NOT_SUPPORTED",
	16: "CUBLAS_STATUS_LICENSE_ERROR",
}

// cublasLtSymbols are the functions that this package calls. All versions since 11.0 have all of
// them.
var cublasLtSymbols = []string{
	"cublasLtGetVersion", "cublasLtCreate", "cublasLtDestroy",
	"cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy", "cublasLtMatmulDescSetAttribute",
	"cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutDestroy",
	"cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy", "cublasLtMatmulPreferenceSetAttribute",
	"cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul",
}

// OpenCUBLASLt loads the newest version of the library that the driver supports, unless
// CUBLASLT_LIBRARY names another. It keeps the answer, even an error. The error is ErrNoLibrary if
// no library is installed.
func OpenCUBLASLt(h *probe.Host, c *Driver) (*CUBLASLt, error) {
	return probe.Once(h, "cublaslt", func() (*CUBLASLt, error) {
		return probe.LoadLibrary(h, &probe.LibCUBLASLt, c.Version/1000, func(path string) (*CUBLASLt, error) { return loadCUBLASLt(path, c.lib) })
	})
}

func loadCUBLASLt(name string, cuda *cudaLib) (*CUBLASLt, error) {
	done := cuda.watch.begin("load " + name)
	defer done()
	handle, err := probe.Dlopen(name)
	if err != nil {
		return nil, err
	}
	l := &CUBLASLt{Name: name, cuda: cuda, symbols: map[string]uintptr{}}
	for _, s := range cublasLtSymbols {
		if l.symbols[s], err = probe.Dlsym(handle, s); err != nil {
			return nil, fmt.Errorf("load %s: it lacks the function %s", name, s)
		}
	}
	version, _, _ := purego.SyscallN(l.symbols["cublasLtGetVersion"])
	l.Version = versionOf(int(version))
	return l, nil
}

// versionOf returns the version of a library. CUDA 11 and older write 12103 for 11.11.3: cublas_api.h
// defines CUBLAS_VERSION as 1000 * major + 100 * minor + patch there.
func versionOf(number int) int {
	if number >= 100000 {
		return number
	}
	major := min(number/1000, 11)
	return major*10000 + number - major*1000
}

// CUBLASLtOld is the error of a library that is older than a GPU.
type CUBLASLtOld struct {
	Name       string // libcublasLt.so.11
	Have, Want int    // 110402, 111103
	Capability string // 9.0
}

// Error names both versions.
func (e *CUBLASLtOld) Error() string {
	version := func(v int) string { return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100) }
	return fmt.Sprintf("%s is of version %s and has no kernels for compute capability %s, want %s or later", e.Name, version(e.Have), e.Capability, version(e.Want))
}

// cublasLtSince has the first version with kernels for the GPUs of a major compute capability:
// those of CUDA 11.8, 12.8 and 13.0, by the release notes of CUDA. A kernel runs on later GPUs of
// the same major capability. An older library makes the driver compile its PTX, which takes minutes
// and cannot be interrupted.
var cublasLtSince = map[int]int{9: 111103, 10: 120800, 11: 130000, 12: 120800}

// TooOldFor returns an error if a GPU needs a newer library, else nil. It assumes for a GPU newer
// than this program the version that the newest known GPU needs.
func (l *CUBLASLt) TooOldFor(g *GPU) error {
	want := cublasLtSince[g.Major]
	if g.Major > 12 {
		want = cublasLtSince[11]
	}
	if l.Version >= want || l.Version <= 0 {
		return nil
	}
	return &CUBLASLtOld{filepath.Base(l.Name), l.Version, want, fmt.Sprintf("%d.%d", g.Major, g.Minor)}
}

// call makes one call for a GPU.
//
//go:uintptrescapes
func (l *CUBLASLt) call(symbol string, gpu int, args ...uintptr) error {
	done := l.cuda.watch.beginCall(symbol, gpu)
	r, _, _ := purego.SyscallN(l.symbols[symbol], args...)
	done()
	code := int(int32(r))
	if code == 0 {
		return nil
	}
	name := cublasStatus[code]
	if name == "" {
		name = "unknown status"
	}
	return &CUBLASLtError{Call: nameCall(symbol, gpu), Code: code, Name: name}
}

// The constants of library_types.h, cublas_api.h and cublasLt.h.
const (
	cudaR32F   = 0
	cudaR64F   = 1
	cudaR16F   = 2
	cudaR16BF  = 14
	cudaR8E4M3 = 28

	cublasCompute32F  = 68
	cublasCompute64F  = 70
	cublasComputeTF32 = 77 // CUBLAS_COMPUTE_32F_FAST_TF32

	ltDescTransA    = 3 // CUBLASLT_MATMUL_DESC_TRANSA
	ltTransposed    = 1 // CUBLAS_OP_T
	ltPrefWorkspace = 1 // CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
)

// CUBLASLtAlgorithm is cublasLtMatmulAlgo_t: how a product is computed. It is valid for all GPUs of
// a model.
type CUBLASLtAlgorithm [8]uint64

// ltHeuristic is cublasLtMatmulHeuristicResult_t.
type ltHeuristic struct {
	algorithm CUBLASLtAlgorithm
	workspace uint64
	state     int32
	waves     float32
	_         [4]int32
}

// ltProduct is a product of two matrices in cuBLASLt's form: C = transposed(A) * B, all of them n *
// n and in column order.
type ltProduct struct {
	l    *CUBLASLt
	c    *Context
	n    int
	best ltHeuristic

	handle, desc, factor, product, preference uintptr
	one, zero                                 [8]byte // alpha and beta, in the type of the sums
}

// newProduct prepares a product and gets an algorithm from the library. After an error it has freed
// everything.
func (l *CUBLASLt) newProduct(c *Context, t *GEMMType, n int) (*ltProduct, error) {
	p := &ltProduct{l: l, c: c, n: n, one: t.lt.one}
	if err := c.Use(); err != nil {
		return nil, err
	}
	if err := p.create(t); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *ltProduct) create(t *GEMMType) error {
	n, transposed, workspace := uintptr(p.n), int32(ltTransposed), uint64(gemmWorkspace)
	var found int32
	for _, step := range []func() error{
		func() error { return p.call("cublasLtCreate", uintptr(unsafe.Pointer(&p.handle))) },
		func() error {
			return p.call("cublasLtMatmulDescCreate", uintptr(unsafe.Pointer(&p.desc)), t.lt.compute, t.lt.product)
		},
		func() error {
			return p.call("cublasLtMatmulDescSetAttribute", p.desc, ltDescTransA, uintptr(unsafe.Pointer(&transposed)), unsafe.Sizeof(transposed))
		},
		func() error {
			return p.call("cublasLtMatrixLayoutCreate", uintptr(unsafe.Pointer(&p.factor)), t.lt.factor, n, n, n)
		},
		func() error {
			return p.call("cublasLtMatrixLayoutCreate", uintptr(unsafe.Pointer(&p.product)), t.lt.product, n, n, n)
		},
		func() error {
			return p.call("cublasLtMatmulPreferenceCreate", uintptr(unsafe.Pointer(&p.preference)))
		},
		func() error {
			return p.call("cublasLtMatmulPreferenceSetAttribute", p.preference, ltPrefWorkspace, uintptr(unsafe.Pointer(&workspace)), unsafe.Sizeof(workspace))
		},
		func() error {
			return p.call("cublasLtMatmulAlgoGetHeuristic", p.handle, p.desc, p.factor, p.factor, p.product, p.product, p.preference,
				1, uintptr(unsafe.Pointer(&p.best)), uintptr(unsafe.Pointer(&found)))
		},
	} {
		if err := step(); err != nil {
			return err
		}
	}
	if found < 1 || p.best.state != 0 || p.best.workspace > gemmWorkspace {
		return &CUBLASLtError{Call: nameCall("cublasLtMatmulAlgoGetHeuristic", p.c.GPU.Ordinal), Code: int(p.best.state), Name: "no algorithm found"}
	}
	return nil
}

//go:uintptrescapes
func (p *ltProduct) call(symbol string, args ...uintptr) error {
	return p.l.call(symbol, p.c.GPU.Ordinal, args...)
}

// multiply queues the product in a stream.
func (p *ltProduct) multiply(a, b, c, workspace Memory, s Stream) error {
	if !p.c.isCurrent() {
		if err := p.c.Use(); err != nil {
			return err
		}
	}
	err := p.call("cublasLtMatmul", p.handle, p.desc, uintptr(unsafe.Pointer(&p.one)), uintptr(a), p.factor, uintptr(b), p.factor,
		uintptr(unsafe.Pointer(&p.zero)), uintptr(c), p.product, uintptr(c), p.product,
		uintptr(unsafe.Pointer(&p.best.algorithm)), uintptr(workspace), gemmWorkspace, uintptr(s))
	if err == nil {
		return nil
	}
	if _, fault := p.c.Done(s); fault != nil {
		return fault // an earlier error of the GPU, which the library has no name for
	}
	return err
}

// close frees the library's data of the product.
func (p *ltProduct) close() error {
	var errs []error
	for _, made := range []struct {
		symbol string
		thing  uintptr
	}{
		{"cublasLtMatmulPreferenceDestroy", p.preference}, {"cublasLtMatrixLayoutDestroy", p.product}, {"cublasLtMatrixLayoutDestroy", p.factor},
		{"cublasLtMatmulDescDestroy", p.desc}, {"cublasLtDestroy", p.handle},
	} {
		if made.thing != 0 {
			errs = append(errs, p.call(made.symbol, made.thing))
		}
	}
	return errors.Join(errs...)
}
