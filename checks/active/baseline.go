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

// The baseline of a node: what its own measurements have been. An operator records it with
// nhc-gpu --baseline. From then on each active test is compared with the median and the spread of
// the recorded samples. No other run records samples: a slowly degrading node would become its
// own baseline.

// baselineName is the name of the state file.
const baselineName = "active-baseline"

// The limits of a baseline.
const (
	baselineVersion = 1
	baselineLeast   = 5    // samples required before the baseline judges
	baselineMost    = 31   // samples of one number; the oldest are dropped first
	baselineSeries  = 4096 // numbers of one node: 16 GPUs, each pair, some sizes
	madSigma        = 1.4826
)

// recordAgain are the commands that record a baseline again.
const recordAgain = "nhc-gpu clear --baseline --all, then nhc-gpu --baseline -n nhc-active"

func init() {
	checks.RegisterAdvice(func() map[string]string {
		return map[string]string{
			"active.baseline.driver":  "The driver has changed since the baseline of this node was recorded. Record it again while the node is idle: " + recordAgain + ".",
			"active.baseline.limit":   "A power limit or clock was lowered after the baseline of this node was recorded. If it is to stay, record the baseline again while the node is idle: " + recordAgain + ". Otherwise set it back: nvidia-smi -i ADDRESS -pl WATTS, nvidia-smi -i ADDRESS -rgc -rmc, or in the BMC.",
			"active.baseline.uneven":  "The number varies so much that no value would be a fault, so the baseline judges nothing. Find what else uses the device (a disk that others use, page cache, power saving), record it again when the node is quiet (" + recordAgain + "), or set a number on the line.",
			"active.baseline.refused": "A number that is already a fault is not recorded in the baseline: repair the node, then record again.",
		}
	})
}

// baselineFile is the content of the state file.
type baselineFile struct {
	Version int                  `json:"version"`
	Boot    string               `json:"boot"` // boot ID of the last recording
	GPUs    []string             `json:"gpus"` // the node's GPUs at that time
	Series  map[string]*baseline `json:"series"`
}

// baseline has the samples of one number.
type baseline struct {
	Test      string        `json:"test"`
	Algorithm string        `json:"algorithm"`
	Size      int64         `json:"size,omitempty"`
	Ranks     int           `json:"ranks,omitempty"`
	What      string        `json:"what"`
	Unit      string        `json:"unit"`
	Lower     bool          `json:"lower,omitempty"`
	Device    checks.Device `json:"device,omitzero"`
	UUID      string        `json:"uuid,omitempty"` // of the device; of all GPUs if the number is the node's
	Driver    string        `json:"driver,omitempty"`
	Limited   string        `json:"limited,omitempty"` // the lowered limit of the device, see measure
	At        time.Time     `json:"at"`                // of the last sample
	Samples   []float64     `json:"samples"`
}

// baselines are those of a node, as one test uses them.
type baselines struct {
	file    baselineFile
	now     stamp // the node now
	learns  bool
	err     error // why the file cannot be read
	learned []*baseline
	judged  int
	other   string     // a different driver that they were recorded with
	limited []*measure // with a lowered limit that they were not recorded with
}

// recallBaselines reads the file. It never fails: an unreadable baseline judges nothing.
func recallBaselines(env *checks.Env) *baselines {
	b := &baselines{learns: env.Learn}
	b.now = nodeNow(env)
	b.file, b.err = readBaselineFile(env)
	return b
}

// nodeNow describes the node now; without the driver it has neither version nor GPUs.
func nodeNow(env *checks.Env) stamp {
	now, err := describeNode(env)
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

// baselineKey returns the key of a number. A device is identified by its slot: a new device in
// the slot starts a new baseline.
func baselineKey(m *measure) string {
	return strings.Join([]string{m.Test, m.Algorithm, strconv.FormatInt(m.Size, 10), strconv.Itoa(m.Ranks), m.What, m.Unit, cmp.Or(m.Device.PCI, m.Device.Name)}, "|")
}

// uuidOf returns the UUID of the device that a number belongs to, or those of all GPUs for the
// node.
func (b *baselines) uuidOf(m *measure) string {
	if m.Device == (checks.Device{}) {
		return strings.Join(b.now.GPUs, ",")
	}
	return cmp.Or(m.Device.UUID, m.Device.Serial)
}

// of returns the samples of a number, nil if there are none or if they are from another device.
func (b *baselines) of(m *measure) *baseline {
	s := b.file.Series[baselineKey(m)]
	if s == nil || s.UUID != b.uuidOf(m) || len(s.Samples) == 0 {
		return nil
	}
	return s
}

// judge compares a number with its baseline. It is bad if it is farther below the median than
// both the tolerance of its test and the spread of the samples allow; want is the limit. Fewer
// than five samples judge nothing, nor do those of another driver, nor those without the lowered
// limit of the device.
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
	if m.Limited != "" && m.Limited != s.Limited {
		b.limited = append(b.limited, &m)
		return 0, false
	}
	want = s.limit(&m)
	return want, m.worse(want)
}

// limit returns the limit of a number.
func (s *baseline) limit(m *measure) float64 {
	t := toleranceOf(m.Test)
	mid, mad := s.spread()
	far := max(t.Baseline*math.Abs(mid), t.MADs*madSigma*mad)
	if m.Lower {
		return mid + far
	}
	return mid - far
}

// spread returns the median of the samples, and the median of their distances from it.
func (s *baseline) spread() (mid, mad float64) {
	mid = median(s.Samples)
	off := make([]float64, len(s.Samples))
	for i, v := range s.Samples {
		off[i] = math.Abs(v - mid)
	}
	return mid, median(off)
}

// learn adds a number, if the run records a baseline. It discards the samples of another device
// in the same slot, of another driver, and of another lowered limit.
func (b *baselines) learn(m measure) {
	if !b.learns || math.IsNaN(m.Value) || math.IsInf(m.Value, 0) {
		return
	}
	key, s := baselineKey(&m), b.of(&m)
	if s == nil || s.Driver != b.now.Driver || s.Limited != m.Limited {
		if _, known := b.file.Series[key]; !known && len(b.file.Series) >= baselineSeries {
			return
		}
		s = &baseline{
			Test: m.Test, Algorithm: m.Algorithm, Size: m.Size, Ranks: m.Ranks, What: m.What, Unit: m.Unit, Lower: m.Lower,
			Device: m.Device, UUID: b.uuidOf(&m), Driver: b.now.Driver, Limited: m.Limited,
		}
		b.file.Series[key] = s
	}
	s.Samples = append(s.Samples, m.Value)
	s.Samples = s.Samples[max(0, len(s.Samples)-baselineMost):]
	s.At = b.now.At
	b.learned = append(b.learned, s)
}

// reportDoubts reports a baseline that cannot be read, is from another driver, or was recorded
// without the lowered limits.
func (b *baselines) reportDoubts(check string) (findings []checks.Finding) {
	if b.err != nil {
		findings = append(findings, checks.Finding{Code: "active.past", Severity: checks.Warn}.Describe(check, "cannot use the node's baseline: %v", b.err))
	}
	if b.other != "" && !b.learns {
		findings = append(findings, checks.Finding{Code: "active.baseline.driver", Severity: checks.Warn, Want: b.other, Got: cmp.Or(b.now.Driver, "no driver")}.
			Describe(check, "the baseline is from another driver and is not used"))
	}
	if len(b.limited) > 0 && !b.learns {
		m := b.limited[0]
		findings = append(findings, checks.Finding{Code: "active.baseline.limit", Severity: checks.Warn, Got: m.Limited}.
			Describe(check, "the baseline is from before a limit was lowered and is not used for %s (first: %s)", checks.Plural(len(b.limited), "number"), m.Device))
	}
	return findings
}

// keepBaselines stores the samples of a test, and reports those that it refused.
func keepBaselines(env *checks.Env, check string, b *baselines) (findings []checks.Finding) {
	if refused := b.judged - len(b.learned); refused > 0 {
		findings = append(findings, checks.Finding{Code: "active.baseline.refused", Severity: checks.Warn, Got: checks.Plural(refused, "number")}.
			Phrase(check, "not recorded: %s of %d, because of a fault", checks.Plural(refused, "number"), b.judged))
	}
	if len(b.learned) == 0 {
		return findings
	}
	findings = append(findings, b.reportUneven(check)...)
	b.file.Boot, b.file.GPUs = b.now.Boot, b.now.GPUs
	if err := env.Host.Keep(baselineName, b.file); err != nil {
		findings = append(findings, checks.Finding{Code: "active.past", Severity: checks.Warn}.Describe(check, "cannot store the baseline: %v", err))
	}
	return findings
}

// reportUneven reports the numbers that vary too much to judge by.
func (b *baselines) reportUneven(check string) (findings []checks.Finding) {
	for _, s := range b.learned {
		if len(s.Samples) < baselineLeast || !s.tooUneven() {
			continue
		}
		mid, mad := s.spread()
		findings = append(findings, checks.Finding{Code: "active.baseline.uneven", Severity: checks.Warn, Device: s.Device, Got: fmt.Sprintf("median %s, median deviation %s", rate(mid, s.Unit), rate(mad, s.Unit))}.
			Describe(check, "%s: varies too much to serve as a baseline", s.What))
	}
	return findings
}

// tooUneven reports whether the spread is as large as the number: the limit would be zero or
// less. A number where less is better always has a limit.
func (s *baseline) tooUneven() bool { return !s.Lower && s.limit(&measure{Test: s.Test}) <= 0 }

// BaselineRow is the baseline of one number, for output.
type BaselineRow struct {
	Test, Algorithm, What, Unit string

	Size    int64 // bytes, or n of n * n matrices; 0: none
	Ranks   int
	Device  checks.Device // zero: the node
	Samples int
	Median  float64
	MAD     float64   // median of the distances from the median
	Limit   float64   // limit of a run; 0: too few samples
	Uneven  bool      // the spread is too large for a limit
	Driver  string    // that it was recorded with
	At      time.Time // of the last sample
}

// Baselines returns the baseline of this node, sorted.
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

// ClearBaseline discards the baseline of one test, or all of it. It returns the names of the
// tests that had one. A [probe.SpareError] is not a failure.
func ClearBaseline(env *checks.Env, args []string, _ string) (cleared []string, err error) {
	if len(args) > 1 {
		return nil, fmt.Errorf("clear --baseline %s: want one test, like all_reduce, or none for all", strings.Join(args, " "))
	}
	file, err := readBaselineFile(env)
	if err != nil && len(args) > 0 {
		return nil, err
	}
	for key, s := range file.Series {
		if len(args) == 0 || s.Test == args[0] {
			cleared = append(cleared, s.Test)
			delete(file.Series, key)
		}
	}
	slices.Sort(cleared)
	return slices.Compact(cleared), env.Host.Keep(baselineName, file)
}

// BaselineOfThisNode reports whether the stored baseline is from this node: the node has its
// GPUs, or the running kernel has recorded it.
func BaselineOfThisNode(env *checks.Env) bool {
	file, err := readBaselineFile(env)
	now := nodeNow(env)
	return err == nil && len(file.Series) > 0 && (file.Boot != "" && file.Boot == now.Boot || len(now.GPUs) > 0 && slices.Equal(file.GPUs, now.GPUs))
}
