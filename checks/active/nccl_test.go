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
	"github.com/nhc-gpu/nhc-gpu/tests/fakecuda"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenccl"
)

// withNCCL gives a scenario the fake libraries: lines for the fake libcuda, which begin
// with cuda:, and for the fake libnccl.
func withNCCL(s checktest.Scenario, lines ...string) checktest.Scenario {
	s.Files = maps.Clone(s.Files)
	s.Files[boot] = "11111111-2222-3333-4444-555555555555\n"
	cuda, nccl := []string{"* memory = 2097152"}, []string{}
	for _, l := range lines {
		if rest, ok := strings.CutPrefix(l, "cuda:"); ok {
			cuda = append(cuda, rest)
		} else {
			nccl = append(nccl, l)
		}
	}
	s.Libraries = func(t *testing.T, dir string) map[string]string {
		t.Helper()
		return map[string]string{probe.SettingCUDA: placeCUDA(t, dir, len(s.NVML.GPUs), cuda), probe.SettingNCCL: placeNCCL(t, dir, nccl)}
	}
	return s
}

func placeCUDA(t *testing.T, dir string, gpus int, lines []string) string {
	t.Helper()
	lib, err := fakecuda.Place(dir, fakecuda.Scenario(gpus, lines...))
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

func placeNCCL(t *testing.T, dir string, lines []string, missing ...string) string {
	t.Helper()
	lib, err := fakenccl.Place(dir, strings.Join(lines, "\n"), missing...)
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

// withOldNCCL installs a libnccl without the functions that an old release lacks, or none.
func withOldNCCL(s checktest.Scenario, missing ...string) checktest.Scenario {
	all := s.Libraries
	s.Libraries = func(t *testing.T, dir string) map[string]string {
		t.Helper()
		vars := all(t, dir)
		vars[probe.SettingNCCL] = "/nonexistent/libnccl.so.2"
		if missing != nil {
			vars[probe.SettingNCCL] = placeNCCL(t, dir+"/old", []string{"- version = 2408"}, missing...)
		}
		return vars
	}
	return s
}

// small returns arguments of a test that is fast on a CPU.
func small(op string, more ...string) []string {
	return append(append([]string{"-b", "64K", "-t", "10"}, more...), op)
}

func ncclSays(name string, f checks.Finding, text string) checks.Finding {
	f.Message = name + ":  " + text + checktest.WantGot(f)
	if f.Want == "" && f.Got == "" {
		f.Got = text
	}
	return f
}

// pairsSlow returns the finding about a GPU with slower links than the others.
func pairsSlow(name string, gpu int, got string) checks.Finding {
	return checktest.GPUFinding(name, gpu, checks.Finding{Code: "nccl.peers", Severity: checks.Fail, Want: "at least 331.6 GB/s", Got: got},
		"exchange with each other GPU by nvlink, each way: far from its peers (median 390.1 GB/s)")
}

func TestNCCL(t *testing.T) { checktest.Run(t, "check_nccl") }

var _ = checktest.Table("check_nccl", func(name string) []checktest.Scenario {
	says := func(f checks.Finding, text string) checks.Finding { return ncclSays(name, f, text) }
	on8 := func(title string, words []string, lines []string, want ...checks.Finding) checktest.Scenario {
		return withNCCL(checktest.OnGPUs(title, words, nil, want...), lines...)
	}
	broken := func(s checktest.Scenario) checktest.Scenario { s.Broken = true; return s }
	var list []checktest.Scenario
	for _, op := range cuda.NCCLOpNames() {
		list = append(list, on8("healthy "+op, small(op), nil))
	}
	list = append(list,
		on8("events say that no time has passed", small("all_reduce"), checktest.Of("cuda:* elapsed = 0"),
			says(checks.Finding{Code: "cuda.error", Severity: checks.Unknown}, "all_reduce of 64 KiB on 8 GPUs (warm-up): the GPU's events report a duration of zero for the work")),
		on8("fast enough", small("all_reduce", "-w", "470"), nil).OrTable(map[string]any{"op": "all_reduce", "begin": "64K", "limit": 10, "bandwidth": 470}),
		on8("one slow GPU of eight", small("all_reduce"), checktest.Of("3 links = 60"), pairsSlow(name, 3, "60.0 GB/s")),
		on8("slower than the words", small("all_reduce", "-w", "470"), checktest.Of("- busbw all_reduce = 360"),
			says(checks.Finding{Code: "nccl.slow", Severity: checks.Fail, Want: "at least 470.0 GB/s", Got: "360.0 GB/s"}, "bus bandwidth of all_reduce, 64 KiB by nvls")),
		on8("wrong data on one GPU of eight", small("all_reduce"), checktest.Of("3 wrong all_reduce = 17 22"),
			checktest.GPUFinding(name, 3, checks.Finding{Code: "nccl.wrong", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: "1323 in element 17", Got: "1835"},
				"all_reduce of 64 KiB on 8 GPUs: 1 wrong element")),
		on8("wrong data from one GPU of eight", small("all_gather"), checktest.Of("* wrong all_gather = 6150 22"),
			checktest.GPUFinding(name, 3, checks.Finding{Code: "nccl.wrong", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: "51 in element 6150", Got: "35"},
				"all_gather of 64 KiB on 8 GPUs: 1 wrong element from gpu3 on gpu0")),
		on8("wrong data everywhere", small("all_reduce"), checktest.Of("* wrong all_reduce = 17 22"),
			says(checks.Finding{Code: "nccl.wrong", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: "1323 in element 17", Got: "1835"},
				"all_reduce of 64 KiB on 8 GPUs: 1 wrong element on gpu0, gpu1, gpu2, gpu3, gpu4, gpu5, gpu6, gpu7")),
		on8("a GPU whose memory keeps a bit", small("all_reduce"), checktest.Of("cuda:3 stuck = 582 6 1"),
			checktest.GPUFinding(name, 3, checks.Finding{Code: "nccl.wrong", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: "152 in element 17", Got: "216"},
				"all_reduce of 64 KiB on 8 GPUs: write the data: 1 wrong element, before NCCL moves them")),
		broken(on8("wrong data on all before NCCL moves them", small("all_reduce"), checktest.Of("cuda:* stuck = 583 7 1"),
			says(checks.Finding{Code: "nccl.alike", Severity: checks.Unknown, Want: "214 in element 17", Got: "-214"},
				"all_reduce of 64 KiB on 8 GPUs: write the data: wrong on all 8 GPUs"))),
		on8("forced algorithm", small("all_reduce", "--algo", "ring", "-w", "500"), nil,
			says(checks.Finding{Code: "nccl.slow", Severity: checks.Fail, Want: "at least 500.0 GB/s", Got: "480.1 GB/s"}, "bus bandwidth of all_reduce, 64 KiB by ring")),
		on8("NCCL does not say how", small("all_reduce", "-w", "500"), checktest.Of("- silent = 1"),
			says(checks.Finding{Code: "nccl.slow", Severity: checks.Fail, Want: "at least 500.0 GB/s", Got: "480.1 GB/s"}, "bus bandwidth of all_reduce, 64 KiB by auto")),
		but(on8("below the platform's floor", small("all_reduce"), nil,
			says(checks.Finding{Code: "nccl.floor", Severity: checks.Warn, Want: "at least 490.0 GB/s", Got: "480.1 GB/s"}, "bus bandwidth of all_reduce, 64 KiB by nvls (figure all_reduce of the platform test)")), func(s *checktest.Scenario) { s.Platform = ncclPlatform(false, 64<<10) }),
		but(on8("below a floor of another size", small("all_reduce"), nil), func(s *checktest.Scenario) { s.Platform = ncclPlatform(true, 128<<10) }),
		but(on8("the size of the floor", checktest.Of("-t", "10", "all_reduce"), nil,
			says(checks.Finding{Code: "nccl.floor", Severity: checks.Fail, Want: "at least 490.0 GB/s", Got: "480.0 GB/s"}, "bus bandwidth of all_reduce, 128 KiB by nvls (figure all_reduce of the platform test)")), func(s *checktest.Scenario) { s.Platform = ncclPlatform(true, 128<<10) }),
		on8("by the network", small("all_reduce", "--no-p2p", "-w", "50"), nil,
			says(checks.Finding{Code: "nccl.slow", Severity: checks.Fail, Want: "at least 50.0 GB/s", Got: "40.0 GB/s"}, "bus bandwidth of all_reduce, 64 KiB by ring, over the network")),
		on8("one slow HCA", small("all_reduce", "--no-p2p"), checktest.Of("3 links = 20"), checktest.GPUFinding(name, 3, checks.Finding{Code: "nccl.peers", Severity: checks.Fail, Want: "at least 34.0 GB/s", Got: "20.0 GB/s"},
			"exchange with each other GPU by network, each way: far from its peers (median 40.0 GB/s)")),
		broken(on8("no network", small("all_reduce", "--no-p2p"), checktest.Of("- network = Socket"),
			says(checks.Finding{Code: "nccl.network", Severity: checks.Unknown, Want: "IB, or a plug-in", Got: "Socket"}, "NCCL found no RDMA network"))),
		on8("one slow group", small("all_reduce", "--groups", "2", "-w", "470"), checktest.Of("3 links = 60"),
			says(checks.Finding{Code: "nccl.slow", Severity: checks.Fail, Want: "at least 470.0 GB/s", Got: "60.0 GB/s"}, "bus bandwidth of each of 2 all_reduce at once, 64 KiB by nvls")),
		on8("groups that do not come out", small("all_reduce", "--groups", "3"), nil,
			says(checks.Finding{Code: "nccl.groups", Severity: checks.Skip, Want: "equal groups of at least 2 GPUs"}, "8 GPUs cannot be split into 3 equal groups")),
		but(on8("several models", small("all_reduce"), nil, says(checks.Finding{Code: "nccl.mixed", Severity: checks.Warn, Want: "one model", Got: "2"}, "GPUs of several models work together")), func(s *checktest.Scenario) { s.NVML.GPUs[7].Name = nvml.Known("NVIDIA H100 NVL") }),
		but(on8("one GPU", small("all_reduce"), nil, checks.Finding{Code: "active.few", Severity: checks.Skip, Message: name + ":  needs 2 GPUs, 1 available"}), func(s *checktest.Scenario) { s.NVML.GPUs = s.NVML.GPUs[:1] }),
		but(on8("one GPU of eight has no handle", small("all_reduce"), nil, checktest.Gpu3In(name, checktest.ErrLost)), func(s *checktest.Scenario) { s.NVML.GPUs[3].Err = checktest.ErrLost }),
		broken(withOldNCCL(on8("no NCCL", small("all_reduce"), nil, says(checks.Finding{Code: "nccl.library", Severity: checks.Unknown}, "cannot use NCCL: load /nonexistent/libnccl.so.2: not found")))),
		broken(withOldNCCL(on8("an old NCCL", small("sendrecv"), nil,
			says(checks.Finding{Code: "nccl.old", Severity: checks.Unknown, Want: "2.7 or later", Got: "2.4.8"}, "this NCCL has no send and receive, which sendrecv needs")), fakenccl.Old...)),
		withOldNCCL(on8("an old NCCL that is new enough", small("all_reduce"), nil), fakenccl.Old...),
		broken(but(on8("no CUDA", small("all_reduce"), nil, says(checks.Finding{Code: "cuda.library", Severity: checks.Unknown}, "cannot ask CUDA: load /nonexistent/libcuda.so.1: not found")), func(s *checktest.Scenario) {
			all := s.Libraries
			s.Libraries = func(t *testing.T, dir string) map[string]string {
				vars := all(t, dir)
				vars[probe.SettingCUDA] = "/nonexistent/libcuda.so.1"
				return vars
			}
		})),
		broken(on8("GPUs cannot join", small("all_reduce"), checktest.Of("- ncclCommInitAll error 2", "- warn = Call to bind failed : Address already in use"),
			says(checks.Finding{Code: "nccl.error", Severity: checks.Unknown}, "cannot create the communicator: ncclCommInitAll: ncclSystemError (NCCL error 2): Call to bind failed : Address already in use"))),
		broken(on8("NCCL says it in its last error", small("all_reduce"), checktest.Of("- ncclCommInitAll error 3", "- last = no luck"),
			says(checks.Finding{Code: "nccl.error", Severity: checks.Unknown}, "cannot create the communicator: ncclCommInitAll: ncclInternalError (NCCL error 3): no luck"))),
		broken(on8("an error of CUDA in NCCL that no GPU has", small("all_reduce"), checktest.Of("- ncclGroupEnd after 3 error 1", "- warn = Cuda failure 719 'unspecified launch failure'"),
			says(checks.Finding{Code: "nccl.error", Severity: checks.Unknown}, "all_reduce of 64 KiB on 8 GPUs: ncclGroupEnd: ncclUnhandledCudaError (NCCL error 1): Cuda failure 719 'unspecified launch failure'"))),
		broken(on8("an error of CUDA in NCCL that is of the node", small("all_reduce"), checktest.Of("- ncclCommInitAll error 1", "- warn = Cuda failure 802 'system not yet initialized'"),
			cudaNCCL(802, says, "cannot create the communicator: ncclCommInitAll: ncclUnhandledCudaError (NCCL error 1): Cuda failure 802 'system not yet initialized'"))),
		on8("an error of CUDA in NCCL, and on one GPU", small("all_reduce"), checktest.Of("- ncclGroupEnd after 3 error 1", "- warn = Cuda failure 719 'unspecified launch failure'", "cuda:3 cuStreamQuery after 3 error 719", "* ncclCommAbort error 1"),
			findUsableGPU(name, 3, 719, "all_reduce of 64 KiB on 8 GPUs: cuStreamQuery(3): CUDA_ERROR_LAUNCH_FAILED (CUDA error 719)")),
		on8("one GPU fails, and another waits for it", small("all_reduce"), checktest.Of("cuda:0 cuStreamQuery after 3 error 600", "cuda:3 cuStreamQuery after 3 error 214"),
			findUsableGPU(name, 3, 214, "all_reduce of 64 KiB on 8 GPUs: cuStreamQuery(3): CUDA_ERROR_ECC_UNCORRECTABLE (CUDA error 214)")),
		broken(on8("a kernel of NCCL fails on all GPUs", small("all_reduce"), checktest.Of("cuda:* cuStreamQuery after 24 error 719"), acquitted(name, 8, 719, "all_reduce of 64 KiB on 8 GPUs")...)),
		on8("an error of CUDA on one GPU", small("all_reduce"), checktest.Of("cuda:3 cuStreamQuery after 3 error 214"),
			findUsableGPU(name, 3, 214, "all_reduce of 64 KiB on 8 GPUs: cuStreamQuery(3): CUDA_ERROR_ECC_UNCORRECTABLE (CUDA error 214)")),
		broken(on8("an error beside the work", small("all_reduce"), checktest.Of("3 ncclCommGetAsyncError error 6"),
			says(checks.Finding{Code: "nccl.error", Severity: checks.Unknown}, "all_reduce of 64 KiB on 8 GPUs (warm-up): a collective: ncclRemoteError (NCCL error 6)"))),
		on8("an operation that does not end", checktest.Of("-b", "64K", "-t", "10", "all_reduce"), checktest.Of("cuda:3 cuStreamQuery after 2 error 600"),
			says(checks.Finding{Code: "nccl.hung", Severity: checks.Fail, Remedy: checks.RebootNode, Want: "an end within 5s"}, "all_reduce of 64 KiB on 8 GPUs does not end on gpu3 0000:13:00.0")),
		on8("an operation that does not end, and its communicators neither", checktest.Of("-b", "64K", "-t", "10", "all_reduce"), checktest.Of("cuda:3 cuStreamQuery after 2 error 600", "* ncclCommAbort hang", "cuda:3 cuDevicePrimaryCtxReset hang"),
			says(checks.Finding{Code: "nccl.hung", Severity: checks.Fail, Remedy: checks.RebootNode, Want: "an end within 5s"}, "all_reduce of 64 KiB on 8 GPUs does not end on gpu3 0000:13:00.0")),
		on8("an operation that does not end in too short a time", checktest.Of("-b", "64K", "-t", "1", "all_reduce"), checktest.Of("cuda:3 cuStreamQuery after 2 error 600"),
			says(checks.Finding{Code: "active.time", Severity: checks.Unknown, Want: "at most 1s"}, "stopped: time limit reached")),
		on8("a kernel of one GPU that does not end", small("all_reduce"), checktest.Of("cuda:3 cuStreamQuery error 600"),
			checktest.GPUFinding(name, 3, checks.Finding{Code: "active.stuck", Severity: checks.Fail, Remedy: checks.ResetGPU, Want: "an end within 2.5s"},
				"all_reduce of 64 KiB on 8 GPUs: write the data: work does not end; done on 7 other GPUs")),
		broken(on8("the first operation over the network does not end", checktest.Of("-b", "64K", "-t", "5", "--no-p2p", "all_reduce"), checktest.Of("cuda:* cuStreamQuery after 8 error 600"),
			says(checks.Finding{Code: "nccl.reach", Severity: checks.Unknown, Remedy: checks.CheckFabric, Want: "an end within 3s"},
				"all_reduce of 64 KiB on 8 GPUs (warm-up) does not end, and the adapters of the node may not reach each other"))),
		on8("settings of the site", small("all_reduce", "--env", "NCCL_IB_HCA=mlx5_0", "--env", "NCCL_IB_TC=106"), nil,
			says(checks.Finding{Code: "nccl.settings", Severity: checks.OK}, "set NCCL_IB_HCA=mlx5_0 from this line, NCCL_IB_TC=106 from this line")).
			OrTable(map[string]any{"op": "all_reduce", "begin": "64K", "limit": 10, "env": []any{"NCCL_IB_HCA=mlx5_0", "NCCL_IB_TC=106"}}),
		broken(on8("too little memory", checktest.Of("-b", "1G", "all_reduce"), nil,
			says(checks.Finding{Code: "nccl.memory", Severity: checks.Unknown, Want: "2 GiB", Got: "1.5 MiB"}, "too little free memory on a GPU for all_reduce of 1 GiB"))),
		broken(on8("an operation that one GPU refuses", checktest.Of("-b", "64K", "all_reduce"), []string{"3 ncclAllReduce error 3"},
			checktest.GPUFinding("check_nccl", 3, checks.Finding{Code: "nccl.error", Severity: checks.Unknown}, "all_reduce of 64 KiB on 8 GPUs (warm-up): ncclAllReduce: ncclInternalError (NCCL error 3)"))),
		broken(on8("too few bytes", checktest.Of("-b", "16", "all_gather"), nil,
			says(checks.Finding{Code: "config.value", Severity: checks.Unknown, Want: "a larger size", Got: "16 bytes"}, "size too small for all_gather"))),
		on8("settings of the node", small("all_reduce"), nil,
			says(checks.Finding{Code: "nccl.settings", Severity: checks.OK}, "found NCCL_IB_HCA=mlx5 in /etc/nccl.conf, NCCL_TOPO_FILE=/opt/gone.xml in /etc/nccl.conf"),
			says(checks.Finding{Code: "nccl.environment", Severity: checks.Warn, Remedy: checks.FixConfig, Got: "no such file"}, "NCCL_TOPO_FILE=/opt/gone.xml in /etc/nccl.conf is not a topology of this node")).
			Holding("etc/nccl.conf", "# ours\nNCCL_IB_HCA=mlx5\nNCCL_TOPO_FILE=/opt/gone.xml\n"),
		on8("a topology of another node", small("all_reduce", "--topo", "/opt/topo.xml"), nil,
			says(checks.Finding{Code: "nccl.environment", Severity: checks.Warn, Remedy: checks.FixConfig, Got: "it has GPUs at 0001:00:00.0, none of them on this node"}, "NCCL_TOPO_FILE=/opt/topo.xml in this line is not a topology of this node")).
			Holding("opt/topo.xml", `<system version="1"><cpu numaid="0"><pci busid="0001:00:00.0" class="0x030200"><gpu dev="0"/></pci></cpu></system>`),
		broken(on8("an invalid topology", small("all_reduce", "--topo", "/opt/topo.xml"), nil,
			says(checks.Finding{Code: "nccl.environment", Severity: checks.Warn, Remedy: checks.FixConfig, Got: "read /opt/topo.xml: not XML: XML syntax error on line 1: unexpected EOF"}, "NCCL_TOPO_FILE=/opt/topo.xml in this line is not a topology of this node")).
			Holding("opt/topo.xml", "<system")),
		on8("the topology of this node", small("all_reduce", "--topo", "/opt/topo.xml"), nil).
			Holding("opt/topo.xml", `<system version="1"><pci busid="0000:13:00.0" class="0x030200"/></system>`),
	)
	for _, s := range checktest.GPUCommon(name, small("all_reduce")...) {
		if !strings.HasPrefix(s.Name, "one GPU has no handle") { // the others go on without it
			list = append(list, s)
		}
	}
	return list
})

// but changes a scenario.
func but(s checktest.Scenario, change func(*checktest.Scenario)) checktest.Scenario {
	change(&s)
	return s
}

func ncclPlatform(verified bool, size int64) *checks.Platform {
	return &checks.Platform{Name: "test", Floors: []checks.Floor{{
		Test: "all_reduce", Algorithm: "nvls", Size: size, Ranks: 8, Value: 490, Unit: "GB/s", Source: "a test", Verified: verified,
	}}}
}

// cudaNCCL returns the finding about a CUDA error within NCCL.
func cudaNCCL(code int, says func(checks.Finding, string) checks.Finding, text string) checks.Finding {
	f := checks.Finding{Code: fmt.Sprintf("cuda.error.%d", code)}
	f.Severity, f.Remedy, _ = cudaFinding(&cuda.Error{Code: code})
	return says(f, text)
}

func findUsableGPU(name string, gpu, code int, text string) checks.Finding {
	f := checks.Finding{Code: fmt.Sprintf("cuda.error.%d", code)}
	f.Severity, f.Remedy, _ = cudaFinding(&cuda.Error{Code: code})
	return checktest.GPUFinding(name, gpu, f, text)
}

// acquitted returns the finding about an error that the kernel of every GPU meets.
func acquitted(name string, gpus, code int, doing string) (list []checks.Finding) {
	for i := range gpus {
		e := &cuda.Error{Call: fmt.Sprintf("cuStreamQuery(%d)", i), Code: code, Name: cudaErrors()[code].Name}
		f := checktest.GPUFinding(name, i, checks.Finding{Code: cudaCode(e), Severity: checks.Unknown}, fmt.Sprintf("%s: %v", doing, e))
		f.Message += fmt.Sprintf("; on %d of %d GPUs: the cause is the driver or nhc-gpu, not the GPU", gpus, gpus)
		list = append(list, f)
	}
	return list
}

// A run of several sizes reports the rate of each.
func TestNCCLRates(t *testing.T) {
	t.Parallel()
	s := withNCCL(checktest.OnGPUs("", nil, nil))
	env := &checks.Env{Host: probe.NewHost(s.Build(t)), Doing: func(string) {}}
	probe.SetLibraries(env.Host, s.Libraries(t, t.TempDir()))
	nvml.Set(env.Host, s.NVML, nil)
	c := &nccl{}
	if err := checks.Bind(c, small("all_reduce", "-e", "256K")); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range c.Run(t.Context(), env) {
		got = append(got, fmt.Sprint(f.Severity, " ", f.Code, " ", f.Message))
	}
	want := []string{
		"ok nccl.rates check_nccl:  bus bandwidth of all_reduce, 64 KiB by nvls, GB/s: 480.1",
		"ok nccl.rates check_nccl:  bus bandwidth of all_reduce, 128 KiB by nvls, GB/s: 480.0",
		"ok nccl.rates check_nccl:  bus bandwidth of all_reduce, 256 KiB by nvls, GB/s: 480.0",
		"ok nccl.rates check_nccl:  exchange with each other GPU by nvlink, each way, GB/s: " +
			"gpu0 390.1, gpu1 390.1, gpu2 390.1, gpu3 390.1, gpu4 390.1, gpu5 390.1, gpu6 390.1, gpu7 390.1; spread 0.0 %",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
