package open

import (
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// slurmd ends the run that it started, but not the background half.
func TestAllowed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		timeout    string
		background bool
		want       time.Duration
	}{
		{"30", false, 30 * time.Second},
		{"120", false, session.SlurmdLimit},
		{"0", false, session.SlurmdLimit},
		{"120", true, 120 * time.Second},
		{"0", true, session.SlurmdLimit},
	} {
		r := &Files{Node: &node.Node{
			Set: &setting.Settings{Vars: map[string]string{"TIMEOUT": test.timeout}}, Role: slurm.HealthCheck, Background: test.background,
		}}
		if got := r.Allowed(); got != test.want {
			t.Errorf("TIMEOUT=%s, background %v: %s, want %s", test.timeout, test.background, got, test.want)
		}
	}
}
