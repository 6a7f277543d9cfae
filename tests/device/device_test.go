// Package device_test runs the acceptance kit for machines with a GPU on fake libraries, so that
// its script works when such a machine is available.
package device_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/fakecuda"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenccl"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

var program string

func TestMain(m *testing.M) { os.Exit(built.Main(m, &program, "gcc")) }

// kit is the directory of make device-kit, with fake libraries and a fake nvidia-smi.
type kit struct {
	dir   string
	words []string
}

// newKit creates a kit; gpu and cuda change the healthy H100 of the fake libraries, and report
// replaces text of nvidia-smi.
func newKit(t *testing.T, gpu, cuda []string, report ...string) kit {
	t.Helper()
	k := kit{dir: t.TempDir()}
	must := func(path string, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, argv := range [][]string{
		{"go", "build", "-buildvcs=false", "-ldflags=-extldflags=-Wl,-z,lazy", "-o", k.dir + "/readings", "./readings"},
		{"gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", k.dir + "/yardstick.real", "src/yardstick.c", "-ldl"},
		{"cp", program, k.dir + "/nhc-gpu"}, // a separate copy: the script looks for processes of this program
		{"cp", "acceptance.sh", k.dir},
	} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", argv, err, out)
		}
	}
	// While the yardstick uses the GPU, NVML shows its process.
	nvml := must(fakenvml.Place(k.dir, fakenvml.Scenario(fakenvml.H100, 1, append(gpu, "0 nvmlDeviceGetComputeRunningProcesses with foreign = 1 16777216")...)))
	libcuda := must(fakecuda.Place(k.dir, fakecuda.Scenario(1, append(slowGEMM(), cuda...)...)))
	nccl := must(fakenccl.Place(k.dir, ""))
	files := fakenvml.Files(fakenvml.H100, 1)
	files["proc/meminfo"] = "MemTotal: 1056764928 kB\nMemFree: 1000000000 kB\n"
	files["proc/sys/kernel/random/boot_id"] = "11111111-2222-3333-4444-555555555555\n"
	must("", fakenvml.Write(k.dir+"/root", files))
	must("", built.WriteProgram(k.dir+"/yardstick", []byte(`#!/bin/sh
if [ "$2" = hold ]; then
  touch "$(dirname "$0")/foreign"
  "$0.real" "$@"
  rc=$?
  rm "$(dirname "$0")/foreign"
  exit $rc
fi
exec "$0.real" "$@"
`)))
	text := string(mustRead(t, "testdata/h100.xml"))
	for i := 0; i+1 < len(report); i += 2 {
		if !strings.Contains(text, report[i]) {
			t.Fatalf("testdata/h100.xml has no %q", report[i])
		}
		text = strings.ReplaceAll(text, report[i], report[i+1])
	}
	must("", os.WriteFile(k.dir+"/report.xml", []byte(text), 0o644))
	must("", built.WriteProgram(k.dir+"/nvidia-smi", mustRead(t, "testdata/nvidia-smi")))
	k.words = []string{"HOSTROOT=" + k.dir + "/root", "NVML_LIBRARY=" + nvml, "CUDA_LIBRARY=" + libcuda, "CUBLASLT_LIBRARY=" + libcuda, "NCCL_LIBRARY=" + nccl}
	return k
}

// slowGEMM makes products slow on the fakes' clock, so that few of them are computed.
func slowGEMM() []string {
	lines := []string{"* memory = 134217728"}
	for kernel := range strings.FieldsSeq("cublaslt_f64 cublaslt_f32 cublaslt_bf16 cublaslt_f16 cublaslt_e4m3 gemm_f64 gemm_f32 gemm_f16 gemm_bf16 gemm_tf32 gemm_e4m3 gemm_f16_wmma") {
		lines = append(lines, "* tflops "+kernel+" = 0.002")
	}
	return lines
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// run runs the script and returns its summary and its exit status.
func (k kit) run(t *testing.T, environ ...string) (summary string, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, k.dir+"/acceptance.sh", k.dir+"/out")
	cmd.Env = append(append(os.Environ(), "FAKE=1", "SMI="+k.dir+"/nvidia-smi", "WORDS="+strings.Join(k.words, " ")), environ...)
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	err := cmd.Run()
	if exited := new(exec.ExitError); err != nil && !errors.As(err, &exited) {
		t.Fatalf("%v\n%s", err, text.String())
	}
	if strings.Contains(text.String(), "acceptance.sh: line") {
		t.Errorf("bash complains:\n%s", text.String())
	}
	return string(mustRead(t, k.dir+"/out/summary.txt")), cmd.ProcessState.ExitCode()
}

// lines returns the lines of a summary that begin with a word, without word and time.
func lines(summary, word string) (list []string) {
	for _, m := range regexp.MustCompile(`(?m)^`+word+` +\d+s (.*)$`).FindAllStringSubmatch(summary, -1) {
		list = append(list, m[1])
	}
	return list
}

// uncompared are values of NVML that nvidia-smi -q -x does not have.
var uncompared = map[string]string{
	"InforomValid": "nvidia-smi warns of it elsewhere", "Reset": "older drivers' words for the recovery action", "DrainReset": "the same",
	"NameErr": "no value", "PartNumber": "releases of nvidia-smi give it different names", "MemoryTotal": "drivers before 510 alone, where Memory is not told",
	"Banks":  "not for every model, and new in drivers of 2026",
	"NVLink": "nvidia-smi nvlink -s is in node.txt", "NVLinksUnread": "no value", "NVLinkErrors": "nvidia-smi nvlink -e", "NUMA": "nvidia-smi topo -m is in node.txt", "Index": "nvidia-smi goes by the PCI address",
}

// The script compares every value that nhc-gpu reads of a GPU.
func TestEveryValueIsCompared(t *testing.T) {
	t.Parallel()
	code := string(mustRead(t, "readings/main.go"))
	seen := 0
	var walk func(of reflect.Type)
	walk = func(of reflect.Type) {
		for f := range of.Fields() {
			switch {
			case uncompared[f.Name] != "":
			case f.Type.Kind() == reflect.Struct && !strings.HasPrefix(f.Type.Name(), "Reading["):
				walk(f.Type)
			default:
				if seen++; !strings.Contains(code, "."+f.Name) {
					t.Errorf("%s of %s is not compared with nvidia-smi: add it to readings/main.go, or to uncompared with the reason", f.Name, of.Name())
				}
			}
		}
	}
	walk(reflect.TypeFor[nvml.GPU]())
	if seen < 50 {
		t.Errorf("only %d values were found", seen)
	}
}

// Without a GPU the script reports that, and tests nothing.
func TestNoGPU(t *testing.T) {
	t.Parallel()
	k := newKit(t, nil, nil)
	k.words = []string{"NVML_LIBRARY=" + k.dir + "/none.so"}
	if err := built.WriteProgram(k.dir+"/nvidia-smi", []byte("#!/bin/sh\necho NVIDIA-SMI has failed\nexit 9\n")); err != nil {
		t.Fatal(err)
	}
	summary, status := k.run(t)
	looks := lines(summary, "LOOK")
	if status != 3 || len(looks) != 2 || !strings.HasPrefix(looks[0], "no GPU: ") || len(lines(summary, "PASS")) > 0 || len(lines(summary, "FAIL")) > 0 {
		t.Errorf("exit status %d, want 3\n%s", status, summary)
	}
}

// A healthy GPU passes every test of the script, from the values of NVML to the signals; the
// script's files contain no serial numbers.
func TestHealthyGPU(t *testing.T) {
	tier.All(t)
	t.Parallel()
	need.Root(t, "the script of the kit")
	k := newKit(t, nil, nil)
	summary, status := k.run(t)
	if status != 0 || len(lines(summary, "FAIL")) > 0 {
		t.Errorf("exit status %d\n%s", status, summary)
	}
	for _, want := range []string{
		"libcuda is found", "passive checks: a result of each", "the platform is recognised", "nvml driver", "nvml gpu0 UUID", "nvml gpu0 power limit, W",
		"the yardstick runs", "from the host, GB/s", "triad kernel", "memory tested", "launch latency", "own GEMM", "cuBLASLt GEMM", "soak: no failure", "highest power",
		"five active tests", "check_nccl on this machine", "a GPU that another process uses", "a test stops when another process comes", "SIGKILL of nhc-gpu in a test: none",
		"SIGTERM of nhc-gpu in a test: none", "SIGKILL of its worker is reported", "SIGKILL of its worker: the GPU's memory", "SIGSTOP of its worker: the run ends", "the GPU's settings are",
	} {
		if !slices.ContainsFunc(lines(summary, "PASS"), func(l string) bool { return strings.HasPrefix(l, want) }) {
			t.Errorf("nothing passes %q", want)
		}
	}
	if t.Failed() {
		t.Log(summary)
	}
	left, _ := filepath.Glob(k.dir + "/out/*")
	for _, file := range left {
		if data := mustRead(t, file); bytes.Contains(data, []byte(fakenvml.Serial(0))) || bytes.Contains(data, []byte(fakenvml.UUID(0))) {
			t.Errorf("%s names a GPU's serial or UUID", filepath.Base(file))
		}
	}
	if len(left) < 6 || len(left) > 8 {
		t.Errorf("the script leaves %d files, want the summary and 5 to 7 logs: %v", len(left), left)
	}
}

// Each of these faults becomes a separate FAIL: a value that differs from nvidia-smi, an error of
// NVML, slow copies and kernels, wrong products, a setting that changes, a driver that leaks.
func TestFaultyGPU(t *testing.T) {
	tier.All(t)
	t.Parallel()
	need.Root(t, "the script of the kit")
	k := newKit(t,
		[]string{"0 nvmlDeviceGetPcieReplayCounter error 999"},
		[]string{"0 h2d = 20", "0 membw triad = 900", "0 wrong product = 0x40 5", "0 stuck = 0x1234 5 1"},
		"<vbios_version>96.00.30.00.01<", "<vbios_version>96.00.99.00.01<", "<gpu_temp>31 C<", "<gpu_temp>61 C<", "<current_ecc>Enabled<", "<current_ecc>Disabled<")
	summary, status := k.run(t, "FAKE_DRIFT=1", "FAKE_WATTS=300", "FAKE_ALIKE=1")
	if status != 1 {
		t.Errorf("exit status %d, want 1", status)
	}
	for word, list := range map[string][]string{
		"FAIL": {"nvml gpu0 VBIOS: 96.00.30.00.01, nvidia-smi 96.00.99.00.01", "nvml gpu0 temperature: 31, nvidia-smi 61 C", "nvml gpu0 ECC: true, nvidia-smi Disabled",
			"nvml: error at .GPUs[0].Link.Replays", "memory test: no failure", "own GEMM: no failure", "cuBLASLt GEMM: no failure", "triad kernel, GB/s",
			"highest power of the soak, W, against the limit: 300", "the GPU's settings are what they were"},
		"LOOK": {"both counters move alike"},
	} {
		for _, want := range list {
			if !slices.ContainsFunc(lines(summary, word), func(l string) bool { return strings.HasPrefix(l, want) }) {
				t.Errorf("no %s says %q", word, want)
			}
		}
	}
	if t.Failed() {
		t.Log(summary)
	}
}
