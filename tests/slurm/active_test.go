package slurm_test

import (
	"strings"
	"testing"
	"time"
)

// An active test stops for a job, does not start beside one, and drains no node.
func TestActiveTestMakesWay(t *testing.T) {
	t.Parallel()
	c := start(t)
	n := c.Nodes[0]
	n.Settings("VERBOSE=1\n")
	n.Conf(strings.Repeat("* || check_cpu_stream -t 20\n", 300)) // each takes 80 ms to two seconds, by the caches of this machine
	logged := func(limit time.Duration, text string) {
		t.Helper()
		c.WaitFor(limit, text+" in nhc.log", func() (string, bool) { return n.Log(), strings.Contains(n.Log(), text) })
	}
	before := map[string]bool{}
	c.WaitFor(soon, "a worker that is at work", func() (string, bool) { // the log is written at the end of a run
		out, _ := c.Try("pgrep", "-f", "^nhc-gpu-worker")
		now := map[string]bool{}
		for pid := range strings.FieldsSeq(out) {
			if now[pid] = true; before[pid] {
				return pid, true
			}
		}
		before = now
		time.Sleep(300 * time.Millisecond) // the workers of the other nodes have ended by then
		return out, false
	})
	job := c.Submit("--nodelist=" + n.Name)
	n.WaitState("mix alloc", soon)
	logged(soon, "check_cpu_stream:  stopped: a job started on the node: "+job.ID)
	logged(soon, "check_cpu_stream:  not run: job "+job.ID+" runs on the node")
	if state, reason := n.State(); state != "mix" && state != "alloc" || reason != "" {
		t.Errorf("%s is %q for reason %q, want it to run its job", n.Name, state, reason)
	}
	n.Create("done")
	job.Wait("COMPLETED", soon)
	n.WaitState("idle", soon)
}
