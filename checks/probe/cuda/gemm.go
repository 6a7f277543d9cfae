package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
)

// GEMMType is a number format of matrices on a GPU. Products are in FP32, those of FP64 in FP64.
type GEMMType struct {
	Name string // bf16
	N    int    // the n of the n * n matrices for comparing GPUs

	major, minor int    // the required compute capability
	size, out    uint64 // bytes of a number, in the factors and in the product
	most         uint32 // the largest whole number that keeps every sum exact, for any n
	digits       float64
	fill, sum    string // kernels of numbers.cu
	own          []ownGEMM
	lt           ltType
}

// ownGEMM is a kernel of gemm.cu, for GPUs of a compute capability or a newer one. A block computes
// a square of that many rows of the product.
type ownGEMM struct {
	major, minor   int
	module, kernel string
	tile           int
	not            []int // major capabilities without an instruction for it, which would emulate it
}

// ltType is the same for cuBLASLt: cublasComputeType_t, and cudaDataType of the factors and
// of the product.
type ltType struct {
	compute, factor, product uintptr
	one                      [8]byte // the number 1 in the type of the sums
}

var (
	oneF32 = [8]byte(binary.LittleEndian.AppendUint64(nil, uint64(math.Float32bits(1))))
	oneF64 = [8]byte(binary.LittleEndian.AppendUint64(nil, math.Float64bits(1)))
)

// These are the GEMM types. digits is the number of bits of a sum that the hardware keeps: 24 for
// an FP32 number, but 14 in Hopper's tensor cores for FP8, including the sign.
var gemmTypes = []*GEMMType{
	{Name: "fp64", N: 4096, size: 8, out: 8, most: 1 << 20, digits: 53, fill: "fill_f64", sum: "sum_f64",
		own: []ownGEMM{{7, 0, "gemm70", "gemm_f64", 64, nil}}, lt: ltType{cublasCompute64F, cudaR64F, cudaR64F, oneF64}},
	{Name: "fp32", N: 4096, size: 4, out: 4, most: 255, digits: 24, fill: "fill_f32", sum: "sum_f32",
		own: []ownGEMM{{7, 0, "gemm70", "gemm_f32", 128, nil}}, lt: ltType{cublasCompute32F, cudaR32F, cudaR32F, oneF32}},
	{Name: "tf32", N: 8192, major: 8, size: 4, out: 4, most: 255, digits: 24, fill: "fill_f32", sum: "sum_f32",
		own: []ownGEMM{{8, 0, "gemm80", "gemm_tf32", 128, nil}}, lt: ltType{cublasComputeTF32, cudaR32F, cudaR32F, oneF32}},
	{Name: "bf16", N: 8192, major: 8, size: 2, out: 4, most: 255, digits: 24, fill: "fill_bf16", sum: "sum_f32",
		own: []ownGEMM{{8, 0, "gemm80", "gemm_bf16", 128, nil}}, lt: ltType{cublasCompute32F, cudaR16BF, cudaR32F, oneF32}},
	{Name: "fp16", N: 8192, major: 7, size: 2, out: 4, most: 255, digits: 24, fill: "fill_f16", sum: "sum_f32",
		own: []ownGEMM{{8, 0, "gemm80", "gemm_f16", 128, nil}, {7, 0, "gemm70", "gemm_f16_wmma", 128, nil}}, lt: ltType{cublasCompute32F, cudaR16F, cudaR32F, oneF32}},
	{Name: "fp8", N: 8192, major: 8, minor: 9, size: 1, out: 4, most: 15, digits: 13, fill: "fill_e4m3", sum: "sum_f32",
		own: []ownGEMM{{8, 9, "gemm89", "gemm_e4m3", 128, []int{9, 10, 11}}}, lt: ltType{cublasCompute32F, cudaR8E4M3, cudaR32F, oneF32}},
}

// GEMMTypes returns the names of the types in the order of the tests.
func GEMMTypes() (names []string) {
	for _, t := range gemmTypes {
		names = append(names, t.Name)
	}
	return names
}

// GEMMTypeOf returns the type of that name, nil if there is none.
func GEMMTypeOf(name string) *GEMMType {
	for _, t := range gemmTypes {
		if t.Name == name {
			return t
		}
	}
	return nil
}

// Capability returns the compute capability that a GPU needs for the type: 8.9.
func (t *GEMMType) Capability() string { return fmt.Sprintf("%d.%d", max(t.major, 7), t.minor) }

// On reports whether a GPU can multiply numbers of the type.
func (t *GEMMType) On(g *GPU) bool {
	return g.Major > t.major || g.Major == t.major && g.Minor >= t.minor
}

// OwnOn reports whether a GPU has instructions for this program's kernels of the type. Hopper and
// data center Blackwell have FP8 only in wgmma and tcgen05: ptxas converts mma to FP16, so the rate
// would not be one of FP8.
func (t *GEMMType) OwnOn(g *GPU) bool { return t.ownOn(g) != nil }

// ownOn returns this program's best kernel for a GPU, nil if there is none.
func (t *GEMMType) ownOn(g *GPU) *ownGEMM {
	for i, k := range t.own {
		if (g.Major > k.major || g.Major == k.major && g.Minor >= k.minor) && !slices.Contains(k.not, g.Major) {
			return &t.own[i]
		}
	}
	return nil
}

// Operations returns the number of additions and multiplications of one product.
func (t *GEMMType) Operations(n int) float64 { return 2 * float64(n) * float64(n) * float64(n) }

// Memory returns the bytes that a product of n * n matrices needs on the GPU.
func (t *GEMMType) Memory(n int) uint64 {
	return uint64(n)*uint64(n)*(2*t.size+t.out) + gemmWorkspace + gemmSumBytes
}

const (
	gemmWorkspace = 64 << 20 // memory for cuBLASLt besides the matrices
	gemmSumBytes  = 256      // of the result of sum_f32, which uses 16 of them
	gemmSeed      = 0x6e68632d677075
)

// The n of matrices must be a multiple of GEMMStep, and at most GEMMMost.
const (
	GEMMStep = 128
	GEMMMost = 32768
)

// GEMM is a product of two n * n matrices of whole numbers on one GPU. It belongs to the goroutine
// of its context.
type GEMM struct {
	Type *GEMMType
	N    int

	c       *Context
	lt      *ltProduct
	kernel  *Kernel
	tile    int
	summing *Kernel
	memory  Memory
	result  []byte // pinned

	a, b, product, sum, workspace Memory
}

// NewGEMM allocates and fills the factors. Without lt, this program's own kernels multiply them. A
// [CUBLASLtError] means that cuBLASLt failed and the own kernels may work.
func (c *Context) NewGEMM(t *GEMMType, n int, lt *CUBLASLt, s Stream) (*GEMM, error) {
	g := &GEMM{Type: t, N: n, c: c}
	if err := g.setUp(lt, s); err != nil {
		return nil, errors.Join(err, g.Free())
	}
	return g, nil
}

func (g *GEMM) setUp(lt *CUBLASLt, s Stream) (err error) {
	if lt != nil {
		g.lt, err = lt.newProduct(g.c, g.Type, g.N)
	} else {
		err = g.findOwn()
	}
	if err != nil {
		return err
	}
	if g.memory, err = g.c.Alloc(g.Type.Memory(g.N)); err != nil {
		return err
	}
	if g.result, err = g.c.HostAlloc(gemmSumBytes); err != nil {
		return err
	}
	count := uint64(g.N) * uint64(g.N)
	factor, product := Memory(count*g.Type.size), Memory(count*g.Type.out)
	g.a, g.b, g.product = g.memory, g.memory+factor, g.memory+2*factor
	g.workspace = g.product + product
	g.sum = g.workspace + gemmWorkspace
	numbers, err := g.c.Module("numbers")
	if err != nil {
		return err
	}
	fill, err := numbers.Kernel(g.Type.fill)
	if err != nil {
		return err
	}
	if g.summing, err = numbers.Kernel(g.Type.sum); err != nil {
		return err
	}
	most := g.Type.amplitude(g.N)
	for i, to := range []Memory{g.a, g.b} {
		if err := g.c.Launch(fill, g.wide(), gemmBlock, s, to, count, chooseSeed(i), most); err != nil {
			return err
		}
	}
	if g.lt == nil {
		return nil
	}
	// The library may choose an algorithm without a kernel for the GPU. The first product detects
	// that.
	return g.Multiply(s)
}

// findOwn finds this program's best kernel for the GPU.
func (g *GEMM) findOwn() error {
	k := g.Type.ownOn(g.c.GPU)
	if k == nil {
		return fmt.Errorf("no kernel for %s on compute capability %d.%d", g.Type.Name, g.c.GPU.Major, g.c.GPU.Minor)
	}
	m, err := g.c.Module(k.module)
	if err != nil {
		return err
	}
	g.tile = k.tile
	g.kernel, err = m.Kernel(k.kernel)
	return err
}

var gemmBlock = Dim{X: 256}

// wide returns a grid that uses every multiprocessor.
func (g *GEMM) wide() Dim { return Dim{X: 8 * max(g.c.GPU.SMs, 1)} }

// Algorithm names the type and the library: "bf16 cublaslt", "bf16 own".
func (g *GEMM) Algorithm() string {
	if g.lt != nil {
		return g.Type.Name + " cublaslt"
	}
	return g.Type.Name + " own"
}

// Choice returns cuBLASLt's algorithm for the product; the own kernels have only one.
func (g *GEMM) Choice() CUBLASLtAlgorithm {
	if g.lt == nil {
		return CUBLASLtAlgorithm{}
	}
	return g.lt.best.algorithm
}

// Choose makes cuBLASLt use the algorithm that it chose on another GPU of the model, so that both
// do the same work.
func (g *GEMM) Choose(way CUBLASLtAlgorithm) {
	if g.lt != nil {
		g.lt.best.algorithm = way
	}
}

// Spoil queues writing NaN over the product, so that no part of the last result remains.
func (g *GEMM) Spoil(s Stream) error {
	return g.c.Fill32(g.product, math.MaxUint32, uint64(g.N)*uint64(g.N)*g.Type.out/4, s)
}

// Multiply queues one product.
func (g *GEMM) Multiply(s Stream) error {
	if g.lt != nil {
		return g.lt.multiply(g.a, g.b, g.product, g.workspace, s)
	}
	tiles := g.N / g.tile
	return g.c.Launch(g.kernel, Dim{X: tiles, Y: tiles}, gemmBlock, s, g.a, g.b, g.product, uint32(g.N))
}

// GEMMSum is a checksum of a product: one wrong number changes Total.
type GEMMSum struct {
	Total uint64 // sum of all numbers, each times a weight of its row and its column, modulo 2^64
	Odd   uint64 // count of numbers that are not whole
}

// Sum computes the checksum of the product, and waits for it and all work queued before.
func (g *GEMM) Sum(ctx context.Context, s Stream) (GEMMSum, error) {
	if err := g.c.Fill32(g.sum, 0, gemmSumBytes/4, s); err != nil {
		return GEMMSum{}, err
	}
	if err := g.c.Launch(g.summing, g.wide(), gemmBlock, s, g.product, uint64(g.N), uint64(gemmSeed), g.sum); err != nil {
		return GEMMSum{}, err
	}
	if err := g.c.CopyToHost(g.result, g.sum, s); err != nil {
		return GEMMSum{}, err
	}
	if err := g.c.Sync(ctx, s); err != nil {
		return GEMMSum{}, err
	}
	return GEMMSum{binary.NativeEndian.Uint64(g.result), binary.NativeEndian.Uint64(g.result[8:])}, nil
}

// Free frees the memory of the product.
func (g *GEMM) Free() error {
	var errs []error
	if g.lt != nil {
		errs = append(errs, g.lt.close())
	}
	if g.memory != 0 {
		errs = append(errs, g.c.Free(g.memory))
	}
	if g.result != nil {
		errs = append(errs, g.c.HostFree(g.result))
	}
	*g = GEMM{Type: g.Type, N: g.N, c: g.c}
	return errors.Join(errs...)
}

// The CPU computes the expected checksum of a [GEMM]: sums of whole numbers modulo 2^64, which do
// not need the product. With weights u of the rows and v of the columns
//
// sum of u(i) * C(i, j) * v(j) = sum over k of (sum of u(i) * A(i, k)) * (sum of B(k, j) * v(j))
//
// gemmNumber, gemmWeight and seedOf are whole, weight and seeds of kernels/numbers.cu.

func gemmNumber(x, seed uint64, most uint32) int64 {
	h := (x + seed) * 0x9E3779B97F4A7C15
	h ^= h >> 32
	h *= 0xD6E8FEB86659FD93
	return int64((h>>32)*(2*uint64(most)+1)>>32) - int64(most)
}

func gemmWeight(x, seed uint64) uint64 {
	h := (x + seed) * 0xD6E8FEB86659FD93
	h ^= h >> 32
	return h*0x9E3779B97F4A7C15 | 1
}

// chooseSeed returns the seed of the first or the second factor.
func chooseSeed(factor int) uint64 { return uint64(factor+1) << 40 }

// amplitude returns the largest number for the factors that is small enough for every sum to be
// exact. The sum of n products of evenly distributed numbers between -m and m is within eight
// standard deviations of 0, and these must fit into the bits that the hardware keeps.
func (t *GEMMType) amplitude(n int) uint32 {
	m := t.most
	for m > 1 && 8*float64(m)*(float64(m)+1)/3*math.Sqrt(float64(n)) > math.Exp2(t.digits) {
		if m > 1024 {
			m /= 2
		} else {
			m--
		}
	}
	return m
}

// Truth returns the checksum of the correct product of n * n matrices. For the largest it takes all
// CPUs some tenths of a second.
func (t *GEMMType) Truth(n int) GEMMSum {
	rows, cols := make([]uint64, n), make([]uint64, n)
	for i := range n {
		rows[i], cols[i] = gemmWeight(uint64(i), gemmSeed), gemmWeight(uint64(i), ^uint64(gemmSeed))
	}
	most := t.amplitude(n)
	x, y := sumWeighted(rows, chooseSeed(0), most), sumWeighted(cols, chooseSeed(1), most)
	var total uint64
	for k := range n {
		total += x[k] * y[k]
	}
	return GEMMSum{Total: total}
}

// sumWeighted returns the weighted sum of the rows of a factor in memory order.
func sumWeighted(weights []uint64, seed uint64, most uint32) []uint64 {
	n, parts := len(weights), runtime.GOMAXPROCS(0)
	sums := make([][]uint64, parts)
	var all sync.WaitGroup
	for part := range parts {
		all.Go(func() {
			sum := make([]uint64, n)
			for i := part; i < n; i += parts {
				w, at := weights[i], uint64(i)*uint64(n)
				for k := range sum {
					sum[k] += w * uint64(gemmNumber(at+uint64(k), seed, most))
				}
			}
			sums[part] = sum
		})
	}
	all.Wait()
	for _, sum := range sums[1:] {
		for k := range sum {
			sums[0][k] += sum[k]
		}
	}
	return sums[0]
}
