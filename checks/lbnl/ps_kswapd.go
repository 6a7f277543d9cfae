package lbnl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/big"
	"os"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// psKswapd checks that the kernel's page-out threads (kswapd), one for each NUMA node,
// have used similar CPU time. A large difference means that one NUMA node is short of
// memory. The check fails if one thread has used more than THRESHOLD seconds; if one has used
// none and another more than half of THRESHOLD; or if one has used more than DISCREPANCY times
// the time of another. A machine with one such thread passes. ACTIONS are log, syslog, die or
// ignore, in their order; the default is die.
//
//	node* || check_ps_kswapd 500 100 log syslog
type psKswapd struct {
	Threshold   string   `arg:"1" toml:"threshold"`   // seconds of CPU time
	Discrepancy string   `arg:"2" toml:"discrepancy"` // highest allowed ratio of two threads' times
	Actions     []string `arg:"*" toml:"actions"`     // log, syslog, die, ignore
}

func init() {
	checks.Register(checks.Info{
		Name:    "check_ps_kswapd",
		Usage:   "THRESHOLD DISCREPANCY [log|syslog|die|ignore ...]",
		Summary: "the page-out threads of all NUMA nodes are equally busy",
		Lane:    checks.Local,
		New:     func() checks.Check { return &psKswapd{} },
		Do: func() map[string]string {
			return map[string]string{
				"ps.kswapd.imbalance": "Run numastat -m: one NUMA node has run out of memory. If no job explains it, reboot the node and look for a missing memory module.",
			}
		},
	})
}

func (c *psKswapd) Run(_ context.Context, env *checks.Env) []checks.Finding {
	const name = "check_ps_kswapd"
	limits, bad := checks.NumberLimits(name, cmp.Or(c.Threshold, "0"), cmp.Or(c.Discrepancy, "0"))
	if bad != nil {
		return []checks.Finding{*bad}
	}
	procs, err := probe.Processes(env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	var pids []string
	var times []int64
	for _, p := range procs {
		if !strings.Contains(p.Args, "kswapd") || p.UID != 0 || !probe.RootsOwn(env.Host, p.PID) { // any user can start a process with that name
			continue
		}
		u, err := probe.ReadUsage(env.Host, p)
		if errors.Is(err, os.ErrProcessDone) {
			continue
		}
		if err != nil {
			return checks.Unreadable(err)
		}
		pids, times = append(pids, strconv.Itoa(p.PID)), append(times, int64(u.Seconds()))
	}
	if balanced(times, limits[0], limits[1]) {
		return nil
	}
	findings, _ := actionsOf(c.Actions).take(checks.Finding{
		Code:   "ps.kswapd.imbalance",
		Device: checks.Device{Kind: "process", Name: "kswapd"},
		Got:    strings.Trim(fmt.Sprint(times), "[]") + " s",
	}.Phrase(name, "NUMA imbalance detected among PIDs %s.", strings.Join(pids, " ")), func() {})
	return findings
}

// balanced reports whether the threads have used similar CPU time, in seconds.
func balanced(times []int64, threshold, discrepancy *big.Rat) bool {
	if len(times) < 2 {
		return true
	}
	least, most := times[0], times[0]
	for _, t := range times {
		if big.NewRat(t, 1).Cmp(threshold) > 0 {
			return false
		}
		least, most = min(least, t), max(most, t)
	}
	if least == 0 {
		return new(big.Rat).Mul(big.NewRat(most, 1), big.NewRat(2, 1)).Cmp(threshold) <= 0
	}
	return big.NewRat(most/least, 1).Cmp(discrepancy) <= 0
}
