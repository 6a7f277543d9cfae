package lbnl

import (
	"context"
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// memoryKind is what the checks of the memory's size look at: RAM, swap space,
// or both together.
type memoryKind struct {
	code      string // "hw.memory" of hw.memory.small
	size      string // LBNL NHC's words for all of it: "RAM size"
	free      string // and for what is free: "RAM free"
	ram, swap bool   // what is added up
}

var (
	ramMemory    = memoryKind{code: "hw.memory", size: "RAM size", free: "RAM free", ram: true}
	swapMemory   = memoryKind{code: "hw.swap", size: "SWAP size", free: "swap free", swap: true}
	bothMemories = memoryKind{code: "hw.ramswap", size: "system memory", free: "free memory", ram: true, swap: true}
)

// of picks what the check is about, in kB.
func (k memoryKind) of(m probe.Memory) (total, free uint64) {
	if k.ram {
		total, free = m.Total, m.Free
	}
	if k.swap {
		total, free = total+m.SwapTotal, free+m.SwapFree
	}
	return total, free
}

// hwMemory checks the size of the node's RAM (check_hw_physmem, MemTotal of
// /proc/meminfo), of its swap space (check_hw_swap, SwapTotal), or of both
// together (check_hw_mem). Sizes are in kB unless they have a unit. FUDGE is how
// far the size may lie outside: a size, or N% of the actual one. A maximum that
// is not given is 0, as in LBNL NHC.
//
//	node* || check_hw_physmem 2010GB 2016GB 1%
type hwMemory struct {
	Min     string   `arg:"1" toml:"min"`   // the least there may be
	Max     string   `arg:"2" toml:"max"`   // the most there may be
	Fudge   string   `arg:"3" toml:"fudge"` // how far the size may lie outside
	Surplus []string `arg:"*"`              // LBNL NHC does not look at more

	name string
	kind memoryKind
}

func init() {
	registerMemory("check_hw_physmem", ramMemory, "the size of the RAM lies between a minimum and a maximum", map[string]string{
		"hw.memory.small": "A memory module is gone or was switched off after errors: see dmidecode -t 17 and the BMC's log.",
		"hw.memory.large": "The node has more memory than the configuration says: correct the line in nhc.conf.",
	})
	registerMemory("check_hw_swap", swapMemory, "the size of the swap space lies between a minimum and a maximum", map[string]string{
		"hw.swap.small": "A swap device or file is not in use: compare swapon --show with /etc/fstab.",
		"hw.swap.large": "The node has more swap space than the configuration says: see swapon --show, or correct the line in nhc.conf.",
	})
	registerMemory("check_hw_mem", bothMemories, "RAM and swap space together lie between a minimum and a maximum", map[string]string{
		"hw.ramswap.small": "Either a memory module is gone (see dmidecode -t 17 and the BMC's log) or swap space is not in use (see swapon --show).",
		"hw.ramswap.large": "The node has more RAM or swap space than the configuration says: see free, or correct the line in nhc.conf.",
	})
}

func registerMemory(name string, kind memoryKind, summary string, advice map[string]string) {
	checks.Register(checks.Info{
		Name:    name,
		Usage:   "MIN MAX [FUDGE]",
		Summary: summary,
		Lane:    checks.Local,
		New:     func() checks.Check { return &hwMemory{name: name, kind: kind} },
		Do:      func() map[string]string { return advice },
	})
}

const wantSize = "a size such as 64G or 1.5TB"

func (c *hwMemory) Run(_ context.Context, env *checks.Env) []checks.Finding {
	least, ok := checks.ParseSize(c.Min)
	if !ok {
		return []checks.Finding{checks.WrongValue(c.name, "minimum", c.Min, wantSize)}
	}
	most, ok := checks.ParseSize(c.Max)
	if !ok {
		return []checks.Finding{checks.WrongValue(c.name, "maximum", c.Max, wantSize)}
	}
	fudge, ok := parseFudge(c.Fudge)
	if !ok {
		return []checks.Finding{checks.WrongValue(c.name, "fudge factor", c.Fudge, wantSize+", or a percentage")}
	}
	mem, err := probe.ReadMemory(env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	total, _ := c.kind.of(mem)
	env.Fact("%s", gib(total))
	actual := wholeKB(total)
	slack := fudge(actual)
	var code, text, want string
	switch {
	case new(big.Rat).Add(actual, slack).Cmp(least.KB) < 0:
		code, text, want = ".small", "less than minimum allowed", least.Text
	case new(big.Rat).Sub(actual, slack).Cmp(most.KB) > 0:
		code, text, want = ".large", "greater than maximum allowed", most.Text
	default:
		return nil
	}
	return []checks.Finding{checks.Finding{
		Code:     c.kind.code + code,
		Severity: checks.Fail,
		Want:     want + " kB",
		Got:      strconv.FormatUint(total, 10) + " kB",
	}.Phrase(c.name, "Actual %s (%d kB) %s (%s kB).", c.kind.size, total, text, want)}
}

// gib returns an amount in kB as a fact has it.
func gib(kB uint64) string { return fmt.Sprintf("%.1f GiB", float64(kB)/(1<<20)) }

func wholeKB(n uint64) *big.Rat { return new(big.Rat).SetInt(new(big.Int).SetUint64(n)) }

// parseFudge reads a tolerance, a size or N% of the actual amount, and returns
// what it comes to. A percentage is rounded down to whole kB.
func parseFudge(word string) (func(actual *big.Rat) *big.Rat, bool) {
	digits, percent := strings.CutSuffix(word, "%")
	if !percent {
		s, ok := checks.ParseSize(word)
		return func(*big.Rat) *big.Rat { return s.KB }, ok
	}
	share, ok := checks.ParseNumber(digits)
	if !ok {
		return nil, false
	}
	return func(actual *big.Rat) *big.Rat {
		r := new(big.Rat).Mul(actual, share)
		r.Quo(r, big.NewRat(100, 1))
		return r.SetInt(new(big.Int).Quo(r.Num(), r.Denom()))
	}, true
}
