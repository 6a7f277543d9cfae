package slurm_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// watched is the stored state of a node's monitor.
type watched struct {
	PID  int
	Mark struct{ Next int }
	Runs int
	Lost int
}

// monitor returns the stored state of the node's monitor.
func (n *Node) monitor() (w watched) {
	data, _ := os.ReadFile(n.path("state/" + n.Name + "/monitor.json"))
	_ = json.Unmarshal(data, &w)
	return w
}

// StartMonitor starts the node's monitor, and waits until it has read the kernel's log.
func (n *Node) StartMonitor() *cluster.Process {
	n.c.t.Helper()
	before := n.monitor().PID
	slurmd := strings.TrimSpace(n.c.Exec("cat", cluster.Dir+"/run/slurmd."+n.Name+".pid"))
	p := n.c.Daemon("monitor."+n.Name, "nsenter", "--target", slurmd, "--mount", "--uts", "--root", "--wd", "--", cluster.BinDir+"/nhc-gpu", "monitor")
	n.c.WaitFor(soon, "monitor of "+n.Name, func() (string, bool) {
		n.c.MustRun(p)
		w := n.monitor()
		return fmt.Sprintf("%+v", w), w.PID != before && w.Mark.Next == n.logged
	})
	return p
}

// StopMonitor ends the node's monitor.
func (n *Node) StopMonitor(p *cluster.Process, signal string) {
	n.c.t.Helper()
	n.c.Exec("kill", "-"+signal, strconv.Itoa(n.monitor().PID))
	n.c.WaitFor(soon, "end of the monitor", func() (string, bool) {
		select {
		case <-p.Ended:
			return "", true
		default:
			return "it runs", false
		}
	})
}

// waitHandled waits until a run has followed each line of the kernel's log.
func (n *Node) waitHandled() {
	n.c.t.Helper()
	n.c.WaitFor(2*soon, "end of the runs", func() (string, bool) {
		w := n.monitor()
		return fmt.Sprintf("%+v, logged %d", w, n.logged), w.Mark.Next == n.logged
	})
}

// recovery is the reason of a GPU whose driver wants a reset.
const recovery = "NHC: gpu3 reset due 0000:13:00.0: reset the GPU (check_gpu_recovery) [gpu.recovery.reset]"

// fault makes the driver of a GPU want a reset, and log a line that is not a fault itself: many
// Xids would be another one. It returns the time of the line.
func (n *Node) fault() time.Time {
	n.c.t.Helper()
	n.GPUs("3 field 230 = 1")
	now := time.Now()
	n.Kernel("NVRM: GPU at PCI:" + strings.TrimSuffix(fakenvml.Address(3), ".0") + ": " + fakenvml.UUID(3))
	return now
}

var drainedAt = regexp.MustCompile(`(?m)^\[(\S+)\] update_node: node (\S+) state set to DRAIN`)

// drainTime returns when slurmctld last set the node to drained.
func (n *Node) drainTime() (at time.Time) {
	for _, m := range drainedAt.FindAllStringSubmatch(n.c.Log("slurmctld"), -1) {
		if t, err := time.ParseInLocation("2006-01-02T15:04:05.000", m[1], time.Local); err == nil && m[2] == n.Name {
			at = t
		}
	}
	return at
}

// An event drains the node between two health checks, while a job runs. Neither a storm, nor the death of
// a worker or of the monitor, nor a restart of slurmctld loses one. NHC_GPU_TRIALS=200 measures the
// time from the kernel's line to the drain.
func TestMonitor(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := startGPUs(t)
	trials, _ := strconv.Atoi(os.Getenv("NHC_GPU_TRIALS"))
	for _, n := range c.Nodes {
		c.Submit("--nodelist=" + n.Name).WaitStarted()
	}

	var took []time.Duration
	for i := range max(trials, len(c.Nodes)) {
		n := c.Nodes[i%len(c.Nodes)]
		p := n.StartMonitor() // a further event of the same kind would wait
		at := n.fault()
		n.WaitReason("drng", recovery, soon)
		took = append(took, n.drainTime().Sub(at))
		n.waitHandled() // or the next monitor would repeat the run
		n.StopMonitor(p, "TERM")
		n.GPUs()
		c.Update(n, "State=RESUME")
		n.WaitState("mix alloc", soon)
	}
	if trials > 0 {
		slices.Sort(took)
		for _, percent := range []int{50, 90, 99, 100} {
			t.Logf("p%d: %v", percent, took[(len(took)*percent+99)/100-1].Round(time.Millisecond))
		}
		for _, limit := range []time.Duration{50, 75, 100, 150, 200, 300, 500, 1000} {
			n, _ := slices.BinarySearch(took, limit*time.Millisecond)
			t.Logf("%d of %d within %d ms", n, len(took), limit)
		}
	}

	n := c.Nodes[0]
	runs := n.monitor().Runs
	p := n.StartMonitor()
	n.storm(100_000)
	at := n.fault()
	n.WaitReason("drng", recovery, soon)
	n.waitHandled()
	if w := n.monitor(); w.Runs > runs+3 || w.Lost != 0 {
		t.Errorf("after the storm %+v, before %d runs, want few", w, runs)
	}
	if last := n.drainTime(); last.Before(at) {
		t.Errorf("drained at %v, before the fault", last)
	}
	drains := strings.Count(c.Log("slurmctld"), "node "+n.Name+" state set to DRAIN")

	// Its worker dies, then the monitor; slurmctld is down meanwhile.
	c.Exec("pkill", "-KILL", "-f", "^nhc-gpu-worker watch-")
	n.GPUs()
	c.Update(n, "State=RESUME")
	n.WaitState("mix alloc", soon)
	n.StopMonitor(p, "KILL")
	n.fault()
	p = n.StartMonitor()
	n.WaitReason("drng", recovery, 2*soon)
	n.StopMonitor(p, "TERM")
	if now := strings.Count(c.Log("slurmctld"), "node "+n.Name+" state set to DRAIN"); now != drains+1 {
		t.Errorf("%d drains of %s, want %d", now, n.Name, drains+1)
	}
}

// The monitor, its workers and its runs keep off the CPUs of jobs, where Slurm leaves CPUs to the system.
func TestMonitorCPUs(t *testing.T) {
	tier.All(t)
	t.Parallel()
	if runtime.NumCPU() < 2 {
		t.Skip("one CPU leaves none to jobs")
	}
	last := runtime.NumCPU() - 1
	for name, tt := range map[string]struct {
		node, plugin string // settings
		want         int
	}{
		"CpuSpecList":   {"CpuSpecList=0", "", 0},
		"CoreSpecCount": {"CoreSpecCount=1", "", last}, // Slurm takes the last core
		"SlurmdOffSpec": {"CpuSpecList=0", "TaskPluginParam=SlurmdOffSpec\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t) // without fakes: the monitor looks for slurmd among the processes of this machine
			c.conf += "TaskPlugin=task/affinity\n" + tt.plugin
			for _, n := range c.Nodes {
				n.conf = fmt.Sprintf("CPUs=%d %s", runtime.NumCPU(), tt.node)
			}
			c.up()
			n := c.Nodes[0]
			t.Log(c.Exec("sh", "-c", "grep Cpus_allowed_list /proc/$(cat "+cluster.Dir+"/run/slurmd."+n.Name+".pid)/status"))
			n.StartMonitor()
			c.WaitFor(soon, "monitor on the CPU of the system", func() (string, bool) {
				pid := n.monitor().PID
				out := c.Exec("sh", "-c", fmt.Sprintf("for p in %d $(pgrep -P %d); do grep -h Cpus_allowed_list /proc/$p/task/*/status; done | sort | uniq -c", pid, pid))
				return out, strings.Count(out, "\n") == 1 && strings.HasSuffix(out, fmt.Sprintf("Cpus_allowed_list:\t%d\n", tt.want))
			})
		})
	}
}

// storm adds lines to the node's kernel log that concern no check.
func (n *Node) storm(lines int) {
	n.c.t.Helper()
	f, err := os.OpenFile(n.path("host/dev/kmsg"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		n.c.t.Fatal(err)
	}
	defer f.Close()
	var text strings.Builder
	for range lines {
		fmt.Fprintf(&text, "6,%d,%d,-;usb 1-1: device descriptor read/64, error -71\n", n.logged, time.Since(n.booted).Microseconds())
		n.logged++
	}
	if _, err := f.WriteString(text.String()); err != nil {
		n.c.t.Fatal(err)
	}
}
