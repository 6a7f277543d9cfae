package sweep

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// PlanOptions sets what a stage tests. A zero value means the default.
type PlanOptions struct {
	Seed      uint64        // of all random choices: the same seed and results give the same tasks
	FirstID   int           // ID of the first task, default 1
	Repeats   int           // values of each test, default 4
	Matchings int           // rounds of pairs before suspects are confirmed, default 2, at least 4 up to 16 nodes; up to 8 nodes test all pairs
	AllPairs  int           // reach tests all pairs of up to this many nodes, default 64
	Degree    int           // partners of a node in reach beyond AllPairs, default 6
	Flows     int           // TCP connections or queue pairs of a pair, default 8
	Time      time.Duration // of a repeat, default 1 s
	Setup     time.Duration // how long the start of a test takes at most, default 30 s
	Sizes     map[Kind]int64
	Floors    []Floor
	Planes    []string // only these planes or rails: mlx5_0 is each port of that device

	Lines      []string      // node: lines of nhc.conf
	Batch      int           // node: nodes that run at the same time, default all
	CheckLimit time.Duration // node: time limit of a line, default 15 min

	Ends bool // reach: only pairs with the first or the last node

	NoStream  bool  // tcp: no bandwidth of pairs
	NoRing    bool  // tcp: no ring all-reduce
	RingSizes []int // tcp: nodes of a ring, 0 for all; default 16 and, for up to 1,024 nodes, all

	Ops        []string // pairs, groups: collectives
	NoP2P      bool     // pairs: a second test without NVLink and shared memory
	GroupSizes []int    // groups: nodes of a group, 0 for all; default 2, 4, 8, ..., all
}

// Floor is a value that a test must reach, set by the site. For latencies it is a ceiling.
type Floor struct {
	Kind  Kind
	Op    string // "": all
	Plane string // "": all
	Value float64
}

// defaultOps are the collectives of stages pairs and groups. multi_all_reduce runs one communicator
// for each local GPU, all at once.
var (
	defaultPairOps  = []string{"all_reduce", "all_to_all", "all_gather", "multi_all_reduce", "sendrecv"}
	defaultGroupOps = []string{"all_reduce", "all_to_all", "all_gather"}
)

// defaultSizes has the sizes of messages and data, in bytes.
var defaultSizes = map[Kind]int64{KindRing: 16 << 20, KindWrite: 1 << 20, KindLatency: 8, KindNCCL: 256 << 20}

func (o *PlanOptions) setDefaults(stage Stage) error {
	for _, n := range []struct {
		name  string
		value *int
		def   int
	}{
		{"FirstID", &o.FirstID, 1}, {"Repeats", &o.Repeats, 4}, {"Matchings", &o.Matchings, 2},
		{"AllPairs", &o.AllPairs, 64}, {"Degree", &o.Degree, 6}, {"Flows", &o.Flows, 8}, {"Batch", &o.Batch, 0},
	} {
		if *n.value < 0 {
			return fmt.Errorf("%s is %d: want a positive number", n.name, *n.value)
		}
		*n.value = cmp.Or(*n.value, n.def)
	}
	for _, d := range []time.Duration{o.Time, o.Setup, o.CheckLimit} {
		if d < 0 {
			return fmt.Errorf("a time is %v: want a positive one", d)
		}
	}
	for _, size := range slices.Concat(o.RingSizes, o.GroupSizes) {
		if size < 0 || size == 1 {
			return fmt.Errorf("a group of %d nodes: want 2 or more, or 0 for all", size)
		}
	}
	o.Time = cmp.Or(o.Time, time.Second)
	o.Setup = cmp.Or(o.Setup, 30*time.Second)
	o.CheckLimit = cmp.Or(o.CheckLimit, 15*time.Minute)
	if len(o.Ops) == 0 {
		o.Ops = defaultPairOps
		if stage == StageGroups {
			o.Ops = defaultGroupOps
		}
	}
	if stage == StageNode && len(o.Lines) == 0 {
		return fmt.Errorf("no check: want at least one line of nhc.conf")
	}
	return nil
}

// limit returns the time limit of a test: twice its measuring time, and its start.
func (o *PlanOptions) limit() time.Duration {
	return o.Setup + 2*time.Duration(o.Repeats)*o.Time
}

func (o *PlanOptions) size(k Kind) int64 { return cmp.Or(o.Sizes[k], defaultSizes[k]) }

// wants reports whether a plane or a rail is to be tested.
func (o *PlanOptions) wants(p *plane) bool {
	return len(o.Planes) == 0 || slices.ContainsFunc(o.Planes, p.called)
}

// names reports whether a rail is asked for by its name, or that of its device.
func (o *PlanOptions) names(rail string) bool {
	device, _, _ := strings.Cut(rail, ":")
	return slices.Contains(o.Planes, rail) || slices.Contains(o.Planes, device)
}

// floorOf returns the floor of a test, 0 without one. A row with the plane takes precedence.
func (o *PlanOptions) floorOf(t Task) (floor float64) {
	best := -1
	for _, f := range o.Floors {
		if f.Kind != t.Kind || f.Op != "" && f.Op != t.Op || f.Plane != "" && f.Plane != t.Plane {
			continue
		}
		exact := 0
		if f.Op != "" {
			exact++
		}
		if f.Plane != "" {
			exact += 2
		}
		if exact > best {
			floor, best = f.Value, exact
		}
	}
	return floor
}
