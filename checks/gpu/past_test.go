package gpu

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// In repeated runs on one node each run compares with the state of the run before. A run that
// follows too soon changes nothing.
func TestThrottleRemembers(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(t.TempDir())
	h.SetPast("/past")
	start := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	at := func(after time.Duration, brake uint64) []checks.Severity {
		t.Helper()
		n := checktest.V100s()
		n.Taken = start.Add(after)
		for i := range n.GPUs {
			n.GPUs[i].Throttle.PowerBrake = nvml.Known(brake)
		}
		nvml.Set(h, n, nil)
		var got []checks.Severity
		for _, f := range (&gpuThrottle{Percent: 10, name: "x"}).Run(t.Context(), &checks.Env{Host: h}) {
			got = append(got, f.Severity)
		}
		return got
	}
	if got := at(0, 0); got != nil {
		t.Errorf("first run: %v", got)
	}
	if got := at(10*time.Second, uint64(9*time.Second)); got != nil {
		t.Errorf("ten seconds later: %v, want none: too soon to tell", got)
	}
	if got := at(time.Minute, uint64(30*time.Second)); len(got) != 8 || got[3] != checks.Fail {
		t.Errorf("a minute later: %v, want eight failures", got)
	}
	if got := at(2*time.Minute, uint64(31*time.Second)); got != nil {
		t.Errorf("once it is over: %v", got)
	}
	data, err := os.ReadFile(h.Path("/past/gpu-throttle.json"))
	if err != nil {
		t.Fatal(err)
	}
	var kept gpuPast[throttled]
	if err := json.Unmarshal(data, &kept); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(throttled{Brake: uint64(31 * time.Second)}, kept.GPUs[fakenvml.UUID(3)]); diff != "" || len(kept.GPUs) != 8 {
		t.Errorf("%d GPUs (-want +got):\n%s", len(kept.GPUs), diff)
	}
}

// The counters of a GPU without UUID are not compared with those of another.
func TestThrottleWithoutUUIDs(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(t.TempDir())
	h.SetPast("/past")
	for run := range 2 {
		n := checktest.V100s()
		n.Taken = time.Date(2026, 1, 2, 3, run, 0, 0, time.UTC)
		for i := range n.GPUs {
			n.GPUs[i].UUID = nvml.Reading[string]{}
			n.GPUs[i].Throttle.PowerBrake = nvml.Known(uint64(time.Duration(8-i) * 30 * time.Second))
		}
		nvml.Set(h, n, nil)
		if got := (&gpuThrottle{Percent: 10, name: "x"}).Run(t.Context(), &checks.Env{Host: h}); len(got) > 0 {
			t.Errorf("run %d: %+v", run, got)
		}
	}
}

// Without a place for state a check judges only the current values.
func TestThrottleWithoutMemory(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(t.TempDir())
	n := checktest.H100s()
	n.GPUs[3].Throttle.Now = nvml.Known(uint64(0x80))
	nvml.Set(h, n, nil)
	got := (&gpuThrottle{Percent: 10, name: "x"}).Run(t.Context(), &checks.Env{Host: h})
	if len(got) != 1 || got[0].Severity != checks.Warn {
		t.Errorf("%+v, want a warning", got)
	}
}
