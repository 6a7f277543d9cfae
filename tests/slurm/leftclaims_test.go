package slurm_test

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// group returns a cgroup, which it creates: systemd and Slurm are not here to do that.
func (c *Cluster) group(name string) string {
	c.t.Helper()
	dir := filepath.Join(cluster.GroupsDir, c.Group)
	if _, err := os.Stat(c.Inside(dir)); errors.Is(err, fs.ErrNotExist) {
		need.Skip(c.t, "the kernel has no cgroup v2")
	}
	dir = filepath.Join(dir, name)
	if err := os.MkdirAll(c.Inside(dir), 0o755); err != nil {
		c.t.Fatal(err)
	}
	return dir
}

// join moves the process that leaves or stay has created into a cgroup.
func (c *Cluster) join(name, group string) {
	c.t.Helper()
	c.Exec("sh", "-c", "cat "+inJobs+name+".pid >"+c.group(group)+"/cgroup.procs")
}

// beside starts a command of a user that no job has started, in a cgroup if one is named, with these
// variables.
func (c *Cluster) beside(uid int, group string, env []string, argv ...string) {
	c.t.Helper()
	script := `exec </dev/null >/dev/null 2>&1; exec "$@"`
	if group != "" {
		script = "echo $$ >" + c.group(group) + "/cgroup.procs && " + script
	}
	words := append([]string{"setsid", "--fork", "sh", "-c", script, "sh", "env", "-i", "PATH=/usr/bin:/bin"}, env...)
	c.Exec(append(append(words, as(uid)...), argv...)...)
}

// reusePID starts a process of a user with the PID of another one when that has ended. Processes that
// start at the same time can take the PID for a moment.
func (c *Cluster) reusePID(of, name string, uid int) {
	c.t.Helper()
	c.Daemon("reuse."+of, "sh", "-c", `pid=$(cat `+inJobs+of+`.pid); while [ -d /proc/$pid ]; do sleep 0.05; done
		until [ "$new" = $pid ]; do
			[ -z "$new" ] || { kill -KILL $new; wait $new; }
			echo $((pid-1)) >/proc/sys/kernel/ns_last_pid
			`+strings.Join(as(uid), " ")+` sleep 100000 & new=$!
		done
		echo $pid >`+inJobs+name+`.pid`)
}

// container becomes a process of a container with subordinate uids, when someone has written its maps.
const container = `#!/bin/sh
echo $$ >` + inJobs + `$1.waits
while [ -z "$(cat /proc/self/uid_map)" ]; do sleep 0.1; done
exec setpriv --reuid=1000 --regid=1000 --clear-groups ` + inJobs + `stay $1
`

// mapUIDs writes the maps of a container, as newuidmap and newgidmap do.
func (c *Cluster) mapUIDs(name string, uid int) {
	c.t.Helper()
	c.WaitFor(4*soon, "container "+name, func() (string, bool) {
		pid, _ := os.ReadFile(filepath.Join(c.Dir, "jobs", name+".waits"))
		if !strings.HasSuffix(string(pid), "\n") {
			return "none", false
		}
		for _, file := range []string{"gid_map", "uid_map"} {
			path := c.Inside("/proc/" + strings.TrimSpace(string(pid)) + "/" + file)
			if err := os.WriteFile(path, fmt.Appendf(nil, "0 %d 1\n1 %d 65536\n", uid, uid*100000), 0); err != nil {
				c.t.Fatal(err)
			}
		}
		return "", true
	})
}

// An epilog ends what its job has left: in a container with subordinate uids and in the cgroup of its
// extern step, too, where pam_slurm_adopt puts logins. It spares sessions, cron and at jobs, systemd
// --user, setuid programs, processes that claim to be of the job, what a daemon of root has started
// (MPS), and the process that gets the PID of an ended one.
func TestLeftoversBesideOtherClaims(t *testing.T) {
	t.Parallel()
	c := startLeaving(t, "PrologFlags=Alloc,Contain")
	n, mps := c.Nodes[0], c.Nodes[3]
	c.Write("jobs/container", []byte(container), 0o755)
	c.Exec("sh", "-c", fmt.Sprintf("for u in 0 %d %d; do mkdir -p /run/suid/$u && install -m 4755 -o $u /bin/sleep /run/suid/$u/sleep; done", alice, bob))
	onMPS := []string{"--nodelist=" + mps.Name, "--ntasks=1", "--gres=mps:10"}
	first := c.SubmitAs(carol, leaves("mps.own")+"while [ ! -e "+inJobs+"go ]; do sleep 0.2; done", onMPS...)

	script := leaves("own") + "(trap '' TERM; setsid " + inJobs + "stay deaf </dev/null >/dev/null 2>&1 &)\n"
	commands := []string{inJobs + "stay reused", inJobs + "stay root /run/suid/0/sleep", fmt.Sprintf("%sstay other /run/suid/%d/sleep", inJobs, bob)}
	containers := c.Root == "/" // in a chroot the kernel gives users no namespace of users
	if containers {
		commands = append(commands, "unshare --user "+inJobs+"container sub")
	}
	for _, command := range commands {
		script += "(setsid " + command + " </dev/null >/dev/null 2>&1 &)\n"
	}
	j := c.SubmitAs(alice, script+untilDone, "--nodelist="+n.Name, "--ntasks=1")
	held := c.Salloc(alice, "--nodelist="+n.Name, "--ntasks=1")
	ofJob, jobGroup := []string{"SLURM_JOB_ID=" + j.ID, "SLURMD_NODENAME=" + n.Name}, "system.slice/slurmstepd.scope/job_"
	const logins = "user.slice/user-5001.slice/"
	tests := []struct {
		name    string // of the process
		uid     int
		group   string
		env     []string
		program string // "" for sleep
		says    string
	}{
		{name: "session", uid: alice, group: logins + "session-7.scope", env: ofJob, says: "it runs in user.slice/session-7.scope"},
		{name: "manager", uid: alice, group: logins + "user@5001.service/app.slice/run-1.scope", env: ofJob, says: "it runs in user.slice/run-1.scope"},
		{name: "ownname", uid: alice, group: logins + "user@5001.service/job_" + j.ID + "/step_0"},
		{name: "at", uid: alice, group: "system.slice/atd.service", env: ofJob, says: "it runs in atd.service"},
		{name: "cron", uid: alice, group: "system.slice/cron.service"},
		{name: "login", uid: alice},
		{name: "loose", uid: alice, env: ofJob[:1], says: "there is no sign that Slurm started it"},
		{name: "extern", uid: alice, group: jobGroup + held.ID + "/step_extern/user/task_special", env: ofJob},
		{name: "adopted", uid: alice, group: jobGroup + j.ID + "/step_extern/user/task_special"},
		{name: "namesake", uid: bob, env: ofJob},
		{name: "borrower", uid: bob, env: ofJob, program: fmt.Sprintf("/run/suid/%d/sleep", alice), says: "other users also run in it"},
	}
	want := map[string]string{"own": "file", "deaf": "", "root": "process", "other": "process", "reuser": "process"}
	for _, tt := range tests {
		c.beside(tt.uid, tt.group, tt.env, inJobs+"stay", tt.name, cmp.Or(tt.program, "sleep"))
		want[tt.name] = "process"
	}
	want["adopted"] = ""
	if containers {
		c.beside(bob, "", ofJob, "unshare", "--user", inJobs+"container", "foreign")
		c.mapUIDs("sub", alice)
		c.mapUIDs("foreign", bob)
		want["sub"], want["foreign"] = "", "process"
	}
	for name := range want {
		if name != "reuser" {
			c.awaitProcess(name)
		}
	}
	c.awaitProcess("reused")
	c.join("other", jobGroup+j.ID+"/step_0/user/task_0")
	c.reusePID("reused", "reuser", alice)

	// The prolog of the first job with MPS has started the daemon, whose server the second one uses, too.
	c.awaitProcess("server")
	c.awaitProcess("mps.own")
	kept := c.Salloc(carol, onMPS...)
	c.Exec(append(as(carol), "srun", "--jobid="+kept.ID, "--chdir=/", "--gres=none", "sh", "-c", "umask 077; echo x >/dev/shm/mps.kept")...)
	second := c.SubmitAs(dave, leaves("mps.other"), onMPS...)
	c.Write("jobs/go", nil, 0o644)
	n.Create("done")
	for _, e := range []struct {
		n *Node
		j *Job
	}{{n, j}, {mps, first}, {mps, second}} {
		e.n.AwaitEpilog(e.j)
	}
	c.awaitProcess("reuser")
	c.wantLeft("beside other claims", want)
	for _, tt := range tests {
		if tt.says != "" && !strings.Contains(n.Log(), "; not ended: "+tt.says) {
			t.Errorf("%s: the log does not contain %q:\n%s", tt.name, tt.says, n.Log())
		}
	}
	if !strings.Contains(mps.Log(), "(sh) of root\n") {
		t.Errorf("the log does not name the daemon of the server:\n%s", mps.Log())
	}
	c.wantLeft("MPS", map[string]string{"server": "process", "mps.own": "file", "mps.kept": "file", "mps.other": ""})
}

// A node boots in mid-job, and the epilog runs after that: what started since is not the job's, though
// it has the PID of its process or the number of the job, which Slurm has requeued. On another node
// slurmd is started with -c, which ends its steps. Jobs of the same users go on.
func TestLeftoversAfterReboot(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := startLeaving(t)
	booted, cleaned, apart := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	cleaned.write("nhc.toml", "[epilog]\nleftovers = \"end\"\ngrace = 2\n") // slurmd -c does not wait for the end of its steps
	on := func(n *Node) string { return "--nodelist=" + n.Name }
	again := c.SubmitAs(alice, leaves("run$SLURM_RESTART_COUNT")+untilDone, on(booted), "--requeue")
	c.SubmitAs(alice, leaves("apart")+untilDone, on(apart))
	held := c.Salloc(bob, on(cleaned), "--ntasks=1")
	c.Exec(append(as(bob), "srun", "--jobid="+held.ID, "--chdir=/", "sh", "-c", "umask 077; echo x >/dev/shm/held")...)
	bobs := c.SubmitAs(bob, leaves("bobs")+untilDone, on(cleaned), "--no-requeue")
	carols := c.SubmitAs(carol, leaves("carols")+untilDone, on(cleaned), "--no-requeue")
	for _, name := range []string{"run", "apart", "bobs", "carols"} {
		c.awaitProcess(name)
	}

	c.Exec("sh", "-c", "kill -KILL $(cat "+cluster.Dir+"/run/slurmd."+cleaned.Name+".pid)")
	<-cleaned.slurmd.Ended
	cleaned.slurmd = c.Daemon("slurmd."+cleaned.Name, "unshare", "--uts", "--mount", "--propagation", "unchanged", cluster.Dir+"/node.sh", cleaned.Name, "-c")

	c.reusePID("run", "login", alice)
	booted.shutdown()
	booted.emptyRun()
	c.Exec("rm", "/dev/shm/run")
	c.awaitProcess("login")
	c.Exec(append(as(alice), "sh", "-c", "umask 077; echo x >/dev/shm/fresh")...)
	time.Sleep(bootTime)
	booted.startBooted()
	c.WaitFor(8*soon, "second run of the job", func() (string, bool) {
		state, why := booted.State()
		if strings.HasPrefix(state, "down") { // ReturnToService=1 returns no node that has booted unexpectedly
			c.Update(booted, "State=RESUME")
		}
		_, err := os.Stat(filepath.Join(c.Dir, "jobs", "run1.pid"))
		return state + " " + why + " " + again.Is("JobState") + " " + again.Is("Reason"), err == nil
	})
	c.awaitProcess("run1")
	booted.AwaitEpilog(again)
	if log := booted.Log(); !strings.Contains(log, "rebooted, then epilog") {
		t.Errorf("no epilog of the first run after the boot:\n%s", log)
	}
	c.wantLeft("after the boot", map[string]string{"run1": "file process", "login": "process", "fresh": "file", "apart": "file process"})

	want := map[string]string{"held": "file", "bobs": "file", "carols": ""}
	for _, j := range []*Job{bobs, carols} {
		cleaned.AwaitEpilog(j)
	}
	if strings.Contains(cleaned.Log(), "of the job still runs") { // on a slow machine
		want = map[string]string{"held": "file"}
	}
	c.wantLeft("after slurmd -c", want)

	last := c.SubmitAs(dave, leaves("last"), on(booted))
	booted.Create("done")
	booted.AwaitEpilog(last)
	c.awaitEnd("run1")
	c.wantLeft("after the second run", map[string]string{"run1": "file", "login": "process", "fresh": "file", "apart": "file process", "last": ""})
}
