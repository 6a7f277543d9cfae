package active

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// ncclAllReduce runs check_nccl all_reduce with the arguments of AzureHPC's checks: the least bus
// bandwidth in GB/s, the number of tries (1), the size (16G), and a topology file. It passes with
// the first try that reaches the bandwidth. Size and file may come in any order, as in AzureHPC's
// versions: the one that starts with a slash is the file. check_nccl_allreduce_ib_loopback uses
// the network, as --no-p2p does, and like AzureHPC's has the adapters access GPU memory directly
// (NCCL_NET_GDR_LEVEL=SYS). -t SECONDS (45; loopback 100) is the time limit.
//
// AzureHPC's checks need MPI and nccl-tests, and report the last try instead of the best. Their
// loopback assumes eight GPUs, and silently uses sockets if NCCL finds no adapter.
//
//	gpu* || TIMEOUT=120 check_nccl_allreduce 460 1 16G
type ncclAllReduce struct {
	active
	ncclEnv
	Least    float64     `arg:"1" toml:"bandwidth"` // least bus bandwidth, GB/s
	Repeats  int         `arg:"2" toml:"repeats"`   // largest number of tries; 0 and 1: one
	Size     checks.Size `toml:"size"`              // bytes; 0: 16G
	Topology string      `toml:"topology"`          // file for NCCL_TOPO_FILE
	Seconds  int         `opt:"t" toml:"limit"`     // time limit, seconds; 0: as check_nccl

	Rest []string `arg:"*"` // size and topology file

	name  string
	noP2P bool
}

func init() {
	for name, network := range map[string]bool{"check_nccl_allreduce": false, "check_nccl_allreduce_ib_loopback": true} {
		what := "NCCL's all-reduce on all GPUs is fast and correct"
		if network {
			what = "NCCL's all-reduce over the node's adapters is fast and correct"
		}
		checks.Register(checks.Info{
			Name:    name,
			Usage:   "[-t SECONDS] [--env NAME=VALUE]... [--max-age AGE] GB/s [REPEATS] [SIZE] [TOPOLOGY]",
			Summary: what,
			Lane:    checks.CUDA,
			Active:  true,
			New:     func() checks.Check { return &ncclAllReduce{name: name, noP2P: network} },
			Do:      ncclDo,
			DoOf:    cudaDo,
		})
	}
}

// ncclAzureSize is the size in AzureHPC's configurations.
const ncclAzureSize checks.Size = 16 << 30

// Bind accepts size and topology file in any order.
func (c *ncclAllReduce) Bind(args []string) error {
	if err := checks.BindTags(c, args); err != nil {
		return err
	}
	for _, word := range c.Rest {
		size, isSize := checks.ParseBytes(word)
		switch {
		case strings.HasPrefix(word, "/") && c.Topology == "":
			c.Topology = word
		case isSize && c.Size == 0:
			c.Size = size
		case word == "": // AzureHPC passes "" for no topology file
		default:
			return &checks.UsageError{Kind: checks.BadValue, Word: word, Want: "a size (16G) and a topology file (/path)"}
		}
	}
	c.Rest = nil
	return c.Validate()
}

func (c *ncclAllReduce) Validate() error {
	if c.Least <= 0 {
		return &checks.UsageError{Kind: checks.MissingWord, Want: "the bus bandwidth in GB/s"}
	}
	if c.Repeats < 0 || c.Seconds < 0 {
		return &checks.UsageError{Kind: checks.BadValue, Word: strconv.Itoa(min(c.Repeats, c.Seconds)), Want: "a positive number"}
	}
	return c.validateEnv()
}

// full returns the check that does the work.
func (c *ncclAllReduce) full() *nccl {
	size := c.Size
	if size == 0 {
		size = ncclAzureSize
	}
	n := &nccl{active: c.active, ncclEnv: c.ncclEnv, Op: "all_reduce", Begin: size, End: size, Least: c.Least, Repeats: c.Repeats, Topology: c.Topology, NoP2P: c.noP2P, gdr: c.noP2P}
	n.Limit, _ = checks.ParseTime(strconv.Itoa(c.Seconds))
	return n
}

func (c *ncclAllReduce) Bound() time.Duration { return c.full().Bound() }

func (c *ncclAllReduce) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	c.readSite(env)
	n := c.full()
	n.of = c
	return n.run(ctx, env, c.name)
}
