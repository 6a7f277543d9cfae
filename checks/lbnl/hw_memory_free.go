package lbnl

import (
	"context"
	"strconv"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// hwMemoryFree checks the free RAM (check_hw_physmem_free: the sum of MemFree,
// Buffers and Cached of /proc/meminfo), the free swap space (check_hw_swap_free:
// SwapFree), or their sum (check_hw_mem_free). MIN is in kB unless it has a unit.
//
//	node* || check_hw_physmem_free 1GB
type hwMemoryFree struct {
	Min     string   `arg:"1" toml:"min"` // the minimum of free memory
	Surplus []string `arg:"*"`            // ignored, as in LBNL NHC

	name string
	kind memoryKind
}

func init() {
	registerMemoryFree("check_hw_physmem_free", ramMemory, "enough RAM is free", map[string]string{
		"hw.memory.low": "Run ps aux --sort -rss: look for processes left behind by a job, or a daemon with a memory leak.",
	})
	registerMemoryFree("check_hw_swap_free", swapMemory, "enough swap space is free", map[string]string{
		"hw.swap.low": "Run ps aux --sort -rss to find the processes that use the memory, and swapon --show to see whether all swap space is active.",
	})
	registerMemoryFree("check_hw_mem_free", bothMemories, "enough RAM and swap space together are free", map[string]string{
		"hw.ramswap.low": "Run free and ps aux --sort -rss: look for processes left behind by a job, or a daemon with a memory leak.",
	})
}

func registerMemoryFree(name string, kind memoryKind, summary string, advice map[string]string) {
	checks.Register(checks.Info{
		Name:    name,
		Usage:   "MIN",
		Summary: summary,
		Lane:    checks.Local,
		New:     func() checks.Check { return &hwMemoryFree{name: name, kind: kind} },
		Do:      func() map[string]string { return advice },
	})
}

func (c *hwMemoryFree) Run(_ context.Context, env *checks.Env) []checks.Finding {
	least, ok := checks.ParseSize(c.Min)
	if !ok {
		return []checks.Finding{checks.WrongValue(c.name, "minimum", c.Min, wantSize)}
	}
	mem, err := probe.ReadMemory(env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	_, free := c.kind.amounts(mem)
	env.Fact("%s free", gib(free))
	if wholeKB(free).Cmp(least.KB) >= 0 {
		return nil
	}
	return []checks.Finding{checks.Finding{
		Code:     c.kind.code + ".low",
		Severity: checks.Fail,
		Want:     "at least " + least.Text + " kB",
		Got:      strconv.FormatUint(free, 10) + " kB",
	}.Phrase(c.name, "Not enough %s (%d kB < %s kB).", c.kind.free, free, least.Text)}
}
