package cuda

import (
	"math"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakecuda"
)

const gemmRoom = "* memory = 0x10000000"

// The checksum computed without the product equals that of the textbook product.
func TestGEMMTruthIsThatOfTheProduct(t *testing.T) {
	t.Parallel()
	for _, kind := range gemmTypes {
		const n = 128
		most := kind.amplitude(n)
		var total uint64
		for i := range uint64(n) {
			for j := range uint64(n) {
				var c int64
				for k := range uint64(n) {
					c += gemmNumber(i*n+k, chooseSeed(0), most) * gemmNumber(j*n+k, chooseSeed(1), most)
				}
				total += gemmWeight(i, gemmSeed) * uint64(c) * gemmWeight(j, ^uint64(gemmSeed))
			}
		}
		if got := kind.Truth(n); got != (GEMMSum{Total: total}) {
			t.Errorf("%s: %x, want %x", kind.Name, got, total)
		}
	}
}

// The numbers are evenly distributed, and every sum of products fits into its bits.
func TestGEMMNumbersAreSmallEnough(t *testing.T) {
	t.Parallel()
	for _, kind := range gemmTypes {
		for _, n := range []int{GEMMStep, kind.N, GEMMMost} {
			m := kind.amplitude(n)
			if m < 1 || m > kind.most {
				t.Fatalf("%s, n %d: numbers up to %d", kind.Name, n, m)
			}
			var largest float64
			for row := range uint64(40) { // some of the sums, after every step
				var sum int64
				for k := range uint64(n) {
					x := gemmNumber(row*uint64(n)+k, chooseSeed(0), m)
					if x < -int64(m) || x > int64(m) {
						t.Fatalf("%s: number %d of at most %d", kind.Name, x, m)
					}
					sum += x * gemmNumber((row*7+3)*uint64(n)+k, chooseSeed(1), m)
					largest = max(largest, math.Abs(float64(sum)))
				}
			}
			if largest > math.Exp2(kind.digits) || largest == 0 {
				t.Errorf("%s, n %d: sums up to %g, want at most 2^%g", kind.Name, n, largest, kind.digits)
			}
		}
	}
}

// A GPU's earlier error that appears while cuBLASLt queues work belongs to the GPU, not the
// library.
func TestGEMMTellsTheGPUsFault(t *testing.T) {
	t.Parallel()
	for want, line := range map[string]string{
		"cuStreamQuery(0): CUDA_ERROR_LAUNCH_FAILED (CUDA error 719)": "0 cuStreamQuery error 719",
		"cublasLtMatmul(0): CUBLAS_STATUS_EXECUTION_FAILED (13)":      "0 cuStreamQuery after 99 error 719",
	} {
		h := fakeHost(t, fakecuda.Scenario(1, gemmRoom, "0 cublasLtMatmul after 1 error 13", line))
		probe.SetLibraries(h, map[string]string{probe.SettingCUDA: h.Library(probe.SettingCUDA), probe.SettingCUBLASLt: h.Library(probe.SettingCUDA)})
		cuda := must[*Driver](t)(Open(h, nil))
		c := must[*Context](t)(cuda.GPUs[0].Open())
		g := must[*GEMM](t)(c.NewGEMM(GEMMTypeOf("bf16"), 256, must[*CUBLASLt](t)(OpenCUBLASLt(h, cuda)), 0))
		if err := g.Multiply(0); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
		_ = c.Close() // of a GPU with a fault
	}
}

// Both algorithms compute the CPU's checksum, in every type.
func TestGEMM(t *testing.T) {
	t.Parallel()
	h := fakeHost(t, fakecuda.Scenario(1, gemmRoom, "0 attribute 75 = 8", "0 attribute 76 = 9"))
	cuda := must[*Driver](t)(Open(h, nil))
	probe.SetLibraries(h, map[string]string{probe.SettingCUDA: h.Library(probe.SettingCUDA), probe.SettingCUBLASLt: h.Library(probe.SettingCUDA)})
	lt := must[*CUBLASLt](t)(OpenCUBLASLt(h, cuda))
	if lt.Version != 120405 {
		t.Errorf("version %d", lt.Version)
	}
	c := must[*Context](t)(cuda.GPUs[0].Open())
	defer func() { noError(t, c.Close()) }()
	free, _, err := c.MemInfo()
	noError(t, err)
	for _, kind := range gemmTypes {
		for _, library := range []*CUBLASLt{nil, lt} {
			g := must[*GEMM](t)(c.NewGEMM(kind, 256, library, 0))
			noError(t, g.Spoil(0))
			spoiled := must[GEMMSum](t)(g.Sum(t.Context(), 0))
			if spoiled.Odd != 256*256 {
				t.Errorf("%s: what is no number counts %d times", g.Algorithm(), spoiled.Odd)
			}
			noError(t, g.Multiply(0))
			if got, want := must[GEMMSum](t)(g.Sum(t.Context(), 0)), kind.Truth(256); got != want {
				t.Errorf("%s: %x, want %x", g.Algorithm(), got, want)
			}
			noError(t, g.Free())
		}
	}
	if left, _, err := c.MemInfo(); err != nil || left != free {
		t.Errorf("%d bytes are left of %d: %v", left, free, err)
	}
}

// A type has own kernels only for GPUs with suitable instructions, and a library is used only if it
// has kernels for the GPU.
func TestGEMMKernelsFitTheGPU(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		major, minor int
		fp8          bool
		least        int // version of cuBLASLt
	}{{7, 0, false, 110000}, {8, 0, false, 110000}, {8, 9, true, 110000}, {9, 0, false, 111103}, {10, 0, false, 120800}, {10, 3, false, 120800}, {11, 0, false, 130000}, {12, 0, true, 120800}, {13, 0, true, 130000}} {
		g := &GPU{Major: c.major, Minor: c.minor}
		if got := GEMMTypeOf("fp8").OwnOn(g); got != c.fp8 {
			t.Errorf("%d.%d: own kernels of fp8: %v", c.major, c.minor, got)
		}
		if !GEMMTypeOf("fp16").OwnOn(g) {
			t.Errorf("%d.%d: no own kernels of fp16", c.major, c.minor)
		}
		for version, want := range map[int]bool{c.least: false, c.least - 1: c.major > 8, 0: false} {
			if err := (&CUBLASLt{Name: "/opt/libcublasLt.so.12", Version: version}).TooOldFor(g); (err != nil) != want {
				t.Errorf("%d.%d with version %d: %v", c.major, c.minor, version, err)
			}
		}
	}
	err := (&CUBLASLt{Name: "/opt/libcublasLt.so.11", Version: 110402}).TooOldFor(&GPU{Major: 9})
	if want := "libcublasLt.so.11 is of version 11.4.2 and has no kernels for compute capability 9.0, want 11.11.3 or later"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// CUDA 11 writes the version of cuBLASLt in another way than its successors.
func TestCUBLASLtVersion(t *testing.T) {
	t.Parallel()
	for number, want := range map[int]int{0: 0, 10203: 100203, 11005: 110005, 11402: 110402, 12103: 111103, 120405: 120405, 130000: 130000} {
		if got := versionOf(number); got != want {
			t.Errorf("%d: %d, want %d", number, got, want)
		}
	}
}
