package nvml

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// askedNVML is the output of one process that has read everything from the fake library.
type askedNVML struct {
	Snapshot *Snapshot
	Err      string
	State    []bool // whether the error means no library, a lost GPU, a mismatch
	Calls    []string
	// Announced has the calls with their GPUs.
	Announced []string `json:"-"`
}

// TestMain runs each test in its own process, because NVML is loaded only once in a process.
func TestMain(m *testing.M) {
	lib := os.Getenv("PROBE_TEST_NVML")
	if lib == "" {
		os.Exit(m.Run())
	}
	// This keeps a test that allocates endlessly from using all memory of the machine.
	if err := unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: 16 << 30, Max: 16 << 30}); err != nil {
		os.Exit(1)
	}
	h := probe.NewHost("/nonexistent")
	probe.SetLibraries(h, map[string]string{probe.SettingNVML: lib})
	var a askedNVML
	var err error
	doing := func(call string) { a.Calls = append(a.Calls, call) }
	if file := os.Getenv("PROBE_TEST_WATCH"); file != "" {
		watchOnce(h, file, doing)
		os.Exit(0)
	}
	a.Snapshot, err = Ask(h, AllGroups, doing)
	switch os.Getenv("PROBE_TEST_AGAIN") {
	case "processes":
		a.Snapshot, err = GPUProcesses(h, doing)
	case "all":
		a.Snapshot, err = AskAgain(h, AllGroups, doing)
	}
	for _, target := range []error{probe.ErrNoLibrary, ErrGPULost, ErrDriverMismatch} {
		a.State = append(a.State, errors.Is(err, target))
	}
	a.Err = probetest.Message(err)
	if err := json.NewEncoder(os.Stdout).Encode(a); err != nil {
		os.Exit(1)
	}
}

// askFake reads the library of a scenario. The snapshot is in its JSON form.
func askFake(t *testing.T, scenario string, missing ...string) (snapshot map[string]any, a askedNVML) {
	t.Helper()
	need.Program(t, "gcc")
	lib, err := fakenvml.Place(t.TempDir(), scenario, missing...)
	if err != nil {
		t.Fatal(err)
	}
	return askLibrary(t, lib)
}

func askLibrary(t *testing.T, lib string, environ ...string) (snapshot map[string]any, a askedNVML) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(environ, "PROBE_TEST_NVML="+lib)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var raw struct {
		Snapshot map[string]any
		Err      string
		State    []bool
		Calls    []string
	}
	if err := json.Unmarshal(out, &raw); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	announced := slices.Clone(raw.Calls)
	for i, c := range raw.Calls {
		raw.Calls[i], _, _ = strings.Cut(c, " of gpu")
	}
	return raw.Snapshot, askedNVML{nil, raw.Err, raw.State, raw.Calls, announced}
}

// gpuAt returns one GPU of a snapshot, or a part of it: "Power", "Draw".
func gpuAt(snapshot map[string]any, i int, path ...string) any {
	v := snapshot["GPUs"].([]any)[i]
	for _, p := range path {
		v = v.(map[string]any)[p]
	}
	return v
}

func TestNVMLReadsEverything(t *testing.T) {
	t.Parallel()
	got, a := askFake(t, fakenvml.Scenario(fakenvml.H100, 8,
		"7 nvmlDeviceGetMinorNumber = 5", "7 nvmlDeviceGetMemoryErrorCounter 1 1 7 = 3", "7 nvmlDeviceGetMemoryErrorCounter 0 0 2 = 0x10",
		"7 nvmlDeviceGetRemappedRows = 1 2 1 0", "7 nvmlDeviceGetRowRemapperHistogram = 5 4 3 2 1", "7 field 230 = 4", "7 field 303 = 2", "7 field 304 = 1", "7 field 306 = 3", "7 field 307 = 1", "7 field 271 = 77", "7 field 194 = 4294967294",
		"7 nvmlDeviceGetMarginTemperature = -3", "7 nvmlDeviceGetMigMode = 1 0", "7 nvmlDeviceGetComputeMode = 3",
		"7 nvmlDeviceGetComputeRunningProcesses = 100 1000 200 -1", "7 nvmlDeviceGetMPSComputeRunningProcesses = 100 2000", "7 nvmlDeviceGetNvLinkState 1 = 0", "7 nvmlDeviceGetNvLinkState 3 error 2",
		"7 nvmlDeviceGetMaxMigDeviceCount = 7", "7 nvmlDeviceGetMigDeviceHandleByIndex 2 = MIG-a", "7 nvmlDeviceGetMigDeviceHandleByIndex 5 = MIG-b", "7 field 38 = 9", "7 field 59 = 1",
		"7 nvmlDeviceGetCurrPcieLinkGeneration = 2", "7 nvmlDeviceGetUtilizationRates = 98 40", "7 nvmlDeviceGetPerformanceState = 2", "7 nvmlDeviceGetNumaNodeId = 9", "7 nvmlDeviceGetVirtualizationMode = 2",
		"5 nvmlDeviceGetMigMode = 1 1", "5 nvmlDeviceGetMemoryErrorCounter * 0 * error 3", "5 nvmlDeviceGetRemappedRows error 3", "5 nvmlDeviceGetMaxMigDeviceCount = 7",
		"5 nvmlDeviceGetMigDeviceHandleByIndex 0 = MIG-c", "5 nvmlDeviceGetMigDeviceHandleByIndex 3 = MIG-d", "5 migErrors 0 = 2", "5 migErrors 3 = 1",
		"5 field 142 = 1", "5 field 143 = 2", "5 field 144 = 1", "5 field 145 = 0",
		"6 nvmlDeviceGetEccMode = 0 0", "6 nvmlDeviceGetDefaultEccMode = 1", "6 nvmlDeviceGetCurrPcieLinkGeneration = 1", "6 nvmlDeviceGetPerformanceState = 32",
		"- nvmlSystemGetConfComputeState = 0 1 0"))
	if a.Err != "" || len(got["GPUs"].([]any)) != 8 {
		t.Fatalf("%s, %v", a.Err, got["GPUs"])
	}
	text, _ := json.Marshal(gpuAt(got, 7))
	var gpu map[string]any
	_ = json.Unmarshal(text, &gpu)
	counts := func(cor, uncAgg float64) map[string]any {
		return map[string]any{"Corrected": cor, "Uncorrected": 0., "CorrectedAggregate": 0., "UncorrectedAggregate": uncAgg}
	}
	want := map[string]any{
		"Index": 7., "Err": nil, "PCI": "0000:17:00.0", "Name": "NVIDIA H100 80GB HBM3", "UUID": fakenvml.UUID(7), "Serial": fakenvml.Serial(7), "PartNumber": "692-2G520-0200-000", "Minor": 5.,
		"VBIOS": "96.00.30.00.01", "Inforom": "G520.0200.00.05", "InforomValid": true, "VGPU": true,
		"Recovery": map[string]any{"Action": 4., "Reset": nil, "DrainReset": nil},
		"ECC": map[string]any{"On": true, "Pending": true, "Default": nil, "DRAM": counts(16, 0), "SRAM": counts(0, 3),
			"SRAMThreshold": false, "Unrepairable": false, "RepairPending": false},
		"Rows": map[string]any{"Remapped": map[string]any{"Corrected": 1., "Uncorrected": 2., "Pending": true, "Failed": false},
			"Histogram":  map[string]any{"Max": 5., "High": 4., "Partial": 3., "Low": 2., "None": 1.},
			"Banks":      map[string]any{"Active": 2., "Inactive": 1., "NoSpare": 3., "Pending": true},
			"RetiredSBE": nil, "RetiredDBE": nil, "RetiredPending": nil},
		"Modes": map[string]any{"Persistence": true, "Compute": "exclusive", "MIG": true, "MIGPending": false},
		"Temperature": map[string]any{"GPU": 31., "HBM": 40., "Margin": -3., "MaxGPU": nil, "MaxHBM": nil, "Slowdown": nil, "Shutdown": nil,
			"MarginMax": 0., "MarginSlowdown": -2., "MarginShutdown": -8.},
		"Power":    map[string]any{"Draw": 71000., "Limit": 700000., "Default": 700000., "Enforced": 700000.},
		"Clocks":   map[string]any{"MaxGraphics": 1980., "MaxMemory": 2619., "AppGraphics": 1980., "AppMemory": 2619., "DefaultGraphics": 1980., "DefaultMemory": 2619.},
		"Throttle": map[string]any{"Now": 1., "PowerCap": 0., "Thermal": 0., "HardwareThermal": 0., "PowerBrake": 77.},
		"Link": map[string]any{"Gen": 2., "Width": 16., "MaxGen": 5., "MaxWidth": 16., "GPUMaxGen": 5., "Replays": 0.,
			"Work": map[string]any{"Busy": 98., "State": 2., "Draw": 71000., "Limit": 700000.}},
		"NUMA":      9.,
		"Processes": []any{map[string]any{"PID": 100., "Memory": 2000.}, map[string]any{"PID": 200., "Memory": 0.}},
		"NVLinks":   []any{true, false, true},
		"MIG":       []any{"MIG-a", "MIG-b"}, "NVLinkErrors": map[string]any{"CRCFlit": 9., "CRCData": nil, "Replay": nil, "Recovery": 1., "Sums": nil},
		"NVLink": map[string]any{"Speed": []any{26562., 0., 26562.}, "Idle": []any{false, false, false}, "Far": []any{"switch", "", "switch"},
			"FarPCI": []any{"0000:05:00.0", "", "0000:07:00.0"}, "BER": nil,
			"Counts":  map[string]any{"replays": []any{0., 0., 0.}, "recoveries": []any{0., 0., 0.}, "crc": []any{0., 0., 0.}},
			"PeerP2P": map[string]any{"gpu0": "ok", "gpu1": "ok", "gpu2": "ok", "gpu3": "ok", "gpu4": "ok", "gpu5": "ok", "gpu6": "ok"}},
		"Fabric": map[string]any{"State": 3., "Status": 0., "Clique": 0., "Cluster": "", "Mask": 170., "Summary": 0.},
		"Memory": map[string]any{"Total": 85520809984., "Free": 85044494336., "Used": 0.}, "MemoryTotal": nil,
	}
	if diff := cmp.Diff(want, gpu); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for path, want := range map[string]any{"ECC.Default": true, "Link.Work.State": nil, "NUMA": nil} { // of a GPU without ECC, whose P-state is unknown
		if diff := cmp.Diff(want, gpuAt(got, 6, strings.Split(path, ".")...)); diff != "" {
			t.Errorf("gpu6 %s (-want +got):\n%s", path, diff)
		}
	}
	for path, want := range map[string]any{ // of a GPU with MIG devices
		"ECC.SRAM": map[string]any{"Corrected": nil, "Uncorrected": 3., "CorrectedAggregate": 0., "UncorrectedAggregate": 0.}, "ECC.DRAM.Uncorrected": nil, "Modes.MIG": true,
		"Rows.Remapped": map[string]any{"Corrected": 1., "Uncorrected": 2., "Pending": true, "Failed": false},
	} {
		if diff := cmp.Diff(want, gpuAt(got, 5, strings.Split(path, ".")...)); diff != "" {
			t.Errorf("gpu5 %s (-want +got):\n%s", path, diff)
		}
	}
	if got["Driver"] != fakenvml.Driver || got["Library"] != fakenvml.Driver || got["CC"] != true {
		t.Errorf("driver %v, library %v, confidential %v", got["Driver"], got["Library"], got["CC"])
	}
	for i := range a.Calls {
		if strings.HasPrefix(a.Calls[i], "nvmlDevice") && !strings.HasSuffix(a.Calls[i], ")") && !strings.HasPrefix(a.Calls[i], "nvmlDeviceGetCount") {
			t.Errorf("call %q does not name its GPU", a.Calls[i])
		}
	}
}

// A call that never returns must be announced with its GPU, as soon as NVML has returned the
// address.
func TestNVMLCallsNameTheirGPU(t *testing.T) {
	t.Parallel()
	_, a := askFake(t, fakenvml.Scenario(fakenvml.H100, 2))
	for _, want := range []string{"nvmlInit", "nvmlDeviceGetName(1) of gpu1 0000:11:00.0", "nvmlDeviceGetP2PStatus(1, 0) of gpu1 0000:11:00.0"} {
		if !slices.Contains(a.Announced, want) {
			t.Errorf("%q is not announced: %v", want, a.Announced)
		}
	}
}

// An address whose numbers are 0 is that of the text, or unknown.
func TestNVMLAddressAsText(t *testing.T) {
	t.Parallel()
	got, a := askFake(t, fakenvml.Scenario(fakenvml.H100, 6, "1 nvmlDeviceGetPciInfo = text 00000000:C1:00.0", "2 nvmlDeviceGetPciInfo = text 00000001:00:1f.0",
		"3 nvmlDeviceGetPciInfo = text ", "4 nvmlDeviceGetPciInfo = text x", "5 nvmlDeviceGetPciInfo = 0:0:0.0"))
	for gpu, want := range []any{"0000:10:00.0", "0000:c1:00.0", "0001:00:1f.0", "", "", ""} {
		if pci := gpuAt(got, gpu, "PCI"); pci != want || gpuAt(got, gpu, "Err") != nil {
			t.Errorf("address of gpu%d: %v, want %v", gpu, pci, want)
		}
	}
	if !slices.Contains(a.Announced, "nvmlDeviceGetName(1) of gpu1 0000:c1:00.0") {
		t.Errorf("calls: %v", a.Announced)
	}
}

func TestNVMLOfOldGPUsAndDrivers(t *testing.T) {
	t.Parallel()
	v100, _ := askFake(t, fakenvml.Scenario(fakenvml.V100, 4, "3 nvmlDeviceGetRetiredPages 0 = 9", "3 nvmlDeviceGetRetiredPages 1 = 2",
		"3 nvmlDeviceGetRetiredPagesPendingStatus = 1", "3 nvmlDeviceGetMemoryErrorCounter 1 0 0 = 2", "3 nvmlDeviceGetMemoryErrorCounter 1 0 3 = 5"))
	rows := map[string]any{"Remapped": nil, "Histogram": nil, "Banks": nil, "RetiredSBE": 9., "RetiredDBE": 2., "RetiredPending": true}
	if diff := cmp.Diff(any(rows), gpuAt(v100, 3, "Rows")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	zeros, _ := askFake(t, fakenvml.Scenario(fakenvml.V100, 4, "* nvmlDeviceGetRemappedRows error 3", "* field 142 = 0", "* field 143 = 0", "* field 144 = 0", "* field 145 = 0",
		"3 nvmlDeviceGetRetiredPagesPendingStatus = 1", "2 field 144 = 1", "1 nvmlDeviceGetMigMode = 1 1", "0 nvmlDeviceGetMigMode error 999"))
	none := map[string]any{"Corrected": 0., "Uncorrected": 0., "Pending": false, "Failed": false}
	waits := map[string]any{"Corrected": 0., "Uncorrected": 0., "Pending": true, "Failed": false}
	for gpu, want := range []any{none, none, waits, nil} {
		if diff := cmp.Diff(want, gpuAt(zeros, gpu, "Rows", "Remapped")); diff != "" {
			t.Errorf("fields of remapped rows of gpu%d (-want +got):\n%s", gpu, diff)
		}
	}
	if got := gpuAt(zeros, 3, "Rows", "RetiredPending"); got != true {
		t.Errorf("a page to retire beside fields of 0: %v", got)
	}
	if got := gpuAt(v100, 3, "ECC", "SRAM", "Uncorrected"); got != 7. {
		t.Errorf("uncorrected SRAM errors of all places: %v, want 7", got)
	}
	a100, a := askFake(t, fakenvml.Scenario(fakenvml.A100, 8, "* nvmlDeviceGetCurrentClocksThrottleReasons = 8", "* field 230 error 2",
		"* nvmlDeviceGetTemperatureThreshold 2 error 2", "5 nvmlDeviceGetComputeRunningProcesses = 100 1000 200 2000"), fakenvml.Old...)
	if a.Err != "" {
		t.Fatal(a.Err)
	}
	for path, want := range map[string]any{
		"Throttle.Now": 8., "Recovery.Action": nil, "ECC.SRAMThreshold": nil, "ECC.RepairPending": nil, "Link.GPUMaxGen": nil, "Memory": nil, "MemoryTotal": 85520809984.,
		"Temperature.Margin": nil, "Temperature.MaxGPU": 85., "Temperature.MaxHBM": nil, "Rows.Histogram.Max": 640., "Rows.Banks": nil,
	} {
		if got := gpuAt(a100, 5, strings.Split(path, ".")...); got != want {
			t.Errorf("driver 470: %s = %v, want %v", path, got, want)
		}
	}
	two := []any{map[string]any{"PID": 100., "Memory": 1000.}, map[string]any{"PID": 200., "Memory": 2000.}}
	if diff := cmp.Diff(any(two), gpuAt(a100, 5, "Processes")); diff != "" {
		t.Errorf("driver 470 (-want +got):\n%s", diff)
	}
	older := slices.Clone(fakenvml.Old)
	for _, kind := range []string{"Compute", "Graphics", "MPSCompute"} {
		older = append(older, "nvmlDeviceGet"+kind+"RunningProcesses_v2")
	}
	first, _ := askFake(t, fakenvml.Scenario(fakenvml.A100, 8, "5 nvmlDeviceGetComputeRunningProcesses = 100 1000 200 2000"), older...)
	if diff := cmp.Diff(any(two), gpuAt(first, 5, "Processes")); diff != "" {
		t.Errorf("the first form of the list (-want +got):\n%s", diff)
	}
	for _, symbol := range fakenvml.Old {
		if slices.ContainsFunc(a.Calls, func(c string) bool { return strings.HasPrefix(c, symbol) }) {
			t.Errorf("%s was called, which the library does not have", symbol)
		}
	}
}

// A version of CUDA is removed, and nothing else.
func TestNVMLVersionOfLibrary(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"12.570.124.06": "570.124.06", "550.54.15": "550.54.15", "535.129.03": "535.129.03", "12.4": "12.4"} {
		if got, _ := askFake(t, fakenvml.Scenario(fakenvml.H100, 1, "- nvmlSystemGetNVMLVersion = "+text)); got["Library"] != want {
			t.Errorf("%s: %v, want %s", text, got["Library"], want)
		}
	}
}

// The releases that write beyond the end of a list of processes are not called for one.
func TestNVMLOfDriversWithLongRecords(t *testing.T) {
	t.Parallel()
	for version, asked := range map[string]bool{
		"535.54.03": false, "535.43.02": false, "535.86.10": false, "535.98": true, "535.183.01": true, "530.54.03": true, "470.256.02": true, "535": true,
	} {
		got, a := askFake(t, fakenvml.Scenario(fakenvml.H100, 1, "- nvmlSystemGetNVMLVersion = 12."+version, "0 nvmlDeviceGetComputeRunningProcesses = 100 1000"))
		processes, called := gpuAt(got, 0, "Processes"), slices.Contains(a.Calls, "nvmlDeviceGetComputeRunningProcesses_v3(0)")
		if called != asked || (processes != nil) != asked || gpuAt(got, 0, "Memory") == nil {
			t.Errorf("%s: asked %v, processes %v", version, called, processes)
		}
	}
}

func TestNVMLErrors(t *testing.T) {
	t.Parallel()
	got, a := askFake(t, fakenvml.Scenario(fakenvml.H100, 8, "2 nvmlDeviceGetHandleByIndex error 15", "3 * error 999", "3 nvmlDeviceGetHandleByIndex =",
		"0 * error 15", "0 nvmlDeviceGetHandleByIndex =", "0 nvmlDeviceGetName = NVIDIA H100",
		"4 nvmlDeviceGetSerial error 999", "5 nvmlDeviceValidateInforom error 14", `6 nvmlDeviceGetName = \xff\x01NVIDIA \x1b[31mH100\x7f`,
		"7 nvmlDeviceGetUUID = "+strings.Repeat("x", 200), "1 nvmlDeviceGetName =", "1 nvmlDeviceGetUUID ="))
	if a.Err != "" {
		t.Fatal(a.Err)
	}
	errorOf := func(text string) any { return map[string]any{"error": text} }
	if calls := callsOf(a, 3); !slices.Equal(calls, []string{"nvmlDeviceGetHandleByIndex_v2(3)", "nvmlDeviceGetPciInfo_v3(3)", "nvmlDeviceGetName(3)", "nvmlDeviceGetUUID(3)"}) {
		t.Errorf("a GPU that answers nothing was asked more: %v", calls)
	}
	for i, c := range []struct {
		gpu  int
		path string
		want any
	}{
		{3, "PCI", ""}, {3, "Name", nil},
		{2, "PCI", ""}, {2, "Name", nil},
		{0, "PCI", ""}, {0, "Serial", nil}, {0, "Power.Draw", nil}, {0, "Recovery.Action", nil}, // lost: no further calls
		{4, "Serial", errorOf("nvmlDeviceGetSerial(4): unknown error (NVML error 999)")},
		{5, "InforomValid", errorOf("nvmlDeviceValidateInforom(5): the InfoROM is corrupt (NVML error 14)")},
		{6, "Name", "??NVIDIA ?[31mH100?"},
		{7, "UUID", strings.Repeat("x", 96)},
		{1, "Name", errorOf("nvmlDeviceGetName(1): empty")}, {1, "UUID", errorOf("nvmlDeviceGetUUID(1): empty")},
		{1, "Serial", fakenvml.Serial(1)},
	} {
		if diff := cmp.Diff(c.want, gpuAt(got, c.gpu, strings.Split(c.path, ".")...)); diff != "" {
			t.Errorf("%d: gpu%d %s (-want +got):\n%s", i, c.gpu, c.path, diff)
		}
	}
}

// What NVML reports of a part counts beside the error of another part.
func TestNVMLInParts(t *testing.T) {
	t.Parallel()
	mig := func(gpu int, lines ...string) (all []string) {
		for _, l := range append([]string{
			"nvmlDeviceGetMigMode = 1 1", "nvmlDeviceGetMemoryErrorCounter * 0 * error 3", "nvmlDeviceGetMaxMigDeviceCount = 7", "nvmlDeviceGetMigDeviceHandleByIndex 0 = MIG-a",
			"nvmlDeviceGetMigDeviceHandleByIndex 3 = MIG-b", "migErrors 0 = 3", "nvmlDeviceGetRemappedRows error 3",
		}, lines...) {
			all = append(all, fmt.Sprint(gpu, " ", l))
		}
		return all
	}
	got, a := askFake(t, fakenvml.Scenario(fakenvml.H100, 6, slices.Concat(
		mig(0, "nvmlDeviceGetMigDeviceHandleByIndex 1 error 2"),                      // it was destroyed
		mig(1, "nvmlDeviceGetMigDeviceHandleByIndex 1 error 999", "migErrors 3 = 1"), // the first failed
		mig(2, "field 142 error 999", "field 143 = 0", "field 144 = 1", "field 145 = 0"),
		mig(3, "field 144 error 999", "field 142 error 999", "field 143 error 999", "field 145 error 999"),
		[]string{"4 nvmlDeviceGetComputeRunningProcesses = 100 1000", "4 nvmlDeviceGetGraphicsRunningProcesses error 999"},
		mig(5, "nvmlDeviceGetMigMode error 999"),
	)...))
	if a.Err != "" {
		t.Fatal(a.Err)
	}
	for _, c := range []struct {
		gpu  int
		path string
		want any
	}{
		{0, "ECC.SRAM.Uncorrected", 3.}, {1, "ECC.SRAM.Uncorrected", 4.}, {0, "MIG", []any{"MIG-a", "MIG-b"}}, {1, "MIG", []any{"MIG-a", "MIG-b"}},
		{2, "Rows.Remapped", map[string]any{"Corrected": 0., "Uncorrected": 0., "Pending": true, "Failed": false}},
		{3, "Rows.Remapped.error", "field 142 of nvmlDeviceGetFieldValues(3): unknown error (NVML error 999)"},
		{4, "Processes.error", "nvmlDeviceGetGraphicsRunningProcesses_v3(4): unknown error (NVML error 999)"},
		{5, "ECC.SRAM.Uncorrected.error", "nvmlDeviceGetMigMode(5): unknown error (NVML error 999)"},
	} {
		if diff := cmp.Diff(c.want, gpuAt(got, c.gpu, strings.Split(c.path, ".")...)); diff != "" {
			t.Errorf("gpu%d %s (-want +got):\n%s", c.gpu, c.path, diff)
		}
	}
}

// A value that NVML refuses to an ordinary user is unknown to that user. For an administrator a
// refusal is an error.
func TestNVMLWithoutPermission(t *testing.T) {
	t.Parallel()
	got, a := askFake(t, fakenvml.Scenario(fakenvml.H100, 1, "0 nvmlDeviceValidateInforom error 4", "0 field 230 error 4"))
	if a.Err != "" {
		t.Fatal(a.Err)
	}
	want := map[string]any{"InforomValid": nil, "Recovery.Action": nil}
	if privileged() {
		want["InforomValid"] = map[string]any{"error": "nvmlDeviceValidateInforom(0): no permission (NVML error 4)"}
		want["Recovery.Action"] = map[string]any{"error": "field 230 of nvmlDeviceGetFieldValues(0): no permission (NVML error 4)"}
	}
	for path, want := range want {
		if diff := cmp.Diff(want, gpuAt(got, 0, strings.Split(path, ".")...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}

// callsOf returns the calls about one GPU, in order.
func callsOf(a askedNVML, gpu int) []string {
	who := fmt.Sprintf("(%d)", gpu)
	return slices.DeleteFunc(a.Calls, func(c string) bool { return !strings.HasSuffix(c, who) })
}

func TestNVMLThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		scenario, want string
		state          []bool
	}{
		"mismatch":   {"- nvmlInit error 18\n", "nvmlInit: library and driver are of different versions (NVML error 18)", []bool{false, false, true}},
		"not loaded": {"- nvmlInit error 9\n", "nvmlInit: the driver is not loaded (NVML error 9)", []bool{false, false, false}},
		"lost":       {"- nvmlDeviceGetCount error 15\n", "nvmlDeviceGetCount_v2: the GPU is lost (NVML error 15)", []bool{false, true, false}},
		"no number":  {"- nvmlDeviceGetCount error 13\n", "nvmlDeviceGetCount: NVML error 3", []bool{false, false, false}},
		"no memory":  {"- nvmlInit error 20\n", "nvmlInit: the driver lacks memory or other resources of the node (NVML error 20)", []bool{false, false, false}},
		"garbage":    {"- nvmlDeviceGetCount = -5\n", "nvmlDeviceGetCount: 4294967291 GPUs, want at most 256", []bool{false, false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, a := askFake(t, c.scenario)
			if diff := cmp.Diff(c.want, a.Err); diff != "" || !slices.Equal(a.State, c.state) {
				t.Errorf("%v, want %v (-want +got):\n%s", a.State, c.state, diff)
			}
			if a.Calls[len(a.Calls)-1] != "nvmlInit" && strings.HasPrefix(c.want, "nvmlInit") {
				t.Errorf("calls after a failed Init: %v", a.Calls)
			}
		})
	}
	empty := t.TempDir() + "/libnvidia-ml.so.1"
	if err := os.WriteFile(empty, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	stub, err := fakenvml.Place(t.TempDir(), "- nvmlInit error 12\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, a := askLibrary(t, stub); a.Err != "load "+stub+": it loads, but is not the driver's library, perhaps a stub of the CUDA toolkit: nvmlInit: NVML error 12" || !a.State[0] {
		t.Errorf("a stub: %q", a.Err)
	}
	const none = "/nonexistent/libnvidia-ml.so.1"
	for lib, why := range map[string]string{none: "not found", empty: empty + ": file too short"} { // an empty library is a known fault of some images
		if _, a := askLibrary(t, lib); a.Err != "load "+lib+": "+why || !a.State[0] {
			t.Errorf("%s: %q", lib, a.Err)
		}
	}
}

// A GPU that NVML cannot identify is identified by the driver's files.
func TestNameLost(t *testing.T) {
	t.Parallel()
	views := nvidia.GPUViews{Driver: []nvidia.DriverGPU{{Address: "0000:10:00.0", Minor: 0, UUID: "GPU-0", Excluded: false}, {Address: "0000:11:00.0", Minor: 3, UUID: "GPU-1", Excluded: false}, {Address: "0000:12:00.0", Minor: 2, UUID: "GPU-2", Excluded: true}}}
	n := &Snapshot{GPUs: []GPU{{PCI: "0000:10:00.0"}, {Index: 1, Err: ErrGPULost}}}
	nameLost(n, views)
	if g := n.GPUs[1]; g.PCI != "0000:11:00.0" || g.Minor != Known(3) || g.UUID != Known("GPU-1") {
		t.Errorf("%+v", g)
	}
	views.Driver[1].Minor, views.Driver[1].UUID = -1, ""
	n.GPUs[1] = GPU{Index: 1, Err: ErrGPULost}
	if nameLost(n, views); n.GPUs[1].PCI != "0000:11:00.0" || n.GPUs[1].Minor.Known || n.GPUs[1].UUID.Known {
		t.Errorf("%+v", n.GPUs[1])
	}
	views.Driver[2].Excluded = false
	n.GPUs[1] = GPU{Index: 1, Err: ErrGPULost}
	if nameLost(n, views); n.GPUs[1].PCI != "" {
		t.Errorf("%s, though it may be either", n.GPUs[1].PCI)
	}
}

// A recorded node has no NVML unless a library is named.
func TestNVMLBelowAnotherRoot(t *testing.T) {
	t.Parallel()
	h := probe.NewHost("/nonexistent")
	if _, err := Ask(h, AllGroups, nil); !errors.Is(err, probe.ErrNoLibrary) || !errors.Is(err, probe.ErrOtherNode) {
		t.Errorf("%v", err)
	}
	want := &Snapshot{Driver: Known("1.2")}
	h = probe.NewHost("/nonexistent")
	Set(h, want, nil)
	if got, err := Ask(h, AllGroups, nil); got != want || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}

// GPUProcesses shows that the memory of a GPU is freed.
func TestGPUProcessesAsksAgain(t *testing.T) {
	t.Parallel()
	need.Program(t, "gcc")
	scenario := fakenvml.Scenario(fakenvml.H100, 8, "3 nvmlDeviceGetMemoryInfo = 80000 79000 1000", "3 nvmlDeviceGetMemoryInfo first 1 = 80000 70000 10000",
		"3 nvmlDeviceGetComputeRunningProcesses first 1 = 100 9000", "4 nvmlDeviceGetMemoryInfo first 1 = 80000 70000 10000", "4 nvmlDeviceGetMemoryInfo error 15")
	lib, err := fakenvml.Place(t.TempDir(), scenario)
	if err != nil {
		t.Fatal(err)
	}
	for environ, want := range map[string][]string{"A=1": {"10000", "[map[Memory:9000 PID:100]]"}, "PROBE_TEST_AGAIN=processes": {"1000", "<nil>"}} {
		got, _ := askLibrary(t, lib, environ)
		said := []string{fmt.Sprint(gpuAt(got, 3, "Memory", "Used")), fmt.Sprint(gpuAt(got, 3, "Processes"))}
		if diff := cmp.Diff(want, said); diff != "" {
			t.Errorf("%s (-want +got):\n%s", environ, diff)
		}
	}
	h := probe.NewHost("/")
	recorded := &Snapshot{GPUs: []GPU{{Memory: Known(GPUMemory{Used: 7})}}}
	Set(h, recorded, nil)
	if n, err := GPUProcesses(h, nil); err != nil || n.GPUs[0].Memory.Value.Used != 7 {
		t.Errorf("what was recorded has changed: %+v, %v", n, err)
	}
	Set(h, nil, probe.ErrNoLibrary)
	if _, err := GPUProcesses(h, nil); !errors.Is(err, probe.ErrNoLibrary) {
		t.Errorf("no library: %v", err)
	}
}

// AskAgain keeps no value of the first reading.
func TestAskAgain(t *testing.T) {
	t.Parallel()
	need.Program(t, "gcc")
	lines := []string{
		"3 nvmlDeviceGetNvLinkState 4 = 0", "3 nvmlDeviceGetNvLinkState 4 first 1 = 1", "3 nvmlDeviceGetEccMode = 0 0", "3 nvmlDeviceGetEccMode first 1 = 1 1",
		"3 nvmlDeviceGetMigMode = 1 1", "3 nvmlDeviceGetMigMode first 1 = 0 0", "3 nvmlDeviceGetMemoryInfo = 80000 79000 1000", "3 nvmlDeviceGetMemoryInfo first 1 = 80000 70000 10000",
		"3 field 161 7 = 5", "3 field 161 7 first 1 = 4",
	}
	var after []string // the same library without its first answers
	for _, l := range lines {
		if !strings.Contains(l, " first ") {
			after = append(after, l)
		}
	}
	var answers []any
	for i, lines := range [][]string{lines, after} {
		lib, err := fakenvml.Place(t.TempDir(), fakenvml.Scenario(fakenvml.H100, 8, lines...))
		if err != nil {
			t.Fatal(err)
		}
		got, _ := askLibrary(t, lib, []string{"PROBE_TEST_AGAIN=all", "A=1"}[i])
		answers = append(answers, gpuAt(got, 3))
	}
	if diff := cmp.Diff(answers[1], answers[0]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A library that reports every buffer as too small, or a length beyond the buffer, is an error of
// that reading only, and does not use unlimited memory.
func TestNVMLListsWithoutEnd(t *testing.T) {
	t.Parallel()
	const small = ": its list fits into no buffer (NVML error 7)"
	h100, a := askFake(t, fakenvml.Scenario(fakenvml.H100, 3, "0 nvmlDeviceGetComputeRunningProcesses error 7",
		"1 nvmlDeviceGetGraphicsRunningProcesses count 4294967295", "2 nvmlDeviceGetMPSComputeRunningProcesses count 65",
		"2 nvmlDeviceGetComputeRunningProcesses ="+strings.Repeat(" 100 1000", 70)))
	v100, _ := askFake(t, fakenvml.Scenario(fakenvml.V100, 3, "0 nvmlDeviceGetRetiredPages 0 error 7", "1 nvmlDeviceGetRetiredPages 1 count 4294967295",
		"2 nvmlDeviceGetRetiredPages 0 = 300"))
	for name, c := range map[string]struct{ got, want any }{
		"error 7":              {gpuAt(h100, 0, "Processes", "error"), "nvmlDeviceGetComputeRunningProcesses_v3(0)" + small},
		"beyond all":           {gpuAt(h100, 1, "Processes", "error"), "nvmlDeviceGetGraphicsRunningProcesses_v3(1)" + small},
		"one too many":         {gpuAt(h100, 2, "Processes", "error"), "nvmlDeviceGetMPSComputeRunningProcesses_v3(2)" + small},
		"pages, error 7":       {gpuAt(v100, 0, "Rows", "RetiredSBE", "error"), "nvmlDeviceGetRetiredPages(0)" + small},
		"pages beyond all":     {gpuAt(v100, 1, "Rows", "RetiredDBE", "error"), "nvmlDeviceGetRetiredPages(1)" + small},
		"more than fits first": {gpuAt(v100, 2, "Rows", "RetiredSBE"), 300.},
		"the other cause":      {gpuAt(v100, 0, "Rows", "RetiredDBE"), 0.},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
	if a.Err != "" {
		t.Error(a.Err)
	}
	if calls := callsOf(a, 0); slices.Index(calls, "nvmlDeviceGetFieldValues(0)") < 0 {
		t.Errorf("gpu0 was asked nothing else: %v", calls)
	}
}

// The program uses no function of go-nvml that returns a list, because its buffers grow without
// bound.
func TestNoListsOfGoNVML(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	code := ""
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(file, "_test.go") {
			code += string(text)
		}
	}
	lists := 0
	for _, of := range []reflect.Type{reflect.TypeFor[nvml.Device](), reflect.TypeFor[nvml.Interface]()} {
		for method := range of.Methods() {
			for out := range method.Type.Outs() {
				if out.Kind() != reflect.Slice {
					continue
				}
				lists++
				if regexp.MustCompile(`(q\.d|\bd|lib)\.` + method.Name + `\b`).MatchString(code) {
					t.Errorf("%s of go-nvml is used: call the function by listOf", method.Name)
				}
			}
		}
	}
	if lists < 20 {
		t.Errorf("only %d functions with lists were found", lists)
	}
}

// callForList tries few buffers, and no large one, whatever the library reports.
func TestListOf(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		has, says uint32 // entries; the number reported for a buffer that is too small, 0: none
		rooms     []uint32
	}{
		"few":            {3, 3, []uint32{64}},
		"many":           {100, 100, []uint32{64, 256}},
		"told":           {5000, 5000, []uint32{64, 10000}},
		"not told":       {5000, 0, []uint32{64, 256, 1024, 4096, 16384}},
		"the most":       {65536, 65536, []uint32{64, 65536}},
		"too many":       {70000, 70000, []uint32{64, 65536}},
		"without an end": {1 << 31, 1<<32 - 1, []uint32{64, 65536}},
	} {
		var rooms []uint32
		list, ret := callForList(func(count *uint32, _ *uint64) nvml.Return {
			room := *count
			rooms = append(rooms, room)
			if c.has <= room {
				*count = c.has
				return nvml.SUCCESS
			}
			if c.says > 0 {
				*count = c.says
			}
			return nvml.ERROR_INSUFFICIENT_SIZE
		})
		fits := c.has <= mostRoom
		if !slices.Equal(rooms, c.rooms) || fits != (ret == nvml.SUCCESS) || fits && len(list) != int(c.has) {
			t.Errorf("%s: %d entries, error %d, rooms %v, want %v", name, len(list), int(ret), rooms, c.rooms)
		}
	}
	if list, ret := callForList(func(*uint32, *uint64) nvml.Return { return nvml.ERROR_GPU_IS_LOST }); list != nil || ret != nvml.ERROR_GPU_IS_LOST {
		t.Errorf("%v, error %d", list, int(ret))
	}
}

// An impossible value is an error of that reading: a bus that does not answer reads as all ones,
// which would look like more than enough.
func TestNVMLImplausible(t *testing.T) {
	t.Parallel()
	const ones = "4294967295"
	lines := []string{
		"1 nvmlDeviceGetMaxClockInfo 0 = " + ones, "1 nvmlDeviceGetMaxClockInfo 2 = 50001", "1 nvmlDeviceGetApplicationsClock 0 = " + ones,
		"1 nvmlDeviceGetDefaultApplicationsClock 0 = " + ones, "1 nvmlDeviceGetMaxPcieLinkGeneration = " + ones, "1 nvmlDeviceGetCurrPcieLinkGeneration = 9",
		"1 nvmlDeviceGetGpuMaxPcieLinkGeneration = 15", "1 nvmlDeviceGetCurrPcieLinkWidth = 63", "1 nvmlDeviceGetMaxPcieLinkWidth = " + ones,
		"1 nvmlDeviceGetPowerUsage = " + ones, "1 nvmlDeviceGetPowerManagementLimit = " + ones, "1 nvmlDeviceGetPowerManagementDefaultLimit = " + ones,
		"1 nvmlDeviceGetMigMode = 0 " + ones, "2 nvmlDeviceGetMigMode = " + ones + " 0", "2 nvmlDeviceGetEccMode = 1 2", "2 nvmlDeviceGetPersistenceMode = " + ones,
		"2 nvmlDeviceGetSramEccErrorStatus = " + ones, "2 nvmlDeviceGetUnrepairableMemoryFlag_v1 = 2", "2 nvmlDeviceGetRepairStatus = 0 " + ones,
		"1 nvmlDeviceGetEnforcedPowerLimit = 10000001", "1 nvmlDeviceGetMemoryInfo = -1 0 0", "1 field 164 3 = " + ones,
		"0 nvmlDeviceGetMaxPcieLinkGeneration = 8", "0 nvmlDeviceGetMaxPcieLinkWidth = 32", "0 nvmlDeviceGetMaxClockInfo 2 = 14001", "0 nvmlDeviceGetMemoryInfo = 316659348799488 0 0",
	}
	got, a := askFake(t, fakenvml.Scenario(fakenvml.H100, 3, lines...))
	if a.Err != "" {
		t.Fatal(a.Err)
	}
	for path, want := range map[string]string{
		"Modes.MIG": "nvmlDeviceGetMigMode(2): implausible value 4294967295, want at most 1", "Modes.Persistence": "", "ECC.Pending": "nvmlDeviceGetEccMode(2): implausible value 2, want at most 1",
		"ECC.SRAMThreshold": "", "ECC.Unrepairable": "", "ECC.RepairPending": "",
	} {
		text, _ := gpuAt(got, 2, append(strings.Split(path, "."), "error")...).(string)
		if !strings.Contains(text, ": implausible value ") || want != "" && text != want {
			t.Errorf("gpu2 %s: %q, want %q", path, text, want)
		}
	}
	if modes := gpuAt(got, 1, "Modes").(map[string]any); modes["MIG"] != false || modes["MIGPending"] == true || gpuAt(got, 2, "ECC", "On") != true {
		t.Errorf("modes whose other part is implausible: %v", modes)
	}
	for path, call := range map[string]string{
		"Clocks.MaxGraphics": "nvmlDeviceGetMaxClockInfo(1): implausible value 4294967295, want at most 50000 MHz", "Clocks.MaxMemory": "", "Clocks.AppGraphics": "",
		"Clocks.DefaultGraphics": "", "Link.MaxGen": "nvmlDeviceGetMaxPcieLinkGeneration(1): implausible value 4294967295, want at most 8", "Link.Gen": "", "Link.GPUMaxGen": "",
		"Link.Width": "nvmlDeviceGetCurrPcieLinkWidth(1): implausible value 63, want at most 32 lanes", "Link.MaxWidth": "", "Power.Draw": "", "Power.Limit": "",
		"Power.Default": "", "Power.Enforced": "", "Memory": "nvmlDeviceGetMemoryInfo_v2(1): implausible value 18446744073709551615, want at most 1125899906842624 bytes",
	} {
		text, _ := gpuAt(got, 1, append(strings.Split(path, "."), "error")...).(string)
		if !strings.Contains(text, ": implausible value ") || call != "" && text != call {
			t.Errorf("%s: %q, want %q", path, text, call)
		}
	}
	if gpuAt(got, 0, "Link", "MaxGen") != 8. || gpuAt(got, 0, "Link", "MaxWidth") != 32. || gpuAt(got, 0, "Clocks", "MaxMemory") != 14001. {
		t.Errorf("what can be true: %v, %v", gpuAt(got, 0, "Link"), gpuAt(got, 0, "Clocks"))
	}
	if diff := cmp.Diff(list18(26562., 3, float64(UnreadSpeed)), gpuAt(got, 1, "NVLink", "Speed")); diff != "" {
		t.Errorf("speeds (-want +got):\n%s", diff)
	}
	if gpuAt(got, 1, "Serial") != fakenvml.Serial(1) {
		t.Errorf("gpu1: %v", gpuAt(got, 1, "Serial"))
	}
}

// The errors of a GPU whose ECC mode is unread or not supported are read. A GPU without ECC has none.
func TestNVMLErrorsWithoutECCMode(t *testing.T) {
	t.Parallel()
	got, a := askFake(t, fakenvml.Scenario(fakenvml.H100, 6, "0 nvmlDeviceGetEccMode error 14", "1 nvmlDeviceGetEccMode error 999", "2 nvmlDeviceGetEccMode = 4294967295 1",
		"3 nvmlDeviceGetEccMode error 3", "* nvmlDeviceGetMemoryErrorCounter 1 0 7 = 2",
		"4 nvmlDeviceGetEccMode error 3", "4 nvmlDeviceGetMemoryErrorCounter error 3", "5 nvmlDeviceGetEccMode = 0 0"))
	if a.Err != "" {
		t.Fatal(a.Err)
	}
	for gpu, want := range []any{2., 2., 2., 2., nil, nil} {
		if got := gpuAt(got, gpu, "ECC", "SRAM", "Uncorrected"); got != want {
			t.Errorf("uncorrected SRAM errors of gpu%d: %v, want %v", gpu, got, want)
		}
	}
}

// A counter, a mode, a flag or a mask of all ones is an error of that reading, and no fault of the GPU. A high
// counter, and a number that a later driver may define, stay.
func TestNVMLAllOnes(t *testing.T) {
	t.Parallel()
	const ones, long = "4294967295", "9223372036854775807" // which is what a field of 64 ones is decoded to
	lines := []string{
		"1 nvmlDeviceGetMemoryErrorCounter * * 7 = -1", "1 nvmlDeviceGetMemoryErrorCounter * * 2 = " + ones, "1 nvmlDeviceGetPcieReplayCounter = " + ones,
		"1 nvmlDeviceGetRemappedRows = " + strings.Repeat(ones+" ", 4), "1 nvmlDeviceGetRowRemapperHistogram = " + strings.Repeat(ones+" ", 5),
		"1 nvmlDeviceGetComputeMode = " + ones, "1 nvmlDeviceGetCurrentClocksEventReasons = -1", "1 field 226 = " + ones, "1 field 227 = -1", "1 field 230 = " + ones,
		"1 field 74 = " + long, "1 field 269 = -1", "1 field 270 = " + ones, "1 field 271 = " + long, "1 field 161 7 = " + ones, "1 field 162 7 = -1", "1 field 163 = " + long,
		"1 nvmlDeviceGetP2PStatus = " + ones, "1 field 38 = " + ones, "1 field 59 = " + long,
		"2 nvmlDeviceGetRemappedRows error 3", "2 field 142 = " + ones, "2 field 143 = -1", "2 field 144 = " + ones, "2 field 145 = " + long,
		"2 nvmlDeviceGetCurrentClocksEventReasons = " + ones, "2 field 230 = -1", "2 field 271 = -1", "2 field 306 = -1", "2 field 307 = 2", "0 field 307 = 1", "0 field 306 error 999",
		"0 nvmlDeviceGetMemoryErrorCounter 0 0 2 = 5000000000", "0 nvmlDeviceGetPcieReplayCounter = 4294967294", "0 nvmlDeviceGetRemappedRows = 640 512 1 1",
		"0 field 230 = 9", "0 field 226 = 1", "0 field 271 = 31536000000000000", "0 field 161 7 = 5000000000", "0 nvmlDeviceGetCurrentClocksEventReasons = 0x1ff", "0 nvmlDeviceGetComputeMode = 7",
	}
	got, a := askFake(t, fakenvml.Scenario(fakenvml.H100, 3, lines...))
	if a.Err != "" {
		t.Fatal(a.Err)
	}
	bad := map[int]string{
		1: "ECC.SRAM.Corrected ECC.SRAM.Uncorrected ECC.SRAM.UncorrectedAggregate ECC.DRAM.Corrected ECC.DRAM.Uncorrected Link.Replays Rows.Remapped Rows.Histogram Modes.Compute " +
			"Throttle.Now Throttle.PowerCap Throttle.Thermal Throttle.HardwareThermal Throttle.PowerBrake Recovery.Action Recovery.Reset Recovery.DrainReset NVLink.PeerP2P " +
			"NVLinkErrors.CRCFlit NVLinkErrors.Recovery",
		2: "Rows.Remapped Rows.Banks Throttle.Now Throttle.PowerBrake Recovery.Action",
	}
	for gpu, paths := range bad {
		for path := range strings.FieldsSeq(paths) {
			r, _ := gpuAt(got, gpu, strings.Split(path, ".")...).(map[string]any)
			if text, _ := r["error"].(string); !strings.Contains(text, ": implausible value ") {
				t.Errorf("gpu%d %s: %v, want an error", gpu, path, r)
			}
		}
	}
	counts := map[string]any{"replays": list18(0., 7, float64(UnreadCount)), "recoveries": list18(0., 7, float64(UnreadCount))}
	if diff := cmp.Diff(any(counts), gpuAt(got, 1, "NVLink", "Counts")); diff != "" {
		t.Errorf("counters of NVLinks (-want +got):\n%s", diff)
	}
	for path, want := range map[string]any{
		"ECC.DRAM.Corrected": 5e9, "Link.Replays": 4294967294., "Recovery.Action": 9., "Recovery.Reset": true, "Throttle.PowerBrake": 31536e12, "Throttle.Now": 511., "Modes.Compute": "unknown",
		"Rows.Remapped": map[string]any{"Corrected": 640., "Uncorrected": 512., "Pending": true, "Failed": true},
		"Rows.Banks":    map[string]any{"Active": 0., "Inactive": 0., "NoSpare": 0., "Pending": true},
	} {
		if diff := cmp.Diff(want, gpuAt(got, 0, strings.Split(path, ".")...)); diff != "" {
			t.Errorf("gpu0 %s (-want +got):\n%s", path, diff)
		}
	}
	if replays := gpuAt(got, 0, "NVLink", "Counts", "replays").([]any); replays[7] != 5e9 {
		t.Errorf("replays of NVLinks: %v", replays)
	}
}

// Each bound is for a call that the program makes, of a type that can be compared with it.
func TestBoundsAreOfCalls(t *testing.T) {
	t.Parallel()
	_, a := askFake(t, fakenvml.Scenario(fakenvml.H100, 2, "0 nvmlDeviceGetCurrPcieLinkGeneration = 1", "0 nvmlDeviceGetUtilizationRates = 5 5", "0 nvmlDeviceGetEccMode = 0 0", "0 nvmlDeviceGetRemappedRows error 3",
		"0 field 142 error 3", "0 field 143 error 3", "0 field 144 error 3", "0 field 145 error 3"))
	_, old := askFake(t, fakenvml.Scenario(fakenvml.A100, 1), fakenvml.Old...)
	for symbol := range bounds {
		called := func(call string) bool { return strings.HasPrefix(call, symbol+"(0") }
		if symbol != "nvmlDeviceGetClockInfo" && !slices.ContainsFunc(slices.Concat(a.Calls, old.Calls), called) {
			t.Errorf("%s is never called", symbol)
		}
	}
}

// Margins are negative whatever type a driver reports; other values keep their size.
func TestFieldsOfMargins(t *testing.T) {
	t.Parallel()
	value := func(id uint32, kind nvml.ValueType, raw uint64) Reading[int64] {
		v := nvml.FieldValue{ValueType: uint32(kind)}
		binary.NativeEndian.PutUint64(v.Value[:], raw)
		return decodeField("field", id, v)
	}
	const minus2 = 1<<64 - 2
	for _, id := range signedFields {
		for _, kind := range []nvml.ValueType{nvml.VALUE_TYPE_UNSIGNED_INT, nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG,
			nvml.VALUE_TYPE_SIGNED_LONG_LONG, nvml.VALUE_TYPE_SIGNED_INT} {
			for _, raw := range []uint64{minus2, minus2 & 0xffffffff} {
				if got := value(id, kind, raw); got != Known(int64(-2)) {
					t.Errorf("field %d, type %d, %#x: %+v", id, kind, raw, got)
				}
			}
		}
	}
	if got := value(nvml.FI_DEV_MEMORY_TEMP, nvml.VALUE_TYPE_UNSIGNED_INT, minus2); got != Known(int64(1<<32-2)) {
		t.Errorf("%+v", got)
	}
	if got := value(nvml.FI_DEV_MEMORY_TEMP, nvml.VALUE_TYPE_DOUBLE, 0); got.Err == nil {
		t.Errorf("%+v", got)
	}
}
