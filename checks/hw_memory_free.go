package checks

import (
	"context"
	"fmt"
	"strconv"
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
	Register(Info{
		Name:    name,
		Usage:   "MIN",
		Summary: summary,
		Lane:    Local,
		New:     func() Check { return &hwMemoryFree{name: name, kind: kind} },
		Do:      advice,
	})
}

func (c *hwMemoryFree) Run(_ context.Context, env *Env) []Finding {
	least, ok := parseSize(c.Min)
	if !ok {
		return []Finding{badValue(c.name, "minimum", c.Min, wantSize)}
	}
	mem, err := env.Host.Memory()
	if err != nil {
		return unreadable(err)
	}
	_, free := c.kind.of(mem)
	if wholeKB(free).Cmp(least.kB) >= 0 {
		return nil
	}
	return []Finding{{
		Code:     c.kind.code + ".low",
		Severity: Fail,
		Message:  fmt.Sprintf("%s:  Not enough %s (%d kB < %s kB).", c.name, c.kind.free, free, least.text),
		Want:     "at least " + least.text + " kB",
		Got:      strconv.FormatUint(free, 10) + " kB",
	}}
}
