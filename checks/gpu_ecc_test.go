package checks

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

func TestGPUECC(t *testing.T) { testCheck(t, "check_gpu_ecc") }

var _ = table("check_gpu_ecc", func(name string) []scenario {
	ecc := func(change func(e *probe.ECC)) func(*probe.NVML) { return gpu3(func(g *probe.GPU) { change(&g.ECC) }) }
	says := func(severity Severity, code string, remedy Remedy, want, got, text string) Finding {
		return gpuFinding(name, 3, Finding{Code: "gpu.ecc" + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	n := func(n uint64) probe.Reading[uint64] { return probe.Known(n) }
	sram := func(now, ever uint64) func(e *probe.ECC) {
		return func(e *probe.ECC) { e.SRAM.Uncorrected, e.SRAM.UncorrectedAggregate = n(now), n(ever) }
	}
	off := func(e *probe.ECC) {
		*e = probe.ECC{On: probe.Known(false), Pending: probe.Known(false)}
	}
	rows := func(r probe.RemappedRows) func(*probe.NVML) {
		return gpu3(func(g *probe.GPU) { g.Rows.Remapped = probe.Known(r) })
	}
	remap := func(code string, remedy Remedy, want, got, text string) Finding {
		f := says(Fail, "", remedy, want, got, text)
		f.Code = "gpu.remap." + code
		return f
	}
	const now, life = " errors since the driver was loaded", " errors over its life"
	errored := onGPUs("one counter cannot be read", nil, ecc(func(e *probe.ECC) { e.SRAM.Uncorrected = probe.Failed[uint64](errOdd) }),
		gpuFinding(name, 3, Finding{Code: "gpu.error", Severity: Unknown}, "could not tell: "+oddText))
	errored.broken = true
	return append(gpuLacks(name, "ECC mode", func(g *probe.GPU) { g.ECC.On, g.ECC.Pending = probe.Reading[bool]{}, probe.Reading[bool]{} }), append(gpuCommon(name),
		onGPUs("healthy", nil, nil), onV100s("an old GPU", nil, nil),
		onGPUs("AzureHPC's numbers", of("20000000", "10000"), ecc(func(e *probe.ECC) { e.SRAM.Corrected, e.DRAM.CorrectedAggregate = n(10000), n(20000000) })).
			orTable(map[string]any{"dram": int64(20000000), "sram": int64(10000)}),
		onGPUs("off as wanted", of("-o"), ecc(off)).orTable(map[string]any{"off": true}),
		onGPUs("off", nil, ecc(off), says(Fail, ".off", FixConfig, "on", "off", "ECC")),
		onGPUs("off, and the board comes with it on", nil, ecc(func(e *probe.ECC) { off(e); e.Default = probe.Known(true) }), says(Fail, ".off", FixConfig, "on", "off", "ECC")),
		onGPUs("off, and the board comes with it off", nil, ecc(func(e *probe.ECC) { off(e); e.Default = probe.Known(false) })),
		onGPUs("off on all of a node, as they came", of("-R"), allGPUs(func(g *probe.GPU) { off(&g.ECC); g.ECC.Default = probe.Known(false) }),
			Finding{Code: "gpu.unsupported", Severity: Skip, Message: name + ":  not supported by these GPUs or their driver"}),
		onGPUs("off on boards of workstations, by an old driver", nil, allGPUs(func(g *probe.GPU) { off(&g.ECC); g.Name = probe.Known("NVIDIA RTX A6000") })),
		onGPUs("off on all of a node", nil, allGPUs(func(g *probe.GPU) { off(&g.ECC) }),
			allOf(func(i int) Finding {
				return gpuFinding(name, i, Finding{Code: "gpu.ecc.off", Severity: Fail, Remedy: FixConfig, Want: "on", Got: "off"}, "ECC")
			})...),
		onGPUs("off until the next reset", nil, ecc(func(e *probe.ECC) { off(e); e.Pending = probe.Known(true) }),
			says(Fail, ".off", ResetGPU, "on", "off", "ECC, which the next reset turns on")),
		onGPUs("on until the next reset", nil, ecc(func(e *probe.ECC) { e.Pending = probe.Known(false) }),
			says(Warn, ".pending", "", "", "", "ECC is on, and will be off after a reset")),

		onGPUs("SRAM, uncorrected", nil, ecc(sram(2, 2)), says(Fail, ".sram", ResetGPU, "0", "2", "uncorrected SRAM"+now)),
		onGPUs("SRAM, in the past", nil, ecc(sram(0, 2)), says(Warn, ".sram.aggregate", "", "0", "2", "uncorrected SRAM"+life+", not more than NVIDIA allows")),
		onGPUs("SRAM, above the limit, but not NVIDIA's", nil, ecc(sram(0, 9)), says(Warn, ".sram.aggregate", "", "0", "9", "uncorrected SRAM"+life+", not more than NVIDIA allows")),
		onGPUs("SRAM, NVIDIA's limit", nil, ecc(func(e *probe.ECC) { sram(0, 9)(e); e.SRAMThreshold = probe.Known(true) }),
			says(Fail, ".sram.threshold", ReseatOrRMA, "", "", "more uncorrected SRAM errors than NVIDIA allows, 9 over its life")),
		onV100s("SRAM, at the limit of an old GPU", nil, ecc(sram(0, 4)), says(Warn, ".sram.aggregate", "", "0", "4", "uncorrected SRAM"+life+", 4 are allowed")),
		onV100s("SRAM, above the limit of an old GPU", nil, ecc(sram(1, 5)), says(Fail, ".sram", ResetGPU, "0", "1", "uncorrected SRAM"+now),
			says(Fail, ".sram.threshold", ReseatOrRMA, "at most 4", "5", "uncorrected SRAM"+life)),

		onGPUs("DRAM, uncorrected, with row remapping", nil, ecc(func(e *probe.ECC) { e.DRAM.Uncorrected = n(1) }),
			says(Warn, ".dram", ResetGPU, "0", "1", "uncorrected DRAM"+now)),
		onV100s("DRAM, uncorrected, without", nil, ecc(func(e *probe.ECC) { e.DRAM.Uncorrected = n(1) }),
			says(Fail, ".dram", ResetGPU, "0", "1", "uncorrected DRAM"+now)),
		onGPUs("DRAM, uncorrected, too many", of("5"), ecc(func(e *probe.ECC) { e.DRAM.Uncorrected = n(6) }),
			says(Fail, ".dram", "", "at most 5", "6", "uncorrected DRAM"+now)),
		onGPUs("corrected SRAM, too many", of("20000000", "10000"), ecc(func(e *probe.ECC) { e.SRAM.CorrectedAggregate = n(10001) }),
			says(Fail, ".many", "", "at most 10000", "10001", "corrected SRAM"+life)),
		onGPUs("corrected SRAM, very many", nil, ecc(func(e *probe.ECC) { e.SRAM.Corrected = n(10000001) }),
			says(Warn, ".many", "", "at most 10000000", "10000001", "corrected SRAM"+now)),
		onGPUs("corrected DRAM, very many", nil, ecc(func(e *probe.ECC) { e.DRAM.Corrected = n(20000001) }),
			says(Warn, ".many", "", "at most 20000000", "20000001", "corrected DRAM"+now)),
		onGPUs("uncorrected DRAM over its life, too many", of("7"), ecc(func(e *probe.ECC) { e.DRAM.UncorrectedAggregate = n(8) }),
			says(Fail, ".dram", "", "at most 7", "8", "uncorrected DRAM"+life)),

		onGPUs("a rate, in the first run", of("-r", "100"), ecc(func(e *probe.ECC) { e.DRAM.Corrected = n(1000) })).orTable(map[string]any{"rate": int64(100)}),
		onGPUs("a rate that is allowed", of("-r", "120"), ecc(func(e *probe.ECC) { e.DRAM.Corrected = n(10) })).holding("past/gpu-ecc.json", before300(`0`)),
		onGPUs("corrected errors grow", of("-r", "100"), ecc(func(e *probe.ECC) { e.DRAM.Corrected, e.SRAM.Corrected = n(15), n(5) }),
			says(Warn, ".rate", "", "at most 100 an hour", "120", "corrected errors")).holding("past/gpu-ecc.json", before300(`10`)),
		onGPUs("unrepairable", nil, ecc(func(e *probe.ECC) { e.Unrepairable = probe.Known(true) }),
			says(Fail, ".unrepairable", ReseatOrRMA, "", "", "memory that cannot be repaired")),
		onGPUs("repair pending", nil, ecc(func(e *probe.ECC) { e.RepairPending = probe.Known(true) }),
			says(Fail, ".repair", ResetGPU, "", "", "a channel or TPC waits for a reset to be repaired")),
		onGPUs("MIG hides nothing", nil, gpu3(func(g *probe.GPU) { g.Modes.MIG = probe.Known(true); sram(2, 2)(&g.ECC) }),
			says(Fail, ".sram", ResetGPU, "0", "2", "uncorrected SRAM"+now)),
		onGPUs("rows wait for a reset", of("20000000", "10000"), rows(probe.RemappedRows{Pending: true}),
			remap("pending", ResetGPU, "", "", "rows of memory wait for a reset to be remapped")),
		onGPUs("a row could not be remapped", of("20000000", "10000"), rows(probe.RemappedRows{Failed: true}),
			remap("failed", ReseatOrRMA, "", "", "a row of memory could not be remapped")),
		onGPUs("600 rows were remapped", of("20000000", "10000"), rows(probe.RemappedRows{Uncorrected: 600}),
			remap("many", ReseatOrRMA, "fewer than 512", "600", "rows remapped for uncorrected errors")),
		onGPUs("rows are check_gpu_remap's", of("-R"), rows(probe.RemappedRows{Uncorrected: 600, Pending: true, Failed: true})).orTable(map[string]any{"no_remap": true}),
		onGPUs("no spare rows", nil, gpu3(func(g *probe.GPU) { g.Rows.Histogram = probe.Known(probe.RowHistogram{None: 2}) })),
		onV100s("full of retired pages", nil, gpu3(func(g *probe.GPU) { g.Rows.RetiredDBE = probe.Known(63) }),
			remap("many", ReseatOrRMA, "fewer than 63", "63", "retired pages")),
		errored, gpuDumb(name),
	)...)
})
