package active

import (
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// BenchmarkLastResult measures the cost of an active test with --max-age in a prolog: reading its
// last result, in a worker that has read nothing yet.
func BenchmarkLastResult(b *testing.B) {
	env, root := trialEnv(b, nil)
	slowTrial("", 0, true).Run(b.Context(), env)
	test := slowTrial("", 24*time.Hour, false)
	for b.Loop() {
		fresh := &checks.Env{Host: probe.NewHost(root)}
		fresh.Host.SetPast("/past")
		if _, known := Fresh(fresh, "check_trial", test, true); !known {
			b.Fatal("no result")
		}
	}
}
