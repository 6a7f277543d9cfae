package slurm_test

import (
	"strings"
	"testing"
)

// The GPU falls off the bus while a job runs on it: that is in the job's record,
// in the node's reason and in syslog.
func TestEpilogXid79(t *testing.T) {
	t.Parallel()
	c := startGPUs(t)
	n := c.Nodes[0]
	n.Conf("* || check_gpu_xid", "* || check_gpu_recovery")
	job := c.Submit("--nodelist="+n.Name, "--gres=gpu:2")
	job.WaitStarted()
	n.Xid(1, 79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
	n.GPUs("1 nvmlDeviceGetHandleByIndex error 15")
	n.Create("done")
	job.Wait("COMPLETED", soon)
	n.WaitReason("drain", "NHC: check_gpu_xid:  gpu1 0000:11:00.0: Xid 79 (GPU has fallen off the bus)", soon)
	if _, reason := n.State(); !strings.HasSuffix(reason, " [job "+job.ID+"]") {
		t.Errorf("the reason is %q, want it to name job %s", reason, job.ID)
	}
	record := n.record(job)
	for _, want := range []string{"of nobody, gpu0 gpu1", "gpu1 0000:11:00.0: Xid 79", "complete"} {
		if !strings.Contains(record, want) {
			t.Errorf("the job's record is %q, want %q in it", record, want)
		}
	}
	n.wantInSyslog("nhc-gpu: job "+job.ID+" of nobody, ", "Xid 79 ")
	n.wantInSyslog("Health check failed:  check_gpu_xid:  gpu1 ", " [job "+job.ID+"]")
}

// An Xid of a program's own doing is in the job's record, and nowhere else.
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
	n.wantInSyslog("nhc-gpu: job "+job.ID+" of nobody, gpu0, ", "gpu0 0000:10:00.0 Xid 31 ", " of process 4711 python")
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

// record is what the node knows of a job.
func (n *Node) record(j *Job) string {
	n.c.t.Helper()
	out, err := n.Try(binDir+"/nhc-gpu", "job", j.ID, "HOSTROOT="+clusterDir+"/nodes/"+n.Name+"/host")
	if err != nil {
		n.c.t.Error(err)
	}
	return out
}

// wantInSyslog waits for a line of syslog that has all these words.
func (n *Node) wantInSyslog(words ...string) {
	n.c.t.Helper()
	n.c.waitFor(soon, "line with "+strings.Join(words, " and "), func() (string, bool) {
		log := n.c.Syslog()
		for line := range strings.Lines(log) {
			all := true
			for _, w := range words {
				all = all && strings.Contains(line, w)
			}
			if all {
				return "", true
			}
		}
		return log, false
	})
}
