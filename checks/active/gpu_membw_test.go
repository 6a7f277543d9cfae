package active

import (
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

func TestGPUMemBW(t *testing.T) { checktest.Run(t, "check_gpu_membw") }

var _ = checktest.Table("check_gpu_membw", func(string) []checktest.Scenario {
	f := func(i int, f checks.Finding, text string) checks.Finding {
		return checktest.GPUFinding(gpuMembwName, i, f, text)
	}
	small := func(words ...string) []string { return append([]string{"-b", "64K"}, words...) }
	slow := func(algorithm string) checks.Finding {
		return f(3, checks.Finding{Code: "gpu.membw.slow", Severity: checks.Fail, Want: "at least 2500 GB/s", Got: "1400 GB/s"}, "bandwidth of its memory by "+algorithm)
	}
	low := f(3, checks.Finding{Code: "gpu.membw.floor", Severity: checks.Fail, Want: "at least 2750 GB/s", Got: "2700 GB/s"}, "bandwidth of its memory by triad (figure memory_bandwidth of the platform H100 SXM5 80GB)")
	return []checktest.Scenario{
		checktest.Changed(onCUDA("healthy", small("2500"), nil), func(s *checktest.Scenario) { s.Table = map[string]any{"least": 2500, "size": "64K"} }),
		onCUDA("one kernel is slow", small("2500"), []string{"3 membw daxpy = 1400"}, slow("daxpy")),
		onCUDA("slow", small("2500"), []string{"3 membw = 1400"}, slow("triad")),
		checktest.Changed(onCUDA("one kernel is slow, on a slower model", small("1000"), []string{"5 membw = 1400", "6 membw = 1400", "7 membw = 1400", "7 membw daxpy = 700"},
			f(7, checks.Finding{Code: "gpu.membw.slow", Severity: checks.Fail, Want: "at least 1000 GB/s", Got: "700.1 GB/s"}, "bandwidth of its memory by daxpy")), ofTwoModels),
		onCUDA("slow by its peers", small(), []string{"3 membw triad = 2500"},
			f(3, checks.Finding{Code: "gpu.membw.peers", Severity: checks.Fail, Want: "at least 2521 GB/s", Got: "2501 GB/s"},
				"bandwidth of its memory by triad: far from its peers (median 2801 GB/s)")),
		onCUDA("a little slow by its peers", small(), []string{"3 membw triad = 2600"},
			f(3, checks.Finding{Code: "gpu.membw.peers", Severity: checks.Warn, Want: "at least 2661 GB/s", Got: "2601 GB/s"},
				"bandwidth of its memory by triad: far from its peers (median 2801 GB/s)")),
		checktest.Changed(onCUDA("below the platform's floor", small(), []string{"3 membw triad = 2700"}, low), func(s *checktest.Scenario) { floorOfTriad(s, 0) }),
		checktest.Changed(onCUDA("below the platform's floor, with a lowered power limit", small(), []string{"3 membw triad = 2700"}), func(s *checktest.Scenario) {
			floorOfTriad(s, 0)
			s.NVML.GPUs[3].Power.Limit, s.NVML.GPUs[3].Power.Enforced = nvml.Known[uint32](350000), nvml.Known[uint32](350000)
		}),
		checktest.Changed(onCUDA("below the platform's floor, and the BMC has lowered all power limits", small(), []string{"3 membw triad = 2700"}), func(s *checktest.Scenario) {
			floorOfTriad(s, 0)
			enforced(s, 350000)
		}),
		checktest.Changed(onCUDA("below the floor of a module that shares its power", small(), []string{"3 membw triad = 2700"}, low), func(s *checktest.Scenario) {
			floorOfTriad(s, 1)
			enforced(s, 350000)
		}),
		checktest.Changed(onCUDA("below the platform's floor, and only its enforced power limit is lower", small(), []string{"3 membw triad = 2700"}, low), func(s *checktest.Scenario) {
			floorOfTriad(s, 0)
			s.NVML.GPUs[3].Power.Enforced = nvml.Known[uint32](350000)
		}),
		checktest.Changed(onCUDA("slow by its peers, with a lowered power limit", small(), []string{"3 membw triad = 1400"},
			f(3, checks.Finding{Code: "gpu.membw.peers", Severity: checks.Warn, Want: "at least 2521 GB/s", Got: "1400 GB/s"},
				"bandwidth of its memory by triad: far from its peers (median 2801 GB/s) (its power limit is 350 W of 700 W)")), func(s *checktest.Scenario) {
			s.NVML.GPUs[3].Power.Limit = nvml.Known[uint32](350000)
		}),
		onCUDA("a wrong result", small(), []string{"3 wrong triad = 0x106 4"},
			f(3, checks.Finding{Code: "gpu.membw.wrong", Severity: checks.Fail, Remedy: checks.ResetGPU, Want: "none", Got: "1 wrong word: at offset 0x104 0x40180000 instead of 0x40080000, bit 20"},
				"wrong words in the result of triad")),
		onCUDA("a wrong result on every GPU", small(), []string{"* wrong triad = 0x106 4"}, eachGPU(func(i int) checks.Finding {
			return metByAll(f(i, checks.Finding{Code: "gpu.membw.wrong", Severity: checks.Unknown, Want: "none", Got: "1 wrong word: at offset 0x104 0x40180000 instead of 0x40080000, bit 20"},
				"wrong words in the result of triad"), 8)
		})...),
		onCUDA("its events say that no time has passed", small("2500"), []string{"3 elapsed = 0"},
			f(3, checks.Finding{Code: "cuda.error", Severity: checks.Unknown}, "bandwidth of its memory: the GPU's events report a duration of zero for the work")),
		onCUDA("a wrong result, and its context never ends", small(), []string{"3 wrong triad = 0x106 4", "3 cuDevicePrimaryCtxReset hang"},
			f(3, checks.Finding{Code: "gpu.membw.wrong", Severity: checks.Fail, Remedy: checks.ResetGPU, Want: "none", Got: "1 wrong word: at offset 0x104 0x40180000 instead of 0x40080000, bit 20"},
				"wrong words in the result of triad")),
		onCUDA("uncorrectable ECC, and its context never ends", small(), []string{"3 cuStreamCreate error 214", "3 cuDevicePrimaryCtxReset hang"},
			f(3, checks.Finding{Code: "cuda.error.214", Severity: checks.Fail, Remedy: checks.ResetGPU}, "cannot open it: cuStreamCreate(3): CUDA_ERROR_ECC_UNCORRECTABLE (CUDA error 214)")),
		onCUDA("one GPU does not say how much memory it has", small(), []string{"3 cuDeviceTotalMem error 214"},
			checktest.GPUFinding(gpuMembwName, 3, checks.Finding{Code: "cuda.error.214", Severity: checks.Fail, Remedy: checks.ResetGPU}, "cannot use it: cuDeviceTotalMem(3): CUDA_ERROR_ECC_UNCORRECTABLE (CUDA error 214)")),
		onCUDA("one GPU does not say where it is", small(), []string{"3 cuDeviceGet error 101"},
			checktest.GPUFinding(gpuMembwName, 3, checks.Finding{Code: "cuda.gpu", Severity: checks.Unknown}, "CUDA does not list it (cuDeviceGet(3): CUDA_ERROR_INVALID_DEVICE (CUDA error 101))")),
		onCUDA("uncorrectable ECC", small(), []string{"3 cuStreamQuery error 214"},
			f(3, checks.Finding{Code: "cuda.error.214", Severity: checks.Fail, Remedy: checks.ResetGPU}, "bandwidth of its memory: cuStreamQuery(3): CUDA_ERROR_ECC_UNCORRECTABLE (CUDA error 214)")),
		onCUDA("an allocation fails", small(), []string{"3 cuMemAlloc error 2"},
			f(3, checks.Finding{Code: "cuda.error.2", Severity: checks.Unknown}, "bandwidth of its memory: allocate 65536 bytes: cuMemAlloc(3): CUDA_ERROR_OUT_OF_MEMORY (CUDA error 2)")),
		onCUDA("too little memory", small(), []string{"3 memory = 65536"},
			f(3, checks.Finding{Code: "gpu.membw.memory", Severity: checks.Unknown}, "too little free memory: want 3 buffers of 64 KiB, 64 KiB free")),
		onCUDA("exclusive-process mode, and another has it", small(), []string{"3 cuDevicePrimaryCtxRetain error 46"},
			f(3, checks.Finding{Code: "cuda.error.46", Severity: checks.Unknown}, "cannot open it: cuDevicePrimaryCtxRetain(3): CUDA_ERROR_DEVICE_UNAVAILABLE (CUDA error 46)")),
		onCUDA("driver too old for the PTX", small(), []string{"- ptx = 50"}, eachGPU(func(i int) checks.Finding {
			return f(i, checks.Finding{Code: "cuda.error.222", Severity: checks.Unknown},
				"bandwidth of its memory: compile the kernels of memory: cuModuleLoadData("+string(rune('0'+i))+"): CUDA_ERROR_UNSUPPORTED_PTX_VERSION (CUDA error 222)")
		})...),
		checktest.Changed(onCUDA("no libcuda", small(), nil, checks.Finding{Code: "cuda.library", Severity: checks.Unknown,
			Message: gpuMembwName + ":  cannot ask CUDA: load /nonexistent/libcuda.so.1: not found", Got: "cannot ask CUDA: load /nonexistent/libcuda.so.1: not found"}), func(s *checktest.Scenario) {
			s.Libraries = nil
			s.Vars = map[string]string{"CUDA_LIBRARY": "/nonexistent/libcuda.so.1"}
			s.Broken = true
		}),
		onCUDA("Fabric Manager does not run", small(), []string{"- cuInit error 802"}, checks.Finding{Code: "cuda.error.802", Severity: checks.Unknown, Remedy: checks.CheckFabric,
			Message: gpuMembwName + ":  cannot ask CUDA: cuInit: CUDA_ERROR_SYSTEM_NOT_READY (CUDA error 802)", Got: "cannot ask CUDA: cuInit: CUDA_ERROR_SYSTEM_NOT_READY (CUDA error 802)"}),
		checktest.Changed(onCUDA("CUDA shows one GPU fewer", small(), nil, f(7, checks.Finding{Code: "cuda.gpu", Severity: checks.Unknown}, "CUDA does not list it")), func(s *checktest.Scenario) {
			s.Libraries = withCUDA(7)
		}),
		checktest.Changed(onCUDA("one GPU", small(), nil), func(s *checktest.Scenario) {
			s.NVML.GPUs = s.NVML.GPUs[:1]
			s.Libraries = withCUDA(1)
		}),
		checktest.Changed(onCUDA("MIG on one", small(), nil, f(3, checks.Finding{Code: "active.left", Severity: checks.Skip}, "skipped: MIG splits it")), func(s *checktest.Scenario) {
			s.Want[0].Got = "MIG splits it"
			s.NVML.GPUs[3].Modes.MIG.Value = true
		}),
		{Name: "no GPU", UnitOnly: true, Words: small(), NVMLErr: fmt.Errorf("load libnvidia-ml.so.1: %w", probe.ErrNoLibrary), Want: []checks.Finding{{Code: "gpu.none", Severity: checks.Skip, Message: gpuMembwName + ":  no NVIDIA GPU on this node"}}},
	}
})

// floorOfTriad gives the platform a floor of triad; with memoryNodes its GPUs share a module with a CPU.
func floorOfTriad(s *checktest.Scenario, memoryNodes int) {
	s.Platform = &checks.Platform{Name: "H100 SXM5 80GB", MemoryNode: memoryNodes,
		Floors: []checks.Floor{{Test: "memory_bandwidth", Algorithm: "triad", Size: 64 << 10, Ranks: 1, Value: 2750, Unit: "GB/s", Verified: true}}}
}

// enforced lowers the enforced power limit of all GPUs, not the requested one.
func enforced(s *checktest.Scenario, milliwatts uint32) {
	for i := range s.NVML.GPUs {
		s.NVML.GPUs[i].Power.Enforced = nvml.Known(milliwatts)
	}
}

// ofTwoModels makes the last three GPUs those of another model.
func ofTwoModels(s *checktest.Scenario) {
	for i := range s.NVML.GPUs[5:] {
		s.NVML.GPUs[5+i].Name = nvml.Known("NVIDIA H100 NVL")
	}
}

// metByAll returns a finding about a GPU for the case that n of eight have it.
func metByAll(f checks.Finding, n int) checks.Finding {
	f.Message += fmt.Sprintf("; on %d of 8 GPUs: the cause is the driver or nhc-gpu, not the GPU", n)
	return f
}

// eachGPU returns a finding about each of eight GPUs.
func eachGPU(of func(i int) checks.Finding) (list []checks.Finding) {
	for i := range 8 {
		list = append(list, of(i))
	}
	return list
}
