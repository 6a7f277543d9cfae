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

// How an active test ends: by itself, or before, and what counts then of what it has
// found.

// stopped says once why the test is over before its end.
func (r *activeRun) stopped(cause error) {
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

// nameUndone adds to what is said of the time that was up which GPUs were not done, where
// others were: work on one of them may never end.
func (r *activeRun) nameUndone() {
	if len(r.undone) == 0 || len(r.undone) == len(r.gpus) {
		return
	}
	for i := range r.findings {
		if f := &r.findings[i]; f.Code == "active.time" {
			f.Message += "; at work were " + strings.Join(r.undone, ", ")
		}
	}
}

// done judges what was measured, stamps the result and gives the node free.
func (r *activeRun) done() []checks.Finding {
	cause := r.end()
	defer r.release()
	if cause != nil {
		r.failures = true
		r.stopped(cause)
		r.nameUndone()
	}
	judgeStuck(r)
	r.acquitGPUs()
	if errors.Is(cause, errJobCame) || errors.Is(cause, errUserCame) || errors.Is(cause, errNoLook) {
		r.forgetRates()
	}
	r.judge()
	all := append(r.findings, r.left...)
	old := unseen(r, all)
	if r.failures && checks.Worst(all) != checks.Fail { // what was stopped, or could not be told, is no result
		return append(all, old...)
	}
	all = append(all, old...)
	return append(all, keepStamp(r, all)...)
}

// ofRates are the codes, behind that of the test, of what tests themselves say of rates.
var ofRates = []string{".slow", ".pair", ".fades", ".rate"}

// forgetRates drops what was measured beside somebody else, for which no GPU is to
// blame. What was computed wrongly was wrong all the same.
func (r *activeRun) forgetRates() {
	r.measures = nil
	r.findings = slices.DeleteFunc(r.findings, func(f checks.Finding) bool {
		kind, own := strings.CutPrefix(f.Code, r.Code)
		return own && slices.Contains(ofRates, kind)
	})
}

// userEnd is how long the end of a test waits for NVML to say who is on its GPUs.
const userEnd = 3 * time.Second

// end ends the watching, and says why the test was over before its end, nil if it was
// not. Where rates were measured it looks once more: whoever came after the last look
// may have spoiled them.
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
		if err := cmp.Or(r.came, r.newJob()); err != nil {
			return r.endUsers(false, err)
		}
	}
	return r.endUsers(len(r.measures) > 0, cause)
}

// endUsers waits until nobody asks NVML any more, and has it asked once more; cause is
// what it says where nothing else is found. What hangs is left behind.
func (r *activeRun) endUsers(look bool, cause error) error {
	if r.users == nil {
		return cause
	}
	said := make(chan error, 1)
	go func() {
		<-r.users
		var err error
		if look {
			err = r.lastUser()
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

// acquitGPUs takes it back that GPUs are at fault where most of them have met the same
// exception in a kernel, or where most have wrong data and no GPU has them right: then it
// is the kernel, or the driver that has compiled it, and a fault of this program must not
// drain the nodes of a cluster all at once. A GPU that is alone has no peers
// to compare with: the table counts.
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
			f.Message += fmt.Sprintf("; %d of %s have it: not the GPU, but the driver or this program", n, checks.Plural(len(r.gpus), "GPU"))
		}
	}
}
