package active

import (
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

func TestCompCommOverlap(t *testing.T) { checktest.Run(t, "check_comp_comm_overlap") }

var _ = checktest.Table("check_comp_comm_overlap", func(name string) (list []checktest.Scenario) {
	says := func(f checks.Finding, text string) checks.Finding { return ncclSays(name, f, text) }
	// A busy machine takes ten seconds for what a GPU does in no time; a hang is to be waited for.
	words := func(more ...string) []string {
		return append(checktest.Of("-n", "128", "-e", "64K", "-t", "120"), more...)
	}
	hang := checktest.Of("-n", "128", "-e", "64K", "-t", "10")
	const kept = "speed of matrix products during all_reduce"
	on8 := func(title string, words []string, lines []string, want ...checks.Finding) checktest.Scenario {
		return withNCCL(checktest.OnGPUs(title, words, nil, want...), append([]string{"cuda:" + gemmRoom}, lines...)...)
	}
	broken := func(s checktest.Scenario) checktest.Scenario { s.Broken = true; return s }
	for _, s := range checktest.GPUCommon(name, words()...) {
		if !strings.HasPrefix(s.Name, "one GPU has no handle") {
			list = append(list, s)
		}
	}
	list = append(list,
		on8("no slower", words("-m", "5"), nil).OrTable(map[string]any{"matrix": 128, "end": "64K", "limit": 120, "slowdown": 5}),
		on8("all slower", words(), checktest.Of("cuda:* beside = 0.6")),
		on8("one GPU of eight is slower", words(), checktest.Of("cuda:* beside = 0.8", "cuda:3 beside = 0.4"),
			checktest.GPUFinding(name, 3, checks.Finding{Code: "overlap.peers", Severity: checks.Fail, Want: "at least 68.0 %", Got: "40.0 %"}, kept+": far from its peers (median 80.0 %)")),
		on8("one GPU of eight is slower than the words", words("-m", "30"), checktest.Of("cuda:3 beside = 0.6"),
			checktest.GPUFinding(name, 3, checks.Finding{Code: "overlap.slow", Severity: checks.Fail, Want: "at least 70.0 %", Got: "60.0 %"}, kept)),
		broken(on8("too little memory", checktest.Of("-t", "10"), nil,
			says(checks.Finding{Code: "nccl.memory", Severity: checks.Unknown, Want: "1.1 GiB", Got: "192.0 MiB"}, "too little free memory on a GPU"))),
		broken(withOldNCCL(on8("no NCCL", words(), nil, says(checks.Finding{Code: "nccl.library", Severity: checks.Unknown}, "cannot use NCCL: load /nonexistent/libnccl.so.2: not found")))),
		broken(on8("NCCL fails", words(), checktest.Of("- ncclCommInitAll error 2"),
			says(checks.Finding{Code: "nccl.error", Severity: checks.Unknown}, "cannot create the communicator: ncclCommInitAll: ncclSystemError (NCCL error 2)"))),
		on8("a GPU fails", words(), checktest.Of("cuda:3 cuLaunchKernel gemm_bf16 after 2 error 719"),
			findUsableGPU(name, 3, 719, "a bf16 product of 128 rows and all_reduce of 64 KiB, one after the other: launch gemm_bf16: cuLaunchKernel(3): CUDA_ERROR_LAUNCH_FAILED (CUDA error 719)")),
		on8("a GPU fails beside NCCL, and another waits for it", words(), checktest.Of("cuda:0 cuStreamQuery after 10 error 600", "cuda:3 cuStreamQuery after 10 error 719"),
			findUsableGPU(name, 3, 719, "a bf16 product of 128 rows and all_reduce of 64 KiB, at once: cuStreamQuery(3): CUDA_ERROR_LAUNCH_FAILED (CUDA error 719)")),
		on8("an all-reduce that does not end", hang, checktest.Of("cuda:3 cuStreamQuery after 1 error 600"),
			says(checks.Finding{Code: "nccl.hung", Severity: checks.Fail, Remedy: checks.RebootNode, Want: "an end within 5s"}, "a bf16 product of 128 rows and all_reduce of 64 KiB (warm-up) does not end on gpu3 0000:13:00.0")),
		on8("a product that does not end", hang, checktest.Of("cuda:3 cuStreamQuery after 2 error 600"),
			checktest.GPUFinding(name, 3, checks.Finding{Code: "active.stuck", Severity: checks.Fail, Remedy: checks.ResetGPU, Want: "an end within 2.5s"},
				"a bf16 product of 128 rows and all_reduce of 64 KiB (warm-up): work does not end; done on 7 other GPUs")),
		but(on8("several models", words(), nil, says(checks.Finding{Code: "nccl.mixed", Severity: checks.Warn, Want: "one model", Got: "2"}, "GPUs of several models work together")), func(s *checktest.Scenario) { s.NVML.GPUs[7].Name = nvml.Known("NVIDIA H100 NVL") }),
		on8("settings of the node", words(), nil,
			says(checks.Finding{Code: "nccl.settings", Severity: checks.OK}, "found NCCL_TOPO_FILE=/opt/gone.xml in /etc/nccl.conf"),
			says(checks.Finding{Code: "nccl.environment", Severity: checks.Warn, Remedy: checks.FixConfig, Got: "no such file"}, "NCCL_TOPO_FILE=/opt/gone.xml in /etc/nccl.conf is not a topology of this node")).
			Holding("etc/nccl.conf", "NCCL_TOPO_FILE=/opt/gone.xml\n"),
	)
	return list
})

// A refused run keeps the fault that a run with the settings of nhc.toml found.
func TestOverlapFaultOutlivesARefusal(t *testing.T) {
	t.Parallel()
	s := withNCCL(checktest.OnGPUs("", nil, nil), "cuda:"+gemmRoom, "cuda:3 beside = 0.4")
	root := s.Build(t)
	dir := t.TempDir()
	libraries := s.Libraries(t, dir)
	run := func() []checks.Finding {
		env := &checks.Env{Host: probe.NewHost(root), Vars: map[string]string{checks.NCCLEnvSetting: "NCCL_IB_TC=106"}, Doing: func(string) {}}
		probe.SetLibraries(env.Host, libraries)
		nvml.Set(env.Host, s.NVML, nil)
		env.Host.SetPast("/past")
		c := &compCommOverlap{Matrix: overlapMatrix, Size: overlapSize}
		if err := checks.Bind(c, []string{"-n", "128", "-e", "64K", "-t", "10"}); err != nil {
			t.Fatal(err)
		}
		return c.Run(t.Context(), env)
	}
	if got := run(); checks.Worst(got) != checks.Fail {
		t.Fatalf("no fault in\n%s", strings.Join(brief(got), "\n"))
	}
	putStepd(t, root, 50, "98.batch")
	if got := strings.Join(brief(run()), "\n"); !strings.Contains(got, "active.busy") || !strings.Contains(got, "fail overlap.peers") {
		t.Errorf("the fault is gone:\n%s", got)
	}
}

func TestOverlapWords(t *testing.T) {
	t.Parallel()
	for _, words := range [][]string{{"-n", "64"}, {"-n", "130"}, {"-n", "0"}, {"-m", "100"}, {"-m", "-1"}, {"-e", "1"}, {"--algo", "x"}, {"more"}} {
		if err := checks.Bind(&compCommOverlap{Matrix: overlapMatrix, Size: overlapSize}, words); err == nil {
			t.Errorf("%q: no error", words)
		}
	}
}
