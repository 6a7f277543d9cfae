package ask

import (
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
)

// A fault that the monitor has found is shown until the next health check, whatever was run since.
func TestLastOf(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ran := func(context string, age time.Duration, v checks.Severity) *event.Event {
		return &event.Event{Context: context, Time: now.Add(-age), Verdict: v, Part: context == "monitor"}
	}
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
	} {
		want := tt.list[tt.want]
		if got := lastOf(tt.list, "1", nil); got != want || tt.list[0] != want {
			t.Errorf("%s: %s of %s, want %s", tt.name, got.Context, got.Time, want.Context)
		}
	}
}
