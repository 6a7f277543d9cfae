package slurm_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// asked counts the requests to slurmctld while work runs, by type of message. work itself must not
// read the state of a node.
func (c *Cluster) asked(work func()) map[string]int {
	c.t.Helper()
	before := c.RPCs()
	work()
	more := map[string]int{}
	for kind, count := range c.RPCs() {
		if n := count - before[kind]; n != 0 {
			more[kind] = n
		}
	}
	return more
}

// nodeRPCs returns how often one node was read, all nodes were read, and one was written.
func nodeRPCs(asked map[string]int) (one, all, written int) {
	return asked["REQUEST_NODE_INFO_SINGLE"], asked["REQUEST_NODE_INFO"], asked["REQUEST_UPDATE_NODE"]
}

// A drain loads all nodes of a cluster once, here of 5,000; no other run does.
func TestCostIn5000Nodes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.conf = strings.Replace(c.conf, "HealthCheckInterval=2\n", "", 1) +
		"NodeName=far[0001-4996] NodeAddr=127.0.0.1 Port=7001 CPUs=16 State=DOWN Reason=far\n"
	c.up()
	n := c.Nodes[0]
	n.Settings("SLURM_RECHECK=\n") // the default
	for _, step := range []struct {
		what                string
		prepare             func()
		runs, status        int
		one, least, written int
		all                 int
	}{
		{"a node that nothing is known of", func() {}, 3, 0, 1, 1, 0, 0},
		{"it fails", func() { n.Remove("ok") }, 20, 1, 1, 1, 1, 1},  // the guard reads all nodes
		{"it passes", func() { n.Create("ok") }, 20, 0, 3, 2, 1, 0}, // and reads the state until the node is in service
	} {
		step.prepare()
		asked := c.asked(func() {
			for range step.runs {
				n.check(step.status)
			}
		})
		if one, all, written := nodeRPCs(asked); one < step.least || one > step.one || all != step.all || written != step.written {
			t.Errorf("%s, %d runs: %v, want %d reads of the node, %d of all nodes, and %d writes", step.what, step.runs, asked, step.one, step.all, step.written)
		}
	}
}

// A fault whose text changes in each run costs a read of one node, one of all nodes and a write, and then nothing; so
// does a node that another user has drained. The reason and its time stay.
func TestCostOfFaults(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := start(t)
	for _, n := range c.Nodes {
		n.Settings("SLURM_RECHECK=\n") // the default
	}
	faulty, theirs := c.Nodes[0], c.Nodes[1]
	c.WaitRounds(3)

	asked := c.asked(func() {
		faulty.Conf(`* || { read up _ </proc/uptime; die 1 "lost $up packets"; }`)
		faulty.WaitRounds(4)
	})
	if one, all, written := nodeRPCs(asked); one < 1 || one > 2 || all != 1 || written != 1 {
		t.Errorf("a fault: %v, want a node read, or two, all read once, and one written", asked)
	}
	_, first := faulty.State()
	c.Update(theirs, "State=DRAIN", "Reason=new DIMMs")
	theirs.WaitRounds(5) // slurmd learns of it after some seconds
	for i, work := range []func(){
		func() { c.waitRounds([]*Node{faulty, theirs}, 6) },
		func() { theirs.Remove("ok"); theirs.WaitRounds(1) },
		func() { c.waitRounds([]*Node{faulty, theirs}, 6) },
	} {
		asked := c.asked(work)
		if one, all, written := nodeRPCs(asked); one != i%2 || all != 0 || written != 0 {
			t.Errorf("step %d: %v, want %d nodes read and none written", i, asked, i%2)
		}
	}
	if _, reason := faulty.State(); reason != first || !strings.HasPrefix(reason, "NHC: lost ") {
		t.Errorf("the reason was %q, and is %q", first, reason)
	}
	theirs.Must("drain", "new DIMMs")
	faulty.Conf(defaultConf) // its drain ends at once
	faulty.WaitState("idle", soon)
}

// A reason that a person has written is not replaced, even if it begins like ours.
func TestPersonsReasonWithOurPrefix(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := start(t)
	c.WaitRounds(2)
	const theirs = "NHC: hands off"
	idle, ours := c.Nodes[0], c.Nodes[1]
	c.Update(idle, "State=DRAIN", "Reason="+theirs)
	ours.Remove("ok")
	ours.WaitReason("drain", reason, soon)
	c.Update(ours, "State=DRAIN", "Reason="+theirs)
	ours.WaitRounds(2)
	ours.Create("ok")
	for _, step := range []func(){func() {}, func() { idle.Remove("ok") }, func() { idle.Create("ok") }} {
		step()
		c.waitRounds([]*Node{idle, ours}, 3)
		idle.Must("drain", theirs)
		ours.Must("drain", theirs)
	}
}

// A drain that Slurm refuses is reported once, and delivered when it is permitted and the fault is
// another one.
func TestRefusedDrainIsReportedOnce(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := start(t)
	n := c.Nodes[0]
	n.Settings("SLURM_RECHECK=\nSLURM_SCONTROL='setpriv --reuid=65534 --regid=65534 --clear-groups scontrol'\n")
	n.WaitRounds(2)
	n.Remove("ok")
	c.wantInSyslog(fmt.Sprintf("Node %s cannot be marked:  drain node %[1]s: run setpriv: exit status 1: slurm_update error: ", n.Name))
	asked := c.asked(func() { n.WaitRounds(5) })
	if _, _, written := nodeRPCs(asked); written != 0 || strings.Count(c.Syslog(), "cannot be marked") != 1 {
		t.Errorf("%v, want no try; syslog:\n%s", asked, c.Syslog())
	}
	n.Must("idle", "")
	n.Settings("")
	n.Conf("* || check_file_test -f /etc/nhc/other")
	n.WaitReason("drain", "NHC: check_file_test:  -f /etc/nhc/other ", soon)
}
