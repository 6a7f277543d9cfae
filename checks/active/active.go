// Package active has the tests that load the hardware: copies, matrix products, memory patterns,
// NCCL, perftest, DCGM's diagnostics. They run only while no job runs.
package active

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/gpu"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// This file is the frame of all active tests. An active test uses only devices that no process
// uses. One runs at a time, for a bounded time, and it stops at once when a job starts. The frame
// judges the measurements and stores a stamp of the result, so that a prolog need not measure
// again.

func init() {
	checks.RegisterAdvice(func() map[string]string {
		return map[string]string{
			"active.busy":    "Nothing to repair: an active test waits until no job runs on the node and no process uses the GPUs. On a drained node run it by hand: nhc-gpu --check -n nhc-active -t 900. If a job has ended and its epilog did not run, see /usr/share/doc/nhc-gpu/docs/active.md.",
			"active.shared":  "Nothing to repair: a prolog runs active tests only for a job that certainly has the whole node. With --max-age a prolog uses the last result instead.",
			"active.held":    "Another active test is running: wait for it, or find it with ps (nhc-gpu). If there is none, the state file is on a file system that keeps stale locks: see /var/lib/nhc-gpu/active.lock.",
			"active.time":    "Give the run more time (TIMEOUT in /etc/sysconfig/nhc-active for the timer, -t 900 by hand), or the test less (-t). slurmd ends a health check after 60 seconds.",
			"active.stale":   "Run the test while the node is idle: a line with the same arguments in nhc-active.conf, then systemctl start nhc-gpu-active.service; see /usr/share/doc/nhc-gpu/docs/active.md.",
			"active.stopped": "Nothing to repair: a job started, a process opened a GPU, or the run was ended. The next run that is allowed to repeats the test. If NVML does not answer or returns errors, see dmesg and check_gpu_count.",
			"active.left":    "Nothing, if a process uses the GPU, MIG splits it, or its compute mode is prohibited: the test then does not touch it. See nvidia-smi.",
			"active.stuck":   "Work that other GPUs finish at once does not end on this one: see dmesg for Xid errors. " + checks.ResetAdvice + " If the fault returns, replace the GPU. If the work ends on no GPU, or copies end between no two GPUs, see the driver, Fabric Manager, the IOMMU and ACS first.",
			"active.few":     "Nothing to repair: the test needs more GPUs than are free on this node.",
			"active.past":    "The result of an active test cannot be stored: see the directory /var/lib/nhc-gpu.",
			"cuda.library":   "libcuda.so.1 is part of NVIDIA's driver: install its compute libraries (libcuda1, nvidia-driver-cuda) and run ldconfig. CUDA_LIBRARY=PATH names another file; nhc-gpu topo lists the paths that were searched.",
			"cuda.error":     "The message contains the error of CUDA or of the node: see dmesg for NVRM, and check_gpu_xid.",
			"cuda.gpu":       "NVML lists a GPU that CUDA does not: see nvidia-smi, the device nodes in /dev and the cgroup of this process.",
		}
	})
}

// active is embedded in every active test.
type active struct {
	MaxAge time.Duration `long:"max-age" toml:"max_age"` // a stored result of at most this age is used instead of a run; 0: always run
}

// Freshness returns the maximum age of a stored result that can replace a run, 0 if none can.
func (a *active) Freshness() time.Duration { return a.MaxAge }

// activeTest describes a test that is about to run.
type activeTest struct {
	Check string         // name of the check, for messages
	Code  string         // prefix of its codes: "gpu.gemm"
	Bound time.Duration  // time limit
	Least int            // number of GPUs that it needs; 0 means 1
	Of    checks.Bounded // the check itself; its parameters distinguish stored results

	// Daemon is true if a daemon of the node runs the test: a new process on the GPUs can then be
	// the daemon's and does not stop the test. A job does.
	Daemon bool

	ofGPUs bool // set by beginGPUs
}

// activeRun is an active test that runs.
type activeRun struct {
	activeTest

	ctx      context.Context // done when a job starts, when a process opens a GPU, or when the time is up
	env      *checks.Env
	gpus     []*nvml.GPU // the GPUs that the test may load
	findings []checks.Finding

	measures []measure
	left     []checks.Finding // one for each skipped GPU
	undone   []string         // GPUs that had not finished when the test stopped
	stuck    []stuckGPU
	did      []*nvml.GPU // GPUs that have finished the work, see markDone
	leftOpen bool        // see abandon
	failures bool        // something went wrong: the measurements are not a result

	wrongData string // a code that every GPU gets on its own but that a bad kernel could cause on all; see acquitGPUs

	cancel   context.CancelCauseFunc
	release  func()
	watching sync.WaitGroup
	came     error         // the new job that watch saw, for the code that waits for watch
	users    chan struct{} // closed when no goroutine looks for processes any more; nil: none ever did
	blind    int           // failed looks for processes in a row; only the goroutine that looks uses it
	jobs     *jobscan.JobWatch
	within   string // the job in which this program runs, such as that of a sweep; "": none
	stopping sync.Mutex
	overdue  *time.Timer                              // ends the process; nil: the test was not stopped
	what     atomic.Pointer[string]                   // see setOperation
	numbers  atomic.Pointer[map[string]checks.Device] // the GPUs by CUDA's ordinals, which differ from NVML's indexes
	nvml     sync.Mutex                               // guards calls of NVML, which allow one goroutine
}

// The reasons why a test stops early.
var (
	errActiveDone = errors.New("test finished")
	errActiveTime = errors.New("time limit reached")
	errJobCame    = errors.New("a job started on the node")
	errUserCame   = errors.New("a process opened a GPU")
	errNoLook     = errors.New("NVML does not report whether a process opened a GPU")
)

// begin claims the node for a test. It returns nil if the test may not run; the findings then
// have the reason.
func (a *active) begin(ctx context.Context, env *checks.Env, t activeTest) (*activeRun, []checks.Finding) {
	r := &activeRun{activeTest: t, env: env}
	env.At("read /proc")
	var err error
	if r.jobs, err = jobscan.WatchJobs(env.Host, jobRecords); err != nil { // first of all, so that no job starts unnoticed
		return nil, checks.Unreadable(err)
	}
	r.within, _ = jobscan.JobOf(env.Host, os.Getpid()) // a test waits for no job that has started it
	if f := findRefusal(ctx, r); f != nil {
		return nil, reportRefusal(r, *f)
	}
	release, err := probe.Claim(env.Host, "active")
	if err != nil {
		f := checks.Finding{Code: "active.held", Severity: checks.Unknown}.Describe(t.Check, "cannot run: another active test is running")
		if !errors.Is(err, probe.ErrClaimed) {
			f = f.Describe(t.Check, "cannot run: %v", err)
		}
		return nil, []checks.Finding{f}
	}
	r.release = release
	shorten(ctx, r)
	bounded, stop := context.WithTimeoutCause(ctx, r.Bound, errActiveTime)
	r.ctx, r.cancel = context.WithCancelCause(bounded)
	context.AfterFunc(r.ctx, stop)
	r.watching.Go(r.watch)
	return r, nil
}

// beginGPUs claims the node for a test of its GPUs.
func (a *active) beginGPUs(ctx context.Context, env *checks.Env, t activeTest) (*activeRun, []checks.Finding) {
	s, findings := gpu.AskNVML(env, t.Check, nvml.GroupProcesses|nvml.GroupModes)
	if s == nil {
		return nil, findings
	}
	t.ofGPUs = true
	r, findings := a.begin(ctx, env, t)
	if r == nil {
		return nil, findings
	}
	n, err := r.again(nvml.GroupProcesses | nvml.GroupModes) // the snapshot of the run can be old
	if err != nil {
		r.reportFailure(nil, "cannot ask NVML", err)
		return nil, r.done()
	}
	s.NVML = n
	r.chooseGPUs(s)
	if len(r.gpus) >= max(t.Least, 1) {
		r.watchUsers()
		return r, nil
	}
	if len(r.left) > 0 {
		r.findings = append(r.findings, reportRefusal(r, r.left[0])...)
		r.left = r.left[1:]
	} else {
		r.findings = append(r.findings, checks.Finding{Code: "active.few", Severity: checks.Skip}.Describe(t.Check, "needs %s, %d available", checks.Plural(t.Least, "GPU"), len(r.gpus)))
	}
	r.failures = true
	return nil, r.done()
}

// chooseGPUs selects the GPUs that the test may load.
func (r *activeRun) chooseGPUs(s *gpu.GPUs) {
	r.hideSplitGPUs(s.NVML.GPUs)
	for i := range s.NVML.GPUs {
		g := &s.NVML.GPUs[i]
		why, code := r.skipReason(g)
		if why == "" {
			r.gpus = append(r.gpus, g)
			continue
		}
		f := checks.Finding{Code: code, Severity: checks.Skip, Device: checks.GPUDevice(g), Got: why}
		if code == "gpu.error" {
			f.Severity = checks.Unknown
		}
		r.left = append(r.left, f.Phrase(r.Check, "%s: skipped: %s", f.Device, why))
	}
}

// hideSplitGPUs restricts CUDA to the GPUs that MIG does not split, if it may split any.
func (r *activeRun) hideSplitGPUs(gpus []nvml.GPU) {
	var whole []string
	for i := range gpus {
		if g := &gpus[i]; g.Err == nil && g.UUID.Known && !mayBeSplit(*g) {
			whole = append(whole, g.UUID.Value)
		}
	}
	if slices.ContainsFunc(gpus, mayBeSplit) {
		cuda.Only(r.env.Host, whole)
	}
}

// mayBeSplit reports whether MIG splits a GPU, or may split it.
func mayBeSplit(g nvml.GPU) bool { return g.Modes.MIG.Value || g.Modes.MIG.Err != nil }

// skipReason returns the reason to skip a GPU, "" if the test may load it.
func (r *activeRun) skipReason(g *nvml.GPU) (why, code string) {
	const left = "active.left"
	switch {
	case g.Err != nil:
		return fmt.Sprintf("cannot query it: %v", g.Err), "gpu.error"
	case g.Processes.Err != nil:
		return fmt.Sprintf("cannot list its processes: %v", g.Processes.Err), "gpu.error"
	case !gpusOfJob(r, g):
		return "it does not belong to the job", left
	case g.Modes.MIG.Err != nil:
		return fmt.Sprintf("cannot read its MIG mode: %v", g.Modes.MIG.Err), "gpu.error"
	case g.Modes.MIG.Value:
		return "MIG splits it", left
	case g.Modes.Compute.Value == "prohibited":
		return "its compute mode is prohibited", left
	}
	pids, err := r.processes(g)
	if err != nil {
		return fmt.Sprintf("cannot list its processes: %v", err), "gpu.error"
	}
	for _, pid := range pids {
		if !ours(pid) {
			return fmt.Sprintf("process %d uses it", pid), left
		}
	}
	return "", ""
}

// processes returns the processes on a GPU. NVML of drivers 535.43 to 535.97 has no readable
// list. Then these are the processes that use CUDA and have the GPU's device node open.
func (r *activeRun) processes(g *nvml.GPU) (pids []int, err error) {
	if !g.Processes.Known {
		if !g.Minor.Known {
			return nil, errors.New("NVML lists no processes, and the number of its device node is unknown")
		}
		return cuda.Processes(r.env.Host, g.Minor.Value)
	}
	for _, p := range g.Processes.Value {
		pids = append(pids, p.PID)
	}
	return pids, nil
}

// at names the next operation, for the report of a hang and for progress output.
func (r *activeRun) at(format string, args ...any) {
	r.setOperation(format, args...)
	r.env.At(format, args...)
}

// setOperation names the operation that the next calls of CUDA belong to: "gpu3: copy from the host".
// Unlike at, goroutines of a test may call it.
func (r *activeRun) setOperation(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	r.what.Store(&what)
}

// recordCall receives the name of each call of CUDA, one at a time. It adds the operation, and the
// GPU if the call is about one.
func (r *activeRun) recordCall(call string) {
	if numbers := r.numbers.Load(); numbers != nil {
		_, number, _ := strings.Cut(call, "(")
		if d, ok := (*numbers)[strings.TrimSuffix(number, ")")]; ok {
			call += " of " + d.String()
		}
	}
	if what := r.what.Load(); what != nil {
		call = *what + ": " + call
	}
	r.env.At("%s", call)
}

// report adds a finding about a device; the zero Device is the node.
func (r *activeRun) report(d checks.Device, f checks.Finding, format string, args ...any) {
	r.findings = append(r.findings, f.Report(r.Check, d, format, args...))
}

// record records a measurement; done judges it.
func (r *activeRun) record(m measure) { r.measures = append(r.measures, m) }

// again queries NVML again, from a goroutine that watches the GPUs while they work.
func (r *activeRun) again(groups nvml.Group) (*nvml.Snapshot, error) {
	r.nvml.Lock()
	defer r.nvml.Unlock()
	return nvml.AskAgain(r.env.Host, groups, nil)
}

// reportFailure reports an error on a GPU, or on the node if g is nil. A stopped test reports the stop
// once and blames no GPU.
func (r *activeRun) reportFailure(g *nvml.GPU, doing string, err error) {
	r.failures = true
	if g != nil && errors.Is(err, errStuck) {
		noteStuck(r, g, doing, patience(r))
		return
	}
	if cause := context.Cause(r.ctx); cause != nil {
		r.reportStop(cause)
		if g != nil {
			r.undone = append(r.undone, checks.GPUDevice(g).String())
		}
		return
	}
	r.reportError(g, doing, err)
}

// reportError reports an error of a GPU, or of the node if g is nil, that the end of the test has not caused.
func (r *activeRun) reportError(g *nvml.GPU, doing string, err error) {
	r.failures = true
	var d checks.Device
	if g != nil {
		d = checks.GPUDevice(g)
	}
	f := checks.Finding{Code: cudaErrorCode, Severity: checks.Unknown}
	if e, ok := errors.AsType[*cuda.Error](err); ok {
		f.Severity, f.Remedy, _ = cudaFinding(e)
		f.Code = cudaCode(e)
	}
	if fatal(err) {
		r.env.Host.LeaveBehind() // see openGPU
	}
	r.report(d, f, "%s: %v", doing, err)
}

// openCUDA opens CUDA. If that fails it reports the reason and returns false.
func (r *activeRun) openCUDA() (*cuda.Driver, bool) {
	c, err := cuda.Open(r.env.Host, r.recordCall)
	if err == nil {
		numbers := map[string]checks.Device{}
		for _, g := range r.gpus {
			if d := findCUDAGPU(c, g); d != nil {
				numbers[strconv.Itoa(d.Ordinal)] = checks.GPUDevice(g)
			}
		}
		r.numbers.Store(&numbers)
		return c, true
	}
	if errors.Is(err, probe.ErrNoLibrary) {
		r.failures = true
		r.report(checks.Device{}, checks.Finding{Code: "cuda.library", Severity: checks.Unknown}, "cannot ask CUDA: %v", err)
		return nil, false
	}
	r.reportFailure(nil, "cannot ask CUDA", err)
	return nil, false
}

// findCUDAGPU returns CUDA's handle of a GPU, nil if CUDA does not list it.
func findCUDAGPU(c *cuda.Driver, g *nvml.GPU) *cuda.GPU {
	for _, d := range c.GPUs {
		if d.PCI == g.PCI || d.UUID != "" && d.UUID == g.UUID.Value {
			return d
		}
	}
	return nil
}

// findUsableGPU returns CUDA's handle of a GPU. If the GPU cannot be used it returns false and reports
// the reason.
func (r *activeRun) findUsableGPU(c *cuda.Driver, g *nvml.GPU) (*cuda.GPU, bool) {
	d := findCUDAGPU(c, g)
	switch {
	case d == nil:
		r.failures = true
		r.report(checks.GPUDevice(g), checks.Finding{Code: "cuda.gpu", Severity: checks.Unknown}, "CUDA does not list it%s", findUnidentified(c))
	case d.Err != nil:
		r.reportFailure(g, "cannot use it", d.Err)
	default:
		return d, true
	}
	return nil, false
}

// findUnidentified returns the error of a GPU that CUDA could not name: it can be the one that CUDA
// does not list.
func findUnidentified(c *cuda.Driver) string {
	for _, d := range c.GPUs {
		if d.PCI == "" && d.Err != nil {
			return fmt.Sprintf(" (%v)", d.Err)
		}
	}
	return ""
}
