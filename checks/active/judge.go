package active

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// How a measurement is judged: by the number on its line, by the floor of the platform for the
// very same test, by its peers, and by the node's baseline.

// measure is one number of a test.
type measure struct {
	Test      string        // "host_to_device", "gemm", "all_reduce"
	Algorithm string        // "ce", "bf16 cublaslt", "nvls"
	Size      int64         // bytes, or n of n * n matrices
	Ranks     int           // GPUs or ports that work together; 1: alone
	Device    checks.Device // zero: the node
	Model     string        // peers are of one model
	Peers     string        // and have the same text here, so that different things are not compared
	What      string        // for messages: "copy from the host"; part of the key of baselines
	Says      string        // replaces What in findings
	Other     string        // replaces "another GPU" in What, in messages of this measure alone
	Value     float64       // in Unit
	Unit      string        // "GB/s" (of 10^9 bytes), "TFLOP/s", "us"
	Least     float64       // number on the line; 0: none
	Lower     bool          // less is better

	Doubt  string // a possible external cause of the value: then it fails nothing
	Unlike string // how the node's design makes the device slower than its peers: then a distance from them is not a failure

	Limited string  // the limit that an administrator has lowered, so that the device need not reach the value of its model
	Again   float64 // value of a second, longer measurement; 0: none
}

// worse reports whether a value is on the wrong side of a limit.
func (m *measure) worse(limit float64) bool {
	if m.Lower {
		return !(m.Value <= limit)
	}
	return !(m.Value >= limit) // NaN is worse
}

// off returns a limit that is worse than a value by a part of it.
func (m *measure) off(value, part float64) float64 {
	if m.Lower {
		return value * (1 + part)
	}
	return value * (1 - part)
}

// anotherGPU is the text of What that Other replaces.
const anotherGPU = "another GPU"

// text describes the measurement.
func (m *measure) text() string {
	what := cmp.Or(m.Says, m.What)
	if m.Other == "" {
		return what
	}
	return strings.Replace(what, anotherGPU, m.Other, 1)
}

// alike returns the key of measures that are compared with each other.
func (m *measure) alike() string {
	return strings.Join([]string{m.Test, m.Algorithm, strconv.FormatInt(m.Size, 10), strconv.Itoa(m.Ranks), m.Model, m.Peers, m.What, m.Unit}, "|")
}

// alikeLimited returns the key of measures that are alike and have the same lowered limit.
func (m *measure) alikeLimited() string { return m.alike() + "|" + m.Limited }

// rate formats a value.
func rate(value float64, unit string) string {
	digits := 0
	switch size := math.Abs(value); {
	case size < 10:
		digits = 2
	case size < 1000:
		digits = 1
	}
	return strconv.FormatFloat(value, 'f', digits, 64) + " " + unit
}

// atLeast formats a limit.
func (m *measure) atLeast(limit float64) string {
	if m.Lower {
		return "at most " + rate(limit, m.Unit)
	}
	return "at least " + rate(limit, m.Unit)
}

// miss is a limit that a measure misses.
type miss struct {
	code       string // ".slow"
	severity   checks.Severity
	want, text string
}

// judge judges every measure. It reports a measure that misses several limits for the worst of
// them, or the first of equals.
func (r *activeRun) judge() {
	peers := r.findPeerLimits()
	base := recallBaselines(r.env)
	sick := r.failures || checks.Worst(r.findings) == checks.Fail // such a run is not recorded as a baseline
	for i := range r.measures {
		m := &r.measures[i]
		misses := []*miss{r.compareLine(m), r.compareFloor(m), r.comparePeers(m, peers)}
		if want, below := base.judge(*m); below {
			misses = append(misses, &miss{".baseline", checks.Fail, m.atLeast(want), m.text() + ": worse than the node's baseline"})
		}
		misses = slices.DeleteFunc(misses, func(x *miss) bool { return x == nil })
		for _, x := range misses {
			if m.Unlike == unplaced && x.severity == checks.Fail && x.code != lineCode { // the next run can have other buffers
				x.severity, x.text = checks.Warn, x.text+" ("+unplaced+")"
			}
		}
		switch {
		case len(misses) > 0:
			r.reportMiss(m, slices.MaxFunc(misses, func(x, y *miss) int { return cmp.Compare(x.severity, y.severity) })) // the first of several
		case !sick && m.Doubt == "":
			base.learn(*m)
		}
	}
	r.findings = append(r.findings, base.reportDoubts(r.Check)...)
	if r.env.Learn {
		r.findings = append(r.findings, keepBaselines(r.env, r.Check, base)...)
	}
	r.reportRates()
}

// unplaced is why buffers of the node may be near to one GPU and far from another.
const unplaced = "the kernel does not report its NUMA node"

// reportMiss reports the limit that a measure misses. If all of several peers miss the number on the
// line alike, the line is the likelier cause.
func (r *activeRun) reportMiss(m *measure, x *miss) {
	if m.Doubt != "" {
		x.severity, x.text = min(x.severity, checks.Warn), x.text+" ("+m.Doubt+")"
	}
	f := checks.Finding{Code: r.Code + x.code, Severity: x.severity, Want: x.want, Got: rate(m.Value, m.Unit)}
	if x.code == lineCode && r.allMiss(m) {
		f.Remedy = checks.FixConfig
	}
	r.report(m.Device, f, "%s", x.text)
}

func (r *activeRun) compareLine(m *measure) *miss {
	if m.Least <= 0 || !m.worse(m.Least) {
		return nil
	}
	return &miss{lineCode, checks.Fail, m.atLeast(m.Least), m.text()}
}

// lineCode is the suffix of codes about the number on the line.
const lineCode = ".slow"

// allMiss reports whether a measure and all its peers miss the number on the line.
func (r *activeRun) allMiss(m *measure) bool {
	peers := 0
	for i := range r.measures {
		p := &r.measures[i]
		if p.alike() != m.alike() {
			continue
		}
		if r.compareLine(p) == nil {
			return false
		}
		peers++
	}
	return peers >= enoughPeers
}

// compareFloor compares a measurement with the floor of the platform for the same test, algorithm,
// size and number of ranks, otherwise with the value that every healthy GPU reaches. An
// unverified floor only warns. The number on the line takes precedence, and no floor is for a GPU
// with lowered limits.
func (r *activeRun) compareFloor(m *measure) *miss {
	if m.Least > 0 || m.Limited != "" {
		return nil
	}
	var platform *checks.Platform
	for _, group := range checks.PlatformGroups(r.env) {
		p := group.Platform
		if p == nil || m.Device.Kind == "gpu" && !slices.Contains(group.Addresses, m.Device.PCI) {
			continue
		}
		platform = p
		floor, known := p.FloorOf(m.Test, m.Algorithm, m.Size, m.Ranks)
		if !known || floor.Unit != m.Unit {
			continue
		}
		if !m.worse(floor.Value) {
			return nil
		}
		severity := checks.Warn
		if floor.Verified {
			severity = checks.Fail
		}
		return &miss{".floor", severity, m.atLeast(floor.Value), fmt.Sprintf("%s (figure %s of the platform %s)", m.text(), m.Test, p.Name)}
	}
	floor, known := commonFloorOf(platform, m)
	if !known || !m.worse(floor.Value) {
		return nil
	}
	of := "any GPU"
	if platform != nil && platform.Name != "" {
		of = "the platform " + platform.Name
	}
	return &miss{".floor", checks.Warn, m.atLeast(floor.Value), fmt.Sprintf("%s (figure %s of %s)", m.text(), m.Test, of)}
}

// enoughPeers is the least number of measures among which an outlier is certain: of two, either
// can be wrong.
const enoughPeers = 3

// peerLimit is the limit of a group of peers.
type peerLimit struct {
	fail, warn, median float64 // warn: NaN if nothing warns before it fails
	again              bool    // a second measurement must miss fail, too
	peers              int
	unequal            bool // the lowered limits of the peers differ
}

// findPeerLimits returns for each group of measures the limit beyond which one is far from the
// others. GPUs with the same lowered limit are also a group of their own.
func (r *activeRun) findPeerLimits() map[string]peerLimit {
	groups := map[string][]*measure{}
	for i := range r.measures {
		m := &r.measures[i]
		groups[m.alike()] = append(groups[m.alike()], m)
		if m.Limited != "" {
			groups[m.alikeLimited()] = append(groups[m.alikeLimited()], m)
		}
	}
	limits := map[string]peerLimit{}
	for key, group := range groups {
		if len(group) < 2 {
			continue
		}
		m := group[0]
		values, unequal := make([]float64, len(group)), false
		for i, p := range group {
			values[i] = p.Value
			unequal = unequal || p.Limited != m.Limited
		}
		tolerance := toleranceOf(m.Test)
		mid := median(values)
		if len(group) < enoughPeers { // the better of two
			mid = slices.Max(values)
			if m.Lower {
				mid = slices.Min(values)
			}
		}
		limit := peerLimit{fail: m.off(mid, tolerance.Peers), warn: math.NaN(), median: mid, again: tolerance.Again > 0, peers: len(group), unequal: unequal}
		if tolerance.Warn > 0 {
			limit.warn = m.off(mid, tolerance.Warn)
		}
		limits[key] = limit
	}
	return limits
}

func (r *activeRun) comparePeers(m *measure, limits map[string]peerLimit) *miss {
	p, ok := limits[m.alike()]
	if !ok {
		return nil
	}
	if same := limits[m.alikeLimited()]; m.Limited != "" && same.peers >= enoughPeers {
		p = same
	}
	limit, severity := p.fail, checks.Fail
	if !math.IsNaN(p.warn) && (!m.worse(p.fail) || p.again && !m.again().worse(p.fail)) {
		limit, severity = p.warn, checks.Warn
	}
	if !m.worse(limit) {
		return nil
	}
	text := fmt.Sprintf("%s: far from its peers (median %s)", m.text(), rate(p.median, m.Unit))
	if p.peers < enoughPeers {
		severity, text = checks.Warn, m.text()+": the other one reaches "+rate(p.median, m.Unit)
	}
	if m.Unlike != "" {
		severity, text = checks.Warn, text+" ("+m.Unlike+")"
	}
	if m.Limited != "" && p.unequal {
		severity, text = checks.Warn, text+" ("+m.Limited+")"
	}
	return &miss{".peers", severity, m.atLeast(limit), text}
}

// again returns the measure with the value of the second measurement. Without one the value is
// perfect, so that a limit that needs two misses fails nothing.
func (m *measure) again() *measure {
	second := *m
	if second.Value = m.Again; m.Again == 0 {
		second.Value = math.Inf(1)
		if m.Lower {
			second.Value = 0
		}
	}
	return &second
}

// median returns the median, NaN of no values.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}

// reportRates reports all values as a finding that is OK.
func (r *activeRun) reportRates() {
	groups := map[string][]*measure{}
	var order []string
	for i := range r.measures {
		m := &r.measures[i]
		if key := m.alike(); groups[key] == nil {
			order = append(order, key)
		}
		groups[m.alike()] = append(groups[m.alike()], m)
	}
	for _, key := range order {
		group := groups[key]
		m := group[0]
		var each, values = []string{}, []float64{}
		for _, m := range group {
			each = append(each, checks.Before("", m.Device.Name, " ")+rate(m.Value, ""))
			values = append(values, m.Value)
		}
		text := fmt.Sprintf("%s, %s: %s", m.What, m.Unit, strings.ReplaceAll(strings.Join(each, ", ")+",", " ,", ","))
		text = strings.TrimSuffix(text, ",")
		if mid := median(values); len(values) > 1 && mid != 0 {
			text += fmt.Sprintf("; spread %.1f %%", 100*(slices.Max(values)-slices.Min(values))/math.Abs(mid))
		}
		r.report(checks.Device{}, checks.Finding{Code: r.Code + ".rates", Severity: checks.OK}, "%s", text)
	}
}

// activeDo returns the advice for the codes of measures, and the test's own advice.
func activeDo(code, slow string, more map[string]string) map[string]string {
	do := map[string]string{
		code + ".slow":     slow + " The limit is the number on the line in nhc.conf.",
		code + ".floor":    slow + " The limit is that of the platform, see nhc-gpu --check and /usr/share/doc/nhc-gpu/docs/thresholds.md; a profile of your site overrides it.",
		code + ".peers":    slow + " Its peers on the same node are faster, so software is an unlikely cause: compare it with them.",
		code + ".baseline": slow + " The node was faster when its baseline was recorded: find the change since then. nhc-gpu clear --baseline discards the baseline.",
	}
	maps.Copy(do, more)
	return do
}

// commonFloorOf returns the value that a healthy GPU of a platform reaches in a measurement for
// which neither the line nor the platform has a number.
func commonFloorOf(p *checks.Platform, m *measure) (f checks.Floor, known bool) {
	for _, row := range activeTable().floors {
		if row.Test != m.Test || row.Algorithm != m.Algorithm || m.Size < row.Size || m.Ranks > 1 || row.Unit != m.Unit {
			continue
		}
		value := row.Value
		if row.Figure != "" {
			figure, _ := p.Figure(row.Figure)
			value = row.Part * float64(figure)
		}
		return checks.Floor{Test: row.Test, Algorithm: row.Algorithm, Size: row.Size, Ranks: 1, Value: value, Unit: row.Unit, Source: row.Source}, value > 0
	}
	return checks.Floor{}, false
}

// Errors in the arguments of an active test are found when they are bound, so that lint and plan
// report them: at night the test would be unknown each time.

func validateTime(d time.Duration) error {
	if d <= 0 {
		return &checks.UsageError{Kind: checks.BadValue, Word: d.String(), Want: "a time above 0"}
	}
	return nil
}

func validateBytes(n checks.Size) error {
	if n <= 0 {
		return &checks.UsageError{Kind: checks.BadValue, Word: n.String(), Want: "a size above 0"}
	}
	return nil
}
