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

// cpuStream measures the bandwidth of the node's memory with the triad of STREAM: one thread on
// each core that this process may use, each in the memory of its own NUMA node, all at once. It
// fails if the node is slower than MBPS, in MB/s (10^6 bytes; an element counts 24). Without MBPS
// it compares the rate with the floor of the platform. NUMA nodes with equally many cores and
// equally much memory are compared with each other, so a slow or missing DIMM shows without a
// number.
//
// The kernel allocates on another NUMA node before it reclaims page cache. The check moves such
// pages of its arrays back. If there is no room for them, the finding says so and only warns.
//
// The arrays have four times the size of all last-level caches, and at most half of the available
// memory; otherwise the check measures nothing. It uses non-temporal stores if the CPU has them,
// as STREAM does when compiled for that: the algorithm is then "triad nt", with rates a third
// above those of an ordinary STREAM. The result is the best of up to 19 rounds within -t SECONDS
// (20), the time limit.
//
//	hb* || check_cpu_stream 580000
type cpuStream struct {
	active

	Rate float64       `opt:"w" arg:"1" toml:"rate"` // least rate of the node, MB/s; 0: the platform's
	Time time.Duration `opt:"t" toml:"time"`         // time limit of the whole check
}

const cpuStreamName = "check_cpu_stream"

func init() {
	checks.Register(checks.Info{
		Name:    cpuStreamName,
		Usage:   "[-t SECONDS] [--max-age AGE] [-w MBPS] [MBPS]",
		Summary: "memory bandwidth of the CPUs is as high as it should be",
		Lane:    checks.Local,
		Active:  true,
		New:     func() checks.Check { return &cpuStream{Time: 20 * time.Second} },
		Do: func() map[string]string {
			return activeDo("cpu.stream", "See the DIMMs (dmidecode -t memory: one is missing or slower), check_hw_mcelog, the BIOS (NUMA nodes per socket, power), and the CPU frequency governor. If the message names arrays on another NUMA node, numastat -m shows what uses the memory of their own node.", map[string]string{
				"cpu.stream.memory": "Free memory on the node: see what uses it (free, /dev/shm, huge pages). The test needs arrays larger than the caches.",
				"cpu.stream.error":  "The message has the error of the kernel: see the cpuset and the memory limit of the service with systemctl show.",
			})
		},
	})
}

// Bound returns the time limit.
func (c *cpuStream) Bound() time.Duration { return c.Time }

func (c *cpuStream) Validate() error {
	return validateTime(c.Time)
}

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
	if err != nil && r.ctx.Err() == nil { // otherwise the frame reports the stop
		r.failures = true
		code := "cpu.stream.error"
		if errors.Is(err, cpu.ErrStreamMemory) {
			code = "cpu.stream.memory"
		}
		r.report(checks.Device{}, checks.Finding{Code: code, Severity: checks.Unknown, Got: err.Error()}, "not measured")
	}
	return r.done()
}

// measure records the rate of the node, and those of its NUMA nodes if it has several.
func (c *cpuStream) measure(r *activeRun, plan *cpu.StreamPlan, rates cpu.StreamRates) {
	cores := map[int]int{}
	for _, t := range plan.Threads {
		cores[t.NUMA]++
	}
	m := measure{Test: "cpu_stream", Algorithm: cpu.StreamAlgorithm(), Unit: "MB/s"}
	whole := m
	whole.What, whole.Value, whole.Least = "triad on "+checks.Plural(len(plan.Threads), "core"), rates.Total, c.Rate
	whole.Says = "memory bandwidth (STREAM triad) on " + checks.Plural(len(plan.Threads), "core")
	whole.Doubt = describeFarArrays(rates.Far, -1)
	r.record(whole)
	if len(rates.Nodes) < 2 {
		return
	}
	for _, node := range slices.Sorted(maps.Keys(rates.Nodes)) {
		part := m
		part.Algorithm += " numa" // so that no floor of the whole node applies to a part
		part.Device, part.What, part.Value = checks.Device{Kind: "numa", Name: fmt.Sprintf("numa%d", node)}, "triad in its own memory", rates.Nodes[node]
		part.Says = "bandwidth of its own memory (STREAM triad)"
		memory, _ := cpu.ReadNUMAMemory(r.env.Host, node) // 0 if unknown
		part.Peers = fmt.Sprintf("%s, %s", checks.Plural(cores[node], "core"), memoryClass(memory.Total))
		part.Doubt = describeFarArrays(rates.Far, node)
		r.record(part)
	}
}

// describeFarArrays describes arrays that are not on their own NUMA node, "" if there are none: they slow
// their own node and the node that they are on. For node -1, the whole machine, it describes the
// largest.
func describeFarArrays(far []cpu.StreamFar, node int) string {
	for _, f := range far {
		switch {
		case f.On < 0: // on an unknown node
			return fmt.Sprintf("%d MiB of the arrays of numa%d may lie on another NUMA node: too little of its memory was free", f.MiB, f.Node)
		case node < 0 || f.Node == node || f.On == node:
			return fmt.Sprintf("%d MiB of the arrays of numa%d lie on numa%d for lack of memory", f.MiB, f.Node, f.On)
		}
	}
	return ""
}

// memoryClass returns the same text for about the same amount of memory: the kernel takes some of
// it, most from the first node. One DIMM more or less gives another text.
func memoryClass(bytes uint64) string {
	if bytes == 0 {
		return "memory unknown"
	}
	return fmt.Sprintf("about %.0f GiB", math.Exp2(math.Round(4*math.Log2(float64(bytes)/(1<<30)))/4))
}
