package ask

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	_ "github.com/nhc-gpu/nhc-gpu/checks/all"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
)

// A fault that the monitor has found is shown until the next health check, whatever was run since.
func TestLastOf(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ran := func(context string, age time.Duration, v checks.Severity) *event.Event {
		return &event.Event{Context: context, Time: now.Add(-age), Verdict: v, Part: context == "monitor", Boot: "b1"}
	}
	old := ran("healthcheck", 5*time.Minute, checks.OK)
	old.Boot = "b0"
	for _, tt := range []struct {
		name string
		list []*event.Event // the newest first
		want int
	}{
		{"a fault after the health check", []*event.Event{ran("monitor", time.Minute, checks.Fail), ran("healthcheck", time.Hour, checks.OK)}, 0},
		{"then a prolog and a run by hand", []*event.Event{ran("prolog", 1, checks.OK), ran("manual", 2, checks.OK), ran("monitor", time.Minute, checks.Fail), ran("healthcheck", time.Hour, checks.OK)}, 2},
		{"then a health check", []*event.Event{ran("prolog", 1, checks.OK), ran("healthcheck", time.Minute, checks.OK), ran("monitor", time.Hour, checks.Fail)}, 1},
		{"a warning", []*event.Event{ran("monitor", time.Minute, checks.Warn), ran("healthcheck", time.Hour, checks.OK)}, 1},
		{"no health check", []*event.Event{ran("prolog", 1, checks.OK), ran("monitor", time.Hour, checks.Fail)}, 1},
		{"a run by hand instead of it", []*event.Event{ran("manual", time.Minute, checks.OK), ran("monitor", time.Hour, checks.Fail)}, 0},
		{"only runs around a job", []*event.Event{ran("epilog", 1, checks.OK), ran("prolog", 2, checks.Fail)}, 0},
		{"a timer instead of slurmd's health checks", []*event.Event{ran("manual", time.Minute, checks.OK), ran("healthcheck", 3*time.Hour, checks.OK)}, 0},
		{"no timer, either", []*event.Event{ran("healthcheck", 3*time.Hour, checks.OK), ran("manual", 4*time.Hour, checks.OK)}, 0},
		{"a run by hand after a health check", []*event.Event{ran("manual", time.Minute, checks.OK), ran("healthcheck", time.Hour, checks.OK)}, 1},
		{"a fault while the clock was ahead", []*event.Event{ran("monitor", -time.Hour, checks.Fail), ran("healthcheck", time.Minute, checks.OK)}, 1},
		{"the same before any health check of this boot", []*event.Event{ran("monitor", -time.Hour, checks.Fail), old}, 0},
	} {
		want := tt.list[tt.want]
		if got := lastOf(tt.list, now, 2*time.Hour, "1", nil); got != want || tt.list[0] != want {
			t.Errorf("%s: %s of %s, want %s", tt.name, got.Context, got.Time, want.Context)
		}
	}
}

// A health check that is too old for --max-age gives way to a newer run of the node's own file, not to one of another
// file, which has not looked for what the health check finds.
func TestLastOfOtherFile(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ran := func(context string, age time.Duration, other bool) *event.Event {
		e := &event.Event{Context: context, Time: now.Add(-age), Part: context == "monitor"}
		if context == "monitor" {
			e.Verdict = checks.Fail
		}
		if other {
			e = e.OfOther(false)
		}
		return e
	}
	for _, tt := range []struct {
		name string
		list []*event.Event // the newest first
		want int
	}{
		{"the node's own file", []*event.Event{ran("manual", 5*time.Minute, false), ran("healthcheck", 25*time.Minute, false)}, 0},
		{"another file", []*event.Event{ran("prolog", time.Minute, false), ran("manual", 5*time.Minute, true), ran("healthcheck", 25*time.Minute, false)}, 2},
		{"a fault of the monitor before it", []*event.Event{ran("manual", 5*time.Minute, true), ran("monitor", 10*time.Minute, false), ran("healthcheck", 25*time.Minute, false)}, 1},
		{"no health check for a day", []*event.Event{ran("manual", 5*time.Minute, true), ran("healthcheck", 25*time.Hour, false)}, 0},
		{"no health check", []*event.Event{ran("prolog", time.Minute, false), ran("manual", 5*time.Minute, true)}, 1},
	} {
		want := tt.list[tt.want]
		if got := lastOf(tt.list, now, 15*time.Minute, "1", nil); got != want {
			t.Errorf("%s: %s of %s, want %s", tt.name, got.Context, got.Time, want.Context)
		}
	}
}

// A check that had no result is not healthy for the codes that it could have found.
func TestStatusOfBlindChecks(t *testing.T) {
	t.Parallel()
	of := func(check, code string, s checks.Severity) event.Result {
		return event.Result{Check: check, Code: code, Severity: s}
	}
	hung := of("check_gpu_xid", "probe.hung", checks.Fail)
	for _, tt := range []struct {
		result event.Result
		codes  string
		want   checks.Severity
	}{
		{of("check_gpu_ecc", "gpu.error", checks.Unknown), "gpu.ecc,gpu.remap", checks.Unknown},
		{of("check_gpu_ecc", "gpu.error", checks.Unknown), "gpu.count", checks.OK},
		{of("check_gpu_count", "gpu.nvml", checks.Unknown), "gpu.count,gpu.driver", checks.Unknown},
		{of("check_gpu_ecc", "probe.died", checks.Unknown), "gpu.ecc.dram", checks.Unknown},
		{of("check_gpu_nvlink", "probe.died", checks.Unknown), "gpu.nvlink", checks.Unknown},
		{of("check_ib_ports", "probe.slow", checks.Unknown), "ib.,eth.", checks.Unknown},
		{of("check_kernel_log", "probe.unreadable", checks.Unknown), "nvme.log", checks.Unknown},
		{hung, "gpu.xid", checks.Fail},
		{hung, "gpu.xid.79", checks.Fail},
		{hung, "gpu.sxid", checks.Fail},
		{hung, "ib.", checks.OK},
		{of("check_gpu_xid", "", checks.Fail), "gpu.xid", checks.Fail},
		{of("check_gpu_xid", "config.usage", checks.Fail), "gpu.xid", checks.Fail},
		{of("check_gpu_xid", "gpu.recovery.lost", checks.Fail), "gpu.xid", checks.OK},
		{of("check_gpu_xid", "gpu.xid.absent", checks.Skip), "gpu.ecc", checks.OK},
		{of(event.Shell, "probe.hung", checks.Fail), "gpu.xid", checks.OK},
		{of(event.Whole, "", checks.Fail), "gpu.xid", checks.OK},
		{of(event.Whole, "", checks.Unknown), "gpu.xid", checks.Unknown},
	} {
		e := &event.Event{Results: []event.Result{tt.result, {Check: "check_fs_mount"}}}
		if e.Only(strings.Split(tt.codes, ",")); e.Verdict != tt.want {
			t.Errorf("%s %s with --code %s: %v, want %v", tt.result.Check, tt.result.Code, tt.codes, e.Verdict, tt.want)
		}
	}
}

// Status names a drill only if there is one.
func TestToClear(t *testing.T) {
	t.Parallel()
	warn, unknown := event.Result{Check: "check_ps_load", Severity: checks.Warn}, event.Result{Check: "check_gpu_ecc", Code: "probe.slow", Severity: checks.Unknown}
	fail := event.Result{Check: "check_gpu_xid", Code: "gpu.xid.79", Severity: checks.Fail}
	drill := fail
	drill.Drill = true
	for _, tt := range []struct {
		results []event.Result
		drill   *event.Drill
		want    string
		hidden  []event.Result // by --code
	}{
		{nil, nil, "the last run did not resume the node (which has passed in 1 of 2 runs): wait", nil},
		{[]event.Result{warn}, nil, "the last run did not resume the node (which", nil},
		{[]event.Result{unknown}, nil, "the last run did not resume the node (which", nil},
		{[]event.Result{warn, fail}, nil, "repair the fault", nil},
		{[]event.Result{drill, fail}, &event.Drill{}, "repair the fault", nil},
		{[]event.Result{warn, drill}, nil, "end the drill", nil},
		{[]event.Result{warn}, &event.Drill{}, "end the drill", nil},
		{[]event.Result{warn}, nil, "repair gpu.xid.79: nhc-gpu status without --code shows it", []event.Result{unknown, fail}},
		{nil, nil, "the last run did not", []event.Result{unknown, warn}},
	} {
		e := &event.Event{Node: "n1", Results: tt.results, Drill: tt.drill, Slurm: &event.Action{Action: "none", Owner: event.OwnerNHC, Why: "which has passed in 1 of 2 runs"}}
		if got := toClear(e, slices.Concat(tt.results, tt.hidden)); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%v: %q, want %q", tt.results, got, tt.want)
		}
	}
}

// A node whose state could not be read has nothing that was not delivered.
func TestStatusOfUnreadNode(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, tt := range []struct {
		slurm event.Action
		want  string
	}{
		{event.Action{Action: "none", Error: "read node n1: run sinfo: timed out"}, "\n  Slurm      state unknown: sinfo: timed out; the next run asks again\n"},
		{event.Action{Action: "none", Owner: event.OwnerNHC, Reason: "NHC: x", Error: "read node n1: run sinfo: timed out"}, "\n  Slurm      drained by nhc-gpu: NHC: x\n  Slurm      state unknown: sinfo: timed out;"},
		{event.Action{Action: "drain", Error: "run scontrol: refused"}, "not delivered: run scontrol: refused; the next run tries again\n"},
	} {
		var b strings.Builder
		describe(&b, &event.Event{Node: "n1", Time: now, Slurm: &tt.slurm}, nil, nil, now)
		if !strings.Contains(b.String(), tt.want) || tt.slurm.Action == "none" && strings.Contains(b.String(), "not delivered") {
			t.Errorf("%+v: want %q in\n%s", tt.slurm, tt.want, &b)
		}
	}
}
