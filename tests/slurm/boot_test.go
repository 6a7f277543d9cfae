package slurm_test

import (
	"os"
	"strings"
	"testing"
	"time"
)

// boot ends a node's slurmd, empties /run as a boot does, and runs the program as
// nhc-gpu-boot.service does: before slurmd.
func (n *Node) boot() {
	n.c.t.Helper()
	if n.slurmd != nil {
		n.c.Exec("sh", "-c", "kill -TERM $(cat "+clusterDir+"/run/slurmd."+n.Name+".pid)")
		<-n.slurmd.ended
		n.slurmd = nil
		if err := os.RemoveAll(n.path("state")); err != nil {
			n.c.t.Fatal(err)
		}
		n.c.mkdir("nodes/" + n.Name + "/state")
	}
	before := strings.Replace(string(nodeScript), `exec slurmd -D "$@" -N "$node"`, `exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin `+binDir+`/nhc-gpu`, 1)
	out, err := n.c.Try("unshare", "--uts", "--mount", "--propagation", "unchanged", "sh", "-c", before, "sh", n.Name)
	if failed := err != nil; failed == n.Has("ok") {
		n.c.t.Fatalf("%v: %s", err, out)
	}
}

// The check before slurmd finds a fault. If slurmctld answers, the drain is set before slurmd
// registers, and outlives that. If slurmctld is down, or has not seen the node since its start, the
// next health check after slurmd has started delivers the drain.
func TestBootBeforeSlurmd(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.conf = strings.Replace(c.conf, "HealthCheckInterval=2\n", "HealthCheckInterval=0\n", 1)
	c.up()
	early, late, twice := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	for _, n := range c.Nodes[:3] {
		n.Remove("ok")
	}
	early.boot()
	if out := c.Exec("scontrol", "-o", "show", "node", early.Name); !strings.Contains(out, "+DRAIN") || !strings.Contains(out, "Reason="+reason) {
		t.Errorf("before slurmd: %s", out)
	}
	c.StopCtld()
	late.boot()
	twice.boot()
	c.StartCtld()
	twice.boot()

	time.Sleep(2 * time.Second) // Slurm counts whole seconds: see reboot
	for _, n := range c.Nodes[:3] {
		n.start("-b")
	}
	early.WaitState("drain", 3*soon)
	for _, n := range []*Node{late, twice} {
		n.WaitState("idle", 3*soon)
	}
	for _, ok := range []bool{false, true} {
		for _, n := range c.Nodes[:3] {
			if ok {
				n.Create("ok")
			}
			if out, err := n.Try(binDir + "/nhc-gpu"); (err == nil) != ok {
				t.Fatalf("%v: %s", err, out)
			}
			if ok {
				n.WaitState("idle", soon)
			} else {
				n.Must("drain", reason)
			}
		}
	}
}
