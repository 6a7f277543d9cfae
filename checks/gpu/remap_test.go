package gpu

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

func TestGPURemap(t *testing.T) { checktest.Run(t, "check_gpu_remap") }

var _ = checktest.Table("check_gpu_remap", func(name string) []checktest.Scenario {
	rows := func(r nvml.RemappedRows) func(*nvml.Snapshot) {
		return checktest.Gpu3(func(g *nvml.GPU) { g.Rows.Remapped = nvml.Known(r) })
	}
	banks := func(b nvml.RemappedBanks) func(*nvml.Snapshot) {
		return checktest.Gpu3(func(g *nvml.GPU) { g.Rows.Banks = nvml.Known(b) })
	}
	says := func(severity checks.Severity, code string, remedy checks.Remedy, want, got, text string) checks.Finding {
		return checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.remap." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	retired := func(single, double int, pending bool) func(*nvml.Snapshot) {
		return checktest.Gpu3(func(g *nvml.GPU) {
			g.Rows = nvml.Rows{RetiredSBE: nvml.Known(single), RetiredDBE: nvml.Known(double), RetiredPending: nvml.Known(pending)}
		})
	}
	errored := checktest.OnGPUs("one cannot be read", nil, checktest.Gpu3(func(g *nvml.GPU) { g.Rows.Remapped = nvml.Failed[nvml.RemappedRows](checktest.ErrOdd) }),
		checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.error.value", Severity: checks.Unknown}, "cannot be read: "+checktest.OddText))
	errored.Broken = true
	const unc = "rows remapped for uncorrected errors"
	return append(checktest.GPULacks(name, "remapped rows", func(g *nvml.GPU) { g.Rows.Remapped = nvml.Reading[nvml.RemappedRows]{} }), append(checktest.GPUCommon(name),
		checktest.OnGPUs("healthy", nil, nil), checktest.OnV100s("an old GPU", nil, nil),
		checktest.OnGPUs("rows were remapped", nil, rows(nvml.RemappedRows{Corrected: 600, Uncorrected: 511})),
		checktest.OnGPUs("a limit", checktest.Of("10"), rows(nvml.RemappedRows{Uncorrected: 9})).OrTable(map[string]any{"max": int64(10)}),
		checktest.OnGPUs("pending", nil, rows(nvml.RemappedRows{Pending: true}), says(checks.Fail, "pending", checks.ResetGPU, "", "", "memory rows need a reset to be remapped")),
		checktest.OnGPUs("failed", nil, rows(nvml.RemappedRows{Failed: true}), says(checks.Fail, "failed", checks.ReseatOrRMA, "", "", "a memory row could not be remapped")),
		checktest.OnGPUs("512 rows", nil, rows(nvml.RemappedRows{Uncorrected: 512}), says(checks.Fail, "many", checks.ReseatOrRMA, "fewer than 512", "512", unc)),
		checktest.OnGPUs("above the limit", checktest.Of("10"), rows(nvml.RemappedRows{Uncorrected: 10}), says(checks.Fail, "many", checks.ReseatOrRMA, "fewer than 10", "10", unc)),
		checktest.OnGPUs("MIG devices", nil, checktest.Gpu3(func(g *nvml.GPU) { g.Rows, g.Modes.MIG = nvml.Rows{}, nvml.Known(true) }),
			says(checks.Skip, "mig", "", "", "", "NVML does not report remapped rows of a GPU with MIG devices")),
		checktest.OnGPUs("no spare rows", nil, checktest.Gpu3(func(g *nvml.GPU) { g.Rows.Histogram = nvml.Known(nvml.RowHistogram{Low: 3, None: 2}) }),
			says(checks.Warn, "spare", "", "", "", "2 banks without spare rows")),
		checktest.OnGPUs("banks were remapped", nil, banks(nvml.RemappedBanks{Active: 2, Inactive: 1})),
		checktest.OnGPUs("made without spare banks", nil, banks(nvml.RemappedBanks{NoSpare: 32})),
		checktest.OnGPUs("a bank is pending", nil, banks(nvml.RemappedBanks{Inactive: 1, Pending: true}), says(checks.Fail, "pending", checks.ResetGPU, "", "", "a memory bank needs a reset to be remapped")),
		checktest.OnGPUs("no spare bank", nil, banks(nvml.RemappedBanks{Active: 2, NoSpare: 1}), says(checks.Warn, "spare", "", "", "", "1 group of banks without a spare bank")),
		checktest.OnV100s("retired pages", nil, retired(10, 5, false)),
		checktest.OnV100s("many retired pages", nil, retired(10, 6, false), says(checks.Warn, "many", "", "at most 15", "16", "retired pages")),
		checktest.OnV100s("full of retired pages", nil, retired(60, 3, false), says(checks.Fail, "many", checks.ReseatOrRMA, "fewer than 63", "63", "retired pages")),
		checktest.OnV100s("retirement pending", nil, retired(1, 0, true), says(checks.Fail, "pending", checks.ResetGPU, "", "", "memory pages need a reset to be retired")),
		errored, checktest.GPUDumb(name),
	)...)
})
