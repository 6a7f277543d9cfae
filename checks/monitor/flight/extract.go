package flight

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Extract is the part of a node's samples that belongs to a job, as data for other programs and other nodes.
type Extract struct {
	Job      string   `json:"job"`
	All      bool     `json:"all,omitempty"`     // the job has all GPUs of the node
	Known    bool     `json:"known"`             // its GPUs are known
	Partial  bool     `json:"partial,omitempty"` // some of them have no samples
	Devices  []Device `json:"devices"`           // GPUs of the job; ports of the node, if the job has all of it
	Seconds  *Part    `json:"seconds,omitempty"`
	Minutes  *Part    `json:"minutes,omitempty"` // means
	Findings []Note   `json:"findings,omitempty"`
}

// Note is a finding about the job.
type Note struct {
	Code string `json:"code"`
	Text string `json:"text"`
	For  uint32 `json:"for"` // seconds
}

// Part has series of equal length.
type Part struct {
	From   uint32                     `json:"from"` // seconds since the boot
	Step   uint32                     `json:"step"` // seconds
	Len    int                        `json:"len"`
	Series map[string]map[Name]Values `json:"series"`
	Jobs   []Stay                     `json:"jobs,omitempty"` // of the whole node: whose the series of a slot are
}

// Stay is a time in which a job had a slot.
type Stay struct {
	Job  string `json:"job"`
	Slot string `json:"slot"`
	From uint32 `json:"from"` // seconds since the boot
	To   uint32 `json:"to"`
}

// Values is a series. In JSON it has four digits, and null for unknown values.
type Values []float32

// MarshalJSON writes a series.
func (v Values) MarshalJSON() ([]byte, error) {
	out := []byte{'['}
	for i, x := range v {
		if i > 0 {
			out = append(out, ',')
		}
		if known(x) {
			out = strconv.AppendFloat(out, float64(x), 'g', 4, 32)
		} else {
			out = append(out, "null"...)
		}
	}
	return append(out, ']'), nil
}

// UnmarshalJSON reads a series.
func (v *Values) UnmarshalJSON(data []byte) error {
	var list []*float32
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	*v = make(Values, len(list))
	for i, x := range list {
		if (*v)[i] = Unknown; x != nil {
			(*v)[i] = *x
		}
	}
	return nil
}

// jobSlot is the device with a job's own series in an extract.
const jobSlot = "job"

// NewExtract returns the samples of a job while it was on the node, without those of others that had its GPUs
// before. A job with a part of the node sees no ports: others use them, too. A job without ID stands for the node:
// it has all samples. The window by second comes first.
func NewExtract(job Job, windows ...*Window) *Extract {
	e := &Extract{Job: job.ID, All: job.All, Known: job.GPUs != nil, Partial: job.Partial}
	begin := uint32(0) // of the job, by second; a minute before it is of an earlier time of a requeued job
	for _, whole := range windows {
		w := whole
		if job.ID != "" {
			if w = whole.of(job); w != nil {
				w = w.after(begin)
			}
			if w == nil {
				break
			}
			if w.From > whole.From {
				begin = w.From
			}
		}
		p := &Part{From: w.From, Step: w.Step, Len: w.Len(), Series: map[string]map[Name]Values{}}
		add := func(device string, names []Name) {
			for _, n := range names {
				values := w.Of(device, n)
				if device != jobSlot && w.From > whole.From {
					values = withoutFirst(values)
				}
				if n != ID && slices.ContainsFunc(values, known) {
					if p.Series[device] == nil {
						p.Series[device] = map[Name]Values{}
					}
					p.Series[device][n] = values
				}
			}
		}
		devices := job.GPUs
		if job.All {
			devices = slices.Concat(devices, w.Names(Data))
		}
		for _, d := range devices {
			names := OfGPU
			if strings.Contains(d, ":") {
				names = OfPort
			}
			add(d, names)
			if !slices.ContainsFunc(e.Devices, func(old Device) bool { return old.Name == d }) {
				e.Devices = append(e.Devices, w.Devices[d])
			}
		}
		if job.ID != "" {
			add(jobSlot, OfJob)
		} else {
			p.Jobs = w.stays()
			for i := range MaxJobs {
				add(Slot(i), OfJob)
			}
		}
		if w.Step == 1 {
			e.Seconds = p
		} else {
			e.Minutes = p
		}
	}
	return e
}

// withoutFirst returns a series without its first known value: that is of the time since the sample before, at which
// the job was not on the node yet.
func withoutFirst(values []float32) []float32 {
	if at := slices.IndexFunc(values, known); at >= 0 {
		values = slices.Clone(values)
		values[at] = Unknown
	}
	return values
}

var deviceName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,40}(:\d{1,3})?$`) })

// ParseExtract reads an extract that another program has written. It refuses one that this program would not
// write: it can come from a user.
func ParseExtract(data []byte) (*Extract, error) {
	e := new(Extract)
	if err := json.Unmarshal(data, e); err != nil {
		return nil, fmt.Errorf("read the samples of a job: not an object of JSON")
	}
	for i := range e.Devices {
		d := &e.Devices[i]
		if !deviceName().MatchString(d.Name) || len(e.Devices) > MaxColumns {
			return nil, fmt.Errorf("read the samples of a job: device %.40q", d.Name)
		}
		d.PCI, d.UUID = plain(d.PCI), plain(d.UUID)
	}
	for i := range e.Findings {
		e.Findings[i].Code, e.Findings[i].Text = plain(e.Findings[i].Code), plain(e.Findings[i].Text)
	}
	e.Findings = e.Findings[:min(len(e.Findings), 64)]
	for _, p := range []*Part{e.Seconds, e.Minutes} {
		if p == nil {
			continue
		}
		if p.Len < 1 || p.Len > Minutes || (p.Step != 1 && p.Step != 60) || p.From > 1<<31 || len(p.Series) > MaxColumns {
			return nil, fmt.Errorf("read the samples of a job: %d values, each for %d s", p.Len, p.Step)
		}
		for device, series := range p.Series {
			for name, values := range series {
				if len(values) != p.Len || !deviceName().MatchString(device) || len(name) > 20 || len(series) > MaxColumns {
					return nil, fmt.Errorf("read the samples of a job: %d values of %.40q, want %d", len(values), device, p.Len)
				}
			}
		}
	}
	return e, nil
}

// plain returns text on one line, of characters that print.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s[:min(len(s), 1000)])
}

// names lists the devices of the extract that have a series of a kind: GPUs without a colon, ports with one.
func (e *Extract) names(ports bool) (list []string) {
	for _, d := range e.Devices {
		if strings.Contains(d.Name, ":") == ports {
			list = append(list, d.Name)
		}
	}
	return list
}

// Window returns a part of an extract as a window.
func (e *Extract) Window(p *Part) *Window {
	w := newWindow(p.From, p.From+uint32(p.Len-1)*p.Step, p.Step)
	e.into(w, p, "")
	return w
}

// into adds a part to a window so that both end at the same time.
func (e *Extract) into(w *Window, p *Part, prefix string) {
	for _, d := range e.Devices {
		d.Name = prefix + d.Name
		w.Add(d)
	}
	for device, series := range p.Series {
		name := prefix + device
		if device == jobSlot {
			name = Slot(0)
			values := w.track(Column{name, ID})
			for i := range values {
				values[i] = Number(e.Job)
			}
		}
		for n, values := range series {
			to := w.track(Column{name, n})
			count := min(len(to), len(values))
			copy(to[len(to)-count:], values[len(values)-count:])
		}
	}
}

// shown is the time whose means are shown, seconds.
const shown = 60

// Text shows the means of the last minute, and the findings.
func (e *Extract) Text() string {
	if e.Seconds == nil {
		return ""
	}
	var b strings.Builder
	last := e.Window(e.Seconds).Tail(shown)
	fmt.Fprintf(&b, "means of the last %d seconds on this node\n%s", last.Len(), last.Table(Job{ID: e.Job, GPUs: e.names(false), All: e.All}))
	if !e.Known {
		b.WriteString("its GPUs are unknown: there is no record of its prolog, and other jobs are on the node\n")
	}
	for _, n := range e.Findings {
		fmt.Fprintf(&b, "%s, for %d s [%s]\n", n.Text, n.For, n.Code)
	}
	return b.String()
}
