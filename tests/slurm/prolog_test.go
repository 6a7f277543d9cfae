package slurm_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// wantsReset returns the reason for a node whose GPU requires a reset.
func wantsReset(gpu int) string {
	return fmt.Sprintf("NHC: gpu%d reset due 0000:1%d:00.0: reset the GPU (check_gpu_recovery) [gpu.recovery.reset]", gpu, gpu)
}

// A job that does not use a faulty GPU starts and ends; the node accepts no other job.
func TestPrologOtherGPU(t *testing.T) {
	t.Parallel()
	c := startGPUs(t)
	n := c.Nodes[0]
	n.GPUs("2 field 230 = 1")
	job := c.Submit("--nodelist="+n.Name, "--gres=gpu:2")
	job.WaitStarted()
	n.Must("drng", wantsReset(2))
	n.Create("done")
	job.Wait("COMPLETED", soon)
	n.WaitReason("drain", wantsReset(2), soon)
	job.Must("Restarts", "0")
	if out := c.Exec("sinfo", "-R", "-h"); !strings.HasPrefix(out, "NHC: gpu2 reset due ") {
		t.Errorf("sinfo -R shows %q: want device and fault in its 20 characters", out)
	}
	c.wantInSyslog("check_gpu_recovery:  gpu2 0000:12:00.0: the driver requests a reset of the GPU")
	c.wantInSyslog("Advice [gpu.recovery.reset]:  reset the GPU: ")
	for _, other := range c.Nodes[1:] {
		other.Must("idle", "")
	}
}

// A job whose own GPU is faulty runs elsewhere.
func TestPrologOwnGPU(t *testing.T) {
	t.Parallel()
	c := startGPUs(t)
	n := c.Nodes[0]
	n.GPUs("0 field 230 = 1")
	job := c.SubmitScript("true", "--gres=gpu:1")
	job.Wait("COMPLETED", 2*soon)
	job.Must("Restarts", "1")
	if got := job.Is("NodeList"); got == n.Name {
		t.Errorf("the job has run on %s, whose GPU is broken", got)
	}
	n.Must("drain", wantsReset(0))
	c.wantInJob(job, "AdminComment=nhc-gpu: node "+n.Name+" failed its health check before this job started: check_gpu_recovery, gpu0 0000:10:00.0 [")
}

// gres.conf does not name a broken GPU: slurmd's number 3 is then /dev/nvidia4.
func TestPrologNumbers(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := newGPUCluster(t)
	c.Write("etc/gres.conf", []byte("Name=gpu File=/dev/nvidia[0-2,4-7]\n"), 0o644)
	for _, n := range c.Nodes {
		n.conf = "Gres=gpu:7"
		if err := errors.Join(os.MkdirAll(n.path("host/etc"), 0o755), os.Symlink("/etc/slurm", n.path("host/etc/slurm"))); err != nil {
			t.Fatal(err)
		}
	}
	c.up(c.startSyslog)
	own, left := c.Nodes[0], c.Nodes[1]
	own.GPUs("4 field 230 = 1")
	moved := c.SubmitScript("true", "--gres=gpu:4")
	moved.Wait("COMPLETED", 2*soon)
	moved.Must("Restarts", "1")
	own.Must("drain", wantsReset(4))

	left.GPUs("3 field 230 = 1")
	job := c.Submit("--nodelist="+left.Name, "--gres=gpu:4")
	job.WaitStarted()
	left.Must("drng", wantsReset(3))
	left.Create("done")
	job.Wait("COMPLETED", soon)
	job.Must("Restarts", "0")
}

// The comment of another writer stays.
func TestPrologKeepsAdminComment(t *testing.T) {
	t.Parallel()
	c := startGPUs(t)
	n := c.Nodes[0]
	n.GPUs("0 field 230 = 1")
	job := c.SubmitScript("true", "--gres=gpu:1", "--hold", "--comment=mine")
	c.Exec("scontrol", "update", "JobId="+job.ID, "AdminComment=project 7")
	c.Exec("scontrol", "release", job.ID)
	job.Wait("COMPLETED", 2*soon)
	job.Must("Restarts", "1")
	c.wantInJob(job, "AdminComment=project 7")
	c.wantInJob(job, "Comment=mine")
}

// wantInJob checks a field of a job, including spaces.
func (c *Cluster) wantInJob(job *Job, want string) {
	c.t.Helper()
	if out := c.Exec("scontrol", "show", "job", job.ID); !strings.Contains(out, "   "+want) {
		c.t.Errorf("job %s has no %s:\n%s", job.ID, want, out)
	}
}

// If NVML hangs, the prolog answers before slurmd's time limit, and the job runs elsewhere.
func TestPrologHangs(t *testing.T) {
	t.Parallel()
	c := startGPUs(t, "PrologEpilogTimeout=24")
	n := c.Nodes[0]
	n.write("nhc.toml", "[prolog]\nbudget = 12\n[epilog]\nbudget = 12\n")
	n.GPUs("5 nvmlDeviceGetUUID hang")
	job := c.SubmitScript("true", "--gres=gpu:1")
	n.WaitReason("drng drain", "NHC: gpu5 hung 0000:15:00.0: reboot (check_gpu_count) [probe.hung]", soon)
	job.Wait("COMPLETED", 3*soon)
	job.Must("Restarts", "1")
	if got := job.Is("NodeList"); got == n.Name {
		t.Errorf("the job has run on %s, where NVML hangs", got)
	}
	if log := c.Log("slurmd." + n.Name); strings.Contains(log, "timeout") {
		t.Errorf("slurmd has ended a program that took too long:\n%s", log)
	}
	n.WaitReason("drain", "NHC: gpu5 hung 0000:15:00.0: reboot (check_gpu_count) [probe.hung]", soon)
}

// Eight jobs start at the same time. Their prologs share the node's state without waiting for each
// other. On a healthy node they make no requests to slurmctld. A faulty GPU is reported, and only
// the job that has it moves.
func TestPrologEightAtOnce(t *testing.T) {
	t.Parallel()
	c := startGPUs(t)
	n := c.Nodes[0]
	for _, job := range n.eight("true") {
		job.Wait("COMPLETED", 2*soon)
		job.Must("Restarts", "0")
	}
	n.WaitState("idle", soon)
	if got := c.RPCs()["REQUEST_UPDATE_NODE"]; got != 0 {
		t.Errorf("slurmctld got %d REQUEST_UPDATE_NODE for a healthy node, want none", got)
	}

	n.GPUs("5 field 230 = 1")
	n.write("nhc-prolog.conf", heldLines) // otherwise a drain could move some before they get GPUs
	n.Create("hold")
	jobs := n.eight(untilDone)
	c.WaitFor(soon, "eight prologs", func() (string, bool) {
		out := c.Exec("squeue", "--noheader", "--states=RUNNING,CONFIGURING", "--format=%i %T")
		return out, strings.Count(out, "\n") == gpusOfNode
	})
	n.Remove("hold")
	var begun []*Job
	c.WaitFor(2*soon, "seven jobs that run, and one that waits", func() (string, bool) {
		begun = slices.DeleteFunc(slices.Clone(jobs), func(j *Job) bool { return !j.started() && !j.lost() })
		out := c.Exec("squeue", "--noheader", "--format=%i %T %r %N")
		return out, len(begun) == gpusOfNode-1 && strings.Count(out, "PENDING") == 1
	})
	n.Must("drng", wantsReset(5))
	n.Create("done")
	for _, job := range begun {
		if !job.lost() {
			job.Wait("COMPLETED", soon)
		}
		job.Must("Restarts", "0")
	}
	n.WaitReason("drain", wantsReset(5), soon)
	if got := c.RPCs()["REQUEST_UPDATE_NODE"]; got < 1 || got > 2 {
		t.Errorf("slurmctld got %d REQUEST_UPDATE_NODE for one fault, want 1, or 2 by two prologs at the same time", got)
	}
}

// lost reports whether slurmd has lost the job's script after its prolog passed. 22.05 does that
// occasionally while the prolog of another job fails.
func (j *Job) lost() bool {
	id, _ := strconv.Atoi(j.ID)
	return strings.Contains(j.c.Log("slurmd."+j.Is("NodeList")), fmt.Sprintf("/job%05d/slurm_script: No such file", id))
}

// eight starts eight jobs with one GPU each on the node at the same time.
func (n *Node) eight(script string) (jobs []*Job) {
	n.c.t.Helper()
	var ids []string
	for range gpusOfNode {
		job := n.c.SubmitScript(script, "--hold", "--nodelist="+n.Name, "--gres=gpu:1")
		jobs, ids = append(jobs, job), append(ids, job.ID)
	}
	n.c.Exec("scontrol", "release", strings.Join(ids, ","))
	return jobs
}

// A node that Slurm has drained for its own reason is not changed, whatever the epilog finds and
// the next health checks do not find.
func TestPrologKillTaskFailed(t *testing.T) {
	t.Parallel()
	const theirs = "Kill task failed"
	c := startGPUs(t, "UnkillableStepTimeout=2", "HealthCheckInterval=2")
	n := c.Nodes[0]
	freezer := c.freezer(n.Name)
	job := strings.TrimSpace(c.Exec("sbatch", "--parsable", "--output=/dev/null", "--chdir=/", "--nodelist="+n.Name, "--gres=gpu:1",
		"--wrap=echo $$ >"+freezer+"/cgroup.procs; echo FROZEN >"+freezer+"/freezer.state"))
	c.WaitFor(soon, "frozen job", func() (string, bool) {
		out := c.Exec("cat", freezer+"/freezer.state")
		return out, strings.TrimSpace(out) == "FROZEN"
	})
	c.Exec("scancel", job)
	if strings.Contains(c.Version, " 26.05") { // it waits for such a job forever
		c.Update(n, "State=DRAIN", "Reason="+theirs+" (JobId="+job+" StepId=batch)")
	}
	n.WaitReason("drng drain comp", theirs, 2*soon)
	n.GPUs("0 field 230 = 1")
	n.WaitRounds(2)
	c.Exec("sh", "-c", "echo THAWED >"+freezer+"/freezer.state")
	n.WaitReason("drain", theirs, soon)
	n.GPUs()
	n.WaitRounds(2)
	n.WaitReason("drain", theirs, soon)
}
