package slurm_test

import (
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// heldLines are checks that wait before they read GPUs, as long as there is a file hold.
const heldLines = hold + "\n" + gpuLines + "\n"

// slurmctld is down when a job ends after a fault of its GPU. After its restart it no longer knows
// the job's GPUs when it starts the epilog.
func TestEpilogAfterRestart(t *testing.T) {
	t.Parallel()
	c := startGPUs(t)
	n := c.Nodes[0]
	job := c.Submit("--nodelist="+n.Name, "--gres=gpu:1")
	job.WaitStarted()
	c.StopCtld()
	n.GPUs("0 field 230 = 1")
	n.Create("done")
	c.StartCtld()
	// A slurmctld that has just started may lose the end of the epilog (24.11), and requests it
	// minutes later.
	n.WaitReason("drain drng", wantsReset(0)+" [job "+job.ID+"]", 3*soon)
	job.Wait("COMPLETED", 8*soon)
	job.Must("Restarts", "0")
}

// slurmctld is down when an epilog finds a fault. slurmd later reports to it that the epilog has
// failed, and it drains the node as "Epilog error"; our reason replaces that. Before 26.05 it may
// also run the epilog again.
func TestEpilogWithoutController(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := startGPUs(t, "HealthCheckInterval=2")
	n := c.Nodes[0]
	n.write("nhc-epilog.conf", heldLines)
	n.Create("hold")
	job := c.Submit("--nodelist="+n.Name, "--gres=gpu:1")
	job.WaitStarted()
	n.Create("done")
	n.withoutController("0 field 230 = 1")
	c.WaitFor(2*soon, "word of the epilog's failure", func() (string, bool) {
		log := c.Log("slurmctld")
		return log, strings.Contains(log, "epilog error on "+n.Name)
	})
	n.WaitReason("drain", wantsReset(0)+" [job "+job.ID+"]", soon)
	job.Wait("COMPLETED", soon)
}

// slurmctld is down when a prolog refuses its job. It drains the node as "Prolog error" when slurmd
// reports that; our reason replaces that.
func TestPrologWithoutController(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := startGPUs(t, "HealthCheckInterval=2")
	n := c.Nodes[0]
	n.write("nhc-prolog.conf", heldLines)
	n.Create("hold")
	job := c.SubmitScript("true", "--gres=gpu:1")
	n.withoutController("0 field 230 = 1")
	n.WaitReason("drain", wantsReset(0), 2*soon)
	job.Wait("COMPLETED", 3*soon)
	job.Must("Restarts", "1")
	n.Must("drain", wantsReset(0))
}

// withoutController stops slurmctld while a prolog or an epilog of the node waits, changes NVML,
// and starts slurmctld when that run has failed.
func (n *Node) withoutController(gpus ...string) {
	c := n.c
	c.t.Helper()
	c.WaitFor(soon, "program that is held up", func() (string, bool) { return "", n.Has("held") })
	c.StopCtld()
	n.GPUs(gpus...)
	n.Remove("hold")
	c.WaitFor(2*soon, "failure", func() (string, bool) {
		log := c.Log("slurmd." + n.Name)
		return log, strings.Contains(log, "log failed status=")
	})
	c.StartCtld()
}
