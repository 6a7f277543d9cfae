package slurm_test

import (
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
)

// Slurm's name of a node may differ from the host's. Runs that slurmd has not started find it in
// slurm.conf, or in the settings; lint reports if they cannot.
func TestNodeNameIsNotHostName(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.conf = strings.Replace(c.conf, "HealthCheckInterval=2\n", "", 1)
	host := func(n *Node) string { return "host-of-" + n.Name }
	for _, n := range c.Nodes {
		n.conf += " NodeHostname=" + host(n)
	}
	both := c.Nodes[3] // slurm.conf puts it on the host of another
	both.conf = " NodeHostname=" + host(c.Nodes[2])
	c.up()
	for _, n := range c.Nodes {
		n.slurm(host(n), "sh", "-c", "echo "+host(n)+" >/proc/sys/kernel/hostname")
	}

	n := c.Nodes[0]
	n.check(0)
	n.Remove("ok")
	n.check(1)
	n.Must("drain", reason)
	n.Create("ok")
	n.check(0)
	n.WaitState("idle", soon)
	if out := n.lint(); strings.Contains(out, "mark no node") {
		t.Errorf("lint of a node whose name is found: %s", out)
	}

	n = c.Nodes[2] // there are two of them
	n.Remove("ok")
	n.check(1)
	n.Must("idle", "")
	if out := n.lint(); !strings.Contains(out, "slurm.conf has 2 nodes on host "+host(n)+" (gpu03, gpu04, ...): set SLURMD_NODENAME in /etc/default/nhc") {
		t.Errorf("lint of a node that has two names: %s", out)
	}
	n.Settings("SLURMD_NODENAME=" + n.Name + "\n")
	n.check(1)
	n.Must("drain", reason)
	if out := n.lint(); strings.Contains(out, "mark no node") {
		t.Errorf("lint of a node whose name is set: %s", out)
	}

	n = c.Nodes[3] // slurm.conf has another host for it
	n.Remove("ok")
	n.check(1)
	n.Must("idle", "")
	if out := n.lint(); !strings.Contains(out, "slurm.conf has no node on this host, whose name is "+host(n)) {
		t.Errorf("lint of a host that slurm.conf has not: %s", out)
	}
}

// lint returns the output of nhc-gpu lint on the node.
func (n *Node) lint() string {
	n.c.t.Helper()
	out, _ := n.Try(cluster.BinDir+"/nhc-gpu", "lint")
	return out
}

// slurm runs a program on the node that must succeed.
func (n *Node) slurm(what string, argv ...string) {
	n.c.t.Helper()
	if out, err := n.Try(argv...); err != nil {
		n.c.t.Fatalf("%s: %v: %s", what, err, out)
	}
}
