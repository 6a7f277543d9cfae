package checks

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// How what an active test has measured is judged: by the words of its line, by the
// floor of the platform for the very same test, by the peers, and by what this node
// has shown before.

// measure is one number that a test has found.
type measure struct {
	Test      string  // "host_to_device", "gemm", "all_reduce"
	Algorithm string  // "ce", "bf16 cublaslt", "nvls"
	Size      int64   // bytes, or n of n×n matrices
	Ranks     int     // GPUs or ports at work together; 1 is alone
	Device    Device  // the zero one is the node
	Model     string  // peers are of one model
	Peers     string  // and have the same word here, so that unlike things are not compared
	What      string  // for messages: "copy from the host"
	Other     string  // who is meant by "another GPU" in What, in messages of this measure alone
	Value     float64 // in Unit
	Unit      string  // "GB/s" (of 10^9 bytes), "TFLOP/s", "us"
	Least     float64 // what the words of the line ask for; 0: nothing
	Lower     bool    // less is better

	Doubt  string // what may have made the value so and is no fault of the device: then nothing fails by it
	Unlike string // in what the device is less than its peers by how the node is made: then being far from them is no failure
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

// judge looks at every measure; one that is bad in several ways is reported for the
// first of them.
func (r *activeRun) judge() {
	peers := r.farFromPeers()
	base := r.env.baselines()
	sick := r.failures || Worst(r.findings) == Fail // nothing of such a run is normal
	for i := range r.measures {
		m := &r.measures[i]
		bad := r.belowWords(m) || r.belowFloor(m) || r.belowPeers(m, peers)
		want, below := base.judge(*m)
		switch {
		case bad:
		case below:
			r.slow(m, ".baseline", Fail, m.atLeast(want), m.text()+": worse than this node was")
		case !sick && m.Doubt == "":
			base.learn(*m)
		}
	}
	r.findings = append(r.findings, base.doubts(r.Check)...)
	if r.env.Learn {
		r.findings = append(r.findings, r.env.keepBaselines(r.Check, base)...)
	}
	r.tellRates()
}

func (r *activeRun) slow(m *measure, code string, severity Severity, want, text string) {
	if m.Doubt != "" {
		severity, text = min(severity, Warn), text+" ("+m.Doubt+")"
	}
	r.report(m.Device, Finding{Code: r.Code + code, Severity: severity, Want: want, Got: rate(m.Value, m.Unit)}, "%s", text)
}

func (r *activeRun) belowWords(m *measure) bool {
	if m.Least <= 0 || !m.worse(m.Least) {
		return false
	}
	r.slow(m, ".slow", Fail, m.atLeast(m.Least), m.text())
	return true
}

// belowFloor compares with the floor of the platform, of this test, algorithm, size
// and number of ranks and no other. One that nobody has verified only warns.
func (r *activeRun) belowFloor(m *measure) bool {
	if m.Least > 0 {
		return false // the line knows better
	}
	for _, group := range r.env.platformGroups() {
		p := group.Platform
		if p == nil || m.Device.Kind == "gpu" && !slices.Contains(group.Addresses, m.Device.PCI) {
			continue
		}
		floor, known := p.FloorOf(m.Test, m.Algorithm, m.Size, m.Ranks)
		if !known || floor.Unit != m.Unit || !m.worse(floor.Value) {
			continue
		}
		severity := Warn
		if floor.Verified {
			severity = Fail
		}
		r.slow(m, ".floor", severity, m.atLeast(floor.Value), fmt.Sprintf("%s (%s of %s)", m.text(), m.Test, p.Name))
		return true
	}
	return false
}

// enoughPeers is from how many measures on the one that is far off is known: of two
// nobody can say which is wrong.
const enoughPeers = 3

// peerLimit is what a measure is compared with.
type peerLimit struct {
	limit, median float64
	peers         int
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
		limits[key] = peerLimit{m.off(mid, tolerance.Peers), mid, len(group)}
	}
	return limits
}

func (r *activeRun) belowPeers(m *measure, limits map[string]peerLimit) bool {
	p, ok := limits[m.alike()]
	if !ok || !m.worse(p.limit) {
		return false
	}
	severity, text := Fail, fmt.Sprintf("%s: far from its peers, whose median is %s", m.text(), rate(p.median, m.Unit))
	if p.peers < enoughPeers {
		severity, text = Warn, m.text()+": the other one does "+rate(p.median, m.Unit)
	}
	if m.Unlike != "" {
		severity, text = Warn, text+" ("+m.Unlike+")"
	}
	r.slow(m, ".peers", severity, m.atLeast(p.limit), text)
	return true
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
			each = append(each, before("", m.Device.Name, " ")+rate(m.Value, ""))
			values = append(values, m.Value)
		}
		text := fmt.Sprintf("%s, %s: %s", m.What, m.Unit, strings.ReplaceAll(strings.Join(each, ", ")+",", " ,", ","))
		text = strings.TrimSuffix(text, ",")
		if mid := median(values); len(values) > 1 && mid != 0 {
			text += fmt.Sprintf("; spread %.1f %%", 100*(slices.Max(values)-slices.Min(values))/math.Abs(mid))
		}
		r.findings = append(r.findings, Finding{Code: r.Code + ".rates", Severity: OK, Message: r.Check + ":  " + text, Got: text})
	}
}

// activeDo is the advice of an active test on the codes by which measures are judged,
// and on more of its own.
func activeDo(code, slow string, more map[string]string) map[string]string {
	do := map[string]string{
		code + ".slow":     slow + " The number wanted is that of the line in nhc.conf.",
		code + ".floor":    slow + " The number wanted is that of the platform, see nhc-gpu --check and docs/profiles.md; a profile of the site overrides it.",
		code + ".peers":    slow + " Others like it on the same node are faster: compare it with them before you blame the software.",
		code + ".baseline": slow + " The node itself was faster when its baseline was learned: see what has changed. nhc-gpu clear --baseline forgets it.",
	}
	maps.Copy(do, more)
	return do
}
