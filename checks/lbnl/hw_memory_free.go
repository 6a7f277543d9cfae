package lbnl

import (
	"context"
	"strconv"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// hwMemoryFree checks how much RAM is free (check_hw_physmem_free: MemFree,
// Buffers and Cached of /proc/meminfo), how much swap space (check_hw_swap_free:
// SwapFree), or how much of both together (check_hw_mem_free). MIN is in kB
// unless it has a unit.
//
//	node* || check_hw_physmem_free 1GB
type hwMemoryFree struct {
	Min     string   `arg:"1" toml:"min"` // the least that must be free
	Surplus []string `arg:"*"`            // LBNL NHC does not look at more

	name string
	kind memoryKind
}

func init() {
	registerMemoryFree("check_hw_physmem_free", ramMemory, "enough RAM is free", map[string]string{
		"hw.memory.low": "See ps --sort -rss: processes that a job has left behind, or a daemon that grows.",
	})
	registerMemoryFree("check_hw_swap_free", swapMemory, "enough swap space is free", map[string]string{
		"hw.swap.low": "Something has been swapped out: see ps --sort -rss for what uses the memory, and swapon --show whether all swap space is in use.",
	})
	registerMemoryFree("check_hw_mem_free", bothMemories, "enough RAM and swap space together are free", map[string]string{
		"hw.ramswap.low": "See free and ps --sort -rss: processes that a job has left behind, or a daemon that grows.",
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
	_, free := c.kind.of(mem)
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
