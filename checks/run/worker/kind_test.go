package worker

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// Each line of events.toml is an event of its kind, also one that check_kernel_log judges without a device.
func TestKindOf(t *testing.T) {
	t.Parallel()
	for _, l := range monitor.Lines() {
		if got := kindOf(probe.KernelRecord{Text: []byte(l.Example)}); got != l.Kind {
			t.Errorf("%q: %q, want %q", l.Example, got, l.Kind)
		}
	}
	const boot = "NMI watchdog: Enabled. Permanently consumes one hw-PMU counter."
	if got := kindOf(probe.KernelRecord{Text: []byte(boot)}); got != "" {
		t.Errorf("%q: %q", boot, got)
	}
	const dead = "mlx5_core 0000:23:00.0: poll_health:1083:(pid 0): Fatal error 5 detected"
	if got := kindOf(probe.KernelRecord{Text: []byte(dead)}); got != monitor.Device {
		t.Errorf("%q: %q", dead, got)
	}
}
