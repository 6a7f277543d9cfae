package slurm

import (
	"strings"
	"testing"
)

// The reason of a drill replaces no other reason of ours, and a real one replaces it.
func TestDecideDrill(t *testing.T) {
	t.Parallel()
	const drill, fault = "[drill] gpu3 lost 0000:66:00.0: reboot (check_gpu_count) [gpu.recovery.lost]", "gpu3 lost 0000:66:00.0: reboot (check_gpu_count) [gpu.recovery.lost]"
	drained := ParseState("IDLE+DRAIN")
	for _, tt := range []struct {
		name, reason, message string
		state                 State
		want                  Action
	}{
		{"in service", "", drill, ParseState("IDLE"), Drain},
		{"drained for it", "NHC: " + drill, drill, drained, None},
		{"drained for the real fault", "NHC: " + fault, drill, drained, None},
		{"drained for it, and the fault is real now", "NHC: " + drill, fault, drained, Renew},
		{"drained for another drill", "NHC: [drill] gpu4 lost 0000:77:00.0: reboot (check_gpu_count) [gpu.recovery.lost]", drill, drained, Renew},
		{"drained by a person", "[drill] of mine", drill, drained, None},
	} {
		if got := Decide(NodeInfo{State: tt.state, Reason: tt.reason}, Verdict{Message: tt.message}, Policy{}); got.Action != tt.want {
			t.Errorf("%s: %s (%s), want %s", tt.name, got.Action, got.Why, tt.want)
		}
	}
	if reason := Reason(drill); strings.Index(reason, "[drill]") > 20-len("[drill]") {
		t.Errorf("sinfo -R shows %.20q", reason)
	}
	of := func(message string) string {
		return Verdict{Message: message, Code: "gpu.recovery.lost", Device: "gpu3 0000:66:00.0"}.fault()
	}
	if of(drill) == of(fault) {
		t.Errorf("%q is the fault of both", of(drill))
	}
	for reason, want := range map[string][2]string{"NHC: " + drill: {"drill.gpu.recovery.lost", "gpu3"}, "NHC: " + fault: {"gpu.recovery.lost", "gpu3"}} {
		if code, device := ReasonCode(reason), ReasonDevice(reason); code != want[0] || device != want[1] {
			t.Errorf("%s: %s of %s, want %s", reason, code, device, want)
		}
	}
}
