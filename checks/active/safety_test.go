package active

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// A process on a GPU is the worker's own if the worker started it, and never because it shares a
// session with init.
func TestOurs(t *testing.T) {
	const asWorker = "NHC_TEST_AS_WORKER"
	if os.Getenv(asWorker) == "" {
		t.Parallel()
		if ours(1) || ours(os.Getppid()) {
			t.Error("init or the parent is ours")
		}
		worker := exec.Command(os.Args[0], "-test.run=^TestOurs$")
		worker.Env = append(os.Environ(), asWorker+"=1")
		worker.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if out, err := worker.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	child := exec.Command("cat")
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	child.Stdout = new(strings.Builder)
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	for pid, want := range map[int]bool{os.Getpid(): true, child.Process.Pid: true, 1: false, os.Getppid(): false} {
		if got := ours(pid); got != want {
			t.Errorf("process %d of %d: ours is %v, want %v", pid, os.Getpid(), got, want)
		}
	}
	if err := stdin.Close(); err != nil {
		t.Error(err)
	}
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
}

// In a prolog nothing loads the CPUs, the memory or a disk that other jobs may use: a job without
// a GPU on a node without one does not prove that it has the whole node.
func TestActiveKeepsOffSharedNodes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		job      checks.Job
		gpus     bool
		excluded bool // gpu7
		want     string
	}{
		"a job with one core":                {job: checks.Job{Part: true}, want: "the job does not have the whole node"},
		"no statement":                       {want: "it is unknown whether the job has the whole node"},
		"no statement, with GPUs":            {gpus: true, want: "it is unknown whether the job has the whole node"},
		"all GPUs, but not all of the node":  {job: checks.Job{Part: true}, gpus: true, want: "the job does not have the whole node"},
		"the whole node":                     {job: checks.Job{Whole: true}},
		"the whole node, with GPUs":          {job: checks.Job{Whole: true}, gpus: true},
		"all GPUs but an excluded one":       {job: checks.Job{Whole: true}, gpus: true, excluded: true},
		"its epilog, which waits for others": {job: checks.Job{Part: true, Ended: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, root := trialEnv(t, nil)
			if c.excluded {
				putFile(t, root, "proc/driver/nvidia/gpus/"+fakenvml.Address(7)+"/information", "Device Minor: \t 7\nGPU Excluded:\t Yes\n")
			}
			if !c.gpus {
				s := checktest.Scenario{Files: map[string]string{boot: "b\n", "proc/1/cmdline": "/sbin/init\x00"}}
				env.Host = probe.NewHost(s.Build(t))
				env.Host.SetPast("/past")
			} else {
				for i := range map[bool]int{false: 8, true: 7}[c.excluded] {
					c.job.GPUs = append(c.job.GPUs, checks.JobGPU{Minor: i})
				}
			}
			c.job.ID = "7"
			env.Job = &c.job
			ran := false
			findings := (&trial{plain: true, do: func(*activeRun) { ran = true }}).Run(t.Context(), env)
			if c.want == "" {
				wantBrief(t, findings)
			} else {
				wantBrief(t, findings, "skip active.shared: check_trial:  not run in this prolog: "+c.want)
			}
			if ran != (c.want == "") {
				t.Errorf("it was run: %v", ran)
			}
		})
	}
}

// A test ends before the run, so that it can clean up, if at least half of its time is left.
func TestActiveLeavesTimeToCleanUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ left, bound, least, most time.Duration }{
		"no end":       {0, 25 * time.Second, 24 * time.Second, 25 * time.Second},
		"time enough":  {time.Minute, 25 * time.Second, 24 * time.Second, 25 * time.Second},
		"a little":     {127 * time.Second, 125 * time.Second, 110 * time.Second, 122 * time.Second},
		"no more":      {131 * time.Second, 125 * time.Second, 115 * time.Second, 125 * time.Second},
		"a short test": {14 * time.Second, 9 * time.Second, 4 * time.Second, 9 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, _ := trialEnv(t, nil)
			ctx := t.Context()
			if c.left > 0 {
				ctx = checks.WithDeadline(ctx, time.Now().Add(c.left))
			}
			wantBrief(t, (&trial{bound: c.bound, do: func(r *activeRun) {
				end, _ := r.ctx.Deadline()
				if left := time.Until(end); left < c.least || left > c.most {
					t.Errorf("it has %v, want %v to %v", left, c.least, c.most)
				}
			}}).Run(ctx, env))
		})
	}
}
