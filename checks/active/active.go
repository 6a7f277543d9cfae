// Package active has the tests that use the hardware: copies, matrices, memory patterns, NCCL,
// perftest, DCGM's diagnostics. They run beside no job.
package active

import (
	"context"
	"errors"
	"fmt"
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

// What the active tests have in common: those that load the node to measure it. They
// run on what nobody uses, one at a time, for a bounded time, and stop at once when
// a job comes; what they measured is judged, and stamped so that a prolog need not
// measure again.

func init() {
	checks.RegisterAdvice(func() map[string]string {
		return map[string]string{
			"active.busy":    "Nothing: an active test waits until no job runs here and nobody is on the GPUs. nhc-gpu --check by hand on a drained node runs it. If a job has ended and its epilog did not run: see docs/active.md.",
			"active.shared":  "Nothing: in a prolog active tests run only for a job that surely has the whole node. With --max-age a prolog looks at the last result.",
			"active.held":    "Another active test is under way: wait for it, or see ps for nhc-gpu. If none is there it is a file system that keeps locks: see /var/lib/nhc-gpu/active.lock.",
			"active.time":    "Give the run more time (TIMEOUT in /etc/sysconfig/nhc, or TIMEOUT=120 by hand), or the test less (-t). slurmd ends a health check after 60 seconds.",
			"active.stale":   "Run the test while the node is idle: a line with the same words in nhc.conf, or nhc-gpu by hand; see docs/active.md.",
			"active.stopped": "Nothing: a job came, or a process onto a GPU, or the run was ended. The test is run again by the next run that may. Where NVML does not answer, or only with errors, see dmesg and check_gpu_count.",
			"active.left":    "Nothing, if somebody uses that GPU, has split it up by MIG or has forbidden to compute on it: the test leaves it alone. See nvidia-smi.",
			"active.stuck":   "Work that other GPUs do at once does not end on this one: see dmesg for Xid errors, reset the GPU (nvidia-smi -r -i INDEX), and replace it if it comes again. If no GPU ends see the driver and Fabric Manager first.",
			"active.few":     "Nothing: the test needs more GPUs than are free here.",
			"active.past":    "The result of an active test cannot be kept: see the directory /var/lib/nhc-gpu.",
			"cuda.library":   "libcuda.so.1 comes with NVIDIA's driver: install its compute libraries (libcuda1, nvidia-driver-cuda), run ldconfig. CUDA_LIBRARY=PATH names another file; nhc-gpu topo shows where it was looked for.",
			"cuda.error":     "The message has what CUDA, or the node, said: see dmesg for NVRM, and check_gpu_xid.",
			"cuda.gpu":       "CUDA does not show a GPU that NVML has: see nvidia-smi, the device nodes of /dev and the cgroup of this process.",
		}
	})
}

// active is embedded in every active test.
type active struct {
	MaxAge time.Duration `long:"max-age" toml:"max_age"` // a result that is no older counts in place of a run; 0: none does
}

// Freshness is how old a result may be that counts in place of a run, 0 if none does.
func (a *active) Freshness() time.Duration { return a.MaxAge }

// activeTest says what is about to be run.
type activeTest struct {
	Check string         // its name, for messages
	Code  string         // what its codes begin with: "gpu.gemm"
	Bound time.Duration  // the most that it takes
	Least int            // GPUs that it needs; 0 stands for 1
	Of    checks.Bounded // the check itself, whose parameters tell its results apart

	// Daemon says that a daemon of the node carries the test out: a process that comes
	// onto the GPUs may be its own, and does not stop the test. A job does.
	Daemon bool

	ofGPUs bool // set by beginGPUs
}

// activeRun is an active test under way.
type activeRun struct {
	activeTest

	ctx      context.Context // over when a job comes, when somebody comes onto a GPU, or when the time is up
	env      *checks.Env
	gpus     []*nvml.GPU // those that may be loaded, as NVML has them
	findings []checks.Finding

	measures []measure
	left     []checks.Finding // about GPUs that were left out
	undone   []string         // GPUs that were at work when the test was stopped
	stuck    []stuckGPU
	did      []*nvml.GPU // GPUs that have done the work of the test, see finished
	leftOpen bool        // see abandon
	failures bool        // something went wrong: what was measured is no result

	wrongData string // the code of findings that every GPU has by itself, and that a bad kernel could make on all; see acquitGPUs

	cancel   context.CancelCauseFunc
	release  func()
	watching sync.WaitGroup
	came     error         // the job that the watching has seen, for who has waited for that
	users    chan struct{} // closed when nobody looks for processes any more; nil: nobody does
	blind    int           // looks for processes in a row that have failed; of who looks
	jobs     *jobscan.JobWatch
	stopping sync.Mutex
	overdue  *time.Timer                              // ends the process; nil: nothing has stopped the test
	what     atomic.Pointer[string]                   // see during
	numbers  atomic.Pointer[map[string]checks.Device] // the GPUs by CUDA's numbers, which are not NVML's
	nvml     sync.Mutex                               // of Host.NVML and its like, which are for one goroutine
}

// The reasons for which a test is over before its end.
var (
	errActiveDone = errors.New("it is done")
	errActiveTime = errors.New("its time was up")
	errJobCame    = errors.New("a job has begun on the node")
	errUserCame   = errors.New("a process has come onto a GPU")
	errNoLook     = errors.New("NVML does not say whether a process has come onto a GPU")
)

// begin claims the node for a test. Nil: it may not run, the findings say why.
func (a *active) begin(ctx context.Context, env *checks.Env, t activeTest) (*activeRun, []checks.Finding) {
	r := &activeRun{activeTest: t, env: env}
	env.At("read /proc")
	var err error
	if r.jobs, err = jobscan.WatchJobs(env.Host, jobRecords); err != nil { // before anything else is looked at: no job slips through
		return nil, checks.Unreadable(err)
	}
	if f := refused(ctx, r); f != nil {
		return nil, refusal(r, *f)
	}
	release, err := probe.Claim(env.Host, "active")
	if err != nil {
		f := checks.Finding{Code: "active.held", Severity: checks.Unknown}.Describe(t.Check, "cannot run: another active test holds the node")
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
	n, err := r.again(nvml.GroupProcesses | nvml.GroupModes) // what the snapshot of the run says may be of a while ago
	if err != nil {
		r.failed(nil, "cannot ask NVML", err)
		return nil, r.done()
	}
	s.NVML = n
	r.chooseGPUs(s)
	if len(r.gpus) >= max(t.Least, 1) {
		r.watchUsers()
		return r, nil
	}
	if len(r.left) > 0 {
		r.findings = append(r.findings, refusal(r, r.left[0])...)
		r.left = r.left[1:]
	} else {
		r.findings = append(r.findings, checks.Finding{Code: "active.few", Severity: checks.Skip}.Describe(t.Check, "needs %s, the node has %d", checks.Plural(t.Least, "GPU"), len(r.gpus)))
	}
	r.failures = true
	return nil, r.done()
}

// chooseGPUs takes the GPUs that the test may load.
func (r *activeRun) chooseGPUs(s *gpu.GPUs) {
	r.onlyWhole(s.NVML.GPUs)
	for i := range s.NVML.GPUs {
		g := &s.NVML.GPUs[i]
		why, code := r.unfit(g)
		if why == "" {
			r.gpus = append(r.gpus, g)
			continue
		}
		f := checks.Finding{Code: code, Severity: checks.Skip, Device: checks.GPUDevice(g), Got: why}
		if code == "gpu.error" {
			f.Severity = checks.Unknown
		}
		r.left = append(r.left, f.Phrase(r.Check, "%s: left out: %s", f.Device, why))
	}
}

// onlyWhole has CUDA list the GPUs that MIG does not split up, where it does split some.
func (r *activeRun) onlyWhole(gpus []nvml.GPU) {
	var whole []string
	for i := range gpus {
		if g := &gpus[i]; g.Err == nil && g.UUID.Known && !g.Modes.MIG.Value {
			whole = append(whole, g.UUID.Value)
		}
	}
	if slices.ContainsFunc(gpus, func(g nvml.GPU) bool { return g.Modes.MIG.Value }) {
		cuda.Only(r.env.Host, whole)
	}
}

// unfit says why a GPU is left alone, "" if it is not.
func (r *activeRun) unfit(g *nvml.GPU) (why, code string) {
	const left = "active.left"
	switch {
	case g.Err != nil:
		return fmt.Sprintf("could not tell: %v", g.Err), "gpu.error"
	case g.Processes.Err != nil:
		return fmt.Sprintf("could not tell: %v", g.Processes.Err), "gpu.error"
	case !gpusOfJob(r, g):
		return "it is not the job's", left
	case g.Modes.MIG.Value:
		return "it is split up by MIG", left
	case g.Modes.Compute.Value == "prohibited":
		return "its compute mode is prohibited", left
	}
	pids, err := r.processes(g)
	if err != nil {
		return fmt.Sprintf("could not tell: %v", err), "gpu.error"
	}
	for _, pid := range pids {
		if !ours(pid) {
			return fmt.Sprintf("process %d is on it", pid), left
		}
	}
	return "", ""
}

// processes returns the processes on a GPU. Where NVML has no list, as those of drivers
// 535.43 to 535.97 cannot be read, they are the processes that use CUDA and have the
// GPU's device node open.
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

// at names what is about to be done, for a hang and for who watches.
func (r *activeRun) at(format string, args ...any) {
	r.during(format, args...)
	r.env.At(format, args...)
}

// during names what calls of CUDA from now on belong to: "gpu3: copy from the host".
// Unlike at it may be called by the goroutines of a test.
func (r *activeRun) during(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	r.what.Store(&what)
}

// calling hears of the calls of CUDA, one at a time, and names them with what they
// belong to, and with the GPU where they are about one.
func (r *activeRun) calling(call string) {
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

// measured takes a number that the test has found; done judges it.
func (r *activeRun) measured(m measure) { r.measures = append(r.measures, m) }

// again asks NVML anew, for a goroutine that watches the GPUs while they work.
func (r *activeRun) again(groups nvml.Group) (*nvml.Snapshot, error) {
	r.nvml.Lock()
	defer r.nvml.Unlock()
	return nvml.AskAgain(r.env.Host, groups, nil)
}

// failed makes a finding of what went wrong on a GPU, nil for none. A test that was
// stopped says so once, and lays it to no GPU.
func (r *activeRun) failed(g *nvml.GPU, doing string, err error) {
	r.failures = true
	if g != nil && errors.Is(err, errStuck) {
		noteStuck(r, g, doing, patience(r, timeOfOthers))
		return
	}
	if cause := context.Cause(r.ctx); cause != nil {
		r.stopped(cause)
		if g != nil {
			r.undone = append(r.undone, checks.GPUDevice(g).String())
		}
		return
	}
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

// cuda is CUDA, where it is to be had. false: the findings say why not.
func (r *activeRun) cuda() (*cuda.Driver, bool) {
	c, err := cuda.Open(r.env.Host, r.calling)
	if err == nil {
		numbers := map[string]checks.Device{}
		for _, g := range r.gpus {
			if d := onCUDAs(c, g); d != nil {
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
	r.failed(nil, "cannot ask CUDA", err)
	return nil, false
}

// onCUDAs finds a GPU among those of CUDA, nil if it is not there.
func onCUDAs(c *cuda.Driver, g *nvml.GPU) *cuda.GPU {
	for _, d := range c.GPUs {
		if d.PCI == g.PCI || d.UUID != "" && d.UUID == g.UUID.Value {
			return d
		}
	}
	return nil
}

// cudaGPU is a GPU as CUDA has it. false: the findings say why it cannot be used.
func (r *activeRun) cudaGPU(c *cuda.Driver, g *nvml.GPU) (*cuda.GPU, bool) {
	d := onCUDAs(c, g)
	switch {
	case d == nil:
		r.failures = true
		r.report(checks.GPUDevice(g), checks.Finding{Code: "cuda.gpu", Severity: checks.Unknown}, "CUDA does not show it%s", unidentified(c))
	case d.Err != nil:
		r.failed(g, "cannot use it", d.Err)
	default:
		return d, true
	}
	return nil, false
}

// unidentified says why CUDA could not name a GPU, which may be one that it does not show.
func unidentified(c *cuda.Driver) string {
	for _, d := range c.GPUs {
		if d.PCI == "" && d.Err != nil {
			return fmt.Sprintf(" (%v)", d.Err)
		}
	}
	return ""
}
