package slurm_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
)

// The GPU falls off the bus while a job runs on it: the job's record, the node's reason and syslog
// show that. The epilog or a health check finds it first.
func TestEpilogXid79(t *testing.T) {
	t.Parallel()
	c := startGPUs(t)
	n := c.Nodes[0]
	n.Conf("* || check_gpu_xid", "* || check_gpu_recovery")
	job := c.Submit("--nodelist="+n.Name, "--gres=gpu:2")
	job.WaitStarted()
	n.dropGPU1()
	n.Create("done")
	n.wantDropped(job)
}

func TestHealthCheckXid79(t *testing.T) {
	t.Parallel()
	c := startGPUs(t, "HealthCheckInterval=2")
	n := c.Nodes[0]
	n.Conf("* || check_gpu_xid", "* || check_gpu_recovery")
	job := c.Submit("--nodelist="+n.Name, "--gres=gpu:2")
	job.WaitStarted()
	n.dropGPU1()
	n.WaitReason("drng", droppedGPU1, soon)
	n.Create("done")
	n.wantDropped(job)
	n.WaitRounds(2) // of health checks, after the job has ended
	n.wantDropped(job)
}

// dropGPU1 makes a GPU fall off the bus.
func (n *Node) dropGPU1() {
	n.c.t.Helper()
	n.Xid(1, 79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
	n.GPUs("1 nvmlDeviceGetHandleByIndex error 15")
}

// The check that finds it first depends on the run: a health check ends at its first failure, an
// epilog names the worst.
const droppedGPU1 = "NHC: gpu1 lost 0000:11:00.0: reboot (check_gpu_"

// wantDropped checks for that reason, and for the job, in all places that show it.
func (n *Node) wantDropped(job *Job) {
	t := n.c.t
	t.Helper()
	job.Wait("COMPLETED", soon)
	n.WaitReason("drain", droppedGPU1, soon)
	if _, reason := n.State(); !strings.HasSuffix(reason, " [job "+job.ID+"]") {
		t.Errorf("the reason is %q, want it to name job %s", reason, job.ID)
	}
	n.c.wantInSyslog("nhc-gpu: job "+job.ID+" of nobody, gpu0 gpu1, ", "Xid 79 ")
	n.c.wantInSyslog("Health check failed:  check_gpu_xid:  gpu1 0000:11:00.0: Xid 79 (GPU has fallen off the bus)", " [job "+job.ID+"]")
	record := n.record(job)
	for _, want := range []string{"of nobody, gpu0 gpu1", "gpu1 0000:11:00.0: Xid 79", "complete"} {
		if !strings.Contains(record, want) {
			t.Errorf("the job's record is %q, want %q in it", record, want)
		}
	}
}

// An Xid that the program of a job has caused is only in the job's record.
func TestEpilogXid31(t *testing.T) {
	t.Parallel()
	c := startGPUs(t)
	n := c.Nodes[0]
	job := c.Submit("--nodelist="+n.Name, "--gres=gpu:1")
	job.WaitStarted()
	n.Xid(0, 31, "pid=4711, name=python, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f10_00000000.")
	n.Create("done")
	job.Wait("COMPLETED", soon)
	n.WaitState("idle", soon)
	c.wantInSyslog("nhc-gpu: job "+job.ID+" of nobody, gpu0, ", "gpu0 0000:10:00.0 Xid 31 ", " of process 4711 python")
	if record := n.record(job); !strings.Contains(record, "Xid 31, class APP") {
		t.Errorf("the job's record is %q, want the Xid in it", record)
	}
	n.Must("idle", "")
	if got := c.RPCs()["REQUEST_UPDATE_NODE"]; got != 0 {
		t.Errorf("slurmctld got %d REQUEST_UPDATE_NODE, want none", got)
	}
	next := c.SubmitScript("true", "--nodelist="+n.Name, "--gres=gpu:8")
	next.Wait("COMPLETED", soon)
	n.Must("idle", "")
}

// record returns the node's record of a job.
func (n *Node) record(j *Job) string {
	n.c.t.Helper()
	out, err := n.Try(cluster.BinDir+"/nhc-gpu", "job", j.ID, "HOSTROOT="+cluster.Dir+"/nodes/"+n.Name+"/host")
	if err != nil {
		n.c.t.Error(err)
	}
	return out
}

// wantInSyslog waits for a line of syslog with all these words.
func (c *Cluster) wantInSyslog(words ...string) {
	c.t.Helper()
	c.WaitFor(soon, "line with "+strings.Join(words, " and "), func() (string, bool) {
		log := c.Syslog()
		for line := range strings.Lines(log) {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
				return "", true
			}
		}
		return log, false
	})
}
