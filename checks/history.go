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

// Checks judge counters by their growth within a period, never by their value: a value can
// include a bad cable that was replaced last month. A file holds the history of one boot. For
// each counter it holds the times at which the value changed, so a constant counter needs
// one line.

func init() {
	RegisterAdvice(func() map[string]string {
		return map[string]string{
			"fabric.past": "nhc-gpu cannot read or write its files in /var/lib/nhc-gpu: check that directory. A file that cannot be parsed is replaced, and reported once.",
		}
	})
}

// The limits of a history. Beyond them, the oldest entries are removed first.
const (
	HistoryVersion  = 1
	historyDevices  = 256
	historyCounters = 200 // for each device
	historyPoints   = 32  // for each counter
	HistoryMarks    = 64  // for each kind and device
	HistoryAge      = 31 * 24 * time.Hour
)

// HistoryFile is the content of the file.
type HistoryFile struct {
	Version int                       `json:"version"`
	Boot    string                    `json:"boot"`
	Devices map[string]*DeviceHistory `json:"devices"`
}

// DeviceHistory is the history of a device or port. Its key is a name that survives a
// reboot.
type DeviceHistory struct {
	Kind   string             `json:"kind,omitempty"`   // of those that can be compared; "" if the check has none
	Seen   int64              `json:"seen"`             // when it was last read, Unix seconds
	Before int64              `json:"before,omitempty"` // when it was read before that
	Series map[string][]Point `json:"series,omitempty"` // by counter; of this boot only
	Missed map[string]int64   `json:"missed,omitempty"` // by counter that the last run could not read: when it was last read
	Marks  map[string][]int64 `json:"marks,omitempty"`  // by kind of event: when it happened, in any boot, Unix seconds
}

// Point is the time at which a counter reached a value.
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

// History is the history of some devices, which a run reads, extends and stores.
type History struct {
	Check, name string
	Now         time.Time
	File        HistoryFile
	Findings    []Finding
}

// RecallHistory reads the history that earlier runs stored under a name. If the file is
// broken or has another version, it returns an empty history with one warning.
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
		h.Findings = []Finding{Finding{Code: "fabric.past", Severity: Warn}.Describe(check, "%v; a new history begins", err)}
	}
	if h.File.Devices == nil {
		h.File.Devices = map[string]*DeviceHistory{}
	}
	sameBoot := h.File.Boot == boot
	h.File.Version, h.File.Boot = HistoryVersion, boot
	now := h.Now.Unix()
	maps.DeleteFunc(h.File.Devices, func(_ string, d *DeviceHistory) bool {
		return d == nil || d.Seen < h.Now.Add(-HistoryAge).Unix()
	})
	for _, d := range h.File.Devices {
		if d.Seen > now {
			d.setBack(now)
		}
	}
	if !sameBoot { // a reboot resets every counter
		for _, d := range h.File.Devices {
			d.Series, d.Missed = nil, nil
		}
	}
	return h
}

// setBack moves the times to now, after the node's clock was set back: the device is known, the growth of
// its counters since then is not.
func (d *DeviceHistory) setBack(now int64) {
	d.Seen, d.Before = now, 0
	for _, series := range d.Series {
		for i := range series {
			series[i].At = now
		}
	}
	for counter := range d.Missed {
		d.Missed[counter] = now
	}
	for _, marks := range d.Marks {
		for i := range marks {
			marks[i] = min(marks[i], now)
		}
	}
}

// Growth is the growth of a counter and the period of that growth.
type Growth struct {
	N     uint64
	Over  time.Duration
	Known bool // false: no earlier value, or it is too recent
}

// Per returns the growth in a unit of time.
func (g Growth) Per(unit time.Duration) float64 {
	return float64(g.N) / (float64(g.Over) / float64(unit))
}

// Grown returns the growth of a counter within a window. now is the present value; window 0
// means since the last run. bits is the width of the counter: a value that decreased from
// its upper half has wrapped, any other decrease is a reset. Values that this run passed to
// [History.Add] do not count as the past.
func (h *History) Grown(device, counter string, now uint64, bits int, window time.Duration) Growth {
	d := h.File.Devices[device]
	if d == nil || len(d.Series[counter]) == 0 {
		return Growth{}
	}
	series := d.Series[counter]
	from := h.Now.Add(-window).Unix()
	if read := d.read(counter); window == 0 || read < from {
		from = read
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

// read returns when a counter of the device was last read.
func (d *DeviceHistory) read(counter string) int64 {
	if at, missed := d.Missed[counter]; missed {
		return at
	}
	return d.Seen
}

// LastRead returns when a counter was last read. known is false if it has no history.
func (h *History) LastRead(device, counter string) (at time.Time, known bool) {
	if d := h.File.Devices[device]; d != nil && len(d.Series[counter]) > 0 {
		return time.Unix(d.read(counter), 0), true
	}
	return time.Time{}, false
}

// SinceLast returns the time since the last run, or 0 without one. It ignores a run less than
// MinPast ago, so that a second line of one run, or of a simultaneous run, judges the same
// window as the first.
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

// SinceBoot returns how much a counter has grown since the boot, where now is its value. It begins at 0, again when the
// driver is loaded again.
func (h *History) SinceBoot(device, counter string, now uint64, bits int) (total uint64) {
	last := uint64(0)
	if d := h.File.Devices[device]; d != nil {
		for _, p := range d.Series[counter] {
			total += GrownFrom(last, p.Value, bits)
			last = p.Value
		}
	}
	return total + GrownFrom(last, now, bits)
}

// Begun returns the first point of a counter in this boot. known is false if it has
// no history.
func (h *History) Begun(device, counter string) (first Point, known bool) {
	d := h.File.Devices[device]
	if d == nil || len(d.Series[counter]) == 0 {
		return Point{}, false
	}
	return d.Series[counter][0], true
}

// Last returns the value of a counter in the last run of this boot.
func (h *History) Last(device, counter string) (n uint64, known bool) {
	if d := h.File.Devices[device]; d != nil && len(d.Series[counter]) > 0 {
		list := d.Series[counter]
		return list[len(list)-1].Value, true
	}
	return 0, false
}

// GrownFrom returns the growth from one value to the next.
func GrownFrom(then, now uint64, bits int) uint64 {
	switch {
	case now >= then:
		return now - then
	case bits > 0 && bits < 64 && then>>(bits-1) == 1 && now>>(bits-1) == 0: // it has wrapped
		return now + (1<<bits - then)
	}
	return now // it was reset
}

// Add adds the present values of a device's counters to its history. A counter that is not in
// values loses its history: its next value does not count as growth.
func (h *History) Add(device string, values map[string]uint64) { h.add(device, values, false) }

// AddPart is Add for a run that could not read all counters: a counter that is not in values keeps its
// history, and its next value is growth since it was last read.
func (h *History) AddPart(device string, values map[string]uint64) { h.add(device, values, true) }

func (h *History) add(device string, values map[string]uint64, part bool) {
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
		return // two runs at the same time: keep the past unchanged
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
		series[name] = thinOut(old)
	}
	missed := map[string]int64{}
	for name, old := range d.Series {
		if _, read := values[name]; part && !read && len(series) < historyCounters {
			series[name], missed[name] = old, d.read(name)
		}
	}
	if d.Seen != now {
		d.Before = d.Seen
	}
	d.Series, d.Missed, d.Seen = series, missed, now
}

// thinOut removes the points that add least information, until historyPoints are left: the older
// the points, the wider their spacing. The next point takes over the growth of a removed one.
func thinOut(list []Point) []Point {
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

// Mark records that an event happened to a device.
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

// Marks returns the times of the events of a kind within a window.
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

// Forget deletes the history of a device up to a time.
func (h *History) Forget(device string, until time.Time) {
	d := h.File.Devices[device]
	if d == nil {
		return
	}
	if d.Seen <= until.Unix() {
		d.Series, d.Missed = nil, nil
	}
	for kind, list := range d.Marks {
		d.Marks[kind] = slices.DeleteFunc(list, func(at int64) bool { return at <= until.Unix() })
		if len(d.Marks[kind]) == 0 {
			delete(d.Marks, kind)
		}
	}
}

// Store stores the history for the next run. A run without root's rights stores
// nothing, which is not a finding.
func (h *History) Store(e *Env) []Finding {
	err := e.Remember(h.name, h.File)
	if err != nil && !errors.Is(err, probe.ErrNoMemory) {
		h.Findings = append(h.Findings, Finding{Code: "fabric.past", Severity: Warn}.Describe(h.Check, "%v", err))
	}
	return h.Findings
}

// MinPast is the shortest period over which a rate is judged: two runs at the same time give no
// rate.
const MinPast = 30 * time.Second

// Grew reports whether a counter of the device has changed in this boot, of those that count.
func (d *DeviceHistory) Grew(counts func(counter string) bool) bool {
	for name, list := range d.Series {
		if len(list) > 1 && counts(name) {
			return true
		}
	}
	return false
}

// MaxClears is the largest number of operators' clears that a file keeps.
const MaxClears = 64

// Since returns how long a counter has had its present value; 0 if the value is new.
func (h *History) Since(device, counter string, value uint64) time.Duration {
	if d := h.File.Devices[device]; d != nil && len(d.Series[counter]) > 0 {
		if last := d.Series[counter][len(d.Series[counter])-1]; last.Value == value {
			return h.Now.Sub(time.Unix(last.At, 0))
		}
	}
	return 0
}
