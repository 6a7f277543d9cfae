package active

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// stranger is a process of another user on a GPU.
func stranger(r *activeRun, pid int) {
	r.nvml.Lock()
	defer r.nvml.Unlock()
	n, err := nvml.AskAgain(r.env.Host, nvml.GroupProcesses, nil)
	if err == nil {
		n.GPUs[3].Processes = nvml.Known([]nvml.GPUProcess{{PID: pid}})
	}
}

// unlisted makes NVML fail to list the processes of a GPU.
func unlisted(r *activeRun, err error) {
	r.nvml.Lock()
	defer r.nvml.Unlock()
	n, asked := nvml.AskAgain(r.env.Host, nvml.GroupProcesses, nil)
	if asked == nil {
		n.GPUs[3].Processes = nvml.Reading[[]nvml.GPUProcess]{Err: err}
	}
}

// A single failed look for processes does not stop a test.
func TestActiveLooksTwiceForProcesses(t *testing.T) {
	t.Parallel()
	env, _ := trialEnv(t, nil)
	n, err := nvml.AskAgain(env.Host, nvml.GroupProcesses, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &activeRun{env: env}
	for i := range n.GPUs {
		r.gpus = append(r.gpus, &n.GPUs[i])
	}
	listed := n.GPUs[3].Processes
	for i, fails := range []bool{true, false, true, true} {
		if n.GPUs[3].Processes = listed; fails {
			n.GPUs[3].Processes = nvml.Reading[[]nvml.GPUProcess]{Err: errors.New("unknown error")}
		}
		if err := r.findNewUser(); errors.Is(err, errNoLook) != (i == 3) {
			t.Errorf("look %d: %v", i, err)
		}
	}
}

// slowGPU records a rate that is too low, and a wrong word.
func slowGPU(r *activeRun) {
	slowTrial("", 0, true).do(r)
	for _, kind := range ofRates {
		r.report(checks.GPUDevice(r.gpus[5]), checks.Finding{Code: "trial" + kind, Severity: checks.Fail}, "slow by itself")
	}
	r.report(checks.GPUDevice(r.gpus[5]), checks.Finding{Code: "trial.bit", Severity: checks.Fail}, "a wrong bit")
}

const bitText = "fail trial.bit: check_trial:  gpu5 0000:15:00.0: a wrong bit"

// Rates measured while another process uses the GPUs blame no GPU and are not a result; wrong
// data remain a fault.
func TestActiveForgetsRatesBesideOthers(t *testing.T) {
	t.Parallel()
	const came = "skip active.stopped: check_trial:  stopped: a process opened a GPU: 1"
	for name, c := range map[string]struct {
		do   func(r *activeRun, root string)
		want []string
	}{
		"a process that was seen": {func(r *activeRun, _ string) {
			slowGPU(r)
			stranger(r, 1)
			awaitEnd(r)
		}, []string{bitText, came}},
		"a process at the end": {func(r *activeRun, _ string) {
			slowGPU(r)
			stranger(r, 1)
		}, []string{bitText, came}},
		"a job that was seen": {func(r *activeRun, root string) {
			slowGPU(r)
			putFile(t, root, "past/job-98.json", "{}")
			awaitEnd(r)
		}, []string{bitText, "skip active.stopped: check_trial:  stopped: a job started on the node: 98"}},
		"a job at the end": {func(r *activeRun, root string) {
			slowGPU(r)
			putFile(t, root, "past/job-98.json", "{}")
		}, []string{bitText, "skip active.stopped: check_trial:  stopped: a job started on the node: 98"}},
		"a process at the end, and nothing wrong": {func(r *activeRun, _ string) {
			slowTrial("", 0, true).do(r)
			stranger(r, 1)
		}, []string{came}},
		"NVML that hangs at the end": {func(r *activeRun, _ string) {
			slowTrial("", 0, true).do(r)
			r.nvml.Lock()
		}, []string{"unknown active.stopped: check_trial:  stopped: NVML does not report whether a process opened a GPU"}},
		"process lists that can no longer be read": {func(r *activeRun, _ string) {
			slowTrial("", 0, true).do(r)
			unlisted(r, errors.New("unknown error"))
			awaitEnd(r)
		}, []string{"unknown active.stopped: check_trial:  stopped: NVML does not report whether a process opened a GPU: unknown error"}},
		"process lists that cannot be read at the end": {func(r *activeRun, _ string) {
			slowTrial("", 0, true).do(r)
			unlisted(r, errors.New("unknown error"))
		}, []string{"unknown active.stopped: check_trial:  stopped: NVML does not report whether a process opened a GPU: unknown error"}},
		"a GPU that is lost at the end": {func(r *activeRun, _ string) {
			slowTrial("", 0, true).do(r)
			unlisted(r, &nvml.Error{Call: "nvmlDeviceGetComputeRunningProcesses(3)", Code: 15})
		}, []string{slowText}},
		"its own time": {func(r *activeRun, _ string) {
			slowTrial("", 0, true).do(r)
			r.cancel(errActiveTime)
		}, []string{"unknown active.time: check_trial:  stopped: time limit reached, want at most 10s", slowText}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, root := trialEnv(t, nil)
			findings := (&trial{do: func(r *activeRun) { c.do(r, root) }}).Run(t.Context(), env)
			wantBrief(t, checktest.Scenario{}.WithoutRates(findings), c.want...)
			if blocked, want := env.Host.Blocked(), name == "NVML that hangs at the end"; blocked != want {
				t.Errorf("the worker is of no further use: %v, want %v", blocked, want)
			}
		})
	}
}

// A job is detected although NVML hangs, and the test does not wait for NVML.
func TestActiveSeesAJobBehindNVML(t *testing.T) {
	t.Parallel()
	env, root := trialEnv(t, nil)
	findings := (&trial{bound: time.Minute, do: func(r *activeRun) {
		r.nvml.Lock()                           // as if a call had it that does not come back
		time.Sleep(processLook + processLook/2) // until it is asked who is on the GPUs
		putFile(t, root, "past/job-98.json", "{}")
		awaitEnd(r)
		r.reportFailure(r.gpus[0], "copy", context.Cause(r.ctx))
	}}).Run(t.Context(), env)
	wantBrief(t, findings, "skip active.stopped: check_trial:  stopped: a job started on the node: 98")
	if !env.Host.Blocked() {
		t.Error("the worker goes on beside a call that hangs")
	}
}
