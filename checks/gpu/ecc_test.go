package gpu

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

func TestGPUECC(t *testing.T) { checktest.Run(t, "check_gpu_ecc") }

var _ = checktest.Table("check_gpu_ecc", func(name string) []checktest.Scenario {
	ecc := func(change func(e *nvml.ECC)) func(*nvml.Snapshot) {
		return checktest.Gpu3(func(g *nvml.GPU) { change(&g.ECC) })
	}
	says := func(severity checks.Severity, code string, remedy checks.Remedy, want, got, text string) checks.Finding {
		return checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.ecc" + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	n := func(n uint64) nvml.Reading[uint64] { return nvml.Known(n) }
	sram := func(now, ever uint64) func(e *nvml.ECC) {
		return func(e *nvml.ECC) { e.SRAM.Uncorrected, e.SRAM.UncorrectedAggregate = n(now), n(ever) }
	}
	off := func(e *nvml.ECC) {
		*e = nvml.ECC{On: nvml.Known(false), Pending: nvml.Known(false)}
	}
	rows := func(r nvml.RemappedRows) func(*nvml.Snapshot) {
		return checktest.Gpu3(func(g *nvml.GPU) { g.Rows.Remapped = nvml.Known(r) })
	}
	remap := func(code string, remedy checks.Remedy, want, got, text string) checks.Finding {
		f := says(checks.Fail, "", remedy, want, got, text)
		f.Code = "gpu.remap." + code
		return f
	}
	mig := func(change func(e *nvml.ECC)) func(*nvml.Snapshot) { // NVML has no volatile counters of the GPU
		return checktest.Gpu3(func(g *nvml.GPU) {
			g.Modes.MIG = nvml.Known(true)
			g.ECC.SRAM.Corrected, g.ECC.DRAM.Corrected, g.ECC.DRAM.Uncorrected = nvml.Reading[uint64]{}, nvml.Reading[uint64]{}, nvml.Reading[uint64]{}
			change(&g.ECC)
		})
	}
	withMIGDevices := func(what string) string {
		return "NVML does not report " + what + " since the driver was loaded of a GPU with MIG devices"
	}
	const now, life = " errors since the driver was loaded", " errors over its lifetime"
	unreadMode := func(n uint64) func(e *nvml.ECC) {
		return func(e *nvml.ECC) {
			e.On, e.Pending = nvml.Failed[bool](checktest.ErrOdd), nvml.Reading[bool]{}
			sram(n, n)(e)
		}
	}
	oddMode := checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.error.value", Severity: checks.Unknown}, "cannot be read: "+checktest.OddText)
	errored := checktest.OnGPUs("one counter cannot be read", nil, ecc(func(e *nvml.ECC) { e.SRAM.Uncorrected = nvml.Failed[uint64](checktest.ErrOdd) }),
		checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.error.value", Severity: checks.Unknown}, "cannot be read: "+checktest.OddText))
	errored.Broken = true
	return append(checktest.GPULacks(name, "ECC mode", func(g *nvml.GPU) { g.ECC.On, g.ECC.Pending = nvml.Reading[bool]{}, nvml.Reading[bool]{} }), append(checktest.GPUCommon(name),
		checktest.OnGPUs("healthy", nil, nil), checktest.OnV100s("an old GPU", nil, nil),
		checktest.OnGPUs("AzureHPC's numbers", checktest.Of("20000000", "10000"), ecc(func(e *nvml.ECC) { e.SRAM.Corrected, e.DRAM.CorrectedAggregate = n(10000), n(20000000) })).
			OrTable(map[string]any{"dram": int64(20000000), "sram": int64(10000)}),
		checktest.OnGPUs("off as wanted", checktest.Of("-o"), ecc(off)).OrTable(map[string]any{"off": true}),
		checktest.OnGPUs("off", nil, ecc(off), says(checks.Fail, ".off", checks.FixConfig, "on", "off", "ECC")),
		checktest.OnGPUs("off, on by default", nil, ecc(func(e *nvml.ECC) { off(e); e.Default = nvml.Known(true) }), says(checks.Fail, ".off", checks.FixConfig, "on", "off", "ECC")),
		checktest.OnGPUs("off, off by default", nil, ecc(func(e *nvml.ECC) { off(e); e.Default = nvml.Known(false) })),
		checktest.OnGPUs("off on all GPUs, off by default", checktest.Of("-R"), allGPUs(func(g *nvml.GPU) { off(&g.ECC); g.ECC.Default = nvml.Known(false) }),
			checks.Finding{Code: "gpu.unsupported", Severity: checks.Skip, Message: name + ":  not supported by these GPUs or their driver"}),
		checktest.OnGPUs("off on workstation boards, old driver", nil, allGPUs(func(g *nvml.GPU) { off(&g.ECC); g.Name = nvml.Known("NVIDIA RTX A6000") })),
		checktest.OnGPUs("off on all GPUs", nil, allGPUs(func(g *nvml.GPU) { off(&g.ECC) }),
			allOf(func(i int) checks.Finding {
				return checktest.GPUFinding(name, i, checks.Finding{Code: "gpu.ecc.off", Severity: checks.Fail, Remedy: checks.FixConfig, Want: "on", Got: "off"}, "ECC")
			})...),
		checktest.OnGPUs("off until the next reset", nil, ecc(func(e *nvml.ECC) { off(e); e.Pending = nvml.Known(true) }),
			says(checks.Fail, ".off", checks.ResetGPU, "on", "off", "ECC, which the next reset turns on")),
		checktest.OnGPUs("on until the next reset", nil, ecc(func(e *nvml.ECC) { e.Pending = nvml.Known(false) }),
			says(checks.Warn, ".pending", "", "", "", "ECC is on and will be off after a reset")),

		checktest.OnGPUs("MIG devices", nil, mig(func(*nvml.ECC) {}), says(checks.Skip, ".mig", "", "", "", withMIGDevices("uncorrected DRAM errors"))),
		checktest.OnGPUs("MIG devices that do not count errors", nil, mig(func(e *nvml.ECC) { e.SRAM.Uncorrected = nvml.Reading[uint64]{} }),
			says(checks.Skip, ".mig", "", "", "", withMIGDevices("uncorrected errors"))),
		checktest.OnGPUs("MIG devices, SRAM, uncorrected", nil, mig(func(e *nvml.ECC) { e.SRAM.Uncorrected = n(2) }),
			says(checks.Skip, ".mig", "", "", "", withMIGDevices("uncorrected DRAM errors")), says(checks.Fail, ".sram", checks.ResetGPU, "0", "2", "uncorrected SRAM"+now)),
		checktest.OnGPUs("SRAM, uncorrected", nil, ecc(sram(2, 2)), says(checks.Fail, ".sram", checks.ResetGPU, "0", "2", "uncorrected SRAM"+now)),
		checktest.OnGPUs("SRAM, uncorrected, and an unread ECC mode", nil, ecc(unreadMode(2)), says(checks.Fail, ".sram", checks.ResetGPU, "0", "2", "uncorrected SRAM"+now), oddMode),
		checktest.OnGPUs("an unread ECC mode", nil, ecc(unreadMode(0)), oddMode).OnBroken(),
		checktest.OnGPUs("SRAM, in the past", nil, ecc(sram(0, 2)), says(checks.Warn, ".sram.aggregate", "", "0", "2", "uncorrected SRAM"+life+", not more than NVIDIA allows")),
		checktest.OnGPUs("SRAM, above the limit, but not above NVIDIA's", nil, ecc(sram(0, 9)), says(checks.Warn, ".sram.aggregate", "", "0", "9", "uncorrected SRAM"+life+", not more than NVIDIA allows")),
		checktest.OnGPUs("SRAM, NVIDIA's limit", nil, ecc(func(e *nvml.ECC) { sram(0, 9)(e); e.SRAMThreshold = nvml.Known(true) }),
			says(checks.Fail, ".sram.threshold", checks.ReseatOrRMA, "", "", "more uncorrected SRAM errors than NVIDIA allows, 9 over its lifetime")),
		checktest.OnV100s("SRAM, at the limit of an old GPU", nil, ecc(sram(0, 4)), says(checks.Warn, ".sram.aggregate", "", "0", "4", "uncorrected SRAM"+life+", 4 are allowed")),
		checktest.OnV100s("SRAM, above the limit of an old GPU", nil, ecc(sram(1, 5)), says(checks.Fail, ".sram", checks.ResetGPU, "0", "1", "uncorrected SRAM"+now),
			says(checks.Fail, ".sram.threshold", checks.ReseatOrRMA, "at most 4", "5", "uncorrected SRAM"+life)),

		checktest.OnGPUs("DRAM, uncorrected, with row remapping", nil, ecc(func(e *nvml.ECC) { e.DRAM.Uncorrected = n(1) }),
			says(checks.Warn, ".dram", checks.ResetGPU, "0", "1", "uncorrected DRAM"+now)),
		checktest.OnV100s("DRAM, uncorrected, without", nil, ecc(func(e *nvml.ECC) { e.DRAM.Uncorrected = n(1) }),
			says(checks.Fail, ".dram", checks.ResetGPU, "0", "1", "uncorrected DRAM"+now)),
		checktest.OnGPUs("DRAM, uncorrected, too many", checktest.Of("5"), ecc(func(e *nvml.ECC) { e.DRAM.Uncorrected = n(6) }),
			says(checks.Fail, ".dram", "", "at most 5", "6", "uncorrected DRAM"+now)),
		checktest.OnGPUs("corrected SRAM, too many", checktest.Of("20000000", "10000"), ecc(func(e *nvml.ECC) { e.SRAM.CorrectedAggregate = n(10001) }),
			says(checks.Fail, ".many", "", "at most 10000", "10001", "corrected SRAM"+life)),
		checktest.OnGPUs("corrected SRAM, very many", nil, ecc(func(e *nvml.ECC) { e.SRAM.Corrected = n(10000001) }),
			says(checks.Warn, ".many", "", "at most 10000000", "10000001", "corrected SRAM"+now)),
		checktest.OnGPUs("corrected DRAM, very many", nil, ecc(func(e *nvml.ECC) { e.DRAM.Corrected = n(20000001) }),
			says(checks.Warn, ".many", "", "at most 20000000", "20000001", "corrected DRAM"+now)),
		checktest.OnGPUs("uncorrected DRAM over its lifetime, too many", checktest.Of("7"), ecc(func(e *nvml.ECC) { e.DRAM.UncorrectedAggregate = n(8) }),
			says(checks.Fail, ".dram", "", "at most 7", "8", "uncorrected DRAM"+life)),

		checktest.OnGPUs("a rate, in the first run", checktest.Of("-r", "100"), ecc(func(e *nvml.ECC) { e.DRAM.Corrected = n(1000) })).OrTable(map[string]any{"rate": int64(100)}),
		checktest.OnGPUs("an allowed rate", checktest.Of("-r", "120"), ecc(func(e *nvml.ECC) { e.DRAM.Corrected = n(10) })).Holding("past/gpu-ecc.json", before300(`0`)),
		checktest.OnGPUs("corrected errors grow", checktest.Of("-r", "100"), ecc(func(e *nvml.ECC) { e.DRAM.Corrected, e.SRAM.Corrected = n(15), n(5) }),
			says(checks.Warn, ".rate", "", "at most 100 per hour", "120", "corrected errors")).Holding("past/gpu-ecc.json", before300(`10`)),
		checktest.OnGPUs("unrepairable", nil, ecc(func(e *nvml.ECC) { e.Unrepairable = nvml.Known(true) }),
			says(checks.Fail, ".unrepairable", checks.ReseatOrRMA, "", "", "memory cannot be repaired")),
		checktest.OnGPUs("repair pending", nil, ecc(func(e *nvml.ECC) { e.RepairPending = nvml.Known(true) }),
			says(checks.Fail, ".repair", checks.ResetGPU, "", "", "a memory channel or TPC needs a reset for its repair")),
		checktest.OnGPUs("errors of a GPU with MIG", nil, checktest.Gpu3(func(g *nvml.GPU) { g.Modes.MIG = nvml.Known(true); sram(2, 2)(&g.ECC) }),
			says(checks.Fail, ".sram", checks.ResetGPU, "0", "2", "uncorrected SRAM"+now)),
		checktest.OnGPUs("rows need a reset", checktest.Of("20000000", "10000"), rows(nvml.RemappedRows{Pending: true}),
			remap("pending", checks.ResetGPU, "", "", "memory rows need a reset to be remapped")),
		checktest.OnGPUs("a row could not be remapped", checktest.Of("20000000", "10000"), rows(nvml.RemappedRows{Failed: true}),
			remap("failed", checks.ReseatOrRMA, "", "", "a memory row could not be remapped")),
		checktest.OnGPUs("600 rows were remapped", checktest.Of("20000000", "10000"), rows(nvml.RemappedRows{Uncorrected: 600}),
			remap("many", checks.ReseatOrRMA, "fewer than 512", "600", "rows remapped for uncorrected errors")),
		checktest.OnGPUs("rows are left to check_gpu_remap", checktest.Of("-R"), rows(nvml.RemappedRows{Uncorrected: 600, Pending: true, Failed: true})).OrTable(map[string]any{"no_remap": true}),
		checktest.OnGPUs("no spare rows", nil, checktest.Gpu3(func(g *nvml.GPU) { g.Rows.Histogram = nvml.Known(nvml.RowHistogram{None: 2}) })),
		checktest.OnV100s("full of retired pages", nil, checktest.Gpu3(func(g *nvml.GPU) { g.Rows.RetiredDBE = nvml.Known(63) }),
			remap("many", checks.ReseatOrRMA, "fewer than 63", "63", "retired pages")),
		errored, checktest.GPUDumb(name),
	)...)
})
