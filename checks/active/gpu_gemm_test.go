package active

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gemmRoom gives each fake GPU the memory for small matrices.
const gemmRoom = "* memory = 0x10000000"

// onGEMM returns a line on a node with eight idle H100 and a fake CUDA with the given lines. lt:
// a cuBLASLt is installed.
func onGEMM(name string, lt bool, words []string, change func(*nvml.Snapshot), lines []string, want ...checks.Finding) checktest.Scenario {
	s := checktest.OnGPUs(name, words, change, want...)
	s.Files[boot] = "11111111-2222-3333-4444-555555555555\n"
	maps.Copy(s.Files, checktest.UseNode(checktest.UseProc{PID: 1, Args: "/sbin/init"}))
	s.UnitOnly = true
	place := withCUDA(8, append([]string{gemmRoom}, lines...)...)
	s.Libraries = func(t *testing.T, dir string) map[string]string {
		vars := place(t, dir)
		if lt {
			vars[probe.SettingCUBLASLt] = vars[probe.SettingCUDA]
		}
		return vars
	}
	return s
}

// cudaCommon are the scenarios of a node without GPUs or driver that a test of CUDA has, too.
func cudaCommon(name string, words []string) []checktest.Scenario {
	missing := onGEMM("no libcuda", false, words, nil, nil,
		checks.Finding{Code: "cuda.library", Severity: checks.Unknown, Message: name + ":  cannot ask CUDA: load /nowhere/libcuda.so.1: not found", Got: "cannot ask CUDA: load /nowhere/libcuda.so.1: not found"})
	missing.Libraries = func(*testing.T, string) map[string]string {
		return map[string]string{probe.SettingCUDA: "/nowhere/libcuda.so.1"}
	}
	missing.Broken = true
	list := []checktest.Scenario{missing}
	for _, s := range checktest.GPUCommon(name, words...) {
		if !strings.HasPrefix(s.Name, "one GPU has no handle") { // that one is skipped, and the others are tested
			list = append(list, s)
		}
	}
	return list
}

// What bit 5 of byte 0x102 makes of the product of bf16 with n 128, computed by another
// program: C(64, 0) is -372581 instead of -307045.
const (
	bf16Truth   = "sum 6955a897650a315d"
	bf16Flipped = "sum dc8333674d5d315d"
)

// gemmScenarios are common to check_gpu_gemm and check_gpu_soak. words returns the options of a
// line, followed by the least rate.
func gemmScenarios(name, code string, words func(least string, options ...string) []string) []checktest.Scenario {
	bf16 := words("", "-n", "128")
	found := func(kind string, f checks.Finding, text string) checks.Finding {
		f.Code = code + kind
		return checktest.GPUFinding(name, 3, f, text)
	}
	note := func(kind string, severity checks.Severity, text string) checks.Finding {
		return checks.Finding{Code: code + kind, Severity: severity, Message: name + ":  " + text}
	}
	cool := func(f checks.Finding) checks.Finding {
		f.Message += " (31 C)"
		return f
	}
	wrong := found(".wrong", checks.Finding{Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: bf16Truth, Got: bf16Flipped}, "bf16 cublaslt, n 128: wrong results in 4 of 4 products")
	alike := note(".alike", checks.Unknown, "bf16 cublaslt, n 128: 8 of 8 GPUs have the same product, which differs from the CPU's, want "+bf16Truth+", got "+bf16Flipped)
	alike.Want, alike.Got = bf16Truth, bf16Flipped
	floor := onGEMM("one is below the floor", true, bf16, nil, []string{"3 tflops cublaslt_bf16 = 590"},
		cool(found(".floor", checks.Finding{Severity: checks.Warn, Want: "at least 595.0 TFLOP/s", Got: "590.3 TFLOP/s"}, "rate of matrix products (bf16 cublaslt, n 128) (figure "+strings.TrimPrefix(code, "gpu.")+" of the platform test)")))
	floor.Platform = &checks.Platform{Name: "test", Floors: []checks.Floor{
		{Test: strings.TrimPrefix(code, "gpu."), Algorithm: "bf16 cublaslt", Size: 128, Ranks: 1, Value: 595, Unit: "TFLOP/s"},
		{Test: strings.TrimPrefix(code, "gpu."), Algorithm: "bf16 own", Size: 128, Ranks: 1, Value: 1000, Unit: "TFLOP/s"}}} // of another algorithm
	const absent = ownKernels + ": load libcublasLt.so.13: not found for a recorded node below {root}; CUBLASLT_LIBRARY names one"
	return append(cudaCommon(name, bf16), floor,
		onGEMM("a rate of the line, and no cuBLASLt", false, words("500", "-n", "128"), nil, nil, note(".library", checks.OK, absent),
			note(".unjudged", checks.Warn, ownKernels+": the rate on the line, 500.0 TFLOP/s, is for cuBLASLt and was not compared")),
		onGEMM("healthy", true, bf16, nil, nil),
		onGEMM("one is slower than the line wants", true, words("500", "-n", "128"), nil, []string{"3 tflops cublaslt_bf16 = 300"},
			cool(found(".slow", checks.Finding{Severity: checks.Fail, Want: "at least 500.0 TFLOP/s", Got: "300.0 TFLOP/s"}, "rate of matrix products (bf16 cublaslt, n 128)"))),
		onGEMM("one has a wrong bit", true, bf16, nil, []string{"3 wrong product = 0x102 5"}, wrong),
		onGEMM("one has a wrong bit, and its context never ends", true, bf16, nil, []string{"3 wrong product = 0x102 5", "3 cuDevicePrimaryCtxReset hang"}, wrong),
		onGEMM("all have the same wrong bit", true, bf16, nil, []string{"* wrong product = 0x102 5"}, alike),
		onGEMM("no way of cuBLASLt", true, bf16, nil, []string{"* cublasLtMatmulAlgoGetHeuristic error 15"},
			note(".library", checks.OK, "built-in kernels for bf16 instead of cuBLASLt: cublasLtMatmulAlgoGetHeuristic: CUBLAS_STATUS_NOT_SUPPORTED (15)")),
		onGEMM("cuBLASLt fails on one", true, bf16, nil, []string{"3 cublasLtMatmul after 2 error 13"},
			checktest.GPUFinding(name, 3, checks.Finding{Code: "cuda.error", Severity: checks.Unknown}, "multiply matrices of bf16: cublasLtMatmul(3): CUBLAS_STATUS_EXECUTION_FAILED (13)")),
		onGEMM("one has little memory", true, bf16, nil, []string{"3 memory = 0x400000"},
			found(".memory", checks.Finding{Severity: checks.Unknown, Want: "65 MiB", Got: "4 MiB"}, "too little free memory for bf16")),
		onGEMM("cuBLASLt has no kernel for the GPUs", true, bf16, nil, []string{"* cublasLtMatmul error 8"},
			note(".library", checks.OK, "built-in kernels for bf16 instead of cuBLASLt: cublasLtMatmul: CUBLAS_STATUS_ARCH_MISMATCH (8)")),
		onGEMM("a driver older than a kernel", true, words("", "-n", "128", "--own"), nil, []string{"- ptx = 60"},
			note(".types", checks.Skip, "no bf16: the driver is too old for the built-in kernel, and cuBLASLt is not used: cuModuleLoadData: CUDA_ERROR_UNSUPPORTED_PTX_VERSION (CUDA error 222)")),
		onGEMM("no bf16 on V100", true, bf16, nil, []string{"* attribute 75 = 7"},
			note(".types", checks.Skip, "no bf16 on NVIDIA H100 80GB HBM3: want compute capability 8.0, got 7.0")),
	)
}

func TestGPUGEMM(t *testing.T) { checktest.Run(t, "check_gpu_gemm") }

var _ = checktest.Table("check_gpu_gemm", func(name string) []checktest.Scenario {
	const every = "fp64,fp32,tf32,bf16,fp16,fp8"
	line := func(types, least string, more ...string) []string {
		if more = append(checktest.Of("-t", "0", "--types", types), more...); least != "" {
			more = append(more, least)
		}
		return more
	}
	bf16 := line("bf16", "", "-n", "128")
	slow := func(seen string) checks.Finding {
		f := checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.gemm.peers", Severity: checks.Fail, Want: "at least 480.2 TFLOP/s", Got: "300.0 TFLOP/s"},
			"rate of matrix products (bf16 cublaslt, n 128): far from its peers (median 600.2 TFLOP/s)")
		f.Message += " (" + seen + ")"
		return f
	}
	const seen = "91 C, hardware slowdown and hardware thermal slowdown"
	hot := func(g *nvml.GPU) {
		g.Throttle.Now = nvml.Known(uint64(nvml.ThrottleHardwareThermal | nvml.ThrottleHardware))
		g.Temperature.GPU = nvml.Known(91)
	}
	cooled := func(code string, f checks.Finding, text string) checks.Finding {
		f.Code = code
		f = checktest.GPUFinding(name, 3, f, text)
		f.Message += " (31 C)"
		return f
	}
	noFP8 := func(capability, why string) checks.Finding {
		return checks.Finding{Code: "gpu.gemm.types", Severity: checks.Skip,
			Message: name + ":  no fp8 on NVIDIA H100 80GB HBM3 without cuBLASLt: built-in kernels have no fp8 instruction for compute capability " + capability + why}
	}
	const absent = "load libcublasLt.so.13: not found for a recorded node below {root}; CUBLASLT_LIBRARY names one"
	noLibrary := checks.Finding{Code: "gpu.gemm.library", Severity: checks.OK, Message: name + ":  " + ownKernels + ": " + absent}
	throttled := checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.gemm.throttled", Severity: checks.Warn}, "slowed down under load: "+seen)
	common := gemmScenarios(name, "gpu.gemm", func(least string, options ...string) []string { return line("bf16", least, options...) })
	return append(common,
		onGEMM("all types", true, line(every, "", "-n", "128"), nil, nil),
		onGEMM("one has little memory for any type", true, line(every, "", "-n", "128"), nil, []string{"3 memory = 0x400000"},
			checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.gemm.memory", Severity: checks.Unknown, Want: "65 MiB", Got: "4 MiB"}, "too little free memory for fp64, fp32, tf32, bf16, fp16, fp8")),
		onGEMM("all types, own kernels", true, line(every, "", "-n", "128", "--own"), nil, []string{"* attribute 75 = 8", "* attribute 76 = 9"}),
		onGEMM("no FP8 of own kernels on Hopper", true, line(every, "", "-n", "128", "--own"), nil, nil, noFP8("9.0", "")),
		onGEMM("no FP8 of own kernels on Blackwell, nor of cuBLASLt", true, line("fp8", "", "-n", "128"), nil, []string{"* attribute 75 = 10", "- cublasLtGetVersion = 120900", "* cublasLtMatmulAlgoGetHeuristic error 15"},
			noFP8("10.0", ": cublasLtMatmulAlgoGetHeuristic: CUBLAS_STATUS_NOT_SUPPORTED (15)")),
		onGEMM("cuBLASLt is older than the GPUs", true, bf16, nil, []string{"* attribute 75 = 10"}, checks.Finding{Code: "gpu.gemm.library", Severity: checks.OK,
			Message: name + ":  " + ownKernels + ": libcuda.so.1 is of version 12.4.5 and has no kernels for compute capability 10.0, want 12.8.0 or later"}),
		onGEMM("cuBLASLt of CUDA 11.8", true, bf16, nil, []string{"- cublasLtGetVersion = 12103"}),
		onGEMM("cuBLASLt of CUDA 11.4 is older than the GPUs", true, bf16, nil, []string{"- cublasLtGetVersion = 11602"}, checks.Finding{Code: "gpu.gemm.library", Severity: checks.OK,
			Message: name + ":  " + ownKernels + ": libcuda.so.1 is of version 11.6.2 and has no kernels for compute capability 9.0, want 11.11.3 or later"}),
		onGEMM("a rate of the line that own kernels reach", false, line("bf16", "30", "-n", "128"), nil, nil, noLibrary),
		onGEMM("a rate of the line for own kernels", true, line("bf16", "500", "-n", "128", "--own"), nil, []string{"3 tflops gemm_bf16 = 30", "* tflops gemm_bf16 = 600", "3 tflops gemm_bf16 = 30"},
			cooled("gpu.gemm.slow", checks.Finding{Severity: checks.Fail, Want: "at least 500.0 TFLOP/s", Got: "30.0 TFLOP/s"}, "rate of matrix products (bf16 own, n 128)")),
		onGEMM("one is a little slow", true, bf16, nil, []string{"3 tflops cublaslt_bf16 = 520"},
			cooled("gpu.gemm.peers", checks.Finding{Severity: checks.Warn, Want: "at least 540.2 TFLOP/s", Got: "520.2 TFLOP/s"}, "rate of matrix products (bf16 cublaslt, n 128): far from its peers (median 600.2 TFLOP/s)")),
		onGEMM("products never end on one", true, line("bf16", "", "-n", "128"), nil, []string{"3 cuStreamQuery after 3 error 600"},
			checktest.GPUFinding(name, 3, checks.Finding{Code: "active.stuck", Severity: checks.Fail, Remedy: checks.ResetGPU, Want: "an end within 10s"}, "multiply matrices of bf16: work does not end; done on 7 other GPUs")),
		onGEMM("one is slow", true, bf16, nil, []string{"3 tflops cublaslt_bf16 = 300"}, slow("31 C")),
		onGEMM("one is hot, and slow for it", true, bf16, checktest.Gpu3(hot), []string{"3 tflops cublaslt_bf16 = 300"}, throttled, slow(seen)),
		onGEMM("one is hot", true, bf16, checktest.Gpu3(hot), nil, throttled),
	)
})

// A GPU that computes wrongly is reported: always or once, one of eight or all.
func TestGEMMFindsWrongResults(t *testing.T) {
	t.Parallel()
	const one = "gpu3 0000:13:00.0: bf16 cublaslt, n 128: wrong results in 4 of 4 products"
	for name, c := range map[string]struct {
		words []string
		lines []string
		want  []string
	}{
		"one": {checktest.Of("--types", "bf16"), []string{"3 wrong product = 0x102 5"}, []string{"fail gpu.gemm.wrong " + one}},
		"own": {checktest.Of("--types", "fp64", "--own"), []string{"3 wrong product = 0x106 0"}, []string{"fail gpu.gemm.wrong gpu3 0000:13:00.0: fp64 own, n 128: wrong results in 4 of 4 products"}},
		"two": {checktest.Of("--types", "bf16"), []string{"3 wrong product = 0x102 5", "5 wrong product = 0x102 4"}, []string{"fail gpu.gemm.wrong " + one, "fail gpu.gemm.wrong gpu5 0000:15:00.0: bf16 cublaslt, n 128: wrong results in 4 of 4 products"}},
		"all": {checktest.Of("--types", "fp8"), []string{"* wrong product = 0x102 5"}, []string{"unknown gpu.gemm.alike fp8 cublaslt, n 128: 8 of 8 GPUs have the same product, which differs from the CPU's"}},
		"all, one more": {checktest.Of("--types", "fp16"), []string{"* wrong product = 0x102 5", "3 wrong product = 0x102 4"}, []string{
			"unknown gpu.gemm.alike fp16 cublaslt, n 128: 7 of 8 GPUs have the same product, which differs from the CPU's",
			"fail gpu.gemm.wrong gpu3 0000:13:00.0: fp16 cublaslt, n 128: wrong results in 4 of 4 products"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := onGEMM(name, true, nil, nil, c.lines)
			env, _ := trialEnv(t, nil)
			probe.SetLibraries(env.Host, s.Libraries(t, t.TempDir()))
			check := &gpuGemm{}
			if err := checks.BindTags(check, append(checktest.Of("-t", "0", "-n", "128"), c.words...)); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range check.Run(t.Context(), env) {
				if f.Severity == checks.OK {
					continue
				}
				text, _, _ := strings.Cut(strings.TrimPrefix(f.Message, gpuGemmName+":  "), ", want sum")
				got = append(got, f.Severity.String()+" "+f.Code+" "+text)
				if !strings.HasPrefix(f.Want, "sum ") || !strings.HasPrefix(f.Got, "sum ") || f.Want == f.Got {
					t.Errorf("want %q, got %q", f.Want, f.Got)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// If GPUs differ the wrong ones are to blame; if all agree, none is.
func TestGEMMJudgesSums(t *testing.T) {
	t.Parallel()
	const truth = 1
	for name, c := range map[string]struct {
		sums [][]uint64
		want []string
	}{
		"right":            {[][]uint64{{1, 1, 1}, {1, 1, 1}}, nil},
		"alone and right":  {[][]uint64{{1, 1, 1}}, nil},
		"alone, once":      {[][]uint64{{1, 7, 1}}, []string{"fail gpu0 1 of 3"}},
		"alone, always":    {[][]uint64{{7, 7, 7}}, []string{"unknown all"}},
		"alone, at random": {[][]uint64{{7, 8, 9}}, []string{"fail gpu0 3 of 3"}},
		"one of two":       {[][]uint64{{1, 1, 1}, {7, 7, 7}}, []string{"fail gpu1 3 of 3"}},
		"both, unlike":     {[][]uint64{{6, 6, 6}, {7, 7, 7}}, []string{"unknown all"}},
		"all, at random":   {[][]uint64{{6, 1, 6}, {1, 7, 7}, {8, 1, 1}}, []string{"unknown all"}},
		"both, alike":      {[][]uint64{{7, 7, 7}, {7, 7, 7}}, []string{"unknown all"}},
		"alike, one once":  {[][]uint64{{7, 7, 7}, {7, 7, 7}, {7, 8, 7}}, []string{"unknown all", "fail gpu2 1 of 3"}},
		"most are wrong":   {[][]uint64{{7, 7, 7}, {7, 7, 7}, {1, 1, 1}}, []string{"fail gpu0 3 of 3", "fail gpu1 3 of 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &gemmTest{r: &activeRun{activeTest: activeTest{Check: "check_x", Code: "x"}}}
			var list []*gemmResult
			for i, sums := range c.sums {
				res := &gemmResult{gpu: &nvml.GPU{Index: i}, kind: cuda.GEMMTypeOf("bf16"), n: 128, algorithm: "bf16 own"}
				for _, s := range sums {
					res.sums = append(res.sums, cuda.GEMMSum{Total: s})
				}
				list = append(list, res)
			}
			m.judgeSums(cuda.GEMMSum{Total: truth}, list)
			var got []string
			for _, f := range m.r.findings {
				text := f.Severity.String() + " "
				if f.Device.Name == "" {
					text += "all"
				} else {
					_, count, _ := strings.Cut(f.Message, "wrong results in ")
					count, _, _ = strings.Cut(count, " products")
					text += f.Device.Name + " " + count
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// A software fault on all GPUs of one model blames none of them, although those of another model
// are right. A GPU that differs from others of its model is to blame.
func TestGEMMJudgesEachModel(t *testing.T) {
	t.Parallel()
	m := &gemmTest{r: &activeRun{activeTest: activeTest{Check: "check_x", Code: "x"}}}
	var list []*gemmResult
	for i, total := range []uint64{1, 1, 1, 9, 7, 7, 7} {
		model := "NVIDIA A100"
		if i > 3 {
			model = "NVIDIA L40S"
		}
		list = append(list, &gemmResult{gpu: &nvml.GPU{Index: i, Name: nvml.Known(model)}, kind: cuda.GEMMTypeOf("bf16"), n: 128, algorithm: "bf16 own", sums: []cuda.GEMMSum{{Total: total}, {Total: total}}})
	}
	m.judgeSums(cuda.GEMMSum{Total: 1}, list)
	var got []string
	for _, f := range m.r.findings {
		got = append(got, fmt.Sprint(f.Severity, " ", f.Code, " ", f.Device.Name))
	}
	if diff := cmp.Diff([]string{"fail x.wrong gpu3", "unknown x.alike "}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A rate that falls under load is reported.
func TestGEMMFades(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rates func(i int) float64
		count int
		want  int
	}{
		"steady":   {func(int) float64 { return 600 }, 100, 0},
		"a little": {func(i int) float64 { return 600 - float64(i)*0.5 }, 100, 0},
		"fades":    {func(i int) float64 { return 600 - float64(i) }, 100, 1},
		"few":      {func(i int) float64 { return 600 - 100*float64(i) }, 5, 0},
	} {
		r := &activeRun{activeTest: activeTest{Check: "check_x", Code: "x"}}
		res := &gemmResult{gpu: &nvml.GPU{}, algorithm: "bf16 own"}
		for i := range c.count {
			res.rates = append(res.rates, c.rates(i))
		}
		if judgeFading(r, res); len(r.findings) != c.want {
			t.Errorf("%s: %v", name, brief(r.findings))
		}
	}
}
