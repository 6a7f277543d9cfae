package slurm_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// boot runs the program as nhc-gpu-boot.service does: before slurmd.
func (n *Node) boot() {
	n.c.t.Helper()
	before := strings.Replace(cluster.NodeScript, `exec slurmd -D -N "$node"`, `exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin `+cluster.BinDir+`/nhc-gpu`, 1)
	out, err := n.c.Try("unshare", "--uts", "--mount", "--propagation", "unchanged", "sh", "-c", before, "sh", n.Name)
	if failed := err != nil; failed == n.Has("ok") {
		n.c.t.Fatalf("%v: %s", err, out)
	}
}

// wantDrained fails the test unless the node is drained by us, whether slurmd has registered or not.
func (n *Node) wantDrained() {
	n.c.t.Helper()
	if out := n.c.Exec("scontrol", "-o", "show", "node", n.Name); !strings.Contains(out, "+DRAIN") || !strings.Contains(out, "Reason="+reason) {
		n.c.t.Errorf("before slurmd: %s", out)
	}
}

// The check before slurmd finds a fault. If slurmctld answers, the drain is set before slurmd
// registers, and outlives that, also if slurmctld has not seen the node since its start. If slurmctld
// is down, the next health check after slurmd has started delivers the drain.
func TestBootBeforeSlurmd(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := newCluster(t)
	c.conf = strings.Replace(c.conf, "HealthCheckInterval=2\n", "HealthCheckInterval=0\n", 1)
	c.up()
	early, late, twice := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	for _, n := range c.Nodes[:3] {
		n.Remove("ok")
		n.shutdown()
		n.emptyRun()
	}
	early.boot()
	early.wantDrained()
	c.StopCtld()
	late.boot()
	twice.boot()
	c.StartCtld()
	twice.boot()
	twice.wantDrained()

	time.Sleep(bootTime)
	for _, n := range c.Nodes[:3] {
		n.startBooted()
	}
	for _, n := range []*Node{early, twice} {
		n.WaitState("drain", 3*soon)
	}
	late.WaitState("idle", 3*soon)
	for _, n := range c.Nodes[:3] {
		n.repair()
	}
}

// slurmctld has set a node down, since its boot takes long. A failing check before slurmd drains it,
// and the drain outlives the registration. If Slurm returns no such node to service, it is left alone.
func TestBootAfterSlurmdTimeout(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for _, returns := range []string{"0", "1", "2"} {
		t.Run("ReturnToService="+returns, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			for old, now := range map[string]string{"HealthCheckInterval=2\n": "HealthCheckInterval=0\n", "SlurmdTimeout=30\n": "SlurmdTimeout=6\n", "ReturnToService=1\n": "ReturnToService=" + returns + "\n"} {
				c.conf = strings.Replace(c.conf, old, now, 1)
			}
			c.up()
			n := c.Nodes[0]
			n.Remove("ok")
			n.shutdown()
			n.emptyRun()
			c.WaitFor(3*soon, "down node", func() (string, bool) {
				out := c.Exec("scontrol", "-o", "show", "node", n.Name)
				return out, strings.Contains(out, "State=DOWN+NOT_RESPONDING") && strings.Contains(out, "Reason=Not responding")
			})
			n.boot()
			if returns == "0" {
				n.startBooted()
				n.WaitState("down", 3*soon)
				return
			}
			n.wantDrained()
			n.startBooted()
			n.WaitState("drain", 3*soon)
			n.repair()
		})
	}
}

// repair runs a failing check on a drained node, and then a passing one, which resumes it.
func (n *Node) repair() {
	n.c.t.Helper()
	for _, ok := range []bool{false, true} {
		if ok {
			n.Create("ok")
		}
		out, err := n.Try(cluster.BinDir + "/nhc-gpu")
		if (err == nil) != ok {
			n.c.t.Fatalf("%v: %s", err, out)
		}
		n.c.t.Logf("passes %v: %s", ok, out)
		if ok {
			n.WaitState("idle", soon)
		} else {
			n.WaitReason("drain", reason, soon)
		}
	}
}
