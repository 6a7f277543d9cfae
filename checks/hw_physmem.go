package checks

import (
	"context"
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// hwPhysMem checks the size of the node's RAM, MemTotal of /proc/meminfo.
// Sizes are in kB unless they have a unit. FUDGE is how far the RAM may lie
// outside: a size, or N% of the actual RAM. A maximum that is not given is 0,
// as in LBNL NHC.
//
//	node* || check_hw_physmem 2010GB 2016GB 1%
type hwPhysMem struct {
	Min     string   `arg:"1" toml:"min"`   // a size
	Max     string   `arg:"2" toml:"max"`   // a size
	Fudge   string   `arg:"3" toml:"fudge"` // a size, or a percentage of the RAM
	Surplus []string `arg:"*"`              // LBNL NHC does not look at more
}

func init() {
	Register(Info{
		Name:    "check_hw_physmem",
		Usage:   "MIN MAX [FUDGE]",
		Summary: "the size of the RAM lies between a minimum and a maximum",
		Lane:    Local,
		New:     func() Check { return &hwPhysMem{} },
		Do: map[string]string{
			"hw.memory.small": "A memory module is gone or was switched off after errors: see dmidecode -t 17 and the BMC's log.",
			"hw.memory.large": "The node has more memory than the configuration says: correct the line in nhc.conf.",
		},
	})
}

const wantSize = "a size such as 64G or 1.5TB"

func (c *hwPhysMem) Run(_ context.Context, env *Env) []Finding {
	const name = "check_hw_physmem"
	least, ok := parseSize(c.Min)
	if !ok {
		return []Finding{badValue(name, "minimum", c.Min, wantSize)}
	}
	most, ok := parseSize(c.Max)
	if !ok {
		return []Finding{badValue(name, "maximum", c.Max, wantSize)}
	}
	fudge, ok := parseFudge(c.Fudge)
	if !ok {
		return []Finding{badValue(name, "fudge factor", c.Fudge, wantSize+", or a percentage")}
	}
	mem, err := env.Host.Memory()
	if err != nil {
		return unreadable(err)
	}
	ram := new(big.Rat).SetInt(new(big.Int).SetUint64(mem.Total))
	slack := fudge(ram)
	var code, text, want string
	switch {
	case new(big.Rat).Add(ram, slack).Cmp(least.kB) < 0:
		code, text, want = "hw.memory.small", "less than minimum allowed", least.text
	case new(big.Rat).Sub(ram, slack).Cmp(most.kB) > 0:
		code, text, want = "hw.memory.large", "greater than maximum allowed", most.text
	default:
		return nil
	}
	return []Finding{{
		Code:     code,
		Severity: Fail,
		Message:  fmt.Sprintf("%s:  Actual RAM size (%d kB) %s (%s kB).", name, mem.Total, text, want),
		Want:     want + " kB",
		Got:      strconv.FormatUint(mem.Total, 10) + " kB",
	}}
}

// parseFudge reads a tolerance, a size or N% of the actual amount, and returns
// what it comes to. A percentage is rounded down to whole kB.
func parseFudge(word string) (func(actual *big.Rat) *big.Rat, bool) {
	digits, percent := strings.CutSuffix(word, "%")
	if !percent {
		s, ok := parseSize(word)
		return func(*big.Rat) *big.Rat { return s.kB }, ok
	}
	share, ok := parseNumber(digits)
	if !ok {
		return nil, false
	}
	return func(actual *big.Rat) *big.Rat {
		r := new(big.Rat).Mul(actual, share)
		r.Quo(r, big.NewRat(100, 1))
		return r.SetInt(new(big.Int).Quo(r.Num(), r.Denom()))
	}, true
}
