package active

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// A skipped GPU or a stopped test repairs nothing.
func TestActiveFaultOutlivesWhatIsUnseen(t *testing.T) {
	t.Parallel()
	env, root := trialEnv(t, nil)
	slowTrial("", 0, true).Run(t.Context(), env)
	brief := func(findings []checks.Finding) string {
		return strings.Join(later(t, brief(checktest.Scenario{}.WithoutRates(findings))), "\n")
	}
	want := func(got string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(strings.Join(want, "\n"), got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	const left = "skip active.left: check_trial:  gpu3 0000:13:00.0: skipped: process 1 uses it"
	used := checktest.H100s()
	used.GPUs[3].Processes = nvml.Known([]nvml.GPUProcess{{PID: 1}})
	for range 2 {
		want(brief(slowTrial("", 0, false).Run(t.Context(), again(env, root, used))), left, oldText)
	}
	last, _ := Fresh(again(env, root, checktest.H100s()), "check_trial", slowTrial("", time.Hour, false), true)
	want(brief(last), left, oldText)
	last, _ = Fresh(again(env, root, checktest.H100s()), "check_trial", slowTrial("", time.Nanosecond, false), true)
	want(brief(last), "unknown active.stale: check_trial:  no result of the last 0s: the last one is 0s old", left, oldText)

	stopped := slowTrial("", 0, false)
	stopped.do = func(r *activeRun) {
		r.stop(errJobCame)
		awaitEnd(r)
	}
	want(brief(stopped.Run(t.Context(), again(env, root, checktest.H100s()))), "skip active.stopped: check_trial:  stopped: a job started on the node", oldText)
	want(brief(slowTrial("", 0, false).Run(t.Context(), again(env, root, checktest.H100s()))))
	last, _ = Fresh(again(env, root, checktest.H100s()), "check_trial", slowTrial("", time.Hour, false), true)
	want(brief(last))

	slowTrial("", 0, false).Run(t.Context(), again(env, root, used))
	last, _ = Fresh(again(env, root, checktest.H100s()), "check_trial", slowTrial("", time.Hour, false), true)
	want(brief(last), left) // it says nothing of gpu3
}
