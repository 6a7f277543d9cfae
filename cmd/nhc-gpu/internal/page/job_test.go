package page

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/monitor/flight"
)

// jobOf returns the samples of a job on a node with 8 GPUs and 10 ports; gpu3 and a port are slow.
func jobOf() *flight.Extract {
	fill := func(w *flight.Window) *flight.Window {
		wave := func(t uint32, i int) float32 { return float32(5 * math.Sin(float64(t)/17+float64(i))) }
		for i := range 8 {
			gpu := fmt.Sprintf("gpu%d", i)
			w.Add(flight.Device{Name: gpu, PCI: fmt.Sprintf("0000:1%d:00.0", i), Limit: 700})
			for t := w.From; t <= w.To; t += w.Step {
				if t%200 < 5 { // a gap
					continue
				}
				slow := float32(1)
				if i == 3 && t > w.From+(w.To-w.From)/2 {
					slow = 0.6
				}
				for name, v := range map[flight.Name]float32{
					flight.Busy: 95, flight.SM: 80, flight.Tensor: 50, flight.DRAM: 40, flight.Power: 600, flight.Clock: 1700, flight.NVLink: 120_000, flight.PCIe: 4000,
					flight.Used: 70_000, flight.Margin: 20, flight.Slow: 40 * (1 - slow), flight.Capped: 0,
				} {
					w.Set(gpu, name, t, v*slow+wave(t, i)*v/100)
				}
			}
		}
		for i := range 10 {
			port := fmt.Sprintf("mlx5_%d:1", i)
			w.Add(flight.Device{Name: port, PCI: fmt.Sprintf("0000:2%d:00.0", i)})
			for t := w.From; t <= w.To; t += w.Step {
				w.Set(port, flight.Data, t, 20_000+100*wave(t, i))
				w.Set(port, flight.Wait, t, 100)
				w.Set(port, flight.Faults, t, 0)
			}
		}
		for t := w.From; t <= w.To; t += w.Step {
			w.Set(flight.Slot(0), flight.ID, t, flight.Number("42"))
			w.Set(flight.Slot(0), flight.Resident, t, 900_000)
			w.Set(flight.Slot(0), flight.StallIO, t, 3)
		}
		return w
	}
	w := fill(flight.NewWindow(100_000, 100_599))
	job := flight.Job{ID: "42", GPUs: w.Names(flight.Busy), All: true}
	e := flight.NewExtract(job, w, fill(flight.NewMinutes(20_000, 100_560)))
	e.Findings = []flight.Note{{Code: "job.straggler", Text: "job 42: gpu3 <lags>", For: 300}}
	return e
}

// NHC_GPU_PAGE=FILE keeps the page, to look at it.
func TestJob(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := WriteJob(&b, "42", "job 42 of <alice>\n", []Node{{"gpu017", jobOf()}, {"gpu018", jobOf()}, {"gpu019", nil}}, start); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	if file := os.Getenv("NHC_GPU_PAGE"); file != "" {
		if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
			t.Error(err)
		}
	}
	for _, want := range []string{"<h1>Job 42</h1>", "&lt;alice&gt;", "gpu3 &lt;lags&gt;, for 300 s [job.straggler]", "Node gpu018", "Tensor cores, %", "Traffic of ports, MB/s", "no node and no GPU stands out; there are no samples of gpu019: look there first"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
	if strings.Contains(text, "<script") || strings.Contains(text, "http") || strings.Contains(text, "NaN") || len(text) > 8<<20 {
		t.Errorf("the page has a script, an address or NaN, or %d bytes", len(text))
	}
	if n := strings.Count(text, "<svg"); n != 2*2*17 {
		t.Errorf("%d plots, want 68: 12 of GPUs, 3 of ports, 2 of the job, of two times, on two nodes", n)
	}
	d := xml.NewDecoder(strings.NewReader(text))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestCeiling(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]float64{0: 1, 0.3: 0.5, 1: 1, 7: 10, 640: 1000, 130_000: 200_000} {
		if got := ceiling(v); math.Abs(got-want) > 1e-9*want {
			t.Errorf("%g: %g, want %g", v, got, want)
		}
	}
}
