package checks

import (
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

func TestCompCommOverlap(t *testing.T) { testCheck(t, "check_comp_comm_overlap") }

var _ = table("check_comp_comm_overlap", func(name string) (list []scenario) {
	says := func(f Finding, text string) Finding { return ncclSays(name, f, text) }
	// A busy machine takes ten seconds for what a GPU does in no time; a hang is to be waited for.
	words := func(more ...string) []string { return append(of("-n", "128", "-e", "64K", "-t", "120"), more...) }
	hang := of("-n", "128", "-e", "64K", "-t", "10")
	const kept = "speed of a product of matrices that is kept beside all_reduce"
	on8 := func(title string, words []string, lines []string, want ...Finding) scenario {
		return onGPUs(title, words, nil, want...).withNCCL(append([]string{"cuda:" + gemmRoom}, lines...)...)
	}
	broken := func(s scenario) scenario { s.broken = true; return s }
	for _, s := range gpuCommon(name, words()...) {
		if !strings.HasPrefix(s.name, "one GPU gives no handle") {
			list = append(list, s)
		}
	}
	list = append(list,
		on8("no slower", words("-m", "5"), nil).orTable(map[string]any{"matrix": 128, "end": "64K", "limit": 120, "slowdown": 5}),
		on8("all slower", words(), of("cuda:* beside = 0.6")),
		on8("one GPU of eight is slower", words(), of("cuda:* beside = 0.8", "cuda:3 beside = 0.4"),
			gpuFinding(name, 3, Finding{Code: "overlap.peers", Severity: Fail, Want: "at least 68.0 %", Got: "40.0 %"}, kept+": far from its peers, whose median is 80.0 %")),
		on8("one GPU of eight is slower than the words", words("-m", "30"), of("cuda:3 beside = 0.6"),
			gpuFinding(name, 3, Finding{Code: "overlap.slow", Severity: Fail, Want: "at least 70.0 %", Got: "60.0 %"}, kept)),
		broken(on8("too little memory", of("-t", "10"), nil,
			says(Finding{Code: "nccl.memory", Severity: Unknown, Want: "1.1 GiB", Got: "192.0 MiB"}, "too little memory of a GPU is free"))),
		broken(on8("no NCCL", words(), nil, says(Finding{Code: "nccl.library", Severity: Unknown}, "cannot use NCCL: load /nonexistent/libnccl.so.2: not found")).withOldNCCL()),
		broken(on8("NCCL fails", words(), of("- ncclCommInitAll error 2"),
			says(Finding{Code: "nccl.error", Severity: Unknown}, "cannot join the GPUs: ncclCommInitAll: ncclSystemError (NCCL error 2)"))),
		on8("a GPU fails", words(), of("cuda:3 cuLaunchKernel gemm_bf16 after 2 error 719"),
			cudaGPU(name, 3, 719, "a bf16 product of 128 rows and all_reduce of 64 KiB, one after the other: launch gemm_bf16: cuLaunchKernel(3): CUDA_ERROR_LAUNCH_FAILED (CUDA error 719)")),
		on8("a GPU fails beside NCCL, and another waits for it", words(), of("cuda:0 cuStreamQuery after 10 error 600", "cuda:3 cuStreamQuery after 10 error 719"),
			cudaGPU(name, 3, 719, "a bf16 product of 128 rows and all_reduce of 64 KiB, at once: cuStreamQuery(3): CUDA_ERROR_LAUNCH_FAILED (CUDA error 719)")),
		on8("an all-reduce that does not end", hang, of("cuda:3 cuStreamQuery after 1 error 600"),
			says(Finding{Code: "nccl.hung", Severity: Fail, Remedy: RebootNode, Want: "an end within 5s"}, "a bf16 product of 128 rows and all_reduce of 64 KiB, to warm up does not end on gpu3 0000:13:00.0")),
		on8("a product that does not end", hang, of("cuda:3 cuStreamQuery after 2 error 600"),
			gpuFinding(name, 3, Finding{Code: "active.stuck", Severity: Fail, Remedy: ResetGPU, Want: "an end within 2.5s"},
				"a bf16 product of 128 rows and all_reduce of 64 KiB, to warm up: the work on it does not end; done on 7 other GPUs")),
		on8("several models", words(), nil, says(Finding{Code: "nccl.mixed", Severity: Warn, Want: "one model", Got: "2"}, "GPUs of several models work together")).
			but(func(s *scenario) { s.nvml.GPUs[7].Name = probe.Known("NVIDIA H100 NVL") }),
		on8("settings of the node", words(), nil,
			says(Finding{Code: "nccl.settings", Severity: OK}, "found NCCL_TOPO_FILE=/opt/gone.xml in /etc/nccl.conf"),
			says(Finding{Code: "nccl.environment", Severity: Warn, Remedy: FixConfig, Got: "no such file"}, "NCCL_TOPO_FILE=/opt/gone.xml in /etc/nccl.conf is no topology of this node")).
			holding("etc/nccl.conf", "NCCL_TOPO_FILE=/opt/gone.xml\n"),
	)
	return list
})

// A run that is refused keeps the fault that a run with the settings of nhc.toml has found.
func TestOverlapFaultOutlivesARefusal(t *testing.T) {
	t.Parallel()
	s := onGPUs("", nil, nil).withNCCL("cuda:"+gemmRoom, "cuda:3 beside = 0.4")
	root := s.build(t)
	dir := t.TempDir()
	libraries := s.libraries(t, dir)
	run := func() []Finding {
		env := &Env{Host: probe.NewHost(root), Vars: map[string]string{NCCLEnvSetting: "NCCL_IB_TC=106"}, Doing: func(string) {}}
		env.Host.SetLibraries(libraries)
		env.Host.SetNVML(s.nvml, nil)
		env.Host.SetPast("/past")
		c := &compCommOverlap{Matrix: overlapMatrix, Size: overlapSize}
		if err := c.Bind([]string{"-n", "128", "-e", "64K", "-t", "10"}); err != nil {
			t.Fatal(err)
		}
		return c.Run(t.Context(), env)
	}
	if got := run(); Worst(got) != Fail {
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
		if err := (&compCommOverlap{Matrix: overlapMatrix, Size: overlapSize}).Bind(words); err == nil {
			t.Errorf("%q: no error", words)
		}
	}
}
