package jobscan

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// A process that only its environment assigns to the job is spared if it has any other claim. If
// its cgroup names the job it belongs to the job, whatever other claims it has.
func TestJobProcessClaims(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	const step = "SLURM_JOB_ID=123\x00SLURMD_NODENAME=gpu01\x00"
	add := func(pid, parent, session, tty int, group, environ string, more ...string) {
		dir := fmt.Sprintf("proc/%d", pid)
		jobTask(files, dir, "x", "S", parent, pid, 5001, 0, noSignal)
		files[dir+"/stat"] = strings.Replace(files[dir+"/stat"], fmt.Sprintf(" %d 7 0 -1", pid), fmt.Sprintf(" %d %d %d -1", pid, session, tty), 1)
		files[dir+"/cmdline"], files[dir+"/cgroup"], files[dir+"/environ"] = "x\x00", group, environ
		for i := 0; i < len(more); i += 2 {
			files[dir+"/"+more[i]] = more[i+1]
		}
	}
	const slurmd = "0::/system.slice/slurmd.service\n"
	add(10, 1, 10, 0, slurmd, step)
	add(11, 1, 11, 34816, slurmd, step)
	add(12, 1, 12, 0, slurmd, step, "loginuid", "5001")
	add(13, 1, 13, 0, slurmd, step, "loginuid", noLogin)
	add(14, 1, 14, 0, "0::/user.slice/user-5001.slice/session-7.scope\n", step)
	add(15, 1, 15, 0, "0::/user.slice/user-5001.slice/user@5001.service/app.slice\n", step)
	add(16, 1, 16, 0, "12:pids:/\n1:name=systemd:/system.slice/cron.service\n", step)
	add(17, 1, 17, 0, "0::/system.slice/atd.service\n", step)
	add(18, 1, 18, 0, slurmd, step+"SLURM_RESTART_COUNT=2\x00")
	add(19, 1, 19, 0, slurmd, step+"SLURM_RESTART_COUNT=1\x00")
	jobTask(files, "proc/20", "slurmstepd", "S", 1, 20, 0, 0, noSignal)
	files["proc/20/cmdline"], files["proc/20/cgroup"], files["proc/20/environ"] = "slurmstepd: [77.0]\x00", slurmd, ""
	add(21, 20, 20, 0, slurmd, "SLURM_JOB_ID=77\x00")
	add(22, 1, 22, 0, slurmd, step+"SLURM_TASK_PID=21\x00") // salloc in a task of job 77
	add(23, 21, 23, 0, slurmd, step)                        // the same, before it has its own session
	add(24, 1, 24, 0, slurmd, step+"SLURM_TASK_PID=25\x00") // its task has ended, and job 77 has a process with that PID
	add(25, 20, 20, 0, slurmd, "SLURM_JOB_ID=77\x00")
	files["proc/25/stat"] = strings.Replace(files["proc/25/stat"], " 900 4096", " 901 4096", 1)
	add(30, 1, 30, 0, slurmd, "SLURM_JOB_ID=88\x00")
	add(31, 30, 31, 0, slurmd, step)
	add(32, 1, 30, 0, slurmd, step)
	add(33, 10, 10, 0, slurmd, step)
	jobTask(files, "proc/34", "mps-control", "S", 1, 34, 0, 0, noSignal)
	files["proc/34/cmdline"], files["proc/34/cgroup"], files["proc/34/environ"] = "mps-control\x00", slurmd, step // from a prolog
	add(35, 34, 34, 0, slurmd, step)
	add(36, 1, 36, 0, slurmd, step+"SLURM_SCRIPT_CONTEXT=prolog_slurmd\x00") // a daemon of the user's that a prolog has started
	// pam_slurm_adopt has added a login to the job.
	add(40, 1, 40, 34817, "4:memory:/slurm/uid_5001/job_123/step_extern\n", "", "loginuid", "5001")
	add(50, 1, 50, 0, slurmd, "SLURM_JOB_ID=123\x00")
	h := probe.NewHost(probetest.Tree(t, files))
	claims := func() map[int]string {
		list, err := JobProcesses(h, JobRef{ID: "123", UID: 5001, Restart: 1})
		if err != nil {
			t.Fatal(err)
		}
		got := map[int]string{}
		for _, p := range list {
			got[p.PID] = p.Claim
		}
		return got
	}
	want := map[int]string{
		10: "", 11: "it has a terminal", 12: "it was started from a login", 13: "", 14: "it runs in user.slice/session-7.scope", 15: "it runs in user.slice/app.slice",
		16: "it runs in cron.service", 17: "it runs in atd.service", 18: "it belongs to a later run of the job", 19: "", 22: "it was started in job 77", 24: "",
		31: "it descends from process 30 (x)", 32: "its session is that of process 30 (x)", 33: "", 35: "it descends from process 34 (mps-control) of root",
		36: "a prolog or an epilog has started it", 40: "", 50: "",
	}
	if diff := cmp.Diff(want, claims()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// Its user is logged in, so a process that only the number assigns to the job may belong to the
	// login.
	add(60, 1, 60, 0, slurmd, "HOME=/\x00")
	h = probe.NewHost(probetest.Tree(t, files))
	want[50] = "there is no sign that Slurm started it, and its user has process 60 on this node outside of any job"
	if diff := cmp.Diff(want, claims()); diff != "" {
		t.Errorf("with a login (-want +got):\n%s", diff)
	}
}

// Tasks of a heterogeneous job's component have the id of the whole job.
func TestJobProcessesOfHetJob(t *testing.T) {
	t.Parallel()
	files := map[string]string{"proc/10/cgroup": "0::/\n", "proc/10/environ": "SLURM_JOB_ID=123\x00SLURMD_NODENAME=gpu02\x00"}
	jobTask(files, "proc/10", "x", "S", 1, 10, 5001, 0, noSignal)
	for _, c := range []struct {
		job  JobRef
		want int
	}{{JobRef{ID: "124", UID: 5001, Het: "123", Node: "gpu02"}, 1}, {JobRef{ID: "123", UID: 5001, Het: "123", Node: "gpu01"}, 0}, {JobRef{ID: "124", UID: 5001}, 0}} {
		if list, err := JobProcesses(probe.NewHost(probetest.Tree(t, files)), c.job); len(list) != c.want || err != nil {
			t.Errorf("%+v: %+v, %v, want %d", c.job, list, err, c.want)
		}
	}
}

// startAs starts a program as a user and waits until a process runs sleep.
func startAs(t *testing.T, uid int, argv ...string) *exec.Cmd {
	t.Helper()
	need.Root(t, "processes of several users")
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	return cmd
}

func awaitComm(t *testing.T, pid int, name string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); strings.TrimSpace(string(data)) == name {
			return
		}
	}
	t.Fatalf("process %d does not become %s", pid, name)
}

// A process in a user namespace runs for the user who created it, whatever its uid is there, as in
// containers with subordinate uids.
func TestUsersOfNamespaces(t *testing.T) {
	t.Parallel()
	const uid = 1<<30 + 77001
	cmd := startAs(t, uid, "unshare", "--user", "sleep", "100")
	awaitComm(t, cmd.Process.Pid, "sleep")
	h := probe.NewHost("/")
	users, err := UsersOf(h)
	if err != nil || !slices.Contains(users[cmd.Process.Pid], uid) {
		t.Errorf("%v, %v", users[cmd.Process.Pid], err)
	}
	s, err := scanJobs(h, JobRef{ID: "1", UID: uid})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	dir := strconv.Itoa(cmd.Process.Pid)
	if owner, ok := s.findNamespaceOwner(dir); !ok || owner != uid {
		t.Errorf("the owner of its namespace is %d, %v, want %d", owner, ok, uid)
	}
	if owner, ok := s.findNamespaceOwner("self"); ok {
		t.Errorf("this program's own is of %d", owner)
	}
	if !s.owned(dir) || !s.believed(cmd.Process.Pid, 1<<30) {
		t.Error("it is not its user's")
	}
	s.job.UID = uid + 1
	if s.owned(dir) || s.believed(cmd.Process.Pid, 1<<30) {
		t.Error("it is somebody else's, too")
	}
}

// Jobs depend on slurmd and slurmstepd, and the ancestors of this program have started it.
func TestSpared(t *testing.T) {
	t.Parallel()
	need.Root(t, "processes of several users")
	h := probe.NewHost("/")
	data, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"slurmd": "slurmd is not killed: jobs depend on it", "slurmstepd": "slurmstepd is not killed: jobs depend on it", "slurmdx": ""} {
		program := filepath.Join(t.TempDir(), name)
		if err := probetest.WriteProgram(program, data); err != nil {
			t.Fatal(err)
		}
		cmd := startAs(t, 0, program, "100")
		awaitComm(t, cmd.Process.Pid, name)
		if got := probe.Spared(h, cmd.Process.Pid); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		err := probe.Kill(h, probe.Process{PID: cmd.Process.Pid, Args: program + " 100"})
		if probetest.Message(err) != want && want != "" || want == "" && err != nil {
			t.Errorf("kill %s: %v", name, err)
		}
	}
	s, err := scanJobs(h, JobRef{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for at := os.Getpid(); at > 1; {
		if probe.Spared(h, at) != probe.SparedSelf {
			t.Errorf("process %d, above this one: %q", at, probe.Spared(h, at))
		}
		above, err := s.Task(strconv.Itoa(at))
		if err != nil {
			t.Fatal(err)
		}
		at = above.Parent
	}
}

// A process that started after the listing has the PID of another one.
func TestKillOfReusedPID(t *testing.T) {
	t.Parallel()
	h := probe.NewHost("/")
	if _, err := probe.Processes(h); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond) // more than a clock tick
	cmd := probetest.StartSleep(t)
	p := probe.Process{PID: cmd.Process.Pid, UID: uint32(os.Geteuid()), Args: "sleep 60"}
	if err := probe.Kill(h, p); probetest.Message(err) != probe.ErrReplaced.Error() {
		t.Errorf("%v, want %v", err, probe.ErrReplaced)
	}
	if err := probe.Kill(probe.NewHost("/"), p); err != nil {
		t.Error(err)
	}
}

// A process of a running job is recognized by its slurmstepd, which root must own.
func TestRunningJobOf(t *testing.T) {
	t.Parallel()
	shell, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "slurmstepd")
	if err := probetest.WriteProgram(program, shell); err != nil {
		t.Fatal(err)
	}
	for below := dir; below != "/" && below != os.TempDir(); below = filepath.Dir(below) {
		_ = os.Chmod(below, 0o755)
	}
	for uid, want := range map[int]string{0: "987654321", 1<<30 + 77002: ""} {
		cmd := startAs(t, uid, "/bin/bash", "-c", "exec -a 'slurmstepd: [987654321.0]' "+program+" -c 'sleep 100 & echo $! >&2; wait'")
		awaitComm(t, cmd.Process.Pid, "slurmstepd")
		child := 0
		for end := time.Now().Add(20 * time.Second); child == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
			data, _ := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", cmd.Process.Pid))
			_, _ = fmt.Sscan(string(data), &child)
		}
		if got, err := RunningJobOf(probe.NewHost("/"), child); got != want || err != nil {
			t.Errorf("below uid %d's: job %q, %v, want %q", uid, got, err, want)
		}
	}
	if got, err := RunningJobOf(probe.NewHost("/"), os.Getpid()); got != "" || err != nil {
		t.Errorf("of no job: %q, %v", got, err)
	}
}
