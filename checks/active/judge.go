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

// How what an active test has measured is judged: by the words of its line, by the
// floor of the platform for the very same test, by the peers, and by what this node
// has shown before.

// measure is one number that a test has found.
type measure struct {
	Test      string        // "host_to_device", "gemm", "all_reduce"
	Algorithm string        // "ce", "bf16 cublaslt", "nvls"
	Size      int64         // bytes, or n of n×n matrices
	Ranks     int           // GPUs or ports at work together; 1 is alone
	Device    checks.Device // the zero one is the node
	Model     string        // peers are of one model
	Peers     string        // and have the same word here, so that unlike things are not compared
	What      string        // for messages: "copy from the host"
	Other     string        // who is meant by "another GPU" in What, in messages of this measure alone
	Value     float64       // in Unit
	Unit      string        // "GB/s" (of 10^9 bytes), "TFLOP/s", "us"
	Least     float64       // what the words of the line ask for; 0: nothing
	Lower     bool          // less is better

	Doubt  string // what may have made the value so and is no fault of the device: then nothing fails by it
	Unlike string // in what the device is less than its peers by how the node is made: then being far from them is no failure

	Limited string  // why the device need not reach what its model does elsewhere: an administrator has lowered a limit
	Again   float64 // the same of a second, longer measurement; 0: there was none
}

// worse says whether a value is on the wrong side of a limit.
func (m *measure) worse(limit float64) bool {
	if m.Lower {
		return !(m.Value <= limit)
	}
	return !(m.Value >= limit) // NaN is worse
}

// off is a limit so many parts worse than a value.
func (m *measure) off(value, part float64) float64 {
	if m.Lower {
		return value * (1 + part)
	}
	return value * (1 - part)
}

// anotherGPU are the words of What for which messages have Other.
const anotherGPU = "another GPU"

// text is what was measured.
func (m *measure) text() string {
	if m.Other == "" {
		return m.What
	}
	return strings.Replace(m.What, anotherGPU, m.Other, 1)
}

// alike is what measures have in common that are compared with each other.
func (m *measure) alike() string {
	return strings.Join([]string{m.Test, m.Algorithm, strconv.FormatInt(m.Size, 10), strconv.Itoa(m.Ranks), m.Model, m.Peers, m.What, m.Unit}, "|")
}

// rate is a value as messages have it.
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

// atLeast is a limit in words.
func (m *measure) atLeast(limit float64) string {
	if m.Lower {
		return "at most " + rate(limit, m.Unit)
	}
	return "at least " + rate(limit, m.Unit)
}

// miss is a way in which a measure is bad.
type miss struct {
	code       string // ".slow"
	severity   checks.Severity
	want, text string
}

// judge looks at every measure; one that is bad in several ways is reported for the worst
// of them, and of several that are as bad for the first.
func (r *activeRun) judge() {
	peers := r.farFromPeers()
	base := recallBaselines(r.env)
	sick := r.failures || checks.Worst(r.findings) == checks.Fail // nothing of such a run is normal
	for i := range r.measures {
		m := &r.measures[i]
		misses := []*miss{r.belowWords(m), r.belowFloor(m), r.belowPeers(m, peers)}
		if want, below := base.judge(*m); below {
			misses = append(misses, &miss{".baseline", checks.Fail, m.atLeast(want), m.text() + ": worse than this node was"})
		}
		misses = slices.DeleteFunc(misses, func(x *miss) bool { return x == nil })
		switch {
		case len(misses) > 0:
			r.slow(m, slices.MaxFunc(misses, func(x, y *miss) int { return cmp.Compare(x.severity, y.severity) })) // the first of several
		case !sick && m.Doubt == "":
			base.learn(*m)
		}
	}
	r.findings = append(r.findings, base.doubts(r.Check)...)
	if r.env.Learn {
		r.findings = append(r.findings, keepBaselines(r.env, r.Check, base)...)
	}
	r.tellRates()
}

func (r *activeRun) slow(m *measure, x *miss) {
	if m.Doubt != "" {
		x.severity, x.text = min(x.severity, checks.Warn), x.text+" ("+m.Doubt+")"
	}
	r.report(m.Device, checks.Finding{Code: r.Code + x.code, Severity: x.severity, Want: x.want, Got: rate(m.Value, m.Unit)}, "%s", x.text)
}

func (r *activeRun) belowWords(m *measure) *miss {
	if m.Least <= 0 || !m.worse(m.Least) {
		return nil
	}
	return &miss{".slow", checks.Fail, m.atLeast(m.Least), m.text()}
}

// belowFloor compares a measurement with the floor of the platform for the same test,
// algorithm, size and number of ranks, else with what every healthy GPU reaches. A floor
// that no one has verified only warns.
func (r *activeRun) belowFloor(m *measure) *miss {
	if m.Least > 0 {
		return nil // the line knows better
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
		return &miss{".floor", severity, m.atLeast(floor.Value), fmt.Sprintf("%s (%s of %s)", m.text(), m.Test, p.Name)}
	}
	floor, known := commonFloorOf(platform, m)
	if !known || m.Limited != "" || !m.worse(floor.Value) {
		return nil
	}
	of := "any GPU"
	if platform != nil && platform.Name != "" {
		of = platform.Name
	}
	return &miss{".floor", checks.Warn, m.atLeast(floor.Value), fmt.Sprintf("%s (%s of %s)", m.text(), m.Test, of)}
}

// enoughPeers is from how many measures on the one that is far off is known: of two
// nobody can say which is wrong.
const enoughPeers = 3

// peerLimit is what a measure is compared with.
type peerLimit struct {
	fail, warn, median float64 // warn: NaN where nothing warns before it fails
	again              bool    // a second measurement must miss fail, too
	peers              int
}

// farFromPeers finds for each group of like measures the limit beyond which one is
// far from the others.
func (r *activeRun) farFromPeers() map[string]peerLimit {
	groups := map[string][]*measure{}
	for i := range r.measures {
		m := &r.measures[i]
		groups[m.alike()] = append(groups[m.alike()], m)
	}
	limits := map[string]peerLimit{}
	for key, group := range groups {
		if len(group) < 2 {
			continue
		}
		m := group[0]
		values := make([]float64, len(group))
		for i, m := range group {
			values[i] = m.Value
		}
		tolerance := toleranceOf(m.Test)
		mid := median(values)
		if len(group) < enoughPeers { // the better of two
			mid = slices.Max(values)
			if m.Lower {
				mid = slices.Min(values)
			}
		}
		limit := peerLimit{fail: m.off(mid, tolerance.Peers), warn: math.NaN(), median: mid, again: tolerance.Again > 0, peers: len(group)}
		if tolerance.Warn > 0 {
			limit.warn = m.off(mid, tolerance.Warn)
		}
		limits[key] = limit
	}
	return limits
}

func (r *activeRun) belowPeers(m *measure, limits map[string]peerLimit) *miss {
	p, ok := limits[m.alike()]
	if !ok {
		return nil
	}
	limit, severity := p.fail, checks.Fail
	if !math.IsNaN(p.warn) && (!m.worse(p.fail) || p.again && !m.again().worse(p.fail)) {
		limit, severity = p.warn, checks.Warn
	}
	if !m.worse(limit) {
		return nil
	}
	text := fmt.Sprintf("%s: far from its peers, whose median is %s", m.text(), rate(p.median, m.Unit))
	if p.peers < enoughPeers {
		severity, text = checks.Warn, m.text()+": the other one does "+rate(p.median, m.Unit)
	}
	if m.Unlike != "" {
		severity, text = checks.Warn, text+" ("+m.Unlike+")"
	}
	return &miss{".peers", severity, m.atLeast(limit), text}
}

// again returns the measure with the value of the second measurement. Without one it is
// as good as can be: what was measured once fails nothing that wants to be seen twice.
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

// median is the middle of some values, NaN of none.
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

// tellRates adds what was measured, for who asks: it is no fault.
func (r *activeRun) tellRates() {
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

// activeDo is the advice of an active test on the codes by which measures are judged,
// and on more of its own.
func activeDo(code, slow string, more map[string]string) map[string]string {
	do := map[string]string{
		code + ".slow":     slow + " The number wanted is that of the line in nhc.conf.",
		code + ".floor":    slow + " The number wanted is that of the platform, see nhc-gpu --check and docs/thresholds.md; a profile of the site overrides it.",
		code + ".peers":    slow + " Others like it on the same node are faster: compare it with them before you blame the software.",
		code + ".baseline": slow + " The node itself was faster when its baseline was learned: see what has changed. nhc-gpu clear --baseline forgets it.",
	}
	maps.Copy(do, more)
	return do
}

// commonFloorOf returns what a healthy GPU of a platform reaches in a measurement for
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

// What is wrong with the words of an active test is said when they are bound, so that
// lint and plan hear of it: at night it would be unknown each time.

func usableTime(d time.Duration) error {
	if d <= 0 {
		return &checks.UsageError{Kind: checks.BadValue, Word: d.String(), Want: "a time above 0"}
	}
	return nil
}

func usableBytes(n checks.Size) error {
	if n <= 0 {
		return &checks.UsageError{Kind: checks.BadValue, Word: n.String(), Want: "a size above 0"}
	}
	return nil
}
