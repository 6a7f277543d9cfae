package slurm_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// runs gives a node the cgroup that a job would have, and its own time.
func (n *Node) runs(job *Job) {
	n.c.t.Helper()
	err := os.MkdirAll(n.path("host/sys/fs/cgroup/system.slice/slurmstepd.scope/job_"+job.ID), 0o755)
	if _, missing := os.Lstat(n.path("host/proc/uptime")); err == nil && missing != nil {
		err = os.Symlink("/proc/uptime", n.path("host/proc/uptime"))
	}
	if err != nil {
		n.c.t.Fatal(err)
	}
}

// A job of four nodes hangs. Its user and root find the node and the GPU that the others wait for; another user
// finds nothing.
func TestJobNodes(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := startGPUs(t)
	for i, n := range c.Nodes {
		n.GPUs("* nvmlDeviceGetUtilizationRates = 100 0", map[bool]string{true: "5 nvmlDeviceGetUtilizationRates = 0 0", false: ""}[i == 2])
	}
	job := c.Submit("--nodes=4", "--exclusive")
	job.WaitStarted()
	for _, n := range c.Nodes {
		n.runs(job)
		n.StartMonitor()
	}
	const want = "last: node gpu03: the 24 GPUs of the other nodes wait, and on it gpu5 runs no kernel"
	program := cluster.BinDir + "/nhc-gpu"
	c.WaitFor(5*time.Minute, "late node", func() (string, bool) {
		out, err := c.Try(program, "job", job.ID, "--nodes")
		return out, err == nil && strings.Contains(out, want)
	})
	user := []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}
	c.WaitFor(5*time.Minute, "hang on gpu02", func() (string, bool) {
		out, err := c.Try(program, "job", job.ID, "--nodes")
		return out, err == nil && strings.Contains(out, "gpu02: job "+job.ID+": all 8 GPUs have waited")
	})
	other := []string{"setpriv", "--reuid=5001", "--regid=5001", "--clear-groups"}
	if out := c.Exec(append(user, program, "job", job.ID, "--nodes")...); !strings.Contains(out, want) {
		t.Errorf("its user sees\n%s", out)
	}
	if out := c.Exec(append(user, "srun", "--overlap", "--jobid="+job.ID, "--nodelist=gpu02", "--nodes=1", "--ntasks=1", "--chdir=/", program, "job", job.ID)...); !strings.Contains(out, "gpu7") || !strings.Contains(out, "all 8 GPUs have waited") {
		t.Errorf("its user sees on gpu02\n%s", out)
	}
	if out, err := c.Try(append(other, program, "job", job.ID)...); err == nil || !strings.Contains(out, "no samples of a job of yours") {
		t.Errorf("another user sees %v\n%s", err, out)
	}
	page := filepath.Join(c.Dir, "jobs", "job.html")
	c.Exec(program, "job", job.ID, "--nodes", "--html", cluster.Dir+"/jobs/job.html")
	if data, err := os.ReadFile(page); err != nil || strings.Count(string(data), "<h2>Node gpu0") != 4 {
		t.Errorf("%d bytes, %v, want a page with four nodes", len(data), err)
	}

	// A slurmd that does not answer costs its own node alone. The command waits 30 s for it, longer than Try.
	pid := strings.TrimSpace(c.Exec("cat", cluster.Dir+"/run/slurmd.gpu04.pid"))
	c.Exec("kill", "-STOP", pid)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	data, err := c.Command(ctx, program, "job", job.ID, "--nodes").CombinedOutput()
	out := string(data)
	c.Exec("kill", "-CONT", pid)
	c.thawEntry("gpu04")
	if err == nil || !strings.Contains(out, "node gpu04: ") || !strings.Contains(out, "not all nodes have answered: 3 of 4") || !strings.Contains(out, "last: node gpu03: the 16 GPUs of the other nodes with samples wait") {
		t.Errorf("with a frozen slurmd: %v\n%s", err, out)
	}
}
