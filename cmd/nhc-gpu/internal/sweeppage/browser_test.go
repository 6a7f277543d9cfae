package sweeppage

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/tests/browser"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// The page in a browser: no message in the console, no sideways scroll in a wide and a narrow window, and
// colours for a light and a dark screen. With NHC_GPU_WRITE=pages the pages stay in a directory.
func TestBrowser(t *testing.T) {
	tier.All(t)
	t.Parallel()
	chromium := browser.Find(t)
	for name, report := range map[string]func() *sweep.Report{
		"10": func() *sweep.Report {
			return (&model{nodes: 10, rails: 2, perLeaf: 5, seed: 6, faults: []fault{slowCable("gpu007")}}).report()
		},
		"48": allKinds,
		"500": func() *sweep.Report {
			return (&model{nodes: 500, rails: 4, perLeaf: 32, seed: 7, faults: []fault{slowCable("gpu207")}}).report()
		},
		"5000": large, "none": empty, "compared": compared, "picture": picture,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if os.Getenv("NHC_GPU_WRITE") == "pages" {
				dir = os.TempDir()
			}
			page := filepath.Join(dir, fmt.Sprintf("sweep-%s.html", name))
			f, err := os.Create(page)
			if err != nil {
				t.Fatal(err)
			}
			if err := HTML(f, report()); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			for _, width := range []int{1280, 420} {
				light, dark := browser.Look(t, chromium, page, width, false), browser.Look(t, chromium, page, width, true)
				for _, m := range []browser.Measured{light, dark} {
					if m.Scroll > m.Width || m.Scripts != 0 {
						t.Errorf("%+v: want no script, and no more than %d pixels wide", m, m.Width)
					}
				}
				if light.Background == dark.Background || light.Color == dark.Color || light.Background == light.Color || dark.Background == dark.Color {
					t.Errorf("light %+v, dark %+v: want other colours, and text that is no background", light, dark)
				}
				if len(light.Fills) != len(dark.Fills) || name != "none" && len(light.Fills) < 2 {
					t.Errorf("colours of cells: light %v, dark %v", light.Fills, dark.Fills)
				}
				for i := range light.Fills {
					if light.Fills[i] == dark.Fills[i] {
						t.Errorf("a cell is %s on a light and a dark screen", light.Fills[i])
					}
				}
			}
		})
	}
}
