package jobs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// TestDryRunSparesLeftovers shows that a dry run ends and removes no leftovers of a job, and
// reports each of them once.
func TestDryRunSparesLeftovers(t *testing.T) {
	t.Parallel()
	if !checktest.Alone(t) {
		return
	}
	job := liveJob(t)
	left := leaveObjects(t, job, "0600")
	objects := left()
	run := func() (findings []checks.Finding, held []string) {
		env := &checks.Env{Host: probe.NewHost("/"), Job: job, Vars: map[string]string{"SQUEUE_CMD": "/bin/true"}, DryRun: true}
		findings = (&jobLeftovers{End: true, Stuck: stuckAfter}).Run(checks.WithDeadline(t.Context(), time.Now().Add(20*time.Second)), env)
		if left() != objects {
			t.Errorf("%d of %d objects are left", left(), objects)
		}
		for _, f := range findings {
			for _, claim := range []string{"; removed", "had to be", "asked to end", "killed"} {
				if strings.Contains(f.Message, claim) {
					t.Errorf("claims to have acted: %s", f.Message)
				}
			}
		}
		return findings, env.Held()
	}
	if findings, held := run(); len(held) != objects || len(findings) != objects {
		t.Errorf("%d objects: held %q, found %+v", objects, held, findings)
	}
	pid := leave(t, job, job.UID, "trap '' TERM; echo ready; exec sleep 600")
	findings, held := run()
	if want := fmt.Sprintf("end process %d (sleep) of ", pid); len(held) != 1 || !strings.HasPrefix(held[0], want) {
		t.Errorf("held %q, want %s...", held, want)
	}
	if !probe.Alive(probe.NewHost("/"), pid) || !strings.Contains(fmt.Sprint(findings), fmt.Sprintf("process %d (sleep) of job %s remains", pid, job.ID)) {
		t.Errorf("%+v: want that process %d remains", findings, pid)
	}
}
