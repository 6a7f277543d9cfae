package fakenvml_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

var program string

func TestMain(m *testing.M) { os.Exit(built.Main(m, &program, "gcc")) }

// gpuLines are all checks of GPUs, between two lines of another lane; the second of these fails.
const gpuLines = `
* || check_file_test -d /proc
* || check_gpu_count
* || check_gpu_driver
* || check_gpu_recovery
* || check_gpu_ecc
* || check_gpu_remap
* || check_gpu_mode
* || check_gpu_persistence
* || check_gpu_vbios
* || check_gpu_temp
* || check_gpu_power
* || check_gpu_clocks
* || check_gpu_throttle
* || check_gpu_pcie
* || check_gpu_nvlink
* || check_gpu_fabric
* || check_gpu_procs
* || check_file_test -f /other/lane
`

// node is a node of files with its NVML.
type node struct{ dir, lib string }

// newNode creates one. Its memory directory is below its own root.
func newNode(t *testing.T, model fakenvml.Model, gpus int, lines []string, missing ...string) node {
	t.Helper()
	n := node{dir: t.TempDir()}
	var err error
	if n.lib, err = fakenvml.Place(n.dir, fakenvml.Scenario(model, gpus, lines...), missing...); err != nil {
		t.Fatal(err)
	}
	if err := fakenvml.Write(filepath.Join(n.dir, "root"), fakenvml.Files(model, gpus)); err != nil {
		t.Fatal(err)
	}
	return n
}

// name returns a name for this node, because only one run for each node name can be active.
func (n node) name() string {
	return built.NodeName(n.dir)
}

// run runs a configuration on the node, with arguments, and returns the output.
func (n node) run(t *testing.T, conf string, words ...string) (out string, took time.Duration) {
	t.Helper()
	file := filepath.Join(n.dir, "nhc.conf")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	argv := append(words, "-c", file, "LOGFILE=-", "MARK_OFFLINE=0", "HOSTROOT="+filepath.Join(n.dir, "root"), "NVML_LIBRARY="+n.lib)
	cmd := exec.CommandContext(ctx, program, argv...)
	cmd.Env = []string{"SLURMD_NODENAME=" + n.name()}
	if os.Geteuid() == 0 {
		t.Cleanup(func() { _ = os.RemoveAll("/run/nhc-gpu/" + n.name()) })
	}
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	began := time.Now()
	err := cmd.Run()
	if exited := new(exec.ExitError); err != nil && !errors.As(err, &exited) {
		t.Fatalf("%v\n%s", err, text.String())
	}
	return text.String(), time.Since(began)
}

// aCall is one call of NVML, with a node that makes it.
type aCall struct {
	name    string
	model   fakenvml.Model
	line    string   // the line that causes the call
	missing []string // functions that the library must lack for it
}

// elsewhere are the calls that other tests try.
var elsewhere = map[string]string{
	"nvmlDeviceGetMaxMigDeviceCount": "asked for a job with a MIG device, see tests/script/around.txtar",

	"nvmlDeviceGetMigDeviceHandleByIndex": "the same",

	"nvmlDeviceGetBoardPartNumber": "asked by nhc-gpu rma, see tests/script/rma.txtar",

	"nvmlDeviceGetSupportedEventTypes": "asked by nhc-gpu monitor, see TestWatch of checks/probe/nvml",

	"nvmlDeviceRegisterEvents": "the same",

	"nvmlGpmMetricsGet": "sampled while a job runs, see TestWatchGPM of checks/probe/nvml",

	"nvmlGpmQueryDeviceSupport": "the same",

	"nvmlGpmSampleAlloc": "the same",

	"nvmlGpmSampleGet": "the same",

	"nvmlDeviceQueryDrainState": "asked for a GPU that NVML does not show, see TestFaults",

	"nvmlDeviceGetClockInfo": "asked while an active test loads the GPU",
}

// calls returns all calls that the program makes.
func calls(t *testing.T) (list []aCall) {
	t.Helper()
	table, err := os.ReadFile("src/calls.h")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{
		"nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetPciInfo", "nvmlDeviceGetFieldValues",
		"nvmlDeviceGetMemoryErrorCounter", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetRowRemapperHistogram", "nvmlDeviceGetSramEccErrorStatus",
		"nvmlDeviceGetRepairStatus", "nvmlDeviceGetUnrepairableMemoryFlag_v1", "nvmlDeviceGetMarginTemperature", "nvmlSystemGetConfComputeState",
		"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetRetiredPages", "nvmlDeviceSetPersistenceMode", "nvmlDeviceGetUUID",
		"nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo", "nvmlDeviceGetP2PStatus",
		"nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetUtilizationRates",
	}
	for _, m := range regexp.MustCompile(`(?m)^[A-Z_]+\((\w+)`).FindAllSubmatch(table, -1) {
		names = append(names, string(m[1]))
	}
	for _, name := range names {
		c := aCall{name: name, model: fakenvml.H100}
		switch name {
		case "nvmlDeviceGetRetiredPages", "nvmlDeviceGetRetiredPagesPendingStatus":
			c.model = fakenvml.V100
		case "nvmlDeviceSetPersistenceMode":
			c.line = "3 nvmlDeviceGetPersistenceMode = 0"
		case "nvmlDeviceGetCurrentClocksThrottleReasons":
			c.missing = []string{"nvmlDeviceGetCurrentClocksEventReasons"}
		case "nvmlDeviceGetGpuFabricInfo":
			c.missing = []string{"nvmlDeviceGetGpuFabricInfoV"}
		case "nvmlDeviceGetPerformanceState", "nvmlDeviceGetUtilizationRates":
			c.line = "3 nvmlDeviceGetCurrPcieLinkGeneration = 1"
		case "nvmlDeviceGetDefaultEccMode":
			c.line = "3 nvmlDeviceGetEccMode = 0 0"
		}
		if elsewhere[name] != "" {
			continue
		}
		list = append(list, c)
	}
	return list
}

// The list has all calls in the code, so that the following tests omit none.
func TestEveryCallIsTried(t *testing.T) {
	t.Parallel()
	called, tried := map[string]bool{}, map[string]bool{}
	for _, c := range calls(t) {
		tried[c.name] = true
	}
	for name := range elsewhere {
		tried[name] = true
	}
	code := ""
	files, err := filepath.Glob("../../checks/probe/nvml/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code += string(text)
	}
	for _, m := range regexp.MustCompile(`"(nvml(?:Init|System|Device|Gpm)\w*?)(_v[23])?"`).FindAllStringSubmatch(code, -1) {
		called[m[1]] = true
	}
	if diff := cmp.Diff(called, tried); diff != "" {
		t.Errorf("(-called +tried):\n%s", diff)
	}
}

// spoil returns the lines that change the result of the call, for GPU 3 if it is about a GPU.
func (c aCall) spoil(action string) []string {
	device := "3"
	if strings.HasPrefix(c.name, "nvmlSystem") || c.name == "nvmlInit" || c.name == "nvmlDeviceGetCount" {
		device = "-"
	}
	return []string{c.line, device + " " + c.name + " " + action}
}

// everyCall runs the node of each call, some of them in parallel.
func everyCall(t *testing.T, action string, judge func(t *testing.T, c aCall, out string, took time.Duration)) {
	t.Helper()
	list := calls(t)
	var wg sync.WaitGroup
	slots := make(chan bool, 12)
	for _, c := range list {
		n := newNode(t, c.model, 8, c.spoil(action), c.missing...)
		slots <- true
		wg.Go(func() {
			defer func() { <-slots }()
			conf, timeout := gpuLines, "16"               // a loaded machine takes seconds to report
			if c.name == "nvmlDeviceSetPersistenceMode" { // an action: the other lane waits for it
				conf, timeout = strings.Replace(conf, "check_gpu_persistence", "check_gpu_persistence -s", 1), "24"
			}
			out, took := n.run(t, conf, "-a", "-t", timeout)
			judge(t, c, out, took)
		})
	}
	wg.Wait()
}

// Whichever call hangs, the verdict comes in time and names the call and its GPU, and the other
// lane's results are there.
func TestEveryCallHangs(t *testing.T) {
	t.Parallel()
	everyCall(t, "hang", func(t *testing.T, c aCall, out string, took time.Duration) {
		if took > 30*time.Second {
			t.Errorf("%s: %v", c.name, took)
		}
		named := regexp.MustCompile(`check_gpu_\w+:  (gpu3 0000:13:00\.0: )?hung \(in ` + c.name + `(_v\d)?` + c.device() + `: process \d+ in state S`)
		if !named.MatchString(out) {
			t.Errorf("%s: the call is not named:\n%s", c.name, out)
		}
		intact(t, c.name, out)
	})
}

// The same applies to a call that kills the process.
func TestEveryCallCrashes(t *testing.T) {
	tier.All(t)
	t.Parallel()
	everyCall(t, "crash", func(t *testing.T, c aCall, out string, _ time.Duration) {
		named := regexp.MustCompile(`check_gpu_\w+:  no result: its worker died in ` + c.name + `(_v\d)?` + c.device() + `( of gpu3 0000:13:00\.0)?: .*SIGSEGV`)
		if !named.MatchString(out) {
			t.Errorf("%s: the call is not named:\n%s", c.name, out)
		}
		intact(t, c.name, out)
	})
}

// Whichever call reports first that a GPU is lost, or requires a reset, the run fails once for that
// GPU, and for no other one.
func TestEveryCallFindsLost(t *testing.T) {
	t.Parallel()
	for _, state := range []struct{ action, text string }{{"error 15", "the GPU is lost"}, {"error 16", "the GPU requires a reset"}} {
		everyCall(t, state.action, func(t *testing.T, c aCall, out string, _ time.Duration) {
			about := `gpu3 0000:13:00\.0: ` + state.text + `,.* \(.*` + c.name + `(_v\d)?\(3(, \d)?\): NVML error ` + strings.TrimPrefix(state.action, "error ") + `\)`
			switch {
			case c.device() == "" && c.name != "nvmlInit" && c.name != "nvmlDeviceGetCount": // the whole node's, which is no GPU's state
				about = `a` + strings.TrimPrefix(state.text, "the") + ` \(` + c.name + `(_v\d)?: NVML error`
			case c.device() == "":
				about = `a` + strings.TrimPrefix(state.text, "the") + ` \(` + c.name
			}
			named := regexp.MustCompile(`Health check failed:  check_gpu_\w+:  ` + about)
			if n := len(named.FindAllString(out, -1)); n != 1 || strings.Count(out, "Health check failed:  check_gpu") != 1 || strings.Contains(out, "Health check unknown") {
				t.Errorf("%s %s: %d times, want 1:\n%s", c.name, state.action, n, out)
			}
			intact(t, c.name, out)
		})
	}
}

// Whichever call reports that its buffer is too small, the reading is an error or not needed, and
// the rest is read. Nothing crashes, hangs, or uses unlimited memory.
func TestEveryCallFindsBufferTooSmall(t *testing.T) {
	tier.All(t)
	t.Parallel()
	everyCall(t, "error 7", func(t *testing.T, c aCall, out string, took time.Duration) {
		if strings.Contains(out, "died") || strings.Contains(out, "internal error") || strings.Contains(out, "hung") || took > 12*time.Second {
			t.Errorf("%s, %v:\n%s", c.name, took, out)
		}
		if strings.Contains(c.name, "RunningProcesses") && !strings.Contains(out, "Health check unknown:  check_gpu_procs:  gpu3 0000:13:00.0: cannot be read: "+c.name) {
			t.Errorf("%s is not told of:\n%s", c.name, out)
		}
		intact(t, c.name, out)
	})
}

// A GPU without its power cable, or without interrupts, fails the run once, too, whichever check
// finds it.
func TestPowerCableAndInterrupts(t *testing.T) {
	t.Parallel()
	for state, text := range map[string]string{"error 8": "the GPU has no power cable attached", "error 11": "the GPU sends no interrupts"} {
		for _, call := range []string{"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetTemperature"} {
			n := newNode(t, fakenvml.H100, 8, []string{"3 " + call + " " + state})
			for _, lines := range []string{gpuLines, "* || check_gpu_temp\n"} {
				out, _ := n.run(t, lines, "-a")
				if strings.Count(out, "gpu3 0000:13:00.0: "+text) != 1 || strings.Count(out, "Health check failed:  check_gpu") != 1 || strings.Contains(out, "Health check unknown") {
					t.Errorf("%s %s:\n%s", call, state, out)
				}
			}
		}
	}
}

// Each line alone finds a lost GPU.
func TestEveryLineFindsLost(t *testing.T) {
	t.Parallel()
	n := newNode(t, fakenvml.H100, 8, []string{"3 * error 15"})
	lines := regexp.MustCompile(`(?m)^\* \|\| check_gpu_.*$`).FindAllString(gpuLines+"* || check_gpu_ecc 20000000 10000\n* || check_vbios_version\n* || check_gpu_clock_throttling\n* || check_nvlink_status\n* || check_app_gpu_clocks\n", -1)
	for _, line := range append(lines, "* || check_gpu_bandwidth", "* || check_gpu_gemm") {
		out, _ := n.run(t, line+"\n")
		if strings.Contains(out, "no check is called") || strings.Contains(out, "command not found") {
			continue
		}
		if strings.Count(out, "gpu3 0000:13:00.0: the GPU is lost, ") < 1 || strings.Count(out, "Health check failed") != 1 {
			t.Errorf("%s:\n%s", line, out)
		}
	}
}

// If a site expects fewer GPUs, a dead GPU beyond that number does not fail the node, whichever
// check finds it, and in whatever order the lines are.
func TestSiteDoesWithoutGPU(t *testing.T) {
	t.Parallel()
	n := newNode(t, fakenvml.H100, 8, []string{"3 * error 15"})
	const others = "* || check_gpu_ecc\n* || check_gpu_temp\n* || check_gpu_pcie\n* || check_gpu_recovery\n"
	for want, fails := range map[string]bool{"check_gpu_count 7": false, "check_gpu_count 8": true, "check_gpu_count": true} {
		line := "* || " + want + "\n"
		for _, conf := range []string{line + others, others + line} {
			out, _ := n.run(t, conf, "-a")
			if strings.Contains(out, "Health check failed") != fails || !strings.Contains(out, "gpu3 0000:13:00.0") {
				t.Errorf("%s:\n%s", conf, out)
			}
		}
	}
	out, _ := n.run(t, "* || check_gpu_count 7\n"+others)
	if !strings.Contains(out, "; the other 7 GPUs are healthy, want 7\n") || !strings.Contains(out, "gpu3 0000:13:00.0:  3 more findings of other checks") {
		t.Errorf("want one warning, and the number of others:\n%s", out)
	}
	root := filepath.Join(n.dir, "root")
	for gpu, fails := range map[string]bool{"2": false, "3": true} {
		cmd := exec.Command(program, "--prolog", "-c", filepath.Join(n.dir, "nhc.conf"), "LOGFILE=-", "MARK_OFFLINE=0", "HOSTROOT="+root, "NVML_LIBRARY="+n.lib)
		cmd.Env = []string{"SLURMD_NODENAME=" + n.name(), "SLURM_JOB_ID=7", "SLURM_JOB_GPUS=" + gpu, "SLURM_JOB_UID=5001"}
		if out, err := cmd.CombinedOutput(); (err != nil) != fails || strings.Contains(string(out), "Health check failed") != fails {
			t.Errorf("prolog of a job on GPU %q: %v\n%s", gpu, err, out)
		}
	}
	// Slurm has more GPUs for jobs than the line expects, so a job could get the dead one.
	if err := fakenvml.Write(root, map[string]string{"etc/slurm/slurm.conf": "GresTypes=gpu\nNodeName=" + n.name() + " Gres=gpu:8\n"}); err != nil {
		t.Fatal(err)
	}
	if out, _ := n.run(t, "* || check_gpu_count 7\n"+others, "-a"); !strings.Contains(out, "Health check failed:  check_gpu_ecc:  gpu3 0000:13:00.0: the GPU is lost") {
		t.Errorf("%s", out)
	}
}

// A library that crashes the worker of each run is not evidence against the node twice, and fails
// it from the third run on; another driver, or a successful run, resets the count.
func TestCrashInARow(t *testing.T) {
	t.Parallel()
	need.Root(t, "only root's runs remember each other")
	n := newNode(t, fakenvml.H100, 8, []string{"- nvmlInit crash"})
	look := func(when, want string) {
		t.Helper()
		if out, _ := n.run(t, "* || check_gpu_temp\n"); want != "" && !strings.Contains(out, want+":  check_gpu_temp:  ") || want == "" && out != "" {
			t.Errorf("%s: want %q, got\n%s", when, want, out)
		}
	}
	place := func(lines ...string) {
		t.Helper()
		if _, err := fakenvml.Place(n.dir, fakenvml.Scenario(fakenvml.H100, 8, lines...)); err != nil {
			t.Fatal(err)
		}
	}
	const unknown, failed = "Health check unknown", "Health check failed"
	look("first", unknown)
	look("second", unknown)
	look("third", failed)
	look("fourth", failed)
	version := filepath.Join(n.dir, "root/proc/driver/nvidia/version")
	text, err := os.ReadFile(version)
	if err == nil {
		err = os.WriteFile(version, bytes.ReplaceAll(text, []byte(fakenvml.Driver), []byte("580.65.06")), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	look("another driver", unknown)
	look("its second", unknown)
	place()
	look("it works", "")
	place("3 nvmlDeviceGetTemperature 0 crash")
	look("first again", unknown)
	look("second again", unknown)
	look("third again", failed)
	place()
	look("it works again", "")
	place("- nvmlInit crash")
	look("once before three jobs", unknown)
	if err := os.WriteFile(filepath.Join(n.dir, "nhc.conf"), []byte("* || check_gpu_recovery\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for job := range 3 {
		cmd := exec.Command(program, "--prolog", "-c", filepath.Join(n.dir, "nhc.conf"), "LOGFILE=-", "MARK_OFFLINE=0", "HOSTROOT="+filepath.Join(n.dir, "root"), "NVML_LIBRARY="+n.lib)
		cmd.Env = []string{"SLURMD_NODENAME=" + n.name(), fmt.Sprintf("SLURM_JOB_ID=%d", 100+job), "SLURM_JOB_GPUS=3", "SLURM_JOB_UID=5001"}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), unknown) {
			t.Errorf("job %d: %v\n%s", job, err, out)
		}
	}
	look("after three jobs", unknown)
	place("- nvmlInit error 999")
	look("an error", unknown)
	look("an error again", unknown)
	look("an error, the third time", unknown)
}

// A driver that was unloaded since the last run is not loaded again by NVML. That is not a fault of
// a node, unless Slurm has its GPUs for jobs.
func TestDriverUnloaded(t *testing.T) {
	t.Parallel()
	need.Root(t, "only root's runs remember each other")
	n := newNode(t, fakenvml.H100, 8, nil)
	root := filepath.Join(n.dir, "root")
	const boot = "proc/sys/kernel/random/boot_id"
	if err := fakenvml.Write(root, map[string]string{boot: "b1\n", "dev/kmsg": ""}); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"* || check_gpu_count 8\n", "* || check_gpu_ecc\n"} {
		if out, _ := n.run(t, line); out != "" {
			t.Errorf("loaded: %s", out)
		}
	}
	for _, name := range []string{"proc/driver", "proc/modules", "dev"} {
		if err := os.RemoveAll(filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := fakenvml.Write(root, map[string]string{"proc/modules": "ext4 1 0 - Live 0x0\n", "dev/kmsg": ""}); err != nil {
		t.Fatal(err)
	}
	if _, err := fakenvml.Place(n.dir, fakenvml.Scenario(fakenvml.H100, 8, "- nvmlInit crash")); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"* || check_gpu_count 8\n", "* || check_gpu_ecc\n"} {
		if out, _ := n.run(t, line, "-v"); !strings.Contains(out, "the driver is unloaded (no module, no device node, no job): 8 GPUs not checked") {
			t.Errorf("%s: %s", line, out)
		}
	}
	for _, words := range [][]string{{"--check"}, {"topo"}, {"--check", "--json"}} { // their description of the node uses NVML, too
		if out, _ := n.run(t, "* || check_file_test -d /\n", words...); strings.Contains(out, "died") {
			t.Errorf("%s: %s", words, out)
		}
	}
	for _, role := range []string{"--prolog", "--epilog"} { // they read counters and MIG devices in addition to the checks
		cmd := exec.Command(program, role, "-c", filepath.Join(n.dir, "nhc.conf"), "LOGFILE=-", "MARK_OFFLINE=0", "HOSTROOT="+root, "NVML_LIBRARY="+n.lib)
		cmd.Env = []string{"SLURMD_NODENAME=" + n.name(), "SLURM_JOB_ID=7", "SLURM_JOB_GPUS=0", "SLURM_JOB_UID=5001"}
		if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "died") {
			t.Errorf("%s: %v\n%s", role, err, out)
		}
	}
	if err := fakenvml.Write(root, map[string]string{"etc/slurm/slurm.conf": "GresTypes=gpu\nNodeName=" + n.name() + " Gres=gpu:8\n"}); err != nil {
		t.Fatal(err)
	}
	want := "failed:  check_gpu_count:  the driver is not loaded for 8 GPUs: Slurm schedules 8 GPUs of this node"
	if out, _ := n.run(t, "* || check_gpu_count 8\n"); !strings.Contains(out, want) {
		t.Errorf("want %q, got %s", want, out)
	}

	// After a boot a health check loads it, which a run of the monitor cannot do.
	if err := fakenvml.Write(root, map[string]string{boot: "b2\n"}); err != nil {
		t.Fatal(err)
	}
	if _, err := fakenvml.Place(n.dir, fakenvml.Scenario(fakenvml.H100, 8, "- nvmlInit error 9")); err != nil {
		t.Fatal(err)
	}
	if out, _ := n.run(t, "* || check_gpu_count 8\n"); !strings.Contains(out, want) {
		t.Errorf("after a boot: want %q, got %s", want, out)
	}
	cmd := exec.Command(program, "-v", "-c", filepath.Join(n.dir, "nhc.conf"), "LOGFILE=-", "MARK_OFFLINE=0", "HOSTROOT="+root, "NVML_LIBRARY="+n.lib)
	cmd.Env = []string{"SLURMD_NODENAME=" + n.name(), "SLURM_SCRIPT_CONTEXT=nhc-gpu-monitor", "NHC_GPU_EVENTS=gpu"}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "the driver is not loaded yet, which a run of the monitor cannot do: 8 GPUs not checked") {
		t.Errorf("a run of the monitor after a boot: %v\n%s", err, out)
	}
}

// device returns the call's form of a GPU, as a regular expression.
func (c aCall) device() string {
	if strings.HasPrefix(c.spoil("")[1], "-") {
		return ""
	}
	return `\(3(, \d)?\)`
}

func intact(t *testing.T, name, out string) {
	t.Helper()
	if !strings.Contains(out, "check_file_test:  -f /other/lane returned 1") || strings.Contains(out, "/proc returned") {
		t.Errorf("%s: the other lane's results are not what they should be:\n%s", name, out)
	}
}

// With the library of a release 470 driver every check answers, and calls none of the missing
// functions, which would end the process.
func TestOldDriver(t *testing.T) {
	t.Parallel()
	for _, model := range []fakenvml.Model{fakenvml.V100, fakenvml.A100, fakenvml.H100, fakenvml.B200, fakenvml.H100NVL, fakenvml.GB200} {
		n := newNode(t, model, 8, []string{"* nvmlDeviceGetSerial error 3", "* field 230 error 2"}, fakenvml.Old...)
		out, _ := n.run(t, gpuLines, "-a")
		if strings.Contains(out, "check_gpu") && regexp.MustCompile(`unknown:  check_gpu|failed:  check_gpu|died`).MatchString(out) {
			t.Errorf("%s:\n%s", model, out)
		}
		intact(t, string(model), out)
	}
}

// On healthy nodes with one to sixteen GPUs of every model there are no findings.
func TestHealthy(t *testing.T) {
	t.Parallel()
	for _, model := range []fakenvml.Model{fakenvml.V100, fakenvml.A100, fakenvml.H100, fakenvml.B200, fakenvml.H100NVL, fakenvml.GB200} {
		for _, gpus := range []int{1, 4, 16} {
			n := newNode(t, model, gpus, nil)
			conf := strings.Replace(gpuLines, "check_gpu_count", fmt.Sprintf("check_gpu_count %d", gpus), 1)
			out, _ := n.run(t, strings.Replace(conf, "* || check_file_test -f /other/lane", "", 1), "-a")
			if out != "" {
				t.Errorf("%d %s:\n%s", gpus, model, out)
			}
		}
	}
}

// The values of real libraries cause findings with the correct texts, and counters are compared
// with those of the previous run.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, scenario, line, want string }{
		{"lost", "3 * error 15", "check_gpu_recovery", "check_gpu_recovery:  gpu3 0000:13:00.0: the GPU is lost, GPU-00000000-0000-0000-0000-000000000003 (nvmlDeviceGetHandleByIndex_v2(3): NVML error 15)"},
		{"lost, by count", "3 * error 15", "check_gpu_count 8",
			"check_gpu_count:  gpu3 0000:13:00.0: the GPU is lost, GPU-00000000-0000-0000-0000-000000000003 (nvmlDeviceGetHandleByIndex_v2(3): NVML error 15)"},
		{"fallen off before the driver was loaded", "- nvmlDeviceGetCount = 7", "check_gpu_count 8",
			"check_gpu_count:  want 8 GPUs, got 7: 0000:17:00.0 is on the PCI bus, in the driver, not in NVML"},
		{"set aside with nvidia-smi drain", "- nvmlDeviceGetCount = 7\n- nvmlDeviceQueryDrainState 0x17 = 1", "check_gpu_count 8",
			"check_gpu_count:  want 8 GPUs, got 7: 0000:17:00.0 is on the PCI bus, in the driver, set aside with nvidia-smi drain"},
		{"not set aside", "- nvmlDeviceGetCount = 7\n- nvmlDeviceQueryDrainState 0x17 = 0", "check_gpu_count 8",
			"check_gpu_count:  want 8 GPUs, got 7: 0000:17:00.0 is on the PCI bus, in the driver, not in NVML"},
		{"unknown whether it was set aside", "- nvmlDeviceGetCount = 7\n- nvmlDeviceQueryDrainState 0x17 error 15", "check_gpu_count 8",
			"check_gpu_count:  want 8 GPUs, got 7: 0000:17:00.0 is on the PCI bus, in the driver, not in NVML"},
		{"recovery action", "3 field 230 = 2", "check_gpu_recovery", "check_gpu_recovery:  gpu3 0000:13:00.0: the driver requests a reboot of the node"},
		{"mismatch", "- nvmlInit error 18", "check_gpu_driver",
			"check_gpu_driver:  the driver's library and the loaded module 570.124.06 have different versions: reboot after a driver update (nvmlInit: NVML error 18)"},
		{"uncorrected", "3 nvmlDeviceGetMemoryErrorCounter 1 0 7 = 1", "check_gpu_ecc",
			"check_gpu_ecc:  gpu3 0000:13:00.0: uncorrected SRAM errors since the driver was loaded, want 0, got 1"},
		{"remap", "3 nvmlDeviceGetRemappedRows = 0 600 0 1", "check_gpu_remap", "check_gpu_remap:  gpu3 0000:13:00.0: a memory row could not be remapped"},
		{"persistence cannot be set", "3 nvmlDeviceGetPersistenceMode = 0\n3 nvmlDeviceSetPersistenceMode error 4", "check_gpu_persistence -s",
			"check_gpu_persistence:  gpu3 0000:13:00.0: persistence mode cannot be turned on: nvmlDeviceSetPersistenceMode(3): no permission (NVML error 4), want on, got off"},
		{"garbage", `3 nvmlDeviceGetVbiosVersion = \xff\x0a%s`, "check_gpu_vbios 96.00.30.00.01", "check_gpu_vbios:  gpu3 0000:13:00.0: VBIOS, want 96.00.30.00.01, got ??%s"},
		{"margin", "3 nvmlDeviceGetMarginTemperature = -5", "check_gpu_temp", "check_gpu_temp:  gpu3 0000:13:00.0: slowed down by the hardware: margin to its temperature limit (the GPU has 31 C), want above -2 C, got -5 C"},
		{"slow", "3 nvmlDeviceGetSerial late 300", "check_gpu_count 7", "check_gpu_count:  want 7 GPUs, got 8"},
		{"empty UUID", "3 nvmlDeviceGetUUID =", "check_gpu_count 8", "check_gpu_count:  gpu3 0000:13:00.0: cannot be read: nvmlDeviceGetUUID(3): empty"},
		{"empty name", "3 nvmlDeviceGetName =", "check_gpu_count 8", "check_gpu_count:  gpu3 0000:13:00.0: cannot be read: nvmlDeviceGetName(3): empty"},
		{"exits", "3 nvmlDeviceGetSerial exit 127", "check_gpu_count 8", "check_gpu_count:  no result: its worker died in nvmlDeviceGetSerial(3) of gpu3 0000:13:00.0: exit status 127"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, fakenvml.H100, 8, []string{c.scenario})
			if out, _ := n.run(t, "* || "+c.line+"\n"); !strings.Contains(out, ":  "+c.want+"\n") {
				t.Errorf("want %q, got\n%s", c.want, out)
			}
		})
	}
}

// A library that cannot report what nvidia-smi drain has set aside misses the GPU all the same.
func TestNoDrainState(t *testing.T) {
	t.Parallel()
	n := newNode(t, fakenvml.H100, 8, []string{"- nvmlDeviceGetCount = 7", "- nvmlDeviceQueryDrainState 0x17 = 1"}, "nvmlDeviceQueryDrainState")
	if out, _ := n.run(t, "* || check_gpu_count 8\n"); !strings.Contains(out, "0000:17:00.0 is on the PCI bus, in the driver, not in NVML") {
		t.Error(out)
	}
}

// The first client of NVML after a boot creates the device nodes, or loads the driver, too.
func TestFirstRunAfterBoot(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{8, 7} {
		var lines []string
		for i := range nodes {
			lines = append(lines, fmt.Sprintf("- node %d = root/dev/nvidia{i}", i))
		}
		n := newNode(t, fakenvml.H100, 8, lines)
		for i := range 8 {
			if err := os.Remove(filepath.Join(n.dir, "root/dev", fmt.Sprintf("nvidia%d", i))); err != nil {
				t.Fatal(err)
			}
		}
		want := ""
		if nodes < 8 {
			want = "check_gpu_count:  want 8 GPUs, got 7: gpu7 0000:17:00.0 has no device node /dev/nvidia7\n"
		}
		if out, _ := n.run(t, "* || check_gpu_driver\n* || check_gpu_count 8\n"); !strings.Contains(out, want) || want == "" && out != "" {
			t.Errorf("%d device nodes:\n%s\nwant %q", nodes, out, want)
		}
	}
}

// An impossible value is unknown, and is forgotten: the next run, with correct values, finds
// nothing. That holds also with two GPUs, because either could be the outlier.
func TestImplausibleValuesAreForgotten(t *testing.T) {
	t.Parallel()
	need.Root(t, "only root's runs remember each other")
	const conf = "* || check_gpu_pcie\n* || check_gpu_clocks\n* || check_gpu_power\n* || check_gpu_count 2\n"
	n := newNode(t, fakenvml.H100, 2, []string{"1 nvmlDeviceGetCurrPcieLinkWidth = 4294967295", "1 nvmlDeviceGetMaxPcieLinkGeneration = 4294967295",
		"1 nvmlDeviceGetMaxClockInfo 0 = 4294967295", "1 nvmlDeviceGetPowerManagementDefaultLimit = 4294967295", "1 nvmlDeviceGetMemoryInfo = -1 0 0"})
	out, _ := n.run(t, conf, "-a")
	if strings.Contains(out, "gpu0") || strings.Contains(out, "failed") {
		t.Errorf("the healthy GPU is blamed:\n%s", out)
	}
	for _, call := range []string{"Width", "Clock", "DefaultLimit", "MemoryInfo"} {
		if !regexp.MustCompile(`Health check unknown:  check_gpu_\w+:  gpu1 0000:11:00\.0: cannot be read: nvmlDeviceGet\w*` + call + `\w*\(1\): implausible value`).MatchString(out) {
			t.Errorf("%s is not told of:\n%s", call, out)
		}
	}
	if _, err := fakenvml.Place(n.dir, fakenvml.Scenario(fakenvml.H100, 2)); err != nil {
		t.Fatal(err)
	}
	if out, _ := n.run(t, conf, "-a"); out != "" {
		t.Errorf("healthy again:\n%s", out)
	}
}

func TestRunsAreCounted(t *testing.T) {
	t.Parallel()
	n := newNode(t, fakenvml.H100, 8, []string{"3 nvmlDeviceGetRemappedRows = 0 510+1 0 0"})
	for i, bad := range []bool{false, false, true} {
		if out, _ := n.run(t, "* || check_gpu_remap\n"); strings.Contains(out, "got 512") != bad {
			t.Errorf("run %d:\n%s", i, out)
		}
	}
}
