package active

import (
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

func TestGPUMemTest(t *testing.T) { checktest.Run(t, "check_gpu_memtest") }

var _ = checktest.Table("check_gpu_memtest", func(string) []checktest.Scenario {
	f := func(i int, f checks.Finding, text string) checks.Finding {
		return checktest.GPUFinding(gpuMemtestName, i, f, text)
	}
	lines := func(more ...string) []string { return append([]string{"* memory = 2097152"}, more...) }
	bit := func(got, pattern string) checks.Finding {
		return f(3, checks.Finding{Code: "gpu.memtest.bit", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: "none", Got: got}, "wrong words in memory, pattern "+pattern)
	}
	return []checktest.Scenario{
		checktest.Changed(onCUDA("healthy", checktest.Of("-n", "2"), lines()), func(s *checktest.Scenario) { s.Table = map[string]any{"rounds": 2} }),
		// the first bytes of the memory are the report and the copy of it
		onCUDA("a bit is stuck at 1", nil, lines("3 stuck = 0x1234 5 1"), bit("1 wrong word: at offset 0x1034 0x00000020 instead of 0x00000000, bit 5", "0x00000000")),
		onCUDA("a bit is stuck at 1, and its context never ends", nil, lines("3 stuck = 0x1234 5 1", "3 cuDevicePrimaryCtxReset hang"),
			bit("1 wrong word: at offset 0x1034 0x00000020 instead of 0x00000000, bit 5", "0x00000000")),
		onCUDA("a bit is stuck at 0", nil, lines("3 stuck = 0x1234 5 0"), bit("1 wrong word: at offset 0x1034 0xffffffdf instead of 0xffffffff, bit 5", "0x00000000")),
		onCUDA("a write turns a bit over", nil, lines("3 wrong pattern_write = 0x0 0"), bit("1 wrong word: at offset 0x0 0x00000001 instead of 0x00000000, bit 0", "0x00000000")),
		onCUDA("a bit is stuck at 1 on every GPU", nil, lines("* stuck = 0x1234 5 1"), eachGPU(func(i int) checks.Finding {
			return metByAll(f(i, checks.Finding{Code: "gpu.memtest.bit", Severity: checks.Unknown, Want: "none", Got: "1 wrong word: at offset 0x1034 0x00000020 instead of 0x00000000, bit 5"},
				"wrong words in memory, pattern 0x00000000"), 8)
		})...),
		onCUDA("more is free than there is", nil, lines("* free = 1e15")),
		onCUDA("an allocation that gives nothing", nil, lines("3 nothing cuMemAlloc = 1"),
			f(3, checks.Finding{Code: "cuda.error", Severity: checks.Unknown}, "memory test: cuMemAlloc(3): reported success, but returned no data")),
		onCUDA("pinned memory that is nothing", nil, lines("3 nothing cuMemHostAlloc = 1"),
			f(3, checks.Finding{Code: "cuda.error", Severity: checks.Unknown}, "memory test: cuMemHostAlloc(3): reported success, but returned no data")),
		onCUDA("an allocation fails", nil, lines("3 cuMemAlloc after 1 error 2"),
			f(3, checks.Finding{Code: "gpu.memtest.memory", Severity: checks.Unknown, Want: "at least 1 MiB", Got: "0 MiB"}, "memory allocated for the test")),
		onCUDA("somebody unseen has most of it", nil, lines("3 total = 8388608"),
			f(3, checks.Finding{Code: "gpu.memtest.memory", Severity: checks.Unknown, Want: "at least 4 MiB", Got: "1 MiB"}, "memory allocated for the test")),
		onCUDA("a kernel of one GPU never ends", checktest.Of("-t", "8"), lines("3 cuStreamQuery after 2 error 600"),
			f(3, checks.Finding{Code: "active.stuck", Severity: checks.Fail, Remedy: checks.ResetGPU, Want: "an end within 2s"}, "memory test: work does not end; done on 7 other GPUs")),
		onCUDA("kernels never end on any GPU", checktest.Of("-t", "8"), lines("* cuStreamQuery after 2 error 600"), checks.Finding{Code: "active.stuck", Severity: checks.Unknown, Want: "an end within 2s",
			Message: gpuMemtestName + ":  memory test: work does not end on 8 of 8 GPUs (first: gpu0), want an end within 2s"}),
		onCUDA("a kernel fails", nil, lines("3 cuLaunchKernel pattern_invert error 700"),
			f(3, checks.Finding{Code: "cuda.error.700", Severity: checks.Unknown}, "memory test: launch pattern_invert: cuLaunchKernel(3): CUDA_ERROR_ILLEGAL_ADDRESS (CUDA error 700)")),
		checktest.Changed(onCUDA("no libcuda", nil, nil, checks.Finding{Code: "cuda.library", Severity: checks.Unknown,
			Message: gpuMemtestName + ":  cannot ask CUDA: load /nonexistent/libcuda.so.1: not found", Got: "cannot ask CUDA: load /nonexistent/libcuda.so.1: not found"}), func(s *checktest.Scenario) {
			s.Libraries = nil
			s.Vars = map[string]string{"CUDA_LIBRARY": "/nonexistent/libcuda.so.1"}
			s.Broken = true
		}),
		onCUDA("its time is up", checktest.Of("-t", "1"), lines("* cuStreamQuery error 600"),
			checks.Finding{Code: "active.time", Severity: checks.Unknown, Want: "at most 1s", Message: gpuMemtestName + ":  stopped: time limit reached, want at most 1s"}),
		checktest.Changed(onCUDA("the tested memory", nil, lines()[:0]), func(s *checktest.Scenario) {
			for i := range 8 {
				s.Want = append(s.Want, checks.Finding{Code: "gpu.memtest.rates", Device: f(i, checks.Finding{}, "").Device, Got: "29 MiB",
					Message: fmt.Sprintf("%s:  %s: 29 MiB of 32 MiB tested", gpuMemtestName, f(i, checks.Finding{}, "").Device)})
			}
		}),
	}
})
