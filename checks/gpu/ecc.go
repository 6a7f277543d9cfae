package gpu

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuECC checks that ECC is on and that the GPUs have few memory errors. ECC may be off on boards
// that are delivered with ECC off, as RTX boards are.
//
// It fails on uncorrected SRAM errors since the driver was loaded (a reset clears them), on more
// of them over the GPU's lifetime than NVIDIA allows (with a driver that does not report that, on
// more than 4: sichek's limit), and on memory that cannot be repaired or needs a reset for its repair.
// Uncorrected DRAM errors fail a GPU without row remapping; on other GPUs they warn, since
// check_gpu_remap judges the repair.
//
// DRAM and SRAM are limits: it fails if the DRAM of a GPU has more errors, corrected or not, than
// DRAM, or if its SRAM has more corrected errors than SRAM. Without these numbers it warns above the
// limits of the node's platform, or else above 20000000 DRAM and 10000000 SRAM errors. With -r it
// warns above RATE corrected errors per hour since the last run.
//
// Like AzureHPC's check it also fails where check_gpu_remap fails; -R leaves that to check_gpu_remap.
//
//	gpu* || check_gpu_ecc 20000000 10000
type gpuECC struct {
	DRAM int  `arg:"1" toml:"dram"` // highest number of DRAM errors since the driver was loaded, or over the lifetime; 0: warn by platform
	SRAM int  `arg:"2" toml:"sram"` // highest number of corrected SRAM errors; 0: warn by platform
	Off  bool `opt:"o" toml:"off"`  // ECC may be off

	NoRows bool `opt:"R" toml:"no_remap"` // do not judge remapped rows and retired pages

	Rate float64 `opt:"r" toml:"rate"` // highest number of corrected errors per hour; 0: not checked
}

func init() {
	checks.Register(checks.Info{
		Name:    "check_gpu_ecc",
		Usage:   "[-o] [-R] [-r RATE] [DRAM [SRAM]]",
		Summary: "ECC is on and has found no uncorrected errors",
		Lane:    checks.NVML,
		New:     func() checks.Check { return &gpuECC{} },
		Do: func() map[string]string {
			return map[string]string{
				"gpu.ecc.off":            "Turn ECC on (nvidia-smi -i ADDRESS -e 1), then reset the idle GPU. If ECC is off on purpose, use option -o.",
				"gpu.ecc.pending":        "Nothing now: the mode changes at the next reset of the GPU or reboot.",
				"gpu.ecc.sram":           checks.ResetAdvice + " If the fault returns, run the vendor's field diagnostic and have the GPU replaced.",
				"gpu.ecc.sram.aggregate": "Nothing now: the GPU had these errors in the past. The check fails when the driver reports that NVIDIA's threshold is exceeded (above 4 errors, sichek's limit, with a driver that reports no threshold): then have the GPU replaced.",
				"gpu.ecc.sram.threshold": "The GPU has more SRAM errors than NVIDIA allows, or than sichek's limit of 4 with a driver that reports no threshold: run the vendor's field diagnostic and have it replaced.",
				"gpu.ecc.dram":           checks.ResetAdvice + " That disables the faulty memory (check_gpu_remap). If the fault returns, have the GPU replaced.",
				"gpu.ecc.mig":            "Nothing: the counters over the GPU's lifetime are judged. check_gpu_xid reports the Xids of faulty memory (48, 63, 64, 94, 95).",
				"gpu.ecc.many":           "The errors are corrected, but there are very many: run the vendor's field diagnostic when the node is idle.",
				"gpu.ecc.rate":           "The errors are corrected, but their number grows fast: run the vendor's field diagnostic when the node is idle.",
				"gpu.ecc.unrepairable":   "The GPU has no spare for memory that has failed: have the GPU replaced.",
				"gpu.ecc.repair":         checks.ResetAdvice + " The reset repairs the memory.",
			}
		},
	})
}

// Limits of other tools, since NVIDIA publishes none.
const (
	maxSRAMAggregate = 4        // uncorrected errors over the GPU's lifetime: sichek replaces a GPU of any model above it (config/default_spec.yaml)
	manyDRAM         = 20000000 // AzureHPC's
	manySRAM         = 10000000 // sichek's; AzureHPC has 10000
)

const gpuECCName = "check_gpu_ecc"

func (c *gpuECC) Run(_ context.Context, env *checks.Env) []checks.Finding {
	s, findings := AskNVML(env, gpuECCName, nvml.GroupECC|nvml.GroupRows)
	if s == nil {
		return findings
	}
	reportMissing(s, "ECC mode", func(g *nvml.GPU) nvml.Reading[bool] { return g.ECC.On })
	s.total("corrected errors of DRAM", func(g *nvml.GPU) (uint64, bool) { return g.ECC.DRAM.Corrected.Value, g.ECC.DRAM.Corrected.Known })
	s.total("of SRAM", func(g *nvml.GPU) (uint64, bool) { return g.ECC.SRAM.Corrected.Value, g.ECC.SRAM.Corrected.Known })
	if c.Rate <= 0 {
		s.Each(c.judge)
		return s.Done()
	}
	m := recallGPU[uint64](env, gpuECCName, "gpu-ecc", s.NVML.Taken)
	s.Each(func(s *GPUs, g *nvml.GPU) {
		c.judge(s, g)
		c.judgeRate(s, g, m)
	})
	return append(s.Done(), m.store(s)...)
}

// judgeRate judges how fast the corrected errors have grown.
func (c *gpuECC) judgeRate(s *GPUs, g *nvml.GPU, m *memory[uint64]) {
	name, sram, dram := g.UUID.Value, g.ECC.SRAM.Corrected, g.ECC.DRAM.Corrected
	if g.Modes.MIG.Value && !sram.Known && !dram.Known { // NVML has only the counters over the lifetime
		name, sram, dram = name+" lifetime", g.ECC.SRAM.CorrectedAggregate, g.ECC.DRAM.CorrectedAggregate
	}
	Value(s, sram)
	Value(s, dram)
	if err := unreadMIG(g); err != nil && !sram.Known && !dram.Known { // it is unknown which counters exist
		s.Err = cmp.Or(s.Err, err)
		m.keep(g)
		return
	}
	then, compare := m.under(g, name)
	now := nvml.Reading[uint64]{Value: sram.Value + dram.Value, Known: sram.Known || dram.Known}
	now.Known = now.Known && sram.Err == nil && dram.Err == nil // a sum without one of them would jump
	if !now.Known && !compare {
		return
	}
	value, grown := m.counter(g, name, now, then, compare)
	m.next.GPUs[name] = value
	if !grown.Known {
		return
	}
	if rate := grown.Per(time.Hour); rate > c.Rate {
		s.Report(g, checks.Finding{Code: "gpu.ecc.rate", Severity: checks.Warn, Want: fmt.Sprintf("at most %g per hour", c.Rate), Got: fmt.Sprintf("%.0f", rate)}, "corrected errors")
	}
}

func (c *gpuECC) judge(s *GPUs, g *nvml.GPU) {
	e := g.ECC
	judged := s.Judged
	on, known := Value(s, e.On)
	pending, hasPending := Value(s, e.Pending)
	Value(s, e.Default)
	if known && !on && on == pending { // without ECC nothing counts as judged
		s.Judged = judged
	}
	switch {
	case known && !on && !c.Off && eccByDefault(g):
		f := checks.Finding{Code: "gpu.ecc.off", Severity: checks.Fail, Want: "on", Got: "off", Remedy: checks.FixConfig}
		if pending {
			f.Remedy = checks.ResetGPU
		}
		s.Report(g, f, "ECC%s", map[bool]string{true: ", which the next reset turns on"}[pending])
	case known && hasPending && on != pending:
		s.Report(g, checks.Finding{Code: "gpu.ecc.pending", Severity: checks.Warn}, "ECC is %s and will be %s after a reset", formatSwitch(on), formatSwitch(pending))
	}
	if bad, _ := Value(s, e.Unrepairable); bad {
		s.Report(g, checks.Finding{Code: "gpu.ecc.unrepairable", Severity: checks.Fail, Remedy: checks.ReseatOrRMA}, "memory cannot be repaired")
	}
	if waits, _ := Value(s, e.RepairPending); waits {
		s.Report(g, checks.Finding{Code: "gpu.ecc.repair", Severity: checks.Fail, Remedy: checks.ResetGPU}, "a memory channel or TPC needs a reset for its repair")
	}
	if on && g.Modes.MIG.Value && !e.DRAM.Uncorrected.Known && e.DRAM.Uncorrected.Err == nil {
		not := "uncorrected DRAM errors"
		if !e.SRAM.Uncorrected.Known {
			not = "uncorrected errors"
		}
		s.Report(g, checks.Finding{Code: "gpu.ecc.mig", Severity: checks.Skip}, "NVML does not report %s since the driver was loaded of a GPU with MIG devices", not)
	}
	c.judgeSRAM(s, g)
	c.judgeDRAM(s, g)
	c.judgeMany(s, g)
	if !c.NoRows {
		judgeRows(s, g)
	}
}

// eccByDefault reports whether the board is delivered with ECC on. Drivers before 510 do not
// report it: workstation boards have it off, data center boards have it on. If it could not be read
// ECC may be off.
func eccByDefault(g *nvml.GPU) bool {
	if d := g.ECC.Default; d.Known || d.Err != nil {
		return d.Value
	}
	for _, line := range []string{"RTX", "Quadro", "TITAN", "GeForce"} {
		if strings.Contains(g.Name.Value, line) {
			return false
		}
	}
	return true
}

// judgeRows adds the failures of check_gpu_remap: AzureHPC's configurations have no line for it.
func judgeRows(s *GPUs, g *nvml.GPU) {
	before := s.Findings
	s.Findings = nil
	(&gpuRemap{Max: maxRemapped}).judge(s, g)
	mild := func(f checks.Finding) bool { return f.Severity < checks.Fail }
	s.Findings = append(before, slices.DeleteFunc(s.Findings, mild)...)
}

func (c *gpuECC) judgeSRAM(s *GPUs, g *nvml.GPU) {
	now, _ := Value(s, g.ECC.SRAM.Uncorrected)
	ever, _ := Value(s, g.ECC.SRAM.UncorrectedAggregate)
	exceeded, hasThreshold := Value(s, g.ECC.SRAMThreshold)
	unread := g.ECC.SRAMThreshold.Err != nil // NVIDIA may allow them
	if now > 0 {
		s.Report(g, checks.Finding{Code: "gpu.ecc.sram", Severity: checks.Fail, Want: "0", Got: fmt.Sprint(now), Remedy: checks.ResetGPU}, "uncorrected SRAM errors since the driver was loaded")
	}
	aggregate := checks.Finding{Want: fmt.Sprintf("at most %d", maxSRAMAggregate), Got: fmt.Sprint(ever)}
	switch {
	case exceeded:
		s.Report(g, checks.Finding{Code: "gpu.ecc.sram.threshold", Severity: checks.Fail, Remedy: checks.ReseatOrRMA}, "more uncorrected SRAM errors than NVIDIA allows, %d over its lifetime", ever)
	case ever > maxSRAMAggregate && !hasThreshold && !unread:
		aggregate.Code, aggregate.Severity, aggregate.Remedy = "gpu.ecc.sram.threshold", checks.Fail, checks.ReseatOrRMA
		s.Report(g, aggregate, "uncorrected SRAM errors over its lifetime")
	case ever > 0 && now == 0:
		aggregate.Code, aggregate.Severity, aggregate.Want = "gpu.ecc.sram.aggregate", checks.Warn, "0"
		allowed := fmt.Sprintf("%d are allowed", maxSRAMAggregate)
		switch {
		case hasThreshold:
			allowed = "not more than NVIDIA allows"
		case unread:
			allowed = "it is unknown whether NVIDIA allows them"
		}
		s.Report(g, aggregate, "uncorrected SRAM errors over its lifetime, %s", allowed)
	}
}

func (c *gpuECC) judgeDRAM(s *GPUs, g *nvml.GPU) {
	now, _ := Value(s, g.ECC.DRAM.Uncorrected)
	if now == 0 || c.DRAM > 0 && now > uint64(c.DRAM) { // judgeMany reports more than DRAM
		return
	}
	f := checks.Finding{Code: "gpu.ecc.dram", Severity: checks.Fail, Want: "0", Got: fmt.Sprint(now), Remedy: checks.ResetGPU}
	if r := g.Rows; r.Remapped.Known || r.Remapped.Err != nil && !r.RetiredDBE.Known { // it remaps rows
		f.Severity = checks.Warn
	}
	s.Report(g, f, "uncorrected DRAM errors since the driver was loaded")
}

// judgeMany compares counts with the limits in nhc.conf, which fail, or else with those of the
// platform or of other tools, which warn.
func (c *gpuECC) judgeMany(s *GPUs, g *nvml.GPU) {
	many := func(code, errors string, r nvml.Reading[uint64], allowed, usual int) {
		f := checks.Finding{Code: "gpu.ecc." + code, Severity: checks.Fail}
		if allowed <= 0 {
			allowed, f.Severity = usual, checks.Warn
		}
		n, known := Value(s, r)
		if !known || n <= uint64(allowed) {
			return
		}
		f.Want, f.Got = fmt.Sprintf("at most %d", allowed), fmt.Sprint(n)
		s.Report(g, f, "%s", errors)
	}
	e := g.ECC
	manySRAM, manyDRAM := manySRAM, manyDRAM
	if p := s.findPlatform(g); p.SRAMErrors > 0 {
		manySRAM = p.SRAMErrors
	}
	if p := s.findPlatform(g); p.DRAMErrors > 0 {
		manyDRAM = p.DRAMErrors
	}
	many("many", "corrected SRAM errors since the driver was loaded", e.SRAM.Corrected, c.SRAM, manySRAM)
	many("many", "corrected SRAM errors over its lifetime", e.SRAM.CorrectedAggregate, c.SRAM, manySRAM)
	many("many", "corrected DRAM errors since the driver was loaded", e.DRAM.Corrected, c.DRAM, manyDRAM)
	many("many", "corrected DRAM errors over its lifetime", e.DRAM.CorrectedAggregate, c.DRAM, manyDRAM)
	many("dram", "uncorrected DRAM errors since the driver was loaded", e.DRAM.Uncorrected, c.DRAM, manyDRAM)
	many("dram", "uncorrected DRAM errors over its lifetime", e.DRAM.UncorrectedAggregate, c.DRAM, manyDRAM)
}
