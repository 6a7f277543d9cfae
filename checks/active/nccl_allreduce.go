package active

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// ncclAllReduce is check_nccl all_reduce with the words of AzureHPC's checks: the bus
// bandwidth in GB/s that has to be reached, how often it is tried, the size (16G where
// none is given), and a topology file. The check passes with the first try that
// reaches it. Versions of theirs have the last two the other way round; whatever begins
// with a slash is the file. check_nccl_allreduce_ib_loopback goes by the network, as
// --no-p2p does, and as theirs has the HCAs read and write the GPUs' memory themselves
// (NCCL_NET_GDR_LEVEL=SYS).
//
// Theirs need MPI and nccl-tests, take the number of the last try in place of the best
// for their message, and have eight GPUs written into the loopback, which would go by
// sockets without a word where NCCL finds no HCA.
//
//	gpu* || TIMEOUT=120 check_nccl_allreduce 460 1 16G
type ncclAllReduce struct {
	active
	ncclEnv
	Least    float64     `arg:"1" toml:"bandwidth"` // bus bandwidth, GB/s
	Repeats  int         `arg:"2" toml:"repeats"`   // tries of which one has to reach it; 0 and 1 are one
	Size     checks.Size `toml:"size"`              // bytes
	Topology string      `toml:"topology"`          // file for NCCL_TOPO_FILE
	Seconds  int         `opt:"t" toml:"limit"`     // of the whole; 0: as check_nccl

	Rest []string `arg:"*"` // size and topology file

	name  string
	noP2P bool
}

func init() {
	for name, network := range map[string]bool{"check_nccl_allreduce": false, "check_nccl_allreduce_ib_loopback": true} {
		what := "NCCL's all-reduce on all GPUs is fast and right"
		if network {
			what = "NCCL's all-reduce over the node's HCAs is fast and right"
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

// ncclAzureSize is that of AzureHPC's configurations.
const ncclAzureSize checks.Size = 16 << 30

// Bind takes the words of a line.
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
		case word == "": // they pass "" for no topology file
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
	return c.usableEnv()
}

// full is the check that does the work.
func (c *ncclAllReduce) full() *nccl {
	size := c.Size
	if size == 0 {
		size = ncclAzureSize
	}
	n := &nccl{active: c.active, ncclEnv: c.ncclEnv, Op: "all_reduce", Begin: size, End: size, Least: c.Least, Repeats: c.Repeats, Topology: c.Topology, NoP2P: c.noP2P, gdr: c.noP2P}
	n.Limit, _ = checks.ParseTime(strconv.Itoa(c.Seconds))
	return n
}

// Bound is the most that the test takes.
func (c *ncclAllReduce) Bound() time.Duration { return c.full().Bound() }

// Run runs the operation.
func (c *ncclAllReduce) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	c.fromSite(env)
	n := c.full()
	n.of = c
	return n.run(ctx, env, c.name)
}
