package slurm_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// soon is enough for the next health check, two seconds later, to see a fault.
const soon = 45 * time.Second

const (
	fault  = "check_file_test:  -f /etc/nhc/ok returned 1."
	reason = "NHC: " + fault
)

func TestHealthyNodesAskNothing(t *testing.T) {
	t.Parallel()
	c := start(t)
	for _, n := range c.Nodes {
		n.Conf("* || check_file_test -f /etc/nhc/ok",
			"* || check_fs_mount_rw -f /run",
			"* || [ -d /proc/1 ] && check_ps_service -u root slurmd")
	}
	c.WaitRounds(2) // nhc-gpu reads the state once for a node that it does not remember
	before := c.RPCs()
	c.WaitRounds(5)
	for kind, count := range c.RPCs() {
		// sdiag's own request; all other requests about nodes begin with REQUEST, too
		if kind == "REQUEST_STATS_INFO" || !strings.HasPrefix(kind, "REQUEST_") {
			continue
		}
		if more := count - before[kind]; more != 0 {
			t.Errorf("slurmctld got %d %s during five health checks of each node, want none", more, kind)
		}
	}
	if n := c.RPCs()["REQUEST_UPDATE_NODE"]; n != 0 {
		t.Errorf("slurmctld got %d REQUEST_UPDATE_NODE, want none", n)
	}
	for _, n := range c.Nodes {
		n.Must("idle", "")
	}
}

func TestDrainAndReturn(t *testing.T) {
	t.Parallel()
	c := start(t)
	n := c.Nodes[0]

	n.Remove("ok")
	n.WaitState("drain", soon)
	n.Must("drain", reason)
	c.WaitFor(soon, "fault in nhc.log", func() (string, bool) { return n.Log(), strings.Contains(n.Log(), fault) }) // which is written last
	c.wantInSyslog("Health check failed:  " + fault)
	n.WaitRounds(2)
	n.Must("drain", reason)
	for _, other := range c.Nodes[1:] {
		other.Must("idle", "")
	}
	if got := c.RPCs()["REQUEST_UPDATE_NODE"]; got != 1 {
		t.Errorf("slurmctld got %d REQUEST_UPDATE_NODE for one fault, want 1", got)
	}

	n.Create("ok")
	n.WaitState("idle", soon)
	for _, other := range c.Nodes[1:] {
		other.Must("idle", "")
	}
}

// The reason changes with the fault.
func TestSecondFault(t *testing.T) {
	t.Parallel()
	c := start(t)
	n := c.Nodes[0]
	n.Conf("* || check_file_test -f /etc/nhc/ok", "* || check_file_test -f /etc/nhc/second")
	n.WaitReason("drain", "NHC: check_file_test:  -f /etc/nhc/second ", soon)
	n.Remove("ok")
	n.WaitReason("drain", reason, soon)
	n.Create("ok")
	n.Create("second")
	n.WaitState("idle", soon)
}

// A person's reason stays, whatever the health check finds.
func TestAdministratorsDrainStands(t *testing.T) {
	t.Parallel()
	c := start(t)
	n := c.Nodes[0]
	const theirs = "new DIMMs, ticket 4711"
	n.WaitRounds(1)
	c.Update(n, "State=DRAIN", "Reason="+theirs)
	for _, step := range []func(){func() {}, func() { n.Remove("ok") }, func() { n.Create("ok") }} {
		step()
		n.WaitRounds(3)
		n.Must("drain", theirs)
	}
	c.Update(n, "State=RESUME")
	n.WaitState("idle", soon)
}

// If a person takes over our drain, the node stays drained even when it is healthy again.
func TestAdministratorTakesOver(t *testing.T) {
	t.Parallel()
	c := start(t)
	n := c.Nodes[0]
	n.Remove("ok")
	n.WaitReason("drain", reason, soon)
	const theirs = "hands off"
	c.Update(n, "State=DRAIN", "Reason="+theirs)
	n.WaitRounds(2)
	n.Must("drain", theirs)
	n.Create("ok")
	n.WaitRounds(3)
	n.Must("drain", theirs)
}

// If a person resumes a node that is still faulty it is drained again. The reason of an earlier
// drain, which 24.11 keeps, does not hide the fault.
func TestResumedTooEarly(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := start(t)
	n := c.Nodes[0]
	c.Update(n, "State=DRAIN", "Reason=cabling")
	c.Update(n, "State=RESUME")
	n.WaitState("idle", soon)

	n.Remove("ok")
	n.WaitReason("drain", reason, soon)
	c.Update(n, "State=RESUME")
	n.WaitRounds(2)
	n.WaitReason("drain", reason, soon)
	n.Create("ok")
	n.WaitState("idle", soon)
}

// Running jobs on a failing node continue to their end.
func TestRunningJobLives(t *testing.T) {
	t.Parallel()
	c := start(t)
	n := c.Nodes[1]
	job := strings.TrimSpace(c.Exec("sbatch", "--parsable", "--nodelist="+n.Name, "--output=/dev/null", "--chdir=/",
		"--wrap=while [ ! -e /etc/nhc/done ]; do sleep 0.2; done"))
	n.WaitState("mix alloc", soon)

	n.Remove("ok")
	n.WaitReason("drng", reason, soon)
	n.WaitRounds(2)
	if out := c.Exec("squeue", "--noheader", "--format=%T", "--jobs="+job); strings.TrimSpace(out) != "RUNNING" {
		t.Errorf("the job on the failing node is %q, want RUNNING", out)
	}
	n.Create("ok")
	n.WaitState("mix alloc", soon)
	n.Remove("ok")
	n.WaitReason("drng", reason, soon)
	n.Create("done")
	n.WaitReason("drain", reason, soon)
	if out := c.Exec("scontrol", "show", "job", job); !strings.Contains(out, "JobState=COMPLETED") {
		t.Errorf("the job has not completed: %s", out)
	}
	n.Create("ok")
	n.WaitState("idle", soon)
}
