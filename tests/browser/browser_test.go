package browser_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/tests/browser"
	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

var program string

func TestMain(m *testing.M) { os.Exit(built.Main(m, &program)) }

// events writes the events of a fleet: a few runs of each node, one of six with a fault.
func events(t *testing.T, nodes, runs int) (path string) {
	t.Helper()
	var b bytes.Buffer
	start := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	for n := range nodes {
		for r := range runs {
			e := &event.Event{Schema: event.Schema, Node: fmt.Sprintf("gpu%04d", n+1), Time: start.Add(time.Duration(r) * 5 * time.Minute), Context: "healthcheck", Mode: "enforce", Milliseconds: 40}
			for c := range 40 {
				e.Results = append(e.Results, event.Result{Check: fmt.Sprintf("check_gpu_number_%02d", c), Milliseconds: float64(c) / 4})
			}
			if n%6 == 0 && (runs-r)%2 == 1 {
				x := &e.Results[n%40]
				x.Severity, x.Code, x.Message = []checks.Severity{checks.Fail, checks.Warn, checks.Unknown}[n/6%3], "gpu.recovery.lost", "check_gpu_recovery:  gpu3 0000:66:00.0: the GPU is lost, in a message that is long enough to be wrapped in every window: "+strings.Repeat("word ", 20)
				x.Device = checks.Device{Kind: "gpu", Name: "gpu3", PCI: "0000:66:00.0"}
			}
			e.Judge()
			b.Write(e.Line())
			b.WriteByte('\n')
		}
	}
	path = filepath.Join(t.TempDir(), "events.jsonl")
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// The page of a node and of fleets: no message in the console, no sideways scroll in a wide and a narrow
// window, a row for each node, and colors for a light and a dark screen.
func TestPage(t *testing.T) {
	tier.All(t)
	t.Parallel()
	chromium := browser.Find(t)
	for _, size := range []struct{ nodes, runs, rows int }{{1, 30, 30}, {10, 12, 10}, {5000, 2, 5000}} {
		t.Run(fmt.Sprintf("%d nodes", size.nodes), func(t *testing.T) {
			t.Parallel()
			page := filepath.Join(t.TempDir(), "page.html")
			if out, err := exec.Command(program, "report", page, events(t, size.nodes, size.runs)).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			light, dark := browser.Look(t, chromium, page, 1280, false), browser.Look(t, chromium, page, 1280, true)
			for _, m := range []browser.Measured{light, dark, browser.Look(t, chromium, page, 420, false)} {
				if m.Scroll > m.Width || m.Rows != size.rows || m.Scripts != 0 || m.Height < 500 {
					t.Errorf("%+v: want %d rows, no script, and no more than %d pixels wide", m, size.rows, m.Width)
				}
			}
			if light.Background == dark.Background || light.Color == dark.Color || light.Bad == dark.Bad {
				t.Errorf("light %+v, dark %+v: want other colors", light, dark)
			}
			if light.Background == light.Color || dark.Background == dark.Color {
				t.Errorf("text in the color of the page: %+v, %+v", light, dark)
			}
		})
	}
}
