package run

import (
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
)

// A library that goes from call to call is slow, unless it had time enough; one that
// stays in a call hangs.
func TestSlow(t *testing.T) {
	t.Parallel()
	tests := []struct {
		hung checks.Hung
		code string
		want checks.Severity
	}{
		{checks.Hung{Doing: "nvmlDeviceGetUUID(2)", For: 8 * time.Second, Moved: true}, "probe.slow", checks.Unknown},
		{checks.Hung{Doing: "nvmlDeviceGetUUID(2)", For: 25 * time.Second, Moved: true}, "probe.hung", checks.Fail},
		{checks.Hung{Doing: "nvmlDeviceGetUUID(2)", For: 8 * time.Second}, "probe.hung", checks.Fail},
	}
	for _, tt := range tests {
		r := new(Engine).result(&plan.Step{Name: "check_gpu_count"}, Outcome{Hung: &tt.hung})
		if len(r.Findings) != 1 || r.Findings[0].Code != tt.code || r.Findings[0].Severity != tt.want {
			t.Errorf("%+v: %+v, want %s", tt.hung, r.Findings, tt.code)
		}
	}
}
