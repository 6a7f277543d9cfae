package page

import (
	_ "embed" // plots.css
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/monitor/flight"
)

//go:embed plots.css
var plotStyle string

// Node is a node of a job, with its samples.
type Node struct {
	Name    string
	Extract *flight.Extract // nil if it did not answer
}

// plots are the series that a page draws, in their order.
var plots = []struct {
	of    string // gpu, port or job
	name  flight.Name
	title string
	full  float64 // the highest value of a share; 0: that of the series
}{
	{"gpu", flight.Busy, "Time with a kernel", 100},
	{"gpu", flight.SM, "Multiprocessors", 100},
	{"gpu", flight.Tensor, "Tensor cores", 100},
	{"gpu", flight.DRAM, "Bandwidth of the memory", 100},
	{"gpu", flight.Power, "Power", 0},
	{"gpu", flight.Clock, "Clock", 0},
	{"gpu", flight.NVLink, "NVLink", 0},
	{"gpu", flight.PCIe, "PCIe", 0},
	{"gpu", flight.Used, "Memory in use", 0},
	{"gpu", flight.Margin, "Degrees below the limit", 0},
	{"gpu", flight.Slow, "Slowed down by heat or the power supply", 100},
	{"gpu", flight.Capped, "Held by the power limit", 100},
	{"port", flight.Data, "Traffic of ports", 0},
	{"port", flight.Wait, "Ports that wait", 0},
	{"port", flight.Faults, "Errors of ports", 0},
	{"job", flight.Resident, "Memory of the job", 0},
	{"job", flight.StallIO, "Tasks that wait for a disk", 100},
	{"job", flight.StallMem, "Tasks that wait for memory", 100},
	{"job", flight.Blocked, "Blocked processes (state D)", 0},
}

// The size of a plot, in pixels of its own.
const (
	plotWidth  = 560
	plotHeight = 150
	plotLeft   = 58
	plotBottom = 20
	plotTop    = 8
	// plotPoints is the most points of a line.
	plotPoints = 300
	// colours is the number of colours in plots.css.
	colours = 12
)

// WriteJob writes a page about a job: its record as text, and the samples of its nodes as plots.
func WriteJob(to io.Writer, job, record string, nodes []Node, now time.Time) error {
	w := Begin(to, "Job "+job, Raw(plotStyle))
	w.Print("<p>Written %s UTC.</p>\n", now.UTC().Format(clock))
	if record != "" {
		w.Print("<pre>%s</pre>\n", record)
	}
	if len(nodes) > 1 {
		all, missing := map[string]*flight.Extract{}, []string{}
		for _, n := range nodes {
			if n.Extract == nil {
				missing = append(missing, n.Name)
			} else {
				all[n.Name] = n.Extract
			}
		}
		w.Print("<h2>Nodes</h2><pre>%s</pre>\n", flight.Compare(job, all, missing))
	}
	for _, n := range nodes {
		if n.Extract != nil {
			w.node(n, now)
		}
	}
	return w.End()
}

func (w *Writer) node(n Node, now time.Time) {
	e := n.Extract
	w.Print("<h2>Node %s</h2>\n", n.Name)
	if len(e.Findings) == 0 {
		w.Print("<p>No finding.</p>\n")
	}
	for _, f := range e.Findings {
		w.Print(`<p class="w">%s, for %d s [%s]</p>`+"\n", f.Text, f.For, f.Code)
	}
	w.Print(`<ul class="key">`)
	for i, d := range e.Devices {
		w.Print(`<li class="c%d">%s %s</li>`, i%colours, d.Name, d.PCI)
	}
	w.Print("</ul>\n")
	for _, part := range []struct {
		title string
		*flight.Part
	}{{"The last 10 minutes, by second", e.Seconds}, {"The last 24 hours, means by minute", e.Minutes}} {
		if part.Part == nil {
			continue
		}
		w.Print("<h3>%s</h3><div class=\"plots\">\n", part.title)
		for _, p := range plots {
			var lines []line
			for device, series := range part.Series {
				kind := "gpu"
				if device == "job" {
					kind = "job"
				} else if strings.Contains(device, ":") {
					kind = "port"
				}
				values := series[p.name]
				if kind == p.of && slices.ContainsFunc(values, func(v float32) bool { return !math.IsNaN(float64(v)) }) {
					colour := slices.IndexFunc(e.Devices, func(d flight.Device) bool { return d.Name == device })
					lines = append(lines, line{max(0, colour), device, values})
				}
			}
			if len(lines) > 0 {
				slices.SortFunc(lines, func(a, b line) int { return a.colour - b.colour })
				w.plot(p.title, flight.Unit(p.name), p.full, lines, part.Part, now)
			}
		}
		w.Print("</div>\n")
	}
}

// line is a series of a device.
type line struct {
	colour int
	device string
	values flight.Values
}

// plot draws the series of some devices. now is the time of the last value.
func (w *Writer) plot(title, unit string, full float64, lines []line, part *flight.Part, now time.Time) {
	high := full
	for _, l := range lines {
		for _, v := range l.values {
			if full == 0 && !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0) {
				high = max(high, float64(v))
			}
		}
	}
	high = ceiling(high)
	const right, bottom = plotWidth - 4, plotHeight - plotBottom
	y := func(v float64) float64 { return bottom - (bottom-plotTop)*min(max(v, 0), high)/high }
	x := func(i int) float64 { return plotLeft + (right-plotLeft)*float64(i)/float64(max(1, part.Len-1)) }
	if unit != "" {
		title += ", " + unit
	}
	w.Print(`<figure><figcaption>%s</figcaption><svg viewBox="0 0 %d %d" role="img" aria-label="%s">`, title, plotWidth, plotHeight, title)
	for _, share := range []float64{0, 0.5, 1} {
		at := y(high * share)
		w.Print(`<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`, plotLeft, right, at, at, plotLeft-4, at+4, number(high*share))
	}
	for _, share := range []float64{0, 0.5, 1} {
		i := int(share * float64(part.Len-1))
		anchor := []string{"start", "middle", "end"}[int(2*share)]
		when := now.Add(-time.Duration(part.Len-1-i) * time.Duration(part.Step) * time.Second)
		w.Print(`<text x="%.1f" y="%d" text-anchor="%s">%s</text>`, x(i), plotHeight-5, anchor, when.UTC().Format("15:04:05"))
	}
	for _, l := range lines {
		w.line(l, part.Len, x, y)
	}
	w.Print("</svg></figure>\n")
}

// line draws a series, with gaps where it is unknown.
func (w *Writer) line(l line, count int, x func(int) float64, y func(float64) float64) {
	step := max(1, (count+plotPoints-1)/plotPoints)
	var points []string
	flush := func() {
		if len(points) == 1 { // a line of one point would not be seen
			points = append(points, points[0])
		}
		if len(points) > 0 {
			w.Print(`<polyline class="c%d" points="%s"><title>%s</title></polyline>`, l.colour%colours, strings.Join(points, " "), l.device)
		}
		points = nil
	}
	for i := 0; i < min(count, len(l.values)); i += step {
		sum, known := 0.0, 0
		for _, v := range l.values[i:min(i+step, len(l.values))] {
			if f := float64(v); !math.IsNaN(f) && !math.IsInf(f, 0) {
				sum, known = sum+f, known+1
			}
		}
		if known == 0 {
			flush()
			continue
		}
		points = append(points, fmt.Sprintf("%.1f,%.1f", x(i), y(sum/float64(known))))
	}
	flush()
}

// ceiling returns the next of 1, 2 and 5 times a power of ten.
func ceiling(v float64) float64 {
	if !(v > 0) {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, n := range []float64{1, 2, 5} {
		if v <= n*power {
			return n * power
		}
	}
	return 10 * power
}

// number returns a value of an axis.
func number(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%gM", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%gk", v/1e3)
	default:
		return fmt.Sprintf("%g", v)
	}
}
