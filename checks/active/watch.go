package active

import (
	"cmp"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

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
