package lbnl

import (
	"context"
	"math"
	"math/big"
	"strconv"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// psLoadAvg checks the load averages of the last 1, 5 and 15 minutes: the integer part of each
// must be less than its limit. An empty limit is not checked.
//
//	node* || check_ps_loadavg 256 192 192
type psLoadAvg struct {
	One     string   `arg:"1" toml:"one"`     // limit of the 1-minute load average
	Five    string   `arg:"2" toml:"five"`    // limit of the 5-minute load average
	Fifteen string   `arg:"3" toml:"fifteen"` // limit of the 15-minute load average
	Surplus []string `arg:"*"`                // ignored, as in LBNL NHC
}

func init() {
	checks.Register(checks.Info{
		Name:    "check_ps_loadavg",
		Usage:   "LIMIT_1 [LIMIT_5 [LIMIT_15]]",
		Summary: "the load averages are below their limits",
		Lane:    checks.Local,
		New:     func() checks.Check { return &psLoadAvg{} },
		Do: func() map[string]string {
			return map[string]string{
				"ps.loadavg.high": "Run top: look for busy processes, and for processes in state D, which wait for a disk or a file server and count as load.",
			}
		},
	})
}

func (c *psLoadAvg) Run(_ context.Context, env *checks.Env) []checks.Finding {
	const name = "check_ps_loadavg"
	words := []string{c.One, c.Five, c.Fifteen}
	limits, bad := checks.NumberLimits(name, words...)
	if bad != nil {
		return []checks.Finding{*bad}
	}
	loads, err := probe.LoadAverages(env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	env.Fact("load %.2f, %.2f, %.2f", loads[0], loads[1], loads[2])
	for i, minutes := range [...]int{1, 5, 15} {
		load := int64(math.Trunc(loads[i]))
		if limits[i] == nil || big.NewRat(load, 1).Cmp(limits[i]) < 0 {
			continue
		}
		return []checks.Finding{checks.Finding{
			Code:     "ps.loadavg.high",
			Severity: checks.Fail,
			Want:     "less than " + words[i],
			Got:      strconv.FormatFloat(loads[i], 'f', 2, 64),
		}.Phrase(name, "%d-minute load average too high:  %d >= %s", minutes, load, words[i])}
	}
	return nil
}
