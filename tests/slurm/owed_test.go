package slurm_test

import (
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// tonight runs the nightly tests by hand.
func (n *Node) tonight() {
	n.c.t.Helper()
	out, err := n.Try(cluster.BinDir+"/nhc-gpu", "-n", "nhc-active", "LOGFILE=-")
	if failed := err != nil; failed == n.Has("night") {
		n.c.t.Fatalf("%v: %s", err, out)
	}
}

// A fault that the nightly tests could not deliver is not forgotten, although later health checks
// test other things and pass: the node was in maintenance; or slurmctld was down, and a health
// check failed after the tests.
func TestFaultOfTheNightIsKept(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := start(t)
	const found = "NHC: check_file_test:  -f /etc/nhc/night returned 1."
	for _, n := range c.Nodes[:2] {
		n.write("nhc-active.conf", "* || check_file_test -f /etc/nhc/night\n")
	}

	n := c.Nodes[0]
	c.Exec("scontrol", "create", "reservation", "ReservationName=m", "StartTime=now", "Duration=60", "Nodes="+n.Name, "Users=root", "Flags=MAINT,IGNORE_JOBS")
	n.WaitState("maint", 4*soon)
	n.tonight()
	n.WaitRounds(3)
	n.Must("maint", "")
	c.Exec("scontrol", "delete", "ReservationName=m")
	n.WaitReason("drain", found, 4*soon)
	n.WaitRounds(2)
	n.Must("drain", found)
	n.Create("night")
	n.tonight()
	n.WaitState("idle", soon)

	n = c.Nodes[1]
	c.StopCtld()
	n.tonight()
	n.Remove("ok")
	if out, err := n.Try(cluster.BinDir+"/nhc-gpu", "LOGFILE=-"); err == nil || !strings.Contains(out, fault) {
		t.Errorf("%v: %s", err, out)
	}
	n.Create("ok")
	c.StartCtld()
	n.WaitReason("drain", found, 4*soon)
	n.Create("night")
	n.tonight()
	n.WaitState("idle", soon)
}
