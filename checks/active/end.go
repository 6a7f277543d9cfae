package active

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// How an active test ends, and which of its findings then count.

// reportStop reports once why the test stopped early.
func (r *activeRun) reportStop(cause error) {
	for i := range r.findings {
		if c := r.findings[i].Code; c == "active.stopped" || c == "active.time" {
			return
		}
	}
	f := checks.Finding{Code: "active.stopped", Severity: checks.Skip}
	switch {
	case errors.Is(cause, errNoLook):
		f.Severity = checks.Unknown
	case errors.Is(cause, errActiveTime) || errors.Is(cause, context.DeadlineExceeded):
		f = checks.Finding{Code: "active.time", Severity: checks.Unknown, Want: "at most " + r.Bound.String()}
	}
	r.report(checks.Device{}, f, "stopped: %v", cause)
}

// nameUndone adds the GPUs that had not finished to the finding about the time limit, if others
// had: work on one of them may never end.
func (r *activeRun) nameUndone() {
	if len(r.undone) == 0 || len(r.undone) == len(r.gpus) {
		return
	}
	for i := range r.findings {
		if f := &r.findings[i]; f.Code == "active.time" {
			f.Message += "; not finished: " + strings.Join(r.undone, ", ")
		}
	}
}

// done judges the measurements, stores the result and releases the node.
func (r *activeRun) done() []checks.Finding {
	cause := r.end()
	defer r.release()
	if cause != nil {
		r.failures = true
		r.reportStop(cause)
		r.nameUndone()
	}
	judgeStuck(r)
	r.acquitGPUs()
	if errors.Is(cause, errJobCame) || errors.Is(cause, errUserCame) || errors.Is(cause, errNoLook) {
		r.forgetRates()
	}
	r.judge()
	all := append(r.findings, r.left...)
	old := findUnseen(r, all)
	if r.failures && checks.Worst(all) != checks.Fail { // a stopped test, or one without an answer, has no result
		return append(all, old...)
	}
	all = append(all, old...)
	return append(all, keepStamp(r, all)...)
}

// ofRates are the suffixes of codes about rates.
var ofRates = []string{".slow", ".pair", ".fades", ".rate"}

// forgetRates drops rates that were measured while another process used the GPUs: no GPU is to
// blame for them. Wrong results remain findings.
func (r *activeRun) forgetRates() {
	r.measures = nil
	r.findings = slices.DeleteFunc(r.findings, func(f checks.Finding) bool {
		kind, own := strings.CutPrefix(f.Code, r.Code)
		return own && slices.Contains(ofRates, kind)
	})
}

// userEnd is how long the end of a test waits for NVML's list of processes.
const userEnd = 3 * time.Second

// end stops the watching and returns why the test stopped early, nil if it did not. If rates were
// measured it looks for processes once more, since one that started after the last look can have
// disturbed them.
func (r *activeRun) end() error {
	r.cancel(errActiveDone)
	r.watching.Wait()
	r.stopping.Lock()
	if r.overdue != nil {
		r.overdue.Stop()
	}
	r.stopping.Unlock()
	cause := context.Cause(r.ctx)
	if errors.Is(cause, errActiveDone) {
		cause = nil
	}
	if errors.Is(cause, errJobCame) || errors.Is(cause, errUserCame) {
		return r.endUsers(false, cause)
	}
	if len(r.measures) > 0 {
		if err := cmp.Or(r.came, r.findNewJob()); err != nil {
			return r.endUsers(false, err)
		}
	}
	return r.endUsers(len(r.measures) > 0, cause)
}

// endUsers waits until no goroutine calls NVML, and looks for processes once more; it returns
// cause if it finds none. A call that hangs is abandoned.
func (r *activeRun) endUsers(look bool, cause error) error {
	if r.users == nil {
		return cause
	}
	said := make(chan error, 1)
	go func() {
		<-r.users
		var err error
		if look {
			err = r.findLastUser()
		}
		said <- err
	}()
	select {
	case err := <-said:
		if err != nil {
			return err
		}
	case <-time.After(userEnd):
		r.env.Host.LeaveBehind()
		if look {
			return errNoLook
		}
	}
	return cause
}

// acquitGPUs clears GPUs of a fault if most of them met the same exception in a kernel, or if
// most have wrong data and none has correct data. Then the kernel, or the driver that compiled
// it, is the cause, and a bug of nhc-gpu must not drain all nodes of a cluster at once. A single
// GPU has no peers: cudaerrors.toml decides.
func (r *activeRun) acquitGPUs() {
	on := map[string]map[checks.Device]bool{}
	wrongData := func(f *checks.Finding) bool { return f.Code == r.wrongData }
	exception := func(f *checks.Finding) bool {
		number, ok := strings.CutPrefix(f.Code, cudaErrorCode+".7")
		return (ok && len(number) == 2 || wrongData(f)) && f.Severity == checks.Fail && f.Device.Kind == "gpu"
	}
	right := func(code string) bool {
		return slices.ContainsFunc(r.did, func(g *nvml.GPU) bool { return !on[code][checks.GPUDevice(g)] })
	}
	for i := range r.findings {
		if f := &r.findings[i]; exception(f) {
			if on[f.Code] == nil {
				on[f.Code] = map[checks.Device]bool{}
			}
			on[f.Code][f.Device] = true
		}
	}
	for i := range r.findings {
		f := &r.findings[i]
		if n := len(on[f.Code]); exception(f) && n > 1 && 2*n > len(r.gpus) && (!wrongData(f) || !right(f.Code)) {
			r.failures = true
			f.Severity, f.Remedy = checks.Unknown, checks.NoRemedy
			f.Message += fmt.Sprintf("; on %d of %s: the cause is the driver or nhc-gpu, not the GPU", n, checks.Plural(len(r.gpus), "GPU"))
		}
	}
}
