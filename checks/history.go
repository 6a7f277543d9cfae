package checks

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// What counters have been, so that they are judged by how much they grew in a
// window of time and never by what they are: one that counted a bad cable last
// month says nothing of today. A file holds the history of one boot; each counter
// is there with the moments at which it changed, so that one that stands still
// costs one line however long it does.

func init() {
	RegisterAdvice(func() map[string]string {
		return map[string]string{
			"fabric.past": "What checks keep between runs cannot be read or written: see the directory /var/lib/nhc-gpu. A file that is not understood is begun anew, and said once.",
		}
	})
}

// The bounds of a history. What is beyond them is forgotten, the oldest first.
const (
	HistoryVersion  = 1
	historyDevices  = 256
	historyCounters = 200 // of a device
	historyPoints   = 32  // of a counter
	HistoryMarks    = 64  // of a kind, of a device
	HistoryAge      = 31 * 24 * time.Hour
)

// HistoryFile is what is kept.
type HistoryFile struct {
	Version int                       `json:"version"`
	Boot    string                    `json:"boot"`
	Devices map[string]*DeviceHistory `json:"devices"`
}

// DeviceHistory is that of a device or port, by a name that a reboot does not
// change.
type DeviceHistory struct {
	Seen   int64              `json:"seen"`             // when it was last read, Unix seconds
	Before int64              `json:"before,omitempty"` // when it was read before that
	Series map[string][]Point `json:"series,omitempty"` // of this boot, by counter
	Marks  map[string][]int64 `json:"marks,omitempty"`  // moments of things that happened, whatever the boot, Unix seconds
}

// Point is that a counter had this value at this moment, and not before.
type Point struct {
	At    int64 // Unix seconds
	Value uint64
}

// MarshalJSON writes [at, value].
func (p Point) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, "[%d,%d]", p.At, p.Value), nil }

// UnmarshalJSON reads [at, value].
func (p *Point) UnmarshalJSON(data []byte) error {
	var pair [2]json.Number
	if err := json.Unmarshal(data, &pair); err != nil {
		return err
	}
	at, err := pair[0].Int64()
	if err != nil {
		return err
	}
	p.At = at
	p.Value, err = strconv.ParseUint(pair[1].String(), 10, 64)
	return err
}

// History is the past of some devices, and what it is to be from now on.
type History struct {
	Check, name string
	Now         time.Time
	File        HistoryFile
	Findings    []Finding
}

// RecallHistory reads what earlier runs have kept under a name. A file that is
// broken or of another version is one warning, and is begun anew.
func (e *Env) RecallHistory(check, name string) *History {
	h := &History{Check: check, name: name, Now: probe.Now(e.Host)}
	boot, err := probe.BootID(e.Host)
	if err != nil {
		boot = "unknown"
	}
	err = e.Recall(name, &h.File)
	switch {
	case err == nil && h.File.Version != HistoryVersion:
		err = fmt.Errorf("%s.json: version %d, want %d", name, h.File.Version, HistoryVersion)
		fallthrough
	case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, probe.ErrNoMemory):
		h.File = HistoryFile{}
		h.Findings = []Finding{Finding{Code: "fabric.past", Severity: Warn}.Describe(check, "%v; it is begun anew", err)}
	}
	if h.File.Devices == nil {
		h.File.Devices = map[string]*DeviceHistory{}
	}
	sameBoot := h.File.Boot == boot
	h.File.Version, h.File.Boot = HistoryVersion, boot
	maps.DeleteFunc(h.File.Devices, func(_ string, d *DeviceHistory) bool {
		return d == nil || d.Seen > h.Now.Unix() || d.Seen < h.Now.Add(-HistoryAge).Unix()
	})
	if !sameBoot { // every counter has begun anew
		for _, d := range h.File.Devices {
			d.Series = nil
		}
	}
	return h
}

// Growth is how much a counter has grown, and in which time.
type Growth struct {
	N     uint64
	Over  time.Duration
	Known bool // false: nothing to compare with, or too soon after
}

// Per is the growth in a unit of time.
func (g Growth) Per(unit time.Duration) float64 {
	return float64(g.N) / (float64(g.Over) / float64(unit))
}

// Grown is how much a counter that is at now has grown within a window; window 0
// is the time since the last run. bits is how wide the counter is: one that is
// less than it was and was in its upper half has wrapped, another was reset.
// What [History.Add] has been told in this run does not count as the past.
func (h *History) Grown(device, counter string, now uint64, bits int, window time.Duration) Growth {
	d := h.File.Devices[device]
	if d == nil || len(d.Series[counter]) == 0 {
		return Growth{}
	}
	series := d.Series[counter]
	from := h.Now.Add(-window).Unix()
	if window == 0 || d.Seen < from {
		from = d.Seen
	}
	from = max(from, series[0].At)
	g := Growth{Over: time.Duration(h.Now.Unix()-from) * time.Second, Known: true}
	if g.Over < MinPast {
		return Growth{}
	}
	last := series[0].Value
	for _, p := range series[1:] {
		if p.At > from {
			g.N += GrownFrom(last, p.Value, bits)
		}
		last = p.Value
	}
	g.N += GrownFrom(last, now, bits)
	return g
}

// SinceLast is the time since the last run that was long enough ago: a second line of
// one run, and one of two runs at once, judge the same window as the first. 0: there
// was none.
func (h *History) SinceLast(device string) time.Duration {
	d := h.File.Devices[device]
	if d == nil {
		return 0
	}
	seen := d.Seen
	if h.Now.Unix()-seen < int64(MinPast/time.Second) && d.Before > 0 {
		seen = d.Before
	}
	return time.Duration(h.Now.Unix()-seen) * time.Second
}

// Begun says whether there is a history of a counter in this boot, when it begins,
// and with what.
func (h *History) Begun(device, counter string) (first Point, known bool) {
	d := h.File.Devices[device]
	if d == nil || len(d.Series[counter]) == 0 {
		return Point{}, false
	}
	return d.Series[counter][0], true
}

// Last is what a counter was in the last run of this boot.
func (h *History) Last(device, counter string) (n uint64, known bool) {
	if d := h.File.Devices[device]; d != nil && len(d.Series[counter]) > 0 {
		list := d.Series[counter]
		return list[len(list)-1].Value, true
	}
	return 0, false
}

// GrownFrom is the growth from one value to the next.
func GrownFrom(then, now uint64, bits int) uint64 {
	switch {
	case now >= then:
		return now - then
	case bits > 0 && bits < 64 && then>>(bits-1) == 1 && now>>(bits-1) == 0: // it has wrapped
		return now + (1<<bits - then)
	}
	return now // it was reset
}

// Add takes what a device counts now into its history. Counters that could not be
// read have none from now on: what they will be next is no growth.
func (h *History) Add(device string, values map[string]uint64) {
	d := h.File.Devices[device]
	if d == nil {
		if len(h.File.Devices) >= historyDevices {
			return
		}
		d = &DeviceHistory{}
		h.File.Devices[device] = d
	}
	now := h.Now.Unix()
	if d.Series != nil && now-d.Seen < int64(MinPast/time.Second) && now != d.Seen {
		return // two runs at once: the past stays what it is
	}
	series := make(map[string][]Point, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if len(series) >= historyCounters {
			break
		}
		old := d.Series[name]
		if n := len(old); n == 0 || old[n-1].Value != values[name] {
			old = append(old, Point{now, values[name]})
		}
		series[name] = bounded(old)
	}
	if d.Seen != now {
		d.Before = d.Seen
	}
	d.Series, d.Seen = series, now
}

// bounded forgets changes of which others near by tell enough: the older they are,
// the farther apart the ones that are left. The next one takes over their growth.
func bounded(list []Point) []Point {
	for len(list) > historyPoints {
		now, drop, least := list[len(list)-1].At, 1, math.Inf(1)
		for i := 1; i < len(list)-1; i++ {
			if apart := float64(list[i+1].At-list[i-1].At) / float64(now-list[i].At+60); apart < least {
				drop, least = i, apart
			}
		}
		list = slices.Delete(slices.Clone(list), drop, drop+1)
	}
	return list
}

// Mark notes that something happened to a device.
func (h *History) Mark(device, kind string, at time.Time) {
	d := h.File.Devices[device]
	if d == nil {
		d = &DeviceHistory{Seen: h.Now.Unix()}
		h.File.Devices[device] = d
	}
	if d.Marks == nil {
		d.Marks = map[string][]int64{}
	}
	list := append(d.Marks[kind], at.Unix())
	slices.Sort(list)
	if list = slices.Compact(list); len(list) > HistoryMarks {
		list = list[len(list)-HistoryMarks:]
	}
	d.Marks[kind] = list
}

// Marks are the moments within a window at which something happened to a device.
func (h *History) Marks(device, kind string, window time.Duration) (list []time.Time) {
	if d := h.File.Devices[device]; d != nil {
		for _, at := range d.Marks[kind] {
			if t := time.Unix(at, 0); h.Now.Sub(t) <= window {
				list = append(list, t)
			}
		}
	}
	return list
}

// Forget takes what has happened to a device until a moment as never having been.
func (h *History) Forget(device string, until time.Time) {
	d := h.File.Devices[device]
	if d == nil {
		return
	}
	if d.Seen <= until.Unix() {
		d.Series = nil
	}
	for kind, list := range d.Marks {
		d.Marks[kind] = slices.DeleteFunc(list, func(at int64) bool { return at <= until.Unix() })
		if len(d.Marks[kind]) == 0 {
			delete(d.Marks, kind)
		}
	}
}

// Store keeps the history for the next run. A run of somebody else than root keeps
// nothing, which is no finding.
func (h *History) Store(e *Env) []Finding {
	err := e.Remember(h.name, h.File)
	if err != nil && !errors.Is(err, probe.ErrNoMemory) {
		h.Findings = append(h.Findings, Finding{Code: "fabric.past", Severity: Warn}.Describe(h.Check, "%v", err))
	}
	return h.Findings
}

// MinPast is the shortest time over which a rate is judged: counters of two runs
// at once tell nothing.
const MinPast = 30 * time.Second

// Grew says whether any counter has grown as far as is known.
func (d *DeviceHistory) Grew() bool {
	for _, list := range d.Series {
		if len(list) > 1 {
			return true
		}
	}
	return false
}

// MaxClears bounds what is kept of operators' words.
const MaxClears = 64

// Since is how long a counter has had a value that it has now; 0 if that is new.
func (h *History) Since(device, counter string, value uint64) time.Duration {
	if d := h.File.Devices[device]; d != nil && len(d.Series[counter]) > 0 {
		if last := d.Series[counter][len(d.Series[counter])-1]; last.Value == value {
			return h.Now.Sub(time.Unix(last.At, 0))
		}
	}
	return 0
}
