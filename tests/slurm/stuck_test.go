package slurm_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// hold is a check line that creates a file held and waits until hold is gone.
const hold = "* || [ ! -e /etc/nhc/hold ] || { touch /etc/nhc/held; while [ -e /etc/nhc/hold ]; do sleep 0.1; done; }"

// slurmctld goes down during a check that will fail. It gets the fault once it is back, exactly
// once.
func TestDrainArrivesAfterRestart(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := start(t)
	n := c.Nodes[0]
	n.WaitRounds(1)
	n.Conf(hold, "* || check_file_test -f /etc/nhc/ok")
	n.Create("hold")
	c.WaitFor(soon, "check that holds", func() (string, bool) { return "", n.Has("held") })
	c.StopCtld()
	n.Remove("ok")
	n.Remove("hold")
	c.WaitFor(soon, "fault in the log", func() (string, bool) { return n.Log(), strings.Contains(n.Log(), fault) })
	c.WaitFor(soon, "fault in syslog", func() (string, bool) { return c.Syslog(), strings.Contains(c.Syslog(), fault) })

	c.StartCtld()
	n.WaitReason("drain", reason, 3*soon)
	n.WaitRounds(2)
	if got := c.RPCs()["REQUEST_UPDATE_NODE"]; got != 1 {
		t.Errorf("slurmctld got %d REQUEST_UPDATE_NODE, want 1", got)
	}
	n.Create("ok")
	n.WaitState("idle", soon)
}

// Health checks that last longer than their interval overlap.
func TestOverlappingRuns(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := start(t)
	n := c.Nodes[0]
	n.WaitRounds(1)
	n.Conf(hold, "* || check_file_test -f /etc/nhc/ok")
	n.Create("hold")
	c.WaitFor(soon, "check that holds", func() (string, bool) { return "", n.Has("held") })

	n.WaitRounds(3) // others start and end in the meantime without effect
	n.Must("idle", "")
	n.write("byhand.conf", "* || check_file_test -f /etc/nhc/missing\n")
	out, err := n.Try(cluster.BinDir+"/nhc-gpu", "-c", "/etc/nhc/byhand.conf", "LOGFILE=-", "MARK_OFFLINE=0")
	if want := "check_file_test:  -f /etc/nhc/missing returned 1."; err == nil || !strings.Contains(out, want) {
		t.Errorf("a run by hand says %q (%v), want %q", out, err, want)
	}
	if got := c.RPCs()["REQUEST_UPDATE_NODE"]; got != 0 {
		t.Errorf("slurmctld got %d REQUEST_UPDATE_NODE, want none", got)
	}
	n.Remove("ok")
	n.Remove("hold")
	n.WaitReason("drain", reason, soon)
	n.Create("ok")
	n.WaitState("idle", soon)
}

// A check that no signal can end must not block the node's slurmd, and must not get another process
// each interval.
func TestFrozenWorker(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := start(t)
	n := c.Nodes[2]
	freezer := c.freezer(n.Name)
	c.Write("freeze", []byte("#!/bin/sh\necho $$ >"+freezer+"/cgroup.procs\necho FROZEN >"+freezer+"/freezer.state\n"), 0o755)
	n.Settings("TIMEOUT=5\n")
	n.Conf("* || [ ! -e /etc/nhc/freeze ] || "+cluster.Dir+"/freeze", "* || check_file_test -f /etc/nhc/ok")
	n.WaitRounds(1)

	n.Create("freeze")
	began := time.Now()
	n.WaitReason("drain", "NHC: ", soon)
	t.Logf("drained after %v", time.Since(began).Round(time.Millisecond))
	c.WaitRounds(3)
	if state, reason := n.State(); state != "drain" || !strings.HasPrefix(reason, "NHC: ") {
		t.Errorf("%s is %q for reason %q, want it drained by us", n.Name, state, reason)
	}
	if frozen := strings.Fields(c.Exec("cat", freezer+"/cgroup.procs")); len(frozen) != 1 {
		t.Errorf("%d frozen processes after several health checks, want 1", len(frozen))
	}
	for _, other := range c.Nodes {
		if other != n {
			other.Must("idle", "")
		}
	}

	n.Remove("freeze")
	c.Exec("sh", "-c", "echo THAWED >"+freezer+"/freezer.state")
	n.WaitState("idle", 2*soon)
	out := c.Exec("srun", "--nodelist="+n.Name, "hostname")
	if strings.TrimSpace(out) != n.Name {
		t.Errorf("a job after the thaw says %q, want %s", out, n.Name)
	}
}

// freezer creates a group of the freezer hierarchy. While its state is FROZEN, its processes react
// to no signal, not even KILL, until it is THAWED.
func (c *Cluster) freezer(name string) string {
	c.t.Helper()
	dir := filepath.Join(cluster.FreezerDir, c.Group, name)
	if err := os.Mkdir(c.Inside(dir), 0o755); errors.Is(err, fs.ErrNotExist) {
		need.Skip(c.t, "the kernel has no cgroup v1 freezer")
	} else if err != nil {
		c.t.Fatal(err)
	}
	return dir
}
