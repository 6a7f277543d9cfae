package sweep_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// showGPUs is a check that appends the GPUs of its step: those that it can open, and those of Slurm.
const showGPUs = `#!/bin/sh
n=0
for f in /dev/nvidia[0-7]; do [ -r "$f" ] && n=$((n + 1)); done
echo "$SLURMD_NODENAME $n $CUDA_VISIBLE_DEVICES" >>` + cluster.Dir + `/log/gpus
`

// constrain makes Slurm close the GPUs that a step does not have, and reports whether it does: the
// cgroups of later versions than 22.05 need systemd.
func (c *Cluster) constrain() bool {
	c.t.Helper()
	path := filepath.Join(c.Dir, "etc/cgroup.conf")
	conf, err := os.ReadFile(path)
	if err != nil {
		c.t.Fatal(err)
	}
	const devices = "/sys/fs/cgroup/devices"
	if !strings.Contains(string(conf), "cgroup/v1") {
		return false
	}
	if _, err := c.Try("sh", "-c", "mkdir -p "+devices+" && mount -t cgroup -o devices cgroup "+devices); err != nil {
		return false
	}
	alone, err := os.OpenFile(filepath.Join(os.TempDir(), "nhc-gpu-test-devices.lock"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { alone.Close() })
	if unix.Flock(int(alone.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false // another test run has the groups of nodes with these names
	}
	c.t.Cleanup(func() { // the groups are the host's; of a failed test they still have processes
		const end = "cd " + devices + " && for p in $(cat $(find slurm_* -name cgroup.procs)); do kill -KILL $p; done; "
		c.WaitFor(time.Minute, "end of the cgroups", func() (string, bool) {
			out, err := c.Try("sh", "-c", end+"find slurm_* -depth -type d -exec rmdir {} + && ! ls -d slurm_*")
			return fmt.Sprint(out, err), err == nil
		})
	})
	c.Write("etc/cgroup.conf", append(conf, "ConstrainDevices=yes\n"...), 0o644)
	c.conf += "TaskPlugin=task/cgroup\n"
	c.writeConf()
	return true
}

// addGres gives each node that number of GPUs, with the driver's files.
func (c *Cluster) addGres(counts ...int) {
	c.t.Helper()
	c.addGPUs()
	gres := ""
	for i, n := range c.Nodes {
		if counts[i] == 0 {
			continue
		}
		n.conf = fmt.Sprintf("Gres=gpu:%d", counts[i])
		if i == 1 { // of two types
			n.conf = fmt.Sprintf("Gres=gpu:a:%d,gpu:b:%d", counts[i]/2, counts[i]/2)
			gres += fmt.Sprintf("NodeName=%s Name=gpu Type=a File=/dev/nvidia[0-%d]\n", n.Name, counts[i]/2-1)
			gres += fmt.Sprintf("NodeName=%s Name=gpu Type=b File=/dev/nvidia[%d-%d]\n", n.Name, counts[i]/2, counts[i]-1)
		} else {
			gres += fmt.Sprintf("NodeName=%s Name=gpu File=/dev/nvidia[0-%d]\n", n.Name, counts[i]-1)
		}
		files := fakenvml.Files(fakenvml.H100, counts[i])
		root := filepath.Join(c.Dir, "nodes", n.Name, "host")
		for name := range files {
			if strings.HasPrefix(name, "dev/nvidia") {
				delete(files, name)
			}
		}
		if err := errors.Join(fakenvml.Write(root, files), os.MkdirAll(filepath.Join(root, "dev"), 0o755)); err != nil {
			c.t.Fatal(err)
		}
		for k := range counts[i] {
			if err := os.Symlink(fmt.Sprintf("/dev/nvidia%d", k), filepath.Join(root, fmt.Sprintf("dev/nvidia%d", k))); err != nil {
				c.t.Fatal(err)
			}
		}
		for from, to := range map[string]string{"/proc/self": "proc/self", "/run": "run"} {
			if err := os.Symlink(from, filepath.Join(root, to)); err != nil {
				c.t.Fatal(err)
			}
		}
		n.Settings(fmt.Sprintf("HOSTROOT=%s/nodes/%s/host\n", cluster.Dir, n.Name))
	}
	c.Write("etc/gres.conf", []byte(gres), 0o644)
	c.Write("show.sh", []byte(showGPUs), 0o755)
	c.conf += "GresTypes=gpu\n"
}

// Each rank can open all GPUs of its job on its node. A node whose job has fewer GPUs than the node is not
// tested by the stages that need them, and not accused.
func TestSweepGPUs(t *testing.T) {
	tier.All(t)
	c := newCluster(t, 4)
	c.addGres(8, 8, 4, 0)
	closes := false
	c.prepare = func() { closes = c.constrain() }
	c.up()
	t.Logf("Slurm closes the GPUs that a step does not have: %v", closes)
	show := "check_cmd_status -t 20 -r 0 " + cluster.Dir + "/show.sh"
	shown := func() string {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(c.Dir, "log/gpus"))
		if err != nil {
			t.Error(err)
		}
		_ = os.Remove(filepath.Join(c.Dir, "log/gpus"))
		return string(data)
	}
	mustShow := func(when string, want ...string) {
		t.Helper()
		got := shown()
		for _, line := range want {
			if !strings.Contains(got, line+"\n") {
				t.Errorf("%s: the steps have the GPUs\n%swant %s", when, got, line)
			}
		}
	}
	all := []string{"gpu01 8 0,1,2,3,4,5,6,7", "gpu02 8 0,1,2,3,4,5,6,7", "gpu03 8 0,1,2,3", "gpu04 8 "} // Slurm closes only those of gres.conf

	_, text, status := c.runSweep(nil, "--check", show)
	if status != 0 {
		t.Errorf("an allocation of its own: exit status %d\n%s", status, text)
	}
	mustShow("an allocation of its own", all...)
	c.WaitIdle(c.Nodes...)

	batch := func(options []string, words string) *sweep.Report {
		t.Helper()
		c.Run(sweepLimit, append(append([]string{"sbatch", "--wait", "--output=" + cluster.Dir + "/log/batch.out"}, options...),
			"--wrap="+program+" sweep --report "+cluster.Dir+"/log/report.json "+words)...)
		c.WaitIdle(c.Nodes...)
		r, err := c.readReport()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := batch([]string{"-N4", "--exclusive"}, "--check '"+show+"'")
	mustShow("an exclusive batch job", all...)
	for _, n := range r.Nodes {
		if n.Busy {
			t.Errorf("an exclusive batch job: other jobs can run on %s", n.Name)
		}
	}
	batch([]string{"-N2", "--nodelist=gpu[01-02]", "--exclusive", "--gres=gpu:2"}, "--check '"+show+"'")
	mustShow("an exclusive batch job with --gres", all[:2]...)

	r = batch([]string{"-N2", "--nodelist=gpu[01-02]", "--gres=gpu:2"}, "--stages node,reach,pairs --planes eth_b")
	for _, n := range r.Nodes {
		if n.State != "excluded" || n.GPUs != 8 || n.Closed != 6 || !n.Busy || !strings.Contains(n.Why, "can use 2 of its 8 GPUs") {
			t.Errorf("a job with 2 of 8 GPUs: %s is %s (%s), %d GPUs closed, beside others %v", n.Name, n.State, n.Why, n.Closed, n.Busy)
		}
	}
	for _, s := range r.Stages {
		if tested := s.Rounds > 0; tested != (s.Stage == sweep.StageReach) {
			t.Errorf("a job with 2 of 8 GPUs: stage %s ran %d rounds (%s)", s.Stage, s.Rounds, s.Skipped)
		}
	}
	if len(r.Nodes) != 2 || len(r.Stages) != 3 || len(r.Suspects) > 0 {
		t.Errorf("a job with 2 of 8 GPUs: %d nodes, accused: %s", len(r.Nodes), accused(r))
	}
}
