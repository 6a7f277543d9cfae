package active

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cpu"
)

// cpuStream measures the bandwidth of the node's memory: the triad of STREAM, a thread
// on each core that this process may use, each in memory of its own NUMA node and all
// at once. MBPS is what the node has to reach, in MB/s (10^6 bytes, 24 for an element);
// without it that is the floor of the platform. NUMA nodes with as many cores and as
// much memory are compared with each other, so that one with a slow or a missing DIMM
// is found without a number. The kernel goes to another NUMA node sooner than it takes
// memory from the page cache: what of the arrays lies elsewhere is moved to where it
// belongs, and where that has no room, the number is told with that and only warns.
//
// The arrays are four times the last caches of all CPUs, and no more than half of the
// memory that is available: less is not measured. Stores go past the caches where the
// CPU can do that, as STREAM's do when a compiler is told so: the algorithm is then
// "triad nt", whose numbers are those of such a STREAM and a third above those of
// others. It is the best of up to 19 rounds within -t.
//
//	hb* || check_cpu_stream 580000
type cpuStream struct {
	active

	Rate float64       `opt:"w" arg:"1" toml:"rate"` // what the node has to reach, MB/s; 0: the platform's
	Time time.Duration `opt:"t" toml:"time"`         // that all of it may take
}

const cpuStreamName = "check_cpu_stream"

func init() {
	checks.Register(checks.Info{
		Name:    cpuStreamName,
		Usage:   "[-t SECONDS] [--max-age AGE] [-w MBPS] [MBPS]",
		Summary: "memory is as fast as it should be",
		Lane:    checks.Local,
		Active:  true,
		New:     func() checks.Check { return &cpuStream{Time: 20 * time.Second} },
		Do: func() map[string]string {
			return activeDo("cpu.stream", "See the DIMMs (dmidecode -t memory: one that is missing, or slower), check_hw_mcelog, the BIOS (NUMA nodes per socket, power), and the governor of the CPUs. Where the message says that arrays lie on another NUMA node, numastat -m shows what holds the memory of the node that they should lie on.", map[string]string{
				"cpu.stream.memory": "Free memory on the node: see what holds it (free, /dev/shm, huge pages). The test wants arrays that no cache holds.",
				"cpu.stream.error":  "The message says what the kernel refused: a cpuset or a limit of memory of the service, see systemctl show.",
			})
		},
	})
}

// Bound is the most that it takes.
func (c *cpuStream) Bound() time.Duration { return c.Time }

// Validate refuses no time at all.
func (c *cpuStream) Validate() error {
	return usableTime(c.Time)
}

// Bind is BindTags, and what the test could not do.
func (c *cpuStream) Bind(args []string) error { return checks.BindUsable(c, args) }

func (c *cpuStream) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	r, findings := c.begin(ctx, env, activeTest{Check: cpuStreamName, Code: "cpu.stream", Bound: c.Bound(), Of: c})
	if r == nil {
		return findings
	}
	r.at("read /sys/devices/system/cpu")
	plan, err := cpu.PlanStream(env.Host)
	if err == nil {
		r.at("triad of STREAM on %s, %d MiB", checks.Plural(len(plan.Threads), "core"), plan.Bytes()>>20)
		var rates cpu.StreamRates
		if rates, err = cpu.Stream(r.ctx, env.Host, plan, time.Now().Add(c.Time*3/4)); err == nil {
			c.measure(r, plan, rates)
		}
	}
	if err != nil && r.ctx.Err() == nil { // else it was stopped, which the frame says
		r.failures = true
		code := "cpu.stream.error"
		if errors.Is(err, cpu.ErrStreamMemory) {
			code = "cpu.stream.memory"
		}
		r.report(checks.Device{}, checks.Finding{Code: code, Severity: checks.Unknown, Got: err.Error()}, "not measured")
	}
	return r.done()
}

// measure hands on the rate of the node, and those of its NUMA nodes if it has several.
func (c *cpuStream) measure(r *activeRun, plan *cpu.StreamPlan, rates cpu.StreamRates) {
	cores := map[int]int{}
	for _, t := range plan.Threads {
		cores[t.NUMA]++
	}
	m := measure{Test: "cpu_stream", Algorithm: cpu.StreamAlgorithm(), Unit: "MB/s"}
	whole := m
	whole.What, whole.Value, whole.Least = "triad on "+checks.Plural(len(plan.Threads), "core"), rates.Total, c.Rate
	whole.Doubt = farArrays(rates.Far, -1)
	r.measured(whole)
	if len(rates.Nodes) < 2 {
		return
	}
	for _, node := range slices.Sorted(maps.Keys(rates.Nodes)) {
		part := m
		part.Algorithm += " numa" // no floor of the node is one of its parts
		part.Device, part.What, part.Value = checks.Device{Kind: "numa", Name: fmt.Sprintf("numa%d", node)}, "triad in its own memory", rates.Nodes[node]
		memory, _ := cpu.ReadNUMAMemory(r.env.Host, node) // 0 if it is not told
		part.Peers = fmt.Sprintf("%s, %s", checks.Plural(cores[node], "core"), memoryClass(memory.Total))
		part.Doubt = farArrays(rates.Far, node)
		r.measured(part)
	}
}

// farArrays says what of the arrays lies so that the rate of a NUMA node is none of its
// own memory: its own elsewhere, or others' on it, which share it then. Of the node -1,
// which is all of them, it says the most.
func farArrays(far []cpu.StreamFar, node int) string {
	for _, f := range far {
		switch {
		case f.On < 0: // nobody knows on whose
			return fmt.Sprintf("%d MiB of the arrays of numa%d may lie on another NUMA node: so little of its memory was free", f.MiB, f.Node)
		case node < 0 || f.Node == node || f.On == node:
			return fmt.Sprintf("%d MiB of the arrays of numa%d lie on numa%d, it had no memory for them", f.MiB, f.Node, f.On)
		}
	}
	return ""
}

// memoryClass is the same word for about as much memory: the kernel takes some of it,
// from the first node most. A DIMM more or less makes another word.
func memoryClass(bytes uint64) string {
	if bytes == 0 {
		return "memory not told"
	}
	return fmt.Sprintf("about %.0f GiB", math.Exp2(math.Round(4*math.Log2(float64(bytes)/(1<<30)))/4))
}
