package jobs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// liveJobs counts the jobs of the tests: each has a number of its own.
var liveJobs atomic.Int64

// liveJob is a job of a user who is neither root nor a system user, with a uid that no other test
// uses.
func liveJob(t *testing.T) *checks.Job {
	t.Helper()
	n := int(liveJobs.Add(1))
	return &checks.Job{ID: fmt.Sprint(1<<30 + os.Getpid()*100 + n), UID: 1<<30 + os.Getpid()*100 + n, User: "alice", Ended: true, Began: time.Now().Add(-time.Second)}
}

// leave starts a process of a job and orphans it: a shell command. It waits for the command's
// output, and for the program that replaces it (exec).
func leave(t *testing.T, job *checks.Job, uid int, command string) int {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "("+command+") >&2 & echo $!")
	cmd.Env, cmd.Dir = []string{"PATH=/bin:/usr/bin", "SLURM_JOB_ID=" + job.ID}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	var word string
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	if _, err := fmt.Fscan(errs, &word); err != nil {
		t.Fatal(err)
	}
	if _, program, ok := strings.Cut(command, "exec "); ok {
		awaitProgram(t, pid, strings.Fields(program)[0])
	}
	_ = cmd.Wait() // the shell above it is a process of the job, too
	return pid
}

// awaitProgram waits until a process runs a program and has its environment.
func awaitProgram(t *testing.T, pid int, name string) {
	t.Helper()
	path, got := fmt.Sprintf("/proc/%d/comm", pid), ""
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)) // of a program that is being loaded it is empty
		if got = strings.TrimSpace(string(data)); got == name && err == nil && len(environ) > 0 {
			return
		}
	}
	t.Fatalf("process %d is %s, want %s", pid, got, name)
}

// runLeft runs the check on this machine.
func runLeft(t *testing.T, job *checks.Job, c jobLeftovers) (text string, findings []checks.Finding) {
	t.Helper()
	if c.Stuck == 0 {
		c.Stuck = stuckAfter
	}
	return runLeftAsking(t, job, c, "/bin/true") // slurmctld knows no other job
}

// runLeftAsking runs the check with another squeue.
func runLeftAsking(t *testing.T, job *checks.Job, c jobLeftovers, squeue string) (text string, findings []checks.Finding) {
	t.Helper()
	findings = c.Run(checks.WithDeadline(t.Context(), time.Now().Add(20*time.Second)), &checks.Env{Host: probe.NewHost("/"), Job: job, Vars: map[string]string{"SQUEUE_CMD": squeue}})
	for _, f := range findings {
		text += f.Message + "\n"
	}
	return text, findings
}

func TestJobLeftoversEndsProcesses(t *testing.T) {
	t.Parallel()
	if !checktest.Alone(t) {
		return
	}
	job := liveJob(t)
	mild := leave(t, job, job.UID, "echo ready; exec sleep 600")
	deaf := leave(t, job, job.UID, "trap '' TERM; echo ready; exec sleep 601")
	stranger := leave(t, job, job.UID+1<<20, "echo ready; exec sleep 600")
	mine := leave(t, &checks.Job{ID: "7"}, job.UID, "echo ready; exec sleep 600")
	left := fmt.Sprintf("alice's process %d (sleep) of job %s remains\n", mild, job.ID)
	text, _ := runLeft(t, job, jobLeftovers{})
	if !strings.Contains(text, left) || !strings.Contains(text, fmt.Sprintf("process %d (sleep) of job %s remains\n", deaf, job.ID)) {
		t.Errorf("%s\nwant %s", text, left)
	}
	if strings.Contains(text, fmt.Sprint("process ", stranger)) || strings.Contains(text, fmt.Sprint("process ", mine)) {
		t.Errorf("somebody else's: %s", text)
	}

	text, findings := runLeft(t, job, jobLeftovers{End: true})
	for _, want := range []string{
		fmt.Sprintf("alice's process %d (sleep) of job %s had to be ended\n", mild, job.ID),
		fmt.Sprintf("alice's process %d (sleep) of job %s had to be killed\n", deaf, job.ID),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s\nwant %s", text, want)
		}
	}
	if checks.Worst(findings) != checks.Warn {
		t.Errorf("%v: %s", checks.Worst(findings), text)
	}
	h := probe.NewHost("/")
	for pid, want := range map[int]bool{mild: false, deaf: false, stranger: true, mine: true} {
		if probe.Alive(h, pid) != want {
			t.Errorf("process %d lives: %v, want %v", pid, !want, want)
		}
	}
	if text, _ := runLeft(t, job, jobLeftovers{End: true}); text != "" {
		t.Errorf("once more: %s", text)
	}
}

// The shell of salloc, its children, and an at job also have the job's number, and outlive the
// job: they are reported.
func TestJobLeftoversSparesLogins(t *testing.T) {
	t.Parallel()
	if !checktest.Alone(t) {
		return
	}
	job := liveJob(t)
	job.Restart = 1
	none := &checks.Job{ID: "", UID: job.UID}
	const sleep = "echo ready; exec sleep 600"
	shell := leave(t, none, job.UID, "(SLURM_JOB_ID="+job.ID+" sleep 602 & echo ready; wait)")
	child := childOf(t, shell)
	session := leave(t, none, job.UID, "setsid sh -c '(SLURM_JOB_ID="+job.ID+" exec sleep 603) & echo ready; exec sleep 604'")
	later := leave(t, job, job.UID, "SLURM_RESTART_COUNT=2; export SLURM_RESTART_COUNT; sh -c 'echo ready; exec sleep 605'")
	// A user with a job that Slurm has started, and one without any.
	launched := leave(t, job, job.UID, "SLURMD_NODENAME=gpu01; export SLURMD_NODENAME; sh -c '"+sleep+"'")
	loose := leave(t, job, job.UID, sleep)
	text, findings := runLeft(t, job, jobLeftovers{End: true, Fail: true})
	for pid, want := range map[int]string{
		child: "it descends from process", later: "it belongs to a later run of the job", loose: "there is no sign that Slurm started it",
	} {
		if !strings.Contains(text, fmt.Sprintf("process %d (", pid)) || !strings.Contains(text, want) {
			t.Errorf("%s\nwant process %d, %s", text, pid, want)
		}
	}
	if !strings.Contains(text, fmt.Sprintf("process %d (sleep) of job %s had to be ended\n", launched, job.ID)) || strings.Count(text, "not ended: ") != 4 {
		t.Errorf("%s\nwant process %d to be ended, four not", text, launched)
	}
	h := probe.NewHost("/")
	for pid, want := range map[int]bool{shell: true, child: true, session: true, later: true, loose: true, launched: false} {
		if probe.Alive(h, pid) != want {
			t.Errorf("process %d lives: %v, want %v", pid, !want, want)
		}
	}
	for _, f := range findings { // -f does not apply to processes that may stay
		if f.Severity == checks.Fail && strings.Contains(f.Message, "not ended") {
			t.Errorf("%+v", f)
		}
	}
}

// childOf waits for a child of a process that runs sleep.
func childOf(t *testing.T, parent int) int {
	t.Helper()
	path := fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", parent)
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		data, _ := os.ReadFile(path)
		for word := range strings.FieldsSeq(string(data)) {
			if name, _ := os.ReadFile("/proc/" + word + "/comm"); strings.TrimSpace(string(name)) == "sleep" {
				var pid int
				_, _ = fmt.Sscan(word, &pid)
				return pid
			}
		}
	}
	t.Fatalf("process %d has no child", parent)
	return 0
}

// Processes that end on their own are not reported, and the check waits no longer than for them.
func TestJobLeftoversHaveAGrace(t *testing.T) {
	t.Parallel()
	if !checktest.Alone(t) {
		return
	}
	job := liveJob(t)
	job.Grace = 15 * time.Second
	leave(t, job, job.UID, "echo ready; sleep 1")
	began := time.Now()
	if text, _ := runLeft(t, job, jobLeftovers{End: true}); text != "" || time.Since(began) > 10*time.Second {
		t.Errorf("after %v: %s", time.Since(began), text)
	}
}

// A prolog looks for no leftovers, whatever its options.
func TestJobLeftoversInAProlog(t *testing.T) {
	t.Parallel()
	if !checktest.Alone(t) {
		return
	}
	job := liveJob(t)
	job.Ended, job.End = false, true
	pid := leave(t, job, job.UID, "echo ready; exec sleep 600")
	if _, findings := runLeft(t, job, jobLeftovers{End: true}); len(findings) != 1 || findings[0].Severity != checks.Skip {
		t.Errorf("%+v", findings)
	}
	if !probe.Alive(probe.NewHost("/"), pid) {
		t.Error("it was ended")
	}
}

// freeze puts a process to sleep where no signal reaches it, until thaw is called.
func freeze(t *testing.T, pid int) (thaw func()) {
	t.Helper()
	dir, err := os.MkdirTemp("/sys/fs/cgroup/freezer", "nhc-gpu-test-")
	if err != nil {
		need.Skip(t, "needs a cgroup that freezes: %v", err)
	}
	write := func(file, text string) error { return os.WriteFile(filepath.Join(dir, file), []byte(text), 0) }
	thaw = func() { _ = write("freezer.state", "THAWED") }
	t.Cleanup(func() {
		thaw()
		_ = syscall.Kill(pid, syscall.SIGKILL)
		for end := time.Now().Add(30 * time.Second); os.Remove(dir) != nil && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
	})
	if err := write("cgroup.procs", fmt.Sprint(pid)); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if err := write("freezer.state", "FROZEN"); err != nil {
			t.Fatal(err)
		}
		if state, _ := os.ReadFile(filepath.Join(dir, "freezer.state")); strings.TrimSpace(string(state)) == "FROZEN" {
			return thaw
		}
	}
	t.Fatal("it does not freeze")
	return nil
}

// A process that no signal can end fails, and the check does not wait for it forever.
func TestJobLeftoversThatNoSignalEnds(t *testing.T) {
	t.Parallel()
	if !checktest.Alone(t) {
		return
	}
	job := liveJob(t)
	pid := leave(t, job, job.UID, "echo ready; exec sleep 600")
	thaw := freeze(t, pid)
	says := fmt.Sprintf("%s:  alice's process %d ([sleep]) of job %s", jobLeftoversName, pid, job.ID)
	// It was not killed: it may wait for its files.
	if text, findings := runLeft(t, job, jobLeftovers{Stuck: time.Millisecond}); checks.Worst(findings) != checks.Warn || !strings.HasPrefix(text, says+" remains in state D") {
		t.Errorf("%v: %s", checks.Worst(findings), text)
	}
	text, findings := runLeft(t, job, jobLeftovers{End: true, Stuck: 100 * time.Millisecond})
	if checks.Worst(findings) != checks.Fail || findings[0].Code != "job.left.stuck" || !strings.HasPrefix(text, says+" cannot be ended: killed, and in state D") {
		t.Errorf("%v: %s", checks.Worst(findings), text)
	}
	// Killed by any process.
	if text, findings := runLeft(t, job, jobLeftovers{Stuck: 100 * time.Millisecond}); checks.Worst(findings) != checks.Fail {
		t.Errorf("%v: %s", checks.Worst(findings), text)
	}
	// Not enough time to be sure: it ends with its time, not with its grace.
	const grace = time.Minute
	late, end := &checks.Env{Host: probe.NewHost("/"), Job: job}, time.Now().Add(400*time.Millisecond)
	if findings := (&jobLeftovers{Stuck: stuckAfter, Grace: grace, End: true}).Run(checks.WithDeadline(t.Context(), end), late); checks.Worst(findings) != checks.Warn || time.Since(end) > grace/2 {
		t.Errorf("%v after its time: %+v", time.Since(end), findings)
	}
	thaw()
	if text, _ := runLeft(t, job, jobLeftovers{End: true}); text != "" && !strings.Contains(text, "had to be ") {
		t.Errorf("when it can end: %s", text)
	}
}
