package active

import (
	"cmp"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"errors"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// How an active test notices that it is not alone any more, and makes way. Jobs are
// looked for without a library: one that hangs must not hide a job.

// How often a test looks for a job, and for processes on its GPUs.
const (
	jobLook     = 50 * time.Millisecond
	processLook = time.Second
)

// overdue is how long a test that is to stop may take until its process ends, whatever
// it is doing: a job must not wait for a driver.
const overdue = 3 * time.Second

// endProcess ends this process, and with it all that it has on the GPUs. A test of the
// tests puts another in its place.
var endProcess = func(why string) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(1)
}

// stop ends the test for a reason, if it is not over.
func (r *activeRun) stop(why error) {
	r.stopping.Lock()
	defer r.stopping.Unlock()
	if r.ctx.Err() != nil {
		return
	}
	r.cancel(why)
	name := r.Check
	end := endProcess
	r.overdue = time.AfterFunc(overdue, func() {
		end(fmt.Sprintf("%s did not stop within %v: %v", name, overdue, why))
	})
}

// watch ends the test when a job comes.
func (r *activeRun) watch() {
	tick := time.NewTicker(jobLook)
	defer tick.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-tick.C:
		}
		if err := r.newJob(); err != nil {
			r.came = err
			r.stop(err)
			return
		}
	}
}

// newJob says that a job has begun since the last look.
func (r *activeRun) newJob() error {
	if id := r.jobs.New(); id != "" && (r.env.Job == nil || id != r.env.Job.ID) {
		return fmt.Errorf("%w: %s", errJobCame, id)
	}
	return nil
}

// watchUsers begins to look for processes on the GPUs, which end the test. Nobody
// waits for it without a bound: NVML may hang.
func (r *activeRun) watchUsers() {
	if r.Daemon {
		return
	}
	r.users = make(chan struct{})
	go func() {
		defer close(r.users)
		tick := time.NewTicker(processLook)
		defer tick.Stop()
		for {
			select {
			case <-r.ctx.Done():
				return
			case <-tick.C:
			}
			if err := r.newUser(); err != nil {
				r.stop(err)
				return
			}
		}
	}()
}

// newUser says that somebody else is on a GPU of the test, or that two looks in a row could
// not find out: a single error may be of that moment.
func (r *activeRun) newUser() error {
	pid, err := r.visitor()
	if pid != 0 {
		return fmt.Errorf("%w: %d", errUserCame, pid)
	}
	if err == nil {
		r.blind = 0
		return nil
	}
	if r.blind++; r.blind < 2 {
		return nil
	}
	return fmt.Errorf("%w: %w", errNoLook, err)
}

// lastUser is newUser for the end of a test, where no later look makes up for an error.
func (r *activeRun) lastUser() error {
	err := r.newUser()
	if err == nil && r.blind > 0 {
		time.Sleep(jobLook)
		err = r.newUser()
	}
	return err
}

// visitor returns the process of another user of a GPU of the test, 0 if there is none, and
// the first error for which that is not sure. A GPU that is lost has no processes. A process
// that cannot be seen here is in another PID namespace, as this one may be: it
// tells nothing.
func (r *activeRun) visitor() (found int, failed error) {
	n, err := r.again(nvml.GroupProcesses)
	if err != nil {
		return 0, err
	}
	for _, g := range r.gpus {
		if g.Index >= len(n.GPUs) {
			continue
		}
		now := &n.GPUs[g.Index]
		if nvml.IsGPUState(now.Err) || nvml.IsGPUState(now.Processes.Err) {
			continue
		}
		pids, err := []int(nil), now.Processes.Err
		if err == nil {
			pids, err = r.processes(now)
		}
		if err != nil {
			failed = cmp.Or(failed, err)
			continue
		}
		for _, pid := range pids {
			if _, err := unix.Getsid(pid); err == nil && !ours(pid) {
				return pid, nil
			}
		}
	}
	return 0, failed
}

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
