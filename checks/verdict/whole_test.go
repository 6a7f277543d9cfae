package verdict

import (
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Other findings about a lost GPU are counted and are not failures. Findings about another GPU,
// and findings that are worse than a softened finding about the lost GPU, are reported.
func TestWholes(t *testing.T) {
	t.Parallel()
	gpu3 := checks.Device{Kind: "gpu", Name: "gpu3", PCI: "0000:13:00.0", UUID: "GPU-3"}
	finding := func(severity checks.Severity, code string, d checks.Device, whole bool) checks.Finding {
		return checks.Finding{Code: code, Severity: severity, Device: d, Whole: whole, Message: code + ":  " + d.String()}
	}
	lost := finding(checks.Fail, "lost", gpu3, true)
	odd := finding(checks.Unknown, "odd", checks.Device{Kind: "gpu", PCI: gpu3.PCI}, false)
	other := finding(checks.Fail, "ecc", checks.Device{Kind: "gpu", Name: "gpu4", PCI: "0000:14:00.0"}, false)
	mismatch := finding(checks.Fail, "mismatch", checks.Device{}, true)
	silent := finding(checks.Unknown, "error", gpu3, true)
	hot := finding(checks.Warn, "hot", gpu3, false)
	warned := lost
	warned.Severity = checks.Warn
	for name, c := range map[string]struct {
		lists [][]checks.Finding
		want  []string
		exit  int
	}{
		"once":             {[][]checks.Finding{{lost}, {lost, odd}, {odd, other}}, []string{"failed lost:  gpu3 0000:13:00.0", "failed ecc:  gpu4 0000:14:00.0", "gpu3 0000:13:00.0:  3 more findings of other checks, not listed"}, 2},
		"one more":         {[][]checks.Finding{{lost}, {odd}}, []string{"failed lost:  gpu3 0000:13:00.0", "gpu3 0000:13:00.0:  1 more finding of other checks, not listed"}, 1},
		"found before":     {[][]checks.Finding{{odd}, {lost}}, []string{"unknown odd:  0000:13:00.0", "failed lost:  gpu3 0000:13:00.0"}, 1},
		"alone":            {[][]checks.Finding{{lost}}, []string{"failed lost:  gpu3 0000:13:00.0"}, 1},
		"the whole node":   {[][]checks.Finding{{mismatch}, {mismatch}, {other}}, []string{"failed mismatch:  ", "failed ecc:  gpu4 0000:14:00.0", "mismatch:  1 more finding of other checks, not listed"}, 2},
		"softened":         {[][]checks.Finding{{warned}, {lost}}, []string{"lost:  gpu3 0000:13:00.0", "failed lost:  gpu3 0000:13:00.0"}, 1},
		"no answer":        {[][]checks.Finding{{silent}, {hot, silent}}, []string{"unknown error:  gpu3 0000:13:00.0", "hot:  gpu3 0000:13:00.0", "gpu3 0000:13:00.0:  1 more finding of other checks, not listed"}, 3},
		"two GPUs, one is": {[][]checks.Finding{{other}, {other}}, []string{"failed ecc:  gpu4 0000:14:00.0", "failed ecc:  gpu4 0000:14:00.0"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := Fold{Settings: Settings{Name: "nhc", All: true}}
			var got []string
			hear := func(events []Event) {
				for _, e := range events {
					if e.To == Log && !strings.Contains(e.Text, "health checks failed") {
						got = append(got, e.Text)
					}
				}
			}
			for _, list := range c.lists {
				f.Begin("a line", 0)
				hear(f.Found(list))
			}
			events, exit := f.Finish(0)
			hear(events)
			var want []string
			for _, w := range c.want {
				if k, rest, ok := strings.Cut(w, " "); ok && (k == "failed" || k == "unknown") {
					w = "ERROR:  nhc:  Health check " + k + ":  " + rest
				}
				want = append(want, w)
			}
			if exit != c.exit || !slices.Equal(got, want) {
				t.Errorf("exit %d, want %d\n got %q\nwant %q", exit, c.exit, got, want)
			}
		})
	}
}
