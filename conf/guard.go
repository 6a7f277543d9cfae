package conf

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/nhc-gpu/nhc-gpu/conf/spell"
	"github.com/nhc-gpu/nhc-gpu/conf/tomltext"
)

// Guard holds the limits on how many nodes are drained for one fault, [guard] of nhc.toml.
type Guard struct {
	Enabled         bool
	Percent, Nodes  int           // of a partition, whichever is more, for one fault
	RepairPartition int           // nodes of a partition in repair
	RepairCluster   int           // nodes of the cluster in repair
	Jitter          time.Duration // the longest wait before the count for a fault of something shared; a thirtieth of it for others
	Exempt          []string      // codes or names of checks, or their first parts
	Uncounted       string        // GuardDrains or GuardHolds
}

// Values of uncounted.
const (
	GuardDrains = "drain"
	GuardHolds  = "hold"
)

// GuardRow is a key of [guard] with its default.
type GuardRow struct {
	Key     string
	Default any      // bool, int64, string or []any, as a TOML decoder returns them
	Most    int64    // of a number
	Words   []string // the values of a text
	Means   string
	Source  string // of the default

	field func(*Guard) any
}

// GuardRows are the keys of [guard].
var GuardRows = []GuardRow{
	{
		Key: "enabled", Default: true, Means: "false: each drain is sent, as in LBNL NHC",
		Source: "A dead file server must not drain a cluster. In one outage of another tool, one rule for an Xid took 77 healthy nodes out of service",
		field:  func(g *Guard) any { return &g.Enabled },
	},
	{
		Key: "percent", Default: int64(10), Most: 100, Means: "percent of a partition's nodes that may be drained for one fault",
		Source: "Stricter than others: the example of Amazon EKS has 20 %, NVIDIA's NVSentinel 50 % of all nodes in 5 minutes. A hold costs little: a prolog still refuses jobs",
		field:  func(g *Guard) any { return &g.Percent },
	},
	{
		Key: "nodes", Default: int64(3), Most: 1 << 20, Means: "number of them, if that is more",
		Source: "The example of Amazon EKS has 3 to 5 nodes: a percentage of a small partition is less than one node",
		field:  func(g *Guard) any { return &g.Nodes },
	},
	{
		Key: "repair_partition", Default: int64(1), Most: 1 << 20, Means: "nodes of a partition that remedies may repair at a time",
		Source: "A remedy that makes things worse must not do so on two nodes; Amazon EKS has a limit of its own, too",
		field:  func(g *Guard) any { return &g.RepairPartition },
	},
	{
		Key: "repair_cluster", Default: int64(2), Most: 1 << 20, Means: "nodes of the cluster that remedies may repair at a time",
		Source: "As repair_partition, for sites with many small partitions",
		field:  func(g *Guard) any { return &g.RepairCluster },
	},
	{
		Key: "jitter", Default: int64(30), Most: 45, Means: "seconds: the longest wait before the count, if the fault is of something that nodes share; for any other fault a thirtieth of it. 0: no wait",
		Source: "Without CYCLE in HealthCheckNodeState all nodes are checked in the same moment. slurmd ends a health check after 60 s",
		field:  func(g *Guard) any { return &g.Jitter },
	},
	{
		Key: "exempt", Default: []any{}, Means: "a list of codes or checks, or their first parts: drained without a count, as lost hardware always is",
		Source: "A device that is gone is a fault of the node",
		field:  func(g *Guard) any { return &g.Exempt },
	},
	{
		Key: "uncounted", Default: GuardDrains, Words: []string{GuardDrains, GuardHolds}, Means: "`\"drain\"` or `\"hold\"`: the effect on a drain if the nodes cannot be counted twice in a row",
		Source: "A node at fault must not get jobs because sinfo is missing",
		field:  func(g *Guard) any { return &g.Uncounted },
	},
}

// set sets the field of the row to a value of TOML.
func (r *GuardRow) set(g *Guard, v any) error {
	switch to := r.field(g).(type) {
	case *bool:
		return onOff(to)(v)
	case *[]string:
		words, ok := texts(v)
		if !ok || slices.Contains(words, "") {
			return fmt.Errorf("%s: want a list of texts, such as [\"gpu.ecc\", \"check_ps_service\"]", tomltext.Value(v))
		}
		*to = words
		return nil
	case *string:
		text, _ := v.(string)
		if !slices.Contains(r.Words, text) {
			return fmt.Errorf("%s: want %s", tomltext.Value(v), spell.OneOf(text, r.Words))
		}
		*to = text
		return nil
	default:
		n, ok := v.(int64)
		if !ok || n < 0 || n > r.Most {
			return fmt.Errorf("%s: want a whole number, 0 to %d", tomltext.Value(v), r.Most)
		}
		if d, ok := to.(*time.Duration); ok {
			*d = time.Duration(n) * time.Second
		} else {
			*to.(*int) = int(n)
		}
		return nil
	}
}

// DefaultGuard returns the guard of a site without settings.
func DefaultGuard() (g Guard) {
	for i := range GuardRows {
		if err := GuardRows[i].set(&g, GuardRows[i].Default); err != nil {
			panic("conf: GuardRows: " + err.Error()) // TestGuard
		}
	}
	return g
}

// Guards returns the guard; without a file, or a table in it, the default.
func (c *Config) Guards() Guard {
	if c == nil || c.Guard == nil {
		return DefaultGuard()
	}
	return *c.Guard
}

// readGuard reads [guard].
func readGuard(d *decoder, p toml.Primitive) *Guard {
	g := DefaultGuard()
	keys := map[string]func(any) error{}
	for i := range GuardRows {
		row := &GuardRows[i]
		keys[row.Key] = func(v any) error { return row.set(&g, v) }
	}
	d.table("guard", p, keys)
	if g.Enabled && g.Percent == 0 && g.Nodes == 0 {
		d.value(p, func(any) error {
			return errors.New("guard.percent and guard.nodes are both 0, so that no node would be drained: want one of them above 0")
		})
	}
	return &g
}
