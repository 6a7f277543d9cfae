package page

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
)

var start = time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)

// runOf returns a run of a node, minutes after the start, in which a check has a severity.
func runOf(node string, minutes int, s checks.Severity) *event.Event {
	e := &event.Event{Schema: event.Schema, Node: node, Time: start.Add(time.Duration(minutes) * time.Minute), Context: "healthcheck", Results: []event.Result{
		{Check: "check_gpu_count", Milliseconds: 3, Message: "8 GPUs"},
		{Check: "check_gpu_ecc", Milliseconds: 7},
	}}
	if s != checks.OK {
		e.Results[1].Severity, e.Results[1].Code, e.Results[1].Device, e.Results[1].Message = s, "gpu.ecc.dram", checks.Device{Kind: "gpu", Name: "gpu3"}, "errors & <more>"
	}
	e.Judge()
	return e
}

func pageOf(t *testing.T, f *Fleet) string {
	t.Helper()
	var b bytes.Buffer
	if err := f.Write(&b, "A <title>", start); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestFleet(t *testing.T) {
	t.Parallel()
	f := NewFleet()
	for i := range 12 {
		f.Add(runOf(fmt.Sprintf("gpu%d", i+1), 0, checks.OK))
	}
	f.Add(runOf("gpu2", 5, checks.Fail))
	f.Add(runOf("gpu10", 5, checks.Unknown))
	f.Add(runOf("gpu2", 1, checks.OK)) // too late
	job := runOf("gpu2", 9, checks.OK)
	job.Context, job.Results[0].Milliseconds = "prolog", 99
	f.Add(job)
	text := pageOf(t, f)
	for _, want := range []string{
		"16 events of 12 nodes", "A &lt;title&gt;", `<li class="f"><b>1</b> fail</li>`, `<li class="u"><b>1</b> unknown</li>`, `<li class="o"><b>10</b> ok</li>`,
		"errors &amp; &lt;more&gt;", "ok to fail", "gpu.ecc.dram gpu3", "check_gpu_ecc <b>1 failing</b>", "<td>99.0</td>",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if n := strings.Count(text, `<tr class="node">`); n != 12 {
		t.Errorf("%d rows of nodes, want 12", n)
	}
	if bad, good, next := strings.Index(text, ">gpu2</th>"), strings.Index(text, ">gpu9</th>"), strings.Index(text, ">gpu11</th>"); bad > good || good > next {
		t.Errorf("the worst node, then gpu9, then gpu11: at %d, %d, %d", bad, good, next)
	}
	if strings.Contains(text, "<script") || strings.Contains(text, "http") {
		t.Error("the page has a script or an address")
	}
}

// A drill makes no node fail.
func TestDrill(t *testing.T) {
	t.Parallel()
	f := NewFleet()
	f.Add(runOf("gpu1", 0, checks.OK))
	drill := runOf("gpu1", 5, checks.Fail)
	drill.Drill, drill.Results[1].Drill = &event.Drill{Code: "gpu.ecc.dram"}, true
	f.Add(drill)
	if text := pageOf(t, f); strings.Contains(text, "ok to fail") || strings.Contains(text, "gpu.ecc.dram") || !strings.Contains(text, `<li class="o"><b>1</b> ok</li>`) {
		t.Error(text)
	}
	drill.Results[0].Severity, drill.Results[0].Code = checks.Fail, "gpu.count"
	drill.Time = drill.Time.Add(time.Minute)
	f.Add(drill)
	if text := pageOf(t, f); !strings.Contains(text, "ok to fail") || !strings.Contains(text, "gpu.count") {
		t.Errorf("a real fault beside it: %s", text)
	}
}

func TestFlapping(t *testing.T) {
	t.Parallel()
	f := NewFleet()
	for i := range flaps + 1 {
		f.Add(runOf("flaps", i, []checks.Severity{checks.OK, checks.Fail}[i%2]))
		f.Add(runOf("steady", i, checks.Fail))
	}
	if list := f.flapping(); len(list) != 1 || list[0].name != "flaps" || list[0].changes != flaps {
		t.Errorf("%+v", list)
	}
	for i := range 3 * maxChanges {
		f.Add(runOf("flaps", 10+i, []checks.Severity{checks.OK, checks.Fail}[i%2]))
	}
	if got := f.changes(); len(got) != maxChanges || !got[0].time.After(got[1].time) {
		t.Errorf("%d changes, from %v", len(got), got[0].time)
	}
}

// One node: its runs, the newest first.
func TestTimeline(t *testing.T) {
	t.Parallel()
	f := NewFleet()
	for i := range maxRuns + 50 {
		f.Add(runOf("gpu1", i, checks.Severity(i%5)))
	}
	text := pageOf(t, f)
	if n := strings.Count(text, `<tr class="node">`); n != maxRuns {
		t.Errorf("%d rows, want %d", n, maxRuns)
	}
	if newest := start.Add((maxRuns + 49) * time.Minute).Format(clock); !strings.Contains(text, `<tr class="node"><th>`+newest) {
		t.Errorf("no run of %s", newest)
	}
}

// All elements of the page are closed, and 5,000 nodes fit.
func TestPageOfManyNodes(t *testing.T) {
	t.Parallel()
	f := NewFleet()
	for i := range 5000 {
		f.Add(runOf(fmt.Sprintf("n%04d", i), 0, checks.Severity((i/3)%5)))
	}
	text := pageOf(t, f)
	d := xml.NewDecoder(strings.NewReader(text))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	depth := 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token.(type) {
		case xml.StartElement:
			depth++
		case xml.EndElement:
			depth--
		}
	}
	if depth != 0 || strings.Count(text, `<tr class="node">`) != 5000 || len(text) > 3<<20 {
		t.Errorf("depth %d, %d rows, %d bytes", depth, strings.Count(text, `<tr class="node">`), len(text))
	}
}

func TestCompareNames(t *testing.T) {
	t.Parallel()
	names := []string{"n10", "n9", "n09", "n1a2", "n1a10", "m1", "", "n"}
	slices.SortFunc(names, CompareNames)
	if got := strings.Join(names, " "); got != " m1 n n1a2 n1a10 n9 n09 n10" {
		t.Errorf("%q", got)
	}
}
