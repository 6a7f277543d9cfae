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
)

var program string

func TestMain(m *testing.M) { os.Exit(built.Main(m, &program, "gcc")) }

// gpuLines are all checks of GPUs, between two of another lane of which the
// second fails.
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

// newNode makes one. Its past is below its own root.
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

// run runs a configuration on the node, with words, and gives what was printed.
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
	name := fmt.Sprintf("fakenvml-%s", strings.ReplaceAll(strings.Trim(n.dir, "/"), "/", "-")) // one run a node at a time
	cmd.Env = []string{"SLURMD_NODENAME=" + name}
	if os.Geteuid() == 0 {
		t.Cleanup(func() { _ = os.RemoveAll("/run/nhc-gpu/" + name) })
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

// aCall is one call of NVML's, and a node on which it is made.
type aCall struct {
	name    string
	model   fakenvml.Model
	line    string   // makes the program make the call
	missing []string // functions that the library has to lack for it
}

// elsewhere are the calls that other tests try.
var elsewhere = map[string]string{
	"nvmlDeviceGetMaxMigDeviceCount": "asked for a job with a MIG device, see tests/script/around.txtar",

	"nvmlDeviceGetMigDeviceHandleByIndex": "the same",
}

// calls are all calls that the program makes.
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
		"nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo",
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
		case "nvmlDeviceGetPerformanceState":
			continue // not asked yet
		}
		if elsewhere[name] != "" {
			continue
		}
		list = append(list, c)
	}
	return list
}

// No call is left out of what follows: those in the code are those of the list.
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
	for _, file := range []string{"nvmlread.go", "nvmlparts.go", "nvmlmig.go", "nvmllinks.go", "nvmlfabric.go"} {
		text, err := os.ReadFile("../../checks/probe/" + file)
		if err != nil {
			t.Fatal(err)
		}
		code += string(text)
	}
	for _, m := range regexp.MustCompile(`"(nvml(?:Init|System|Device)\w*?)(_v[23])?"`).FindAllStringSubmatch(code, -1) {
		called[m[1]] = true
	}
	if diff := cmp.Diff(called, tried); diff != "" {
		t.Errorf("(-called +tried):\n%s", diff)
	}
}

// spoil makes the call do something, of GPU 3 if it is about a GPU.
func (c aCall) spoil(action string) []string {
	device := "3"
	if strings.HasPrefix(c.name, "nvmlSystem") || c.name == "nvmlInit" || c.name == "nvmlDeviceGetCount" {
		device = "-"
	}
	return []string{c.line, device + " " + c.name + " " + action}
}

// everyCall runs the node of each call, some side by side.
func everyCall(t *testing.T, action string, judge func(t *testing.T, c aCall, out string, took time.Duration)) {
	t.Helper()
	list := calls(t)
	if testing.Short() {
		list = list[:5]
	}
	var wg sync.WaitGroup
	slots := make(chan bool, 12)
	for _, c := range list {
		n := newNode(t, c.model, 8, c.spoil(action), c.missing...)
		slots <- true
		wg.Go(func() {
			defer func() { <-slots }()
			conf, timeout := gpuLines, "5"
			if c.name == "nvmlDeviceSetPersistenceMode" { // an action: the other lane waits for it
				conf, timeout = strings.Replace(conf, "check_gpu_persistence", "check_gpu_persistence -s", 1), "8"
			}
			out, took := n.run(t, conf, "-a", "-t", timeout)
			judge(t, c, out, took)
		})
	}
	wg.Wait()
}

// Whichever call never returns: the verdict comes in time, names the call and
// its GPU, and the other lane's results are there.
func TestEveryCallHangs(t *testing.T) {
	t.Parallel()
	everyCall(t, "hang", func(t *testing.T, c aCall, out string, took time.Duration) {
		if took > 12*time.Second {
			t.Errorf("%s: %v", c.name, took)
		}
		named := regexp.MustCompile(`check_gpu_\w+:  hung \(in ` + c.name + `(_v\d)?` + c.device() + `: process \d+ in state S`)
		if !named.MatchString(out) {
			t.Errorf("%s: the call is not named:\n%s", c.name, out)
		}
		intact(t, c.name, out)
	})
}

// The same of a call that kills the process.
func TestEveryCallCrashes(t *testing.T) {
	t.Parallel()
	everyCall(t, "crash", func(t *testing.T, c aCall, out string, _ time.Duration) {
		named := regexp.MustCompile(`check_gpu_\w+:  could not tell: its worker died in ` + c.name + `(_v\d)?` + c.device() + `: .*SIGSEGV`)
		if !named.MatchString(out) {
			t.Errorf("%s: the call is not named:\n%s", c.name, out)
		}
		intact(t, c.name, out)
	})
}

// device is how the call names its GPU, as a regular expression.
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

// A library that a driver of release 470 would bring: every check answers, and
// none of the functions that it lacks is called, which would end the process.
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

// One to sixteen GPUs of every model: nothing is found on a healthy node.
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

// What a real library says comes to a finding in the right words, and counters
// are judged by what they were in the run before.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, scenario, line, want string }{
		{"lost", "3 * error 15", "check_gpu_recovery", "check_gpu_recovery:  gpu3 0000:13:00.0: nvmlDeviceGetHandleByIndex_v2(3): the GPU is lost (NVML error 15)"},
		{"lost, by count", "3 * error 15", "check_gpu_count 8",
			"check_gpu_count:  want 8 GPUs, got 7: gpu3 0000:13:00.0 is on the PCI bus, in the driver, but NVML says nvmlDeviceGetHandleByIndex_v2(3): the GPU is lost (NVML error 15)"},
		{"fallen off before the driver was loaded", "- nvmlDeviceGetCount = 7", "check_gpu_count 8",
			"check_gpu_count:  want 8 GPUs, got 7: 0000:17:00.0 is on the PCI bus, in the driver, not in NVML"},
		{"recovery action", "3 field 230 = 2", "check_gpu_recovery", "check_gpu_recovery:  gpu3 0000:13:00.0: the driver wants a reboot of the node"},
		{"mismatch", "- nvmlInit error 18", "check_gpu_driver",
			"check_gpu_driver:  nvmlInit: library and driver are of different versions (NVML error 18); the loaded module is 570.124.06"},
		{"uncorrected", "3 nvmlDeviceGetMemoryErrorCounter 1 0 7 = 1", "check_gpu_ecc",
			"check_gpu_ecc:  gpu3 0000:13:00.0: uncorrected SRAM errors since the driver was loaded, want 0, got 1"},
		{"remap", "3 nvmlDeviceGetRemappedRows = 0 600 0 1", "check_gpu_remap", "check_gpu_remap:  gpu3 0000:13:00.0: a row of memory could not be remapped"},
		{"persistence cannot be set", "3 nvmlDeviceGetPersistenceMode = 0\n3 nvmlDeviceSetPersistenceMode error 4", "check_gpu_persistence -s",
			"check_gpu_persistence:  gpu3 0000:13:00.0: persistence mode cannot be turned on: nvmlDeviceSetPersistenceMode(3): no permission (NVML error 4), want on, got off"},
		{"garbage", `3 nvmlDeviceGetVbiosVersion = \xff\x0a%s`, "check_gpu_vbios 96.00.30.00.01", "check_gpu_vbios:  gpu3 0000:13:00.0: VBIOS, want 96.00.30.00.01, got ??%s"},
		{"margin", "3 nvmlDeviceGetMarginTemperature = -5", "check_gpu_temp", "check_gpu_temp:  gpu3 0000:13:00.0: margin, at which the hardware slows it down, want above -2 C, got -5 C"},
		{"slow", "3 nvmlDeviceGetSerial late 300", "check_gpu_count 7", "check_gpu_count:  want 7 GPUs, got 8"},
		{"exits", "3 nvmlDeviceGetSerial exit 127", "check_gpu_count 8", "check_gpu_count:  could not tell: its worker died in nvmlDeviceGetSerial(3): exit status 127"},
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

func TestRunsAreCounted(t *testing.T) {
	t.Parallel()
	n := newNode(t, fakenvml.H100, 8, []string{"3 nvmlDeviceGetRemappedRows = 0 510+1 0 0"})
	for i, bad := range []bool{false, false, true} {
		if out, _ := n.run(t, "* || check_gpu_remap\n"); strings.Contains(out, "got 512") != bad {
			t.Errorf("run %d:\n%s", i, out)
		}
	}
}
