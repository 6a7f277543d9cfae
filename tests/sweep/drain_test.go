package sweep_test

import (
	"os"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// sinfo returns the state and the reason of a node.
func (n *Node) sinfo() (state, reason string) {
	n.c.t.Helper()
	out := n.c.Exec("sinfo", "--noheader", "--Node", "--format=%t|%E", "--nodes="+n.Name)
	state, reason, _ = strings.Cut(strings.TrimSpace(out), "|")
	return state, reason
}

// must fails the test unless the node is drained for a reason, or idle: then Slurm may still have the
// reason of the former drain.
func (n *Node) must(when, wantState, wantReason string) {
	n.c.t.Helper()
	if state, reason := n.sinfo(); state != wantState || state == "drain" && reason != wantReason {
		n.c.t.Errorf("%s: %s is %q for reason %q, want %q for %q", when, n.Name, state, reason, wantState, wantReason)
	}
}

// after returns the state of a node in a report, and what became of its drain.
func after(r *sweep.Report, n *Node) string {
	for i := range r.Nodes {
		if x := &r.Nodes[i]; x.Name == n.Name {
			return x.State + ", " + x.After
		}
	}
	return "not in the report"
}

// reach sweeps the data network, and returns the report.
func (c *Cluster) reach(when string, want int, args ...string) *sweep.Report {
	c.t.Helper()
	r, text, status := c.runSweep(nil, append([]string{"--stages", "reach", "--planes", "eth_b"}, args...)...)
	c.t.Logf("%s: exit status %d\n%s", when, status, text)
	if status != want || r.Interrupted != "" {
		c.t.Errorf("%s: exit status %d, want %d; interrupted %q", when, status, want, r.Interrupted)
	}
	if out := c.Exec("scontrol", "-o", "show", "reservation"); strings.Contains(out, "nhc-gpu-sweep") {
		c.t.Errorf("%s: a reservation is left: %s", when, out)
	}
	return r
}

const (
	theirDrain = "bad fan, RMA 17"
	ourDrain   = "NHC: sweep MTU too small eth_b [sweep.reach.mtu]"
)

// drain drains a node as a person does.
func (n *Node) drain(reason string) {
	n.c.t.Helper()
	n.c.Exec("scontrol", "update", "NodeName="+n.Name, "State=DRAIN", "Reason="+reason)
}

// A sweep with --drain drains a suspect, and the guard holds the second one with the same fault. After the
// repair a sweep with --resume clears the suspect, and not the node of a person.
func TestSweepDrains(t *testing.T) {
	tier.All(t)
	c := start(t, 7)
	if err := os.WriteFile(c.Inside("/etc/nhc/nhc.toml"), []byte("[guard]\npercent = 1\nnodes = 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	one, two, person := c.Node(3), c.Node(5), c.Node(7)
	person.drain(theirDrain)
	one.MTU(planeB, 1400)
	two.MTU(planeB, 1300) // with the same one both would reach each other: a group, in doubt
	r := c.reach("two faulty nodes", 1, "--drain")
	if got := accused(r); got != "gpu03 eth_b sweep.reach.mtu; gpu05 eth_b sweep.reach.mtu" {
		t.Errorf("accused: %s", got)
	}
	one.must("the first suspect", "drain", ourDrain)
	two.must("the second suspect", "idle", "")
	person.must("not tested", "drain", theirDrain)
	if got := after(r, one); got != "suspect, drained: "+ourDrain {
		t.Errorf("%s: %s", one.Name, got)
	}
	if got := after(r, two); !strings.HasPrefix(got, "suspect, not drained: held by guard: 1 of 7 nodes of partition main are drained for ") {
		t.Errorf("%s: %s", two.Name, got)
	}
	if got := after(r, person); got != "excluded, " {
		t.Errorf("%s: %s", person.Name, got)
	}

	one.MTU(planeB, 1500)
	two.MTU(planeB, 1500)
	r = c.reach("beside no node in service", 0, "--maintenance", "--state", "drain", "--resume")
	one.must("not proven", "drain", ourDrain)
	if got := after(r, one); got != "tested, drained again, with the same reason: tested on eth_b with 0 nodes that were in service, want 3" {
		t.Errorf("%s: %s", one.Name, got)
	}
	r = c.reach("repaired", 0, "--maintenance", "--resume")
	one.must("it passes", "idle", "")
	person.must("it passes, but a person has drained it", "drain", theirDrain)
	if got := after(r, one); got != "tested, in service: it passes" {
		t.Errorf("%s: %s", one.Name, got)
	}
	if got := after(r, person); got != "tested, drained again, with the same reason" {
		t.Errorf("%s: %s", person.Name, got)
	}
}

// A sweep with --resume drains a node again that still fails.
func TestSweepKeepsDrain(t *testing.T) {
	tier.Long(t)
	c := start(t, 6)
	bad, person := c.Node(3), c.Node(5)
	bad.drain(ourDrain)
	person.drain(theirDrain)
	bad.MTU(planeB, 1400)
	r := c.reach("a faulty node in maintenance", 1, "--maintenance", "--resume")
	if got := accused(r); got != "gpu03 eth_b sweep.reach.mtu" {
		t.Errorf("accused: %s", got)
	}
	bad.must("it still fails", "drain", ourDrain)
	person.must("it passes, but a person has drained it", "drain", theirDrain)
}
