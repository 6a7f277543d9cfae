package checks

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

func TestGPURemap(t *testing.T) { testCheck(t, "check_gpu_remap") }

var _ = table("check_gpu_remap", func(name string) []scenario {
	rows := func(r probe.RemappedRows) func(*probe.NVML) {
		return gpu3(func(g *probe.GPU) { g.Rows.Remapped = probe.Known(r) })
	}
	says := func(severity Severity, code string, remedy Remedy, want, got, text string) Finding {
		return gpuFinding(name, 3, Finding{Code: "gpu.remap." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	retired := func(single, double int, pending bool) func(*probe.NVML) {
		return gpu3(func(g *probe.GPU) {
			g.Rows = probe.Rows{RetiredSBE: probe.Known(single), RetiredDBE: probe.Known(double), RetiredPending: probe.Known(pending)}
		})
	}
	errored := onGPUs("one cannot be read", nil, gpu3(func(g *probe.GPU) { g.Rows.Remapped = probe.Failed[probe.RemappedRows](errOdd) }),
		gpuFinding(name, 3, Finding{Code: "gpu.error", Severity: Unknown}, "could not tell: "+oddText))
	errored.broken = true
	const unc = "rows remapped for uncorrected errors"
	return append(gpuLacks(name, "remapped rows", func(g *probe.GPU) { g.Rows.Remapped = probe.Reading[probe.RemappedRows]{} }), append(gpuCommon(name),
		onGPUs("healthy", nil, nil), onV100s("an old GPU", nil, nil),
		onGPUs("rows were remapped", nil, rows(probe.RemappedRows{Corrected: 600, Uncorrected: 511})),
		onGPUs("a limit", of("10"), rows(probe.RemappedRows{Uncorrected: 9})).orTable(map[string]any{"max": int64(10)}),
		onGPUs("pending", nil, rows(probe.RemappedRows{Pending: true}), says(Fail, "pending", ResetGPU, "", "", "rows of memory wait for a reset to be remapped")),
		onGPUs("failed", nil, rows(probe.RemappedRows{Failed: true}), says(Fail, "failed", ReseatOrRMA, "", "", "a row of memory could not be remapped")),
		onGPUs("512 rows", nil, rows(probe.RemappedRows{Uncorrected: 512}), says(Fail, "many", ReseatOrRMA, "fewer than 512", "512", unc)),
		onGPUs("above the limit", of("10"), rows(probe.RemappedRows{Uncorrected: 10}), says(Fail, "many", ReseatOrRMA, "fewer than 10", "10", unc)),
		onGPUs("no spare rows", nil, gpu3(func(g *probe.GPU) { g.Rows.Histogram = probe.Known(probe.RowHistogram{Low: 3, None: 2}) }),
			says(Warn, "spare", "", "", "", "2 banks without spare rows")),
		onV100s("retired pages", nil, retired(10, 5, false)),
		onV100s("many retired pages", nil, retired(10, 6, false), says(Warn, "many", "", "at most 15", "16", "retired pages")),
		onV100s("full of retired pages", nil, retired(60, 3, false), says(Fail, "many", ReseatOrRMA, "fewer than 63", "63", "retired pages")),
		onV100s("retirement pending", nil, retired(1, 0, true), says(Fail, "pending", ResetGPU, "", "", "pages of memory wait for a reset to be retired")),
		errored, gpuDumb(name),
	)...)
})
