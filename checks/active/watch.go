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

// How an active test notices a new job or another process, and makes way. It looks for jobs
// without any library: a library that hangs must not hide a job.

// Intervals of looks for a job, and for processes on the GPUs.
const (
	jobLook     = 50 * time.Millisecond
	processLook = time.Second
)

// overdue is the time within which a stopped test must end. After it its process ends: a job must
// not wait for a driver.
const overdue = 3 * time.Second

// endProcess ends this process, and with it everything that it has on the GPUs. Tests replace it.
var endProcess = func(why string) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(1)
}

// stop ends the test for a reason, if it still runs.
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

// watch ends the test when a job starts.
func (r *activeRun) watch() {
	tick := time.NewTicker(jobLook)
	defer tick.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-tick.C:
		}
		if err := r.findNewJob(); err != nil {
			r.came = err
			r.stop(err)
			return
		}
	}
}

// findNewJob returns an error if a job has started since the last look.
func (r *activeRun) findNewJob() error {
	if id := r.jobs.New(); id != "" && !isOwn(r, id) {
		return fmt.Errorf("%w: %s", errJobCame, id)
	}
	return nil
}

// watchUsers starts to look for processes on the GPUs; one ends the test. No code waits for it
// without a limit: NVML can hang.
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
			if err := r.findNewUser(); err != nil {
				r.stop(err)
				return
			}
		}
	}()
}

// findNewUser returns an error if another process uses a GPU of the test, or if two looks in a row
// failed: a single error can be transient.
func (r *activeRun) findNewUser() error {
	pid, err := r.findVisitor()
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

// findLastUser is newUser for the end of a test: no later look follows, so it repeats a failed look.
func (r *activeRun) findLastUser() error {
	err := r.findNewUser()
	if err == nil && r.blind > 0 {
		time.Sleep(jobLook)
		err = r.findNewUser()
	}
	return err
}

// findVisitor returns another process that uses a GPU of the test, 0 if there is none, and the first
// error that makes this uncertain. A lost GPU has no processes. An invisible process is in
// another PID namespace, as this one may be, and is ignored.
func (r *activeRun) findVisitor() (found int, failed error) {
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

// How a test finds a GPU that never ends work which its peers have done.

// errStuck reports work on a GPU that does not end.
var errStuck = errors.New("work does not end")

// stuckGPU is a GPU with work that does not end.
type stuckGPU struct {
	gpu   *nvml.GPU
	doing string
	after time.Duration
}

// patience returns how long a piece of work may take before it counts as stuck. A test with less
// time than usual waits for a quarter of it.
func patience(r *activeRun) time.Duration {
	return min(timeOf(timeOfOthers).Patience, max(r.Bound/4, leastPatience))
}

const leastPatience = 2 * time.Second

// markDone notes that a GPU has done the work of the test.
func markDone(r *activeRun, g *nvml.GPU) {
	if !slices.Contains(r.did, g) {
		r.did = append(r.did, g)
	}
}

func isStuck(r *activeRun, g *nvml.GPU) bool {
	return slices.ContainsFunc(r.stuck, func(s stuckGPU) bool { return s.gpu == g })
}

// noteStuck notes a GPU with work that does not end. Its context is never closed, since that would
// wait for the work. The process is of no further use, and its end closes the context.
func noteStuck(r *activeRun, g *nvml.GPU, doing string, after time.Duration) {
	r.failures = true
	r.stuck = append(r.stuck, stuckGPU{g, doing, after})
	r.env.Host.LeaveBehind()
}

// abandon leaves the contexts of all GPUs open: work that uses several of them never ends, and
// closing any of them can wait for it.
func abandon(r *activeRun) {
	r.leftOpen = true
	r.env.Host.LeaveBehind()
}

// keepsOpen reports whether the test leaves its context on a GPU open, because the GPU has a fault:
// a faulty GPU may never answer the calls that free it, and the hang would hide the fault. The
// end of the process frees it, as with work that never ends.
func keepsOpen(r *activeRun, g *nvml.GPU) bool {
	faulty := func(f checks.Finding) bool { return f.Severity == checks.Fail && f.Device == checks.GPUDevice(g) }
	if !isStuck(r, g) && !slices.ContainsFunc(r.findings, faulty) {
		return false
	}
	r.env.Host.LeaveBehind()
	return true
}

// judgeStuck reports the GPUs with work that does not end. They are to blame if other GPUs have
// done the same work. If most have not, the driver or nhc-gpu can be the cause.
func judgeStuck(r *activeRun) {
	if len(r.stuck) == 0 {
		return
	}
	others := len(slices.DeleteFunc(slices.Clone(r.did), func(g *nvml.GPU) bool { return isStuck(r, g) }))
	want := func(s stuckGPU) string { return "an end within " + s.after.Round(time.Second/10).String() }
	if others == 0 || 2*len(r.stuck) > len(r.gpus) {
		s := r.stuck[0]
		r.report(checks.Device{}, checks.Finding{Code: "active.stuck", Severity: checks.Unknown, Want: want(s)}, "%s: work does not end on %d of %s (first: gpu%d)", s.doing, len(r.stuck), checks.Plural(len(r.gpus), "GPU"), s.gpu.Index)
		return
	}
	for _, s := range r.stuck {
		r.report(checks.GPUDevice(s.gpu), checks.Finding{Code: "active.stuck", Severity: checks.Fail, Remedy: checks.ResetGPU, Want: want(s)}, "%s: %v; done on %s", s.doing, errStuck, checks.Plural(others, "other GPU"))
	}
}
