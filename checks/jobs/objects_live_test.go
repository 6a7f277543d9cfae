package jobs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// leaveObjects creates IPC of each kind and a file in /dev/shm for a job; it returns a function
// that counts the remaining ones.
func leaveObjects(t *testing.T, job *checks.Job, mode string) (left func() int) {
	t.Helper()
	ipcmk := need.Program(t, "ipcmk")
	file := filepath.Join("/dev/shm", "nhc-gpu-test-"+job.ID)
	cmd := exec.Command("/bin/sh", "-c", ipcmk+" -p "+mode+" -M 4096 -Q -S 1 && echo x >"+file+" && chmod "+mode+" "+file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(job.UID), Gid: uint32(job.UID)}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("ipcmk: %v: %s", err, out)
	}
	h := probe.NewHost("/")
	own := func() (list []jobscan.IPC) {
		all, err := jobscan.IPCs(h)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range all {
			if int(o.Creator) == job.UID {
				list = append(list, o)
			}
		}
		return list
	}
	t.Cleanup(func() {
		for _, o := range own() {
			_ = jobscan.RemoveIPC(h, o)
		}
		_ = os.Remove(file)
	})
	return func() int {
		n := len(own())
		if _, err := os.Lstat(file); err == nil {
			n++
		}
		return n
	}
}

func TestJobLeftoversRemovesObjects(t *testing.T) {
	t.Parallel()
	if !checktest.Alone(t) {
		return
	}
	job := liveJob(t)
	left := leaveObjects(t, job, "0600")
	if n := left(); n != 4 {
		t.Fatalf("%d objects, want 4", n)
	}
	about := func(text, tail string) {
		t.Helper()
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		wants := []string{"1 shared memory segment (4kB): ", "1 message queue: ", "1 semaphore set: ", "1 /dev/shm file (4kB): /dev/shm/nhc-gpu-test-" + job.ID}
		if len(lines) != len(wants) {
			t.Fatalf("%s\nwant %d lines", text, len(wants))
		}
		for i, want := range wants {
			if !strings.Contains(lines[i], want) || !strings.HasSuffix(lines[i], tail) {
				t.Errorf("%s\nwant %s...%s", lines[i], want, tail)
			}
		}
	}
	began := job.Began
	for why, unsure := range map[string]func(){
		"its begin is unknown":            func() { job.Began = time.Time{} },
		"its user has another job, maybe": func() { job.Beside = []int{job.UID} },
	} {
		unsure()
		text, _ := runLeft(t, job, jobLeftovers{End: true, Fail: true})
		if about(text, ", perhaps of job "+job.ID+", which has ended"); left() != 4 || strings.Contains(text, "removed") {
			t.Errorf("%s: %d are left: %s", why, left(), text)
		}
		job.Began, job.Beside = began, nil
	}
	job.Began = time.Now().Add(time.Hour)
	if text, _ := runLeft(t, job, jobLeftovers{End: true}); text != "" || left() != 4 {
		t.Errorf("made before the job: %s", text)
	}
	job.Began = began
	text, findings := runLeft(t, job, jobLeftovers{Fail: true})
	if about(text, ""); left() != 4 || checks.Worst(findings) != checks.Fail || !strings.Contains(text, "job "+job.ID+" of alice has left 1 message queue") {
		t.Errorf("%v, %d are left: %s", checks.Worst(findings), left(), text)
	}
	login := leave(t, &checks.Job{ID: "7"}, job.UID, "echo ready; exec sleep 600")
	if text, _ := runLeft(t, job, jobLeftovers{End: true}); !strings.Contains(text, "perhaps") || left() != 4 {
		t.Errorf("its user has a process: %s", text)
	}
	if err := syscall.Kill(login, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); probe.Alive(probe.NewHost("/"), login) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	text, findings = runLeft(t, job, jobLeftovers{End: true})
	if about(text, "; removed"); left() != 0 || checks.Worst(findings) != checks.Warn {
		t.Errorf("%v, %d are left: %s", checks.Worst(findings), left(), text)
	}
	if text, _ := runLeft(t, job, jobLeftovers{End: true}); text != "" {
		t.Errorf("once more: %s", text)
	}
}

// Objects that other users can access are not removed while other jobs run.
func TestJobLeftoversKeepsWhatIsPublic(t *testing.T) {
	t.Parallel()
	if !checktest.Alone(t) {
		return
	}
	job := liveJob(t)
	job.Beside = []int{4242}
	left := leaveObjects(t, job, "0666")
	text, _ := runLeft(t, job, jobLeftovers{End: true})
	if left() != 4 || strings.Count(text, "perhaps") != 4 {
		t.Errorf("%d are left: %s", left(), text)
	}
	job.Beside = nil
	if text, _ := runLeft(t, job, jobLeftovers{End: true}); left() != 0 || strings.Count(text, "; removed\n") != 4 {
		t.Errorf("%d are left: %s", left(), text)
	}
}

// A file that a process has open is in use.
func TestJobLeftoversKeepsOpenFiles(t *testing.T) {
	t.Parallel()
	if !checktest.Alone(t) {
		return
	}
	job := liveJob(t)
	left := leaveObjects(t, job, "0600")
	f, err := os.Open(filepath.Join("/dev/shm", "nhc-gpu-test-"+job.ID))
	if err != nil {
		t.Fatal(err)
	}
	if text, _ := runLeft(t, job, jobLeftovers{End: true}); left() != 1 || strings.Contains(text, "/dev/shm") {
		t.Errorf("%d are left: %s", left(), text)
	}
	f.Close()
	if text, _ := runLeft(t, job, jobLeftovers{End: true}); left() != 0 || !strings.Contains(text, "/dev/shm") {
		t.Errorf("%d are left: %s", left(), text)
	}
}

// Nothing is removed unless Slurm confirms that the user has no other job on the node: a job
// between two steps of salloc has no process, and may have no record.
func TestJobLeftoversAskSlurm(t *testing.T) {
	t.Parallel()
	if !checktest.Alone(t) {
		return
	}
	job := liveJob(t)
	left := leaveObjects(t, job, "0600")
	squeue := filepath.Join(t.TempDir(), "squeue")
	for _, c := range []struct{ script, want string }{
		{"echo '7|RUNNING|UID'", ""},
		{"echo '7|SUSPENDED|UID'", ""},
		{"echo '7|COMPLETING|UID'", ""},
		{"echo 'JOB|RUNNING|UID'", "; not removed: job " + job.ID + " is running in Slurm"},
		{"echo 'JOB|COMPLETING|UID'; echo '7|CONFIGURING|UID'", ""},
		{"exit 1", "; not removed: " + squeue + " exited with status 1"},
		{"echo 'squeue: error: Invalid user' >&2", "; not removed: " + squeue + " exited with status 0: squeue: error: Invalid user"},
		{"echo nonsense", "; not removed: " + squeue + ` printed "nonsense\n"`},
	} {
		script := strings.NewReplacer("JOB", job.ID, "UID", strconv.Itoa(job.UID)).Replace(c.script)
		if err := checktest.WriteProgram(squeue, "#!/bin/sh\n"+script+"\n"); err != nil {
			t.Fatal(err)
		}
		text, _ := runLeftAsking(t, job, jobLeftovers{End: true}, squeue)
		if left() != 4 || c.want == "" && text != "" || strings.Count(text, ", perhaps of job "+job.ID+", which has ended"+c.want+"\n") != strings.Count(text, "\n") || c.want != "" && text == "" {
			t.Errorf("%s: %d are left: %s", c.script, left(), text)
		}
	}
	if text, _ := runLeftAsking(t, job, jobLeftovers{End: true}, filepath.Join(t.TempDir(), "none")); left() != 4 || strings.Count(text, "; not removed: ") != 4 {
		t.Errorf("no squeue: %d are left: %s", left(), text)
	}
	// Jobs of other users, ended jobs and pending jobs are not a claim.
	script := strings.NewReplacer("JOB", job.ID, "UID", strconv.Itoa(job.UID)).Replace("echo '7|COMPLETED|UID'; echo '8|PENDING|UID'; echo '9|RUNNING|17'; echo 'JOB|COMPLETING|UID'")
	if err := checktest.WriteProgram(squeue, "#!/bin/sh\n"+script+"\n"); err != nil {
		t.Fatal(err)
	}
	if text, _ := runLeftAsking(t, job, jobLeftovers{End: true}, squeue); left() != 0 || strings.Count(text, "; removed\n") != 4 {
		t.Errorf("%d are left: %s", left(), text)
	}
}

// A job can leave more files than one pass takes: the epilog repeats the pass, and the next one
// removes the files that the first had no time for.
func TestJobLeftoversOfManyFiles(t *testing.T) {
	t.Parallel()
	if !checktest.Alone(t) {
		return
	}
	job := liveJob(t)
	const many = 10500
	fill := func() {
		cmd := exec.Command("/bin/sh", "-c", "mkdir /dev/shm/many && cd /dev/shm/many && seq "+strconv.Itoa(many)+" | xargs touch")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(job.UID), Gid: uint32(job.UID)}}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	left := func() int {
		entries, err := os.ReadDir("/dev/shm/many")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	past := t.TempDir()
	run := func(job *checks.Job, end bool, looks int) (text string) {
		h := probe.NewHost("/")
		h.SetPast(past)
		env := &checks.Env{Host: h, Job: job, Vars: map[string]string{"SQUEUE_CMD": "/bin/true"}}
		for _, f := range (&jobLeftovers{End: end, Stuck: stuckAfter, looks: looks}).Run(t.Context(), env) {
			text += f.Message + "\n"
		}
		return text
	}
	fill()
	if text := run(job, false, 0); left() != many || !strings.Contains(text, "alice has more files in /dev/shm than this epilog had time for; the rest stays\n") {
		t.Errorf("%d are left: %s", left(), text)
	}
	if text := run(job, true, 0); left() != 0 || strings.Count(text, "; removed\n") != 2 || strings.Contains(text, "more files") {
		t.Errorf("%d are left: %s", left(), text)
	}
	if err := os.RemoveAll("/dev/shm/many"); err != nil {
		t.Fatal(err)
	}
	fill()
	if text := run(job, true, 1); left() != many-10000 || !strings.Contains(text, "than this epilog had time for; the rest stays until the next epilog\n") {
		t.Errorf("%d are left: %s", left(), text)
	}
	next := liveJob(t)
	next.User = "bob"
	if text := run(next, true, 0); left() != 0 || !strings.Contains(text, "job "+job.ID+" of alice has left 500 /dev/shm files: ") {
		t.Errorf("%d are left: %s", left(), text)
	}
	if text := run(next, true, 0); text != "" {
		t.Errorf("once more: %s", text)
	}
}
