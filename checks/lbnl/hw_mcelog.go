package lbnl

import (
	"context"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// hwMCELog asks the mcelog daemon for memory errors. It fails if a memory module had
// more than 9 corrected errors or any uncorrected error within 24 hours. The variables
// MCELOG_MAX_CORRECTED_RATE and MCELOG_MAX_UNCORRECTED_RATE set other limits; if
// one of them is empty, the check fails on any output of mcelog. MCELOG and
// MCELOG_ARGS replace the command "mcelog --client". Where no daemon of mcelog runs it warns:
// mcelog refuses AMD processors from family 16 on, and check_hw_edac needs no daemon.
//
//	node* || export MCELOG_MAX_CORRECTED_RATE=100
//	node* || check_hw_mcelog
type hwMCELog struct {
	Surplus []string `arg:"*"` // ignored, as in LBNL NHC
}

func init() {
	checks.Register(checks.Info{
		Name:    "check_hw_mcelog",
		Usage:   "",
		Summary: "mcelog reports no memory module with too many errors",
		Lane:    checks.Cmd,
		New:     func() checks.Check { return &hwMCELog{} },
		Do: func() map[string]string {
			return map[string]string{
				"hw.mce.corrected":   "Plan to replace the memory module: it still works but wears out. Raise MCELOG_MAX_CORRECTED_RATE only if its manufacturer recommends it.",
				"hw.mce.uncorrected": "Replace the memory module; the BMC's event log names its slot. Data was lost: programs that used it crashed or computed wrong results.",
				"hw.mce.any":         "Run mcelog --client by hand: with an empty limit, the check fails on any output.",
				"hw.mce.report":      "No action: this is the output of mcelog. See the failure that follows.",
				"hw.mce.daemon":      "Start the mcelog service: without it, memory errors are not counted. Replace the line by check_hw_edac on nodes that run rasdaemon instead, and on AMD, where mcelog does not run.",
				"hw.mce.absent":      "Install mcelog, or remove the line on nodes that run rasdaemon instead.",
			}
		},
		Vars: map[string]string{"MCELOG": "mcelog", "MCELOG_ARGS": "--client", "MCELOG_MAX_CORRECTED_RATE": "9", "MCELOG_MAX_UNCORRECTED_RATE": "0"},
	})
}

// noDaemon are texts of mcelog without a daemon: one that was killed leaves its socket behind, one that was
// stopped removes it (client.c), and on a processor that mcelog does not support there is none (mcelog.c).
// LBNL NHC knows the first only: it passes with the others.
var noDaemon = []string{"Connection refused", "client connect: ", "mcelog does not support this processor"}

func (c *hwMCELog) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	const name = "check_hw_mcelog"
	limits := readErrorLimits(env)
	for _, l := range []*errorLimit{&limits.corrected, &limits.uncorrected} {
		if !l.parse() {
			return []checks.Finding{checks.WrongValue(name, l.variable, l.word, "a number")}
		}
	}
	cmd := env.Command(env.Words("MCELOG", "mcelog", "MCELOG_ARGS", "--client")...)
	cmd.Output, cmd.Merge = maxOutput, true
	x := env.RunTool(ctx, "", cmd)
	text := checks.OutputText(x.Output)
	switch {
	case x.Err != nil && limits.set():
		return []checks.Finding{{Code: "hw.mce.absent", Severity: checks.Skip, Message: name + ":  " + x.Err.Error()}}
	case x.Err != nil:
		return checks.Unreadable(x.Err)
	case x.Truncated:
		return checks.Unreadable(fmt.Errorf("output of %s is longer than %d bytes", strings.Join(cmd.Argv, " "), maxOutput))
	case text == "":
		return nil
	case slices.ContainsFunc(noDaemon, func(words string) bool { return strings.Contains(text, words) }):
		note := checks.Finding{
			Code: "hw.mce.daemon", Severity: checks.Warn,
			Message: fmt.Sprintf("%s:  No mcelog daemon running on %s", name, env.Lookup("HOSTNAME")),
		}
		forSyslog := note
		forSyslog.Syslog = true
		return []checks.Finding{note, forSyslog}
	case !limits.set():
		return []checks.Finding{
			{Code: "hw.mce.report", Severity: checks.Warn, Message: name + ":  MCEs detected:  " + text},
			{Code: "hw.mce.any", Severity: checks.Fail, Message: name + ":  MCEs detected in log.", Want: "no output", Got: text},
		}
	}
	return limits.judge(name, probe.ParseMemoryErrors(text))
}

// errorLimit is the highest number of errors that a memory module may have within 24 hours.
type errorLimit struct {
	variable string
	word     string // as written; empty: no limit
	most     *big.Rat
}

// errorLimits apply only if both are set.
type errorLimits struct{ corrected, uncorrected errorLimit }

func readErrorLimits(env *checks.Env) errorLimits {
	limit := func(variable, word string) errorLimit {
		return errorLimit{variable: variable, word: env.Setting(variable, word)}
	}
	return errorLimits{
		corrected:   limit("MCELOG_MAX_CORRECTED_RATE", "9"),
		uncorrected: limit("MCELOG_MAX_UNCORRECTED_RATE", "0"),
	}
}

func (l *errorLimit) parse() (ok bool) {
	if l.word == "" {
		return true
	}
	l.most, ok = checks.ParseNumber(l.word)
	return ok
}

func (l errorLimits) set() bool { return l.corrected.most != nil && l.uncorrected.most != nil }

// judge reports the first counter above its limit twice, as LBNL NHC does: as a line of the
// log and as the failure.
func (l errorLimits) judge(name string, counters []probe.MemoryErrors) []checks.Finding {
	for _, e := range counters {
		limit, code, kind := l.uncorrected, "hw.mce.uncorrected", "UNcorrected"
		if e.Corrected {
			limit, code, kind = l.corrected, "hw.mce.corrected", "corrected"
		}
		if new(big.Rat).SetInt64(e.Day).Cmp(limit.most) <= 0 {
			continue
		}
		f := checks.Finding{
			Code:     code,
			Severity: checks.Fail,
			Device:   checks.Device{Kind: "dimm", Name: e.DIMM},
			Message:  fmt.Sprintf("%s:  MCEs detected - %d %s memory errors detected (limit of %s/day).", name, e.Day, kind, limit.word),
			Want:     "at most " + limit.word + " in 24 hours",
			Got:      strconv.FormatInt(e.Day, 10),
			Remedy:   checks.ReseatOrRMA,
		}
		return []checks.Finding{{Code: "hw.mce.report", Severity: checks.Warn, Device: f.Device, Message: f.Message}, f}
	}
	return nil
}
