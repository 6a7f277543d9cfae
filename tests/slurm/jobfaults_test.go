package slurm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
	"github.com/nhc-gpu/nhc-gpu/tests/fakeras"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// The test program is a process of a job with NCCL, too.
func init() {
	if how := os.Getenv("RAS_FAKE"); how != "" {
		fakeras.Serve(how)
		os.Exit(1)
	}
}

// Lines of NVML: a GPU that works, and one behind it for as long as the file "late" is there.
var (
	working = []string{"* nvmlDeviceGetUtilizationRates = 97 60", "* field 186 = 650000", "* field 138 = 0@1000000"}
	late    = []string{"5 nvmlDeviceGetUtilizationRates with late = 55 20", "5 field 186 with late = 380000", "5 field 138 with late = 0@300000"}
)

// counterOf returns the text of a counter. All have the same length, so that one replaces the other.
func counterOf(n uint64) string { return fmt.Sprintf("%020d\n", n) }

// ports gives the nodes eight adapters, whose ports carry 1 GB/s each, except those of stopped. It ends with the
// test.
func (c *Cluster) ports(stopped func(node *Node, device string) bool) (devices []string) {
	c.t.Helper()
	for i := range 8 {
		devices = append(devices, fmt.Sprintf("mlx5_%d", i))
	}
	port := func(device string) string { return "host/sys/class/infiniband/" + device + "/ports/1/" }
	for _, n := range c.Nodes {
		for _, d := range devices {
			if err := os.MkdirAll(n.path(port(d)+"counters"), 0o755); err != nil {
				c.t.Fatal(err)
			}
			for name, text := range map[string]string{"state": "4: ACTIVE\n", "phys_state": "5: LinkUp\n", "link_layer": "InfiniBand\n", "counters/port_rcv_data": "0\n", "counters/port_xmit_data": counterOf(0)} {
				c.Write("nodes/"+n.Name+"/"+port(d)+name, []byte(text), 0o644)
			}
		}
	}
	end := make(chan struct{})
	done := make(chan struct{})
	c.t.Cleanup(func() { close(end); <-done })
	go func() {
		defer close(done)
		words := map[string]uint64{}
		for last := time.Now(); ; {
			select {
			case <-end:
				return
			case <-time.After(200 * time.Millisecond):
			}
			passed := time.Since(last)
			last = time.Now()
			for _, n := range c.Nodes {
				for _, d := range devices {
					key := n.Name + d
					if !stopped(n, d) {
						words[key] += uint64(passed.Seconds() * 250e6) // of 4 bytes
					}
					// The file stays the same, as in sysfs: the monitor keeps it open.
					f, err := os.OpenFile(n.path(port(d)+"counters/port_xmit_data"), os.O_WRONLY, 0)
					if err != nil {
						return // the test has ended
					}
					_, _ = f.WriteString(counterOf(words[key]))
					f.Close()
				}
			}
		}
	}()
	return devices
}

// A GPU of one node is behind all others of the job, then a port of another node carries nothing: asked from
// outside, by srun and by clush, nhc-gpu names both.
func TestJobFaults(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := startGPUs(t)
	var silent string // the device that is
	bad := c.Nodes[2]
	from := make(chan struct{}) // closed when it is
	devices := c.ports(func(n *Node, device string) bool {
		select {
		case <-from:
			return n == bad && device == silent
		default:
			return false
		}
	})
	silent = devices[4]
	for i, n := range c.Nodes {
		n.GPUs(append(slices.Clone(working), late...)...)
		if i == 1 {
			c.Write("nodes/"+n.Name+"/nvml/late", nil, 0o644)
		}
	}
	job := c.Submit("--nodes=4", "--exclusive")
	job.WaitStarted()
	for _, n := range c.Nodes {
		n.runs(job)
		n.StartMonitor()
	}
	begun := time.Now()
	program := cluster.BinDir + "/nhc-gpu"
	ask := func(want string, words ...string) {
		t.Helper()
		c.WaitFor(6*time.Minute, want, func() (string, bool) {
			out, err := c.Try(append([]string{program, "job", job.ID, "--nodes"}, words...)...)
			return out, err == nil && strings.Contains(out, want)
		})
	}
	ask("last: gpu02 gpu5: this GPU lags behind the other GPUs of the job in power, activity and traffic")
	if out := c.Exec(program, "job", job.ID, "--nodes"); strings.Count(out, "job.straggler") < 2 || strings.Count(out, "none") != 3 {
		t.Errorf("want one node with a straggler:\n%s", out)
	}
	if _, err := os.Stat(filepath.Join(c.Root, "usr/bin/clush")); err != nil {
		t.Logf("without clush: %v", err)
	} else {
		c.clush()
		ask("last: gpu02 gpu5: this GPU lags behind", "--clush")
	}
	time.Sleep(time.Until(begun.Add(75 * time.Second))) // a port that has carried data for a minute can become silent
	close(from)
	if err := os.Remove(c.Nodes[1].path("nvml/late")); err != nil {
		t.Fatal(err)
	}
	ask("last: gpu03 " + silent + ":1: this port carries no data, unlike the other ports of the job")
}

// clush lets ClusterShell reach the nodes, which have no sshd: ssh NODE COMMAND enters the node's slurmd.
func (c *Cluster) clush() {
	c.t.Helper()
	c.Write("ssh", []byte(`#!/bin/sh
# The options of clush are before the node.
while :; do
  case $1 in -o | -l) shift 2 ;; -*) shift ;; *) break ;; esac
done
node=$1
shift
exec nsenter --target "$(cat `+cluster.Dir+`/run/slurmd.$node.pid)" --mount --uts --root --wd -- sh -c "$*"
`), 0o755)
	c.Exec("sh", "-c", "mkdir -p /etc/clustershell && printf '[Main]\\nssh_path: "+cluster.Dir+"/ssh\\n' >/etc/clustershell/clush.conf")
}

// A job hangs, and NCCL of its processes knows the rank that lags.
func TestJobRAS(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := startGPUs(t)
	n := c.Nodes[0]
	n.Conf(gpuLines, "* || check_job_health -r")
	n.GPUs("* nvmlDeviceGetUtilizationRates = 100 0")
	data, err := os.ReadFile("/proc/self/exe") // it has the fake of NCCL
	if err == nil {
		err = built.WriteProgram(filepath.Join(c.Dir, "jobs/nccl"), data)
	}
	if err != nil {
		t.Fatal(err)
	}
	inside := cluster.Dir + "/jobs"
	job := c.SubmitScript("RAS_FAKE=lag RAS_HOST=127.0.0.1 NCCL_RAS_ADDR=127.0.0.1:28028 "+inside+"/nccl & echo $! >"+inside+"/pid; "+untilDone, "--nodelist="+n.Name, "--exclusive")
	job.WaitStarted()
	var pid string
	c.WaitFor(soon, "process of the job", func() (string, bool) {
		text, _ := os.ReadFile(filepath.Join(c.Dir, "jobs/pid"))
		pid = strings.TrimSpace(string(text))
		return pid, pid != ""
	})
	n.runs(job)
	group := n.path("host/sys/fs/cgroup/system.slice/slurmstepd.scope/job_" + job.ID + "/step_batch")
	if err = os.MkdirAll(group, 0o755); err == nil {
		err = os.WriteFile(group+"/cgroup.procs", []byte(pid+"\n"), 0o644)
	}
	if err == nil {
		err = os.Symlink("/proc/"+pid, n.path("host/proc/"+pid))
	}
	if err != nil {
		t.Fatal(err)
	}
	n.StartMonitor()
	want := "NCCL: rank 3 (gpu3 of this node, process " + pid + ") has launched 6649 AllReduce operations, the first 6650, and its GPU waits, too: the others wait for it"
	c.WaitFor(4*time.Minute, want, func() (string, bool) {
		out, err := n.Try(cluster.BinDir+"/nhc-gpu", "job", job.ID, "HOSTROOT="+cluster.Dir+"/nodes/"+n.Name+"/host")
		return out, err == nil && strings.Contains(out, want)
	})
	n.Must("alloc", "") // it is observed
}

// A job fails: its epilog stores its samples. A job that ends well leaves no archive.
func TestJobFails(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := startGPUs(t)
	n := c.Nodes[0]
	n.GPUs(working...)
	n.StartMonitor()
	for want, script := range map[string]string{"0:0": untilDone, "3:0": untilDone + "; exit 3"} {
		job := c.SubmitScript(script, "--nodelist="+n.Name, "--gres=gpu:2")
		job.WaitStarted()
		n.runs(job)
		host := cluster.Dir + "/nodes/" + n.Name + "/host"
		c.WaitFor(2*soon, "samples", func() (string, bool) {
			out, err := n.Try(cluster.BinDir+"/nhc-gpu", "job", job.ID, "--data", "HOSTROOT="+host)
			return out, err == nil && strings.Contains(out, `"power":[`)
		})
		n.Create("done")
		job.Wait(map[string]string{"0:0": "COMPLETED", "3:0": "FAILED"}[want], soon)
		c.WaitFor(soon, "record of the job", func() (string, bool) {
			record := n.record(job)
			return record, strings.Contains(record, "\nexit      "+want+"\n")
		})
		if record := n.record(job); strings.Contains(record, "\nsamples ") != (want != "0:0") {
			t.Errorf("exit status %s:\n%s", want, record)
		}
		n.Remove("done")
		if err := os.RemoveAll(n.path(fmt.Sprintf("host/sys/fs/cgroup/system.slice/slurmstepd.scope/job_%s", job.ID))); err != nil {
			t.Fatal(err)
		}
	}
}
