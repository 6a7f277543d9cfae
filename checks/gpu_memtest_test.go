package checks

import (
	"fmt"
	"testing"
)

func TestGPUMemTest(t *testing.T) { testCheck(t, "check_gpu_memtest") }

var _ = table("check_gpu_memtest", func(string) []scenario {
	f := func(i int, f Finding, text string) Finding { return gpuFinding(gpuMemtestName, i, f, text) }
	lines := func(more ...string) []string { return append([]string{"* memory = 2097152"}, more...) }
	bit := func(got, pattern string) Finding {
		return f(3, Finding{Code: "gpu.memtest.bit", Severity: Fail, Remedy: ReseatOrRMA, Want: "none", Got: got}, "wrong words in its memory, of pattern "+pattern)
	}
	return []scenario{
		changed(onCUDA("healthy", of("-n", "2"), lines()), func(s *scenario) { s.table = map[string]any{"rounds": 2} }),
		// the first bytes of the memory are the report and the copy of it
		onCUDA("a bit is stuck at 1", nil, lines("3 stuck = 0x1234 5 1"), bit("1 wrong word: at offset 0x1034 0x00000020 in place of 0x00000000, bit 5", "0x00000000")),
		onCUDA("a bit is stuck at 1, and its context never ends", nil, lines("3 stuck = 0x1234 5 1", "3 cuDevicePrimaryCtxReset hang"),
			bit("1 wrong word: at offset 0x1034 0x00000020 in place of 0x00000000, bit 5", "0x00000000")),
		onCUDA("a bit is stuck at 0", nil, lines("3 stuck = 0x1234 5 0"), bit("1 wrong word: at offset 0x1034 0xffffffdf in place of 0xffffffff, bit 5", "0x00000000")),
		onCUDA("a write turns a bit over", nil, lines("3 wrong pattern_write = 0x0 0"), bit("1 wrong word: at offset 0x0 0x00000001 in place of 0x00000000, bit 0", "0x00000000")),
		onCUDA("a bit is stuck at 1 on every GPU", nil, lines("* stuck = 0x1234 5 1"), eachGPU(func(i int) Finding {
			return metByAll(f(i, Finding{Code: "gpu.memtest.bit", Severity: Unknown, Want: "none", Got: "1 wrong word: at offset 0x1034 0x00000020 in place of 0x00000000, bit 5"},
				"wrong words in its memory, of pattern 0x00000000"), 8)
		})...),
		onCUDA("more is free than there is", nil, lines("* free = 1e15")),
		onCUDA("an allocation that gives nothing", nil, lines("3 nothing cuMemAlloc = 1"),
			f(3, Finding{Code: "cuda.error", Severity: Unknown}, "memory test: cuMemAlloc(3): it reports success, and gives nothing")),
		onCUDA("pinned memory that is nothing", nil, lines("3 nothing cuMemHostAlloc = 1"),
			f(3, Finding{Code: "cuda.error", Severity: Unknown}, "memory test: cuMemHostAlloc(3): it reports success, and gives nothing")),
		onCUDA("an allocation fails", nil, lines("3 cuMemAlloc after 1 error 2"),
			f(3, Finding{Code: "gpu.memtest.memory", Severity: Unknown, Want: "at least 1 MiB", Got: "0 MiB"}, "memory that could be had for the test")),
		onCUDA("somebody unseen has most of it", nil, lines("3 total = 8388608"),
			f(3, Finding{Code: "gpu.memtest.memory", Severity: Unknown, Want: "at least 4 MiB", Got: "1 MiB"}, "memory that could be had for the test")),
		onCUDA("a kernel of one GPU never ends", of("-t", "8"), lines("3 cuStreamQuery after 2 error 600"),
			f(3, Finding{Code: "active.stuck", Severity: Fail, Remedy: ResetGPU, Want: "an end within 2s"}, "memory test: the work on it does not end; done on 7 other GPUs")),
		onCUDA("kernels never end on any GPU", of("-t", "8"), lines("* cuStreamQuery after 2 error 600"), Finding{Code: "active.stuck", Severity: Unknown, Want: "an end within 2s",
			Message: gpuMemtestName + ":  memory test: the work does not end on 8 of 8 GPUs, gpu0 the first, want an end within 2s"}),
		onCUDA("a kernel fails", nil, lines("3 cuLaunchKernel pattern_invert error 700"),
			f(3, Finding{Code: "cuda.error.700", Severity: Unknown}, "memory test: launch pattern_invert: cuLaunchKernel(3): CUDA_ERROR_ILLEGAL_ADDRESS (CUDA error 700)")),
		changed(onCUDA("no libcuda", nil, nil, Finding{Code: "cuda.library", Severity: Unknown,
			Message: gpuMemtestName + ":  cannot ask CUDA: load /nonexistent/libcuda.so.1: not found", Got: "cannot ask CUDA: load /nonexistent/libcuda.so.1: not found"}), func(s *scenario) {
			s.libraries = nil
			s.vars = map[string]string{"CUDA_LIBRARY": "/nonexistent/libcuda.so.1"}
			s.broken = true
		}),
		onCUDA("its time is up", of("-t", "1"), lines("* cuStreamQuery error 600"),
			Finding{Code: "active.time", Severity: Unknown, Want: "at most 1s", Message: gpuMemtestName + ":  stopped: its time was up, want at most 1s"}),
		changed(onCUDA("what was tested", nil, lines()[:0]), func(s *scenario) {
			for i := range 8 {
				s.want = append(s.want, Finding{Code: "gpu.memtest.rates", Device: f(i, Finding{}, "").Device, Got: "29 MiB",
					Message: fmt.Sprintf("%s:  %s: 29 MiB of 32 MiB tested", gpuMemtestName, f(i, Finding{}, "").Device)})
			}
		}),
	}
})
