package active

import (
	"errors"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// How a test finds a GPU on which work never ends, while its peers have done the same.

// errStuck says that work on a GPU does not end.
var errStuck = errors.New("the work on it does not end")

// stuckGPU is a GPU on which work does not end.
type stuckGPU struct {
	gpu   *nvml.GPU
	doing string
	after time.Duration
}

// patience returns how long a piece of work may take before it hangs. A test that has less
// time than usual waits for a quarter of it.
func patience(r *activeRun, test string) time.Duration {
	return min(timeOf(test).Patience, max(r.Bound/4, leastPatience))
}

const leastPatience = 2 * time.Second

// finished notes that a GPU has done the work of the test.
func finished(r *activeRun, g *nvml.GPU) {
	if !slices.Contains(r.did, g) {
		r.did = append(r.did, g)
	}
}

func isStuck(r *activeRun, g *nvml.GPU) bool {
	return slices.ContainsFunc(r.stuck, func(s stuckGPU) bool { return s.gpu == g })
}

// noteStuck notes a GPU on which work does not end. Its context is never closed: that
// would wait for the work. The process is of no further use, and its end takes the
// context along.
func noteStuck(r *activeRun, g *nvml.GPU, doing string, after time.Duration) {
	r.failures = true
	r.stuck = append(r.stuck, stuckGPU{g, doing, after})
	r.env.Host.LeaveBehind()
}

// abandon leaves the contexts of all GPUs open: work that uses several of them never ends,
// and whichever is closed may wait for it.
func abandon(r *activeRun) {
	r.leftOpen = true
	r.env.Host.LeaveBehind()
}

// leaves says that what the test has on a GPU is not given back: a fault of it was found, and
// a GPU that fails may never answer the calls that give it back, which would put a hang in
// the place of the fault. As with work that never ends, the end of the process does it.
func leaves(r *activeRun, g *nvml.GPU) bool {
	faulty := func(f checks.Finding) bool { return f.Severity == checks.Fail && f.Device == checks.GPUDevice(g) }
	if !isStuck(r, g) && !slices.ContainsFunc(r.findings, faulty) {
		return false
	}
	r.env.Host.LeaveBehind()
	return true
}

// judgeStuck reports the GPUs on which work does not end. Where other GPUs have done the
// same work each of them is to blame. Where most have not, the cause may as well be the
// driver or this program.
func judgeStuck(r *activeRun) {
	if len(r.stuck) == 0 {
		return
	}
	others := len(slices.DeleteFunc(slices.Clone(r.did), func(g *nvml.GPU) bool { return isStuck(r, g) }))
	want := func(s stuckGPU) string { return "an end within " + s.after.Round(time.Second/10).String() }
	if others == 0 || 2*len(r.stuck) > len(r.gpus) {
		s := r.stuck[0]
		r.report(checks.Device{}, checks.Finding{Code: "active.stuck", Severity: checks.Unknown, Want: want(s)}, "%s: the work does not end on %d of %s, gpu%d the first", s.doing, len(r.stuck), checks.Plural(len(r.gpus), "GPU"), s.gpu.Index)
		return
	}
	for _, s := range r.stuck {
		r.report(checks.GPUDevice(s.gpu), checks.Finding{Code: "active.stuck", Severity: checks.Fail, Remedy: checks.ResetGPU, Want: want(s)}, "%s: %v; done on %s", s.doing, errStuck, checks.Plural(others, "other GPU"))
	}
}
