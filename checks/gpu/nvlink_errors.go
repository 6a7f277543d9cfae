package gpu

import (
	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"

	_ "embed"
	"errors"
	"fmt"
	"maps"
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
	then, compare := m.of(g)
	same := boot != "" && then.Boot == boot
	if !known {
		if same {
			r.reportEarlier(g, then, nil)
			m.keep(g)
		}
		return
	}
	next := linkErrors{Boot: boot, Up: slices.Clone(g.NVLinks.Value), Counts: nvml.LinkCounts{}}
	for link := range next.Up {
		next.Up[link] = next.Up[link] || same && at(g.NVLinksUnread, link) && at(then.Up, link)
	}
	defer func() { m.next.GPUs[g.UUID.Value] = next }()
	if g.NVLink.Counts.Err != nil && same { // a counter that is unread on all links is missing
		counts = maps.Clone(counts)
		for name, past := range then.Counts {
			if _, read := counts[name]; !read {
				counts[name] = slices.Repeat([]uint64{nvml.UnreadCount}, len(past))
			}
		}
	}
	added, reset := map[string][]checks.Growth{}, false
	for name, list := range counts {
		for link, n := range list {
			was := at(then.Counts[name], link)
			had := compare && same && at(then.Up, link) && next.Up[link] && link < len(then.Counts[name])
			now := nvml.Reading[uint64]{Value: n, Known: n != nvml.UnreadCount && !at(g.NVLinksUnread, link)}
			value, grown := m.counter(g, fmt.Sprintf("%s %d", name, link), now, was, had)
			if grown.Known {
				n, ok := subtractCounter(was, value)
				grown.N, reset = n, reset || !ok
			}
			next.Counts[name], added[name] = append(next.Counts[name], value), append(added[name], grown)
		}
	}
	switch {
	case !same:
		return
	case !compare:
		next.Failed = r.reportEarlier(g, then, nil)
		return
	case reset:
		return
	}
	for _, row := range nvlinkLimits().Limits {
		if f := r.judgeCounter(g, row, added[row.Counter]); f != nil {
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
func (r *linkRun) judgeCounter(g *nvml.GPU, row linkLimit, added []checks.Growth) *linkFailure {
	unit := map[string]time.Duration{"minute": time.Minute, "second": time.Second}[row.Per]
	var bad []int
	worst := 0.0
	for link, n := range added {
		rate := float64(n.N)
		if n.N > 0 && unit > 0 {
			rate = n.Per(unit)
		}
		if n.N > 0 && rate > row.Most {
			bad, worst = append(bad, link), max(worst, rate)
		}
	}
	if len(bad) == 0 {
		return nil
	}
	f := checks.Finding{Code: "gpu.nvlink.errors", Severity: checks.Warn, Remedy: checks.ResetGPU, Want: fmt.Sprintf("at most %g", row.Most), Got: fmt.Sprintf("%.0f", worst)}
	if unit > 0 {
		f.Want, f.Got = f.Want+" per "+row.Per, fmt.Sprintf("%.1f", worst)
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
func (r *linkRun) judgeBER(g *nvml.GPU, rates []float64, effective []checks.Growth) {
	limit := nvlinkLimits().BER.Most
	var bad []int
	worst := 0.0
	for link, rate := range rates {
		if rate > limit && at(effective, link).N > 0 {
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
