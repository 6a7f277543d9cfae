package jobscan

import (
	"errors"
	"fmt"
	"io/fs"
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
)

// jobTask returns the stat and the status file of a process or of a thread.
func jobTask(files map[string]string, dir, name, state string, parent, group, uid int, flags int, pending string) {
	files[dir+"/stat"] = fmt.Sprintf("7 (%s) %s %d %d 7 0 -1 %d 1 2 3 4 10 5 5 6 20 0 1 0 900 4096 1 0\n", name, state, parent, group, flags)
	files[dir+"/status"] = fmt.Sprintf("Name:\t%s\nState:\t%s (x)\nUid:\t%[3]d\t%[3]d\t%[3]d\t%[3]d\nVmSize:\t1 kB\nSigPnd:\t%s\nShdPnd:\t0000000000000000\nvoluntary_ctxt_switches:\t7\n", name, state, uid, pending)
}

const noSignal, sigKill = "0000000000000000", "0000000000000100"

// jobTree returns a node with processes of many kinds; the job is 123, of uid 5001.
func jobTree(t *testing.T) *probe.Host {
	t.Helper()
	files := map[string]string{}
	add := func(pid, parent, uid int, args, group, environ string) {
		dir := fmt.Sprintf("proc/%d", pid)
		jobTask(files, dir, strings.TrimSuffix(strings.Fields(args)[0], ":"), "S", parent, pid, uid, 0, noSignal)
		files[dir+"/cmdline"] = strings.ReplaceAll(args, " ", "\x00") + "\x00"
		files[dir+"/cgroup"], files[dir+"/environ"] = group, environ
	}
	const step, none = "0::/system.slice/slurmstepd.scope/job_%d/step_0/user/task_0\n", "0::/system.slice\n"
	const here = "A=1\x00SLURM_JOB_ID=123\x00SLURMD_NODENAME=gpu01\x00"
	add(10, 1, 5001, "python train.py", fmt.Sprintf(step, 123), "")
	add(11, 1, 5001, "daemon", none, here)
	add(12, 1, 5001, "elsewhere", none, strings.Replace(here, "gpu01", "gpu02", 1))
	add(13, 1, 5001, "other", fmt.Sprintf(step, 77), here) // its cgroup decides
	add(14, 1, 5002, "mallory", none, here)                // any user can set that
	add(15, 1, 5002, "sub-uid", "4:memory:/slurm_gpu01/uid_5001/job_123/step_0\n", "")
	add(16, 1, 5001, "second", "4:memory:/slurm_gpu02/uid_5001/job_123/step_0\n", "")
	add(17, 1, 5001, "third", "0::/system.slice/gpu02_slurmstepd.scope/job_123/step_0\n", "")
	add(18, 1, 0, "sudo", fmt.Sprintf(step, 123), "")
	add(19, 1, 5001, "login", none, "")
	add(20, 1, 0, "slurmstepd: [77.0]", none, "")
	add(21, 20, 5001, "bash", none, here) // salloc in job 77
	add(22, 21, 5001, "sleep 9", none, here)
	add(23, 1, 0, "slurmstepd: [123.0]", none, "")
	add(24, 23, 5001, "own", none, here)
	add(25, 1, 5001, "setuid", fmt.Sprintf(step, 123), "")
	files["proc/25/status"] = strings.Replace(files["proc/25/status"], "5001\t5001\t5001\t5001", "5001\t5001\t0\t0", 1)
	add(26, 1, 5001, "zombie", fmt.Sprintf(step, 123), "")
	jobTask(files, "proc/26", "zombie", "Z", 1, 26, 5001, 0, noSignal)
	add(27, 1, 5001, "stuck", fmt.Sprintf(step, 123), "") // its first thread is dead, its third hangs
	jobTask(files, "proc/27", "stuck", "Z", 1, 27, 5001, 0, noSignal)
	jobTask(files, "proc/27/task/27", "stuck", "Z", 1, 27, 5001, 0, noSignal)
	jobTask(files, "proc/27/task/28", "stuck", "X", 1, 27, 5001, 0, noSignal)
	jobTask(files, "proc/27/task/29", "stuck", "D", 1, 27, 5001, 0, sigKill)
	files["proc/27/task/29/wchan"] = "rpc_wait_bit_killable"
	add(30, 1, 5001, "exits", fmt.Sprintf(step, 123), "")
	jobTask(files, "proc/30", "exits", "D", 1, 30, 5001, probe.Exiting, noSignal)
	files["proc/30/wchan"] = "0"
	add(31, 1, 5001, "waits", fmt.Sprintf(step, 123), "")
	jobTask(files, "proc/31", "waits", "D", 1, 31, 5001, 0, noSignal)
	files["proc/32/stat"] = "32 (half" // about to be gone
	const sluid = "0::/system.slice/%sslurmstepd.scope/sEKNKTV3WPV50%d/step_0/user/task_0\n"
	add(33, 1, 5001, "of-26.05", fmt.Sprintf(sluid, "", 0), "")   // its slurmstepd has ended
	add(34, 1, 5001, "next-job", fmt.Sprintf(sluid, "", 1), here) // its cgroup decides
	add(35, 1, 5001, "next-node", fmt.Sprintf(sluid, "gpu02_", 0), here)
	h := probe.NewHost(probetest.Tree(t, files))
	link := func(pid, fd int, target string) {
		dir := h.Path(fmt.Sprintf("/proc/%d/fd", pid))
		probetest.Mkdir(t, dir)
		if err := os.Symlink(target, filepath.Join(dir, strconv.Itoa(fd))); err != nil {
			t.Fatal(err)
		}
	}
	for i, target := range []string{"/dev/null", "/dev/nvidia5", "/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia3", "/dev/nvidia-uvm"} {
		link(10, i, target)
	}
	return h
}

func TestJobProcesses(t *testing.T) {
	t.Parallel()
	h := jobTree(t)
	left := func(pid int, uid uint32, args string, owned bool) JobProcess {
		return JobProcess{Process: probe.Process{PID: pid, UID: uid, Args: args}, Start: 900, Progress: 15, Owned: owned}
	}
	asleep := func(pid int, args, wchan string, killed bool) JobProcess {
		p := left(pid, 5001, args, true)
		p.Asleep, p.Wchan, p.Killed, p.Progress = true, wchan, killed, 15+7
		return p
	}
	want := []JobProcess{
		left(10, 5001, "python train.py", true), left(11, 5001, "daemon", true), left(15, 5002, "sub-uid", false), left(24, 5001, "own", true), left(25, 5001, "setuid", false),
		asleep(27, "[stuck]", "rpc_wait_bit_killable", true), asleep(30, "[exits]", "", true), asleep(31, "[waits]", "", false), left(33, 5001, "of-26.05", true),
	}
	job := JobRef{ID: "123", SLUID: "sEKNKTV3WPV500", UID: 5001, Node: "gpu01"}
	if gpus := OpenGPUs(h, 10); !slices.Equal(gpus, []int{3, 5}) {
		t.Errorf("GPUs %v of process 10, want 3 and 5", gpus)
	}
	got, err := JobProcesses(h, job)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, p := range want {
		if now, there := JobProcessNow(h, job, p); !there || !cmp.Equal(p, now) {
			t.Errorf("now: %v %+v, want %+v", there, now, p)
		}
		if err := EndJobProcess(h, job, p, true); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("ended out of the tree: %v", err)
		}
	}
	for _, p := range []JobProcess{{Process: probe.Process{PID: 10}, Start: 901}, {Process: probe.Process{PID: 26}, Start: 900}, {Process: probe.Process{PID: 99}, Start: 900}} {
		if now, there := JobProcessNow(h, job, p); there {
			t.Errorf("%d has ended: %+v", p.PID, now)
		}
	}

	// If the owner of the job is unknown, environments do not count.
	job.UID = -1
	got, err = JobProcesses(h, job)
	var pids []int
	for _, p := range got {
		if pids = append(pids, p.PID); p.Owned {
			t.Errorf("%d is without a known owner", p.PID)
		}
	}
	if diff := cmp.Diff([]int{10, 15, 25, 27, 30, 31, 33}, pids); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}

	// For a job of root, root's processes count, but not slurmstepd.
	root, err := JobProcesses(h, JobRef{ID: "123", UID: 0})
	if err != nil || len(root) != 9 || root[4].PID != 18 || !root[4].Owned || root[5].PID != 25 {
		t.Errorf("%+v, %v", root, err)
	}
}

func TestJobProcessesUnreadable(t *testing.T) {
	t.Parallel()
	files := map[string]string{"proc/10/cgroup": "0::/\n", "proc/10/environ/": "", "proc/11/cgroup": "0::/job_5/\n"}
	jobTask(files, "proc/10", "x", "S", 1, 10, 5001, 0, noSignal)
	jobTask(files, "proc/11", "y", "S", 1, 11, 5001, 0, noSignal)
	list, err := JobProcesses(probe.NewHost(probetest.Tree(t, files)), JobRef{ID: "5", UID: 5001})
	if probetest.Message(err) != "read /proc/10/environ: is a directory" || len(list) != 1 || list[0].PID != 11 {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := JobProcesses(probe.NewHost(probetest.Tree(t, nil)), JobRef{ID: "5"}); probetest.Message(err) != "read /proc: no such file or directory" {
		t.Errorf("no /proc: %v", err)
	}
}

// orphan starts a shell command as a job of a uid would: in its own session and without a parent.
// It returns its PID after it has printed something and runs the program of its exec, because a
// process has no environment while it changes its program.
func orphan(t *testing.T, job, uid int, command string) int {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "("+command+") >&2 & echo $!")
	cmd.Env = []string{"PATH=/bin:/usr/bin", fmt.Sprintf("SLURM_JOB_ID=%d", job)}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	}
	ready, err := cmd.StderrPipe()
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
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	var word string
	if _, err := fmt.Fscan(ready, &word); err != nil {
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
	dir := fmt.Sprintf("/proc/%d/", pid)
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		comm, err := os.ReadFile(dir + "comm")
		if err != nil {
			t.Fatal(err)
		}
		if environ, err := os.ReadFile(dir + "environ"); err == nil && len(environ) > 0 && strings.TrimSpace(string(comm)) == name {
			return
		}
	}
	t.Fatalf("process %d does not run %s", pid, name)
}

// plainUser returns a user who is neither root nor a system account; or the current user, if that
// is not root.
func plainUser() int {
	if os.Geteuid() == 0 {
		return 65534
	}
	return os.Geteuid()
}

func TestEndJobProcess(t *testing.T) {
	t.Parallel()
	h, job := probe.NewHost("/"), JobRef{ID: strconv.Itoa(1<<30 + os.Getpid()), UID: plainUser()}
	number, _ := strconv.Atoi(job.ID)
	pids := []int{orphan(t, number, job.UID, "echo ready; exec sleep 600"), orphan(t, number, job.UID, "trap '' TERM; echo ready; exec sleep 600")}
	left := func() map[int]JobProcess {
		t.Helper()
		list, err := JobProcesses(h, job)
		if err != nil && os.Geteuid() == 0 {
			t.Fatal(err)
		}
		m := map[int]JobProcess{}
		for _, p := range list {
			if slices.Contains(pids, p.PID) { // but not their children
				m[p.PID] = p
			}
		}
		return m
	}
	had := left()
	if len(had) != 2 || !had[pids[0]].Owned || !had[pids[1]].Owned {
		t.Fatalf("%+v, want %v", had, pids)
	}
	stranger := job
	stranger.ID = "7"
	replaced := had[pids[0]]
	replaced.Start++
	other := job
	other.UID = 4242
	if err := EndJobProcess(h, job, replaced, true); !errors.Is(err, probe.ErrReplaced) {
		t.Errorf("with another time of start: %v", err)
	}
	for _, j := range []JobRef{stranger, other} {
		if err := EndJobProcess(h, j, had[pids[0]], true); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("as a process of %+v: %v", j, err)
		}
	}
	for _, pid := range []int{1, os.Getpid(), os.Getppid()} {
		if err := EndJobProcess(h, job, JobProcess{Process: probe.Process{PID: pid}}, true); probetest.Message(err) != probe.SparedSelf {
			t.Errorf("%d: %v", pid, err)
		}
	}
	for _, pid := range pids {
		if err := EndJobProcess(h, job, had[pid], false); err != nil {
			t.Errorf("SIGTERM: %v", err)
		}
	}
	probetest.Await(t, "the process ends", func() bool { return !probe.Alive(h, pids[0]) })
	if now := left(); len(now) != 1 || now[pids[1]].PID == 0 {
		t.Errorf("left after SIGTERM: %+v", now)
	}
	if err := EndJobProcess(h, job, had[pids[1]], true); err != nil {
		t.Errorf("SIGKILL: %v", err)
	}
	probetest.Await(t, "the process ends", func() bool { return !probe.Alive(h, pids[1]) })
	if _, there := JobProcessNow(h, job, had[pids[1]]); there {
		t.Error("it is still there")
	}
	if err := EndJobProcess(h, job, had[pids[1]], true); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("once more: %v", err)
	}
}

// A process that ends while it is being read belongs to no job, which is not an error.
func TestJobOfEndingProcess(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := probe.NewHost("/")
	for end := time.Now().Add(30 * time.Second); probe.Alive(h, cmd.Process.Pid) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	for range 2 { // a zombie, and one that is gone
		if _, err := JobOf(h, cmd.Process.Pid); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("JobOf: %v", err)
		}
		_ = cmd.Wait()
	}
}

func FuzzParseTask(f *testing.F) {
	f.Add([]byte("7 (a) b) S 1 7 7 0 -1 4 1 2 3 4 10 5 5 6 20 0 1 0 900 4096 1 0\n"))
	f.Fuzz(func(_ *testing.T, data []byte) { _, _ = probe.ParseTask(data) })
}
