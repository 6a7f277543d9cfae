package slurm_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/launch"
	"github.com/nhc-gpu/nhc-gpu/slurm"
	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// sweepLimit ends a sweep of these tests that hangs.
const sweepLimit = 5 * time.Minute

// sweep runs nhc-gpu sweep with a JSON report, and returns it with the exit status.
func (c *Cluster) sweep(words ...string) (r *sweep.Report, exit int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), sweepLimit)
	defer cancel()
	cmd := c.Command(ctx, append([]string{cluster.BinDir + "/nhc-gpu", "sweep"}, words...)...)
	out, err := cmd.CombinedOutput()
	c.t.Logf("nhc-gpu sweep %s: %v\n%s", strings.Join(words, " "), err, out)
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		exit = e.ExitCode()
	} else if err != nil {
		c.t.Fatal(err)
	}
	return c.lastSweep(), exit
}

// running returns the processes of the cluster whose command line begins with some words and has others.
func (c *Cluster) running(begin, has string) (pids []string) {
	files, _ := filepath.Glob(c.Inside("/proc/[0-9]*/cmdline"))
	for _, f := range files {
		data, _ := os.ReadFile(f)
		if line := strings.ReplaceAll(string(data), "\x00", " "); strings.HasPrefix(line, begin) && strings.Contains(line, has) {
			pids = append(pids, filepath.Base(filepath.Dir(f)))
		}
	}
	return pids
}

const (
	launcherWords = cluster.BinDir + "/nhc-gpu sweep --"
	rankWords     = cluster.BinDir + "/nhc-gpu sweep rank"
)

// awaitRanks waits until there is a number of ranks on all nodes.
func (c *Cluster) awaitRanks(want int) time.Duration {
	c.t.Helper()
	began := time.Now()
	c.WaitFor(2*time.Minute, fmt.Sprintf("%d ranks", want), func() (string, bool) {
		pids := c.running(rankWords, "")
		return fmt.Sprint(pids), len(pids) == want
	})
	return time.Since(began)
}

// signal sends a signal to the launcher of the sweep, and with all to its srun processes, too.
func (c *Cluster) signal(name string, all bool) {
	c.t.Helper()
	pids := c.running(launcherWords, "")
	if all {
		pids = append(pids, c.running("srun ", "sweep rank")...)
	}
	if len(pids) == 0 {
		c.t.Fatal("there is no launcher")
	}
	c.Exec(append([]string{"kill", "-" + name}, pids...)...)
}

// awaitNoJob waits until no job is left.
func (c *Cluster) awaitNoJob() {
	c.t.Helper()
	c.WaitFor(2*time.Minute, "end of the job", func() (string, bool) {
		out := c.Exec("squeue", "-h")
		return out, strings.TrimSpace(out) == ""
	})
	for _, n := range c.Nodes {
		c.WaitFor(2*time.Minute, n.Name+" that answers", func() (string, bool) {
			out := strings.TrimSpace(c.Exec("sinfo", "-h", "-n", n.Name, "-p", "main", "-o", "%t"))
			return out, out == "idle" || strings.HasPrefix(out, "drain") || out == "idle*"
		})
	}
}

// lastSweep returns the report of the newest sweep in the state directory.
func (c *Cluster) lastSweep() *sweep.Report {
	c.t.Helper()
	files, _ := filepath.Glob(c.Inside("/var/lib/nhc-gpu/sweep/*/report.json"))
	if len(files) == 0 {
		c.t.Fatal("no sweep has a report")
	}
	last := new(sweep.Report)
	for _, file := range files { // the ID has no fraction of the second
		r, err := launch.ReadReport(file)
		if err != nil {
			c.t.Fatal(err)
		}
		if r.Began.After(last.Began) {
			last = r
		}
	}
	return last
}

func (c *Cluster) stateInSweep(r *sweep.Report, node string) string {
	for _, n := range r.Nodes {
		if n.Name == node {
			return n.State
		}
	}
	return "not in the report"
}

// long are the arguments of a sweep that lasts for minutes. A command of a check has at most 30 s.
var long = []string{
	"--nodes", "gpu[01-04]", "--check", "check_cmd_status -t 29 -r 0 sleep 28", "--check", "check_cmd_status -t 29 -r 0 sleep 27",
	"--check", "check_cmd_status -t 29 -r 0 sleep 26", "--check", "check_cmd_status -t 29 -r 0 sleep 25",
}

// begin starts a long sweep, and waits for its ranks.
func (c *Cluster) begin(name string, words ...string) *cluster.Process {
	c.t.Helper()
	p := c.Daemon(name, append([]string{cluster.BinDir + "/nhc-gpu", "sweep"}, words...)...)
	c.awaitRanks(4)
	return p
}

// await waits for the end of a launcher.
func await(t *testing.T, p *cluster.Process) {
	t.Helper()
	select {
	case <-p.Ended:
	case <-time.After(2 * time.Minute):
		t.Fatal("the launcher has not ended")
	}
}

// TestSweep shows the launcher of a sweep on a real Slurm of four nodes.
func TestSweep(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := start(t)

	// The nodes have no interface but the loopback: reach begins its tests, which cannot run, and tcp has none.
	// Neither has a verdict.
	r, exit := c.sweep("--nodes", "gpu[01-04]", "--stages", "reach,tcp")
	if exit != 3 || len(r.Suspects) > 0 || len(r.Nodes) != 4 || r.Interrupted != "" {
		t.Errorf("healthy: exit status %d, interrupted %q, suspects %+v", exit, r.Interrupted, r.Suspects)
	}
	for _, s := range r.Stages {
		if s.Stage == sweep.StageReach && (s.Rounds == 0 || len(s.Results) == 0) {
			t.Errorf("healthy: stage %s: %d rounds, %s", s.Stage, s.Rounds, s.Skipped)
		}
		if s.Unproven == "" {
			t.Errorf("healthy: stage %s has a verdict", s.Stage)
		}
	}
	c.awaitRanks(0)
	c.awaitNoJob()

	p := c.begin("sweep-int", long...)
	c.signal("INT", false)
	began := time.Now()
	await(t, p)
	t.Logf("SIGINT: the launcher ended after %v", time.Since(began).Round(time.Millisecond))
	if r := c.lastSweep(); r.Interrupted != "SIGINT" {
		t.Errorf("SIGINT: interrupted %q", r.Interrupted)
	}
	t.Logf("SIGINT: no rank after %v more", c.awaitRanks(0).Round(time.Millisecond))
	c.awaitNoJob()

	p = c.begin("sweep-scancel", long...)
	c.Exec("sh", "-c", "scancel $(squeue -h -o %A)")
	await(t, p)
	if r := c.lastSweep(); !strings.Contains(r.Interrupted, "job") {
		t.Errorf("scancel: interrupted %q", r.Interrupted)
	}
	c.awaitRanks(0)
	c.awaitNoJob()
}

// TestSweepStepLosesNode shows that a step of several nodes goes on without one that Slurm sets down.
func TestSweepStepLosesNode(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := start(t)
	out := c.Exec("salloc", "--no-shell", "--no-kill", "--exclusive", "--nodes=4", "--job-name=step")
	job := strings.TrimSpace(c.Exec("squeue", "-h", "--name=step", "-o", "%A"))
	if job == "" {
		t.Fatalf("salloc says %s", out)
	}
	step := c.Daemon("step", slurm.Settings{}.StepArgv(job, []string{"gpu01", "gpu02", "gpu03", "gpu04"}, slurm.StepGPUs{}, "/bin/sleep", "777")...)
	const sleeps = "/bin/sleep 777"
	c.WaitFor(time.Minute, "the step", func() (string, bool) {
		pids := c.running(sleeps, "")
		return fmt.Sprint(pids), len(pids) == 4
	})
	c.Update(c.Nodes[1], "State=DOWN", "Reason=power lost")
	c.Nodes[1].WaitState("down", soon)
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Second) {
		select {
		case <-step.Ended:
			t.Fatal("the step has ended")
		default:
		}
		if pids := c.running(sleeps, ""); len(pids) < 3 {
			t.Fatalf("the processes %v are left, want those of three nodes", pids)
		}
	}
	c.Exec("scancel", job)
	c.awaitNoStep(sleeps)
}

func (c *Cluster) awaitNoStep(words string) {
	c.t.Helper()
	c.WaitFor(2*time.Minute, "end of the step", func() (string, bool) {
		pids := c.running(words, "")
		return fmt.Sprint(pids), len(pids) == 0
	})
}

// TestSweepLosesLauncher shows that no rank outlives its launcher and both processes of each srun.
func TestSweepLosesLauncher(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t)
	p := c.begin("sweep-kill", long...)
	c.signal("KILL", true)
	await(t, p)
	took := c.awaitRanks(0)
	t.Logf("no rank after %v", took.Round(time.Millisecond))
	if took > 40*time.Second { // 15 s on a machine that is not loaded
		t.Errorf("the last rank ended after %v", took)
	}
	c.awaitNoJob() // the ranks cancel it
}

// thawEntry continues the nsenter that has started the slurmd of a node: it stops with its child.
func (c *Cluster) thawEntry(node string) {
	bubble := strings.Split(c.Inside("/"), "/")[2] // /proc/PID/root
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		data, _ := os.ReadFile(f)
		words := strings.Split(strings.TrimRight(string(data), "\x00"), "\x00")
		if len(words) < 4 || words[0] != "nsenter" || words[2] != bubble || words[len(words)-1] != node {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
}

// TestSweepFrozenNode shows that a frozen slurmd is a result.
func TestSweepFrozenNode(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t)
	c.sweepFrozen()
}

// TestSweepFrozenNodeOfProlog shows the same where Slurm waits for a prolog on all nodes of an allocation:
// the sweep allocates the others when slurmctld notices that the frozen one does not answer.
func TestSweepFrozenNodeOfProlog(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := newCluster(t)
	c.conf += "PrologFlags=Alloc\n"
	c.up()
	c.sweepFrozen()
}

// sweepFrozen tests the nodes while the slurmd of one is frozen: the others are tested, and the frozen one is named.
func (c *Cluster) sweepFrozen() {
	c.t.Helper()
	c.Exec("sh", "-c", "kill -STOP $(cat "+cluster.Dir+"/run/slurmd.gpu04.pid)")
	began := time.Now()
	r, exit := c.sweep("--nodes", "gpu[01-04]", "--check", "check_cmd_status -r 0 true")
	c.t.Logf("the sweep ended after %v", time.Since(began).Round(time.Second))
	if state := c.stateInSweep(r, "gpu04"); exit != 3 || state != "frozen" || len(r.Suspects) > 0 || r.Interrupted != "" {
		c.t.Errorf("exit status %d, interrupted %q, gpu04 is %s, suspects %+v", exit, r.Interrupted, state, r.Suspects)
	}
	for _, name := range []string{"gpu01", "gpu02", "gpu03"} {
		if state := c.stateInSweep(r, name); state != "tested" {
			c.t.Errorf("%s is %s", name, state)
		}
	}
	c.Exec("sh", "-c", "kill -CONT $(cat "+cluster.Dir+"/run/slurmd.gpu04.pid)")
	c.thawEntry("gpu04")
	c.awaitRanks(0)
	c.awaitNoJob()
}

// TestSweepGivesWay shows that a sweep with a QOS that another one preempts ends by itself within the
// grace time, and that the other job has the nodes then.
func TestSweepGivesWay(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	const grace = 60 * time.Second
	c := newCluster(t)
	c.addAccounting()
	c.conf += "AccountingStorageEnforce=associations,qos\nPreemptType=preempt/qos\nPreemptMode=CANCEL\n"
	c.beforeCtld = append(c.beforeCtld, func() {
		c.Exec("sacctmgr", "-i", "add", "qos", "scavenge", "set", "PreemptMode=cancel", fmt.Sprintf("GraceTime=%.0f", grace.Seconds()))
		c.Exec("sacctmgr", "-i", "add", "qos", "urgent", "set", "Preempt=scavenge")
		c.Exec("sacctmgr", "-i", "modify", "account", "root", "set", "qos=normal,scavenge,urgent")
	})
	c.up()
	p := c.begin("sweep-idle", append([]string{"--idle", "--qos", "scavenge"}, long...)...)
	began := time.Now()
	c.Exec("sbatch", "--qos=urgent", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 5")
	await(t, p)
	c.awaitRanks(0)
	took := time.Since(began)
	t.Logf("the sweep gave way after %v", took.Round(100*time.Millisecond))
	if took > grace {
		t.Errorf("the sweep ended after %v: Slurm has killed it", took)
	}
	if r := c.lastSweep(); !strings.Contains(r.Interrupted, "gives way") && !strings.Contains(r.Interrupted, "preempts") {
		t.Errorf("interrupted %q", r.Interrupted)
	}
	c.WaitFor(2*time.Minute, "start of the other job", func() (string, bool) {
		out := c.Exec("squeue", "--noheader", "--format=%q %t")
		return out, strings.Contains(out, "urgent R")
	})
	t.Logf("the other job started after %v", time.Since(began).Round(100*time.Millisecond))
	c.awaitNoJob()
}

// TestSweepMaintenance shows that a drained node is tested and drained again with its reason, and that a
// repair does so after the launcher was killed.
func TestSweepMaintenance(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t)
	c.Update(c.Nodes[2], "State=DRAIN", "Reason=bad fan, RMA 17")
	c.Nodes[2].WaitState("drain", soon)
	drained := func(when string) {
		t.Helper()
		c.Nodes[2].Must("drain", "bad fan, RMA 17")
		if out := c.Exec("scontrol", "-o", "show", "reservation"); strings.Contains(out, "nhc-gpu-sweep") {
			t.Errorf("%s: %s", when, out)
		}
	}
	r, exit := c.sweep("--maintenance", "--nodes", "gpu[01-04]", "--check", "check_cmd_status -r 0 true")
	if exit != 0 || c.stateInSweep(r, "gpu03") != "tested" {
		t.Errorf("exit status %d, gpu03 is %s", exit, c.stateInSweep(r, "gpu03"))
	}
	drained("after a maintenance")
	c.awaitNoJob()

	p := c.begin("sweep-maintenance", append([]string{"--maintenance"}, long...)...)
	if out := c.Exec("sinfo", "-h", "-n", "gpu03", "-p", "main", "-o", "%T"); strings.Contains(out, "drain") {
		t.Errorf("in the maintenance gpu03 is %s", out)
	}
	c.signal("KILL", false)
	await(t, p)
	c.awaitRanks(0)
	c.Exec(cluster.BinDir+"/nhc-gpu", "sweep", "--repair")
	drained("after the repair of a killed one")
}

// TestSweepLosesRank shows that a node is not accused whose rank was killed, since Slurm still reaches it.
func TestSweepLosesRank(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t)
	p := c.begin("sweep-rank", "--nodes", "gpu[01-04]", "--check", "check_cmd_status -t 29 -r 0 sleep 10")
	c.WaitFor(time.Minute, "checks on all nodes", func() (string, bool) {
		pids := c.running("sleep 10", "")
		return fmt.Sprint(pids), len(pids) == 4
	})
	c.Exec("kill", "-KILL", c.running(rankWords, "")[0])
	await(t, p)
	r := c.lastSweep()
	var lost []string
	for _, n := range r.Nodes {
		if n.State != "tested" {
			lost = append(lost, n.State+": "+n.Why)
		}
	}
	if len(lost) != 1 || !strings.HasPrefix(lost[0], "excluded: its rank has ended, although the node responds") || len(r.Suspects) > 0 {
		t.Errorf("not tested: %q, suspects %+v", lost, r.Suspects)
	}
	t.Logf("%q", lost)
}

// TestSweepPartitions shows that a sweep without --partition tests the nodes of one partition, that it
// excludes an idle node that Slurm does not allocate, and both with the reason.
func TestSweepPartitions(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := newCluster(t)
	c.partitions = "PartitionName=main Nodes=gpu01 Default=YES MaxTime=INFINITE State=UP\nPartitionName=big Nodes=gpu[02-04] MaxTime=INFINITE State=UP\n"
	c.up()
	c.Exec("scontrol", "create", "reservation", "ReservationName=soon", "StartTime=now+20minutes", "Duration=60", "Users=root", "Nodes=gpu04")
	r, exit := c.sweep("--idle", "--time", "30m", "--check", "check_cmd_status -r 0 true")
	if exit != 3 || r.Interrupted != "" || len(r.Suspects) > 0 {
		t.Errorf("exit status %d, interrupted %q, suspects %+v", exit, r.Interrupted, r.Suspects)
	}
	want := map[string]string{
		"gpu01": "excluded: not in partition big, which has most of the nodes: test it with --partition main", "gpu02": "tested: ", "gpu03": "tested: ",
		"gpu04": "excluded: idle, but Slurm does not allocate it now: see its reservations, and the limits of partition big",
	}
	for _, n := range r.Nodes {
		if got := n.State + ": " + n.Why; got != want[n.Name] {
			t.Errorf("%s is %s\nwant %s", n.Name, got, want[n.Name])
		}
	}
}

// TestSweepKilledInQueue kills the launcher and its salloc while their job waits: a repair finds the job.
func TestSweepKilledInQueue(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := start(t)
	c.Exec("sbatch", "--nodelist=gpu04", "--exclusive", "--output=/dev/null", "--wrap=sleep 300")
	p := c.Daemon("sweep-waits", cluster.BinDir+"/nhc-gpu", "sweep", "--nodes", "gpu[01-04]", "--stages", "reach")
	waiting := func() string { return c.Exec("squeue", "-h", "-t", "PD", "-o", "%A %j") }
	c.WaitFor(soon, "waiting job of the sweep", func() (string, bool) {
		out := waiting()
		return out, strings.Contains(out, "nhc-gpu-sweep")
	})
	pids := append(c.running(launcherWords, ""), c.running("salloc ", "")...)
	if len(pids) < 2 {
		t.Fatalf("launcher and salloc are %v", pids)
	}
	c.Exec(append([]string{"kill", "-KILL"}, pids...)...)
	await(t, p)
	if out := waiting(); !strings.Contains(out, "nhc-gpu-sweep") {
		t.Fatalf("the job does not wait any more: %q", out)
	}
	c.Exec(cluster.BinDir+"/nhc-gpu", "sweep", "--repair")
	c.WaitFor(soon, "end of the waiting job", func() (string, bool) {
		out := waiting()
		return out, out == ""
	})
}
