package jobscan

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// called starts a process of a user with an arbitrary command line.
func called(t *testing.T, program, name string, uid uint32) int {
	t.Helper()
	cmd := exec.Command(program, "600")
	cmd.Args[0] = name
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, NoSetGroups: true}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// With real processes: a process of an ordinary user named slurmstepd, even by a setuid program, is
// not a step of a job; one of root is.
func TestUsersAreNoSlurmstepd(t *testing.T) {
	need.Root(t, "processes of several users")
	const user = 61234
	sleep, err := filepath.EvalSymlinks(need.Program(t, "sleep"))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	setuid := filepath.Join(dir, "slurmstepd")
	copyFile(t, sleep, setuid)
	if err := os.Chmod(setuid, 0o4755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Mkdir(link, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(setuid, filepath.Join(link, "slurmstepd")); err != nil {
		t.Fatal(err)
	}
	plain := filepath.Join(dir, "plain", "slurmstepd")
	if err := os.Mkdir(filepath.Dir(plain), 0o755); err != nil {
		t.Fatal(err)
	}
	copyFile(t, sleep, plain)
	watch, err := WatchJobs(probe.NewHost("/"), "")
	if err != nil {
		t.Fatal(err)
	}
	users := []int{
		called(t, plain, "slurmstepd: [999000901.batch]", user),
		called(t, setuid, "slurmstepd: [999000902.batch]", user),
		called(t, filepath.Join(link, "slurmstepd"), "slurmstepd: [999000903.0]", user),
	}
	own := called(t, plain, "slurmstepd: [999000904.batch]", 0)
	h := probe.NewHost("/")
	for _, pid := range append(slices.Clone(users), own) {
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) { // until exec
			if exe, _ := os.Readlink("/proc/" + strconv.Itoa(pid) + "/exe"); filepath.Base(exe) == "slurmstepd" {
				break
			}
			if time.Now().After(end) {
				t.Fatal("a process has not started")
			}
		}
		if got, want := probe.RootsOwn(h, pid), pid == own; got != want {
			t.Errorf("RootsOwn(%d) = %v, want %v", pid, got, want)
		}
	}
	jobs, err := RunningJobs(h)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"999000901", "999000902", "999000903"} {
		if jobs[id] {
			t.Errorf("job %s of a user's making runs", id)
		}
		if steps, err := StepsOf(h, JobRef{ID: id}); err != nil || len(steps) > 0 {
			t.Errorf("job %s has steps: %q, %v", id, steps, err)
		}
	}
	if !jobs["999000904"] {
		t.Error("root's slurmstepd is not seen")
	}
	if steps, err := StepsOf(h, JobRef{ID: "999000904"}); err != nil || len(steps) != 1 || !strings.HasPrefix(steps[0], "batch]") {
		t.Errorf("steps of root's job: %q, %v", steps, err)
	}
	for end := time.Now().Add(30 * time.Second); ; {
		job := watch.New()
		if job == "999000904" {
			break
		}
		if strings.HasPrefix(job, "99900090") || time.Now().After(end) {
			t.Fatalf("the watch says %q, want the job of root's slurmstepd", job)
		}
		if job != "" { // of another suite on this machine: it may have hidden ours
			if watch, err = WatchJobs(h, ""); err != nil {
				t.Fatal(err)
			}
			called(t, plain, "slurmstepd: [999000904.batch]", 0)
		}
	}
	s, err := scanJobs(h, JobRef{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, pid := range users {
		if job, err := s.findStepAbove(pid); job != "" || err != nil {
			t.Errorf("process %d passes for a step of job %s", pid, job)
		}
	}
	if job, err := s.findStepAbove(own); job != "999000904" || err != nil {
		t.Errorf("root's step is of job %q", job)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := probetest.WriteProgram(to, data); err != nil {
		t.Fatal(err)
	}
}
