package active

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// What a node has shown of itself. An operator has it learned (nhc-gpu --baseline);
// from then on each active test is held against the median of what was learned, and
// how far that was spread. Nothing is ever learned by the way: a node that gets
// slower by and by would teach that this is how it is.

// baselineName is the file of what was learned.
const baselineName = "active-baseline"

// The bounds of what is learned.
const (
	baselineVersion = 1
	baselineLeast   = 5    // samples before anything is judged by them
	baselineMost    = 31   // samples of one number; the oldest are forgotten first
	baselineSeries  = 4096 // numbers of one node: 16 GPUs, each with each, some sizes
	madSigma        = 1.4826
)

func init() {
	checks.RegisterAdvice(func() map[string]string {
		return map[string]string{
			"active.baseline.driver":  "The driver has changed since the baseline of this node was learned, and with it what is normal: learn it anew while the node is idle: nhc-gpu clear --baseline, nhc-gpu --baseline.",
			"active.baseline.uneven":  "The number goes up and down so much that no value would be bad: it judges nothing. See what else is at work on the node (a disk that others use, page cache, power saving), learn it anew when it is quiet (nhc-gpu clear --baseline, nhc-gpu --baseline), or give the line a number.",
			"active.baseline.refused": "A number that is bad by itself is not learned as what is normal: mend the node, then learn again.",
		}
	})
}

// baselineFile is what is kept.
type baselineFile struct {
	Version int                  `json:"version"`
	Boot    string               `json:"boot"` // of the last time that anything was learned
	GPUs    []string             `json:"gpus"` // the same of the GPUs of the node
	Series  map[string]*baseline `json:"series"`
}

// baseline is what one number has been.
type baseline struct {
	Test      string        `json:"test"`
	Algorithm string        `json:"algorithm"`
	Size      int64         `json:"size,omitempty"`
	Ranks     int           `json:"ranks,omitempty"`
	What      string        `json:"what"`
	Unit      string        `json:"unit"`
	Lower     bool          `json:"lower,omitempty"`
	Device    checks.Device `json:"device,omitzero"`
	UUID      string        `json:"uuid,omitempty"` // of the device, of all GPUs if it is the node
	Driver    string        `json:"driver,omitempty"`
	At        time.Time     `json:"at"` // of the last sample
	Samples   []float64     `json:"samples"`
}

// baselines are those of a node, in the hands of one test.
type baselines struct {
	file    baselineFile
	now     stamp // the node as it is
	learns  bool
	err     error // why what was learned cannot be read
	learned []*baseline
	judged  int
	other   string // another driver, with which they were learned
}

// recallBaselines reads what was learned. It never fails: what cannot be read judges nothing.
func recallBaselines(env *checks.Env) *baselines {
	b := &baselines{learns: env.Learn}
	b.now = nodeNow(env)
	b.file, b.err = readBaselineFile(env)
	return b
}

// nodeNow is the node as it is; one without the driver has neither version nor GPUs.
func nodeNow(env *checks.Env) stamp {
	now, err := holdsFor(env)
	if err != nil {
		now.Boot, _ = probe.BootID(env.Host)
	}
	now.At = probe.Now(env.Host).UTC().Truncate(time.Second)
	return now
}

func readBaselineFile(env *checks.Env) (f baselineFile, err error) {
	err = env.Host.Recall(baselineName, &f)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, probe.ErrNoMemory) {
		err = nil
	}
	if err == nil && f.Version != baselineVersion && f.Version != 0 {
		err = fmt.Errorf("%s.json: version %d, want %d", baselineName, f.Version, baselineVersion)
	}
	if err != nil || f.Series == nil {
		f = baselineFile{Series: map[string]*baseline{}}
	}
	f.Version = baselineVersion
	return f, err
}

// baselineKey is where a number is kept. A device is known by its place: another one
// in it begins anew.
func baselineKey(m *measure) string {
	return strings.Join([]string{m.Test, m.Algorithm, strconv.FormatInt(m.Size, 10), strconv.Itoa(m.Ranks), m.What, m.Unit, cmp.Or(m.Device.PCI, m.Device.Name)}, "|")
}

// uuidOf is what a number is of: a device, or all GPUs of the node.
func (b *baselines) uuidOf(m *measure) string {
	if m.Device == (checks.Device{}) {
		return strings.Join(b.now.GPUs, ",")
	}
	return cmp.Or(m.Device.UUID, m.Device.Serial)
}

// of is what was learned of a number, nil if that is nothing, or of another device.
func (b *baselines) of(m *measure) *baseline {
	s := b.file.Series[baselineKey(m)]
	if s == nil || s.UUID != b.uuidOf(m) || len(s.Samples) == 0 {
		return nil
	}
	return s
}

// judge holds a number against what was learned of it: bad is one that is farther
// below the median than both the tolerance of its test and the spread of what was
// learned allow, want the limit. Fewer than five samples judge nothing, nor do those
// of another driver.
func (b *baselines) judge(m measure) (want float64, bad bool) {
	b.judged++
	s := b.of(&m)
	if s == nil {
		return 0, false
	}
	if s.Driver != b.now.Driver {
		b.other = s.Driver
		return 0, false
	}
	if len(s.Samples) < baselineLeast {
		return 0, false
	}
	want = s.limit(&m)
	return want, m.worse(want)
}

// limit is what a number must reach.
func (s *baseline) limit(m *measure) float64 {
	t := toleranceOf(m.Test)
	mid, mad := s.spread()
	far := max(t.Baseline*math.Abs(mid), t.MADs*madSigma*mad)
	if m.Lower {
		return mid + far
	}
	return mid - far
}

// spread is the median of the samples, and the median of how far they are from it.
func (s *baseline) spread() (mid, mad float64) {
	mid = median(s.Samples)
	off := make([]float64, len(s.Samples))
	for i, v := range s.Samples {
		off[i] = math.Abs(v - mid)
	}
	return mid, median(off)
}

// learn takes a number, if the run is there to learn. What was learned of another
// device in the same place, or with another driver, is thrown away.
func (b *baselines) learn(m measure) {
	if !b.learns || math.IsNaN(m.Value) || math.IsInf(m.Value, 0) {
		return
	}
	key, s := baselineKey(&m), b.of(&m)
	if s == nil || s.Driver != b.now.Driver {
		if _, known := b.file.Series[key]; !known && len(b.file.Series) >= baselineSeries {
			return
		}
		s = &baseline{
			Test: m.Test, Algorithm: m.Algorithm, Size: m.Size, Ranks: m.Ranks, What: m.What, Unit: m.Unit, Lower: m.Lower,
			Device: m.Device, UUID: b.uuidOf(&m), Driver: b.now.Driver,
		}
		b.file.Series[key] = s
	}
	s.Samples = append(s.Samples, m.Value)
	s.Samples = s.Samples[max(0, len(s.Samples)-baselineMost):]
	s.At = b.now.At
	b.learned = append(b.learned, s)
}

// doubts are what is to be said of what was learned: that it cannot be read, or is of
// another driver.
func (b *baselines) doubts(check string) (findings []checks.Finding) {
	if b.err != nil {
		findings = append(findings, checks.Finding{Code: "active.past", Severity: checks.Warn}.Describe(check, "what was learned of this node cannot be used: %v", b.err))
	}
	if b.other != "" && !b.learns {
		findings = append(findings, checks.Finding{Code: "active.baseline.driver", Severity: checks.Warn, Want: b.other, Got: cmp.Or(b.now.Driver, "no driver")}.
			Describe(check, "the baseline was learned with another driver, nothing is held against it"))
	}
	return findings
}

// keepBaselines keeps what a test has learned, and says what it has refused.
func keepBaselines(env *checks.Env, check string, b *baselines) (findings []checks.Finding) {
	if refused := b.judged - len(b.learned); refused > 0 {
		findings = append(findings, checks.Finding{Code: "active.baseline.refused", Severity: checks.Warn, Got: checks.Plural(refused, "number")}.
			Phrase(check, "not learned: %s of %d, since something is wrong", checks.Plural(refused, "number"), b.judged))
	}
	if len(b.learned) == 0 {
		return findings
	}
	findings = append(findings, b.uneven(check)...)
	b.file.Boot, b.file.GPUs = b.now.Boot, b.now.GPUs
	if err := env.Host.Keep(baselineName, b.file); err != nil {
		findings = append(findings, checks.Finding{Code: "active.past", Severity: checks.Warn}.Describe(check, "what was learned cannot be kept: %v", err))
	}
	return findings
}

// uneven tells which numbers were learned by which nothing can be bad.
func (b *baselines) uneven(check string) (findings []checks.Finding) {
	for _, s := range b.learned {
		if len(s.Samples) < baselineLeast || !s.tooUneven() {
			continue
		}
		mid, mad := s.spread()
		findings = append(findings, checks.Finding{Code: "active.baseline.uneven", Severity: checks.Warn, Device: s.Device, Got: fmt.Sprintf("median %s, median of the distances from it %s", rate(mid, s.Unit), rate(mad, s.Unit))}.
			Describe(check, "%s: too uneven to judge anything by it", s.What))
	}
	return findings
}

// tooUneven says whether the spread alone is as much as the number: it must reach
// nothing then. One that should be low has a limit however it is spread.
func (s *baseline) tooUneven() bool { return !s.Lower && s.limit(&measure{Test: s.Test}) <= 0 }

// BaselineRow is what was learned of one number, for a person.
type BaselineRow struct {
	Test, Algorithm, What, Unit string

	Size    int64 // bytes, or n; 0: none
	Ranks   int
	Device  checks.Device // the zero one is the node
	Samples int
	Median  float64
	MAD     float64   // median of the distances from the median
	Limit   float64   // what a run must reach; 0: too few samples
	Uneven  bool      // they are spread so far that there is no limit
	Driver  string    // with which it was learned
	At      time.Time // of the last sample
}

// Baselines are what was learned of this node, in order.
func Baselines(env *checks.Env) (rows []BaselineRow, err error) {
	file, err := readBaselineFile(env)
	if err != nil {
		return nil, err
	}
	for _, s := range file.Series {
		row := BaselineRow{
			Test: s.Test, Algorithm: s.Algorithm, What: s.What, Unit: s.Unit, Size: s.Size, Ranks: s.Ranks, Device: s.Device,
			Samples: len(s.Samples), Driver: s.Driver, At: s.At,
		}
		row.Median, row.MAD = s.spread()
		if len(s.Samples) >= baselineLeast {
			if row.Uneven = s.tooUneven(); !row.Uneven {
				row.Limit = s.limit(&measure{Test: s.Test, Lower: s.Lower})
			}
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b BaselineRow) int {
		return cmp.Or(cmp.Compare(a.Test, b.Test), cmp.Compare(a.Algorithm, b.Algorithm), cmp.Compare(a.Size, b.Size), cmp.Compare(a.Ranks, b.Ranks),
			cmp.Compare(a.Device.PCI, b.Device.PCI), cmp.Compare(a.Device.Name, b.Device.Name), cmp.Compare(a.What, b.What))
	})
	return rows, nil
}

// ClearBaseline is an operator's word that what was learned of this node is no longer
// so: of a test, or all of it. It returns what is forgotten. A [probe.SpareError] is
// no failure.
func ClearBaseline(env *checks.Env, words []string, _ string) (cleared []string, err error) {
	if len(words) > 1 {
		return nil, fmt.Errorf("clear --baseline %s: want one test, like all_reduce, or none for all", strings.Join(words, " "))
	}
	file, err := readBaselineFile(env)
	if err != nil && len(words) > 0 {
		return nil, err
	}
	for key, s := range file.Series {
		if len(words) == 0 || s.Test == words[0] {
			cleared = append(cleared, s.Test)
			delete(file.Series, key)
		}
	}
	slices.Sort(cleared)
	return slices.Compact(cleared), env.Host.Keep(baselineName, file)
}

// BaselineOfThisNode says whether what is kept was learned on the node that this is:
// it has its GPUs, or was learned by the kernel that runs now.
func BaselineOfThisNode(env *checks.Env) bool {
	file, err := readBaselineFile(env)
	now := nodeNow(env)
	return err == nil && len(file.Series) > 0 && (file.Boot != "" && file.Boot == now.Boot || len(now.GPUs) > 0 && slices.Equal(file.GPUs, now.GPUs))
}
