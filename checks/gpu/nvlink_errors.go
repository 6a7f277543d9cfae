package gpu

import (
	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"

	_ "embed"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/BurntSushi/toml"
)

// Errors of NVLinks since the last run.

//go:embed nvlinkerrors.toml
var nvlinkErrorsData string

// linkLimit is a row of nvlinkerrors.toml.
type linkLimit struct {
	Counter  string  `toml:"counter"`
	What     string  `toml:"what"`
	Most     float64 `toml:"most"`
	Per      string  `toml:"per"` // run, minute, second
	Severity string  `toml:"severity"`
	Source   string  `toml:"source"`
}

// linkLimits is the content of nvlinkerrors.toml.
type linkLimits struct {
	BER struct {
		Most   float64 `toml:"most"`
		Source string  `toml:"source"`
	} `toml:"ber"`
	Limits []linkLimit `toml:"limit"`
}

var nvlinkLimits = sync.OnceValue(func() *linkLimits {
	l, err := parseLinkLimits(nvlinkErrorsData)
	if err != nil {
		panic(err) // the file is built in, and a test parses it
	}
	return l
})

func parseLinkLimits(text string) (*linkLimits, error) {
	l := &linkLimits{}
	meta, err := toml.Decode(text, l)
	if err != nil {
		return nil, err
	}
	if more := meta.Undecoded(); len(more) > 0 {
		return nil, fmt.Errorf("unknown key %s", more[0])
	}
	for _, row := range l.Limits {
		switch {
		case row.Counter == "" || row.What == "" || row.Source == "":
			return nil, errors.New("a limit has no counter, what or source")
		case row.Per != "run" && row.Per != "minute" && row.Per != "second":
			return nil, fmt.Errorf("%s: per %q: want run, minute or second", row.Counter, row.Per)
		case row.Severity != checks.Warn.String() && row.Severity != checks.Fail.String():
			return nil, fmt.Errorf("%s: severity %q: want warn or fail", row.Counter, row.Severity)
		}
	}
	return l, nil
}

// linkErrors is the state of a GPU's links that the check keeps for the next run.
type linkErrors struct {
	Boot   string          `json:"boot"`
	Up     []bool          `json:"up"`
	Counts nvml.LinkCounts `json:"counts"`
	Failed []linkFailure   `json:"failed,omitempty"`
}

// linkFailure is a failure of a GPU that lasts for failureDuration: a drained node has no traffic,
// so its next run would find no errors.
type linkFailure struct {
	At   time.Time `json:"at"`
	What string    `json:"what"` // the row's what
	On   string    `json:"on"`
	Want string    `json:"want"`
	Got  string    `json:"got"`
}

// failureDuration is the window of check_ib_errors.
const failureDuration = time.Hour

// judgeErrors judges the new errors of a GPU's links. If a counter has decreased the driver was
// reloaded or someone has reset the counters: then no counter of the GPU is judged.
func (r *linkRun) judgeErrors(g *nvml.GPU, m *memory[linkErrors], boot string) {
	counts, known := Value(r.GPUs, g.NVLink.Counts)
	rates, _ := Value(r.GPUs, g.NVLink.BER)
	if !known {
		return
	}
	then, compare := m.of(g)
	next := linkErrors{Boot: boot, Up: g.NVLinks.Value, Counts: counts}
	defer func() { m.next.GPUs[g.UUID.Value] = next }()
	if boot == "" || then.Boot != boot {
		return
	}
	if !compare {
		next.Failed = r.reportEarlier(g, then, nil)
		return
	}
	added := map[string][]uint64{}
	for name, now := range counts {
		for link := range now {
			if !at(then.Up, link) || link >= len(then.Counts[name]) || !at(g.NVLinks.Value, link) {
				added[name] = append(added[name], 0)
				continue
			}
			n, ok := subtractCounter(then.Counts[name][link], now[link])
			if !ok {
				return
			}
			added[name] = append(added[name], n)
		}
	}
	for _, row := range nvlinkLimits().Limits {
		if f := r.judgeCounter(g, row, added[row.Counter], m.elapsed.Seconds()); f != nil {
			next.Failed = append(next.Failed, *f)
		}
	}
	next.Failed = append(next.Failed, r.reportEarlier(g, then, next.Failed)...)
	r.judgeBER(g, rates, added["effective"])
}

// subtractCounter returns how much a counter has grown. Older counters have 32 bits and wrap; any
// other decrease is a reset, and not ok.
func subtractCounter(then, now uint64) (added uint64, ok bool) {
	const full, near = math.MaxUint32, math.MaxUint32 - math.MaxUint32/16
	switch {
	case now >= then:
		return now - then, true
	case then >= near && then <= full && now <= math.MaxUint32/16:
		return full - then + now + 1, true
	}
	return 0, false
}

// reportEarlier reports and returns the failures of earlier runs that still last and that this run
// has not found again.
func (r *linkRun) reportEarlier(g *nvml.GPU, then linkErrors, now []linkFailure) (still []linkFailure) {
	for _, f := range then.Failed {
		ago := r.NVML.Taken.Sub(f.At)
		if ago < 0 || ago >= failureDuration || slices.ContainsFunc(now, func(n linkFailure) bool { return n.What == f.What }) {
			continue
		}
		still = append(still, f)
		r.Report(g, checks.Finding{Code: "gpu.nvlink.errors", Severity: checks.Fail, Remedy: checks.ResetGPU, Want: f.Want, Got: f.Got},
			"%s on %s %d minutes ago", f.What, f.On, int(ago.Minutes()))
	}
	return still
}

// judgeCounter judges one counter and returns its failure, if any.
func (r *linkRun) judgeCounter(g *nvml.GPU, row linkLimit, added []uint64, seconds float64) *linkFailure {
	unit := map[string]float64{"run": 1, "minute": seconds / 60, "second": seconds}[row.Per]
	var bad []int
	var worst uint64
	for link, n := range added {
		if rate := float64(n) / unit; n > 0 && rate > row.Most {
			bad, worst = append(bad, link), max(worst, n)
		}
	}
	if len(bad) == 0 {
		return nil
	}
	f := checks.Finding{Code: "gpu.nvlink.errors", Severity: checks.Warn, Remedy: checks.ResetGPU, Want: fmt.Sprintf("at most %g", row.Most), Got: fmt.Sprint(worst)}
	if row.Per != "run" {
		f.Want, f.Got = f.Want+" per "+row.Per, fmt.Sprintf("%.1f", float64(worst)/unit)
	}
	if r.Strict || row.Severity == checks.Fail.String() {
		f.Severity = checks.Fail
	}
	r.Report(g, f, "%s on %s since the last run", row.What, formatLinkNumbers(bad))
	if f.Severity != checks.Fail {
		return nil
	}
	return &linkFailure{At: r.NVML.Taken, What: row.What, On: formatLinkNumbers(bad), Want: f.Want, Got: f.Got}
}

// formatLinkNumbers returns "NVLink 7" or "NVLinks 4, 7".
func formatLinkNumbers(links []int) string {
	return strings.TrimSuffix(strings.TrimSuffix(formatLinks(links), " is"), " are")
}

// judgeBER judges the bit error rates of links with new effective errors: without these a high
// rate is old, since the rate never recovers.
func (r *linkRun) judgeBER(g *nvml.GPU, rates []float64, effective []uint64) {
	limit := nvlinkLimits().BER.Most
	var bad []int
	worst := 0.0
	for link, rate := range rates {
		if rate > limit && at(effective, link) > 0 {
			bad, worst = append(bad, link), max(worst, rate)
		}
	}
	if len(bad) == 0 {
		return
	}
	f := checks.Finding{Code: "gpu.nvlink.ber", Severity: checks.Warn, Remedy: checks.ResetGPU, Want: fmt.Sprintf("at most %g", limit), Got: fmt.Sprintf("%g", worst)}
	if r.Strict {
		f.Severity = checks.Fail
	}
	r.Report(g, f, "effective bit error rate of %s", formatLinkNumbers(bad))
}
