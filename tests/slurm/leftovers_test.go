package slurm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
)

// These are the users of the tests, who are in the cluster's passwd.
const (
	alice = 5001
	bob   = 5002
	carol = 5003
	dave  = 5004
)

// inJobs is a directory in which jobs can write.
const inJobs = cluster.Dir + "/jobs/"

// startMPS is a prolog that starts NVIDIA's control daemon as Slurm's etc/prolog.example does: with the
// variables of the job. The daemon starts a server for the job's user, who can have other jobs.
const startMPS = `#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
[ -n "$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" ] && [ ! -e ` + inJobs + `server.pid ] || exit 0
setsid sh -c 'setpriv --reuid=$SLURM_JOB_UID --regid=$SLURM_JOB_UID --clear-groups ` + inJobs + `stay server; :' </dev/null >/dev/null 2>&1 &
while [ ! -s ` + inJobs + `server.pid ]; do sleep 0.1; done
`

// startLeaving starts a cluster whose epilogs end and remove leftovers of jobs, with users, shards of
// GPUs (on the last node MPS), and a /dev/shm.
func startLeaving(t *testing.T, lines ...string) *Cluster {
	t.Helper()
	c := newCluster(t)
	c.conf += strings.Replace(gpuConf, "GresTypes=gpu", "GresTypes=gpu,shard,mps", 1) + strings.Join(lines, "\n") + "\n"
	if slices.Contains(lines, "# without prolog") {
		c.conf = strings.Replace(c.conf, "Prolog=/etc/slurm/prolog.d/*\n", "", 1)
	}
	c.Mkdir("jobs")
	if err := os.Chmod(filepath.Join(c.Dir, "jobs"), 0o777); err != nil {
		t.Fatal(err)
	}
	c.installScripts()
	c.Write("etc/prolog.d/60-mps", []byte(startMPS), 0o755)
	c.Write("jobs/stay", []byte("#!/bin/sh\necho $$ >"+inJobs+"$1.pid\nexec ${2-sleep} 100000\n"), 0o755)
	c.Write("etc/gres.conf", []byte("NodeName=gpu[01-04] "+gresConf+"NodeName=gpu[01-03] Name=shard Count=32\nNodeName=gpu04 Name=mps Count=800\n"), 0o644)
	for _, n := range c.Nodes {
		n.conf = "Gres=gpu:8,shard:32"
		n.write("nhc.toml", "[epilog]\nleftovers = \"end\"\ngrace = 0.2\n")
		n.write("nhc.conf", "* || check_file_test -f /etc/nhc/ok\n")
	}
	c.Nodes[3].conf = "Gres=gpu:8,mps:800"
	c.up(func() {
		c.Exec("sh", "-c", "mkdir -p -m 1777 /dev/shm && chmod 1777 /dev/shm && for f in passwd group; do cp /etc/.real/$f /etc/$f.new; mv /etc/$f.new /etc/$f; done")
		for name, uid := range map[string]int{"alice": alice, "bob": bob, "carol": carol, "dave": dave} {
			c.Exec("sh", "-c", fmt.Sprintf("echo %[1]s:x:%[2]d:%[2]d::/:/bin/sh >>/etc/passwd && echo %[1]s:x:%[2]d: >>/etc/group", name, uid))
		}
	})
	return c
}

// as returns the command that runs a program as a user.
func as(uid int) []string {
	return []string{"setpriv", fmt.Sprintf("--reuid=%d", uid), fmt.Sprintf("--regid=%d", uid), "--clear-groups"}
}

// SubmitAs submits a script as a job of a user.
func (c *Cluster) SubmitAs(uid int, script string, words ...string) *Job {
	c.t.Helper()
	argv := append(as(uid), "sbatch", "--parsable", "--output=/dev/null", "--chdir=/")
	script = "touch " + cluster.Dir + "/jobs/$SLURM_JOB_ID\n" + script
	return &Job{c: c, ID: strings.TrimSpace(c.Exec(append(append(argv, words...), "--wrap="+script)...))}
}

// Salloc holds an allocation of a user without any process: salloc exits when it has it.
func (c *Cluster) Salloc(uid int, words ...string) *Job {
	c.t.Helper()
	out := c.Exec(append(append(as(uid), "salloc", "--no-shell", "--chdir=/"), words...)...)
	_, id, ok := strings.Cut(out, "Granted job allocation ")
	if !ok {
		c.t.Fatalf("salloc says %q", out)
	}
	return &Job{c: c, ID: strings.Fields(id)[0]}
}

// leaves returns a part of a job's script that leaves a process and a file with a name behind: init
// adopts the process.
func leaves(name string) string {
	return "umask 077; echo x >/dev/shm/" + name + "; (setsid sh -c 'echo $$ >" + cluster.Dir + "/jobs/" + name + ".pid; exec sleep 100000' </dev/null >/dev/null 2>&1 &)\n" +
		"while [ ! -s " + cluster.Dir + "/jobs/" + name + ".pid ]; do sleep 0.1; done\n"
}

// HasFile reports whether a file is in /dev/shm.
func (c *Cluster) HasFile(name string) bool {
	_, err := os.Stat(c.Inside("/dev/shm/" + name))
	return err == nil
}

// Lives reports whether the process that leaves created is alive.
func (c *Cluster) Lives(name string) bool {
	c.t.Helper()
	pid, err := os.ReadFile(filepath.Join(c.Dir, "jobs", name+".pid"))
	if err != nil {
		c.t.Fatal(err)
	}
	data, _ := os.ReadFile(c.Inside("/proc/" + strings.TrimSpace(string(pid)) + "/stat"))
	_, state, found := strings.Cut(string(data), "(sleep) ")
	return found && !strings.HasPrefix(state, "Z") // one that has ended stays until its parent asks for its status
}

// wantLeft compares which of these processes are alive and which files exist.
func (c *Cluster) wantLeft(when string, names map[string]string) {
	c.t.Helper()
	for name, want := range names {
		got := ""
		if c.HasFile(name) {
			got += "file "
		}
		if _, err := os.Stat(filepath.Join(c.Dir, "jobs", name+".pid")); err == nil && c.Lives(name) {
			got += "process "
		}
		if strings.TrimSpace(got) != want {
			c.t.Errorf("%s: %s has %q, want %q", when, name, got, want)
		}
	}
}

// AwaitEpilog waits until the epilog of a job has run on the node.
func (n *Node) AwaitEpilog(j *Job) {
	n.c.t.Helper()
	n.c.WaitFor(4*soon, "epilog of job "+j.ID, func() (string, bool) {
		log, _ := os.ReadFile(n.path("log/nhc.log"))
		return string(log) + n.c.Log("slurmd."+n.Name), strings.Contains(string(log), "nhc-gpu: job "+j.ID+" of ") || strings.Contains(string(log), "nhc-gpu: job "+j.ID+",")
	})
}

// Objects of a user's other job stay, even if that job has no process: salloc between two steps,
// with a shard of the same GPU; older than the installation.
func TestLeftoversOfOtherJobs(t *testing.T) {
	t.Parallel()
	c := startLeaving(t)
	n := c.Nodes[0]
	here := []string{"--nodelist=" + n.Name, "--ntasks=1", "--oversubscribe"}
	with := func(words ...string) []string { return append(append([]string{}, here...), words...) }
	held := c.Salloc(alice, with("--gres=shard:1")...)
	step := func(script string) {
		t.Helper()
		c.Exec(append(as(alice), "srun", "--jobid="+held.ID, "--chdir=/", "--gres=none", "sh", "-c", script)...)
	}
	step("umask 077; echo x >/dev/shm/held")

	first := c.SubmitAs(alice, leaves("first"), with("--gres=shard:1")...)
	second := c.SubmitAs(alice, leaves("second"), with("--gres=shard:1")...)
	other := c.SubmitAs(bob, leaves("other"), with("--gres=shard:1")...)
	for _, j := range []*Job{first, second, other} {
		j.Wait("COMPLETED", 4*soon)
		n.AwaitEpilog(j)
	}
	c.wantLeft("two jobs of one user", map[string]string{"held": "file", "first": "file", "second": "file", "other": ""})
	if log := n.Log(); strings.Contains(log, "no epilog") || strings.Contains(log, "no prolog") {
		t.Errorf("a job with a shard of the same GPU has closed another's record:\n%s", log)
	}

	// The program was installed while the job was running.
	c.Exec("sh", "-c", "rm "+cluster.Dir+"/nodes/"+n.Name+"/past/*/job-"+held.ID+".json")
	third := c.SubmitAs(alice, leaves("third"), with()...)
	third.Wait("COMPLETED", 4*soon)
	n.AwaitEpilog(third)
	c.wantLeft("a job older than the installation", map[string]string{"held": "file", "first": "file", "third": "file"})

	// It ends without a record, which would have its start time (Slurm 22.05 does not pass it).
	c.Exec("scancel", held.ID)
	n.AwaitEpilog(held)

	// Without another job the job's own objects are removed.
	last := c.SubmitAs(alice, "rm -f /dev/shm/held /dev/shm/first /dev/shm/second /dev/shm/third; "+leaves("last"), with()...)
	last.Wait("COMPLETED", 4*soon)
	n.AwaitEpilog(last)
	c.WaitFor(soon, "removal", func() (string, bool) { return n.Log(), !c.HasFile("last") })
	c.wantLeft("no other job", map[string]string{"last": ""})
}

// An allocation of another user without a user's process (its extern step has none, nor has a job
// that is starting or ending) does not protect a user's leftovers; one of the same user does.
func TestLeftoversBesideIdleAllocation(t *testing.T) {
	t.Parallel()
	c := startLeaving(t, "PrologFlags=Alloc,Contain")
	n := c.Nodes[0]
	here := []string{"--nodelist=" + n.Name, "--ntasks=1", "--oversubscribe"}
	held := c.Salloc(alice, here...)
	c.WaitFor(4*soon, "extern step", func() (string, bool) {
		out, _ := c.Try("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
		return out, strings.Contains(out, "slurmstepd: ["+held.ID+".extern]")
	})
	other := c.SubmitAs(bob, leaves("other"), here...)
	same := c.SubmitAs(alice, leaves("same"), here...)
	for _, j := range []*Job{other, same} {
		j.Wait("COMPLETED", 4*soon)
		n.AwaitEpilog(j)
	}
	c.wantLeft("beside an allocation without a process", map[string]string{"other": "", "same": "file"})
}

// Only the epilog is configured, slurmd is restarted while jobs run, and jobs share GPUs: Slurm
// provides what the missing records would have, and the rest is uncertain.
func TestLeftoversWithoutProlog(t *testing.T) {
	t.Parallel()
	c := startLeaving(t, "# without prolog")
	n := c.Nodes[0]
	here := []string{"--nodelist=" + n.Name, "--ntasks=1", "--gres=shard:1"}
	held := c.Salloc(alice, here...)
	c.Exec(append(as(alice), "srun", "--jobid="+held.ID, "--chdir=/", "--gres=none", "sh", "-c", "umask 077; echo x >/dev/shm/held")...)
	running := c.SubmitAs(bob, leaves("running")+untilDone, here...)
	c.awaitProcess("running")
	c.Exec("sh", "-c", "kill -KILL $(cat "+cluster.Dir+"/run/slurmd."+n.Name+".pid)")
	<-n.slurmd.Ended
	n.start()
	first := c.SubmitAs(alice, leaves("first"), here...)
	second := c.SubmitAs(bob, leaves("second"), here...)
	for _, j := range []*Job{first, second} {
		j.Wait("COMPLETED", 6*soon)
		n.AwaitEpilog(j)
	}
	c.wantLeft("without a prolog", map[string]string{"held": "file", "first": "file", "running": "file process", "second": "file"})
	if log := n.Log(); strings.Count(log, " had to be ended") != 2 || strings.Contains(log, "; removed") {
		t.Errorf("the log says\n%s", log)
	}
	n.Create("done")
	running.Wait("COMPLETED", 4*soon)
	c.awaitEnd("running")
}

// The shell of salloc on the compute node, and its user's other processes there, outlive the job;
// leftovers of a step do not.
func TestLeftoversSpareLogins(t *testing.T) {
	t.Parallel()
	c := startLeaving(t)
	n := c.Nodes[1]
	pid := strings.TrimSpace(c.Exec("cat", cluster.Dir+"/run/slurmd."+n.Name+".pid"))
	onNode := []string{"nsenter", "--target", pid, "--mount", "--uts", "--root", "--wd", "--"}
	shell := "echo $SLURM_JOB_ID >" + cluster.Dir + "/jobs/shell; echo $$ >" + cluster.Dir + "/jobs/shell.pid; (sh -c 'echo $$ >" + cluster.Dir +
		"/jobs/typed.pid; exec sleep 100000' &); trap '' HUP TERM; sleep 100000 & wait; sleep 100000"
	c.Daemon("login", append(append(append([]string{"setsid"}, onNode...), as(alice)...), "sh", "-c",
		"salloc --chdir=/ --nodelist="+n.Name+" sh -c \""+strings.ReplaceAll(shell, "$", "\\$")+"\"; sleep 100000")...)
	j := &Job{c: c}
	c.WaitFor(2*soon, "allocation", func() (string, bool) {
		data, _ := os.ReadFile(filepath.Join(c.Dir, "jobs", "shell"))
		j.ID = strings.TrimSpace(string(data))
		return c.Log("slurmctld"), j.ID != ""
	})
	c.Exec(append(as(alice), "srun", "--jobid="+j.ID, "--chdir=/", "sh", "-c", leaves("step"))...)
	c.Exec("scancel", j.ID)
	n.AwaitEpilog(j)
	alive := func(name string) bool {
		data, err := os.ReadFile(filepath.Join(c.Dir, "jobs", name+".pid"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = os.Stat(c.Inside("/proc/" + strings.TrimSpace(string(data))))
		return err == nil
	}
	if !alive("shell") || !alive("typed") || c.Lives("step") {
		t.Errorf("the shell lives: %v, what was typed: %v, what the step has left: %v\n%s", alive("shell"), alive("typed"), c.Lives("step"), n.Log())
	}
	if !strings.Contains(n.Log(), "; not ended: its session is that of process ") || !strings.Contains(n.Log(), "of job "+j.ID+" had to be ended") {
		t.Errorf("the log says\n%s", n.Log())
	}
	c.wantLeft("its user has a login", map[string]string{"step": "file"})
}

// A heterogeneous job leaves processes on the nodes of each component. A suspended job, the other
// tasks of an array, and a requeued job with the same number keep theirs.
func TestLeftoversByKindOfJob(t *testing.T) {
	t.Parallel()
	c := startLeaving(t)
	one, two, lead, second := c.Nodes[0], c.Nodes[1], c.Nodes[2], c.Nodes[3]
	script := "#!/bin/sh\n#SBATCH --nodelist=" + lead.Name + "\n#SBATCH hetjob\n#SBATCH --nodelist=" + second.Name + "\n" +
		"srun --chdir=/ --het-group=0,1 " + cluster.Dir + "/jobs/task.sh\n"
	c.Write("jobs/task.sh", []byte("#!/bin/sh\n"+leaves("het.$SLURMD_NODENAME")), 0o755)
	c.Write("jobs/het.sh", []byte(script), 0o755)
	het := &Job{c: c, ID: strings.TrimSpace(c.Exec(append(as(alice), "sbatch", "--parsable", "--output=/dev/null", "--chdir=/", cluster.Dir+"/jobs/het.sh")...))}

	suspended := c.SubmitAs(bob, leaves("suspended")+untilDone, "--nodelist="+one.Name)
	again := c.SubmitAs(alice, leaves("run$SLURM_RESTART_COUNT")+untilDone, "--nodelist="+one.Name, "--requeue")
	array := c.SubmitAs(alice, leaves("task$SLURM_ARRAY_TASK_ID")+"if [ $SLURM_ARRAY_TASK_ID = 1 ]; then "+untilDone+"; fi", "--nodelist="+two.Name, "--array=0-1")

	c.awaitProcess("suspended")
	c.Exec("scontrol", "suspend", suspended.ID)
	beside := c.SubmitAs(bob, leaves("beside"), "--nodelist="+one.Name)
	one.AwaitEpilog(beside)
	c.wantLeft("beside a suspended job", map[string]string{"suspended": "file process", "beside": "file"})

	c.awaitProcess("run")
	c.Exec("scontrol", "requeue", again.ID)
	one.AwaitEpilog(again)
	c.awaitEnd("run")
	c.awaitProcess("run1")

	c.awaitProcess("task1")
	c.awaitEnd("task0")

	het.Wait("COMPLETED", 6*soon)
	for _, n := range []*Node{lead, second} {
		c.awaitEnd("het." + n.Name)
		if !strings.Contains(n.Log(), " had to be ended") {
			t.Errorf("%s says\n%s", n.Name, n.Log())
		}
	}
	for _, name := range []string{"suspended", "run1", "task1"} {
		if !c.Lives(name) {
			t.Errorf("%s: its process was ended\n%s%s", name, one.Log(), two.Log())
		}
	}
	c.Exec("scontrol", "resume", suspended.ID)
	one.Create("done")
	two.Create("done")
	array.Wait("COMPLETED", 4*soon)
	for _, name := range []string{"suspended", "run1", "task1"} {
		c.awaitEnd(name)
	}
}

// awaitProcess waits until leaves has created its process.
func (c *Cluster) awaitProcess(name string) {
	c.t.Helper()
	c.WaitFor(6*soon, "process "+name, func() (string, bool) {
		data, _ := os.ReadFile(filepath.Join(c.Dir, "jobs", name+".pid"))
		return c.Log("slurmctld"), len(data) > 0 && c.Lives(name)
	})
}

// awaitEnd waits until that process has ended.
func (c *Cluster) awaitEnd(name string) {
	c.t.Helper()
	c.awaitFile(name)
	c.WaitFor(4*soon, "end of process "+name, func() (string, bool) { return "it lives", !c.Lives(name) })
}

func (c *Cluster) awaitFile(name string) {
	c.t.Helper()
	c.WaitFor(4*soon, "process "+name, func() (string, bool) {
		data, _ := os.ReadFile(filepath.Join(c.Dir, "jobs", name+".pid"))
		return "none", len(data) > 0
	})
}
