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

// memoryKind is the kind of memory that a check measures: RAM, swap space, or their sum.
type memoryKind struct {
	code      string // "hw.memory" of hw.memory.small
	size      string // LBNL NHC's term for the total: "RAM size"
	free      string // LBNL NHC's term for the free part: "RAM free"
	ram, swap bool   // the parts of the sum
}

var (
	ramMemory    = memoryKind{code: "hw.memory", size: "RAM size", free: "RAM free", ram: true}
	swapMemory   = memoryKind{code: "hw.swap", size: "SWAP size", free: "swap free", swap: true}
	bothMemories = memoryKind{code: "hw.ramswap", size: "system memory", free: "free memory", ram: true, swap: true}
)

// amounts returns the total and the free memory of this kind, in kB.
func (k memoryKind) amounts(m probe.Memory) (total, free uint64) {
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
// together (check_hw_mem). Sizes are in kB unless they have a unit. FUDGE is the
// tolerance: a size, or N% of the actual size. A missing maximum is 0, as in LBNL NHC. On nodes with
// Grace CPUs the RAM contains the memory of GPUs once the driver has added it: set a minimum without it
// and a maximum with it.
//
//	node* || check_hw_physmem 2010GB 2016GB 1%
type hwMemory struct {
	Min     string   `arg:"1" toml:"min"`   // the minimum
	Max     string   `arg:"2" toml:"max"`   // the maximum
	Fudge   string   `arg:"3" toml:"fudge"` // the tolerance of both
	Surplus []string `arg:"*"`              // ignored, as in LBNL NHC

	name string
	kind memoryKind
}

func init() {
	registerMemory("check_hw_physmem", ramMemory, "the size of the RAM is between a minimum and a maximum", map[string]string{
		"hw.memory.small": "Find the memory module that is missing or was disabled after errors: run dmidecode -t 17 and read the BMC's event log.",
		"hw.memory.large": "Correct the line in nhc.conf: the node has more memory than the line allows.",
	})
	registerMemory("check_hw_swap", swapMemory, "the size of the swap space is between a minimum and a maximum", map[string]string{
		"hw.swap.small": "Find the swap device or file that is not in use: compare swapon --show with /etc/fstab.",
		"hw.swap.large": "Compare swapon --show with the line in nhc.conf, and correct one of them: the node has more swap space than the line allows.",
	})
	registerMemory("check_hw_mem", bothMemories, "RAM and swap space together are between a minimum and a maximum", map[string]string{
		"hw.ramswap.small": "Find the missing memory module (dmidecode -t 17, the BMC's event log) or the swap space that is not in use (swapon --show).",
		"hw.ramswap.large": "Compare the output of free with the line in nhc.conf, and correct the line: the node has more RAM or swap space than it allows.",
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

// Contradiction implements [checks.Contradicting].
func (c *hwMemory) Contradiction() (word, why string) {
	word, why = exclude(c.Min, c.Max)
	fudge, ok := parseFudge(c.Fudge)
	if why == "" || !ok {
		return word, why
	}
	least, _ := checks.ParseSize(c.Min)
	most, _ := checks.ParseSize(c.Max)
	low, high := new(big.Rat).Sub(least.KB, fudge(least.KB)), new(big.Rat).Add(most.KB, fudge(most.KB))
	if low.Cmp(high) <= 0 { // the tolerance makes room for both
		return "", ""
	}
	return word, why
}

// exclude returns the minimum if it is more than the maximum, and says so.
func exclude(low, high string) (word, why string) {
	least, ok1 := checks.ParseSize(low)
	most, ok2 := checks.ParseSize(high)
	if high != "" && ok1 && ok2 && least.KB != nil && most.KB != nil && least.KB.Cmp(most.KB) > 0 {
		return low, "the minimum is more than the maximum"
	}
	return "", ""
}

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
	total, _ := c.kind.amounts(mem)
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

// gib formats an amount in kB for a fact.
func gib(kB uint64) string { return fmt.Sprintf("%.1f GiB", float64(kB)/(1<<20)) }

func wholeKB(n uint64) *big.Rat { return new(big.Rat).SetInt(new(big.Int).SetUint64(n)) }

// parseFudge parses a tolerance: a size, or N% of the actual amount. The function that it
// returns gives the tolerance in kB, a percentage rounded down.
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
