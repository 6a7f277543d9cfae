package slurm_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// heldBy matches the line of nhc.log about a drain that the guard holds, counted that about a drain
// that it permits.
var (
	heldBy  = regexp.MustCompile(`the drain of node \S+ is held by guard: \d+ of 40 nodes of partition main are drained for check_fs_mount: .*, the limit is 4: `)
	counted = regexp.MustCompile(`node \S+ drained: .* \(before: in service; (\d+) of 40 nodes of partition main are drained for check_fs_mount: .*, the limit is 4\)\n`)
)

// 40 nodes. Five lose a GPU each: all are drained at once, although the limit for one fault is four.
// Then a mount that all nodes share is gone: nhc-gpu drains four nodes, and those that counted in the
// same moment, and holds the others until the number falls, a person releases one, or the mount is back.
func TestGuard(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := newCluster(t)
	c.addNodes(36)
	c.conf = strings.NewReplacer("HealthCheckInterval=2\n", "HealthCheckInterval=10\n", "SlurmdTimeout=30\n", "SlurmdTimeout=120\n").Replace(c.conf)
	const far, shared, gone = "/run/far", "/run/far/scratch", "NHC: check_fs_mount:  "
	faulty := c.Nodes[:5]
	for _, n := range faulty {
		n.addGPUs()
	}
	c.up(func() { // its end reaches the name spaces of all nodes
		c.Exec("sh", "-ec", "mkdir "+far+"; mount -t tmpfs far "+far+"; mount --make-shared "+far+"; mkdir "+shared+"; mount -t tmpfs scratch "+shared)
	})
	for _, n := range faulty {
		n.GPUs("1 nvmlDeviceGetHandleByIndex error 15")
	}
	for _, n := range faulty {
		n.WaitReason("drain", "NHC: gpu1 lost ", 2*soon)
	}
	if strings.Contains(c.Syslog(), "held by guard") {
		t.Errorf("the guard holds a lost GPU; syslog:\n%s", c.Syslog())
	}
	for _, n := range faulty {
		n.GPUs()
	}
	for _, n := range faulty {
		n.WaitState("idle", 2*soon)
		n.Settings("")
	}
	for _, n := range c.Nodes {
		n.Conf("* || check_fs_mount -f " + shared)
	}
	c.WaitRounds(2)

	c.Exec("umount", shared)
	began := time.Now()
	drained, held := c.decided(gone)
	t.Logf("%d nodes are drained and %d held after %v; reads of all nodes: %d", len(drained), len(held), time.Since(began).Round(time.Second), c.RPCs()["REQUEST_NODE_INFO"])
	if len(drained) < 4 || len(held) < 20 {
		t.Fatalf("%d nodes are drained and %d held, want 4 and those of the same moment drained", len(drained), len(held))
	}
	for _, n := range drained {
		m := counted.FindStringSubmatch(n.Log())
		if m == nil {
			t.Fatalf("%s does not log its count:\n%s", n.Name, n.Log())
		}
		if out, _ := strconv.Atoi(m[1]); out > 3 {
			t.Errorf("%s drained as number %d, the limit is 4", n.Name, out+1)
		}
	}
	c.WaitFor(soon, "an alert of each held node", func() (string, bool) {
		return c.Syslog(), strings.Count(c.Syslog(), "is held by guard: ") >= len(held)
	})
	n := held[0]
	n.WaitState("idle", soon) // 24.11 keeps the reason of the former drain
	if show := n.show(); !strings.Contains(show, "Comment=NHC: drain held by guard since ") {
		t.Errorf("the comment does not say so: %s", show)
	}
	if out, err := n.Try(cluster.BinDir+"/nhc-gpu", "status"); err == nil || !strings.Contains(out, "in service; the drain is held by guard: "+gone) {
		t.Errorf("%v: %s", err, out)
	}

	// A person releases a node.
	if out, err := n.Try(cluster.BinDir+"/nhc-gpu", "clear", "--guard"); err != nil || !strings.Contains(out, "drained node "+n.Name+": "+gone) {
		t.Errorf("%v: %s", err, out)
	}
	n.WaitReason("drain", gone, soon)

	// The number falls below the limit: another one takes the place.
	drained = append(drained, n)
	theirs := drained[:len(drained)-3]
	for _, n := range theirs {
		c.Update(n, "State=DRAIN", "Reason=repaired by alice")
	}
	c.WaitFor(4*soon, "a fourth node drained", func() (string, bool) {
		now := c.Exec("sinfo", "-hN", "-o", "%N|%t|%E")
		return now, strings.Count(now, "|drain|"+gone) > 3
	})

	// The mount is back.
	c.Exec("mount", "-t", "tmpfs", "scratch", shared)
	for _, n := range theirs {
		c.Update(n, "State=RESUME")
	}
	for _, n := range c.Nodes {
		n.WaitState("idle", 2*soon)
	}
	c.WaitFor(2*soon, "an end of the comments", func() (string, bool) {
		comments := c.Exec("sinfo", "-hN", "-O", "NodeHost:10,Comment:80")
		return comments, !strings.Contains(comments, "NHC:")
	})
	for _, n := range held {
		if !strings.Contains(c.Syslog(), alertOf(n)) {
			t.Errorf("no alert of %s", n.Name)
		}
	}
}

// alertOf begins the alert of a node that the guard holds.
func alertOf(n *Node) string { return "the drain of node " + n.Name + " is held by guard: " }

// decided waits until each node is drained for a reason, or held by the guard.
func (c *Cluster) decided(reason string) (drained, held []*Node) {
	c.t.Helper()
	c.WaitFor(4*soon, "decision of each node", func() (string, bool) {
		now, alerts := c.Exec("sinfo", "-hN", "-o", "%N|%t|%E|"), c.Syslog()
		drained, held = nil, nil
		var open strings.Builder
		for _, n := range c.Nodes {
			switch {
			case strings.Contains(now, n.Name+"|drain|"+reason):
				drained = append(drained, n)
			case heldBy.MatchString(n.Log()), strings.Contains(alerts, alertOf(n)): // one of the two can be late
				held = append(held, n)
			default:
				fmt.Fprintf(&open, "undecided: %s:\n%s", n.Name, n.Log())
			}
		}
		return now + open.String(), open.Len() == 0
	})
	return drained, held
}
