package checks

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// gemmRoom gives each fake GPU the memory for small matrices.
const gemmRoom = "* memory = 0x10000000"

// onGEMM is a line on a node with eight idle H100, of which CUDA says what is in the
// lines of the fake library. lt says whether there is a cuBLASLt.
func onGEMM(name string, lt bool, words []string, change func(*probe.NVML), lines []string, want ...Finding) scenario {
	s := onGPUs(name, words, change, want...)
	s.files[boot] = "11111111-2222-3333-4444-555555555555\n"
	maps.Copy(s.files, useNode(useProc{pid: 1, args: "/sbin/init"}))
	s.unitOnly = true
	place := withCUDA(8, append([]string{gemmRoom}, lines...)...)
	s.libraries = func(t *testing.T, dir string) map[string]string {
		vars := place(t, dir)
		if lt {
			vars[probe.SettingCUBLASLt] = vars[probe.SettingCUDA]
		}
		return vars
	}
	return s
}

// cudaCommon are the scenarios of a node without GPUs or driver that a test of CUDA has, too.
func cudaCommon(name string, words []string) []scenario {
	missing := onGEMM("no libcuda", false, words, nil, nil,
		Finding{Code: "cuda.library", Severity: Unknown, Message: name + ":  cannot ask CUDA: load /nowhere/libcuda.so.1: not found", Got: "cannot ask CUDA: load /nowhere/libcuda.so.1: not found"})
	missing.libraries = func(*testing.T, string) map[string]string {
		return map[string]string{probe.SettingCUDA: "/nowhere/libcuda.so.1"}
	}
	missing.broken = true
	list := []scenario{missing}
	for _, s := range gpuCommon(name, words...) {
		if s.name != "one GPU gives no handle" { // which is left out, and the others are tested
			list = append(list, s)
		}
	}
	return list
}

func init() {
	const name, n = gpuGemmName, 128
	const every = "fp64,fp32,tf32,bf16,fp16,fp8"
	line := func(types string, more ...string) []string {
		return append(of("-t", "0", "-n", "128", "--types", types), more...)
	}
	bf16 := line("bf16")
	found := func(code string, f Finding, text string) Finding {
		f.Code = "gpu.gemm." + code
		return gpuFinding(name, 3, f, text)
	}
	note := func(code string, severity Severity, text string) Finding {
		return Finding{Code: "gpu.gemm." + code, Severity: severity, Message: name + ":  " + text}
	}
	slow := found("peers", Finding{Severity: Fail, Want: "at least 540.2 TFLOP/s", Got: "300.0 TFLOP/s"}, "bf16 cublaslt, n 128: far from its peers, whose median is 600.2 TFLOP/s")
	slow.Message += " (31 C, 71 W)"
	least := found("slow", Finding{Severity: Fail, Want: "at least 500.0 TFLOP/s", Got: "300.0 TFLOP/s"}, "bf16 cublaslt, n 128")
	least.Message += " (31 C, 71 W)"
	hot := func(g *probe.GPU) {
		g.Throttle.Now = probe.Known(uint64(probe.ThrottleHardwareThermal | probe.ThrottleHardware))
		g.Temperature.GPU = probe.Known(91)
	}
	const hotText = "slowed down under load: 91 C, 71 W, hardware slowdown and hardware thermal slowdown"
	warm := slow
	warm.Message = strings.Replace(warm.Message, "(31 C, 71 W)", "(91 C, 71 W, hardware slowdown and hardware thermal slowdown)", 1)
	testCheck(name, append(cudaCommon(name, bf16),
		onGEMM("all types", true, line(every), nil, nil),
		onGEMM("all types, own kernels", true, line(every, "--own"), nil, nil),
		onGEMM("one is slow", true, bf16, nil, []string{"3 tflops cublaslt_bf16 = 300"}, slow),
		onGEMM("one is slower than the line wants", true, line("bf16", "500"), nil, []string{"3 tflops cublaslt_bf16 = 300"}, least),
		onGEMM("one is hot, and slow for it", true, bf16, gpu3(hot), []string{"3 tflops cublaslt_bf16 = 300"},
			found("throttled", Finding{Severity: Warn}, hotText), warm),
		onGEMM("one is hot", true, bf16, gpu3(hot), nil, found("throttled", Finding{Severity: Warn}, hotText)),
		onGEMM("no way of cuBLASLt", true, bf16, nil, []string{"* cublasLtMatmulAlgoGetHeuristic error 15"},
			note("library", OK, "own kernels for bf16 in place of cuBLASLt: cublasLtMatmulAlgoGetHeuristic: CUBLAS_STATUS_NOT_SUPPORTED (15)")),
		onGEMM("no type of that name", true, line("bf16,int3"), nil, nil, gemmValue(name, "type", "some of "+every, "int3")...),
		onGEMM("no size", true, of("-n", "100"), nil, nil, gemmValue(name, "-n", "a multiple of 128 up to 32768", "100")...),
		onGEMM("a rate for all types", true, of("500"), nil, nil, gemmValue(name, "TFLOPS", "one type with it, as --types bf16", "500.0 ")...),
		onGEMM("no FP8 on A100", true, line("fp8"), nil, []string{"* attribute 75 = 8"},
			note("types", Skip, "no fp8 on NVIDIA H100 80GB HBM3: want compute capability 8.9, got 8.0")),
		onGEMM("a driver older than a kernel", true, line("bf16", "--own"), nil, []string{"- ptx = 60"},
			note("types", Skip, "no bf16: the driver is too old for our kernel, and cuBLASLt is not used: cuModuleLoadData: CUDA_ERROR_UNSUPPORTED_PTX_VERSION (CUDA error 222)")),
		onGEMM("one has little memory", true, bf16, nil, []string{"3 memory = 0x400000"},
			found("memory", Finding{Severity: Unknown, Want: Size(probe.GEMMTypeOf("bf16").Memory(n)).String(), Got: "4 MiB"}, "too little free memory for bf16")),
	)...)
}

// A GPU that computes wrongly is found: always, or once; among eight, or all alike.
func TestGEMMFindsWrongResults(t *testing.T) {
	t.Parallel()
	const one = "gpu3 0000:13:00.0: bf16 cublaslt, n 128: wrong results in 4 of 4 products"
	for name, c := range map[string]struct {
		words []string
		lines []string
		want  []string
	}{
		"one": {of("--types", "bf16"), []string{"3 wrong product = 0x102 5"}, []string{"fail gpu.gemm.wrong " + one}},
		"own": {of("--types", "fp64", "--own"), []string{"3 wrong product = 0x106 0"}, []string{"fail gpu.gemm.wrong gpu3 0000:13:00.0: fp64 own, n 128: wrong results in 4 of 4 products"}},
		"two": {of("--types", "bf16"), []string{"3 wrong product = 0x102 5", "5 wrong product = 0x102 4"}, []string{"fail gpu.gemm.wrong " + one, "fail gpu.gemm.wrong gpu5 0000:15:00.0: bf16 cublaslt, n 128: wrong results in 4 of 4 products"}},
		"all": {of("--types", "fp8"), []string{"* wrong product = 0x102 5"}, []string{"unknown gpu.gemm.alike fp8 cublaslt, n 128: 8 of 8 GPUs have the same product, and not the CPU's"}},
		"all, one more": {of("--types", "fp16"), []string{"* wrong product = 0x102 5", "3 wrong product = 0x102 4"}, []string{
			"unknown gpu.gemm.alike fp16 cublaslt, n 128: 7 of 8 GPUs have the same product, and not the CPU's",
			"fail gpu.gemm.wrong gpu3 0000:13:00.0: fp16 cublaslt, n 128: wrong results in 4 of 4 products"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := onGEMM(name, true, nil, nil, c.lines)
			env, _ := trialEnv(t, nil)
			env.Host.SetLibraries(s.libraries(t, t.TempDir()))
			check := &gpuGemm{}
			if err := BindTags(check, append(of("-t", "0", "-n", "128"), c.words...)); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range check.Run(t.Context(), env) {
				if f.Severity == OK {
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

// Of GPUs that differ those that are not right are to blame, and no GPU where all agree.
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
		"both, unlike":     {[][]uint64{{6, 6, 6}, {7, 7, 7}}, []string{"fail gpu0 3 of 3", "fail gpu1 3 of 3"}},
		"both, alike":      {[][]uint64{{7, 7, 7}, {7, 7, 7}}, []string{"unknown all"}},
		"alike, one once":  {[][]uint64{{7, 7, 7}, {7, 7, 7}, {7, 8, 7}}, []string{"unknown all", "fail gpu2 1 of 3"}},
		"most are wrong":   {[][]uint64{{7, 7, 7}, {7, 7, 7}, {1, 1, 1}}, []string{"fail gpu0 3 of 3", "fail gpu1 3 of 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &gemmTest{r: &activeRun{activeTest: activeTest{Check: "check_x", Code: "x"}}}
			var list []*gemmResult
			for i, sums := range c.sums {
				res := &gemmResult{gpu: &probe.GPU{Index: i}, kind: probe.GEMMTypeOf("bf16"), n: 128, algorithm: "bf16 own"}
				for _, s := range sums {
					res.sums = append(res.sums, probe.GEMMSum{Total: s})
				}
				list = append(list, res)
			}
			m.judgeSums(probe.GEMMSum{Total: truth}, list)
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

// Rates that fall under load are found, and those of a short test are none.
func TestGEMMFades(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rates func(i int) float64
		long  bool
		want  int
	}{
		"steady":   {func(int) float64 { return 600 }, true, 0},
		"a little": {func(i int) float64 { return 600 - float64(i)*0.5 }, true, 0},
		"fades":    {func(i int) float64 { return 600 - float64(i) }, true, 1},
		"short":    {func(i int) float64 { return 600 - float64(i) }, false, 0},
	} {
		m := &gemmTest{r: &activeRun{activeTest: activeTest{Check: "check_x", Code: "x"}}, long: c.long}
		res := &gemmResult{gpu: &probe.GPU{}, algorithm: "bf16 own"}
		for i := range 100 {
			res.rates = append(res.rates, c.rates(i))
		}
		if m.judgeFading(res); len(m.r.findings) != c.want {
			t.Errorf("%s: %v", name, brief(m.r.findings))
		}
	}
}
