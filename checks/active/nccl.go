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

// nccl has the GPUs of the node carry out an operation of NCCL, and judges its bus
// bandwidth as nccl-tests defines it. OP is all_reduce, all_gather, reduce_scatter,
// all_to_all, broadcast, sendrecv (each GPU sends to the next one of a ring), or
// multi_all_reduce (several all_reduce at once, of --groups groups of GPUs). Sizes are
// those of nccl-tests: the largest buffer, from -b on times -f up to -e; without
// either it is that of the platform's floor, or 1G. -w is what the largest has to
// reach, in GB/s. What was received is verified on every GPU, and pairs of GPUs
// exchange data at the end, which tells the one that is slow: a GPU is compared by its
// pairs of one kind (NVLink, one PCIe switch, one socket) if it has two of them or more.
// It only warns of pairs that cross sockets, and where nobody tells how they are joined.
//
// It runs NCCL in its own process, libnccl.so.2 or what NCCL_LIBRARY names. Of the
// settings of NCCL it uses those of the line: --algo is NCCL_ALGO, --topo NCCL_TOPO_FILE,
// and each --env NAME=VALUE one more (NCCL_..., or OFI_NCCL_..., FI_... and UCX_... of
// network plug-ins). nccl_env of [active] in nhc.toml has those of all such lines.
// /etc/nccl.conf holds, as for jobs, and before NCCL 2.23 root's .nccl.conf, too. The
// environment of a job or of slurmd is not used.
//
// --no-p2p goes by the network even within the node. It needs a fabric in which the
// node's adapters reach each other, and 100 seconds: nhc-gpu-active.timer runs it. --nccl-tests runs the programs of nccl-tests that are in a
// directory in its place. -t bounds the whole, in seconds.
//
//	gpu* || TIMEOUT=120 check_nccl -b 16G -w 460 all_reduce
type nccl struct {
	active
	ncclEnv
	Op         string        `arg:"1" toml:"op"`                 // the operation
	Begin      checks.Size   `opt:"b" toml:"begin"`              // smallest size, bytes
	End        checks.Size   `opt:"e" toml:"end"`                // largest size
	Factor     int           `opt:"f" toml:"factor"`             // from one size to the next
	Iterations int           `opt:"n" toml:"iterations"`         // at most, of each size
	Least      float64       `opt:"w" toml:"bandwidth"`          // bus bandwidth, GB/s
	Limit      time.Duration `opt:"t" toml:"limit"`              // of the whole
	Algorithm  string        `long:"algo" toml:"algorithm"`      // ring, tree, nvls; "": NCCL's choice
	NoP2P      bool          `long:"no-p2p" toml:"no_p2p"`       // by the network
	Groups     int           `long:"groups" toml:"groups"`       // of GPUs, each by itself
	Topology   string        `long:"topo" toml:"topology"`       // file
	Programs   string        `long:"nccl-tests" toml:"programs"` // directory of nccl-tests' programs, or one of them
	Repeats    int           `long:"repeats" toml:"repeats"`     // tries of which one has to reach -w

	of  checks.Bounded // the check that this one works for, nil: itself
	gdr bool           // see [cuda.NCCLSettings]
}

const ncclName = "check_nccl"

// ncclTime is the row of active_time.toml: by the network NCCL is ten times slower, and
// waits by itself before it gives up.
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
		Summary: "NCCL runs on all GPUs, fast and with the right results",
		Lane:    checks.CUDA,
		Active:  true,
		New:     func() checks.Check { return &nccl{} },
		Do:      ncclDo,
		DoOf:    cudaDo,
	})
}

func ncclDo() map[string]string {
	return activeDo("nccl", "NVLink, an NVSwitch, PCIe or, with --no-p2p, an HCA is slow: see check_gpu_nvlink, check_gpu_pcie, check_ib_errors, and nvidia-smi topo -m.", map[string]string{
		"nccl.library":     "NCCL's library is missing: install libnccl2, or name the file that jobs use with NCCL_LIBRARY=/path/libnccl.so.2, or its directory with LIBRARY_DIRS. nhc-gpu topo shows where it was looked for.",
		"nccl.old":         "This release of NCCL does not have the operation: name a newer one with NCCL_LIBRARY.",
		"nccl.wrong":       "Data were wrong on a GPU after NCCL had moved them: do not use the node. Run check_gpu_memtest and check_gpu_nvlink, and the test again; if it comes again replace the GPU that is named.",
		"nccl.alike":       "Data were wrong on all GPUs alike: it is more likely NCCL, its settings or this program than all of them. Compare with --algo ring, another NCCL_LIBRARY and another node, and report what you find.",
		"nccl.error":       "NCCL has failed; the message has its own words. Run all_reduce_perf -g with NCCL_DEBUG=INFO by hand; see dmesg for Xid errors, df /dev/shm, and ulimit -l.",
		"nccl.hung":        "An operation of NCCL did not end: a GPU or a link does not answer. See dmesg for Xid errors, check_gpu_nvlink and, with --no-p2p, the ports of InfiniBand.",
		"nccl.reach":       "Nothing, if the fabric's rails are apart, so that the adapters of a node do not reach each other: take the line out. Else see the ports and switches: check_ib_ports, check_ib_bw --pairs.",
		"nccl.memory":      "Nothing, if something uses that memory rightly: a smaller -e needs less. Else see nvidia-smi for who has it.",
		"nccl.mixed":       "Nothing, if the node is built so: NCCL goes as fast as its slowest GPU, and no floor of a platform is about such a node.",
		"nccl.groups":      "Give --groups a number that divides the GPUs of the node, two at least in each.",
		"nccl.environment": "A topology file that does not fit slows NCCL down or stops it: take NCCL_TOPO_FILE out of the place that the message names, or put the right file there.",
		"nccl.settings":    "Nothing: the settings of NCCL that were found are told for who compares numbers. Those of the environment were not used; those of /root/.nccl.conf are by NCCL before 2.23, which reads it whatever the environment says.",
		"nccl.network":     "NCCL has found no RDMA network and would have gone by sockets: see ibstat, and whether a plug-in of the site is missing.",
		"nccl.programs":    "The program of nccl-tests could not be run, or printed what nobody knows: run it by hand.",
	})
}

// Bind takes the words of a line.
func (c *nccl) Bind(args []string) error {
	if err := checks.BindTags(c, args); err != nil {
		return err
	}
	return c.Validate()
}

// Validate says what is wrong with the parameters.
func (c *nccl) Validate() error {
	op := ncclOpOf(c.Op)
	switch {
	case c.Op == "":
		return &checks.UsageError{Kind: checks.MissingWord, Want: "an operation: " + strings.Join(ncclOpNames(), ", ")}
	case op == nil:
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Op, Want: "one of " + strings.Join(ncclOpNames(), ", ")}
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
	return c.usableEnv()
}

// ncclAlgorithms are what NCCL_ALGO may be, as floors of platforms name them.
var ncclAlgorithms = []string{"ring", "tree", "nvls", "pat"}

// Bound is the most that the test takes.
func (c *nccl) Bound() time.Duration {
	if c.Limit > 0 {
		return c.Limit
	}
	return c.ncclTime().Bound
}

// Run runs the operation.
func (c *nccl) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	return c.run(ctx, env, ncclName)
}

func (c *nccl) run(ctx context.Context, env *checks.Env, name string) []checks.Finding {
	t := activeTest{Check: name, Code: "nccl", Bound: c.Bound(), Least: 2, Of: c}
	c.fromSite(env)
	if c.of != nil {
		t.Of = c.of
	}
	_, _ = gpu.AskNVML(env, name, nvml.GroupPCIe|nvml.GroupP2P|nvml.GroupNVLinkFar) // what joins the GPUs; what cannot be asked is said below
	r, findings := c.beginGPUs(ctx, env, t)
	if r == nil {
		return findings
	}
	n := &ncclRun{activeRun: r, nccl: c, op: ncclOpOf(c.Op), test: c.test()}
	tellSettings(n)
	n.tellModels()
	if !tellEnv(n) {
		return r.done()
	}
	if c.Programs != "" {
		runPrograms(n)
		return r.done()
	}
	n.runLibrary()
	return r.done()
}

// test is the word by which floors and baselines know what is measured: what goes by
// the network is another thing than what goes by NVLink.
func (c *nccl) test() string {
	if c.NoP2P {
		return ncclOpOf(c.Op).name + "_no_p2p"
	}
	return ncclOpOf(c.Op).name
}

// groups is how many groups of GPUs work at once.
func (c *nccl) groups() int {
	if c.Groups == 0 && c.Op == ncclMulti {
		return 2
	}
	return max(c.Groups, 1)
}

// settings are those of the library.
func (c *nccl) settings() cuda.NCCLSettings {
	return cuda.NCCLSettings{Algorithm: c.Algorithm, TopoFile: c.Topology, NoP2P: c.NoP2P, GDR: c.gdr, More: strings.Join(c.words(), "\n")}
}

// tellModels says if the GPUs are of several models.
func (t *ncclRun) tellModels() {
	models := map[string]int{}
	for _, g := range t.gpus {
		models[g.Name.Value]++
	}
	if len(models) > 1 {
		t.report(checks.Device{}, checks.Finding{Code: "nccl.mixed", Severity: checks.Warn, Want: "one model", Got: fmt.Sprintf("%d", len(models))}, "GPUs of several models work together")
	}
}

// failed makes a finding of an error of NCCL or CUDA, see activeRun.failed. NCCL does not
// say on which GPU an error of CUDA was, and a GPU that fails leaves the others waiting:
// the GPUs whose own calls fail from then on are to blame for both.
func (t *ncclRun) failed(g *nvml.GPU, doing string, err error) {
	t.broken = true
	if context.Cause(t.ctx) != nil {
		t.activeRun.failed(g, doing, err)
		return
	}
	e, isNCCL := errors.AsType[*cuda.NCCLError](err)
	_, isCUDA := errors.AsType[*cuda.Error](err)
	hung := errors.Is(err, errNCCLHung)
	switch {
	case isCUDA && g != nil:
		t.activeRun.failed(g, doing, err)
		t.failedGPUs(doing, g)
	case (isNCCL || hung) && t.failedGPUs(doing, nil):
	case hung:
		t.failures = true
		t.hung(doing)
	case isNCCL:
		t.failures = true
		t.report(t.deviceOf(e), ncclFinding(e), "%s: %v", doing, err)
	default:
		t.activeRun.failed(g, doing, err)
	}
}

// othersFail is how long after the first GPU the others may fail of the same cause.
const othersFail = time.Second

// failedGPUs reports the GPUs whose calls fail since an error of their work, except for
// one that is reported already. Where one has failed the others get a moment: an error
// of the kernel itself is reported by all of them, and acquits them.
func (t *ncclRun) failedGPUs(doing string, reported *nvml.GPU) (found bool) {
	left := slices.DeleteFunc(slices.Clone(t.ranks), func(g *ncclGPU) bool { return g.cuda == nil || g.gpu == reported })
	until := time.Now()
	if reported != nil {
		until = until.Add(othersFail)
	}
	for {
		limited, stop := context.WithDeadline(t.ctx, until)
		at, err := syncRanks(limited, left, func(i int) cuda.Stream { return left[i].stream })
		stop()
		if at < 0 {
			return found
		}
		if !found && reported == nil {
			until = time.Now().Add(othersFail)
		}
		found = true
		t.activeRun.failed(left[at].gpu, doing, err)
		left = slices.Delete(left, at, at+1)
	}
}

// hung reports an operation that does not end. Over the network that is no fault of the
// node before its adapters have been seen to reach each other: in a fabric whose rails are
// apart they do not.
func (t *ncclRun) hung(doing string) {
	f := checks.Finding{Code: "nccl.hung", Severity: checks.Fail, Remedy: checks.RebootNode, Want: "an end within " + t.patience().String()}
	text := doing + " does not end"
	if late := t.unfinished(); len(late) > 0 && 2*len(late) <= len(t.ranks) {
		text += " on " + strings.Join(late, ", ")
	}
	if t.NoP2P {
		f.Remedy = checks.CheckFabric
		if !t.reached && !t.reachedBefore() {
			f.Code, f.Severity = "nccl.reach", checks.Unknown
			text += ", and nothing shows that the adapters of the node reach each other"
		}
	}
	t.report(checks.Device{}, f, "%s", text)
}

// unfinished names the GPUs whose stream still has work.
func (t *ncclRun) unfinished() (names []string) {
	for _, g := range t.ranks {
		if done, err := g.cuda.Done(g.stream); !done && err == nil {
			names = append(names, checks.GPUDevice(g.gpu).String())
		}
	}
	return names
}

// reachedBefore reports whether the same line has moved data over the network in an
// earlier run on the node as it is now.
func (t *ncclRun) reachedBefore() bool {
	now, err := holdsFor(t.env)
	if err != nil || t.Of == nil {
		return false
	}
	file, err := readStamps(t.env, t.Check)
	if err != nil {
		return false
	}
	s := file.Stamps[stampKey(t.Of)]
	if s == nil || !s.about(&now) {
		return false
	}
	hung := func(f checks.Finding) bool { return f.Code == "nccl.hung" }
	return checks.Worst(s.Findings) != checks.Fail || slices.ContainsFunc(s.Findings, hung)
}

// deviceOf is the GPU whose call has failed, the zero Device where it was the call of all.
func (t *ncclRun) deviceOf(e *cuda.NCCLError) checks.Device {
	for _, g := range t.ranks {
		if g.cuda.GPU.Ordinal == e.GPU {
			return checks.GPUDevice(g.gpu)
		}
	}
	return checks.Device{}
}

// ncclFinding returns what an error of NCCL says of the node. It is unknown: it may be
// of the network, of limits of the process, of NCCL's settings or its bugs, as well as of
// a GPU. failedGPUs has found no GPU for an error of CUDA that NCCL names.
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
