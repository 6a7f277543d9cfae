package slurm_test

import (
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// A drill drains the node through slurmd's own health check, and its end resumes it. It is refused
// beside a job.
func TestDrill(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := startGPUs(t, "HealthCheckInterval=2")
	n, busy := c.Nodes[0], c.Nodes[1]
	n.WaitRounds(1)
	out, err := n.Try(cluster.BinDir+"/nhc-gpu", "drill", "gpu.recovery.reset", "gpu3")
	if err != nil || !strings.Contains(out, "drill of gpu.recovery.reset of gpu3 0000:13:00.0 until ") {
		t.Fatalf("%v: %s", err, out)
	}
	const reason = "NHC: [drill] gpu3 reset due 0000:13:00.0: reset the GPU (check_gpu_recovery) [gpu.recovery.reset]"
	n.WaitReason("drain", reason, soon)
	if out := c.Exec("sinfo", "-R", "-h"); !strings.HasPrefix(out, "NHC: [drill] gpu3 re") {
		t.Errorf("sinfo -R shows %q: want the mark and the device in its 20 characters", out)
	}
	n.WaitRounds(2)
	n.Must("drain", reason)
	if out, err := n.Try(cluster.BinDir+"/nhc-gpu", "drill", "--end"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n.WaitState("idle", soon)

	job := c.Submit("--nodelist="+busy.Name, "--gres=gpu:1")
	job.WaitStarted()
	if out, err := busy.Try(cluster.BinDir+"/nhc-gpu", "drill", "gpu.recovery.reset"); err == nil || !strings.Contains(out, "node "+busy.Name+" has jobs, or is about to get one (") {
		t.Errorf("beside a job: %v: %s", err, out)
	}
	busy.Create("done")
	job.Wait("COMPLETED", soon)
	busy.WaitState("idle", soon)
}
