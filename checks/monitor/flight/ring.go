// Package flight is the flight recorder of a node: samples of its GPUs, ports and jobs while jobs run,
// the ring that keeps them, and the detectors that judge them. The package is pure.
package flight

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// A ring is a file of a fixed size:
//
//	header      HeaderSize bytes: magic, length of the JSON (4 bytes), JSON of Header, zeros
//	seconds     Seconds records, that of time t at t mod Seconds
//	minutes     Minutes records, that of time t at t/60 mod Minutes
//
// A record of a second is time, values, time; one of a minute is time, minima, means, maxima, time. Times
// are seconds since the boot (uint32), values float32, all little-endian. A record whose two times differ
// is being written. NaN is unknown.
const (
	Seconds    = 600
	Minutes    = 24 * 60
	HeaderSize = 32 << 10

	magic = "NHCFLT1\n"
)

// File returns the name of the ring of a source of samples.
func File(source string) string { return "samples-" + source }

// MaxColumns bounds the columns of a ring, and so its size: 24 hours of 250 columns take 5 MB.
const MaxColumns = 256

// Column is a series of samples of a device.
type Column struct {
	Device string `json:"device"` // gpu0, mlx5_0:1, job2
	Name   Name   `json:"name"`
}

// Header describes a ring.
type Header struct {
	Boot    string   `json:"boot"` // the kernel's random ID of the boot
	Columns []Column `json:"columns"`
	Devices []Device `json:"devices,omitempty"`
	More    int      `json:"more,omitempty"` // devices of the node that have no place in the ring
}

// Device has the data of a device that do not change.
type Device struct {
	Name  string  `json:"name"` // gpu0, mlx5_0:1
	PCI   string  `json:"pci,omitempty"`
	UUID  string  `json:"uuid,omitempty"`
	Minor int     `json:"minor"`           // the N of /dev/nvidiaN, -1 if unknown or no GPU
	Limit float64 `json:"limit,omitempty"` // power limit, W; 0: unknown
}

// Same reports whether records of one header are records of the other.
func (h *Header) Same(other *Header) bool {
	return h.Boot == other.Boot && slices.Equal(h.Columns, other.Columns) && slices.Equal(h.Devices, other.Devices) && h.More == other.More
}

func (h *Header) second() int { return 8 + 4*len(h.Columns) }
func (h *Header) minute() int { return 8 + 12*len(h.Columns) }

// Size returns the size of the file, bytes.
func (h *Header) Size() int64 {
	return HeaderSize + Seconds*int64(h.second()) + Minutes*int64(h.minute())
}

func (h *Header) secondAt(t uint32) int64 { return HeaderSize + int64(t%Seconds)*int64(h.second()) }
func (h *Header) minuteAt(t uint32) int64 {
	return HeaderSize + Seconds*int64(h.second()) + int64(t/60%Minutes)*int64(h.minute())
}

// Encode returns the first HeaderSize bytes of a ring.
func (h *Header) Encode() ([]byte, error) {
	text, err := json.Marshal(h)
	if err == nil && (len(h.Columns) > MaxColumns || len(magic)+4+len(text) > HeaderSize) {
		err = fmt.Errorf("%d columns, want at most %d", len(h.Columns), MaxColumns)
	}
	if err != nil {
		return nil, fmt.Errorf("describe the samples: %w", err)
	}
	out := binary.LittleEndian.AppendUint32([]byte(magic), uint32(len(text)))
	return append(out, append(text, make([]byte, HeaderSize-len(out)-len(text))...)...), nil
}

// ErrNoRing is the error of a file that is not a ring.
var ErrNoRing = errors.New("not a file of samples")

// ErrFormat is the error of a ring that a newer or an older version of this program has written in another format.
var ErrFormat = errors.New("the samples have the format of another version of nhc-gpu")

// anyMagic begins the magic of every format.
const anyMagic = "NHCFLT"

// ReadHeader reads the header of a ring.
func ReadHeader(r io.ReaderAt) (*Header, error) {
	data := make([]byte, HeaderSize)
	if _, err := r.ReadAt(data, 0); errors.Is(err, io.EOF) {
		return nil, ErrNoRing
	} else if err != nil {
		return nil, fmt.Errorf("read samples: %w", err)
	}
	if string(data[:len(anyMagic)]) == anyMagic && string(data[:len(magic)]) != magic {
		return nil, ErrFormat
	}
	text := data[len(magic)+4:]
	size := binary.LittleEndian.Uint32(data[len(magic):])
	h := new(Header)
	if string(data[:len(magic)]) != magic || int64(size) > int64(len(text)) || json.Unmarshal(text[:size], h) != nil || len(h.Columns) > MaxColumns {
		return nil, ErrNoRing
	}
	return h, nil
}

// Recorder writes a ring.
type Recorder struct {
	*Header

	file   io.WriterAt
	buf    []byte
	minute uint32 // the present one, seconds since the boot / 60
	sums   []sum
}

// sum collects the known values of a column in a minute.
type sum struct {
	least, most float32
	total       float64
	count       int
}

// Record returns a recorder for a file that has the header, and is as large as the header says.
func Record(file io.WriterAt, h *Header) *Recorder {
	return &Recorder{Header: h, file: file, sums: make([]sum, len(h.Columns))}
}

// Add writes the values of a second, and of the minute that has ended. Times must grow.
func (r *Recorder) Add(t uint32, values []float32) error {
	if len(values) != len(r.Columns) {
		return fmt.Errorf("write samples: %d values, want %d", len(values), len(r.Columns))
	}
	if r.minute != t/60 {
		if err := r.flush(); err != nil {
			return err
		}
		r.minute = t / 60
	}
	r.buf = binary.LittleEndian.AppendUint32(r.buf[:0], t)
	for i, v := range values {
		r.buf = binary.LittleEndian.AppendUint32(r.buf, math.Float32bits(v))
		if v != v { //nolint:gocritic // NaN
			continue
		}
		s := &r.sums[i]
		if s.count++; s.count == 1 {
			s.least, s.most = v, v
		}
		s.least, s.most, s.total = min(s.least, v), max(s.most, v), s.total+float64(v)
	}
	return r.write(t, r.secondAt(t))
}

// Adopt copies the records of an older ring of the same boot, whose columns may differ: a new version of the
// program may have more, and a GPU may have gone.
func (r *Recorder) Adopt(old io.ReaderAt, h *Header) error {
	if h.Boot != r.Boot {
		return nil
	}
	from := make([]int, len(r.Columns)) // the position of each column in the old ring, -1 for none
	for i, c := range r.Columns {
		from[i] = slices.Index(h.Columns, c)
	}
	copyRecords := func(count, size, groups int, step uint32, at, to func(uint32) int64) error {
		buf := make([]byte, size)
		for i := range count {
			if _, err := old.ReadAt(buf, at(uint32(i)*step)); err != nil {
				return fmt.Errorf("read samples: %w", err)
			}
			t := binary.LittleEndian.Uint32(buf)
			if t == 0 || t != binary.LittleEndian.Uint32(buf[size-4:]) || at(t) != at(uint32(i)*step) {
				continue
			}
			r.buf = binary.LittleEndian.AppendUint32(r.buf[:0], t)
			for group := range groups {
				for _, column := range from {
					v := math.Float32bits(Unknown)
					if column >= 0 {
						v = binary.LittleEndian.Uint32(buf[4+4*(group*len(h.Columns)+column):])
					}
					r.buf = binary.LittleEndian.AppendUint32(r.buf, v)
				}
			}
			if err := r.write(t, to(t)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := copyRecords(Seconds, h.second(), 1, 1, h.secondAt, r.secondAt); err != nil {
		return err
	}
	return copyRecords(Minutes, h.minute(), 3, 60, h.minuteAt, r.minuteAt)
}

// flush writes the present minute.
func (r *Recorder) flush() error {
	if !slices.ContainsFunc(r.sums, func(s sum) bool { return s.count > 0 }) {
		return nil
	}
	t := r.minute * 60
	r.buf = binary.LittleEndian.AppendUint32(r.buf[:0], t)
	for _, part := range []func(sum) float32{
		func(s sum) float32 { return s.least },
		func(s sum) float32 { return float32(s.total / float64(s.count)) },
		func(s sum) float32 { return s.most },
	} {
		for i, s := range r.sums {
			v := Unknown
			switch {
			case s.count == 0:
			case r.Columns[i].Name == ID: // no mean of two jobs
				v = s.most
			default:
				v = part(s)
			}
			r.buf = binary.LittleEndian.AppendUint32(r.buf, math.Float32bits(v))
		}
	}
	clear(r.sums)
	return r.write(t, r.minuteAt(t))
}

func (r *Recorder) write(t uint32, at int64) error {
	r.buf = binary.LittleEndian.AppendUint32(r.buf, t)
	if _, err := r.file.WriteAt(r.buf, at); err != nil {
		return fmt.Errorf("write samples: %w", err)
	}
	return nil
}

// Close writes the minute that has begun. It does not close the file.
func (r *Recorder) Close() error { return r.flush() }

// Window has the samples of some rings from one time to another, aligned.
type Window struct {
	From, To uint32 // seconds since the boot
	Step     uint32 // seconds between two values: 1, or 60 for minutes
	Devices  map[string]Device
	More     int // devices of the node without samples, for want of a place

	order  []string // of the devices
	tracks map[Column][]float32
	whole  *Window // the window that this is a part of, which has the other series; nil for none
	before *Window // the window with some time before it, for detectors
}

// NewWindow returns an empty window of seconds.
func NewWindow(from, to uint32) *Window { return newWindow(from, to, 1) }

// NewMinutes returns an empty window of the means of minutes.
func NewMinutes(from, to uint32) *Window { return newWindow(from/60*60, to/60*60, 60) }

func newWindow(from, to, step uint32) *Window {
	return &Window{From: from, To: max(from, to), Step: step, Devices: map[string]Device{}, tracks: map[Column][]float32{}}
}

// Len returns the number of values of each series.
func (w *Window) Len() int { return int((w.To-w.From)/w.Step) + 1 }

// Load adds the samples of a ring. It ignores those of another boot.
func (w *Window) Load(r io.ReaderAt, boot string) error {
	h, err := ReadHeader(r)
	if err != nil || h.Boot != boot {
		return err
	}
	for _, d := range h.Devices {
		w.Add(d)
	}
	w.More += h.More
	tracks := make([][]float32, len(h.Columns))
	for i, c := range h.Columns {
		tracks[i] = w.track(c)
	}
	size, at, skip := h.second(), h.secondAt, 0
	if w.Step == 60 {
		size, at, skip = h.minute(), h.minuteAt, 4*len(h.Columns) // behind the minima
	}
	buf := make([]byte, size)
	for i, t := 0, w.From; i < w.Len(); i, t = i+1, t+w.Step {
		switch _, err := r.ReadAt(buf, at(t)); {
		case errors.Is(err, io.EOF):
			continue
		case err != nil:
			return fmt.Errorf("read samples: %w", err)
		}
		if binary.LittleEndian.Uint32(buf) != t || binary.LittleEndian.Uint32(buf[size-4:]) != t {
			continue
		}
		for c := range tracks {
			tracks[c][i] = math.Float32frombits(binary.LittleEndian.Uint32(buf[4+skip+4*c:]))
		}
	}
	return nil
}

// Add adds a device.
func (w *Window) Add(d Device) {
	if _, known := w.Devices[d.Name]; !known {
		w.order = append(w.order, d.Name)
	}
	w.Devices[d.Name] = d
}

// Set sets the value of a series at a time of the window.
func (w *Window) Set(device string, name Name, t uint32, value float32) {
	if t >= w.From && t <= w.To {
		w.track(Column{device, name})[(t-w.From)/w.Step] = value
	}
}

// track returns a series of the window's own, a new one of unknown values if there is none. In a part it replaces that
// of the whole.
func (w *Window) track(c Column) []float32 {
	if w.tracks[c] == nil {
		w.tracks[c] = slices.Repeat([]float32{Unknown}, w.Len())
	}
	return w.tracks[c]
}

// Of returns a series, nil if it was never sampled.
func (w *Window) Of(device string, name Name) []float32 {
	own := w.tracks[Column{device, name}]
	if own != nil || w.whole == nil {
		return own
	}
	values := w.whole.Of(device, name)
	if values == nil {
		return nil
	}
	return values[(w.From-w.whole.From)/w.Step : (w.To-w.whole.From)/w.Step+1]
}

// Last returns the newest known value of a series, Unknown if there is none.
func (w *Window) Last(device string, name Name) float32 {
	for _, v := range slices.Backward(w.Of(device, name)) {
		if known(v) {
			return v
		}
	}
	return Unknown
}

// Tail returns the last seconds of a window, which share its values.
func (w *Window) Tail(seconds uint32) *Window { return w.Part(w.To-min(seconds-1, w.To-w.From), w.To) }

// Part returns a part of a window, which shares its values.
func (w *Window) Part(from, to uint32) *Window {
	whole := w
	if len(w.tracks) == 0 && w.whole != nil {
		whole = w.whole
	}
	return &Window{From: max(from, w.From), To: min(to, w.To), Step: w.Step, Devices: w.Devices, More: w.More, order: w.order, tracks: map[Column][]float32{}, whole: whole}
}

// Known returns the window up to its last second with samples, if that is among the last seconds.
func (w *Window) Known(seconds int) *Window {
	last := w.Len() - seconds
	for top := w; top != nil; top = top.whole {
		for c := range top.tracks {
			values := w.Of(c.Device, c.Name)
			for i := len(values) - 1; i > last; i-- {
				if known(values[i]) {
					last = i
				}
			}
		}
	}
	return w.Part(w.From, w.From+uint32(max(0, last))*w.Step)
}

// Names lists the devices that have a series, in their order.
func (w *Window) Names(name Name) (list []string) {
	for _, d := range w.order {
		if w.Of(d, name) != nil {
			list = append(list, d)
		}
	}
	return list
}
