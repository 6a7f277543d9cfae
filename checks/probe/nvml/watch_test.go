package nvml

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// watchedOnce is the output of a process that has watched GPUs. It takes a sample, creates a file, waits, and takes
// another one.
type watchedOnce struct {
	Err           string
	Event         string
	Took          time.Duration
	First, Second []Sample
	Changed       []string
	Limits        []float64
	Waited        []string // calls of the wait
	Calls         []string // of the second sample
}

// watchOnce is the process.
func watchOnce(h *probe.Host, file string, doing func(string)) {
	var out watchedOnce
	defer func() { _ = json.NewEncoder(os.Stdout).Encode(out) }()
	w, err := WatchGPUs(h, doing)
	if err != nil {
		out.Err = err.Error()
		return
	}
	out.Limits = w.Limits(doing)
	none := func(int) bool { return false }
	out.First, _ = w.Sample(doing, none)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		out.Err = err.Error()
	}
	began := time.Now()
	wait := func(call string) { out.Waited = append(out.Waited, call) }
	if out.Event, err = w.Wait(300*time.Millisecond, wait); err != nil {
		out.Err = err.Error()
		if _, err := w.Wait(0, wait); err != nil {
			out.Err += ", again"
		}
	}
	out.Took = time.Since(began)
	out.Second, out.Changed = w.Sample(func(call string) { out.Calls = append(out.Calls, call) }, none)
	for _, list := range [][]Sample{out.First, out.Second} {
		for i := range list {
			if list[i].State != nil {
				list[i].State, out.Event = nil, out.Event+fmt.Sprintf(" lost %d", i)
			}
		}
	}
}

func watchNode(t *testing.T, model fakenvml.Model, file string, lines ...string) (out struct {
	watchedOnce

	First, Second []map[string]any
}) {
	t.Helper()
	dir := t.TempDir()
	lib, err := fakenvml.Place(dir, fakenvml.Scenario(model, 8, lines...))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PROBE_TEST_NVML="+lib, "PROBE_TEST_WATCH="+filepath.Join(dir, file))
	data, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	return out
}

// A sample is one call for all fields, and few others. Counters grow between two.
func TestWatch(t *testing.T) {
	t.Parallel()
	out := watchNode(t, fakenvml.H100, "none", "* nvmlDeviceGetUtilizationRates = 97 31", "* field 138 = 0@1000000", "2 field 186 = 512000", "* field 269 = 0@500000000")
	if out.Err != "" || out.Event != "" || out.Took < 300*time.Millisecond || len(out.Changed) != 0 || len(out.Second) != 8 || out.Limits[0] != 700 {
		t.Fatalf("%+v", out)
	}
	g := out.Second[2]
	if g["Power"] != 512000.0 || g["Busy"] != 97.0 || g["Memory"] != 31.0 || g["Clock"] != 345.0 {
		t.Errorf("%v", g)
	}
	number := func(v any) float64 { n, _ := v.(float64); return n }
	if sent := number(g["NVLink"]) - number(out.First[2]["NVLink"]); sent < 250e6 || sent > 2000e6 {
		t.Errorf("%v bytes by NVLink in 0.3 s, want about 307e6", sent)
	}
	if len(out.Calls) > 8*6 || slices.ContainsFunc(out.Calls, func(c string) bool {
		return strings.Contains(c, "Processes") || strings.Contains(c, "PcieThroughput")
	}) {
		t.Errorf("%d calls: %v", len(out.Calls), out.Calls)
	}
}

// On Hopper a sample has the activity since the one before, by one call more; what fails once is not asked again.
func TestWatchGPM(t *testing.T) {
	t.Parallel()
	out := watchNode(t, fakenvml.H100, "none", "* nvmlGpmQueryDeviceSupport = 1", "5 nvmlGpmQueryDeviceSupport = 0", "* gpm 2 = 88", "3 gpm 2 = 31", "* gpm 5 = 41", "* gpm 10 = 300",
		"6 nvmlGpmSampleGet error 14")
	if out.Err != "" || len(out.Second) != 8 {
		t.Fatalf("%+v", out)
	}
	for i, want := range map[int][3]any{0: {88.0, 41.0, nil}, 3: {31.0, 41.0, nil}, 5: {}, 6: {}} { // 300 % is no share
		if g := out.Second[i]; g["SM"] != want[0] || g["Tensor"] != want[1] || g["DRAM"] != want[2] {
			t.Errorf("gpu%d: SM %v, tensor %v, DRAM %v, want %v", i, g["SM"], g["Tensor"], g["DRAM"], want)
		}
		if first := out.First[i]; first["SM"] != nil {
			t.Errorf("gpu%d: the first sample has SM %v, want none", i, first["SM"])
		}
	}
	count := map[string]int{}
	for _, call := range out.Calls {
		name, _, _ := strings.Cut(call, " ")
		count[name]++
	}
	if count["nvmlGpmSampleGet(0)"] != 1 || count["nvmlGpmMetricsGet(0)"] != 1 || count["nvmlGpmSampleGet(6)"] != 0 {
		t.Errorf("calls %v", count)
	}
}

// A GPU whose calls time out is asked once, and costs the others nothing.
func TestWatchTimeouts(t *testing.T) {
	t.Parallel()
	out := watchNode(t, fakenvml.H100, "bad", "* nvmlDeviceGetUtilizationRates = 97 31", "3 nvmlDeviceGetUtilizationRates error 10", "3 nvmlDeviceGetFieldValues error 10", "3 nvmlDeviceGetFieldValues late 1100")
	asked := 0
	for _, call := range out.Calls {
		if strings.Contains(call, "(3") {
			asked++
		}
	}
	if out.Err != "" || asked != 1 || time.Duration(out.Second[3]["Took"].(float64)) < Enough || out.Second[3]["Busy"] != nil || out.Second[4]["Busy"] != 97.0 {
		t.Errorf("asked %d times: %v, %v", asked, out.Second[3], out.Calls)
	}
}

// The counters of NVLink 5 are those of its links.
func TestWatchB200(t *testing.T) {
	t.Parallel()
	out := watchNode(t, fakenvml.B200, "none", "* field 202 * = 1000000", "* field 204 * = 500000")
	if out.Err != "" || len(out.Second) != 8 || out.Second[0]["NVLink"] != 18*1.5e6 {
		t.Errorf("%+v", out)
	}
}

// A counter that fails, or begins to answer, leaves the sum unknown once: it would jump.
func TestWatchSums(t *testing.T) {
	t.Parallel()
	out := watchNode(t, fakenvml.H100, "late", "* field 138 = 1000", "* field 139 = 500", "2 field 139 error 999", "2 field 139 first 1 = 500", "4 field 139 error 999", "4 field 139 with late = 500")
	if out.Err != "" || len(out.Second) != 8 {
		t.Fatalf("%+v", out)
	}
	for i, want := range map[int][2]any{0: {1536000.0, 1536000.0}, 2: {1536000.0, nil}, 4: {1024000.0, nil}} {
		if first, second := out.First[i]["NVLink"], out.Second[i]["NVLink"]; first != want[0] || second != want[1] {
			t.Errorf("gpu%d: NVLink %v, then %v, want %v", i, first, second, want)
		}
	}
	had := []bool{false, false}
	for i, test := range []struct {
		known [2]bool
		want  bool
	}{{[2]bool{true, false}, true}, {[2]bool{true, true}, false}, {[2]bool{true, true}, true}, {[2]bool{true, false}, false}, {[2]bool{true, false}, true}, {[2]bool{}, false}, {[2]bool{true, true}, true}} {
		if got := total([]Reading[int64]{{Value: 1, Known: test.known[0]}, {Value: 2, Known: test.known[1]}}, had); got.Known != test.want {
			t.Errorf("sample %d: known %v, want %v", i, got.Known, test.want)
		}
	}
}

// A change beside a sample that failed is seen in the next one.
func TestWatchAfterAGap(t *testing.T) {
	t.Parallel()
	was := state{recovery: Known(int64(0)), uncorrected: Known(int64(7))}
	failed := state{recovery: Failed[int64](os.ErrDeadlineExceeded)}
	now := state{recovery: Known(int64(1)), uncorrected: Known(int64(7))}
	if got := now.since(3, failed.or(was)); !slices.Equal(got, []string{"gpu3: recovery action 1, was 0"}) {
		t.Errorf("%v", got)
	}
	if got := now.since(3, now.or(failed.or(was))); got != nil {
		t.Errorf("again: %v", got)
	}
}

func TestWatchEvents(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		file, event, changed, err string
		lines                     []string
	}{
		"Xid":                  {"event3", "gpu3: Xid 79", "", "", []string{"3 nvmlEventSetWait with event3 = 8 79"}},
		"another event":        {"event5", "gpu5: event 0x8000 of NVML, 1", "", "", []string{"* nvmlDeviceGetSupportedEventTypes = 0xffff", "5 nvmlEventSetWait with event5 = 0x8000 1"}},
		"recovery action":      {"bad", "", "gpu1: recovery action 1, was 0", "", []string{"1 field 230 with bad = 1"}},
		"uncorrected errors":   {"bad", "", "gpu1: uncorrected errors of the memory 2, was 0", "", []string{"1 field 4 with bad = 2"}},
		"rows":                 {"bad", "", "gpu7: failed remapping of rows 1, was 0", "", []string{"7 field 145 with bad = 1"}},
		"no events":            {"event3", "", "", "", []string{"* nvmlDeviceGetSupportedEventTypes = 0", "3 nvmlEventSetWait with event3 = 8 79"}},
		"events end":           {"none", "", "", "nvmlEventSetWait: unknown error (NVML error 999)", []string{"- nvmlEventSetWait error 999"}},
		"lost before":          {"none", " lost 4 lost 4", "", "", []string{"4 nvmlDeviceGetUtilizationRates error 15"}},
		"a GPU without fields": {"none", "", "", "", []string{"2 nvmlDeviceGetFieldValues error 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := watchNode(t, fakenvml.H100, test.file, test.lines...)
			if out.Event != test.event || strings.Join(out.Changed, "; ") != test.changed || out.Err != test.err {
				t.Errorf("event %q, changed %q, error %q; want %q, %q, %q", out.Event, out.Changed, out.Err, test.event, test.changed, test.err)
			}
			if freed := slices.Contains(out.Waited, "nvmlEventSetFree"); freed != (test.err != "") || len(out.Second) != 8 {
				t.Errorf("calls %v, %d samples", out.Waited, len(out.Second))
			}
		})
	}
}
