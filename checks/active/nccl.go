package active

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/gpu"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// nccl runs an operation of NCCL on the GPUs of the node, and judges its bus bandwidth as defined
// by nccl-tests. OP is all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, sendrecv
// (each GPU sends to the next one of a ring), or multi_all_reduce (several all_reduce at once, in
// --groups N groups of GPUs). Sizes are those of nccl-tests: the largest buffer, from -b SIZE
// times -f FACTOR (2) up to -e SIZE; without -b and -e the size of the platform's floor, or 1G.
// -w GB/s is the least bandwidth of the largest size; --repeats N runs it up to N times until it
// is reached. -n ITERATIONS (20) is the most runs of a size. The check verifies the received data
// on every GPU.
//
// At the end pairs of GPUs exchange data, to find a slow GPU: a GPU is compared by its pairs of
// one kind (NVLink, one PCIe switch, one socket) if it has at least two of them. Pairs across
// sockets, and pairs of an unknown connection, only warn.
//
// It runs NCCL in its own process: libnccl.so.2, or the file in NCCL_LIBRARY. It uses the NCCL
// settings of the line: --algo sets NCCL_ALGO, --topo NCCL_TOPO_FILE, and each --env NAME=VALUE
// one more (NCCL_..., or OFI_NCCL_..., FI_... and UCX_... of network plug-ins). nccl_env of
// [active] in nhc.toml has settings for all such lines. /etc/nccl.conf applies, as for jobs, and
// before NCCL 2.23 also root's .nccl.conf. The environment of a job or of slurmd is not used.
//
// With --no-p2p it uses the network even within the node. It needs a fabric where the node's adapters
// reach each other, and 100 seconds: nhc-gpu-active.timer runs it. --nccl-tests DIR runs the
// programs of nccl-tests instead. -t SECONDS (45; 100 with --no-p2p) is the time limit of all.
//
//	gpu* || TIMEOUT=120 check_nccl -b 16G -w 460 all_reduce
type nccl struct {
	active
	ncclEnv
	Op         string        `arg:"1" toml:"op"`                 // operation
	Begin      checks.Size   `opt:"b" toml:"begin"`              // smallest size, bytes
	End        checks.Size   `opt:"e" toml:"end"`                // largest size
	Factor     int           `opt:"f" toml:"factor"`             // factor from one size to the next; 0: 2
	Iterations int           `opt:"n" toml:"iterations"`         // runs of each size at most; 0: 20
	Least      float64       `opt:"w" toml:"bandwidth"`          // least bus bandwidth, GB/s; 0: no limit
	Limit      time.Duration `opt:"t" toml:"limit"`              // time limit of the whole test; 0: 45 s, 100 s with --no-p2p
	Algorithm  string        `long:"algo" toml:"algorithm"`      // ring, tree, nvls; "": NCCL's choice
	NoP2P      bool          `long:"no-p2p" toml:"no_p2p"`       // use the network
	Groups     int           `long:"groups" toml:"groups"`       // number of groups of GPUs; 0: 1, or 2 for multi_all_reduce
	Topology   string        `long:"topo" toml:"topology"`       // topology file, NCCL_TOPO_FILE
	Programs   string        `long:"nccl-tests" toml:"programs"` // directory of the programs of nccl-tests, or one of them
	Repeats    int           `long:"repeats" toml:"repeats"`     // runs; one of them has to reach -w

	of  checks.Bounded // the check that runs this one; nil: itself
	gdr bool           // see [cuda.NCCLSettings]
}

const ncclName = "check_nccl"

// ncclTime returns the row of active_time.toml: over the network NCCL is ten times slower, and
// retries before it gives up.
func (c *nccl) ncclTime() activeTime {
	if c.NoP2P {
		return timeOf(timeOfNetwork)
	}
	return timeOf(timeOfNCCL)
}

func init() {
	checks.Register(checks.Info{
		Name:    ncclName,
		Usage:   "[-b SIZE] [-e SIZE] [-f FACTOR] [-n ITERATIONS] [-w GB/s] [-t SECONDS] [--algo NAME] [--no-p2p] [--groups N] [--topo FILE] [--repeats N] [--env NAME=VALUE]... [--nccl-tests DIR] [--max-age AGE] OP",
		Summary: "NCCL runs on all GPUs, fast and with correct results",
		Lane:    checks.CUDA,
		Active:  true,
		New:     func() checks.Check { return &nccl{} },
		Do:      ncclDo,
		DoOf:    cudaDo,
	})
}

func ncclDo() map[string]string {
	return activeDo("nccl", "NVLink, an NVSwitch, PCIe or, with --no-p2p, an adapter is slow: see check_gpu_nvlink, check_gpu_pcie, check_ib_errors, and nvidia-smi topo -m.", map[string]string{
		"nccl.library":     "NCCL's library is missing: install libnccl2, or name the file that jobs use with NCCL_LIBRARY=/path/libnccl.so.2, or its directory with LIBRARY_DIRS. nhc-gpu topo lists the paths that were searched.",
		"nccl.old":         "This release of NCCL does not have the operation: name a newer one with NCCL_LIBRARY.",
		"nccl.wrong":       "Data were wrong on a GPU after NCCL had moved them: do not use the node. Run check_gpu_memtest, check_gpu_nvlink and this test again. If the fault returns, replace the named GPU.",
		"nccl.alike":       "Data were wrong on all GPUs: NCCL, its settings or nhc-gpu is a more likely cause than all GPUs. Compare with --algo ring, another NCCL_LIBRARY and another node, and report the result.",
		"nccl.error":       "NCCL failed; the message has its error. Run all_reduce_perf -g with NCCL_DEBUG=INFO by hand, and see dmesg for Xid errors, df /dev/shm, and ulimit -l.",
		"nccl.hung":        "An operation of NCCL did not end: a GPU or a link does not answer. See dmesg for Xid errors, check_gpu_nvlink and, with --no-p2p, check_ib_ports.",
		"nccl.reach":       "Nothing to repair, if the fabric's rails are separate, so that the adapters of a node do not reach each other: remove the line. Otherwise see the ports and switches: check_ib_ports, check_ib_bw --pairs.",
		"nccl.memory":      "Nothing, if a process uses that memory for good reason: a smaller -e needs less. Otherwise see nvidia-smi for the processes.",
		"nccl.mixed":       "Nothing, if the node has several models on purpose: NCCL is as fast as its slowest GPU, and no platform's floor applies to such a node.",
		"nccl.groups":      "Set --groups to a number that divides the GPUs of the node into equal groups of at least two.",
		"nccl.environment": "A topology file of another machine slows NCCL down or stops it: remove NCCL_TOPO_FILE from the place that the message names, or install the right file.",
		"nccl.settings":    "Nothing to repair: it lists the settings of NCCL, for comparing numbers. The test does not use those of the environment. NCCL before 2.23 always reads /root/.nccl.conf.",
		"nccl.network":     "NCCL found no RDMA network and would have used sockets: see ibstat, and whether a network plug-in is missing.",
		"nccl.programs":    "The program of nccl-tests did not run, or its output is unknown: run it by hand.",
	})
}

func (c *nccl) Validate() error {
	op := cuda.NCCLOpOf(c.Op)
	switch {
	case c.Op == "":
		return &checks.UsageError{Kind: checks.MissingWord, Want: "an operation: " + strings.Join(cuda.NCCLOpNames(), ", ")}
	case op == nil:
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Op, Want: "one of " + strings.Join(cuda.NCCLOpNames(), ", ")}
	case c.Begin > 0 && c.End > 0 && c.Begin > c.End:
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Begin.String(), Want: "no more than -e"}
	case c.Factor < 0 || c.Factor == 1:
		return &checks.UsageError{Kind: checks.BadValue, Word: fmt.Sprint(c.Factor), Want: "a factor of 2 or more"}
	case c.Algorithm != "" && !slices.Contains(ncclAlgorithms, c.Algorithm):
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Algorithm, Want: "one of " + strings.Join(ncclAlgorithms, ", ")}
	case c.Groups < 0 || c.Iterations < 0 || c.Repeats < 0 || c.Least < 0:
		return &checks.UsageError{Kind: checks.BadValue, Word: "a negative number", Want: "a positive one"}
	case c.Programs != "" && !strings.HasPrefix(c.Programs, "/"):
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Programs, Want: "an absolute path"}
	}
	return c.validateEnv()
}

// ncclAlgorithms are the values of NCCL_ALGO, as floors of platforms name them.
var ncclAlgorithms = []string{"ring", "tree", "nvls", "pat"}

func (c *nccl) Bound() time.Duration {
	if c.Limit > 0 {
		return c.Limit
	}
	return c.ncclTime().Bound
}

func (c *nccl) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	return c.run(ctx, env, ncclName)
}

func (c *nccl) run(ctx context.Context, env *checks.Env, name string) []checks.Finding {
	t := activeTest{Check: name, Code: "nccl", Bound: c.Bound(), Least: 2, Of: c}
	c.readSite(env)
	if c.of != nil {
		t.Of = c.of
	}
	_, _ = gpu.AskNVML(env, name, nvml.GroupPCIe|nvml.GroupP2P|nvml.GroupNVLinkFar) // for the connections of the GPUs; errors are reported below
	r, findings := c.beginGPUs(ctx, env, t)
	if r == nil {
		return findings
	}
	n := &ncclRun{activeRun: r, nccl: c, op: cuda.NCCLOpOf(c.Op), test: c.test()}
	reportSettings(n)
	n.reportModels()
	if !reportEnv(n) {
		return r.done()
	}
	if c.Programs != "" {
		runPrograms(n)
		return r.done()
	}
	n.runLibrary()
	return r.done()
}

// test returns the name of the measurement in floors and baselines: a test over the network
// differs from one over NVLink.
func (c *nccl) test() string {
	if c.NoP2P {
		return cuda.NCCLOpOf(c.Op).Name + "_no_p2p"
	}
	return cuda.NCCLOpOf(c.Op).Name
}

// groups returns the number of groups that work at once.
func (c *nccl) groups() int {
	if c.Groups == 0 && c.Op == cuda.NCCLMulti {
		return 2
	}
	return max(c.Groups, 1)
}

// settings returns the settings of the library.
func (c *nccl) settings() cuda.NCCLSettings {
	return cuda.NCCLSettings{Algorithm: c.Algorithm, TopoFile: c.Topology, NoP2P: c.NoP2P, GDR: c.gdr, More: strings.Join(c.words(), "\n")}
}

// reportModels reports GPUs of several models.
func (t *ncclRun) reportModels() {
	models := map[string]int{}
	for _, g := range t.gpus {
		models[g.Name.Value]++
	}
	if len(models) > 1 {
		t.report(checks.Device{}, checks.Finding{Code: "nccl.mixed", Severity: checks.Warn, Want: "one model", Got: fmt.Sprintf("%d", len(models))}, "GPUs of several models work together")
	}
}

// reportFailure reports an error of NCCL or CUDA, see activeRun.failed. NCCL does not name the GPU of a
// CUDA error, and a faulty GPU leaves the others waiting: the GPUs with failing calls of their
// own afterwards are to blame in both cases.
func (t *ncclRun) reportFailure(g *nvml.GPU, doing string, err error) {
	t.broken = true
	if context.Cause(t.ctx) != nil {
		t.activeRun.reportFailure(g, doing, err)
		return
	}
	e, isNCCL := errors.AsType[*cuda.NCCLError](err)
	_, isCUDA := errors.AsType[*cuda.Error](err)
	hung := errors.Is(err, errNCCLHung)
	switch {
	case isCUDA && g != nil:
		t.activeRun.reportFailure(g, doing, err)
		t.reportFailedGPUs(doing, g)
	case (isNCCL || hung) && t.reportFailedGPUs(doing, nil):
	case hung:
		t.failures = true
		t.reportHung(doing)
	case isNCCL:
		t.failures = true
		t.report(t.deviceOf(e), ncclFinding(e), "%s: %v", doing, err)
	default:
		t.activeRun.reportFailure(g, doing, err)
	}
}

// othersFail is how long after the first GPU the others can fail of the same cause.
const othersFail = time.Second

// reportFailedGPUs reports the GPUs with failing calls after an error of their work, except for one
// that is already reported. After a first failure the others get a moment: an error of the kernel
// itself shows on all of them, and acquits them.
func (t *ncclRun) reportFailedGPUs(doing string, reported *nvml.GPU) (found bool) {
	left := slices.DeleteFunc(slices.Clone(t.ranks), func(g *ncclGPU) bool { return g.Context == nil || g.gpu == reported })
	until := time.Now()
	if reported != nil {
		until = until.Add(othersFail)
	}
	for {
		limited, stop := context.WithDeadline(t.ctx, until)
		at, err := syncRanks(limited, left, func(i int) cuda.Stream { return left[i].Stream })
		stop()
		if at < 0 {
			return found
		}
		if !found && reported == nil {
			until = time.Now().Add(othersFail)
		}
		found = true
		t.activeRun.reportFailure(left[at].gpu, doing, err)
		left = slices.Delete(left, at, at+1)
	}
}

// reportHung reports an operation that does not end. Over the network it is not a fault of the node
// until its adapters have been seen to reach each other: in a fabric with separate rails they do
// not.
func (t *ncclRun) reportHung(doing string) {
	f := checks.Finding{Code: "nccl.hung", Severity: checks.Fail, Remedy: checks.RebootNode, Want: "an end within " + t.patience().String()}
	text := doing + " does not end"
	if late := t.listUnfinished(); len(late) > 0 && 2*len(late) <= len(t.ranks) {
		text += " on " + strings.Join(late, ", ")
	}
	if t.NoP2P {
		f.Remedy = checks.CheckFabric
		if !t.reached && !t.hasReachedBefore() {
			f.Code, f.Severity = "nccl.reach", checks.Unknown
			text += ", and the adapters of the node may not reach each other"
		}
	}
	t.report(checks.Device{}, f, "%s", text)
}

// listUnfinished returns the GPUs with work left in their stream.
func (t *ncclRun) listUnfinished() (names []string) {
	for _, g := range t.ranks {
		if done, err := g.Context.Done(g.Stream); !done && err == nil {
			names = append(names, checks.GPUDevice(g.gpu).String())
		}
	}
	return names
}

// hasReachedBefore reports whether the same line moved data over the network in an earlier run on
// the node in its present state.
func (t *ncclRun) hasReachedBefore() bool {
	now, err := describeNode(t.env)
	if err != nil || t.Of == nil {
		return false
	}
	file, err := readStamps(t.env, t.Check)
	if err != nil {
		return false
	}
	s := file.Stamps[stampKey(t.Of)]
	if s == nil || !s.isCurrent(&now) {
		return false
	}
	hung := func(f checks.Finding) bool { return f.Code == "nccl.hung" }
	return checks.Worst(s.Findings) != checks.Fail || slices.ContainsFunc(s.Findings, hung)
}

// deviceOf returns the GPU of the failed call, zero if the call was for all.
func (t *ncclRun) deviceOf(e *cuda.NCCLError) checks.Device {
	for _, g := range t.ranks {
		if g.Context.GPU.Ordinal == e.GPU {
			return checks.GPUDevice(g.gpu)
		}
	}
	return checks.Device{}
}

// ncclFinding returns the finding for an error of NCCL. It is unknown: the network, limits of the
// process, settings, bugs of NCCL or a GPU can be the cause. If NCCL names a CUDA error,
// reportFailedGPUs has found no GPU for it.
func ncclFinding(e *cuda.NCCLError) checks.Finding {
	f := checks.Finding{Code: "nccl.error", Severity: checks.Unknown}
	if code, ok := e.CUDACode(); ok {
		cause := &cuda.Error{Call: e.Call, Code: code}
		if severity, remedy, _ := cudaFinding(cause); severity != checks.Fail {
			f.Code, f.Remedy = cudaCode(cause), remedy
		}
	}
	return f
}
