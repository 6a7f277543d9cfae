package checks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
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
// It runs NCCL in its own process, libnccl.so.2 or what NCCL_LIBRARY names, with
// nothing of NCCL_... but what these words say: --algo is NCCL_ALGO, --topo
// NCCL_TOPO_FILE, --no-p2p goes by the network even within the node. /etc/nccl.conf
// holds, as for jobs, and before NCCL 2.23 root's .nccl.conf, too. --nccl-tests runs the programs of nccl-tests that are in a
// directory in its place. -t bounds the whole, in seconds.
//
//	gpu* || TIMEOUT=120 check_nccl -b 16G -w 460 all_reduce
type nccl struct {
	active
	Op         string        `arg:"1" toml:"op"`                 // the operation
	Begin      Size          `opt:"b" toml:"begin"`              // smallest size, bytes
	End        Size          `opt:"e" toml:"end"`                // largest size
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

	of  Bounded // the check that this one works for, nil: itself
	gdr bool    // see probe.NCCLSettings
}

const ncclName = "check_nccl"

// How long a test may take unless -t says so: by the network it is ten times slower.
const (
	ncclLimit        = 20 * time.Second
	ncclNetworkLimit = 60 * time.Second
)

func init() {
	Register(Info{
		Name:    ncclName,
		Usage:   "[-b SIZE] [-e SIZE] [-f FACTOR] [-n ITERATIONS] [-w GB/s] [-t SECONDS] [--algo NAME] [--no-p2p] [--groups N] [--topo FILE] [--repeats N] [--nccl-tests DIR] [--max-age AGE] OP",
		Summary: "NCCL runs on all GPUs, fast and with the right results",
		Lane:    CUDA,
		Active:  true,
		New:     func() Check { return &nccl{} },
		Do:      ncclDo,
		DoOf:    cudaDo,
	})
}

var ncclDo = activeDo("nccl", "NVLink, an NVSwitch, PCIe or, with --no-p2p, an HCA is slow: see check_gpu_nvlink, check_gpu_pcie, check_ib_errors, and nvidia-smi topo -m.", map[string]string{
	"nccl.library":     "NCCL's library is missing: install libnccl2, or name the file that jobs use with NCCL_LIBRARY=/path/libnccl.so.2 in nhc.conf.",
	"nccl.old":         "This release of NCCL does not have the operation: name a newer one with NCCL_LIBRARY.",
	"nccl.wrong":       "Data were wrong on a GPU after NCCL had moved them: do not use the node. Run check_gpu_memtest and check_gpu_nvlink, and the test again; if it comes again replace the GPU that is named.",
	"nccl.alike":       "Data were wrong on all GPUs alike: it is more likely NCCL, its settings or this program than all of them. Compare with --algo ring, another NCCL_LIBRARY and another node, and report what you find.",
	"nccl.error":       "NCCL has failed; the message has its own words. Run all_reduce_perf -g with NCCL_DEBUG=INFO by hand; see dmesg for Xid errors, df /dev/shm, and ulimit -l.",
	"nccl.hung":        "An operation of NCCL did not end: a GPU or a link does not answer. See dmesg for Xid errors, check_gpu_nvlink and, with --no-p2p, the ports of InfiniBand.",
	"nccl.memory":      "Nothing, if something uses that memory rightly: a smaller -e needs less. Else see nvidia-smi for who has it.",
	"nccl.mixed":       "Nothing, if the node is built so: NCCL goes as fast as its slowest GPU, and no floor of a platform is about such a node.",
	"nccl.groups":      "Give --groups a number that divides the GPUs of the node, two at least in each.",
	"nccl.environment": "A topology file that does not fit slows NCCL down or stops it: take NCCL_TOPO_FILE out of the place that the message names, or put the right file there.",
	"nccl.settings":    "Nothing: the settings of NCCL that were found are told for who compares numbers. Those of the environment were not used; those of /root/.nccl.conf are by NCCL before 2.23, which reads it whatever the environment says.",
	"nccl.network":     "NCCL has found no RDMA network and would have gone by sockets: see ibstat, and whether a plug-in of the site is missing.",
	"nccl.programs":    "The program of nccl-tests could not be run, or printed what nobody knows: run it by hand.",
})

// Bind takes the words of a line.
func (c *nccl) Bind(args []string) error {
	if err := BindTags(c, args); err != nil {
		return err
	}
	return c.usable()
}

// usable says what is wrong with the parameters.
func (c *nccl) usable() error {
	op := ncclOpOf(c.Op)
	switch {
	case c.Op == "":
		return &UsageError{Kind: MissingWord, Want: "an operation: " + strings.Join(ncclOpNames(), ", ")}
	case op == nil:
		return &UsageError{Kind: BadValue, Word: c.Op, Want: "one of " + strings.Join(ncclOpNames(), ", ")}
	case c.Begin > 0 && c.End > 0 && c.Begin > c.End:
		return &UsageError{Kind: BadValue, Word: c.Begin.String(), Want: "no more than -e"}
	case c.Factor < 0 || c.Factor == 1:
		return &UsageError{Kind: BadValue, Word: fmt.Sprint(c.Factor), Want: "a factor of 2 or more"}
	case c.Algorithm != "" && !slices.Contains(ncclAlgorithms, c.Algorithm):
		return &UsageError{Kind: BadValue, Word: c.Algorithm, Want: "one of " + strings.Join(ncclAlgorithms, ", ")}
	case c.Groups < 0 || c.Iterations < 0 || c.Repeats < 0 || c.Least < 0:
		return &UsageError{Kind: BadValue, Word: "a negative number", Want: "a positive one"}
	case c.Programs != "" && !strings.HasPrefix(c.Programs, "/"):
		return &UsageError{Kind: BadValue, Word: c.Programs, Want: "an absolute path"}
	}
	return nil
}

// ncclAlgorithms are what NCCL_ALGO may be, as floors of platforms name them.
var ncclAlgorithms = []string{"ring", "tree", "nvls", "pat"}

// Bound is the most that the test takes.
func (c *nccl) Bound() time.Duration {
	switch {
	case c.Limit > 0:
		return c.Limit
	case c.NoP2P:
		return ncclNetworkLimit
	}
	return ncclLimit
}

// Run runs the operation.
func (c *nccl) Run(ctx context.Context, env *Env) []Finding { return c.run(ctx, env, ncclName) }

func (c *nccl) run(ctx context.Context, env *Env, name string) []Finding {
	t := activeTest{Check: name, Code: "nccl", Bound: c.Bound(), Least: 2, Of: c}
	if c.of != nil {
		t.Of = c.of
	}
	_, _ = env.askNVML(name, probe.GroupPCIe|probe.GroupP2P|probe.GroupNVLinkFar) // what joins the GPUs; what cannot be asked is said below
	r, findings := c.beginGPUs(ctx, env, t)
	if r == nil {
		return findings
	}
	n := &ncclRun{activeRun: r, nccl: c, op: ncclOpOf(c.Op), test: c.test()}
	n.tellSettings()
	n.tellModels()
	if c.Programs != "" {
		n.runPrograms()
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
func (c *nccl) settings() probe.NCCLSettings {
	return probe.NCCLSettings{Algorithm: c.Algorithm, TopoFile: c.Topology, NoP2P: c.NoP2P, GDR: c.gdr}
}

// tellModels says if the GPUs are of several models.
func (t *ncclRun) tellModels() {
	models := map[string]int{}
	for _, g := range t.gpus {
		models[g.Name.Value]++
	}
	if len(models) > 1 {
		t.report(Device{}, Finding{Code: "nccl.mixed", Severity: Warn, Want: "one model", Got: fmt.Sprintf("%d", len(models))}, "GPUs of several models work together")
	}
}

// failed makes a finding of an error of NCCL or CUDA, see activeRun.failed.
func (t *ncclRun) failed(g *probe.GPU, doing string, err error) {
	t.broken = true
	if context.Cause(t.ctx) == nil {
		switch e, isNCCL := errors.AsType[*probe.NCCLError](err); {
		case errors.Is(err, errNCCLHung):
			t.failures = true
			t.report(Device{}, Finding{Code: "nccl.hung", Severity: Fail, Remedy: RebootNode, Want: "an end within " + t.patience().String()}, "%s does not end", doing)
			return
		case isNCCL:
			t.failures = true
			t.report(t.deviceOf(e), ncclFinding(e), "%s: %v", doing, err)
			return
		}
	}
	t.activeRun.failed(g, doing, err)
}

// deviceOf is the GPU whose call has failed, the zero Device where it was the call of all.
func (t *ncclRun) deviceOf(e *probe.NCCLError) Device {
	for _, g := range t.ranks {
		if g.cuda.GPU.Ordinal == e.GPU {
			return gpuDevice(g.gpu)
		}
	}
	return Device{}
}

// ncclFinding is what an error of NCCL says of the node. What comes of CUDA is judged
// as CUDA's own error. The others may be of the network, of limits of the process, of
// NCCL's settings or its bugs, as well as of a GPU: they drain nobody.
func ncclFinding(e *probe.NCCLError) Finding {
	f := Finding{Code: "nccl.error", Severity: Unknown}
	if code, ok := e.CUDACode(); ok {
		cause := &probe.CUDAError{Call: e.Call, Code: code}
		f.Code = cudaCode(cause)
		f.Severity, f.Remedy, _ = cudaFinding(cause)
	}
	return f
}
