package slurm_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// delivered returns a file that a site installs, with the path of the program in this cluster.
func delivered(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile("../../slurm/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(data), "/usr/sbin/nhc-gpu", cluster.BinDir+"/nhc-gpu")
}

// wired returns this cluster's slurm.conf with the example instead of its own lines about nhc-gpu,
// and the scripts that the example names.
func wired(t *testing.T, more ...string) *Cluster {
	t.Helper()
	c := newCluster(t)
	var b strings.Builder
	for line := range strings.Lines(c.conf) {
		if !strings.HasPrefix(line, "HealthCheck") {
			b.WriteString(line)
		}
	}
	c.conf = b.String() + "include /etc/slurm/nhc-gpu.conf\n" + strings.Join(append(more, ""), "\n")
	c.Write("etc/nhc-gpu.conf", []byte(delivered(t, "slurm.conf.example")), 0o644)
	c.installScripts()
	c.up()
	return c
}

// installScripts puts the scripts for prolog and epilog at the paths in the example.
func (c *Cluster) installScripts() {
	c.t.Helper()
	for _, role := range []string{"prolog", "epilog"} {
		c.Mkdir("etc/" + role + ".d")
		c.Write("etc/"+role+".d/50-nhc-gpu", []byte(delivered(c.t, role+".d/50-nhc-gpu")), 0o755)
	}
}

// A real Slurm accepts slurm.conf.example, lint reports nothing about it, a job runs with both
// scripts, and one that meets a fault runs elsewhere.
func TestExample(t *testing.T) {
	t.Parallel()
	c := wired(t)
	n := c.Nodes[0]
	out, err := n.Try(cluster.BinDir+"/nhc-gpu", "lint")
	if err != nil || !strings.Contains(out, "\nno mistakes in ") || !strings.Contains(out, "slurm.conf as slurmctld has it") {
		t.Errorf("lint of the example: %v\n%s", err, out)
	}
	for _, name := range []string{"slurmctld", "slurmd." + n.Name} {
		log, err := os.ReadFile(c.Dir + "/log/" + name + ".log")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(log)) {
			if strings.Contains(line, "nhc-gpu.conf") || strings.Contains(line, "specified more than once") {
				t.Errorf("%s says: %s", name, line)
			}
		}
	}

	c.Exec("srun", "-N1", "-w", n.Name, "true")
	n.WaitState("idle", soon)
	n.Remove("ok")
	// The first task may begin between the prolog's end and the end of the job: slurmd 22.05 has a
	// step wait for the prolog, not for its status.
	if out, err := c.Try("timeout", "10", "srun", "-N1", "-w", n.Name, "true"); err == nil && !strings.Contains(out, "Prolog failure on node "+n.Name) {
		t.Errorf("a job ran on a node at fault: %s", out)
	}
	n.WaitReason("drain drng", reason, soon)
}

// If the package is removed and the scripts remain, jobs run, and no node is drained.
func TestWithoutTheProgram(t *testing.T) {
	t.Parallel()
	c := wired(t)
	for _, name := range []string{"prolog", "epilog"} {
		gone := strings.ReplaceAll(delivered(t, name+".d/50-nhc-gpu"), cluster.BinDir, "/nonexistent")
		c.Write("etc/"+name+".d/50-nhc-gpu", []byte(gone), 0o755)
	}
	n := c.Nodes[0]
	c.Exec("srun", "-N1", "-w", n.Name, "true")
	c.WaitFor(soon, "syslog line of both scripts", func() (string, bool) {
		log := c.Syslog()
		return log, strings.Contains(log, "prolog: /nonexistent/nhc-gpu cannot be started") && strings.Contains(log, "epilog: /nonexistent/nhc-gpu cannot")
	})
	n.WaitState("idle", soon)
}

// lint warns about real effects in Slurm: an empty directory drains, and so does a file that is not
// a program.
func TestLintForetells(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := wired(t, "BatchStartTimeout=10", "PrologFlags=NoHold")
	n := c.Nodes[0]
	c.Write("etc/prolog.d/README", nil, 0o644)
	var out string
	var err error
	c.WaitFor(60*time.Second, "answer of slurmctld within 5s", func() (string, bool) { // a busy machine
		out, err = n.Try(cluster.BinDir+"/nhc-gpu", "lint")
		return out, !strings.Contains(out, "slurm.conf was not compared")
	})
	for _, want := range []string{
		"slurm.conf: warning: Prolog = /etc/slurm/prolog.d/*: /etc/slurm/prolog.d/README: cannot be executed (mode 0644)",
		"slurm.conf: warning: BatchStartTimeout = 10 sec: a prolog can take 10s", "    fix: BatchStartTimeout=15\n", "\n2 warnings in ",
	} {
		if !strings.Contains(out, want) || err == nil {
			t.Errorf("lint: %v, want %q in\n%s", err, want, out)
		}
	}
	c.refuses(n)

	if err := os.RemoveAll(c.Dir + "/etc/prolog.d"); err != nil {
		t.Fatal(err)
	}
	n = c.Nodes[1]
	if out, err := n.Try(cluster.BinDir+"/nhc-gpu", "lint"); err == nil || !strings.Contains(out, "no file on this node matches /etc/slurm/prolog.d/*") {
		t.Errorf("lint: %v\n%s", err, out)
	}
	c.refuses(n)

	c.StopCtld()
	out, err = n.Try(cluster.BinDir+"/nhc-gpu", "lint")
	if err == nil || !strings.Contains(out, "warning: slurm.conf was not compared: read the configuration of Slurm: run scontrol: no answer within 5s") {
		t.Errorf("lint without slurmctld: %v\n%s", err, out)
	}
}

// refuses checks that the prolog of a node refuses the next job.
func (c *Cluster) refuses(n *Node) {
	c.t.Helper()
	c.Mkdir("jobs")
	id := strings.TrimSpace(c.Exec("sbatch", "--parsable", "--output=/dev/null", "--chdir=/", "-w", n.Name, "--wrap=touch "+cluster.Dir+"/jobs/ran"))
	n.WaitReason("drain drng", "Prolog error", 4*soon)
	c.Exec("scancel", id)
	if _, err := os.Stat(filepath.Join(c.Dir, "jobs", "ran")); err == nil {
		c.t.Errorf("the job on %s ran", n.Name)
	}
}

// With MODE=observe a node at fault stays in service, its jobs run, and the log has every
// decision; without it the next run drains the node.
func TestObserve(t *testing.T) {
	t.Parallel()
	c := wired(t)
	n := c.Nodes[0]
	n.Settings("MODE=observe\n")
	n.Remove("ok")
	if out, err := n.Try(cluster.BinDir + "/nhc-gpu"); err == nil || !strings.Contains(out, "Health check failed:  check_file_test:  -f /etc/nhc/ok returned 1.") {
		t.Errorf("a run by hand: %v\n%s", err, out)
	}
	c.Exec("srun", "-N1", "-w", n.Name, "true")
	c.WaitFor(soon, "decisions in syslog", func() (string, bool) {
		log := c.Syslog()
		return log, strings.Contains(log, "would drain node "+n.Name+": "+reason+" (MODE=observe: nothing is sent)") && strings.Contains(log, "would end the prolog of job ")
	})
	n.WaitState("idle", soon)
	if s := c.Syslog(); strings.Count(s, "would drain node "+n.Name) != 1 {
		t.Errorf("the decision is logged %d times:\n%s", strings.Count(s, "would drain node "+n.Name), s)
	}
	n.Settings("")
	if out, err := n.Try(cluster.BinDir + "/nhc-gpu"); err == nil {
		t.Errorf("the run that drains: %s", out)
	}
	n.WaitReason("drain drng", reason, soon)
}
